"""Loading batches: burnt's Loader next to torch's DataLoader, on the same dataset, transforms and batches.

    python benchmarks/loader.py [--quick] [--workers 2] [--images 512] [--rounds 7]

Rows: an image folder of generated JPEGs, decoded and resized by Pillow in worker processes and in threads;
tensors that workers only copy, which shows what a batch costs to send; tensors in memory without workers;
and how long it takes to open a batch in the middle of an epoch of a million items. Loaders keep workers,
and alternate in one process in a random order; a ratio is the median over the rounds of DataLoader's time by
burnt's (above 1: burnt is faster), with its quartiles. That both give the same batches is checked first.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from burnt.data import Buckets, Loader, TensorDataset, WeightedSampler

BATCH = 32


class Images:
    """A folder of JPEGs, as float tensors of 3 x 128 x 128."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.iterdir())

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.paths[index]) as image:
            pixels = np.array(image.convert("RGB").resize((128, 128), Image.Resampling.BILINEAR))
        return torch.from_numpy(pixels).permute(2, 0, 1).float() / 255, index


class Copies:
    """Items that are already there: 3 x 64 x 64 floats."""

    def __init__(self, length: int) -> None:
        self.x = torch.randn(length, 3, 64, 64)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.x[index], index


class Millions:
    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> int:
        return index


def write_images(folder: Path, count: int) -> None:
    generator = np.random.default_rng(0)
    for number in range(count):
        # Noise at a low resolution: it compresses like a photograph.
        small = Image.fromarray(generator.integers(0, 256, (40, 50, 3), dtype=np.uint8))
        small.resize((500, 400), Image.Resampling.BICUBIC).save(folder / f"{number:05}.jpg", quality=90)


def seconds(batches: Iterable[Any]) -> float:
    start = time.perf_counter()
    for _ in batches:
        pass
    return time.perf_counter() - start


def compare(name: str, ours: Iterable[Any], theirs: Iterable[Any], rounds: int) -> str:
    for mine, other in zip(ours, theirs, strict=True):  # also starts the workers
        assert all(map(torch.equal, mine, other)), name
    times: dict[str, list[float]] = {"burnt": [], "torch": []}
    for _ in range(rounds):
        rivals = [("burnt", ours), ("torch", theirs)]
        random.shuffle(rivals)
        for rival, loader in rivals:
            times[rival].append(seconds(loader))
    ratios = sorted(t / b for t, b in zip(times["torch"], times["burnt"], strict=True))
    low, _, high = statistics.quantiles(ratios, n=4)
    batches = len(ours)  # type: ignore[arg-type]
    per_batch = [statistics.median(column) / batches * 1e6 for column in times.values()]
    return (
        f"{name:<42} {per_batch[0]:>10.0f} {per_batch[1]:>10.0f} "
        f"{statistics.median(ratios):>7.2f} ({low:.2f} - {high:.2f})"
    )


def opening(name: str, loader: Loader[Any]) -> str:
    start = time.perf_counter()
    next(loader.epoch(3, 20_000))
    return f"{name:<42} {(time.perf_counter() - start) * 1e3:>10.0f} ms"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="how burnt's Loader compares with torch's DataLoader")
    parser.add_argument("--quick", action="store_true", help="small and few: shows that it runs, no more")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args(arguments)
    images, rounds = (64, 2) if options.quick else (options.images, options.rounds)
    warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
    torch.set_num_threads(1)

    def theirs(dataset: Any, workers: int) -> Any:
        return torch.utils.data.DataLoader(
            dataset, BATCH, num_workers=workers, persistent_workers=bool(workers)
        )

    workers = options.workers
    print(f"torch {torch.__version__}, batches of {BATCH}; microseconds per batch, and torch / burnt")
    print(f"{'':<42} {'burnt':>10} {'torch':>10} {'ratio':>7}")
    with tempfile.TemporaryDirectory() as folder:
        write_images(Path(folder), images)
        data: Any = Images(Path(folder))
        ours = Loader(data, BATCH, workers=workers)
        print(compare(f"JPEGs, {workers} processes", ours, theirs(data, workers), rounds), flush=True)
        ours = Loader(data, BATCH, workers=f"{workers} threads")
        print(compare(f"JPEGs, {workers} threads (torch: processes)", ours, theirs(data, workers), rounds))
        print(compare("JPEGs, no workers", Loader(data, BATCH), theirs(data, 0), max(rounds // 2, 2)))
    data = Copies(images * 4)
    print(
        compare(
            f"copies, {workers} processes",
            Loader(data, BATCH, workers=workers),
            theirs(data, workers),
            rounds,
        )
    )
    print(compare("copies, no workers", Loader(data, BATCH), theirs(data, 0), rounds), flush=True)
    x = torch.randn(images * 64, 32)
    rows = TensorDataset(x=x, y=torch.arange(len(x)))
    in_memory = Loader(rows, BATCH, batcher=lambda batch: (batch.x, batch.y))
    pairs = torch.utils.data.TensorDataset(x, torch.arange(len(x)))
    print(compare("tensors in memory, whole batches", in_memory, theirs(pairs, 0), rounds), flush=True)
    print("\nthe first batch after batch 20,000 of an epoch of 1,000,000 items")
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, 512, 1_000_000)
    for name, settings in {
        "shuffled": {"shuffle": True},
        f"shuffled, {workers} processes": {"shuffle": True, "workers": workers},
        "weighted": {"sampler": WeightedSampler(generator.random(1_000_000))},
        "buckets by length": {"shuffle": True, "buckets": Buckets(lengths)},
    }.items():
        print(opening(name, Loader(Millions(), BATCH, **settings)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
