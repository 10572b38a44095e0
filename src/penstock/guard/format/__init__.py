"""A checkpoint on disk: manifest, index, files."""
