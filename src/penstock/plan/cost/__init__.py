"""Money, energy and carbon of a run."""
