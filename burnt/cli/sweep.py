"""`burnt sweep`: train with many settings, and choose the next ones by what the earlier ones gave."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from burnt.cli.output import Cell, Page, UsageError, closest_path, usage_errors
from burnt.errors import ConfigError, RunError, UnsupportedError, clean, quantity
from burnt.store.search import setting_text
from burnt.store.sweeps import SWEEP, Sweep, Trial, is_sweep, ranked, read_trials
from burnt.sweep.engine import Engine
from burnt.sweep.sampling import check_optuna, grid_size
from burnt.sweep.space import check_space, parse_space
from burnt.train.format import duration_text, value_text

_DEFAULT_TRIALS = 20
_SHOWN = 10  # trials in the last table
_STYLES = {"complete": "green", "pruned": "yellow", "failed": "bold red", "running": "bold green"}


def run(args: argparse.Namespace) -> int:
    """Run a sweep, or go on with one; return 0, or 130 after Ctrl-C."""
    folder, sweep = _existing(args) if ":" not in args.target else _described(args)
    if args.best:
        return _print_best(folder, sweep)
    sweep = _trusted(folder, sweep)
    with usage_errors(ConfigError, UnsupportedError):
        if sweep.sampler == "tpe":
            check_optuna()
        elif sweep.sampler == "grid":
            size = grid_size(sweep.space)
            wanted = args.trials or (sweep.trials if is_sweep(folder) else size)
            sweep = sweep.replace(trials=min(wanted, size))
    output = _Output()
    output.message(f"{folder}: {quantity(sweep.trials, 'trial')}, {sweep.sampler}; burnt monitor {folder}")
    engine = Engine(folder, sweep, output.message, output.ended, output.running)
    try:
        engine.run()
    finally:
        output.clear()
    _print_result(folder, engine.sweep, list(engine.trials.values()))
    if engine.signals:
        print(f"Stopped. To go on: burnt sweep {shlex.quote(str(folder))}")
        return 130
    return 0


def _described(args: argparse.Namespace) -> tuple[Path, Sweep]:
    """Return the sweep that a command line describes, and its folder, which may hold it already."""
    from burnt.cli.train import config_class, find_function

    cls = config_class(find_function(args.target), args.target)
    stem = args.target.rpartition(":")[0].removesuffix(".py").replace("/", ".").rpartition(".")[2]
    folder = _folder(args.name or f"{stem}-sweep")
    if "folder" not in cls.__struct_fields__:
        raise UsageError(
            f"{args.target} cannot train in a folder per trial, because its Config has no field for it",
            where=cls.__name__,
            expected="a field `folder`, and SupervisedTraining(config.folder, ...)",
            found=f"the fields {', '.join(cls.__struct_fields__) or '(none)'}",
            hint="folder: str = 'runs/name'",
        )
    with usage_errors(ConfigError):
        space, fixed = parse_space(args.overrides)
        if any(word.startswith("folder=") for word in args.overrides):
            raise ConfigError(
                "each trial has a folder of its own", found="folder=", hint="--name names the sweep"
            )
        build = cls.from_assignments
        space = check_space(space, [*fixed, f"folder={folder}/0001"], build)
    if is_sweep(folder):
        stored = Sweep.load(folder / SWEEP)
        if (stored.target, stored.space, stored.fixed) != (args.target, space, fixed):
            raise UsageError(
                f"{folder} holds a sweep of something else",
                expected=_command_text(stored),
                found=shlex.join([args.target, *args.overrides]),
                hint="--name starts another sweep",
            )
        return folder, _with_options(stored, args)
    return folder, _with_options(
        Sweep(target=args.target, space=space, fixed=fixed, trials=_DEFAULT_TRIALS), args
    )


def _existing(args: argparse.Namespace) -> tuple[Path, Sweep]:
    """Return the sweep that a name stands for, and its folder."""
    folder = Path(args.target) if is_sweep(args.target) else _folder(args.target)
    if not is_sweep(folder):
        known = [str(path.parent) for path in Path(folder.parent).glob(f"*/{SWEEP}")]
        guess = closest_path(str(folder), known, "/")
        raise UsageError(
            f"there is no sweep {args.target!r}",
            expected=f"MODULE:FUNCTION, or the name of a sweep: {folder / SWEEP}",
            hint=f"did you mean {guess}?" if guess else None,
        )
    if args.overrides or args.name:
        raise UsageError(
            "a sweep that goes on keeps its settings",
            found=" ".join(args.overrides) or f"--name {args.name}",
            hint="give the function and --name NEW for another sweep",
        )
    sweep = Sweep.load(folder / SWEEP)
    file = Path(sweep.target.rpartition(":")[0])
    if file.suffix == ".py" and not file.is_file() and not args.best:
        raise UsageError(f"there is no file {str(file)!r}", where=os.getcwd(), hint="go to its folder first")
    return folder, _with_options(sweep, args)


def _trusted(folder: Path, sweep: Sweep) -> Sweep:
    """Return the sweep, marked as this user's own; raise if its folder came from another user."""
    from burnt.train.code.trust import has_mark, is_trusting, mark

    is_new = not is_sweep(folder)
    if is_new:
        sweep = sweep.replace(id=uuid.uuid4().hex)  # nobody else can guess it
    document = [sweep.id, sweep.target, *sweep.fixed]
    file = Path(sweep.target.rpartition(":")[0])
    outside = [file] if file.suffix == ".py" and file.is_file() else []
    if is_new or is_trusting():
        mark(folder, document, [], outside)
    elif not has_mark(document, [], outside):
        raise RunError(
            "the sweep names code to execute, and is not trusted: nothing was imported",
            where=str(folder),
            expected="a sweep that this user has started here",
            found=f"it would call {sweep.target}",
            hint="read that code; if you trust it and what it imports: --trust. This is remembered",
        )
    return sweep


