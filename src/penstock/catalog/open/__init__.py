"""Open models: what a Hugging Face config.json says, as a `ModelShape`."""
