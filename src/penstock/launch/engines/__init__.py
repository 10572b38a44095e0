"""Engines: what starts `penstock train` once on every node of a cluster."""
