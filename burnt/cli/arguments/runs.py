"""The arguments of `burnt monitor`, `runs` and `ctl`."""

from __future__ import annotations

import argparse

from burnt.cli.arguments.parser import add_json, add_parser, add_repeated, add_run, add_trust

_MONITOR_EXAMPLES = """\
examples:
  burnt monitor                          all runs in runs/
  burnt monitor runs/digits              one run
  burnt monitor digits                   the newest run digits(-...) in runs/
  burnt monitor runs/a runs/b --once     print a snapshot
  burnt monitor runs --json | jq '.[].state'
"""

_COMPARE_EXAMPLES = """\
examples:
  burnt runs compare digits-a digits-b
  burnt runs compare 'runs/digits-*' --metric valid/loss --metric '*/accuracy'
  burnt runs compare $(burnt runs search tag:paper --paths) --json

The better values are marked with *. A fork is drawn on top of its parent, from
the step of the fork on.
"""

_SEARCH_EXAMPLES = """\
examples:
  burnt runs search 'lr>0.001' model.hidden=128 'valid/loss<0.3'
  burnt runs search tag:baseline,paper -state:crashed digits
  burnt runs search 'best:valid/loss<0.25' 'took<2h' 'age<7d'
  burnt runs search 'note:"too high"' optimizer~adamw
  burnt runs rm $(burnt runs search state:crashed --paths)

All terms must match. Words are looked for in names, states, tags and notes; lr is
any setting that ends in .lr; a metric is its last value, after best: its best
one; -term is what must not match. Quote < and > for the shell. Exit codes: 0 a
run matches, 1 none, 2 the query cannot be read.
"""

_TAG_EXAMPLES = """\
examples:
  burnt runs tag digits +baseline -old
  burnt runs tag 'runs/digits-*' +sweep1
  burnt runs tag digits               print the tags
"""

_CTL_EXAMPLES = """\
commands:
  pause        pause after the current step
  resume       continue a paused training
  stop         save a checkpoint and stop; resume=True continues from it
  save         save a checkpoint that is never deleted, and continue
  lr VALUE     use this learning rate instead of the schedule; the rates that
               groups of parameters schedule change by the same factor
  lr auto      follow the schedule again
  note TEXT    add a note to the run

examples:
  burnt ctl runs/digits pause
  burnt ctl digits lr 1e-4       the run digits or digits-<date> in runs/
  burnt ctl runs/digits note "new data from here on"

The training answers after the current step. Exit codes: 0 done, 1 refused or
the run has ended, 2 no such command, value or run, 3 not answered yet.
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parsers."""
    monitor = add_parser(
        commands,
        "monitor",
        "watch, compare and control runs in a full-screen app",
        _MONITOR_EXAMPLES,
        "monitor",
    )
    monitor.add_argument(
        "folders",
        nargs="*",
        default=["runs"],
        metavar="FOLDER",
        help="a run's folder, a run's name in runs/, or a folder of runs; default: runs",
    )
    monitor.add_argument("--once", action="store_true", help="print a snapshot as plain text and exit")
    monitor.add_argument("--svg", metavar="FILE", help="save a screenshot of the app and exit")
    monitor.add_argument(
        "--size", default="120x40", metavar="WxH", help="size of the screenshot, default: 120x40"
    )
    monitor.add_argument("--fps", type=float, default=2.0, help="updates per second, default: 2")
    monitor.add_argument("--attached", type=int, metavar="PID", help=argparse.SUPPRESS)
    monitor.add_argument("--pulse", type=int, metavar="FD", help=argparse.SUPPRESS)
    add_json(monitor)

    runs = add_parser(
        commands, "runs", "list, show, compare, search, tag and remove runs", "example: burnt runs list"
    )
    of_runs = runs.add_subparsers(dest="action", required=True, metavar="COMMAND")
    listing = add_parser(
        of_runs, "list", "list the runs in a folder", "example: burnt runs list runs --json", "runs_list"
    )
    listing.add_argument("folder", nargs="?", default="runs", metavar="FOLDER", help="default: runs")
    show = add_parser(
        of_runs, "show", "show one run in detail", "example: burnt runs show runs/digits", "runs_show"
    )
    add_run(show)
    export = add_parser(
        of_runs,
        "export",
        "export a run for other tools",
        "example: burnt runs export runs/digits --format jsonl --follow",
        "runs_export",
    )
    add_run(export)
    export.add_argument("--format", required=True, choices=["csv", "jsonl", "tensorboard"])
    export.add_argument(
        "--out",
        metavar="PATH",
        help="output file, default: standard output; for tensorboard a folder, default: RUN/tensorboard",
    )
    export.add_argument("--follow", action="store_true", help="jsonl: continue until the run ends")

    reproduced = add_parser(
        of_runs,
        "reproduce",
        "run a run again in a new folder, and compare every value",
        "example: burnt runs reproduce digits",
        "runs_reproduce",
    )
    add_run(reproduced)
    reproduced.add_argument("--out", metavar="FOLDER", help="the new run's folder, default: RUN-reproduced")
    add_trust(reproduced)
    _add_selection(of_runs)
    for command in (listing, show, reproduced):
        add_json(command)

    ctl = add_parser(
        commands,
        "ctl",
        "control a running training: pause, resume, stop, save, lr, note",
        _CTL_EXAMPLES,
        "ctl",
    )
    add_run(ctl)
    ctl.add_argument("order", metavar="COMMAND", help="pause, resume, stop, save, lr or note")
    ctl.add_argument(
        "value", nargs="*", default=[], metavar="VALUE", help="for lr a number or auto, for note the text"
    )
    ctl.add_argument(
        "--timeout",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="maximum time to wait for the answer, default: 10",
    )
    ctl.add_argument("--no-wait", action="store_true", help="send the command without waiting for the answer")


def _add_selection(of_runs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parsers of the commands on several runs."""
    runs_help = "folders, names in runs/, or patterns such as 'digits-*'"
    compare = add_parser(of_runs, "compare", "show runs side by side", _COMPARE_EXAMPLES, "runs_compare")
    compare.add_argument("runs", nargs="+", metavar="RUN", help=runs_help)
    add_repeated(compare, "--metric", "NAME", "also draw its curves; a pattern")
    search = add_parser(
        of_runs, "search", "list the runs that a query matches", _SEARCH_EXAMPLES, "runs_search"
    )
    search.add_argument("query", nargs="+", metavar="QUERY", help="terms, as in the examples below")
    search.add_argument(
        "--in", dest="folder", default="runs", metavar="FOLDER", help="the folder to search, default: runs"
    )
    search.add_argument("--paths", action="store_true", help="print only the folders")
    tag = add_parser(of_runs, "tag", "add tags to runs, or remove them", _TAG_EXAMPLES, "runs_tag:tag")
    tag.add_argument("words", nargs="+", metavar="RUN|+TAG|-TAG", help=f"{runs_help}; then the tags")
    note = add_parser(
        of_runs,
        "note",
        "add a note to a run",
        'example: burnt runs note digits "the rate was too high"',
        "runs_tag:note",
    )
    add_run(note)
    note.add_argument("text", nargs="+", metavar="TEXT", help="the note")
    remove = add_parser(
        of_runs,
        "rm",
        "remove runs that have ended, with their checkpoints",
        "example: burnt runs rm digits-a 'runs/old-*'",
        "runs_rm",
    )
    remove.add_argument("runs", nargs="+", metavar="RUN", help=runs_help)
    remove.add_argument("-y", "--yes", action="store_true", help="remove without asking")
    for command in (compare, search, tag):
        add_json(command)
