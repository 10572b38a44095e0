"""The journal of a run on disk: writing, reading, following."""
