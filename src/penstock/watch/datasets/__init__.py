"""Datasets as people look at them: terminal and HTML."""
