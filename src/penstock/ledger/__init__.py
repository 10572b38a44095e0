"""Causes, ledgers, and the journal of a run with the merge that turns one into the other."""
