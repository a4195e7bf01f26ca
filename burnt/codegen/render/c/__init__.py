"""Kernels as C11 with GNU builtins, for gcc and clang.

kernel                loops, passes and threads; puts the others together
expr                  expressions
reduction, scan       reductions and cumulative ops, vectorized
philox                random numbers
stride_phases         rows whose index pattern repeats after a few columns
bounds_and_prefetch   pooling windows at borders; rows to prefetch
dtypes                C types and constants
prelude, headers/     math functions and conversions that every kernel includes
"""
