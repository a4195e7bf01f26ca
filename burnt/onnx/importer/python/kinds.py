"""Kinds of values of a program: which names are certainly tensors, for the Python that is written."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias

import torch

from burnt.onnx import functions
from burnt.onnx.importer.program import Arithmetic, Call, Define, Name, Program, Size, Statement

Kind: TypeAlias = Literal["tensor", "bool", "int", "float", "any"]
"""``bool`` is a tensor of truth values; ``int`` and ``float`` are Python's; ``any`` is not known."""

Kinds: TypeAlias = Mapping[str, Kind]
"""Kinds by name; members of the module are ``self.weight``."""

_TRUTH = {
    *("torch.eq", "torch.lt", "torch.le", "torch.gt", "torch.ge", "torch.logical_and", "torch.logical_or"),
    *("torch.logical_not", "torch.logical_xor", "torch.isnan", "torch.isinf", "torch.isposinf"),
    *("torch.isneginf", "ops.equal"),
}
_KEEPS_ELEMENTS = {
    *("torch.reshape", "torch.transpose", "torch.permute", "torch.unsqueeze", "torch.squeeze", "torch.t"),
    *("torch.flatten", "torch.unflatten", "torch.select", "torch.split", "torch.chunk", "torch.roll"),
    *("torch.bitwise_and", "torch.bitwise_or", "torch.bitwise_xor", "torch.bitwise_not"),
    *("torch.Tensor.expand", "ops.reshape", "ops.flatten", "ops.expand", "ops.slice_", "ops.gather"),
    *("ops.gather_nd", "ops.gather_elements", "ops.squeeze", "ops.unsqueeze", "ops.permute", "ops.split"),
    "ops.tile",
}
"""Functions whose result has the dtype of the arguments that are tensors, except for indices."""

_TENSOR_OF_TENSORS = {f"ops.{name}" for name in ("gather", "squeeze", "unsqueeze", "permute", "split")}
"""Functions that take arrays of strings too: the first argument decides."""


def is_tensor(kind: Kind) -> bool:
    """Whether this is the kind of a tensor."""
    return kind in ("tensor", "bool")


def common_kind(kinds: Iterable[Kind]) -> Kind:
    """Return the kind of what is one of several."""
    found = set(kinds)
    if len(found) == 1:
        return found.pop()
    return "tensor" if found and all(map(is_tensor, found)) else "any"


def kind_of(tree: Any, kinds: Kinds) -> Kind:
    """Return the kind of an expression, which may be a call."""
    if isinstance(tree, Name):
        return kinds.get(tree.name, "any")
    if isinstance(tree, Call):
        return result_kinds(tree, 1, kinds)[0]
    if isinstance(tree, Size) and tree.axis is None:
        return "any"
    if isinstance(tree, Size | Arithmetic) or type(tree) is int:
        return "int"
    return "float" if type(tree) is float else "any"


def result_kinds(call: Call, count: int, kinds: Kinds) -> list[Kind]:
    """Return the kinds of the results of a call."""
    namespace, _, name = call.function.partition(".")
    if namespace not in ("torch", "F", "ops"):
        return [kinds.get(call.function, "any")] * count
    if call.function in _TRUTH or (call.function == "torch.Tensor.to" and torch.bool in call.args[1:]):
        return ["bool"] * count
    first = kind_of(call.args[0], kinds) if call.args else "any"
    if call.function in _KEEPS_ELEMENTS and first == "bool":
        others = call.args[1:2] if call.function.startswith("torch.bitwise") else ()
        return [common_kind((first, *(kind_of(other, kinds) for other in others)))] * count
    if namespace in ("torch", "F"):
        return ["tensor"] * count
    if call.function == "ops.cast" and is_tensor(first):
        dtype = call.args[1]
        is_torch = isinstance(dtype, torch.dtype)
        return ["bool" if dtype == torch.bool else "tensor" if is_torch else "any"] * count
    if call.function in _TENSOR_OF_TENSORS and is_tensor(first):
        return ["tensor"] * count
    if call.function == "ops.where" and all(is_tensor(kind_of(arg, kinds)) for arg in call.args):
        return ["tensor"] * count
    returned = str(inspect.signature(getattr(functions, name)).return_annotation)
    if returned == "Tensor" and count == 1:
        return ["tensor"]
    is_tuple = returned.startswith("tuple[Tensor") and "None" not in returned and "Any" not in returned
    return ["tensor" if is_tuple and count > 1 else "any"] * count


def program_kinds(
    program: Program, members: Mapping[str, torch.nn.Module | torch.Tensor], inputs: Iterable[Kind]
) -> dict[str, Kind]:
    """Return the kinds of the names of a module's program, which has no blocks."""
    kinds: dict[str, Kind] = {}
    for path, member in members.items():
        if isinstance(member, torch.Tensor):
            kinds[f"self.{path}"] = "bool" if member.dtype == torch.bool else "tensor"
        else:
            kinds[f"self.{path}"] = _layer_kind(member)
    kinds.update(zip(program.inputs, inputs, strict=True))
    _add_kinds(program, kinds)
    return kinds


def _add_kinds(program: Program, kinds: dict[str, Kind]) -> None:
    for statement in program.statements:
        if isinstance(statement, Define):
            _add_kinds(statement.program, kinds)
        elif isinstance(statement, Statement):
            found = result_kinds(statement.call, len(statement.outputs), kinds)
            kinds.update(zip(statement.outputs, found, strict=False))


def _layer_kind(layer: torch.nn.Module) -> Kind:
    returned = inspect.signature(type(layer).forward).return_annotation
    return "tensor" if returned in (torch.Tensor, "Tensor") else "any"
