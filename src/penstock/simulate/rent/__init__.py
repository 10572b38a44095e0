"""Offers of capacity for a run: what each costs per useful token, and whether it is in time."""
