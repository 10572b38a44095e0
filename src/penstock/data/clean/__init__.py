"""Filters and repairs of documents, one file per filter."""
