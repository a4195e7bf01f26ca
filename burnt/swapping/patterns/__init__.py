"""The kinds: which modules are recognised, and the kernels that replace them."""
