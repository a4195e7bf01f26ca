"""`burnt runs reproduce RUN`: run the function of a run again in a new folder, and compare every value."""

from __future__ import annotations

import argparse
import itertools
import platform
import sys
from pathlib import Path
from typing import Any

from burnt.cli.fork import free_folder, start_fork
from burnt.cli.output import Cell, Page, UsageError, print_json
from burnt.cli.runs_select import open_run, run_folder
from burnt.cli.stored_target import StoredTarget
from burnt.errors import clean
from burnt.store import RunReader
from burnt.store.schema import DATABASE

_INSTEAD = "run the program again in another folder, and compare"


def run(args: argparse.Namespace) -> int:
    """Run a run again, a fork from its parent, and compare; return 0 if every value is equal, else 1."""
    folder = Path(run_folder(args.run))
    with open_run(str(folder)) as reader:
        document, parent = reader.config() or {}, reader.parent()
    target = StoredTarget.read(folder, document, _INSTEAD)
    target.require_folder()
    if parent is not None and not (parent.folder / DATABASE).is_file():
        raise UsageError(
            "the run is a fork of a run that is gone",
            where=str(folder),
            expected=f"{parent.folder}, from whose step {parent.step} it starts",
        )
    again = _new_folder(folder, args.out)
    print(clean(f"{again}: {target.target} with the settings of {folder}"), file=sys.stderr)
    if parent is None:
        target.in_folder(again, resume=False).call()
    else:
        from burnt.train.rewind.rewind import Past

        past = Past.read(parent.folder, parent.step, before=parent.step)
        start_fork(past, StoredTarget.read(parent.folder, past.config, _INSTEAD), target, again, yes=True)
    # This raises if the function trained elsewhere.
    with open_run(str(folder)) as run, open_run(str(again)) as reproduction:
        circumstances = _circumstances(run, reproduction)
        compared, difference = _compare(run, reproduction)
    if args.json:
        print_json(
            {
                "run": folder,
                "reproduction": again,
                "equal": difference is None,
                "compared": compared,
                "difference": difference,
                "circumstances": circumstances,
            }
        )
    else:
        _print(circumstances, compared, difference)
    return 0 if difference is None and compared else 1


def _new_folder(folder: Path, out: str | None) -> Path:
    if out is not None:
        if Path(out).exists():
            raise UsageError(f"{out} exists", expected="a new folder", hint="--out FOLDER")
        return Path(out)
    return free_folder(folder.with_name(f"{folder.name}-reproduced"))


def _circumstances(run: RunReader, reproduction: RunReader) -> dict[str, dict[str, Any]]:
    """Return what a difference may come from, in the run and in its reproduction."""
    before, now = run.config() or {}, reproduction.config() or {}
    versions, here = (document.get("load", {}).get("versions", {}) for document in (before, now))
    pairs = {
        "code": tuple(d.get("load", {}).get("source", {}).get("sha256") for d in (before, now)),
        "seed": (before.get("seed"), now.get("seed")),
        "device": (before.get("device"), now.get("device")),
        "processes": tuple(str(document.get("ranks", 1)) for document in (before, now)),
        **{name: (versions.get(name), here.get(name)) for name in ("burnt", "torch", "python")},
        "kernels": (_kernels(run.folder), _kernels(reproduction.folder)),
        "host": (run.attempts()[-1].host, platform.node()),
        "interventions": (_interventions(run), "none"),
    }
    return {
        name: {"run": old, "reproduction": new, "equal": old == new} for name, (old, new) in pairs.items()
    }


def _kernels(folder: Path) -> dict[str, str]:
    from burnt.record import read_document
    from burnt.train.checkpoints.checkpoint import Checkpoints

    saved = Checkpoints(folder / "checkpoints").saved()
    if not saved:
        return {}
    document = read_document(saved[-1].path / "training.safetensors") or {}
    kernels: dict[str, str] = document.get("kernels", {})
    return kernels


def _interventions(run: RunReader) -> str:
    """Return what was changed while the run went on, which a reproduction does not repeat."""
    from burnt.train.code.source import settings_in

    settings = [
        (attempt.resumed_from_step or 0, settings_in(config))
        for attempt in run.attempts()
        if (config := run.config(attempt.id)) is not None
    ]
    found = [
        (step, f"{name} changed")
        for (_, before), (step, after) in itertools.pairwise(settings)
        for name in before.keys() | after.keys()
        if before.get(name) != after.get(name)
    ]
    rates = {(e.step, e.data.get("value")) for e in run.events("learning_rate") if e.step is not None}
    found += [
        (step, "learning rate as scheduled" if rate is None else f"learning rate {rate:.4g}")
        for step, rate in rates
    ]
    return ", ".join(f"{text} at step {step}" for step, text in sorted(found)) or "none"


def _compare(run: RunReader, reproduction: RunReader) -> tuple[int, dict[str, Any] | None]:
    """Compare the values that both recorded; return how many, and the first that differs by step."""
    from burnt.train.rewind.replaying import is_timed, same_bits

    compared = 0
    differences: list[dict[str, Any]] = []
    common = set(run.series()) & set(reproduction.series())
    for series in sorted(series for series in common if not is_timed(series)):
        old, new = (dict(zip(*reader.points(*series)[::2], strict=True)) for reader in (run, reproduction))
        steps = sorted(old.keys() & new.keys())
        compared += len(steps)
        step = next((step for step in steps if not same_bits(old[step], new[step])), None)
        if step is not None:
            found = {"step": step, "metric": f"{series.split}/{series.name}"}
            differences.append(found | {"run": old[step], "reproduction": new[step]})
    return compared, min(differences, key=lambda found: found["step"], default=None)


def _print(
    circumstances: dict[str, dict[str, Any]], compared: int, difference: dict[str, Any] | None
) -> None:
    page = Page()
    rows: dict[str, str | Cell] = {}
    for name, pair in circumstances.items():
        if pair["equal"]:
            shown = pair["run"] if isinstance(pair["run"], str) and name != "code" else "the same"
            rows[name] = str(shown)
        elif isinstance(pair["run"], dict):
            rows[name] = Cell("others were selected", "yellow")
        elif name == "code":
            rows[name] = Cell("changed since the run", "yellow")
        else:
            rows[name] = Cell(f"{pair['run']} in the run, {pair['reproduction']} now", "yellow")
    page.pairs(rows)
    if difference is not None:
        page.line(
            Cell("different", "bold red"),
            f": {difference['metric']} at step {difference['step']}: {difference['run']!r} in the run, "
            f"{difference['reproduction']!r} now",
        )
    elif compared:
        page.line(Cell("equal", "bold green"), f": all {compared:,} values, bit for bit")
    else:
        page.line(Cell("not compared", "bold yellow"), ": the two recorded no value at a common step")
