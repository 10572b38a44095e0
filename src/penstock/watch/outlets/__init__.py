"""Other receivers of a run's events and values: trackers, webhooks, Python callbacks."""
