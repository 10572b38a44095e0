"""A model laid out over ranks, one file per parallelism."""
