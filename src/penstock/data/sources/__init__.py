"""Readers that turn raw files (text, JSON, CSV, Parquet, Arrow) into documents.

Files are local, behind URLs, or on the Hugging Face hub.
"""
