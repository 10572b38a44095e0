"""Detection of faults: anomalies, silent corruption, stuck ranks; and the failpoints of drills."""
