"""From kernels to source text, a package per language.

c, metal, triton   the printers; none knows of the others, but Metal takes its math from the C headers
printer            lines, indices and operations in the syntax that C and Metal share
shape_params       integers that come from shapes: as numbers, or as run-time arguments
"""
