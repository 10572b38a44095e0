"""Other receivers of a run's events and values: W&B, webhooks, Python callbacks."""
