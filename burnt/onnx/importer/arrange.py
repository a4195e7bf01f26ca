"""Statements in the order in which one would write them, before they are printed.

What only selects or rearranges elements may be computed anywhere between what makes its argument and what
reads it: nothing else changes, to the bit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from burnt.onnx.importer.names import unique_name
from burnt.onnx.importer.program import (
    Call,
    Define,
    Name,
    Program,
    Reads,
    Repeat,
    Size,
    Statement,
    names_in,
    names_read,
    replace_leaves,
)

_REARRANGING = {
    f"torch.{name}"
    for name in ("flatten", "permute", "reshape", "squeeze", "t", "transpose", "unflatten", "unsqueeze")
}


_FAR = 200  # statements over which one is moved


def arranged(program: Program) -> Program:
    """Return a program that computes the same, with short chains of indices and rearrangements."""
    found = Program(list(program.inputs), list(program.outputs), list(program.statements))
    _merge_indices(found)
    _move_to_arguments(found)
    return found


def _move_to_arguments(program: Program) -> None:
    """Move rearrangements of a result that nothing else reads to directly after it."""
    reads = Reads(program).total
    ordered: list[Statement | Define | Repeat] = []
    place: dict[str, Statement] = {}
    for statement in program.statements:
        at = len(ordered)
        if isinstance(statement, Statement) and len(statement.outputs) == 1:
            call = statement.call
            source = call.args[0] if call.args else None
            if call.function in _REARRANGING and isinstance(source, Name) and source.name in place:
                maker = place[source.name]
                before = next(
                    (i + 1 for i in range(at - 1, max(-1, at - _FAR), -1) if ordered[i] is maker), at
                )
                made = {name for other in ordered[before:] for name in _made(other)}
                if reads[source.name] == 1 and made.isdisjoint(names_in((*call.args, *call.kwargs.values()))):
                    at = before
            place[statement.outputs[0]] = statement
        ordered.insert(at, statement)
    program.statements = ordered


def _made(statement: Statement | Define | Repeat) -> tuple[str, ...]:
    return (statement.name,) if isinstance(statement, Define) else statement.outputs


# --- indices ----------------------------------------------------------------------------------------------


def _merge_indices(program: Program) -> None:
    """Merge slices of slices, and added axes, where nothing else reads the inner ones."""
    reads = Reads(program).total
    readers: dict[str, list[int]] = {}
    for i, statement in enumerate(program.statements):
        for name in () if isinstance(statement, Define) else names_read(statement):
            readers.setdefault(name, []).append(i)
    merged_away = set()
    for i, statement in enumerate(program.statements):
        if not isinstance(statement, Statement) or statement.call.function not in _MERGED:
            continue
        inner, name = statement.call, statement.outputs[0]
        outer = [program.statements[j] for j in readers.get(name, [])]
        merged = [_merged(inner, one.call, name) if isinstance(one, Statement) else None for one in outer]
        if not merged or len(merged) < reads[name] or None in merged:
            continue
        for j, one, call in zip(readers[name], outer, merged, strict=True):
            assert isinstance(one, Statement)
            assert call is not None
            program.statements[j] = Statement(one.outputs, call)
            for other in names_in((*inner.args, *inner.kwargs.values())):
                readers.setdefault(other, []).append(j)
                reads[other] += 1
        for other in names_in((*inner.args, *inner.kwargs.values())):
            readers[other].remove(i)
            reads[other] -= 1
        merged_away.add(i)
    program.statements = [s for i, s in enumerate(program.statements) if i not in merged_away]


_MERGED = {"ops.slice_", "torch.unsqueeze", "ops.unsqueeze"}


def _merged(inner: Call, outer: Call, name: str) -> Call | None:
    """Return one call for two, where that is certainly the same."""
    if not outer.args or outer.args[0] != Name(name) or not inner.args:
        return None
    if name in names_in((*outer.args[1:], *outer.kwargs.values())):  # its size is read too
        return None
    if inner.function == outer.function == "ops.slice_":
        return _merged_slices(inner, outer)
    first, second = _added_axes(inner), _added_axes(outer)
    if first is None or second is None:
        return None
    rest = [axis for axis in range(max(first) + len(second) + 1) if axis not in second]
    axes: list[Any] = sorted([*second, *(rest[axis] for axis in first)])
    return Call("ops.unsqueeze", (inner.args[0], axes))


def _merged_slices(inner: Call, outer: Call) -> Call | None:
    parts: list[dict[str, list[Any]]] = []
    for call in (inner, outer):
        axes = call.kwargs.get("axes")
        if len(call.args) != 3 or not set(call.kwargs) <= {"axes", "steps"} or not _are_axes(axes):
            return None
        assert isinstance(axes, list)
        steps = call.kwargs.get("steps", [1] * len(axes))
        found = {"starts": call.args[1], "ends": call.args[2], "axes": axes, "steps": steps}
        if not all(isinstance(part, list) and len(part) == len(axes) for part in found.values()):
            return None
        parts.append(found)  # type: ignore[arg-type]
    both = {key: [*parts[0][key], *parts[1][key]] for key in parts[0]}
    if len(set(both["axes"])) < len(both["axes"]):
        return None
    return Call(
        "ops.slice_",
        (inner.args[0], both["starts"], both["ends"]),
        {"axes": both["axes"], "steps": both["steps"]},
    )


def _added_axes(call: Call) -> list[int] | None:
    if call.function not in ("torch.unsqueeze", "ops.unsqueeze") or len(call.args) != 2 or call.kwargs:
        return None
    axes: Any = call.args[1] if isinstance(call.args[1], list) else [call.args[1]]
    return axes if _are_axes(axes) else None


def _are_axes(axes: Any) -> bool:
    """Whether axes are known, different, and counted from the first one."""
    is_known = isinstance(axes, list) and all(type(axis) is int and axis >= 0 for axis in axes)
    return is_known and len(axes) > 0 and len(set(axes)) == len(axes)


# --- sizes ------------------------------------------------------------------------------------------------


def with_named_sizes(
    program: Program, axes: Mapping[str, tuple[str, ...]]
) -> tuple[Program, dict[str, list[str]]]:
    """Return a program that reads variables for the sizes of arguments that it reads several times.

    Args:
        program: is not changed.
        axes: what the axes of its inputs are called.

    Returns:
        The program, and the names of these variables by the code of their values, ``x.shape[:2]``.
    """
    reads: Counter[Size] = Counter()

    def count(one: Any) -> Any:
        if isinstance(one, Size) and one.axis is not None:
            reads[one] += 1
        return one

    _with_leaves(program, count)
    variables: dict[Size, str] = {}
    assigned: dict[str, list[str]] = {}
    used = dict.fromkeys(program.inputs, 1)
    nested = [s.program for s in program.statements if isinstance(s, Define)]
    used |= dict.fromkeys((name for body in nested for name in body.free_names()), 1)
    for tensor in program.inputs:
        sizes = sorted((size for size in reads if size.tensor.name == tensor), key=lambda one: one.axis or 0)
        if not any(reads[size] > 1 for size in sizes) or not all(_axis(size, axes) for size in sizes):
            continue
        names = [unique_name(_axis(size, axes), used) for size in sizes]
        variables.update(zip(sizes, names, strict=True))
        found = [size.axis for size in sizes]
        if found == list(range(len(axes[tensor]))) and len(found) > 1:
            assigned[f"{tensor}.shape"] = names
        elif found == list(range(len(found))) and len(found) > 1:
            assigned[f"{tensor}.shape[:{len(found)}]"] = names
        else:
            assigned |= {f"{tensor}.shape[{axis}]": [name] for axis, name in zip(found, names, strict=True)}
    if not variables:
        return program, {}
    return _with_leaves(program, lambda one: Name(variables[one]) if one in variables else one), assigned


def _axis(size: Size, axes: Mapping[str, tuple[str, ...]]) -> str:
    names = axes.get(size.tensor.name, ())
    return names[size.axis] if size.axis is not None and 0 <= size.axis < len(names) else ""


def _with_leaves(program: Program, leaf: Any) -> Program:
    """Return a program whose own statements, not those of nested functions, read other values."""
    statements: list[Statement | Define | Repeat] = []
    for statement in program.statements:
        if isinstance(statement, Repeat):
            initial = tuple(replace_leaves(expr, leaf) for expr in statement.initial)
            args = tuple(replace_leaves(expr, leaf) for expr in statement.args)
            statements.append(replace(statement, initial=initial, args=args))
        elif isinstance(statement, Statement):
            call = statement.call
            args = tuple(replace_leaves(expr, leaf) for expr in call.args)
            kwargs = {key: replace_leaves(value, leaf) for key, value in call.kwargs.items()}
            statements.append(Statement(statement.outputs, Call(call.function, args, kwargs)))
        else:
            statements.append(statement)
    outputs = [replace_leaves(output, leaf) for output in program.outputs]
    return Program(list(program.inputs), outputs, statements)
