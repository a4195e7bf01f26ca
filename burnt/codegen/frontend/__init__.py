"""From a Python function to a graph of aten ops, and the tests for when its plan may be reused.

trace          traces a function by `make_fx`: the graph, its inputs, its random ops
captures       objects that a function captures from closures, globals and defaults
guards         the inline cache: guards that decide whether a call may reuse an earlier call's plan
refusals       calls that eager torch refuses, such as of numbers that a dtype cannot hold
"""
