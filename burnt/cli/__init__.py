"""The `burnt` command line: dispatch and exit codes.

The module of a command has its name, or a related command's: `burnt runs list` is `run` in
``runs_list.py``, and `arguments/` says which function it is. `output.py` prints for all of them;
`run_model.py` is shared by those that ship a run, `stored_target.py` by those that start one again.

A command imports what it needs when it runs: `burnt --help` and `burnt runs` never load torch. Exit codes:
0 success, 1 failure, 2 invalid command line, 3 a training has not answered yet, 4 another process has resumed
the run that was trained, 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import sys
from collections.abc import Callable, Sequence

from burnt.cli.arguments import parse
from burnt.cli.output import UsageError, report
from burnt.errors import BurntError, TakenOverError, clean

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: the arguments after `burnt`; by default the process's.

    Raises:
        SystemExit: the arguments are invalid, or a training was interrupted.

    >>> main(["runs", "list", "no-such-folder"])
    2
    """
    try:
        args = parse(argv)
    except UsageError as error:
        report(error)
        return 2
    if args.command not in ("train", "fork") and isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal whose encoding lacks a character of a run's name must still show the run.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with _trust_of(args):
            code = _command(args.home)(args)
        sys.stdout.flush()
        return code
    except TakenOverError as error:  # the training has reported it
        return error.code
    except BurntError as error:
        if os.environ.get("BURNT_DEBUG") == "1":
            raise
        report(error)
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        if os.environ.get("BURNT_DEBUG") == "1":
            raise
        print("interrupted", file=sys.stderr)
        return 130
    except OSError as error:
        is_pipe_closed = isinstance(error, BrokenPipeError)  # by the reader, as `| head` does
        if args.command in ("train", "fork") or os.environ.get("BURNT_DEBUG") == "1":
            raise
        if not is_pipe_closed and _runs_user_code(args):  # whose errors keep their traceback
            raise
        # Discard buffered output, which would fail again when the interpreter exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if is_pipe_closed:
            return 141
        print(clean(f"error: {error}"), file=sys.stderr)
        return 1


def _command(home: str) -> Callable[[argparse.Namespace], int]:
    module, _, function = home.partition(":")
    command: Callable[[argparse.Namespace], int] = getattr(
        importlib.import_module(f"burnt.cli.{module}"), function or "run"
    )
    return command


def _trust_of(args: argparse.Namespace) -> contextlib.AbstractContextManager[None]:
    if not getattr(args, "trust", False):
        return contextlib.nullcontext()
    from burnt.train.code.trust import trusting

    return trusting()


def _runs_user_code(args: argparse.Namespace) -> bool:
    return (
        args.command in ("replay", "check", "evaluate", "predict", "quantize")
        or getattr(args, "action", None) == "reproduce"
    )
