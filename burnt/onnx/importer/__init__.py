"""Import of ONNX models: from a file to a burnt Module, or to a Python file that defines one.

::

    source.py      a path, bytes or ModelProto, read safely, becomes an onnx_ir model with functions inlined
    registry.py    handlers by domain, op and version range
    expand.py      calls of functions become their bodies; shapes are inferred
    qoperators.py  ONNX Runtime's quantized ops become ops between DequantizeLinear and QuantizeLinear
    patterns.py    what exporters take apart becomes one node again; matching.py: how a pattern matches
    build.py       calls the handlers in order; each adds statements to a program
    ops/           the handlers, a file per family; their functions are in `burnt/onnx/functions/`
    quantized.py   quantized weights become quantized layers
    integers.py    shape arithmetic, computed during the import; fixed_sizes.py: sizes that weights fix
    program.py     the statements: calls of functions with names, numbers and sizes
    paths.py       the paths of layers and tensors, as in the file: modules within modules
    module.py      ImportedModule, which evaluates a program by evaluate.py
    package.py     a Python file with classes, `load`, and the weights: python/ has the lines, blocks/ what
                   the program repeats
    load.py        `load`, which calls them; summary.py, table.py and onnx2torch.py stand next to it

A program is evaluated at run time and printed as a file from the same statements, so both compute the same.
"""
