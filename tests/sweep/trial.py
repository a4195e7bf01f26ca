"""Stands in for `burnt train`: logs a score at each step, saves, resumes, obeys a stop; loads no torch.

`python trial.py MODULE:FUNCTION folder=... lr=0.1 steps=4 ... --monitor off`, or `--resume FOLDER`. A file
`hold` next to the sweep keeps a trial at its second step until it is gone; `die=N` kills the process with -9
at the N-th place, once; `fail=1` raises before the run, `nan=1` in it; `stopped=1` is early stopping.
"""

import fcntl
import os
import signal
import sys
import time
from pathlib import Path

from burnt.store import RunReader, RunWriter
from burnt.store.control import Command, Inbox


def main(words):
    if words[0] == "--resume":
        folder = Path(words[1])
        with RunReader(folder) as reader:
            settings = reader.config()["settings"]
    else:
        settings = dict(word.split("=", 1) for word in words[1:] if "=" in word)
        folder = Path(settings["folder"])
    if settings.get("fail") == "1":
        raise SystemExit("ValueError: no data")
    lock = os.open(folder.parent / f".{folder.name}", os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        (folder.parent / "doubled").touch()
        raise SystemExit("a second process of the trial") from None
    place = iter(range(1, 1000))
    died = folder.parent / f".{folder.name}.died"

    def pass_by():
        if next(place) == int(settings.get("die", 0)) and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    pass_by()
    saved = folder / "checkpoints" / "step"
    start = int(saved.read_text()) if saved.exists() else 0
    config = {"settings": settings, "metrics": {"score": "lower"}, "ranked_by": "valid/score"}
    run = RunWriter.create(
        folder, config=config, resume=words[0] == "--resume", resumed_from_step=start or None
    )
    pass_by()
    inbox, reason = Inbox(run.lease), "finished"
    with run:
        for step in range(start + 1, int(settings.get("steps", 3)) + 1):
            run.log(step, 1, {"score": float(settings["lr"]) + 1 / step}, "valid")
            run.flush(10)
            pass_by()
            saved.with_suffix(".new").write_text(str(step))
            saved.with_suffix(".new").rename(saved)
            pass_by()
            while True:
                for command in inbox.poll():
                    reason = f"stopped by {command.sender}" if isinstance(command, Command) else reason
                if reason != "finished" or step != 2 or not (folder.parent / "hold").exists():
                    break
                time.sleep(0.01)
            if settings.get("nan") == "1":
                raise FloatingPointError("the loss became nan")
            if settings.get("stopped") == "1":
                reason = "stopped early: no better value"
            if reason != "finished":
                break
        run.close("finished" if reason == "finished" else "stopped", reason)
        pass_by()


if __name__ == "__main__":
    main(sys.argv[1:])
