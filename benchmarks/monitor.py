"""What the terminal monitor costs: how fast it opens, what share of a core it takes, what training loses.

    python benchmarks/monitor.py [--quick] [--save] [--only opening,load,keys,training]

The app itself is measured, as people start it: `burnt monitor FOLDER` in a pseudo-terminal of 180 x 50
cells, whose output is read and thrown away.

opening     Seconds from the start of the process (or from the key that opens a run) until a text is on the
            screen that is only there when what is meant is drawn. The median of several. And the processor
            time that this took, which is what it takes on a machine that has nothing else to do.
load        The processor time of the monitor as a share of one core, over some seconds: with 6 charts on
            the screen whose run grows 20 times a second, at 2 updates a second; with a paused run, whose
            training still gives signs of life; with a run that has ended.
keys        Seconds from a key that opens another pane until that pane is drawn, next to a training whose
            matrix products keep every core busy: in the monitor that the training opened in its own
            terminal, and in one that was opened in a second shell. Both are open, and are asked in turn.
training    A training runs on and on, with a monitor open on it that is halted (SIGSTOP) and goes on, in
            turn, and steps are counted meanwhile. A round compares the steps per second of a stretch in
            which the monitor runs with the mean of those before and after it. What the monitor catches up
            with when it goes on is not counted. The median of the rounds, with the quartiles. Two trainings:
            the digits example as it ships, and a network whose matrix products keep every core busy.
            Next to it: by how much two stretches without a monitor differ, which is the noise; and the
            processor time of the monitor as a share of one core. A training whose threads wait for each
            other loses at most that share.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import importlib.util
import json
import math
import mmap
import os
import platform
import pty
import random
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from burnt.store import RunWriter

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
COLUMNS, LINES = 180, 50
PATIENCE_SECONDS = 60.0
TRAININGS = ("digits", "busy")

Samples = dict[str, list[float]]

# Whether a figure is good, in the units of the table.
TARGETS = {
    "first screen, empty folder, s": 0.7,
    "first screen, 100 runs, s": 1.0,
    "run of 20 metrics and 1,000,000 points, from the shell, s": 1.0,
    "run of 20 metrics and 1,000,000 points, from the list, s": 1.0,
    "6 charts that change, share of a core": 0.10,
    "paused run, share of a core": 0.01,
    "run that has ended, share of a core": 0.01,
    "key in the monitor of a busy training, s": 0.3,
    "key in a second shell next to a busy training, s": 0.3,
    "digits example, slower by": 0.01,
    "every core busy, slower by": 0.03,
}


# --- the monitor in a terminal


class Monitor:
    """`burnt monitor` in a pseudo-terminal; its output is kept until `seen` asks for it."""

    def __init__(
        self, folder: Path, command: list[str] | None = None, *, own_session: bool = False, **env: str
    ) -> None:
        self.began = time.perf_counter()
        environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", **env}
        for name in "NO_COLOR", "COLUMNS", "LINES":  # the size is that of the terminal
            environment.pop(name, None)
        self._terminal, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        # Linux may weigh priorities within a session only: by default it is the training's.
        self._process = subprocess.Popen(
            command or [sys.executable, "-m", "burnt", "monitor", str(folder)],
            stdin=inside,
            stdout=inside,
            stderr=inside,
            cwd=ROOT,
            env=environment,
            start_new_session=own_session,
            preexec_fn=(lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)) if own_session else None,
        )
        self.pid = self._process.pid
        os.close(inside)
        self._output = bytearray()
        self._news = threading.Condition()
        self._over = False
        self._thread = threading.Thread(target=self._drain, daemon=True)
        self._thread.start()

    def _drain(self) -> None:
        while True:
            try:
                data = os.read(self._terminal, 1 << 16)
            except OSError:  # what Linux says when the other end is closed
                data = b""
            with self._news:
                self._output += data
                self._over = not data
                self._news.notify_all()
            if not data:
                return

    def wait_for(self, *texts: str) -> float:
        """Seconds since the start, or since the last key, until all of these were written."""
        wanted = [text.encode() for text in texts]
        with self._news:
            while not all(text in self._output for text in wanted):
                left = self.began + PATIENCE_SECONDS - time.perf_counter()
                if self._over or left <= 0 or not self._news.wait(left):
                    written = self._output.decode(errors="replace")
                    raise SystemExit(f"the monitor did not show {texts} but {written[-2000:]!r}")
            return time.perf_counter() - self.began

    def press(self, keys: bytes) -> None:
        """Press keys, and forget what was written before."""
        with self._news:
            self._output.clear()
        self.began = time.perf_counter()
        os.write(self._terminal, keys)

    def cpu_seconds(self) -> float:
        times = psutil.Process(self.pid).cpu_times()
        return times.user + times.system

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        self._thread.join(5)
        os.close(self._terminal)


@contextlib.contextmanager
def monitor(folder: Path, command: list[str] | None = None, **options: Any) -> Iterator[Monitor]:
    opened = Monitor(folder, command, **options)
    try:
        yield opened
    finally:
        opened.close()


# --- runs to look at


def long_run(folder: Path, metrics: int, points: int) -> None:
    """A run of so many metrics with so many points in all."""
    generator = random.Random(0)
    noise = [generator.gauss(0, 0.05) for _ in range(997)]
    with RunWriter.create(folder) as run:
        for step in range(1, points // metrics + 1):
            value = math.exp(-step / points * metrics * 4) + noise[step % 997]
            run.log(step, 1 + step // 1000, {f"metric_{i:02}": value + i for i in range(metrics)})
            if step % 2000 == 0:
                run.flush(PATIENCE_SECONDS)


def many_runs(root: Path, count: int) -> None:
    for number in range(count):
        with RunWriter.create(root / f"run-{number:03}", config={"seed": number}) as run:
            for step in range(1, 101):
                run.log(step, 1, {"loss": 1 / step, "accuracy": 1 - 1 / step})


class Growing:
    """A run of 6 metrics that grows 20 times a second until the end of the block."""

    def __init__(self, folder: Path) -> None:
        self._run = RunWriter.create(folder)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._step = 0
        for _ in range(4000):
            self._log()
        self._run.flush(PATIENCE_SECONDS)

    def _log(self) -> None:
        self._step += 1
        value = math.exp(-self._step / 3000) + random.gauss(0, 0.03)
        self._run.log(self._step, 1, {f"metric_{i}": value * (i + 1) for i in range(6)})
        self._run.progress(self._step, 1, total_steps=1_000_000)

    def _work(self) -> None:
        while not self._stopping.wait(0.05):
            self._log()

    def __enter__(self) -> Growing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._run.close("finished")


# --- opening


def opening(root: Path, quick: bool) -> Samples:
    runs, points, repeats = (5, 20_000, 1) if quick else (100, 1_000_000, 7)
    (root / "empty").mkdir()
    many_runs(root / "many", runs)
    long_run(root / "one" / "long", 20, points)
    found: Samples = {name: [] for name in list(TARGETS)[:4]}
    found |= {_processor(name): [] for name in found}
    for _ in range(repeats):
        for folder, name, texts in (
            ("empty", "first screen, empty folder, s", ["No runs in"]),
            ("many", "first screen, 100 runs, s", [f"{runs} runs", f"run-{runs - 1:03}"]),
            ("one/long", "run of 20 metrics and 1,000,000 points, from the shell, s", ["metric_00", "⠒⠒⠒"]),
        ):
            with monitor(root / folder) as app:
                found[name].append(app.wait_for(*texts))
                found[_processor(name)].append(app.cpu_seconds())
        with monitor(root / "one") as app:
            app.wait_for("long")
            time.sleep(1.0)
            before = app.cpu_seconds()
            app.press(b"\r")
            name = "run of 20 metrics and 1,000,000 points, from the list, s"
            found[name].append(app.wait_for("metric_00", "⠒⠒⠒"))
            found[_processor(name)].append(app.cpu_seconds() - before)
    return found


def _processor(name: str) -> str:
    return f"{name.removesuffix(', s')}, processor, s"


# --- load


def load(root: Path, quick: bool) -> Samples:
    seconds, repeats = (1.0, 1) if quick else (10.0, 3)
    found: Samples = {name: [] for name in list(TARGETS)[4:7]}

    def share(folder: Path, texts: list[str]) -> float:
        with monitor(folder) as app:
            app.wait_for(*texts)
            time.sleep(seconds / 4)
            before, start = app.cpu_seconds(), time.perf_counter()
            time.sleep(seconds)
            return (app.cpu_seconds() - before) / (time.perf_counter() - start)

    charts = [f"metric_{i}" for i in range(6)]
    for number in range(repeats):
        with Growing(root / f"growing-{number}"):
            found["6 charts that change, share of a core"].append(share(root / f"growing-{number}", charts))
        found["run that has ended, share of a core"].append(share(root / f"growing-{number}", charts))
        paused = RunWriter.create(root / f"paused-{number}")
        for step in range(1, 1001):
            paused.log(step, 1, dict.fromkeys(charts, 1 / step))
        paused.progress(1000, 1, activity="paused")
        paused.flush(PATIENCE_SECONDS)
        found["paused run, share of a core"].append(share(root / f"paused-{number}", charts))
        paused.close("finished")
    return found


# --- keys


def keys(root: Path, quick: bool) -> Samples:
    """Press keys in both monitors of one training."""
    folder, counter = root / "training-keys", root / "keys.steps"
    Steps(counter)
    train = [sys.executable, str(Path(__file__)), "--train", "busy", str(folder), str(counter)]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    found: Samples = {name: [] for name in list(TARGETS)[7:9]}
    with monitor(folder, train, own_session=True, BURNT_MONITOR="tui", PYTHONPATH=path) as attached:
        attached.wait_for("loss", "train", "⠒")
        with monitor(folder, own_session=True) as second:
            second.wait_for("loss", "train", "⠒")
            for number in range(3 if quick else 20):
                for app, name in zip((attached, second), found, strict=True):
                    for key, shown in ((b"2", "better"), (b"7", "optimizer")):
                        time.sleep(random.uniform(0.5, 1.5))
                        app.press(key)
                        seconds = app.wait_for(shown)
                        if number:  # the first time, the pane is created
                            found[name].append(seconds)
            attached.press(b"q")
    return found


# --- what a training loses


class TrainingError(Exception):
    """The training that was to be watched did not run."""


class Steps:
    """A count of steps that another process reads."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(8))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 8)

    def add(self) -> None:
        (count,) = struct.unpack("q", self._memory[:8])
        self._memory[:8] = struct.pack("q", count + 1)

    @property
    def count(self) -> int:
        (count,) = struct.unpack("q", self._memory[:8])
        return int(count)


