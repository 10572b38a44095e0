"""Checkpoints in other forms and of other programs."""
