"""Evaluation of programs: when a model runs, and when constants are folded."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

from burnt.onnx import functions
from burnt.onnx.importer.program import Define, Program, Statement, getter

_NAMESPACES = {"torch": torch, "F": F, "ops": functions}


def run_program(program: Program, inputs: tuple[Any, ...], outer: Callable[[str], Any]) -> tuple[Any, ...]:
    """Run a program."""
    names = _Scope(outer)
    names.update(zip(program.inputs, inputs, strict=True))
    if program.plan is None:
        program.plan = _steps(program), [getter(output) for output in program.outputs]
    steps, results = program.plan
    for function, name, args, kwargs, outputs, dead in steps:
        function = function or names[name]
        if kwargs:
            result = function(*args(names), **{key: value(names) for key, value in kwargs.items()})
        else:
            result = function(*args(names))
        if len(outputs) == 1:
            names[outputs[0]] = result
        elif outputs:
            names.update(zip(outputs, result, strict=True))
        for used in dead:
            del names[used]
    return tuple([value(names) for value in results])


class _Step(NamedTuple):
    """A statement, prepared to be run often."""

    # what is called; None for a layer or a nested function, which is looked up by its name.
    function: Callable[..., Any] | None
    name: str
    # returns the tuple of positional arguments for the values of names.
    args: Callable[[Mapping[str, Any]], tuple[Any, ...]]
    # functions that likewise return the keyword arguments.
    kwargs: dict[str, Callable[[Mapping[str, Any]], Any]]
    outputs: tuple[str, ...]
    dead: list[str]  # names that no later statement reads


def _steps(program: Program) -> list[_Step]:
    own = set(program.inputs)
    steps = []
    for statement, names in zip(program.statements, program.last_uses(), strict=True):
        if isinstance(statement, Define):
            define = functools.partial(_function, statement.program)
            step = _Step(define, statement.name, lambda names: (names,), {}, (statement.name,), [])
        else:
            assert isinstance(statement, Statement)
            call = statement.call
            step = _Step(
                _find(call.function),
                call.function,
                getter(call.args),
                {key: getter(value) for key, value in call.kwargs.items()},
                statement.outputs,
                [],
            )
        own.update(step.outputs)
        step.dead.extend(name for name in names if name in own)  # others are of the program around it
        own.difference_update(step.dead)
        steps.append(step)
    return steps


class _Scope(dict[str, Any]):
    """Names of a function, with those around it."""

    def __init__(self, outer: Callable[[str], Any]) -> None:
        super().__init__()
        self.outer = outer

    def __missing__(self, name: str) -> Any:
        return self.outer(name)


def _function(program: Program, outer: Mapping[str, Any]) -> Callable[..., Any]:
    """Return a nested function; its program has one output, a tuple."""

    def call(*inputs: Any) -> Any:
        return run_program(program, inputs, outer.__getitem__)[0]

    return call


def _find(path: str) -> Callable[..., Any] | None:
    """Return a function of `_NAMESPACES`; None for layers and nested functions."""
    root, *rest = path.split(".")
    if root not in _NAMESPACES:
        return None
    found: Any = _NAMESPACES[root]
    for part in rest:
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]
