"""Optimizer steps over lists of tensors."""
