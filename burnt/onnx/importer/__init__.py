"""Import of ONNX models: from a file to a burnt Module, or to a Python file that defines one.

`load.py` calls the parts in order: a file is read safely, its functions are inlined, several nodes become one
layer's again, and handlers make statements of the nodes. A program of statements is evaluated at run time and
printed as a file, so both compute the same.
"""
