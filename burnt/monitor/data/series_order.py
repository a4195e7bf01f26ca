"""The order in which metrics and splits are shown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from burnt.monitor.format import better_direction, natural_key
from burnt.store import Series

_SPLITS = ("train", "valid")
# Metrics of the training process are listed after metrics of the model.
TRAINING_METRICS = (
    *("learning_rate", "steps_per_second", "samples_per_second", "data_wait_share"),
    "rank_wait_share",
)


def metrics_in_order(series: Sequence[Series]) -> list[str]:
    """Return metric names in display order: loss, with a better direction, others, training metrics.

    Numbers in names are compared as numbers: layer2 comes before layer10.

    >>> names = ("learning_rate/*.bias", "learning_rate", "accuracy", "loss")
    >>> metrics_in_order([Series(name, "train") for name in names])
    ['loss', 'accuracy', 'learning_rate', 'learning_rate/*.bias']
    """

    def rank(name: str) -> tuple[int, list[tuple[int, int | str]]]:
        kind, _, _ = name.partition("/")  # learning_rate/<group>
        if kind in TRAINING_METRICS:
            return 3 + TRAINING_METRICS.index(kind), natural_key(name)
        return 0 if name == "loss" else 1 if better_direction(name) else 2, natural_key(name)

    return sorted({one.name for one in series}, key=rank)


def series_in_order(series: Iterable[Series], *, train_last: bool = False) -> list[Series]:
    """Return series in display order: by metric, then by split, with that of training first or last.

    >>> pairs = [("norm/10", "train"), ("norm/9", "train"), ("loss", "valid"), ("loss", "train")]
    >>> [f"{one.split}/{one.name}" for one in series_in_order([Series(*pair) for pair in pairs])]
    ['train/loss', 'valid/loss', 'train/norm/9', 'train/norm/10']
    """
    series = list(series)
    names = {name: number for number, name in enumerate(metrics_in_order(series))}
    splits = {split: number for number, split in enumerate(splits_in_order(series))}
    if train_last and "train" in splits:
        splits["train"] = len(splits)
    return sorted(series, key=lambda one: (names[one.name], splits[one.split]))


def splits_in_order(series: Iterable[Series]) -> list[str]:
    """Return the splits in display order: train, valid, others by name.

    >>> splits_in_order([Series("loss", split) for split in ("shifted", "valid", "clean", "train")])
    ['train', 'valid', 'clean', 'shifted']
    """

    def rank(split: str) -> tuple[int, list[tuple[int, int | str]]]:
        return _SPLITS.index(split) if split in _SPLITS else len(_SPLITS), natural_key(split)

    return sorted({one.split for one in series}, key=rank)
