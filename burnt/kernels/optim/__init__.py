"""Optimizer steps over lists of tensors.

steps           public functions: SGD, Adam, AdamW; a step by any formula
muon            public functions: Muon and its orthogonalization
lamb            Lamb
adafactor       Adafactor
request         options common to all steps, and the result of a step
foreach         input checks, gradient norm and clipping, choice between burnt's kernels and torch's
formula         elementwise updates as terms, from which kernels are printed
updates         the formulas of the optimizers
foreach_c       the kernels in C
foreach_triton  the kernels in Triton
"""