def train(name: str, folder: Path, counter: Path) -> None:
    """Train until somebody kills the process."""
    import torch

    from burnt.train import Learner, SupervisedTraining

    steps = Steps(counter)

    def counting(step: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            steps.add()
            return step(*arguments)

        return counted

    if name == "digits":
        path = ROOT / "examples" / "digits" / "train.py"
        spec = importlib.util.spec_from_file_location("digits", path)
        assert spec is not None
        assert spec.loader is not None
        digits = sys.modules["digits"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(digits)
        digits.Digits.training_step = counting(digits.Digits.training_step)
        digits.main(digits.TrainConfig(epochs=1_000_000, folder=folder, monitor="off"))
        return
    from burnt import optim
    from burnt.data import Batch, Loader, TensorDataset
    from burnt.train import ClassificationOutput
    from burnt.train.metrics import Loss

    torch.set_num_threads(os.cpu_count() or 1)
    model = torch.nn.Sequential(torch.nn.Linear(1024, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 10))

    def step(model: torch.nn.Module, batch: Batch) -> ClassificationOutput:
        logits = model(batch.inputs)
        loss = torch.nn.functional.cross_entropy(logits, batch.labels)
        return ClassificationOutput(loss, logits, batch.labels)

    data = TensorDataset(inputs=torch.randn(4096, 1024), labels=torch.randint(0, 10, (4096,)))
    SupervisedTraining(
        folder,
        train=Loader(data, 256, shuffle=True),
        duration="1000000 epochs",
        metrics=[Loss()],
        monitor=os.environ.get("BURNT_MONITOR", "off"),
    ).run(Learner(model, optim.AdamW(weight_decay=0.01), 1e-3, step=counting(step)))


def training(root: Path, quick: bool) -> Samples:
    rounds, seconds = (1, 0.5) if quick else (30, 6.0)
    labels = dict(zip(TRAININGS, list(TARGETS)[9:], strict=True))
    found: Samples = {}
    for name, label in labels.items():
        if name == "digits" and importlib.util.find_spec("sklearn") is None:
            print("  digits example: scikit-learn is not installed")
            continue
        folder, counter = root / f"training-{name}", root / f"{name}.steps"
        Steps(counter)
        log = (root / f"{name}.log").open("wb")
        command = [sys.executable, str(Path(__file__)), "--train", name, str(folder), str(counter)]
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": paths}
        child = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, env=environment)
        try:
            slower, noise, share = _alternated(child, folder, Steps(counter), rounds, seconds)
            found[label] = slower
            subject = label.removesuffix(", slower by")
            found[f"{subject}, two stretches without a monitor differ by"] = noise
            found[f"{subject}, the monitor's share of a core"] = share
        except TrainingError as error:
            written = (root / f"{name}.log").read_text(errors="replace")
            raise SystemExit(f"{error}\n{written[-2000:]}") from error
        finally:
            child.kill()
            child.wait()
            log.close()
    return found


def _alternated(
    child: subprocess.Popen[bytes], folder: Path, steps: Steps, rounds: int, seconds: float
) -> tuple[list[float], list[float], list[float]]:
    """In each round: how much slower the training was, how much it differs without, the monitor's share."""

    def pace() -> float:
        before, start = steps.count, time.perf_counter()
        time.sleep(seconds)
        if child.poll() is not None:
            raise TrainingError(f"the training ended with {child.returncode}")
        return (steps.count - before) / (time.perf_counter() - start)

    # The first steps compile kernels.
    deadline = time.perf_counter() + 5 * PATIENCE_SECONDS
    while steps.count < 50:
        if child.poll() is not None or time.perf_counter() > deadline:
            raise TrainingError("the training did not begin")
        time.sleep(0.1)
    slower, noise, share = [], [], []
    with monitor(folder) as app:
        app.wait_for("loss", "train")
        time.sleep(seconds / 3)
        os.kill(app.pid, signal.SIGSTOP)
        without = pace()
        for _ in range(rounds):
            os.kill(app.pid, signal.SIGCONT)
            time.sleep(seconds / 3)
            before, start = app.cpu_seconds(), time.perf_counter()
            with_it = pace()
            share.append((app.cpu_seconds() - before) / (time.perf_counter() - start))
            os.kill(app.pid, signal.SIGSTOP)
            after = pace()
            slower.append((without + after) / 2 / with_it - 1)
            noise.append(abs(without / after - 1))
            without = after
        os.kill(app.pid, signal.SIGCONT)
    return slower, noise, share


# --- the table


def machine() -> dict[str, Any]:
    from importlib.metadata import version

    return {
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "textual": version("textual"),
    }


def summary(samples: list[float]) -> dict[str, Any]:
    low, high = min(samples), max(samples)
    if len(samples) >= 4:
        low, _, high = statistics.quantiles(samples, n=4)
    return {"median": statistics.median(samples), "low": low, "high": high, "samples": samples}


def text(name: str, value: float) -> str:
    return f"{value:.2f} s" if name.endswith(", s") else f"{value * 100:.1f} %"


def rows(results: Mapping[str, Any]) -> list[tuple[str, str, str, str, str]]:
    return [
        (
            name.removesuffix(", s"),
            text(name, row["median"]),
            f"{text(name, row['low'])} to {text(name, row['high'])}",
            text(name, row["target"]) if "target" in row else "",
            ("yes" if row["met"] else "no") if "met" in row else "",
        )
        for name, row in results["rows"].items()
    ]


HEADS = ("", "median", "quartiles", "target", "met")


def table(results: Mapping[str, Any]) -> str:
    cells = [HEADS, *rows(results)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(HEADS))]
    return "\n".join(
        f"{row[0]:<{widths[0]}}  " + "  ".join(f"{c:>{w}}" for c, w in zip(row[1:], widths[1:], strict=True))
        for row in cells
    )


