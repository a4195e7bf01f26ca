"""onnx2torch: the converter of that name as a second engine of `burnt.onnx.load`."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from typing import Any

import torch
from torch import Tensor

from burnt.errors import UnsupportedError
from burnt.module import Module
from burnt.onnx.importer.module import in_order
from burnt.onnx.importer.source import read_model


class ConvertedModule(Module, init=False):
    """A module that onnx2torch has converted, to a `torch.fx.GraphModule`.

    Inputs are positional, in the order of the graph, or keywords by their names in the file. One output is
    returned as it is, several as a tuple.
    """

    def __init__(self, converted: torch.nn.Module, names: tuple[list[str], list[str]]) -> None:
        super().__init__()
        self.converted = converted
        self.input_names, self.output_names = names

    def forward(self, *inputs: Tensor, **named: Tensor) -> Any:
        """Compute the outputs of the graph."""
        if named or len(inputs) != len(self.input_names):
            inputs = in_order(inputs, named, self.input_names, self.input_names, type(self).__name__)
        outputs = self.converted(*inputs)
        return outputs if isinstance(outputs, Tensor) else tuple(outputs)


def convert(model: object) -> ConvertedModule:
    """Convert an ONNX model, a path, bytes or ``onnx.ModelProto``, by onnx2torch, to a module in evaluation
    mode.

    Raises as `burnt.onnx.load` does.
    """
    import onnx_ir as ir

    parsed, where, _ = read_model(model)
    engine = _onnx2torch()
    producers = [value.producer() for value in parsed.graph.outputs]
    if any(producer is None or len(producer.outputs) > 1 for producer in producers):
        raise UnsupportedError(
            "onnx2torch does not support this model",
            where=where,
            found="an output that is an input, a weight, or one of several results of a node",
            hint="the engine 'burnt' supports it",
        )
    ir.external_data.load_to_model(parsed)
    names = (
        [value.name or "" for value in parsed.graph.inputs if value.name not in parsed.graph.initializers],
        [value.name or "" for value in parsed.graph.outputs],
    )
    try:
        converted = engine.convert(ir.to_proto(parsed))
    except Exception as error:  # its exceptions have no common base but Exception
        raise UnsupportedError(
            "onnx2torch does not support this model",
            where=where,
            found=f"{type(error).__name__}: {str(error)[:300]}",
            hint="the engine 'burnt' may",
        ) from error
    return ConvertedModule(converted, names).eval()


@functools.cache
def _onnx2torch() -> Any:
    """Return the package."""
    missing = [name for name in ("onnx2torch", "torchvision") if importlib.util.find_spec(name) is None]
    if missing:
        raise UnsupportedError(
            "engine='onnx2torch' needs further packages",
            expected="onnx2torch and torchvision",
            found=f"no {', no '.join(missing)}",
            hint="pip install 'burnt[onnx2torch]', or beside a torch for CPUs "
            "pip install --no-deps onnx2torch torchvision",
        )
    try:
        return importlib.import_module("onnx2torch")
    except Exception as error:  # a torchvision for another torch fails in many ways
        raise UnsupportedError(
            "onnx2torch cannot be imported",
            expected="the torchvision that belongs to this torch",
            found=f"{type(error).__name__}: {str(error)[:300]}",
        ) from error
