"""Processes of ranks on this host: start, watch, restart."""
