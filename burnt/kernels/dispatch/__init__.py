"""From a call of an op to the candidate that runs.

op             the op: reference, candidates, the Python front
generated      the candidate that `burnt.codegen` makes of the reference
selection      which candidate: pinned, measured, or the heuristic's
torch_library  the op as ``torch.ops.burnt``: schema, fake, gradients, vmap, autocast
explain        what would run, and why
"""
