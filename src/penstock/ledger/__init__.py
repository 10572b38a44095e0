"""Causes, ledgers, the journal of a run, and the merge from the journal to a ledger."""
