"""Other places that a run is shown in: W&B, webhooks, callbacks."""
