"""The ranks of a run that several processes train: how fast each works, what it waits for, its memory.

Rank 0 writes the run. Each other rank writes a store of its own, ``ranks/N`` in the run's folder, which is a
part of the run: it is never listed, and is removed with it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from burnt.errors import RunError
from burnt.store.reader import RunReader, Series
from burnt.store.schema import DATABASE, RANKS

_READINGS = 20  # the newest, of which means are taken


class RankLoad(NamedTuple):
    """What a rank has written last; times and shares are means of its newest readings.

    `step_seconds` is about the same on all ranks, as each step ends together. `own_seconds` is the part of it
    without the wait for other ranks: the rank where it is longest holds up the others.
    """

    rank: int
    state: str  # of a run, or "unreadable"
    host: str = ""
    step: int | None = None
    step_seconds: float | None = None
    own_seconds: float | None = None
    data_wait_share: float | None = None
    rank_wait_share: float | None = None
    memory_bytes: float | None = None
    gpu_memory_bytes: float | None = None


def rank_folders(folder: str | os.PathLike[str]) -> dict[int, Path]:
    """Return the folders of the ranks other than 0 in a run's folder, by rank."""
    try:
        names = [name for name in os.listdir(Path(folder, RANKS)) if name.isdecimal()]
    except OSError:  # one process trains the run, or it was deleted
        return {}
    folders = {int(name): Path(folder, RANKS, name) for name in sorted(names, key=int)}
    return {rank: path for rank, path in folders.items() if (path / DATABASE).is_file()}


def read_ranks(folder: str | os.PathLike[str]) -> list[RankLoad]:
    """Return the ranks of the newest attempt of a run; empty if one process trains it.

    Those that trained only an earlier attempt, before a resume on fewer ranks, are left out.

    >>> import tempfile
    >>> from burnt.store import RunWriter
    >>> folder = tempfile.mkdtemp()
    >>> for path, share, wait in ((folder, 0.0, 0.75), (f"{folder}/ranks/1", 0.5, 0.0)):
    ...     with RunWriter.create(path, config={"attempt": 1}) as run:
    ...         speed = {"steps_per_second": 2.0, "data_wait_share": share, "rank_wait_share": wait}
    ...         run.log(10, 1, {"loss": 0.5} | speed)
    >>> [(load.rank, load.own_seconds) for load in read_ranks(folder)], slowest(read_ranks(folder))
    ([(0, 0.125), (1, 0.5)], 1)
    """
    others = rank_folders(folder)
    if not others:
        return []
    with RunReader(folder) as reader:
        attempt = reader.newest_attempt()
        loads = [_read(reader, 0, "cuda:0")]
    for rank, path in others.items():
        try:
            with RunReader(path) as reader:
                config = reader.config() or {}
                if config.get("attempt") == attempt:
                    loads.append(_read(reader, rank, str(config.get("device"))))
        except RunError:  # damaged, or just being created
            loads.append(RankLoad(rank, "unreadable"))
    return loads if len(loads) > 1 else []


def slowest(loads: list[RankLoad]) -> int | None:
    """Return the rank whose steps take longest without the wait for others; None if that is not known."""
    known = [load for load in loads if load.own_seconds is not None]
    return max(known, key=lambda load: load.own_seconds or 0.0).rank if len(known) > 1 else None


def _read(reader: RunReader, rank: int, device: str) -> RankLoad:
    newest, progress = reader.attempts()[-1], reader.progress()
    heads, samples = reader.heads(), reader.system_samples(newest=1)

    def mean(name: str, *, inverse: bool = False) -> float | None:
        head = heads.get(Series(name, "train"))
        if head is None or not head.written:
            return None
        rows = reader.raw_points(name, "train", newest.id, max(head.written - _READINGS, 0))
        values = [
            1 / point.value if inverse else point.value for _, point in rows if point.value or not inverse
        ]
        return sum(values) / len(values) if values else None

    step, wait = mean("steps_per_second", inverse=True), mean("rank_wait_share")
    memory = samples[-1].values if samples and samples[-1].attempt == newest.id else {}
    return RankLoad(
        rank,
        reader.state(),
        newest.host,
        None if progress is None else progress.step,
        step,
        None if step is None or wait is None else step * (1.0 - wait),
        mean("data_wait_share"),
        wait,
        memory.get("process.rss_bytes"),
        memory.get(f"{device.replace('cuda:', 'gpu')}.memory_used_bytes"),
    )
