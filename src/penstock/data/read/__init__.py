"""Reading a dataset in a run: shards, sample order, mixtures, the stream, read-ahead."""
