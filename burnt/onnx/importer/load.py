"""`load`: an ONNX model as a burnt Module, at run time; onnx2torch as a second engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

import burnt.onnx.importer.ops  # noqa: F401  # registers the handlers
from burnt._garbage import without_collections
from burnt.errors import InputValueError
from burnt.onnx.importer.build import build_program, is_tensor_value
from burnt.onnx.importer.gated import gather_gated
from burnt.onnx.importer.module import ImportedModule, Signature
from burnt.onnx.importer.paths import axis_names
from burnt.onnx.importer.source import read_model

if TYPE_CHECKING:
    import onnx_ir as ir

import functools
import importlib
import importlib.util

import torch
from torch import Tensor

from burnt.errors import UnsupportedError
from burnt.module import Module
from burnt.onnx.importer.module import in_order


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
            hint="pip install 'burnt[onnx2torch]', or next to a torch for CPUs "
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


@overload
def load(
    model: object, engine: Literal["burnt"] = "burnt", *, max_constant_bytes: int | None = None
) -> ImportedModule: ...
@overload
def load(
    model: object, engine: Literal["onnx2torch"], *, max_constant_bytes: int | None = None
) -> ConvertedModule: ...
def load(
    model: object, engine: str = "burnt", *, max_constant_bytes: int | None = None
) -> ImportedModule | ConvertedModule:
    """Import an ONNX model as a burnt Module.

    Args:
        model: the path of a file, its bytes, or an ``onnx.ModelProto``.
        engine: ``"onnx2torch"`` for the converter of that name, with layers of torch and its own; it comes
            with ``pip install burnt[onnx2torch]``.
        max_constant_bytes: limit of the constants that the import computes or copies; None is 16 times the
            bytes of the file and its external data, and at least 64 MiB.

    Returns:
        A module in evaluation mode. Inputs are positional, in the order of the graph, or keywords by their
        names in the file; it returns one tensor, or a tuple of several.

    Raises:
        RecordError: this is not an ONNX model, it is damaged, or its constants are beyond the limit.
        UnsupportedError: it has ops that the engine does not support (burnt's names all of them), or
            onnx2torch is missing; or a node has an attribute that would be ignored.
        InputValueError: there is no such engine.
        OSError: the file does not exist or cannot be read.

    Decomposed layers (norms, GELU, SiLU, rotary embedding, attention) become layers or single calls again.
    Parameters have the paths of the file, such as ``bert.encoder.layer.0.output.dense.weight``. Nothing in a
    file is executed, and nothing outside of its folder is read.

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
    with without_collections():  # a third of the time for 100,000 initializers
        return _load(model, max_constant_bytes)


def _load(model: object, max_constant_bytes: int | None) -> ImportedModule:
    parsed, where, limit = read_model(model, max_constant_bytes)
    signature = _signature(parsed)
    build = build_program(parsed, where, limit)
    gather_gated(build)
    inputs = [
        value.name or "" for value in parsed.graph.inputs if value.name not in parsed.graph.initializers
    ]
    outputs = [value.name or "" for value in parsed.graph.outputs]
    sizes = build.sizes_of_inputs()
    return ImportedModule(build.program, build.members, (inputs, outputs), signature, sizes).eval()


def _signature(model: ir.Model) -> Signature:
    """Return what a model says of its inputs and outputs."""
    graph = model.graph
    inputs = [value for value in graph.inputs if value.name not in graph.initializers]
    origin = " ".join(part for part in (model.producer_name, model.producer_version) if part)
    version = model.opset_imports.get("", model.opset_imports.get("ai.onnx"))
    operators = f"operator set {version}" if version else ""
    if origin:
        origin = f"Written by {origin}" + (f", {operators}" if operators else "")
    return Signature(
        tuple(map(_described, inputs)),
        tuple(map(_described, graph.outputs)),
        tuple(map(is_tensor_value, inputs)),
        origin or operators.capitalize(),
        tuple(map(_open_axes, inputs)),
        tuple(map(axis_names, inputs)),
    )


def _open_axes(value: ir.Value) -> dict[int, str]:
    """Return the names of the axes without a fixed size."""
    sizes = enumerate(value.shape or ())
    return {axis: size.value for axis, size in sizes if not isinstance(size, int) and size.value}


def _described(value: Any) -> str:
    """Return the name of a value with its dtype and sizes, where they are known."""
    if value.dtype is None or not (
        value.type is None or is_tensor_value(value) or value.dtype.name == "STRING"
    ):
        return value.name or ""
    dtype = value.dtype.name.lower()
    dtype = {"float": "float32", "double": "float64"}.get(dtype, dtype)
    if value.shape is None:
        return f"{value.name}: {dtype}"
    sizes = (size if isinstance(size, int) else size.value or "?" for size in value.shape)
    return f"{value.name}: {dtype} [{', '.join(map(str, sizes))}]"
