"""Compile, cache and launch generated kernels, and run plans."""
