"""Hosts over ssh: the list of them, the checks before a start, the setup, and their own side."""
