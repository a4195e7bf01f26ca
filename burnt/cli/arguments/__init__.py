"""The arguments of all commands, and the function that runs each of them.

`training`, `runs`, `shipping` and `kernels` hold those of related commands, `parser` how they are declared.
They do not import the modules of commands, so that `burnt --help` is fast.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence

from burnt import __version__
from burnt.cli.arguments import kernels, runs, shipping, training
from burnt.cli.arguments.parser import Parser

__all__ = ["parse"]

_EXAMPLES = """\
examples:
  burnt train digits.py:main epochs=20 model.hidden=128
  burnt runs list                      all runs with progress and metrics
  burnt runs show digits               one run: metrics, checkpoints, log
  burnt runs export runs/digits --format csv --out digits.csv
  burnt info                           versions, CPU, GPUs, missing packages
"""


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse a command line; ``home`` of the result says which function runs the command.

    Raises:
        SystemExit: a command or an option is missing or unknown, or help was asked for.
        UsageError: the value of an option is invalid.
    """
    parser = _build_parser()
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:2] in (["runs", "search"], ["runs", "tag"]):
        # -term and -tag are not options; argparse takes what begins with a space for an argument.
        words[2:] = [f" {word}" if re.match(r"-(?!-|h$)", word) else word for word in words[2:]]
    # argparse does not collect words that follow an option after other words; they are in `rest`.
    args, rest = parser.parse_known_args(words)
    for name in ("overrides", "runs", "query", "words", "text"):
        if args.command in ("train", "fork", "sweep", "runs") and hasattr(args, name):
            getattr(args, name).extend(word for word in rest if not word.startswith("-"))
            rest = [word for word in rest if word.startswith("-")]
    if args.command == "train":
        training.check_train(parser, args)
    if rest:
        hint = "; settings are written key=value" if args.command in ("train", "fork", "sweep") else ""
        parser.error(f"unrecognized arguments: {' '.join(rest)}{hint}")
    if args.command == "runs" and args.action == "export" and args.follow and args.format != "jsonl":
        parser.error("--follow requires --format jsonl")
    return args


def _build_parser() -> Parser:
    description = "Train models, and inspect and control training runs."
    burnt = Parser(prog="burnt", description=description, epilog=_EXAMPLES)
    burnt.add_argument("--version", action="version", version=f"burnt {__version__}")
    burnt.start_commands("command")
    for group in (training, runs, shipping, kernels):
        group.add(burnt)
    return burnt
