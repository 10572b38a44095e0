"""The memory of the fullest rank."""
