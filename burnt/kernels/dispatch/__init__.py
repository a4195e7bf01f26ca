"""Dispatch: from a call of an op to the candidate that runs.

op             `Op`: the reference, its candidates, and the Python call path
generated      the candidate ``generated``: kernels that `burnt.codegen` generates from the reference
selection      which candidate runs: the pinned one, the measured one, or the heuristic's
torch_library  the op under ``torch.ops.burnt``: schema, fake, gradients, vmap, autocast
explain        report which candidate a call would run, and why
"""
