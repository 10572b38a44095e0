"""The training loop of a rank, and what it is made of."""
