"""burnt without what Windows lacks, as far as a POSIX system can show it.

A new process loses the standard modules, functions and constants that Windows lacks, and its `sys.platform`
is ``win32``. torch and other packages are imported before that, since theirs are of this system. Paths, file
locks and the replacement of open files remain POSIX: only a run on Windows shows those.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests import forked
from tests.forked import ROOT

AS_ON_WINDOWS = """
import ctypes, importlib, os, pkgutil, platform, select, signal, sys
import asyncio, getpass, msgspec, numpy, psutil, rich.live, safetensors.torch, sqlite3, subprocess, torch
import torch.utils.data
for name in PACKAGES:
    importlib.import_module(name)

for name in ("fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty"):
    sys.modules[name] = None  # importing it raises ImportError
for module, names in {
    os: "O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK PRIO_PROCESS SCHED_IDLE confstr fork fstatvfs geteuid"
        " getgid getloadavg getpgrp getpriority getuid killpg nice posix_fallocate register_at_fork"
        " sched_getaffinity sched_setscheduler set_blocking setpriority setsid statvfs tcgetpgrp uname",
    select: "POLLIN epoll poll",
    signal: "ITIMER_REAL SIGALRM SIGHUP SIGKILL SIGTSTP SIGTTIN SIGTTOU pause pthread_sigmask setitimer",
}.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
os.O_BINARY = os.O_NOINHERIT = 0
open_library, open_file = ctypes.CDLL.__init__, os.open

def open_named_library(self, name, *arguments, **settings):
    if name is None:
        raise TypeError("on Windows, a library has a name")
    open_library(self, name, *arguments, **settings)

def open_no_folder(path, flags, *arguments, **settings):
    if os.path.isdir(path):
        raise PermissionError(13, "on Windows, folders cannot be opened", path)
    return open_file(path, flags, *arguments, **settings)

ctypes.CDLL.__init__, os.open = open_named_library, open_no_folder
platform.system = lambda: "Windows"
sys.platform = "win32"
sys.stdout.reconfigure(encoding="cp1252")  # of a pipe
"""
POSIX_ONLY = ["burnt.monitor.terminal_handoff"]  # of a monitor in the terminal of a training

IMPORT_ALL = """
import burnt
for module in pkgutil.walk_packages(burnt.__path__, "burnt."):
    if not (module.name in POSIX_ONLY or module.name.endswith("__main__")):
        importlib.import_module(module.name)
        print(module.name)
"""

TRAIN = """
from burnt.cli import main
import burnt
run = sys.argv[1]
for arguments in (
    ["info"],
    ["train", "examples/digits/train.py:main", "epochs=1", "model.hidden=16", "folder=" + run],
    ["runs", "show", run],
    ["monitor", "--once", run],
):
    print("burnt", *arguments)
    assert main(arguments) == 0
print("logits", *burnt.load(run, import_code=True)(torch.zeros(2, 1, 8, 8)).shape)
"""


def run_as_on_windows(code: str, *arguments: object, packages: tuple[str, ...]) -> str:
    """Run a program that has imported packages before; return what it printed."""
    names = [name for name in packages if importlib.util.find_spec(name.partition(".")[0])]
    settings = f"PACKAGES = {names!r}\nPOSIX_ONLY = {POSIX_ONLY!r}\n"
    done = forked.run(settings + AS_ON_WINDOWS + code, *arguments)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    return done.stdout


def test_every_module_can_be_imported() -> None:
    pytest.importorskip("textual")
    packages = (
        "textual.app",
        "textual.drivers.linux_driver",
        "triton.language",
        "uvicorn.protocols.http.httptools_impl",
    )
    imported = set(run_as_on_windows(IMPORT_ALL, packages=packages).split())
    files = [path.relative_to(ROOT).with_suffix("") for path in (ROOT / "burnt").rglob("*.py")]
    names = {".".join(path.parts).removesuffix(".__init__") for path in files}
    assert names - imported == {*POSIX_ONLY, "burnt", "burnt.__main__"}


@pytest.mark.full
def test_a_training_runs_without_a_compiler(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    printed = run_as_on_windows(
        TRAIN, tmp_path / "run", packages=("sklearn.datasets", "sklearn.model_selection")
    )
    assert "C compiler  not used on Windows" in printed
    assert "epoch 1/1  valid  loss" in printed
    assert "finished" in printed.partition("burnt runs show")[2]
    assert printed.endswith("logits 2 10\n")
