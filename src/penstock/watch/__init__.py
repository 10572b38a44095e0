"""A run as people and programs see it: terminal, page, report, outlets."""
