"""Open models: from a Hugging Face config.json to a `ModelShape`."""
