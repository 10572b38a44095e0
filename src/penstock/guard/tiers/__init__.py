"""The tiers that hold checkpoints: memory, disk, object store, peers; and the search over them."""
