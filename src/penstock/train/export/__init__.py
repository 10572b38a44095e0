"""A trained model as files for other programs, and as text."""
