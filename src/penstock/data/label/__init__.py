"""Quality scores of documents, and how many copies of each document a score gives."""
