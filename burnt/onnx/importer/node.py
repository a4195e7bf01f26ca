"""Nodes of a graph, as handlers see them; handlers by domain, op and version of the operator set."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from burnt.errors import UnsupportedError

if TYPE_CHECKING:
    import onnx_ir as ir

import bisect
from collections.abc import Callable
from typing import TypeAlias

_WITHOUT_EFFECT = {
    *("consumed_inputs", "is_test", "seed"),  # memory; versions below 7 for inference; another generator
    *("accuracy_level", "chunk_size", "multi_class", "nodes_hitrates", "nodes_hitrates_as_tensor"),  # hints
    *("hidden_size", "kernel_shape", "num_outputs", "type"),  # what inputs and outputs say; pools read theirs
    "sorted",  # TopK, which may return any order without it; Unique reads its own
}
"""Attributes that do not change what is computed here, whatever their value is."""

_LARGEST = float(np.finfo(np.float32).max)


class Node:
    """A node, of an operator set's version, with its attributes as Python values."""

    def __init__(self, node: ir.Node, version: int) -> None:
        self.node = node
        self.version = version
        self.op = node.op_type
        self.name = node.name or ""
        self.num_inputs = len(node.inputs)
        self.num_outputs = len(node.outputs)
        self.read: set[str] = set()

    def attr(self, name: str, default: Any = None) -> Any:
        """Return an attribute: a number, text, list, numpy array or graph; `default` if it is not given."""
        self.read.add(name)
        attribute = self.node.attributes.get(name)
        if attribute is None:
            return default
        kind = attribute.type.name
        if kind == "TENSOR":
            return attribute.value.numpy()
        if kind in ("INTS", "FLOATS", "STRINGS"):
            return list(attribute.value)
        return shortest_decimal(attribute.value) if kind == "FLOAT" else attribute.value

    def text(self, name: str, default: str) -> str:
        """Return an attribute of text; `default` if it is not given."""
        return to_text(self.attr(name, default))

    def given(self, name: str, default: Any) -> Any:
        """Return an attribute in the type of the default: a bool for an integer, text for bytes."""
        if isinstance(default, bool):
            return bool(self.attr(name, int(default)))
        return self.text(name, default) if isinstance(default, str) else self.attr(name, default)

    def options(self, *names: tuple[str, Any] | tuple[str, Any, str]) -> dict[str, Any]:
        """Return attributes that differ from their defaults, as keyword arguments.

        Each is the argument's name, the default, and the attribute's name if that is another one.
        """
        found = {
            name: (default, self.given(str(other[0]) if other else name, default))
            for name, default, *other in names
        }
        return {name: value for name, (default, value) in found.items() if value != default}

    def choice(self, name: str, default: str, *others: str) -> str:
        """Return an attribute that is one of some words."""
        found = self.text(name, default)
        if found not in (default, *others):
            raise self.refusal(name, ", ".join((default, *others)))
        return found

    def refusal(self, name: str, expected: str) -> UnsupportedError:
        """Return the error for an attribute whose value is not supported."""
        return refuse_attribute(self.node, name, expected)

    def ignore(self, *names: str) -> None:
        """Note attributes that do not change the result, as other attributes or the inputs are."""
        self.read.update(names)

    def check_read(self) -> None:
        """Check that the handler has read each attribute whose value is not the default."""
        unread = self.node.attributes.keys() - self.read - _WITHOUT_EFFECT
        for name in sorted(unread):
            defaults = attribute_defaults(self.node.domain, self.op, self.version)
            value = self.attr(name)
            if defaults is None:  # of ONNX Runtime: almost all have the default 0
                if value in (0, b"", "", b"NONE", "NONE", []):
                    continue
                raise self.refusal(name, f"no {name}")
            default = defaults[name]
            if to_text(value) != to_text(default):
                raise self.refusal(name, f"no {name}" if default is None else f"no {name}, or {default}")

    def has(self, index: int) -> bool:
        """Whether an input is given."""
        return index < self.num_inputs and self.node.inputs[index] is not None

    def is_text(self, index: int) -> bool:
        """Whether an input is an array of strings."""
        value = self.node.inputs[index]
        return value is not None and value.dtype is not None and value.dtype.name == "STRING"

    def is_only_use(self, index: int) -> bool:
        """Whether nothing but this input reads a value, so that a layer may take it as its weight."""
        value = self.node.inputs[index] if self.has(index) else None
        return value is not None and len(value.uses()) + value.is_graph_output() == 1

    def uses_output(self, index: int) -> bool:
        """Whether an output is needed."""
        if index >= self.num_outputs:
            return False
        output = self.node.outputs[index]
        return bool(output.name) and (bool(output.uses()) or output.is_graph_output())


