"""What ops, candidates and the tuner share.

candidate     a way to compute an op: where it can run, its configurations, its gradient
op_protocol   an op as this package and the tuner know it
registry      every op by name
tuning_key    the key of a measurement; candidates as text
binding       a candidate as a function in the autograd graph
static_args   the arguments that are neither tensors nor floats
results       the results and gradients of a call
vjp           the derivative of a reference
autocast      arguments cast as autocast asks
checks        arguments checked before any candidate runs
eager_rules   where torch's own kernel is known to be fast
"""
