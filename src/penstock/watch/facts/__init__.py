"""A run folder as plain values, for everything that shows a run."""
