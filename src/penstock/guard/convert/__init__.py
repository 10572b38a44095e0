"""Checkpoints in other forms: converted, rewritten for other ranks, taken over by another run."""
