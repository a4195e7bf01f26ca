"""Statements in the order in which one would write them, before they are printed.

What only selects or rearranges elements may be computed anywhere between what makes its argument and what
reads it: nothing else changes, to the bit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from burnt.onnx.importer.names import unique_name
from burnt.onnx.importer.program import Define, Expr, Leaf, Name, Program, Reads, Repeat, Size, Statement

_REARRANGING = {
    f"torch.{name}"
    for name in ("flatten", "permute", "reshape", "squeeze", "t", "transpose", "unflatten", "unsqueeze")
}


_FAR = 200  # statements over which one is moved


def arranged(program: Program) -> Program:
    """Return a program where what rearranges a result that nothing else reads follows directly after it."""
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
                made = {name for other in ordered[before:] for name in other.outputs}
                if reads[source.name] == 1 and made.isdisjoint(statement.reads):
                    at = before
            place[statement.outputs[0]] = statement
        ordered.insert(at, statement)
    return Program(list(program.inputs), list(program.outputs), ordered)


def with_named_sizes(
    program: Program, names: Mapping[str, str], axes: Mapping[str, tuple[str, ...]]
) -> tuple[Program, dict[str, list[str]]]:
    """Return a program that reads variables for the sizes of arguments that it reads several times.

    The names of these variables are returned by the code of their values, ``x.shape[:2]``.
    """
    reads: Counter[Size] = Counter()

    def count(one: Leaf) -> Expr:
        if isinstance(one, Size) and one.axis is not None:
            reads[one] += 1
        return one

    program.replaced(count)
    variables: dict[Size, str] = {}
    assigned: dict[str, list[str]] = {}
    used = dict.fromkeys((*names.values(), *program.free_names()), 1)
    for tensor in program.inputs:
        sizes = sorted((size for size in reads if size.tensor.name == tensor), key=lambda one: one.axis or 0)
        if not any(reads[size] > 1 for size in sizes) or not all(_axis(size, axes) for size in sizes):
            continue
        new = [unique_name(_axis(size, axes), used) for size in sizes]
        variables.update(zip(sizes, new, strict=True))
        found, shape = [size.axis for size in sizes], f"{names[tensor]}.shape"
        if found == list(range(len(found))) and len(found) > 1:
            assigned[shape if len(found) == len(axes[tensor]) else f"{shape}[:{len(found)}]"] = new
        else:
            assigned |= {f"{shape}[{axis}]": [name] for axis, name in zip(found, new, strict=True)}
    if not variables:
        return program, {}
    return program.replaced(
        lambda one: Name(variables[one]) if isinstance(one, Size) and one in variables else one
    ), assigned


def _axis(size: Size, axes: Mapping[str, tuple[str, ...]]) -> str:
    names = axes.get(size.tensor.name, ())
    return names[size.axis] if size.axis is not None and 0 <= size.axis < len(names) else ""
