"""Checkpoints and the checks that keep a run safe."""
