"""`burnt tune`: measure kernels, and show, move and clear what was measured. Imports torch."""

from __future__ import annotations

import math
import sys
import time
import traceback
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from burnt.cli.output import Cell, Page, UsageError, age_text, print_json
from burnt.cli.train import module_of
from burnt.errors import BurntError, CacheError, nearest
from burnt.kernels.autotune.database import Row, TuningDatabase, read_table, write_table

__all__ = ["clear", "export", "load", "run", "show"]


def run(
    names: Sequence[str],
    device: str,
    full: bool,
    as_json: bool,
    dtypes: Sequence[str] = (),
    seconds: float = math.inf,
    modules: Sequence[str] = (),
) -> int:
    """Measure ops at their example sizes, without and with gradients, and print what was found.

    Args:
        names: of ops; none are all.
        device: where, as torch names it.
        full: all configurations, and longer.
        as_json: print the rows as JSON.
        dtypes: what floating-point examples are measured in; none is as they are.
        seconds: after which no other example is begun. Each op has an equal share of what is left when its
            turn comes; what ops leave over goes to the examples that were left out, in the same order.
        modules: names or files of those that define further ops.

    Returns:
        the exit code: 1 where an op could not be measured at all.

    Raises:
        UsageError: there is no such op, module, device or dtype, a module cannot be imported, `seconds` is no
            time, or an op that is named has no examples.
    """
    from burnt.kernels import OPS

    if not seconds >= 0:
        raise UsageError(f"--seconds {seconds:g} is no time", expected="0 or more")
    barren = [module for module in modules if not _registers(module)]
    for name in names:
        if name not in OPS:
            close = nearest(name, OPS)
            raise UsageError(
                f"there is no op {name!r}",
                hint=f"{close}?"
                if close
                else f"{barren[0]} registers no op"
                if barren
                else f"an op of yours wants --import MODULE; there are {', '.join(sorted(OPS))}",
            )
        if OPS[name].examples is None:
            raise UsageError(
                f"the op {name} has no examples to be measured with",
                hint=f"@kernels.op(examples=lambda device: [...]), tuples of arguments for {name}",
            )
    on = _device(device)
    if on.type == "meta":
        raise UsageError("nothing can be measured on the device meta", expected="cpu, cuda, mps")
    kinds = [_dtype(name) for name in dtypes] or [None]
    store = TuningDatabase()
    _usable(store)
    rows: list[Row] = []
    problems: list[str] = []
    without: list[str] = []
    end = time.monotonic() + seconds
    waiting = [op for op in ([OPS[name] for name in names] if names else OPS.values()) if op.examples]
    done = dict.fromkeys((op.name for op in waiting), 0)
    while waiting:
        later = []
        for k, op in enumerate(waiting):
            now = time.monotonic()
            if now >= end:
                later.append(op)
                continue
            share = now + (end - now) / (len(waiting) - k)
            try:
                examples = op.example_args(on)
            except Exception as error:  # of any kind: the other ops are measured all the same
                problems.append(f"{op.name}, its examples: {type(error).__name__}: {error}")
                continue
            without += [] if examples else [op.name]
            began = done[op.name]
            for args, kind in [(args, kind) for args in examples for kind in kinds][began:]:
                if done[op.name] > began and time.monotonic() >= share:
                    later.append(op)
                    break
                found, problem = _measured(op, args, kind, "full" if full else "quick", store)
                done[op.name] += 1
                rows += found
                problems += [problem] if problem is not None else []
                _progress(op.name, found, kind)
        waiting = later
        if time.monotonic() >= end:
            break
    left = [op.name for op in waiting]
    if as_json:
        print_json([row._asdict() for row in rows])
    else:
        why = (
            "what could not be measured follows"
            if problems
            else "no time was left"
            if left
            else f"no examples of {', '.join(without)} on {on}"
            if without
            else "one candidate alone can run here"
        )
        _report(rows, why)
    for problem in problems:
        print(f"could not be measured: {problem}", file=sys.stderr)
    if left:
        print(f"left out for want of time: {', '.join(left)}", file=sys.stderr)
    return 1 if problems else 0


