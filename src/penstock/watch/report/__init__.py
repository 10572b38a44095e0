"""The report of a run: terminal, HTML, JSON."""
