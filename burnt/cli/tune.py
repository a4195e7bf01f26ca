"""`burnt tune`: measure kernels, and show, move and clear what was measured. Imports torch."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from burnt.cli.output import Cell, Page, UsageError, age_text, print_json
from burnt.errors import CacheError, nearest
from burnt.kernels.store import Row, Store, read_table, write_table

__all__ = ["clear", "export", "load", "run", "show"]


def run(names: Sequence[str], device: str, full: bool, as_json: bool) -> int:
    """Measure ops at their example sizes, without and with gradients, and print what was found.

    Raises:
        UsageError: there is no such op, or no such device.
    """
    import torch

    from burnt.kernels import OPS
    from burnt.kernels.tuner import tune

    for name in names:
        if name not in OPS:
            close = nearest(name, OPS)
            raise UsageError(
                f"there is no op {name!r}",
                hint=f"{close}?" if close else f"there are {', '.join(sorted(OPS))}",
            )
    try:
        torch.empty(1, device=device)
        on = torch.device(device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(
            f"torch cannot use the device {device!r}", found=str(error).partition("\n")[0], hint="burnt info"
        ) from None
    store = Store()
    _usable(store)
    rows: list[Row] = []
    for op in [OPS[name] for name in names] if names else list(OPS.values()):
        for args in op.examples(on) if op.examples is not None else ():
            for gradients in (False, True):
                given = _with_gradients(args) if gradients else list(args)
                if given is not None:
                    rows += tune(op, given, "full" if full else "quick", store=store)
    if as_json:
        print_json([row._asdict() for row in rows])
    elif rows:
        _print(rows)
    else:
        Page().line("there was nothing to measure: one candidate alone can run here")
    return 0


def _with_gradients(args: Sequence[Any]) -> list[Any] | None:
    import torch

    tensors = [a for a in args if isinstance(a, torch.Tensor) and a.is_floating_point()]
    if not tensors:
        return None
    return [a.detach().clone().requires_grad_() if any(a is t for t in tensors) else a for a in args]


def _usable(store: Store) -> None:
    """A table that is damaged makes room for a new one."""
    try:
        store.rows()
    except CacheError as error:
        if error.what.endswith("is damaged"):
            Page().line(Cell(f"{error.what}: it is kept as {store.set_aside()}", "yellow"))
        else:
            raise


def show(name: str | None, as_json: bool) -> int:
    """Print the table, or an op's part of it."""
    rows = [row for row in Store().rows() if name is None or row.op == name]
    if as_json:
        print_json([row._asdict() for row in rows])
    elif rows:
        _print(rows)
    else:
        page = Page()
        page.line(f"nothing was measured{'' if name is None else f' of {name}'} yet")
        page.line("`burnt tune run` measures every op; so do programs under BURNT_TUNE=quick")
    return 0


def _print(rows: Iterable[Row]) -> None:
    by_key: dict[str, list[Row]] = {}
    for row in rows:
        by_key.setdefault(row.key, []).append(row)
    table: list[list[str | Cell]] = []
    for found in by_key.values():
        best = min((r.ms for r in found if r.ms is not None), default=math.nan)
        for row in sorted(found, key=lambda r: math.inf if r.ms is None else r.ms):
            won = row.ms is not None and row.ms == best
            state = Cell(row.status, "" if row.status == "ok" else "bold red")
            table.append(
                [
                    row.op,
                    Cell(row.config, "green" if won else ""),
                    state,
                    "" if row.ms is None else f"{row.ms:.4g}",
                    "" if row.ms is None else f"{row.ms / best:.2f}",
                    age_text(time.time() - row.at) if row.at else "now",
                    row.note or row.key.split("|", 3)[-1].replace("|", "  "),
                ]
            )
    columns = ["op", "candidate", "state", "ms", "of best", "age", "for"]
    Page().table(columns, table, right=["ms", "of best", "age"], fold="for", spare=["age"])


def export(path: str, name: str | None) -> int:
    """Write the table, or an op's part of it, as JSON.

    Raises:
        UsageError: there is nothing to write.
    """
    rows = [row for row in Store().rows() if name is None or row.op == name]
    if not rows:
        raise UsageError("nothing was measured yet", hint="burnt tune run")
    write_table(Path(path), rows)
    Page().line(f"{len(rows)} rows written to {path}")
    return 0


def load(path: str) -> int:
    """Add the rows of a JSON file to the table."""
    rows = read_table(Path(path))
    store = Store()
    _usable(store)
    store.add(rows)
    Page().line(f"{len(rows)} rows added from {path}")
    return 0


def clear(name: str | None) -> int:
    """Delete the table's rows, or an op's; a damaged table is moved aside."""
    store = Store()
    _usable(store)
    Page().line(f"{store.clear(name)} rows deleted")
    return 0
