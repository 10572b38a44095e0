"""Predictions: step time, memory, failures, power, cost, and the search for a layout."""
