"""`burnt runs tag`, `note` and `rm`: change what is kept of runs, and remove them after a question."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from burnt.cli.output import UsageError, print_json, usage_errors
from burnt.cli.runs_select import open_run, select_runs
from burnt.errors import RunError, clean, quantity
from burnt.monitor.format import size_text
from burnt.store.control import check
from burnt.store.removal import Removable, examine, remove
from burnt.store.tags import add_note, change_tags, check_tag, read_tags


def tag(args: argparse.Namespace) -> int:
    """Add and remove tags of runs, and print the tags that they have then; return the exit code 0."""
    words = [word.strip() for word in args.words]
    names = [word for word in words if word[:1] not in ("+", "-")]
    add = [word[1:] for word in words if word.startswith("+")]
    remove = [word[1:] for word in words if word.startswith("-")]
    if not names:
        raise UsageError("no run is named", hint="burnt runs tag RUN +baseline -old")
    with usage_errors(RunError):
        for one in (*add, *remove):
            check_tag(one)
    if both := set(add) & set(remove):
        raise UsageError("a tag is both added and removed", found=", ".join(sorted(both)))
    changes = bool(add or remove)
    tags = {
        folder: change_tags(folder, add, remove) if changes else read_tags(folder)
        for folder in select_runs(names)
    }
    if args.json:
        print_json([{"folder": folder, "tags": found} for folder, found in tags.items()])
    else:
        for folder, found in tags.items():
            print(clean(f"{folder}: {' '.join(found) or 'no tags'}"))
    return 0


def note(args: argparse.Namespace) -> int:
    """Add a note to a run, which may be running or have ended; return the exit code 0."""
    with usage_errors(RunError):
        text = str(check("note", " ".join(args.text)))
    (folder,) = select_runs([args.run])
    with open_run(folder) as reader:
        progress = reader.progress()
    step = None if progress is None else progress.step
    add_note(folder, text, step)
    print(clean(f"{folder}: note added" + ("" if step is None else f" at step {step}")))
    return 0


def rm(args: argparse.Namespace) -> int:
    """Remove runs; nothing is removed if one of them cannot be."""
    runs = [examine(folder) for folder in select_runs(args.runs)]
    if not args.yes and not _ask(runs):
        print("nothing was removed", file=sys.stderr)
        return 1
    for found in runs:
        remove(found.folder)
    what = clean(str(runs[0].folder)) if len(runs) == 1 else quantity(len(runs), "run")
    print(f"removed {what}: {size_text(sum(found.bytes for found in runs))} freed")
    return 0


def _ask(runs: Sequence[Removable]) -> bool:
    if not sys.stdin.isatty():
        raise UsageError(
            "removing runs needs a confirmation",
            expected="--yes, or a terminal to ask in",
            found=", ".join(clean(str(found.folder)) for found in runs),
        )
    for found in runs:
        others = f", with {', '.join(found.other_names)}" if found.other_names else ""
        print(clean(f"{found.folder}  {found.state}  {size_text(found.bytes)}{others}"))
    total = size_text(sum(found.bytes for found in runs))
    question = f"Remove {quantity(len(runs), 'run')} ({total}) with all checkpoints? [y/N] "
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:  # Ctrl-D
        print()
        return False
