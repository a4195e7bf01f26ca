"""From kernels to source text, a package per language; `printer` and `shape_params` are what they share."""
