"""Saving checkpoints while training goes on, and loading them."""
