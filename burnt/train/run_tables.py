"""What a training records of its model and of the kernels that run, for viewers: tables, written once.

None of it may fail a training: what cannot be found out is told by a line in the run's log.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch

from burnt.inspect.layers import describe
from burnt.train.store import RunWriter

if TYPE_CHECKING:
    from burnt.codegen.runtime.compiled_plan import CompiledPlan

__all__ = ["KernelTables", "chosen_kernels", "pinned_kernels", "record_model"]

_ROWS = 1_000
_SECONDS_BETWEEN = 60.0
_NO_GRADIENT = "torch differentiates the eager function"

Table = tuple[Sequence[str], list[list[object]]]


def record_model(writer: RunWriter, model: torch.nn.Module, shapes: Mapping[str, str]) -> None:
    """Record the table ``model``: each module with its path, what it is, its output and its own parameters.

    Args:
        writer: of the run.
        model: the model.
        shapes: of outputs, by path, as far as they are known.
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
    """Records the tables ``kernels`` and ``plans`` when they have changed, at most once a minute.

    Args:
        writer: of the run.
    """

    def __init__(self, writer: RunWriter) -> None:
        self._writer = writer
        self._known: dict[str, Table | None] = {}
        self._next = 0.0

    def record(self, *, last: bool = False) -> None:
        """Look whether something was chosen or planned since the last time; `last`: also before its time."""
        now = time.monotonic()
        if now < self._next and not last:
            return
        self._next = now + _SECONDS_BETWEEN
        for name, table in (("kernels", _kernels), ("plans", _plans)):
            self._known[name] = _record(self._writer, name, table, self._known.get(name))


def chosen_kernels() -> dict[str, str]:
    """What the ops of this process run, for a checkpoint: tuning key -> candidate."""
    choice = sys.modules.get("burnt.kernels.dispatch.selection")  # not loaded, no kernel was chosen
    return {} if choice is None else choice.choices()


def pinned_kernels(chosen: Mapping[str, str]) -> AbstractContextManager[None]:
    """A context in which ops run what a checkpoint says, whatever the tuner has found since."""
    if not chosen:
        return nullcontext()
    from burnt.kernels.dispatch.selection import pinned

    return pinned(chosen)


def _record(writer: RunWriter, name: str, table: Callable[[], Table], known: Table | None) -> Table | None:
    """Record a table, unless it is the known one or empty; which one is known now."""
    try:
        columns, rows = table()
        if rows and (columns, rows) != known:
            if len(rows) > _ROWS:
                left = [f"... {len(rows) - _ROWS:,} more", *[None] * (len(columns) - 1)]
                writer.record_table(name, columns, [*rows[:_ROWS], left])
            else:
                writer.record_table(name, columns, rows)
        return columns, rows
    except Exception as error:  # of any kind: models and kernels are anybody's, and a training goes before
        writer.log_line(f"the table {name!r} cannot be recorded: {type(error).__name__}: {error}", "warning")
        return known


def _kernels() -> Table:
    """The candidates of ops that were chosen in this process."""
    chosen = chosen_kernels()
    choice = sys.modules.get("burnt.kernels.dispatch.selection")
    why: dict[str, str] = choice.reasons() if choice is not None else {}
    rows: list[list[object]] = []
    for key, candidate in sorted(chosen.items()):
        op, _, rest = key.partition("|")
        rows.append([op, rest, candidate, why.get(key)])
    return ("op", "key", "candidate", "chosen by"), rows


def _plans() -> Table:
    """What the traced functions of this process run, and why the eager function runs where it does.

    The gradients of a function have plans of their own, which are made when they are first wanted.
    """
    module = sys.modules.get("burnt.codegen.function")
    counted: Counter[tuple[str, int | None, int | None, str | None]] = Counter()
    for function in module.functions() if module is not None else ():
        for planned in function.cache_entries():
            counted[function.name, *_planned(planned.forward, planned.fallback_reason)] += 1
            for gradient in () if planned.forward is None else list(planned.forward.backward_plans.values()):
                plan = None if gradient is None else gradient.plan
                counted[f"{function.name}, gradients", *_planned(plan, _NO_GRADIENT)] += 1
    rows: list[list[object]] = [[*row, count] for row, count in counted.items()]
    return ("function", "kernels", "calls of torch's own", "fell back", "signatures"), rows


def _planned(plan: CompiledPlan | None, reason: str | None) -> tuple[int | None, int | None, str | None]:
    """How many kernels and calls of torch's own a plan has; why there is none."""
    if plan is None:
        return None, None, reason
    return len(plan.kernels), len(plan.plan.steps) - len(plan.kernels), None