def _folder(name: str) -> Path:
    return Path(name) if os.path.dirname(name) else Path("runs", name)


def _with_options(sweep: Sweep, args: argparse.Namespace) -> Sweep:
    """Return the sweep with the options that were given."""
    names = ("trials", "sampler", "prune", "jobs", "seed")
    changes: dict[str, Any] = {name: value for name in names if (value := getattr(args, name)) is not None}
    if args.metric is not None:
        metric, _, direction = args.metric.partition(":")
        metric = metric if "/" in metric else f"valid/{metric}"
        if direction not in ("", "higher", "lower"):
            raise UsageError(
                "--metric is invalid", expected="NAME, NAME:higher or NAME:lower", found=args.metric
            )
        if direction or metric != sweep.metric:
            changes |= {"metric": metric, "direction": direction or None}
    return sweep.replace(**changes)


def _command_text(sweep: Sweep) -> str:
    words = [
        f"{p.key}={'|'.join(map(str, p.choices)) or f'{p.low}..{p.high}' + ':log' * p.log}"
        for p in sweep.space
    ]
    return shlex.join([sweep.target, *words, *sweep.fixed])


def _best_command(folder: Path, sweep: Sweep, trial: Trial) -> str:
    words = [*sweep.fixed, *trial.assignments(), f"folder={folder}-best"]
    return shlex.join(["burnt", "train", sweep.target, *words])


def _print_best(folder: Path, sweep: Sweep) -> int:
    trials = read_trials(folder) if is_sweep(folder) else []
    best = next((t for t in ranked(trials, sweep.direction) if t.state == "complete"), None)
    if best is None:
        raise UsageError("no trial is complete yet", where=str(folder), hint=f"burnt sweep {folder} goes on")
    print(clean(_best_command(folder, sweep, best)))
    return 0


def _print_result(folder: Path, sweep: Sweep, trials: Sequence[Trial]) -> None:
    page, best = Page(), ranked(trials, sweep.direction)
    if not best:
        return
    keys = [parameter.key for parameter in sweep.space]
    rows: list[list[str | Cell]] = [
        [
            trial.name,
            Cell("unfinished" if trial.state == "running" else trial.state, _STYLES[trial.state]),
            "" if trial.value is None else value_text(trial.value),
            *(setting_text(trial.params[key]) for key in keys),
            duration_text(trial.seconds) if trial.seconds else "",
        ]
        for trial in best[:_SHOWN]
    ]
    metric = sweep.metric or "value"
    page.line("")
    columns = [metric, *keys, "took"]
    page.table(["trial", "state", *columns], rows, align_right=columns, droppable=columns[:0:-1])
    if len(best) > _SHOWN:
        page.line(Cell(f"... {len(best) - _SHOWN} more: burnt monitor {folder}", "dim"))
    if best[0].state == "complete":
        page.line("")
        page.line(Cell("the best again: ", "dim"), _best_command(folder, sweep, best[0]))


class _Output:
    """Prints a line for each trial that has ended, and in a terminal a live line below them."""

    def __init__(self) -> None:
        self._page = Page()
        self._is_live = self._page.is_styled

    def message(self, text: str) -> None:
        self.clear()
        self._page.line(text)

    def ended(self, trial: Trial) -> None:
        self.clear()
        value = "" if trial.value is None else value_text(trial.value)
        state = Cell(f"{trial.state:<8}", _STYLES[trial.state])
        error = Cell(f"  {trial.error}" if trial.error else "", "dim")
        self._page.line(f"{trial.name}  ", state, f"  {value:>9}  {' '.join(trial.assignments())}", error)

    def running(self, trials: Sequence[Trial]) -> None:
        if self._is_live:
            shown = [f"{t.name} {'...' if t.value is None else value_text(t.value)}" for t in trials]
            text = clean(f"running {', '.join(shown)}")[: (self._page.width or 80) - 1]
            sys.stdout.write(f"\r\x1b[2K{text}")
            sys.stdout.flush()

    def clear(self) -> None:
        """Remove the live line."""
        if self._is_live:
            sys.stdout.write("\r\x1b[2K")
            sys.stdout.flush()
