"""Embedding.

embedding        the op and its candidates
backward         the table's gradient in C, summed in a fixed order
backward_triton  the same in Triton
"""
