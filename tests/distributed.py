"""Tests whose work is done by several processes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests import forked

_WORKERS = """
import os, sys, torch
import burnt.nn, burnt.train  # once, and not by each of the forks
torch.set_num_threads(1)
size, program, *words = sys.argv[1:]
sys.path[0] = os.path.dirname(program)
# As a launcher has it: in a port that no other program can take meanwhile.
store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store.port))
os.environ.update(TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="0")
children = []
for rank in range(int(size)):
    if not (child := os.fork()):
        sys.argv = [program, *words, str(rank)]
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=size)
        with open(program) as source:
            exec(compile(source.read(), program, "exec"), {"__name__": "__main__", "__file__": program})
        sys.stdout.flush()
        os._exit(0)
    children.append(child)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children))
"""


def by_two(script: str, folder: Path, kind: str) -> None:
    """Run a script as `script kind rank` in two processes that know each other's port; both print "equal"."""
    file = folder / "worker.py"
    file.write_text(script)
    done = by_several(2, file, kind)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("equal") == 2


def by_several(size: int, file: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Run a program as `program *words rank` in processes that a launcher seems to have started."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(forked.ROOT)}
    return forked.run(_WORKERS, size, file, *words, env=environment, timeout=300)
