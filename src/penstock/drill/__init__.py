"""Campaigns of real faults on real runs, each judged against the undisturbed run."""
