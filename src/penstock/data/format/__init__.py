"""A dataset on disk: its manifest, its shards, how it is written, and how its name is found."""