def markdown(results: Mapping[str, Any]) -> str:
    facts = ", ".join(f"{name} {value}" for name, value in results["machine"].items())
    lines = [f"`python benchmarks/monitor.py --save`: {facts}", ""]
    lines += ["| " + " | ".join(row) + " |" for row in (HEADS, ("---",) * len(HEADS), *rows(results))]
    return "\n".join(lines) + "\n"


PARTS: dict[str, Callable[[Path, bool], Samples]] = {
    "opening": opening,
    "load": load,
    "keys": keys,
    "training": training,
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="what the terminal monitor costs")
    parser.add_argument("--quick", action="store_true", help="small and short: shows that it runs, no more")
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}/monitor.json and .md")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--only", default=",".join(PARTS), help="parts with commas: " + ", ".join(PARTS))
    parser.add_argument("--train", nargs=3, metavar=("NAME", "FOLDER", "COUNTER"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.train:
        name, folder, counter = options.train
        train(name, Path(folder), Path(counter))
        return
    if options.save and options.quick:
        parser.error("figures of --quick say nothing")
    if unknown := set(options.only.split(",")) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}, but {', '.join(PARTS)}")
    results: dict[str, Any] = {"machine": machine(), "rows": {}}
    for part in options.only.split(","):
        with tempfile.TemporaryDirectory() as folder:
            for name, samples in PARTS[part](Path(folder), options.quick).items():
                row = results["rows"][name] = summary(samples)
                if name in TARGETS:
                    row |= {"target": TARGETS[name], "met": row["median"] <= TARGETS[name]}
    print(", ".join(f"{name} {value}" for name, value in results["machine"].items()) + "\n")
    print(table(results))
    targets = [options.json] if options.json else []
    if options.save:
        targets.append(RESULTS / "monitor.json")
        (RESULTS / "monitor.md").write_text(markdown(results), encoding="utf-8")
    for path in targets:
        path.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
