"""Building a dataset from a recipe, one file per stage."""
