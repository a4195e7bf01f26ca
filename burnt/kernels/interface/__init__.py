"""The types and helpers that ops, candidates and the tuner share.

candidate     `Candidate`: one implementation of an op, what it supports, its configurations and gradient
op_protocol   `AnyOp`: the protocol of an op, for modules that cannot import `Op`
registry      `OPS`: every op by name
tuning_key    the key under which measurements are stored; candidates as text
binding       a candidate with its configuration, recorded in the autograd graph
static_args   arguments that are neither tensors nor floats: constants of a traced function
results       the results and gradients of a call
vjp           the vector-Jacobian product of a reference
derived       tensors cached until those that they are computed from change
autocast      casting arguments under autocast
launch        launches of hand-written Triton kernels, run or compiled ahead
checks        validation of arguments, and translation of torch's errors
"""
