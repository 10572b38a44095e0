"""Raw readings: clocks, traces, energy counters, memory, the probe."""