def _registers(name: str) -> bool:
    """Import a module; whether it registers an op.

    Raises:
        UsageError: there is none, or its code raises.
    """
    from burnt.kernels import OPS

    before = dict(OPS)
    try:
        module = module_of(name)
    except BurntError:
        raise
    except Exception as error:  # of any kind: it is somebody's own code
        frames = traceback.extract_tb(error.__traceback__)
        file, line = frames[-1].filename, frames[-1].lineno
        if isinstance(error, SyntaxError) and error.filename is not None:
            file, line = error.filename, error.lineno
        raise UsageError(
            f"{name} cannot be imported", where=f"{file}:{line}", found=f"{type(error).__name__}: {error}"
        ) from error
    new = any(before.get(op) is not OPS[op] for op in OPS)
    return new or any(op.reference.__module__ == module.__name__ for op in OPS.values())


def _device(name: str) -> Any:
    import torch

    try:
        torch.empty(1, device=name)
        return torch.device(name)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(
            f"torch cannot use the device {name!r}", found=str(error).partition("\n")[0], hint="burnt info"
        ) from None


def _refuse_unknown(name: str | None, rows: Iterable[Row]) -> None:
    """Raise where there is no op of a name, and nothing was measured of one that is not imported now."""
    from burnt.kernels import OPS

    known = {*OPS, *(row.op for row in rows)}
    if name is not None and name not in known:
        close = nearest(name, known)
        raise UsageError(
            f"there is no op {name!r}, and nothing was measured of one",
            hint=f"{close}?" if close else "`burnt tune show` lists what was measured",
        )


def _dtype(name: str) -> Any:
    import torch

    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise UsageError(
            f"there is no floating-point dtype {name!r}", expected="float32, bfloat16, float16 or float64"
        )
    return dtype


def _measured(
    op: Any, args: Sequence[Any], kind: Any, effort: str, store: TuningDatabase
) -> tuple[list[Row], str | None]:
    """The rows of an example, without and with gradients, and what went wrong, if something did."""
    import torch

    from burnt.kernels.autotune.tuner import tune

    def cast(value: Any) -> Any:
        floating = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.to(kind) if floating and kind is not None else value

    given = [cast(a) for a in args]
    rows: list[Row] = []
    try:
        for wanted in (given, _with_gradients(given)):
            if wanted is not None:
                rows += tune(op, wanted, effort, store=store)
    except CacheError:
        raise
    except Exception as error:  # of any kind: the other ops are measured all the same
        return rows, f"{op.name}: {type(error).__name__}: {error}"
    return rows, None


def _progress(name: str, rows: Sequence[Row], kind: Any) -> None:
    """A line for each example, so that a long run shows where it is."""
    count = {
        status: sum(row.status == status for row in rows) for status in ("ok", "wrong", "failed", "pruned")
    }
    best = min((row for row in rows if row.ms is not None), key=lambda row: row.ms or 0, default=None)
    won = "" if best is None else f"; best: {best.config}, {best.ms:.4g} ms"
    dtype = "" if kind is None else f" {str(kind).removeprefix('torch.')}"
    counted = ", ".join(f"{n} {'timed' if status == 'ok' else status}" for status, n in count.items() if n)
    print(f"{name}{dtype}: {counted or 'nothing to measure'}{won}", file=sys.stderr, flush=True)


def _report(rows: Sequence[Row], why_none: str) -> None:
    tried = [row for row in rows if row.status != "pruned"]
    if tried:
        _print(tried)
    else:
        Page().line(f"there was nothing to measure: {why_none}")
    pruned = dict.fromkeys((row.config, _first_line(row.note)) for row in rows if row.status == "pruned")
    if pruned:
        page = Page()
        page.heading("left out by estimate")
        for config, note in pruned:
            page.line(f"{config}: {note}")


def _with_gradients(args: Sequence[Any]) -> list[Any] | None:
    import torch

    tensors = [a for a in args if isinstance(a, torch.Tensor) and a.is_floating_point()]
    if not tensors:
        return None
    return [a.detach().clone().requires_grad_() if any(a is t for t in tensors) else a for a in args]


def _usable(store: TuningDatabase) -> None:
    """A table that is damaged makes room for a new one."""
    try:
        store.rows()
    except CacheError as error:
        if error.what.endswith("is damaged"):
            Page().line(Cell(f"{error.what}: it is kept as {store.set_aside()}", "yellow"))
        else:
            raise


def show(name: str | None, as_json: bool) -> int:
    """Print the table, or an op's part of it; rows of sources that the op no longer has are marked.

    Raises:
        UsageError: there is no such op.
    """
    found = TuningDatabase().rows()
    _refuse_unknown(name, found)
    rows = [row for row in found if name is None or row.op == name]
    old = _old(rows)
    if as_json:
        print_json([row._asdict() | {"old": row.key in old} for row in rows])
    elif rows:
        _print(rows, old)
    else:
        page = Page()
        page.line(f"nothing was measured{'' if name is None else f' of {name}'} yet")
        page.line("`burnt tune run` measures every op; so do programs under BURNT_TUNE=quick")
    return 0


