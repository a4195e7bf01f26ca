"""From kernels to source text, a package per language.

c, metal, triton   the printers; none knows of the others, but Metal takes its math from the C headers
shape_params       integers that come from shapes: as numbers, or as run-time arguments
"""
