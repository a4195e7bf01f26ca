"""Nodes of a graph, as handlers see them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from burnt.errors import UnsupportedError

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["Node", "shortest_decimal", "to_text"]

_LARGEST = float(np.finfo(np.float32).max)


class Node:
    """A node with its attributes as Python values.

    Args:
        node: of onnx_ir.
        version: of the operator set of its domain.
    """

    def __init__(self, node: ir.Node, version: int) -> None:
        self.node = node
        self.version = version
        self.op = node.op_type
        self.name = node.name or ""
        self.num_inputs = len(node.inputs)
        self.num_outputs = len(node.outputs)

    def attr(self, name: str, default: Any = None) -> Any:
        """Return an attribute: a number, text, list, numpy array or graph; `default` if it is not given."""
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

    def choice(self, name: str, default: str, *others: str) -> str:
        """Return an attribute that is one of some words.

        Raises:
            UnsupportedError: it is another one.
        """
        found = self.text(name, default)
        if found not in (default, *others):
            raise self.refusal(name, ", ".join((default, *others)))
        return found

    def refusal(self, name: str, expected: str) -> UnsupportedError:
        """Return the error for an attribute whose value is not supported."""
        value = str(to_text(self.attr(name)))
        return UnsupportedError(
            f"the attribute {name} of {self.op} is not supported with this value",
            where=self.name or f"the node of {', '.join(repr(v.name) for v in self.node.outputs)}",
            expected=expected,
            found=f"{name}={value if len(value) <= 80 else value[:80] + '...'}",
        )

    def has(self, index: int) -> bool:
        """Whether an input is given."""
        return index < self.num_inputs and self.node.inputs[index] is not None

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


def to_text(value: Any) -> str:
    """Return text that a file may have as bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def shortest_decimal(value: float) -> float:
    """Return the shortest decimal that rounds to a float32: 1e-12 for 9.999999960041972e-13.

    The largest float32 stays as it is: torch refuses 3.4028235e38 as too large.
    """
    short = float(str(np.float32(value)))
    return short if abs(short) <= _LARGEST and np.float32(short) == value else value
