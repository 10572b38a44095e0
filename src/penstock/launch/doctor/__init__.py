"""Checks of the nodes of a cluster before a run: each by itself, and all of them together."""
