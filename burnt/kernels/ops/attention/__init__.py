"""Attention.

attention     the public function: masks, windows, grouped heads, dropout, score functions
reference     the op behind it: input checks, the eager reference, torch's SDPA
chunked       the candidate for any device: one tile of queries at a time
flash         the candidate for GPUs: FlashAttention, with gradients
flash_triton  its Triton kernels
flash_config  its block sizes
score_mod     attention with the user's score function
"""
