"""The web page of a run, and metrics for Prometheus."""
