"""Print kernels as Metal shaders; tested as C++ on an emulation, never yet run on a Metal device.

kernel             dispatches of a kernel: threads, threadgroups and scratch memory
expr               expressions
reduction, scan    accumulators of reductions and cumulative ops over threadgroups
dtypes             Metal types and constants
prelude, headers/  math functions, converted from the C headers where possible
"""
