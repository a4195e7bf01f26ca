"""The code of a run: where it is, and whether it may be executed."""
