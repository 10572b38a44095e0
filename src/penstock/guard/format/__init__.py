"""The checkpoint format on disk: manifest, index, tensor files."""
