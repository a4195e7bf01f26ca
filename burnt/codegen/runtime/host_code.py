"""Generate straight-line Python functions: what the host does in a call, without loops, lists or lookups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

_CPU = torch.device("cpu")


class HostCode:
    """The source of a function that is being generated, and the objects that it names.

    `device` is the one of the tensors that its parameters are.
    """

    def __init__(self, parameters: Sequence[str], device: torch.device = _CPU) -> None:
        self.parameters, self.device = list(parameters), device
        self.first: dict[str, None] = {}  # lines at the top of the body, each once
        self.lines: list[str] = []
        self.objects: dict[str, Any] = {}
        self._names: dict[int, str] = {}

    def name(self, value: Any) -> str:
        """Return an expression for an object: a literal, or a global name of the function."""
        if value is None or type(value) in (int, bool, str):
            return repr(value)
        if type(value) is tuple and id(value) not in self._names:
            return f"({''.join(self.name(v) + ', ' for v in value)})"
        return self.alias(value, f"_{len(self._names)}")

    def alias(self, value: Any, text: str) -> str:
        """Let an expression stand for an object, unless one does already; return that which does."""
        text = self._names.setdefault(id(value), text)
        self.objects[text] = value  # which also keeps its id from being used again
        return text

    def call(self, function: Any, *arguments: str) -> str:
        """Return a call of an object with these expressions."""
        return f"{self.name(function)}({', '.join(arguments)})"

    def empty(self, variable: str, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> None:
        """Allocate a tensor and assign it to a variable."""
        arguments = self.name(tuple(shape)), self.name(tuple(strides)), f"dtype={self.name(dtype)}"
        device = f"device={self.name(self.device)}"
        self.lines.append(f"{variable} = {self.call(torch.empty_strided, *arguments, device)}")

    def address(self, tensor: str) -> str:
        """Return the variable that holds the address of a tensor's variable, which is read once."""
        line = f"{tensor}_address = {tensor}.data_ptr()"
        if line not in self.lines:
            self.lines.append(line)
        return f"{tensor}_address"

    def build(self, result: str = "None") -> Callable[..., Any]:
        """Compile the function, which returns the value of an expression."""
        body = [*self.first, *self.lines, f"return {result}"]
        source = f"def run({', '.join(self.parameters)}):\n    " + "\n    ".join(body)
        exec(compile(source, "<burnt host code>", "exec"), self.objects)
        # A function that does not name itself is freed, with what it names, without the garbage collector.
        function: Callable[..., Any] = self.objects["run"] if self.first else self.objects.pop("run")
        return function
