"""A dataset as a run reads it: shards, sample order, mixtures, the stream, reading ahead."""
