"""From a Python function to a graph of aten ops, and the tests for when its plan may be reused."""
