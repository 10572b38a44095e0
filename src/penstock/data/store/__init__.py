"""Objects behind URLs, and the cache of them on a local disk."""
