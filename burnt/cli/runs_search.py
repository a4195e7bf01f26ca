"""`burnt runs search`: list the runs that a query matches."""

from __future__ import annotations

import argparse
import sys

from burnt.cli.output import Page, print_json, require_folder, usage_errors
from burnt.cli.runs_list import print_runs, run_json
from burnt.errors import QueryError, clean
from burnt.monitor.data.runs import RunLibrary
from burnt.store import find_runs
from burnt.store.search import parse_query


def run(args: argparse.Namespace) -> int:
    """Print the runs in a folder that match a query, the most recently written first.

    Returns:
        0 if a run matches, otherwise 1, as grep does.
    """
    require_folder(args.folder, "burnt runs search QUERY --in FOLDER searches another folder")
    with usage_errors(QueryError):
        query = parse_query(" ".join(args.query))
    library = RunLibrary([args.folder])
    library.refresh(rescan=True)
    all_facts = [(view, view.facts()) for view in library.views]
    matching = {view.folder: view for view, facts in all_facts if query.matches(facts)}
    library.close()
    # find_runs sorts by the time of the last write; the library sorts by age.
    folders = [found for found in find_runs(args.folder) if found in matching]
    views = [matching[folder] for folder in folders]
    if args.json:
        print_json([run_json(view) for view in views])
    elif views and not args.paths:
        print_runs(Page(), views, args.folder)
    elif args.paths:
        # Other programs take the names as they are.
        names = [clean(str(path)) if sys.stdout.isatty() else str(path) for path in folders]
        print("".join(f"{name}\n" for name in names), end="")
    else:
        Page().line(f"none of the {len(all_facts)} runs in {args.folder} matches")
    unknown = query.unknown_key(facts for _, facts in all_facts)
    if unknown is not None:
        key, guess = unknown
        hint = f": did you mean {guess}?" if guess else ""
        print(clean(f"no run has a setting or metric {key}{hint}"), file=sys.stderr)
    return 0 if folders else 1
