"""`burnt train --nproc N`: the same command in N processes, by torch.distributed's launcher."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnt.cli.output import UsageError
from burnt.errors import TakenOverError, clean
from burnt.store.schema import RUN_FILE

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

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
    )
    for name in [*logging.root.manager.loggerDict, "torch.distributed.elastic"]:
        if name.startswith("torch.distributed.elastic"):  # each has a level of its own
            logging.getLogger(name).setLevel(logging.CRITICAL)  # this function reports
    with tempfile.TemporaryDirectory() as folder:
        run_file = Path(folder, "run")
        os.environ[RUN_FILE] = str(run_file)
        try:
            elastic_launch(config, sys.executable)("-m", "burnt", *words)
        except SignalException as error:
            return 128 + error.sigval
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            if failure.exitcode in _INTERRUPTED:
                return failure.exitcode
            print(clean(f"rank {rank} of {args.nproc} has failed first: {_reason(failure)}"), file=sys.stderr)
            if run_file.exists():
                from burnt.train.code.source import resume_command

                resume = resume_command(Path(run_file.read_text()), args.nproc)
                print(f"to go on from the last checkpoint: {resume}", file=sys.stderr)
            return max(failure.exitcode, 1)
    return 0


def _reason(failure: ProcessFailure) -> str:
    """Return why a process has failed, in one line."""
    message: Any = failure.message
    text = message.get("message", "") if isinstance(message, dict) else ""
    if text:
        return text.splitlines()[0]
    return f"killed by {failure.signal_name()}" if failure.exitcode < 0 else f"exit code {failure.exitcode}"
