"""The panes of a run's screen, each in a file of its own."""
