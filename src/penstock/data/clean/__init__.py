"""Repairs and filters of documents, removal of personal data and boilerplate."""
