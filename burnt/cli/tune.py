"""`burnt tune`: measure kernels, and show, export, import and delete the measurements. Imports torch."""

from __future__ import annotations

import argparse
import math
import sys
import time
import traceback
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from burnt.cli.output import Cell, Page, UsageError, check_target, print_json, usage_errors
from burnt.cli.train import load_module
from burnt.errors import BurntError, CacheError, did_you_mean, quantity
from burnt.kernels.autotune.database import Row, TuningDatabase, read_table, write_table
from burnt.monitor.format import age_text
from burnt.swapping import kept


def run(args: argparse.Namespace) -> int:
    """Measure ops at their example sizes, without and with gradients, and print the results."""
    from burnt.kernels import OPS

    modules_without_ops = [module for module in args.modules if not _import_ops(module)]
    for name in args.ops:
        if name not in OPS:
            other = f"add --import MODULE for an op of your own; the ops are {', '.join(sorted(OPS))}"
            if modules_without_ops:
                other = f"{modules_without_ops[0]} registers no op"
            raise UsageError(f"there is no op {name!r}", hint=did_you_mean(name, OPS, other))
        if OPS[name].examples is None:
            raise UsageError(
                f"the op {name} has no examples to measure",
                hint=f"add @kernels.op(examples=lambda device: [...]) with tuples of arguments for {name}",
            )
    target_device = _parse_device(args.device)
    if target_device.type == "meta":
        raise UsageError("the device meta cannot be measured", expected="cpu, cuda, mps")
    dtypes_to_measure = [_parse_dtype(name) for name in args.dtype] or [None]
    database = TuningDatabase()
    _set_aside_if_damaged(database)
    rows: list[Row] = []
    problems: list[str] = []
    ops_without_examples: list[str] = []
    deadline = math.inf if args.seconds is None else time.monotonic() + args.seconds
    remaining = [op for op in ([OPS[name] for name in args.ops] if args.ops else OPS.values()) if op.examples]
    num_measured = dict.fromkeys((op.name for op in remaining), 0)
    while remaining:
        next_round = []
        for k, op in enumerate(remaining):
            now = time.monotonic()
            if now >= deadline:
                next_round.append(op)
                continue
            op_deadline = now + (deadline - now) / (len(remaining) - k)
            try:
                examples = op.example_args(target_device)
            except Exception as error:  # of any type: the other ops must still be measured
                problems.append(f"{op.name}, creating its examples: {type(error).__name__}: {error}")
                continue
            ops_without_examples += [] if examples else [op.name]
            num_before = num_measured[op.name]
            for example, dtype in [(example, dtype) for example in examples for dtype in dtypes_to_measure][
                num_before:
            ]:
                if num_measured[op.name] > num_before and time.monotonic() >= op_deadline:
                    next_round.append(op)
                    break
                new_rows, problem = _measure_example(
                    op, example, dtype, "full" if args.full else "quick", database
                )
                num_measured[op.name] += 1
                rows += new_rows
                problems += [problem] if problem is not None else []
                _print_progress(op.name, new_rows, dtype)
        remaining = next_round
        if time.monotonic() >= deadline:
            break
    skipped = [op.name for op in remaining]
    if args.json:
        print_json([row._asdict() for row in rows])
    else:
        why_none = (
            "see the errors below"
            if problems
            else "the time limit was reached"
            if skipped
            else f"no examples of {', '.join(ops_without_examples)} on {target_device}"
            if ops_without_examples
            else "only one candidate can run here"
        )
        _print_results(rows, why_none)
    for problem in problems:
        print(f"could not be measured: {problem}", file=sys.stderr)
    if skipped:
        print(f"skipped because of the time limit: {', '.join(skipped)}", file=sys.stderr)
    return 1 if problems else 0


def _import_ops(name: str) -> bool:
    """Import a module; return whether it registers an op."""
    from burnt.kernels import OPS

    before = dict(OPS)
    try:
        module = load_module(name)
    except BurntError:
        raise
    except Exception as error:  # of any type: it is the user's code
        frames = traceback.extract_tb(error.__traceback__)
        file, line = frames[-1].filename, frames[-1].lineno
        if isinstance(error, SyntaxError) and error.filename is not None:
            file, line = error.filename, error.lineno
        raise UsageError(
            f"{name} cannot be imported", where=f"{file}:{line}", found=f"{type(error).__name__}: {error}"
        ) from error
    new = any(before.get(op) is not OPS[op] for op in OPS)
    return new or any(op.reference.__module__ == module.__name__ for op in OPS.values())


