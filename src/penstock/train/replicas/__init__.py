"""How data-parallel replicas agree: reduce, vote, live membership."""
