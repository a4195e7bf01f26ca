"""Embedding.

embedding        the op
backward         the gradient of the table, summed in a fixed order, in C
backward_triton  the same in Triton
"""
