"""Optimizer steps over lists of tensors.

steps           public functions: SGD, Adam, AdamW
muon            public functions: Muon and its orthogonalization
request         options common to all steps, and the result of a step
foreach         input checks, gradient norm and clipping, choice between burnt's kernels and torch's
foreach_c       the kernels in C
foreach_triton  the kernels in Triton
"""
