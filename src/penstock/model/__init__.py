"""The decoder, adapters, and Hugging Face checkpoints in and out."""
