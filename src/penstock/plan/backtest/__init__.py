"""The planner against measured runs. Nothing that predicts imports this."""