def _parse_device(name: str) -> Any:
    from burnt.device import as_device
    from burnt.errors import DeviceError

    with usage_errors(DeviceError):
        return as_device(name)


def _check_op_name(name: str | None, rows: Iterable[Row]) -> None:
    """Raise if no op of that name is registered, and none was measured earlier."""
    from burnt.kernels import OPS

    known_ops = {*OPS, *(row.op for row in rows)}
    if name is not None and name not in known_ops:
        raise UsageError(
            f"there is no op {name!r}, and no measurements of one",
            hint=did_you_mean(name, known_ops, "`burnt tune show` lists the measurements"),
        )


def _parse_dtype(name: str) -> Any:
    import torch

    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise UsageError(
            f"there is no floating-point dtype {name!r}", expected="float32, bfloat16, float16 or float64"
        )
    return dtype


def _measure_example(
    op: Any, args: Sequence[Any], dtype: Any, effort: str, database: TuningDatabase
) -> tuple[list[Row], str | None]:
    """Measure an example without and with gradients; return the rows, and the error if one occurred."""
    import torch

    from burnt.kernels.autotune.tuner import tune

    def cast(value: Any) -> Any:
        floating = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.to(dtype) if floating and dtype is not None else value

    example_args = [cast(a) for a in args]
    rows: list[Row] = []
    try:
        for call_args in (example_args, _with_gradients(example_args)):
            if call_args is not None:
                rows += tune(op, call_args, effort, store=database)
    except CacheError:
        raise
    except Exception as error:  # of any type: the other ops must still be measured
        return rows, f"{op.name}: {type(error).__name__}: {error}"
    return rows, None


def _print_progress(name: str, rows: Sequence[Row], kind: Any) -> None:
    count = {
        status: sum(row.status == status for row in rows) for status in ("ok", "wrong", "failed", "pruned")
    }
    best = min((row for row in rows if row.ms is not None), key=lambda row: row.ms or 0, default=None)
    best_text = "" if best is None else f"; best: {best.config}, {best.ms:.4g} ms"
    dtype = "" if kind is None else f" {str(kind).removeprefix('torch.')}"
    counts_text = ", ".join(
        f"{n} {'timed' if status == 'ok' else status}" for status, n in count.items() if n
    )
    print(f"{name}{dtype}: {counts_text or 'nothing to measure'}{best_text}", file=sys.stderr, flush=True)


def _print_results(rows: Sequence[Row], why_none: str) -> None:
    tried = [row for row in rows if row.status != "pruned"]
    if tried:
        _print_rows(tried)
    else:
        Page().line(f"no measurements: {why_none}")
    pruned = dict.fromkeys(
        (row.config, row.note.partition("\n")[0]) for row in rows if row.status == "pruned"
    )
    if pruned:
        page = Page()
        page.heading("skipped because of their estimated time")
        for config, note in pruned:
            page.line(f"{config}: {note}")


def _with_gradients(args: Sequence[Any]) -> list[Any] | None:
    import torch

    tensors = [a for a in args if isinstance(a, torch.Tensor) and a.is_floating_point()]
    if not tensors:
        return None
    return [a.detach().clone().requires_grad_() if any(a is t for t in tensors) else a for a in args]


def _set_aside_if_damaged(database: TuningDatabase) -> None:
    """Rename a damaged table, so that a new one is created."""
    try:
        database.rows()
    except CacheError as error:
        if error.what.endswith("is damaged"):
            Page().line(Cell(f"{error.what}: renamed to {database.set_aside()}", "yellow"))
        else:
            raise


def show(args: argparse.Namespace) -> int:
    """Print the measurements, or one op's; rows measured with outdated sources are marked."""
    all_rows = TuningDatabase().rows()
    _check_op_name(args.op, all_rows)
    rows = [row for row in all_rows if args.op is None or row.op == args.op]
    stale = _stale_keys(rows)
    if args.json:
        print_json([row._asdict() | {"old": row.key in stale} for row in rows])
    elif rows:
        _print_rows(rows, stale)
    else:
        page = Page()
        page.line(f"no measurements{'' if args.op is None else f' of {args.op}'} yet")
        page.line(
            "`burnt tune run` measures every op; programs run with BURNT_TUNE=quick measure the ops they call"
        )
    kept_files = [] if args.json or args.op is not None else kept.files()
    if kept_files:
        age = age_text(time.time() - kept_files[0].stat().st_mtime)
        of_models = quantity(len(kept_files), "model")
        Page().line(f"burnt.swap: decisions for {of_models} in {kept_files[0].parent}, the newest {age} old")
    return 0


