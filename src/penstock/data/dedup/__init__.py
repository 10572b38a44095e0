"""Exact copies, near-duplicates and contaminated documents."""
