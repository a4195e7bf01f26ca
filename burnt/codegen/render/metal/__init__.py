"""Kernels as Metal shaders; tested as C++ on an emulation, never yet run on a Metal device.

kernel             dispatches: threads, threadgroups, scratch
expr               expressions
reduction, scan    reductions and cumulative ops over threadgroups
dtypes             Metal types and constants
prelude, headers/  math functions, from the C headers where they are the same
"""
