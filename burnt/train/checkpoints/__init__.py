"""Checkpoints: what they hold, which of them stay, and the thread that writes them."""
