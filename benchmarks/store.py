"""What the run store costs: a `log` call on the training's thread, bytes of file, reading a long series.

    python benchmarks/store.py [--points 1000000]

Targets: at most 20 microseconds for a call with 5 metrics, less than 0.2 s to read 1,000,000 points as 2,000.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from burnt.store import RunReader, RunWriter
from burnt.train.reporting.system import SystemSampler

NAMES = ("loss", "accuracy", "rate", "norm", "seconds")


def log_calls(root: Path, calls: int, work_seconds: float) -> None:
    """Time calls between stretches of Python that stand for a training step."""
    run = RunWriter.create(root / f"calls-{work_seconds}")
    times = []
    begin = time.perf_counter()
    for step in range(1, calls + 1):
        values = dict.fromkeys(NAMES, step * 0.001)
        start = time.perf_counter()
        run.log(step, 1, values)
        stop = time.perf_counter()
        times.append(stop - start)
        while time.perf_counter() - stop < work_seconds:
            pass
    wall = time.perf_counter() - begin
    begin = time.perf_counter()
    run.flush(120)
    behind = time.perf_counter() - begin
    run.close("finished")
    times.sort()
    print(
        f"log of 5 metrics, {work_seconds * 1e6:5.0f} us apart"
        f"  median {statistics.median(times) * 1e6:6.2f} us"
        f"  mean {statistics.fmean(times) * 1e6:6.2f} us"
        f"  99.9 % {times[int(len(times) * 0.999)] * 1e6:8.1f} us"
        f"  {(run.folder / 'run.db').stat().st_size / calls / len(NAMES):.0f} bytes a point"
        f"  all {wall / calls * 1e6:7.1f} us a step, then {behind:.2f} s behind, {run.dropped} dropped"
    )


def long_series(root: Path, points: int) -> None:
    """File size and reading time of one long series."""
    folder = root / "long"
    run = RunWriter.create(folder)
    begin = time.perf_counter()
    for step in range(1, points + 1):
        run.log(step, step // 1000, {"loss": (step * 7919 % 10_007) / 10_007})
        if step % 20_000 == 0:
            run.flush(120)
    run.close("finished")
    wall = time.perf_counter() - begin
    size = (folder / "run.db").stat().st_size
    print(
        f"file  {size / points:.1f} bytes a point   written at {points / wall:,.0f} points/s"
        f"   dropped {run.dropped}"
    )
    reader = RunReader(folder)
    for max_points in (200, 2_000, 20_000):
        times = []
        for _ in range(5):
            start = time.perf_counter()
            found = reader.points("loss", max_points=max_points)
            times.append(time.perf_counter() - start)
        label = f"read {points:,} points as at most {max_points:,}"
        print(f"{label:<48} {statistics.median(times) * 1e3:8.1f} ms   {len(found.steps)} returned")


def system_samples() -> None:
    """What a system sample costs."""
    sampler = SystemSampler(lambda sample: None, folder=".")
    times = []
    for _ in range(200):
        start = time.perf_counter()
        sampler.sample()
        times.append(time.perf_counter() - start)
    print(f"system sample  median {statistics.median(times) * 1e6:.0f} us")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--points", type=int, default=1_000_000, help="length of the long series")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log_calls(Path(folder), 20_000, 0.0)
        log_calls(Path(folder), 20_000, 100e-6)
        log_calls(Path(folder), 5_000, 1e-3)
        long_series(Path(folder), arguments.points)
    system_samples()


if __name__ == "__main__":
    main()
