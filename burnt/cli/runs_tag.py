"""`burnt runs tag` and `burnt runs note`: add to runs what people and searches want to know of them."""

from __future__ import annotations

import argparse

from burnt.cli.output import UsageError, print_json, usage_errors
from burnt.cli.runs_select import open_run, select_runs
from burnt.errors import RunError, clean
from burnt.store.control import check
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
