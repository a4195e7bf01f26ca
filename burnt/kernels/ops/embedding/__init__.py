"""Embedding, and the gradient of its table."""
