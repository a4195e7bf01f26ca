"""Tensors' math made into callables: traced, lowered to loops, printed as kernels, compiled and launched."""