@functools.cache
def attribute_defaults(domain: str, op: str, version: int) -> dict[str, Any] | None:
    """Return the attributes of an op with their defaults; None if ONNX does not know the op."""
    import onnx

    try:
        schema = onnx.defs.get_schema(op, version, "" if domain == "ai.onnx" else domain)
    except onnx.defs.SchemaError:
        return None
    given = {name: attribute.default_value for name, attribute in schema.attributes.items()}
    defaults = {name: onnx.helper.get_attribute_value(v) if v.name else None for name, v in given.items()}
    return {k: shortest_decimal(v) if isinstance(v, float) else v for k, v in defaults.items()}


def place_of(node: ir.Node) -> str:
    """Return the name of a node, or what it computes where it has none."""
    return node.name or f"the node of {', '.join(repr(value.name) for value in node.outputs)}"


def refuse_attribute(node: ir.Node, name: str, expected: str) -> UnsupportedError:
    """Return the error for an attribute that is not supported, or not with its value."""
    value = to_text(node.attributes[name].value if name in node.attributes else None)
    return UnsupportedError(
        f"the attribute {name} of {node.op_type} is not supported",
        where=place_of(node),
        expected=expected,
        found=f"{name}={value if len(value) <= 80 else value[:80] + '...'}",
    )


def to_text(value: Any) -> str:
    """Return text that a file may have as bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def shortest_decimal(value: float) -> float:
    """Return the shortest decimal that rounds to a float32: 1e-12 for 9.999999960041972e-13.

    The largest float32 stays as it is: torch refuses 3.4028235e38 as too large.
    """
    short = float(str(np.float32(value)))
    return short if abs(short) <= _LARGEST and np.float32(short) == value else value


Handler: TypeAlias = Callable[[Any, Any], Any]
"""Takes the build and a node, and returns the expression of each output: one, or a tuple."""

_HANDLERS: dict[tuple[str, str], dict[int, Handler]] = {}


def handler(*ops: str, since: int = 1, domain: str = "") -> Callable[[Handler], Handler]:
    """Register a function for nodes of some ops: a decorator.

    The function takes the build and the node, adds statements to the program, and returns the expression of
    each output of the node: one, or a tuple. It serves the versions of the operator set from `since` until
    the next registered one.
    """

    def register(function: Handler) -> Handler:
        for op in ops:
            by_version = _HANDLERS.setdefault((domain, op), {})
            if since in by_version:
                raise ValueError(f"two handlers of {op} (domain {domain or 'ai.onnx'}) since version {since}")
            by_version[since] = function
        return function

    return register


def find_handler(domain: str, op: str, version: int) -> Handler | None:
    """Return the newest handler at or below a version of the operator set, or None."""
    by_version = _HANDLERS.get(("" if domain == "ai.onnx" else domain, op), {})
    versions = sorted(by_version)
    position = bisect.bisect_right(versions, version)
    return by_version[versions[position - 1]] if position else None


def supported_ops() -> dict[tuple[str, str], list[int]]:
    """Return the ops that have handlers, by domain and name, with the first version of each handler."""
    return {key: sorted(versions) for key, versions in sorted(_HANDLERS.items())}
