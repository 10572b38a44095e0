"""The best model that a budget can train: sizes, tokens, scaling laws, and open models instead."""
