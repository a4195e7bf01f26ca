"""The terminal monitor: watch, compare and steer runs. Nothing in it imports torch."""
