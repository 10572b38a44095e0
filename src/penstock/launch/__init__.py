"""From a run to its processes: preparation, supervisor, several hosts."""
