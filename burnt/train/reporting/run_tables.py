"""Tables for viewers that a training writes to the run store: the model's layers, kernels and plans.

A failure here never stops a training: it is reported by a line in the run's log.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import torch

from burnt.codegen.function import functions
from burnt.codegen.runtime.compiled_plan import CompiledPlan
from burnt.inspect.layers import describe
from burnt.kernels.dispatch.selection import choices, reasons
from burnt.store import RunWriter

_MAX_ROWS = 1_000
_SECONDS_BETWEEN = 60.0
_NO_GRADIENT = "torch differentiates the eager function"

Table = tuple[Sequence[str], list[list[object]]]


def record_model(writer: RunWriter, model: torch.nn.Module, shapes: Mapping[str, str]) -> None:
    """Record the table ``model``: each module's path, description, output shape and own parameters.

    `shapes` maps paths to output shapes, for the modules where they are known.
    """

    def table() -> Table:
        seen: set[int] = set()
        rows: list[list[object]] = []
        for path, module in model.named_modules():
            own = [p for p in module.parameters(recurse=False) if id(p) not in seen]
            seen.update(map(id, own))
            lazy = any(isinstance(p, torch.nn.UninitializedParameter) for p in own)
            size = None if lazy else sum(p.numel() for p in own)
            rows.append([path, describe(module), shapes.get(path), size])
        return ("path", "layer", "output shape", "parameters"), rows

    _record(writer, "model", table, None)


class KernelTables:
    """Records the tables ``kernels`` and ``plans`` when they have changed, at most once a minute."""

    def __init__(self, writer: RunWriter) -> None:
        self._writer = writer
        self._recorded: dict[str, Table | None] = {}
        self._next = 0.0

    def record(self, *, last: bool = False) -> None:
        """Record the tables that changed, if a minute has passed; with `last`, in any case."""
        now = time.monotonic()
        if now < self._next and not last:
            return
        self._next = now + _SECONDS_BETWEEN
        for name, table in (("kernels", _kernels), ("plans", _plans)):
            self._recorded[name] = _record(self._writer, name, table, self._recorded.get(name))


def _record(writer: RunWriter, name: str, table: Callable[[], Table], previous: Table | None) -> Table | None:
    """Record a table unless it is empty or unchanged; return the newest table."""
    try:
        columns, rows = table()
        if rows and (columns, rows) != previous:
            shown = rows[:_MAX_ROWS]
            if len(rows) > _MAX_ROWS:
                shown.append([f"... {len(rows) - _MAX_ROWS:,} more", *[None] * (len(columns) - 1)])
            writer.record_table(name, columns, shown)
        return columns, rows
    except Exception as error:  # user code may raise anything, and the training must go on
        writer.log_line(f"Cannot record the table {name!r}: {type(error).__name__}: {error}", "warning")
        return previous


def _kernels() -> Table:
    """Return the table of the candidates that ops selected in this process."""
    why = reasons()
    rows: list[list[object]] = []
    for key, candidate in sorted(choices().items()):
        op, _, rest = key.partition("|")
        rows.append([op, rest, candidate, why.get(key)])
    return ("op", "key", "candidate", "chosen by"), rows


def _plans() -> Table:
    """Return the table of the traced functions' plans, with the reasons for fallbacks to the eager function.

    The gradients of a function have separate plans, built on the first backward pass.
    """
    counted: Counter[tuple[str, int | None, int | None, str | None]] = Counter()
    for function in functions():
        for entry in function.cache_entries():
            counted[function.name, *_plan_counts(entry.forward, entry.fallback_reason)] += 1
            for gradient in () if entry.forward is None else list(entry.forward.backward_plans.values()):
                plan = None if gradient is None else gradient.plan
                counted[f"{function.name}, gradients", *_plan_counts(plan, _NO_GRADIENT)] += 1
    rows: list[list[object]] = [[*row, count] for row, count in counted.items()]
    return ("function", "kernels", "calls of torch's own", "fell back", "signatures"), rows


def _plan_counts(plan: CompiledPlan | None, reason: str | None) -> tuple[int | None, int | None, str | None]:
    """Return a plan's number of kernels, its number of torch calls, and the reason if there is no plan."""
    if plan is None:
        return None, None, reason
    return len(plan.kernels), len(plan.plan.steps) - len(plan.kernels), None
