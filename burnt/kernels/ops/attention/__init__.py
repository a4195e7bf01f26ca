"""Attention.

attention     attention as users call it: masks, windows, grouped heads
reference     the op beneath it, and its definition in plain torch
chunked       the candidate for any device: chunks of queries
flash         the candidate for GPUs, with gradients
flash_triton  its kernels
flash_config  its block sizes
score_mod     user's functions of the scores
"""
