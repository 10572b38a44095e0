"""Raw files as documents: text, JSON, CSV, Parquet, Arrow; local, behind URLs, on the hub."""
