"""Generate straight-line Python functions: what the host does in a call, without loops, lists or lookups."""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from burnt import _torch
from burnt.codegen.ir import Check
from burnt.codegen.runtime import c_library
from burnt.codegen.runtime.c_compiler import PREAMBLE, CFunction

_CPU = torch.device("cpu")

# Runs C kernels one after another. The first entry of the table is the program: the number of arguments of
# the kernel with the most, then for each kernel its address, its number of arguments from the table, their
# places there, its number of sizes, and the sizes; then 0.
_DRIVER = """
void run(const burnt_arg *table)
{
    const int64_t *next = table[0].p;
    burnt_arg a[*next++];
    while (*next) {
        void (*kernel)(const burnt_arg *) = (void (*)(const burnt_arg *))*next++;
        int64_t count = 0;
        for (int64_t n = *next++; n; n--) a[count++] = table[*next++];
        for (int64_t n = *next++; n; n--) a[count++].i = *next++;
        kernel(a);
    }
}
"""


@functools.cache
def _driver() -> CFunction:
    return c_library.load(PREAMBLE + _DRIVER, ["run"])["run"]


class CCall(NamedTuple):
    """A call of a C kernel in a generated function."""

    function: int  # its address
    tensors: Sequence[str]  # the variables of the tensors that it takes
    numbers: Sequence[str]  # of the run-time numbers, which follow
    sizes: Sequence[int]  # which follow the address of the words of its checks, if any
    checks: Sequence[Check]


class HostCode:
    """The source of a function that is being generated, and the objects that it names.

    `device` is the one of the tensors that its parameters are.
    """

    def __init__(self, parameters: Sequence[str], device: torch.device = _CPU) -> None:
        self.parameters, self.device = list(parameters), device
        self.first: dict[str, None] = {}  # lines at the top of the body, each once
        self.contexts: dict[Callable[[], Any], str] = {}  # entered around the body, each under a condition
        self.lines: list[str] = []
        self.objects: dict[str, Any] = {}
        self._names: dict[int, str] = {}
        self.c_calls: list[CCall] = []  # calls that are not appended yet: they are made by one call

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
        arguments = [self.name(tuple(shape)), self.name(tuple(strides)), self.name(dtype)]
        function: Callable[..., Any] = _torch.empty_on_cpu
        if self.device.type != "cpu":
            function = torch.empty_strided
            arguments[2:] = [f"dtype={arguments[2]}", f"device={self.name(self.device)}"]
        self.lines.append(f"{variable} = {self.call(function, *arguments)}")

    def address(self, tensor: str) -> str:
        """Return the variable that holds the address of a tensor's variable, which is read once."""
        line = f"{tensor}_address = {tensor}.data_ptr()"
        if line not in self.lines:
            self.lines.append(line)
        return f"{tensor}_address"

    def end_c_calls(self) -> None:
        """Append the call that makes `c_calls`, and what raises the error of their first failed check."""
        calls, self.c_calls = self.c_calls, []
        if not calls:
            return
        checks = [check for call in calls for check in call.checks]
        if checks:
            self.lines.append(f"failed = {self.call(ctypes.c_int64 * len(checks))}")
            self.lines.append(f"failed_address = {self.call(ctypes.addressof, 'failed')}")
        table = {"": 0}  # the place of each expression; first the program
        kinds = ["q"]
        program = [max(len(c.tensors) + len(c.numbers) + 1 + len(c.sizes) for c in calls)]
        num_checked = 0
        for call in calls:
            arguments = [(self.address(tensor), "q") for tensor in call.tensors]
            arguments += [(number, "d") for number in call.numbers]
            if call.checks:
                arguments.append((f"failed_address + {8 * num_checked}", "q"))
                num_checked += len(call.checks)
            program += [call.function, len(arguments)]
            for text, kind in arguments:
                if text not in table:
                    table[text] = len(table)
                    kinds.append(kind)
                program.append(table[text])
            program += [len(call.sizes), *call.sizes]
        words = (ctypes.c_int64 * (len(program) + 1))(*program)
        self.name(words)  # which keeps it alive
        # A thread that has not run one of torch's parallel ops yet does not use torch's number of threads;
        # get_num_threads sets it.
        self.lines.append(self.call(torch.get_num_threads))
        pack = struct.Struct("".join(kinds)).pack
        packed = self.call(pack, str(ctypes.addressof(words)), *list(table)[1:])
        self.lines.append(self.call(_driver(), packed))
        if checks:
            self.lines.append(self.call(raise_failed_check, self.name(checks), "failed"))

    def build(self, result: str = "None") -> Callable[..., Any]:
        """Compile the function, which returns the value of an expression."""
        self.end_c_calls()
        body = [*self.lines, f"return {result}"]
        for i, (context, condition) in enumerate(self.contexts.items()):
            # An `if` costs less than a `with` of a context that does nothing.
            body = [
                f"context{i} = {self.call(context)} if {condition} else None",
                f"if context{i} is not None: context{i}.__enter__()",
                "try:",
                *(f"    {line}" for line in body),
                "finally:",
                f"    if context{i} is not None: context{i}.__exit__(None, None, None)",
            ]
        body = [*self.first, *body]
        source = f"def run({', '.join(self.parameters)}):\n    " + "\n    ".join(body)
        exec(compile(source, "<burnt host code>", "exec"), self.objects)
        # A function that does not name itself is freed, with what it names, without the garbage collector.
        function: Callable[..., Any] = self.objects["run"] if self.first else self.objects.pop("run")
        return function


def raise_failed_check(checks: Sequence[Check], failed: Iterable[int]) -> None:
    """Raise the error of the first failed check. A check's word is 0 if it passed, or ``2 * value + 1``."""
    for check, word in zip(checks, failed, strict=False):
        if word:
            raise check.error(word >> 1)
