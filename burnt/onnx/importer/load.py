"""`load`: an ONNX model as a burnt Module, at run time."""

from __future__ import annotations

from typing import Literal, overload

import burnt.onnx.importer.ops  # noqa: F401  # registers the handlers
from burnt.errors import InputValueError
from burnt.onnx.importer.blocks import group_blocks
from burnt.onnx.importer.build import build_program
from burnt.onnx.importer.module import ImportedModule
from burnt.onnx.importer.onnx2torch import ConvertedModule, convert
from burnt.onnx.importer.source import read_model

__all__ = ["load"]


@overload
def load(model: object, engine: Literal["burnt"] = "burnt") -> ImportedModule: ...
@overload
def load(model: object, engine: Literal["onnx2torch"]) -> ConvertedModule: ...
@overload
def load(model: object, engine: str) -> ImportedModule | ConvertedModule: ...
def load(model: object, engine: str = "burnt") -> ImportedModule | ConvertedModule:
    """Import an ONNX model as a burnt Module.

    Args:
        model: the path of a file, its bytes, or an ``onnx.ModelProto``.
        engine: ``"onnx2torch"`` for the converter of that name, with layers of torch and its own; it comes
            with ``pip install burnt[onnx2torch]``.

    Returns:
        A module in evaluation mode. Inputs are positional, in the order of the graph; it returns one tensor,
        or a tuple of several.

    Raises:
        RecordError: this is no ONNX model, or it is damaged.
        UnsupportedError: it has ops that the engine does not support (burnt's names all of them), or
            onnx2torch is missing.
        InputValueError: there is no such engine.
        OSError: the file does not exist or cannot be read.

    Decomposed layers (norms, GELU, SiLU, rotary embedding, attention) become layers or single calls again,
    named after their weights in the file. Nothing in a file is executed, and nothing outside of its folder is
    read.

    >>> import tempfile, torch
    >>> from burnt import nn
    >>> import burnt
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     exported = burnt.onnx.export(nn.Linear(4, 2), torch.ones(1, 4), folder + "/linear.onnx")
    ...     model = burnt.onnx.load(folder + "/linear.onnx")
    >>> model(torch.ones(3, 4)).shape, model.input_names, model.output_names
    (torch.Size([3, 2]), ['input'], ['output'])
    """
    if engine == "onnx2torch":
        return convert(model)
    if engine != "burnt":
        raise InputValueError("engine= is invalid", expected="'burnt' or 'onnx2torch'", found=repr(engine))
    parsed, where = read_model(model)
    build = build_program(parsed, where)
    group_blocks(build.program, build.tensors, build.layers, build.used_names)
    inputs = [v.name or "" for v in parsed.graph.inputs if v not in build.constants]
    outputs = [v.name or "" for v in parsed.graph.outputs]
    module = ImportedModule(build.program, build.tensors, build.layers, (inputs, outputs))
    return module.eval()
