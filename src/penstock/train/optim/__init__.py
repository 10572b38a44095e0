"""Optimizers. The learning-rate schedule is in `train/step.py`."""
