"""Penstock: one run file in, a trained model and its ledger out."""
