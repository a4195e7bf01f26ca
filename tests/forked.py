"""Programs in processes of their own that do not wait for torch's import: forks of one that has done it.

`import torch` takes most of the time of a short program, and torch's optimizers import torch._dynamo, which
takes as long. Both are there when a program begins, and nothing of burnt. What is about their own import,
about a process's very beginning or about what torch and Triton read from the environment when they are loaded
(OMP_NUM_THREADS, MALLOC_..., TRITON_INTERPRET) wants `subprocess` instead.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent

_SERVER = """
import gc, json, os, sys, torch, torch._dynamo
os.fsync = os.fstat  # as in tests/conftest.py
gc.collect()
gc.freeze()  # or each program would look for garbage among it all
assert len(os.listdir("/proc/self/task")) == 1 if os.path.isdir("/proc/self/task") else True
answers = os.fdopen(os.dup(1), "w", buffering=1)
requests = os.fdopen(os.dup(0), "rb", buffering=0)
given = None
while given is None and (line := requests.readline()):
    child = os.fork()
    if child:
        print(child, file=answers)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=answers)
    else:
        given = json.loads(line)
if given is not None:
    requests.close()
    answers.close()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, source in enumerate([nothing, *(os.open(path, os.O_WRONLY) for path in given["outputs"])]):
        os.dup2(source, target)
        os.close(source)
    os.chdir(given["cwd"])
    os.environ.clear()
    os.environ.update(given["env"])
    places = given["env"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = ["", *filter(None, places), *(p for p in sys.path if p and p not in places)]
    sys.argv = ["-c", *given["arguments"]]
    if given["strict"]:
        import warnings
        warnings.filterwarnings("error", category=UserWarning)
    if given["file"]:
        sys.argv[0], sys.path[0] = given["file"], os.path.dirname(given["file"])
    __file__ = given["file"]
    code = compile(given["code"], given["file"] or "<string>", "exec")
    for name in (
        "gc", "os", "json", "torch", "answers", "requests", "line", "child", "nothing", "places", "given"
    ):
        globals().pop(name, None)
    exec(code, globals())
"""


class _Server:
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self.lock = threading.Lock()
        atexit.register(self.end)

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self.process.communicate()

    def run(self, request: Mapping[str, object], timeout: float) -> int:
        with self.lock:
            assert self.process.stdin is not None
            assert self.process.stdout is not None
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            pid = int(self.process.stdout.readline())
            late = threading.Timer(timeout, os.kill, (pid, signal.SIGKILL))
            late.start()
            code = int(self.process.stdout.readline())
            if late.finished.is_set():
                raise subprocess.TimeoutExpired("a forked program", timeout)
            late.cancel()
            return code


_servers: list[_Server] = []


def run(
    code: str,
    *arguments: object,
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    file: Path | None = None,
    strict: bool = False,
    timeout: float = 240,
) -> subprocess.CompletedProcess[str]:
    """What `subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)` gives.

    Args:
        code: the program.
        arguments: of the command line, as text.
        cwd: the folder that it runs in.
        env: its environment; this process's, with burnt to be found, by default.
        file: written with the code, for what reads a program's lines, and named as the program.
        strict: whether UserWarnings are errors.
        timeout: seconds, after which it is killed and `subprocess.TimeoutExpired` raised.
    """
    if not _servers:
        _servers.append(_Server())
    if file is not None:
        file.write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)} if env is None else dict(env)
    words = [str(word) for word in arguments]
    with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as err:
        request = {
            "code": code,
            "arguments": words,
            "cwd": str(cwd),
            "env": environment,
            "file": None if file is None else str(file),
            "strict": strict,
            "outputs": [out.name, err.name],
        }
        returned = _servers[0].run(request, timeout)
        return subprocess.CompletedProcess(words, returned, out.read().decode(), err.read().decode())
