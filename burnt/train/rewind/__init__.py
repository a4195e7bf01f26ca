"""A run trained forward again from a checkpoint, and a step looked into."""
