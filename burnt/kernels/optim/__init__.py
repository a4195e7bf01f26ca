"""Optimizer steps over lists of tensors.

steps           SGD, Adam, AdamW as users call them
muon            Muon
request         a step to be made: hyperparameters and lists of tensors
foreach         checks, gradient clipping, and who makes the step
foreach_c       the step in C
foreach_triton  the step in Triton
"""
