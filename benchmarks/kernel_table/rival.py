"""A rival as its users have it: a process without burnt, which takes samples when it is asked to.

Started by `Sibling`. A line of JSON comes in, one goes out; what torch prints goes to the standard error.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from kernel_table.clock import Sample

REST = 5e-3
"""Seconds before a sample in another process: OpenMP's threads spin for a while after their work is done."""


class Sibling:
    """The other end of the pipe."""

    def __init__(self, threads: int) -> None:
        here = Path(__file__).parent.parent
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kernel_table.rival", str(threads)],
            env={**os.environ, "PYTHONPATH": str(here)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def prepare(self, row: str, divisor: int, rival: str) -> None:
        """Make a row's inputs, compile the rival, and call it a few times."""
        self._ask(do="prepare", row=row, divisor=divisor, rival=rival)

    def sample(self, rival: str) -> Sample:
        time.sleep(REST)
        answer = self._ask(do="sample", rival=rival)
        time.sleep(REST)
        return Sample(answer["seconds"], answer["calm"])

    def forget(self) -> None:
        """Drop the row."""
        self._ask(do="forget")

    def close(self) -> None:
        self._process.communicate()  # closes the pipe, at which it ends

    def _ask(self, **question: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the process of the rivals ended at {question}; see above")
        answer = json.loads(line)
        if "error" in answer:
            raise SystemExit(f"a rival failed at {question}: {answer['error']}")
        return answer


def serve(threads: int) -> None:
    """Answer until the pipe is closed."""
    import torch

    from kernel_table import clock, rows

    torch.set_num_threads(threads)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    runs: dict[str, Any] = {}
    calls: dict[str, int] = {}
    for line in sys.stdin:
        question = json.loads(line)
        answer: dict[str, Any] = {}
        try:
            match question["do"]:
                case "prepare":
                    row, rival = rows.find(question["row"]), question["rival"]
                    inputs = row.inputs(question["divisor"])
                    fn = compiled(row.fn) if rival == "inductor" else row.fn
                    runs[rival] = clock.runner(fn, inputs, row.backward)
                    calls[rival] = clock.warmed(runs[rival])
                case "sample":
                    rival = question["rival"]
                    if calls[rival] > 1:
                        runs[rival]()  # wakes its threads, as the rivals before it have done for the others
                    answer = clock.sample(runs[rival], calls[rival])._asdict()
                case "forget":
                    runs.clear()
                    calls.clear()
                    if "torch._dynamo" in sys.modules:  # the next row may share this one's code
                        torch.compiler.reset()
        except Exception as error:  # of any kind: the driver says it
            answer = {"error": f"{type(error).__name__}: {error}"}
        assert "burnt" not in sys.modules
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def compiled(fn: Any) -> Any:
    """As `torch.compile` makes it, for one shape."""
    import torch

    return torch.compile(fn, dynamic=False)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
