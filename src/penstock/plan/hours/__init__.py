"""The schedule of a planned run by the hours of its site: cost, carbon and end of the run."""
