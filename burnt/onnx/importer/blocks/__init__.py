"""Blocks of written Python: what a model repeats, each time with its own weights, is one class and a loop."""
