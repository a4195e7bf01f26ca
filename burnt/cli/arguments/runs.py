"""The arguments of `burnt monitor`, `runs` and `ctl`."""

from __future__ import annotations

import argparse

from burnt.cli.arguments.parser import SCREEN, Parser, real

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


def add(burnt: Parser) -> None:
    """Add the parsers."""
    text = "watch, compare and control runs in a full-screen app"
    monitor = burnt.command("monitor", text, _MONITOR_EXAMPLES, "monitor")
    text = "a run's folder, a run's name in runs/, or a folder of runs; default: runs"
    monitor.words("folders", "FOLDER", text, nargs="*", default=["runs"])
    monitor.flag("--once", "print a snapshot as plain text and exit")
    monitor.option("--svg", "FILE", "save a screenshot of the app and exit")
    monitor.option("--size", "WxH", "size of the screenshot, default: 120x40", SCREEN)
    monitor.option("--fps", "N", "updates per second", real(0.1, 30.0, open=False), 2.0)
    for name in ("--attached", "--pulse"):  # for a training that shows the monitor
        monitor.add_argument(name, type=int, help=argparse.SUPPRESS)

    text = "list, show, compare, search, tag and remove runs"
    runs = burnt.command("runs", text, "example: burnt runs list")
    runs.start_commands("action")
    example = "example: burnt runs list runs --json"
    listing = runs.command("list", "list the runs in a folder", example, "runs_list")
    listing.words("folder", "FOLDER", "default: runs", nargs="?", default="runs")
    text = "metric (the best of each run), or as in a search: valid/accuracy, best:valid/loss, lr, took"
    listing.option("--sort", "KEY", text)
    example = "example: burnt runs show runs/digits"
    show = runs.command("show", "show one run in detail", example, "runs_show")
    example = "example: burnt runs export runs/digits --format jsonl --follow"
    export = runs.command("export", "export a run for other tools", example, "runs_show:export")
    export.add_argument("--format", required=True, choices=["csv", "jsonl", "tensorboard"])
    text = "output file, default: standard output; for tensorboard a folder, default: RUN/tensorboard"
    export.option("--out", "PATH", text)
    export.flag("--follow", "jsonl: continue until the run ends")
    text, example = (
        "run a run again in a new folder, and compare every value",
        "example: burnt runs reproduce digits",
    )
    reproduced = runs.command("reproduce", text, example, "runs_reproduce")
    reproduced.option("--out", "FOLDER", "the new run's folder, default: RUN-reproduced")
    reproduced.trust()

    text, runs_help = "show runs side by side", "folders, names in runs/, or patterns such as 'digits-*'"
    compare = runs.command("compare", text, _COMPARE_EXAMPLES, "runs_compare")
    compare.words("runs", "RUN", runs_help, nargs="+")
    compare.repeated("--metric", "NAME", "also draw its curves; a pattern")
    search = runs.command(
        "search", "list the runs that a query matches", _SEARCH_EXAMPLES, "runs_list:search"
    )
    search.words("query", "QUERY", "terms, as in the examples below", nargs="+")
    search.option("--in", "FOLDER", "the folder to search", default="runs", dest="folder")
    search.flag("--paths", "print only the folders")
    tag = runs.command("tag", "add tags to runs, or remove them", _TAG_EXAMPLES, "runs_edit:tag")
    tag.words("words", "RUN|+TAG|-TAG", f"{runs_help}; then the tags", nargs="+")
    example = 'example: burnt runs note digits "the rate was too high"'
    note = runs.command("note", "add a note to a run", example, "runs_edit:note")
    text, example = (
        "remove runs that have ended, with their checkpoints",
        "example: burnt runs rm digits-a 'runs/old-*'",
    )
    remove = runs.command("rm", text, example, "runs_edit:rm")
    remove.words("runs", "RUN", runs_help, nargs="+")
    remove.flag("-y --yes", "remove without asking")

    text = "control a running training: pause, resume, stop, save, lr, note"
    ctl = burnt.command("ctl", text, _CTL_EXAMPLES, "ctl")
    for command in (show, export, reproduced, note, ctl):
        command.run()
    note.words("text", "TEXT", "the note", nargs="+")
    ctl.words("order", "COMMAND", "pause, resume, stop, save, lr or note")
    ctl.words("value", "VALUE", "for lr a number or auto, for note the text", nargs="*", default=[])
    ctl.option("--timeout", "SECONDS", "maximum time to wait for the answer", real(open=False), 10.0)
    ctl.flag("--no-wait", "send the command without waiting for the answer")
    for command in (monitor, listing, show, reproduced, compare, search, tag):
        command.json()
