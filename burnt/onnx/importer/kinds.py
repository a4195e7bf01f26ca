"""Kinds of values of a program: which names are certainly tensors, for the Python that is written."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, Literal, TypeAlias

import torch

from burnt.onnx import functions
from burnt.onnx.importer.module import Block
from burnt.onnx.importer.program import Arithmetic, Call, Define, Name, Program, Repeat, Size

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
    *(
        "ops.gather_nd",
        "ops.gather_elements",
        "ops.squeeze",
        "ops.unsqueeze",
        "ops.permute",
        "ops.split",
        "ops.tile",
    ),
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
    """Return the kinds of the results of a call that is no call of a `Block`."""
    namespace, _, name = call.function.partition(".")
    if namespace == "self":
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
    module: Block, inputs: Iterable[Kind]
) -> tuple[dict[str, Kind], dict[int, tuple[Kind, ...]]]:
    """Return the kinds of the names of a module's program, and of the arguments of each block that it calls.

    Args:
        module: with its program.
        inputs: the kinds of the arguments, in order.

    The arguments of blocks are by ``id(block)``.
    """
    kinds: dict[str, Kind] = {}
    members: dict[str, Any] = {}
    for name, tensor in (*module._parameters.items(), *module._buffers.items()):
        if tensor is not None:
            kinds[f"self.{name}"] = "bool" if tensor.dtype == torch.bool else "tensor"
    for name, layer in module._modules.items():
        members[f"self.{name}"] = layer
        if isinstance(layer, torch.nn.ModuleList):
            members |= {f"self.{name}[{i}]": block for i, block in enumerate(layer)}
    for name, member in members.items():
        if not isinstance(member, Block | torch.nn.ModuleList):
            kinds[name] = _layer_kind(member)
    kinds.update(zip(module.program.inputs, inputs, strict=True))
    blocks: dict[int, tuple[Kind, ...]] = {}
    _add_kinds(module.program, kinds, members, blocks)
    return kinds, blocks


def called_blocks(module: Block) -> dict[str, Block]:
    """Return the blocks that a module's program calls, by their names in it; of a list, its first."""
    found: dict[str, Block] = {}
    for name, layer in module._modules.items():
        if isinstance(layer, torch.nn.ModuleList):
            found |= {f"self.{name}[{i}]": block for i, block in enumerate(layer) if isinstance(block, Block)}
            layer = layer[0] if len(layer) else None
        if isinstance(layer, Block):
            found[f"self.{name}"] = layer
    return found


def _layer_kind(layer: torch.nn.Module) -> Kind:
    returned = inspect.signature(type(layer).forward).return_annotation
    return "tensor" if returned in (torch.Tensor, "Tensor") else "any"


def _add_kinds(
    program: Program,
    kinds: MutableMapping[str, Kind],
    members: Mapping[str, Any],
    blocks: dict[int, tuple[Kind, ...]],
) -> None:
    for statement in program.statements:
        if isinstance(statement, Define):
            _add_kinds(statement.program, kinds, members, blocks)
        elif isinstance(statement, Repeat):
            target = members[statement.modules]
            called: list[Any] = list(target) if statement.count is None else [target] * 2
            carried = [kind_of(expr, kinds) for expr in statement.initial]
            given = [kind_of(expr, kinds) for expr in statement.args]
            for block in called * 2:  # the first gets what the last returns, as the kinds are common
                found = _block_kinds(block, (*carried, *given), blocks)
                carried = [common_kind(pair) for pair in zip(carried, found, strict=True)]
            kinds.update(zip(statement.outputs, carried, strict=True))
        else:
            call, count = statement.call, len(statement.outputs)
            block = members.get(call.function)
            if isinstance(block, Block):
                found = _block_kinds(block, tuple(kind_of(arg, kinds) for arg in call.args), blocks)
                kinds[call.function] = found[0] if count == 1 else "any"  # where it is written in place
            else:
                found = result_kinds(call, count, kinds)
            kinds.update(zip(statement.outputs, found, strict=False))


def _block_kinds(
    block: torch.nn.Module, inputs: tuple[Kind, ...], blocks: dict[int, tuple[Kind, ...]]
) -> list[Kind]:
    """Return the kinds of what a block returns, and add those of its arguments."""
    if not isinstance(block, Block):
        return [_layer_kind(block)]
    before = blocks.get(id(block), inputs)
    blocks[id(block)] = tuple(common_kind(pair) for pair in zip(before, inputs, strict=True))
    kinds, _ = program_kinds(block, inputs)
    return [kind_of(output, kinds) for output in block.program.outputs]
