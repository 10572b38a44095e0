"""Failures, saves, evaluations and starts over a whole run."""
