"""LoRA and QLoRA."""
