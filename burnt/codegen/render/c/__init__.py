"""Print kernels as C11 with GNU builtins, for gcc and clang.

kernel                loop structure of a kernel: loops, passes, threads and stores
expr                  expressions
reduction, scan       accumulators of reductions and cumulative ops, vectorised
philox                random numbers generated in blocks
stride_phases         loops whose index pattern repeats after a few iterations
bounds_and_prefetch   loop interiors without bounds tests; rows to prefetch
dtypes                C types and constants
prelude, headers/     math functions and conversions that every kernel includes
"""
