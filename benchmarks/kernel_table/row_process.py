"""Rows of the GPU's table measured in another process: a kernel that breaks the device costs one row.

After an illegal access every later call of a process fails. A process measures one row after another, since
starting one takes seconds; it exits after a row that broke its device, and is killed when a row takes too
long. The next row then gets a new one. A line of JSON comes in, one goes out; what torch prints goes to the
standard error.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

COMMAND = (sys.executable, "-m", "kernel_table.row_process")
_COMPILER = "torch._inductor.compile_fx"  # `torch._inductor` alone is imported by torch's tracing, too


class RowProcess:
    """The other end of the pipe; a process is started with the first question, and after one was lost."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, seconds: float, **question: Any) -> dict[str, Any]:
        """The answer, which has ``error`` if the process was lost, or raised one.

        Args:
            seconds: after which the process is killed.
            question: ``do="facts"`` or ``do="row"``, and the arguments of `gpu.facts` or `gpu.measure_row`.
        """
        process = self._process or self._start()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(question).encode() + b"\n")
            process.stdin.flush()
            answer: dict[str, Any] = json.loads(self._line(process, seconds))
        except (OSError, TimeoutError) as error:
            self.close()
            code = process.returncode
            lost = (
                str(error) if isinstance(error, TimeoutError) else f"its process ended with exit code {code}"
            )
            return {"error": lost}
        if answer.get("broken"):
            self.close()
        return answer

    def close(self) -> None:
        """Kill the process, if there is one."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # a question that it did not read
                pipe.close()

    def _start(self) -> subprocess.Popen[bytes]:
        here = str(Path(__file__).parent.parent)
        paths = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            COMMAND, env={**os.environ, "PYTHONPATH": paths}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        return self._process

    def _line(self, process: subprocess.Popen[bytes], seconds: float) -> bytes:
        """The next line.

        Raises:
            TimeoutError: there is none in time.
            OSError: the process ended before.
        """
        assert process.stdout is not None
        end, text = time.monotonic() + seconds, b""
        while not text.endswith(b"\n"):
            left = end - time.monotonic()
            if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
                raise TimeoutError(f"took longer than {seconds:g} s, and was stopped")
            part = os.read(process.stdout.fileno(), 1 << 16)
            if not part:
                process.wait()
                raise OSError
            text += part
        return text


# --- the process


def broken() -> str | None:
    """What became of the GPU: an error that every further call of this process would raise; None without."""
    import torch

    if not torch.cuda.is_initialized():
        return None
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    return None


def serve() -> None:
    """Answer until the pipe is closed, or the device is broken."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's matter, which kills this process
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from kernel_table import gpu

    for line in sys.stdin:
        question = json.loads(line)
        try:
            answer = {"facts": gpu.facts, "row": gpu.measure_row}[question.pop("do")](**question)
        except Exception as error:  # of any kind: it is the answer
            answer = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
        answer["inductor"] = _COMPILER in sys.modules
        answer["broken"] = broken()
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
        if answer["broken"]:
            os._exit(1)  # what is left to be cleaned up would fail
        _forget()


def _forget() -> None:
    """Give the next row all of the device's memory."""
    import torch

    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


if __name__ == "__main__":
    serve()
