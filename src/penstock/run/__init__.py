"""The run file: the whole schema (one file per section), loading, overrides, fingerprint."""
