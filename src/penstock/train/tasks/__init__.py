"""Benchmark tasks of lm-evaluation-harness on our models: scoring, generation, results."""
