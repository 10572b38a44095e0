"""Where checkpoints live: memory, disk, object store, peers; which one to resume from."""
