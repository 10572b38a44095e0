"""Decisions before any process starts: data, layout, plan, resume or fork."""
