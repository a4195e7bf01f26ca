"""Evaluation of programs: when a model runs, and when constants are folded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional as F

from burnt.onnx import functions
from burnt.onnx.importer.program import Define, Program, Repeat, evaluate

__all__ = ["run_program"]

_NAMESPACES = {"torch": torch, "F": F, "ops": functions}


def run_program(program: Program, inputs: tuple[Any, ...], outer: Mapping[str, Any]) -> tuple[Any, ...]:
    """Run a program.

    Args:
        program: the statements.
        inputs: their values, in order.
        outer: values of names around the program, such as ``self.weight``.

    Returns:
        The values of the outputs.
    """
    names = _Scope(outer)
    names.update(zip(program.inputs, inputs, strict=True))
    for statement, dead in zip(program.statements, program.last_uses(), strict=True):
        if isinstance(statement, Define):
            names[statement.name] = _function(statement.program, names)
        elif isinstance(statement, Repeat):
            names.update(zip(statement.outputs, _repeat(statement, names), strict=True))
        else:
            call = statement.call
            function = _resolve(call.function, names)
            args = [evaluate(arg, names) for arg in call.args]
            kwargs = {key: evaluate(value, names) for key, value in call.kwargs.items()}
            result = function(*args, **kwargs)
            if len(statement.outputs) == 1:
                names[statement.outputs[0]] = result
            elif statement.outputs:
                names.update(zip(statement.outputs, result, strict=True))
        for name in dead:
            names.pop(name, None)
    return tuple(evaluate(output, names) for output in program.outputs)


class _Scope(dict[str, Any]):
    """Names of a function, with those around it."""

    def __init__(self, outer: Mapping[str, Any]) -> None:
        super().__init__()
        self.outer = outer

    def __missing__(self, name: str) -> Any:
        return self.outer[name]


def _function(program: Program, outer: Mapping[str, Any]) -> Callable[..., Any]:
    """Return a nested function; its program has one output, a tuple."""

    def call(*inputs: Any) -> Any:
        return run_program(program, inputs, outer)[0]

    return call


def _repeat(repeat: Repeat, names: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the results of the last of the modules."""
    found = names[repeat.modules]
    args = [evaluate(arg, names) for arg in repeat.args]
    values = tuple(evaluate(value, names) for value in repeat.initial)
    for module in found if repeat.count is None else [found] * repeat.count:
        result = module(*values, *args)
        values = (result,) if len(repeat.outputs) == 1 else result
    return values


def _resolve(path: str, names: Mapping[str, Any]) -> Callable[..., Any]:
    if path.startswith("self."):
        layer: Callable[..., Any] = names[path]
        return layer
    root, *rest = path.split(".")
    found: Any = _NAMESPACES[root]
    for part in rest:
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]