def _stale_keys(rows: Sequence[Row]) -> set[str]:
    """Return the keys of rows that no call uses any more, because the op's sources have changed since.

    For an op that is not imported here, or some of whose candidates are not, the newest rows define the
    current sources.
    """
    from burnt.kernels import OPS
    from burnt.kernels.interface.tuning_key import source_hash

    newest: dict[str, Row] = {}
    all_registered: dict[
        tuple[str, str], bool
    ] = {}  # by (op, sources): whether all candidates are registered
    for row in rows:
        op = OPS.get(row.op)
        newest[row.op] = max(newest.get(row.op, row), row, key=lambda r: r.at)
        is_registered = op is not None and row.config.partition(" {")[0] in op.candidates
        all_registered[row.op, row.sources] = is_registered and all_registered.get(
            (row.op, row.sources), True
        )
    current = {name: source_hash(OPS[name]) for name in newest if name in OPS}
    return {
        row.key
        for row in rows
        if row.sources != current.get(row.op)
        and (all_registered[row.op, row.sources] or row.sources != newest[row.op].sources)
    }


def _print_rows(rows: Iterable[Row], stale: Collection[str] = ()) -> None:
    by_key: dict[str, list[Row]] = {}
    for row in rows:
        by_key.setdefault(row.key, []).append(row)
    table: list[list[str | Cell]] = []
    for key_rows in by_key.values():
        best = min((r.ms for r in key_rows if r.ms is not None), default=math.nan)
        for row in sorted(key_rows, key=lambda r: math.inf if r.ms is None else r.ms):
            is_best = row.ms is not None and row.ms == best
            state = Cell(row.status, "" if row.status == "ok" else "bold red")
            if row.status == "ok" and row.note:
                state = Cell("ok (disturbed)", "yellow")
            if row.key in stale:
                state = Cell("old", "dim")
            table.append(
                [
                    row.op,
                    Cell(row.config, "green" if is_best else ""),
                    state,
                    "" if row.ms is None else f"{row.ms:.4g}",
                    "" if row.ms is None else f"{row.ms / best:.2f}",
                    age_text(time.time() - row.at) if row.at else "now",
                    row.note.partition("\n")[0]
                    if row.ms is None
                    else row.key.split("|", 3)[-1].replace("|", "  "),
                ]
            )
    columns = ["op", "candidate", "state", "ms", "of best", "age", "for"]
    Page().table(columns, table, align_right=["ms", "of best", "age"], fold_column="for", droppable=["age"])


def export(args: argparse.Namespace) -> int:
    """Write the measurements, or one op's, as JSON; return the exit code 0."""
    check_target(Path(args.file))
    all_rows = TuningDatabase().rows()
    _check_op_name(args.op, all_rows)
    rows = [row for row in all_rows if args.op is None or row.op == args.op]
    if args.device is not None:
        rows = [row for row in rows if row.machine.startswith(_machine_prefix(args.device))]
    if not rows:
        of_op = "" if args.op is None else f" of {args.op}"
        on_device = "" if args.device is None else f" on {args.device}"
        raise UsageError(f"there are no measurements{of_op}{on_device} yet", hint="burnt tune run")
    write_table(Path(args.file), rows)
    Page().line(f"{quantity(len(rows), 'row')} written to {args.file}")
    return 0


def _machine_prefix(device: str) -> str:
    """Return the prefix of a device's machine names; only its type if the device is not available."""
    import torch

    from burnt.kernels.interface.tuning_key import machine_name

    try:
        kind = torch.device(device).type
    except RuntimeError:
        _parse_device(device)
        raise
    try:
        torch_device = _parse_device(device)
    except UsageError:
        return f"{kind} "
    return machine_name(torch_device.type, torch_device.index or 0)


def import_rows(args: argparse.Namespace) -> int:
    """Add the measurements of a JSON file; return the exit code 0."""
    rows = read_table(Path(args.file))
    database = TuningDatabase()
    _set_aside_if_damaged(database)
    database.add(rows)
    Page().line(f"{quantity(len(rows), 'row')} added from {args.file}")
    return 0


def clear(args: argparse.Namespace) -> int:
    """Delete all measurements and the decisions of `burnt.swap`, or the measurements of one op.

    A damaged table is renamed. Returns the exit code 0.
    """
    database = TuningDatabase()
    _set_aside_if_damaged(database)
    _check_op_name(args.op, database.rows())
    Page().line(f"{quantity(database.clear(args.op), 'row')} deleted")
    if args.op is None and (num_models := kept.clear()):
        Page().line(f"burnt.swap: decisions for {quantity(num_models, 'model')} deleted")
    return 0
