"""Quality scores of documents."""
