"""The journal of a run on disk: format, writing, reading, following."""
