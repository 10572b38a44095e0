"""Saving checkpoints while training goes on."""
