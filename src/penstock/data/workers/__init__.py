"""Processes that work on parts of a dataset, a stage at a time."""
