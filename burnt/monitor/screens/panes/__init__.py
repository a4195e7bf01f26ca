"""The panes of a run's screen, one per file."""