def _old(rows: Sequence[Row]) -> set[str]:
    """The keys of rows that no call looks at any more, because the op's sources have changed since.

    What an op is that is not imported here, or has candidates that are not, the rows measured last say.
    """
    from burnt.kernels import OPS
    from burnt.kernels.interface.tuning_key import source_hash

    last: dict[str, Row] = {}
    known: dict[tuple[str, str], bool] = {}  # whether all candidates of rows of one op and sources are here
    for row in rows:
        op = OPS.get(row.op)
        last[row.op] = max(last.get(row.op, row), row, key=lambda r: r.at)
        here = op is not None and row.config.partition(" {")[0] in op.candidates
        known[row.op, row.sources] = here and known.get((row.op, row.sources), True)
    now = {name: source_hash(OPS[name]) for name in last if name in OPS}
    return {
        row.key
        for row in rows
        if row.sources != now.get(row.op)
        and (known[row.op, row.sources] or row.sources != last[row.op].sources)
    }


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _print(rows: Iterable[Row], old: Collection[str] = ()) -> None:
    by_key: dict[str, list[Row]] = {}
    for row in rows:
        by_key.setdefault(row.key, []).append(row)
    table: list[list[str | Cell]] = []
    for found in by_key.values():
        best = min((r.ms for r in found if r.ms is not None), default=math.nan)
        for row in sorted(found, key=lambda r: math.inf if r.ms is None else r.ms):
            won = row.ms is not None and row.ms == best
            state = Cell(row.status, "" if row.status == "ok" else "bold red")
            if row.status == "ok" and row.note:
                state = Cell("ok (disturbed)", "yellow")
            if row.key in old:
                state = Cell("old", "dim")
            table.append(
                [
                    row.op,
                    Cell(row.config, "green" if won else ""),
                    state,
                    "" if row.ms is None else f"{row.ms:.4g}",
                    "" if row.ms is None else f"{row.ms / best:.2f}",
                    age_text(time.time() - row.at) if row.at else "now",
                    _first_line(row.note) if row.ms is None else row.key.split("|", 3)[-1].replace("|", "  "),
                ]
            )
    columns = ["op", "candidate", "state", "ms", "of best", "age", "for"]
    Page().table(columns, table, right=["ms", "of best", "age"], fold="for", spare=["age"])


def export(path: str, name: str | None, device: str | None = None) -> int:
    """Write the table, or an op's part of it, as JSON.

    Args:
        path: the file.
        name: of an op; None is all of them.
        device: what was measured on it alone, as torch names it; where there is none here, on any of its
            kind. None is all devices.

    Raises:
        UsageError: there is nothing to write, no such op or kind of device, or no such folder.
    """
    if not Path(path).parent.is_dir():
        raise UsageError(f"the folder {str(Path(path).parent)!r} of {path} does not exist")
    found = TuningDatabase().rows()
    _refuse_unknown(name, found)
    rows = [row for row in found if name is None or row.op == name]
    if device is not None:
        rows = [row for row in rows if row.machine.startswith(_machine(device))]
    if not rows:
        of_op = "" if name is None else f" of {name}"
        on_device = "" if device is None else f" on {device}"
        raise UsageError(f"nothing was measured yet{of_op}{on_device}", hint="burnt tune run")
    write_table(Path(path), rows)
    Page().line(f"{len(rows)} rows written to {path}")
    return 0


def _machine(device: str) -> str:
    """How the names of a device's machine begin: one device, or where there is none, its kind."""
    import torch

    from burnt.kernels.interface.tuning_key import machine_name

    try:
        kind = torch.device(device).type
    except RuntimeError:
        _device(device)
        raise
    try:
        on = _device(device)
    except UsageError:
        return f"{kind} "
    return machine_name(on.type, on.index or 0)


def load(path: str) -> int:
    """Add the rows of a JSON file to the table."""
    rows = read_table(Path(path))
    store = TuningDatabase()
    _usable(store)
    store.add(rows)
    Page().line(f"{len(rows)} rows added from {path}")
    return 0


def clear(name: str | None) -> int:
    """Delete the table's rows, or an op's; a damaged table is moved aside.

    Raises:
        UsageError: there is no such op.
    """
    store = TuningDatabase()
    _usable(store)
    _refuse_unknown(name, store.rows())
    Page().line(f"{store.clear(name)} rows deleted")
    return 0
