"""The best layouts of a job, and what would make it faster or smaller."""
