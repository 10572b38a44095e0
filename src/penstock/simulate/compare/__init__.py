"""Clusters side by side for one run: time, money, energy, risk, and the choice in words."""
