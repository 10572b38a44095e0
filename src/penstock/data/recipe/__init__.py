"""The recipe file: the schema of how a dataset is made, one file per section."""
