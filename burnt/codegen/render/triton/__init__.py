"""Print kernels as Triton."""
