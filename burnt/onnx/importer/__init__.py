"""Import of ONNX models: from a file to a burnt Module, or to a Python file that defines one.

::

    source.py      a path, bytes or ModelProto, read safely, becomes an onnx_ir model with functions inlined
    registry.py    handlers by domain, op and version range
    build.py       calls the handlers in order; each adds statements to a program
    program.py     the statements: calls of functions with names, numbers and sizes; evaluated or printed as
    Python module.py      ImportedModule: evaluates a program
    ops/           the handlers, a file per family, and the functions that torch lacks
    (`burnt/onnx/functions/`)

A program is evaluated at run time and printed as a file from the same statements, so both compute the same.
"""
