"""`burnt train --nproc N`: the same command in N processes, by torch.distributed's launcher."""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import signal
import sys
import tempfile
import traceback
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from burnt.cli.output import UsageError, report
from burnt.errors import BurntError, TakenOverError
from burnt.store.schema import RUN_FILE

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

_SAVE_SECONDS = 600  # for the processes to end after a signal, as a checkpoint may take long
_INTERRUPTED = {128 + number for number in (signal.SIGINT, signal.SIGTERM)} | {TakenOverError.code}


def start(args: argparse.Namespace) -> int | None:
    """Start a training in several processes, and return the exit code; None if one is wanted."""
    if args.nproc is None or args.nproc == 1 or args.show:
        return None
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise UsageError(
            "--nproc is for a command that no launcher has started", found="torchrun's environment"
        )
    if args.monitor == "tui":
        raise UsageError(
            "the full-screen monitor does not show several processes",
            expected="--monitor live or plain",
            hint="burnt monitor, in another terminal, shows the run with its ranks",
        )
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    shown = args.monitor or ("live" if sys.stdout.isatty() else "plain")
    os.environ.setdefault("BURNT_MONITOR", shown)
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(_SAVE_SECONDS))
    os.environ.setdefault("OMP_NUM_THREADS", str(max((os.cpu_count() or 1) // args.nproc, 1)))
    words = ["train", *(["--resume", args.resume] if args.resume else [args.target]), *args.overrides]
    words += ["--config", args.config] if args.config else []
    words += ["--trust"] if args.trust else []
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=args.nproc,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.1,
        signals_to_handle="SIGTERM,SIGHUP,SIGQUIT",
    )
    for name in [*logging.root.manager.loggerDict, "torch.distributed.elastic"]:
        if name.startswith("torch.distributed.elastic"):  # each has a level of its own
            logging.getLogger(name).setLevel(logging.CRITICAL)  # this function reports
    with tempfile.TemporaryDirectory() as folder:
        run_file = Path(folder, "run")
        os.environ[RUN_FILE] = str(run_file)
        interrupted = False

        def interrupt(number: int, _: object) -> None:
            nonlocal interrupted
            if interrupted:
                _end_processes()
            interrupted = True
            raise SignalException("Ctrl-C", signal.Signals(number))  # the launcher passes it on, and waits

        signal.signal(signal.SIGINT, interrupt)
        try:
            elastic_launch(config, sys.executable)("-m", "burnt", *words)
        except SignalException as error:
            return 128 + error.sigval
        except ChildFailedError as error:
            rank, failure = min(error.failures.items(), key=lambda item: _order(item[1]))
            if failure.exitcode in _INTERRUPTED:
                return failure.exitcode
            text = _text_of(failure, Path(f"{run_file}.{rank}"))
            sys.stderr.write(text)
            if text and failure.exitcode == 2:  # the command line is invalid
                return 2
            ended = f": exit code {failure.exitcode}"
            ended = f": killed by {failure.signal_name()}" if failure.exitcode < 0 else ended
            print(f"rank {rank} of {args.nproc} has failed first{'' if text else ended}", file=sys.stderr)
            if run_file.exists():
                from burnt.train.code.source import resume_command

                resume = resume_command(Path(run_file.read_text()), args.nproc)
                print(f"to go on from the last checkpoint: {resume}", file=sys.stderr)
            return max(failure.exitcode, 1)
    return 0


@contextlib.contextmanager
def reporting() -> Iterator[None]:
    """In a process that `start` has started, write an error to a file, as `start` prints only the first."""
    try:
        yield
    except Exception as error:
        if not {RUN_FILE, "RANK"} <= os.environ.keys():
            raise
        text = io.StringIO()
        with contextlib.redirect_stderr(text):
            if isinstance(error, BurntError) and os.environ.get("BURNT_DEBUG") != "1":
                report(error)
            else:
                traceback.print_exception(error)
        Path(f"{os.environ[RUN_FILE]}.{os.environ['RANK']}").write_text(text.getvalue())
        raise SystemExit(2 if isinstance(error, UsageError) else 1) from None


def _order(failure: ProcessFailure) -> tuple[bool, int, bool, bool]:
    """Return by what failures are sorted, first causes first: recorded by a training, then by time."""
    by_launcher = failure.exitcode == -signal.SIGTERM
    return not isinstance(failure.message, dict), failure.timestamp, by_launcher, failure.exitcode > 0


def _text_of(failure: ProcessFailure, file: Path) -> str:
    """Return what a process would have printed of its error; empty if it could not tell."""
    message: Any = failure.message  # recorded by the training, which may have been ended while it saved
    recorded = message["extraInfo"]["py_callstack"] if isinstance(message, dict) else ""
    return file.read_text() if file.exists() else recorded


def _end_processes() -> None:
    """End all processes of this one, within seconds."""
    left = psutil.Process().children(recursive=True)
    for end in (psutil.Process.terminate, psutil.Process.kill):
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                end(process)
        _, left = psutil.wait_procs(left, timeout=5)
