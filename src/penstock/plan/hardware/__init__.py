"""The machine that a plan is for, from a cluster file, the catalog or a probe."""
