"""From a Python function to a graph of aten ops, and when the graph may be used again.

trace          a call traced by `make_fx`: the graph, its inputs, which ops are random
captures       tensors and numbers that a function takes from closures and globals
guards         the inline cache: whether a call is like an earlier one
dtype_support  dtypes that torch refuses for an op
"""
