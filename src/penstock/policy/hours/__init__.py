"""The hours in which a run trains, by their price, their carbon and their power."""
