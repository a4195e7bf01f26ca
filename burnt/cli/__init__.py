"""The `burnt` command line: dispatch and exit codes.

===================  ===========================================================
`arguments/`         the options of all commands, declared once
`train.py`           `burnt train module:function key=value`
`resume.py`          `burnt train --resume RUN`
`check.py`           `burnt check module:function key=value`
`replay.py`          `burnt replay RUN --step K`
`fork.py`            `burnt fork RUN@K key=value`
`evaluate.py`        `burnt evaluate RUN --data module:loader`
`export.py`          `burnt export RUN -o model.onnx`
`import_onnx.py`     `burnt import model.onnx --out package`
`page.py`            `burnt page RUN -o digits.html`
`c.py`               `burnt c RUN -o firmware`
`serve.py`           `burnt serve RUN|m.onnx`
`quantize.py`        `burnt quantize RUN|FILE --scheme int8`
`run_model.py`       what the commands that ship a run share: its model and inputs
`monitor.py`         `burnt monitor`
`runs_list.py`       `burnt runs list`
`runs_show.py`       `burnt runs show`
`runs_export.py`     `burnt runs export`
`runs_reproduce.py`  `burnt runs reproduce`
`runs_*.py`          `burnt runs compare`, `search`, `tag`, `note`, `rm`
`ctl.py`             `burnt ctl RUN pause`, `resume`, `stop`, `save`, `lr`, `note`
`tune.py`            `burnt tune run`, `show`, `export`, `import`, `clear`
`show.py`            `burnt show FILE`: the tensors in a file of weights
`show_check.py`      `burnt show --check`: checksums of weights, checkpoints, runs
`show_onnx.py`       `burnt show model.onnx`: inputs, outputs, ops
`convert.py`         `burnt convert A B`: weights in another format
`bench.py`           `burnt bench MODULE:MODEL`
`info.py`            `burnt info`
`output.py`          tables for terminals, plain columns for pipes, JSON, errors
===================  ===========================================================

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
from burnt.errors import BurntError, TakenOverError, clean

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: the arguments after `burnt`; by default those of the process.

    Raises:
        SystemExit: the arguments are invalid, or a training was interrupted.

    >>> main(["runs", "list", "no-such-folder"])
    2
    """
    args = parse(argv)
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
        from burnt.cli.output import UsageError, report

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
        args.command in ("replay", "check", "evaluate", "quantize")
        or getattr(args, "action", None) == "reproduce"
    )
