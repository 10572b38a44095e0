"""The schema of the run file, one file per section."""
