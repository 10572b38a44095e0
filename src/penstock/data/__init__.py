"""Sources, tokens, shards, versions and the stream that a run reads."""
