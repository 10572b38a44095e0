"""The cluster file: schema, loading, summary."""
