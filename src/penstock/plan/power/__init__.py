"""What nodes draw while they train."""
