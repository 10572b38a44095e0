"""Pure decisions: state and event in, action out. Guard, supervisor and planner share them."""
