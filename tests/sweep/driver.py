"""Runs a sweep of `trial.py` in a folder; killed with -9 at the N-th thing that it does, if N is given.

`python driver.py FOLDER '{"trials": 3, ...}' [N]`. What it does: it writes a file, starts a process, lets it
run, sends a command. Prints the number of these things, and what it reports.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from burnt.config import Config
from burnt.store.sweeps import Parameter, Sweep
from burnt.sweep import engine

SPACE = (Parameter(key="lr", kind="float", low=0.001, high=1.0, log=True),)
TRIAL = Path(__file__).with_name("trial.py")


def message(text):
    print("message", text, flush=True)


def ended(trial):
    print("ended", trial.number, trial.state, flush=True)


COUNT = [0]


def counting(function, at):
    def wrapped(*args, **kwargs):
        for half in (0, 1):
            COUNT[0] += 1
            if COUNT[0] == at:
                os.kill(os.getpid(), signal.SIGKILL)
            if half == 0:
                result = function(*args, **kwargs)
        return result

    return wrapped


def main(folder, options, at=0):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    engine.POLL_SECONDS = 0.02
    engine.Engine.COMMAND = (sys.executable, str(TRIAL))
    Config.save = counting(Config.save, at)
    engine.send = counting(engine.send, at)
    engine.subprocess.Popen = counting(subprocess.Popen, at)
    sweep = Sweep(**{"target": "toy:main", "space": SPACE, "sampler": "random", "fixed": (), **options})
    one = engine.Engine(Path(folder), sweep, message, ended, lambda trials: None)
    one.run()
    print("count", COUNT[0], "signals", one.signals)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), int((*sys.argv, 0)[3]))
