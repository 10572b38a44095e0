"""Noticing faults: anomalies, silent corruption, stuck ranks; and the traps of drills."""
