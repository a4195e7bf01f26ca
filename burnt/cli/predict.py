"""`burnt predict RUN --data new.csv -o out.csv`: the outputs of a run's model for new data. Imports torch."""

from __future__ import annotations

import argparse
import itertools
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from burnt._probabilities import probabilities
from burnt.cli.evaluate import load_data
from burnt.cli.output import UsageError, check_target
from burnt.cli.row_files import SUFFIXES, Rows, rows_of, written
from burnt.cli.run_model import load_model, read_run
from burnt.errors import DataError, quantity

if TYPE_CHECKING:
    from burnt.train.after.loading import RunFiles

_PREDICTION = "prediction"


def run(args: argparse.Namespace) -> int:
    """Predict data and write a row for each item. The code that the run names is imported."""
    from burnt.device import as_device
    from burnt.train.after.prediction import predict

    files = read_run(args.run)
    files.checkpoint(args.checkpoint)  # raises before the data is read
    device = as_device(args.device)
    is_file = args.out not in (None, "-")
    if is_file:
        path = Path(args.out)
        if path.suffix not in SUFFIXES:
            raise UsageError(
                "the kind of a file is not known by its name", expected=", ".join(SUFFIXES), found=args.out
            )
        check_target(path, replace=args.force)
    data, rows = _open(args, files)
    keep = rows.choose(args.keep)
    _, model = load_model(files, args.checkpoint, args.model)
    namer = _Columns(files.classes, files.is_multi_label, files.target_names())
    is_loader = callable(getattr(data, "epoch", None))
    size = None if is_loader else args.batch_size
    outputs = predict(model.to(device), data, size, stream=True)
    count = 0
    with written(args.out) as write:
        chunks = rows.read(keep, args.batch_size) if keep else itertools.repeat(None)
        for chunk, columns in _aligned(chunks, map(namer.columns, outputs)):
            taken = [name for name in columns if name in keep]
            if taken:
                raise UsageError(
                    "the data has a column of the name of a prediction",
                    found=repr(taken[0]),
                    hint="--keep A,B keeps other columns only",
                )
            write(chunk, columns)
            count += len(next(iter(columns.values())))
    if is_file:
        print(f"{args.out}: {quantity(count, 'row')}", file=sys.stderr)
    return 0


def _open(args: argparse.Namespace, files: RunFiles) -> tuple[Any, Rows]:
    """Return the data as `burnt.predict` takes it, and its own columns."""
    from burnt.data.dataset import check_same_names

    module, colon, _ = args.data.rpartition(":")
    if colon and module and not Path(args.data).exists():
        loaders = load_data(args.data, args.batch_size, str(files.folder))
        if len(loaders) != 1:
            raise UsageError(
                f"{args.data} has several data sets",
                expected="one, for one file of predictions",
                found=", ".join(loaders),
            )
        ((split, loader),) = loaders.items()
        check_same_names(loader, split, files.classes, files.categories)
        if args.keep:
            raise UsageError("--keep keeps columns of a file", found=f"--data {args.data}")
        return loader, Rows([], lambda names, size: iter(()))
    table = files.table()
    dataset = table.open(args.data)
    return dataset, rows_of(dataset, args.data, table.csv)


def _aligned(
    chunks: Iterator[Any], outputs: Iterable[dict[str, list[Any]]]
) -> Iterator[tuple[Any, dict[str, list[Any]]]]:
    """Yield the chunks of rows, None for rows without columns, with their outputs."""
    for columns in outputs:
        count = len(next(iter(columns.values())))
        chunk = next(chunks, ())
        if chunk is not None and len(chunk) != count:
            raise DataError(
                "the model's output has not a row for each item",
                expected=quantity(len(chunk), "row"),
                found=quantity(count, "row"),
            )
        yield [{}] * count if chunk is None else chunk, columns


@dataclass(frozen=True)
class _Columns:
    """Names the outputs of a model: classes and their probabilities, or values.

    `targets` are the names of the columns that the model was trained to predict, where they are known.
    """

    classes: Sequence[str] | None
    is_multi_label: bool
    targets: Sequence[str]

    def columns(self, output: Any) -> dict[str, list[Any]]:
        """Return the columns of a batch of outputs on the CPU, as lists."""
        from burnt.inspect.specs import named_tensors

        tensors = named_tensors(output, _PREDICTION)
        found: dict[str, list[Any]] = {}
        for name, tensor in tensors.items():
            if tensor.dim() == 0:
                raise DataError(
                    "the model's output has not a row for each item", where=name, found="a single number"
                )
            values = tensor.float().numpy() if tensor.is_floating_point() else tensor.numpy()
            found |= self._of_tensor(
                re.sub(r"\W+", "_", name).strip("_"), values, is_single=len(tensors) == 1
            )
        return found

    def _of_tensor(self, name: str, values: np.ndarray[Any, Any], is_single: bool) -> dict[str, list[Any]]:
        values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
        if is_single and self.classes and values.dtype.kind == "f":
            classes = list(self.classes)
            if values.ndim == 1 and len(classes) == 2:  # the score of the second class
                second = _sigmoid(values)
                return _of_classes(np.stack([1 - second, second], 1), classes)
            if values.ndim == 2 and values.shape[1] == len(classes):
                if self.is_multi_label:
                    return _of_labels(_sigmoid(values), classes)
                return _of_classes(probabilities(values), classes)
        if values.ndim != 2:
            return {name: _cells(values)}
        count = values.shape[1]
        names = self.targets if is_single and len(self.targets) == count else range(count)
        return {f"{name}_{part}": _cells(values[:, number]) for number, part in enumerate(names)}


def _of_classes(shares: np.ndarray[Any, Any], classes: Sequence[str]) -> dict[str, list[Any]]:
    best = shares.argmax(1).tolist()
    are_known = np.isfinite(shares).all(1).tolist()
    names = [classes[number] if is_known else None for number, is_known in zip(best, are_known, strict=True)]
    return {_PREDICTION: names} | _shares(shares, classes)


def _of_labels(shares: np.ndarray[Any, Any], classes: Sequence[str]) -> dict[str, list[Any]]:
    rows = (shares >= 0.5).tolist()
    labels = [[name for name, is_on in zip(classes, row, strict=True) if is_on] for row in rows]
    return {_PREDICTION: labels} | _shares(shares, classes)


def _shares(shares: np.ndarray[Any, Any], classes: Sequence[str]) -> dict[str, list[Any]]:
    cells = shares.astype(np.float32)
    return {f"probability_{name}": _cells(cells[:, number]) for number, name in enumerate(classes)}


def _sigmoid(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return probabilities from logits; what is between 0 and 1 throughout is taken for probabilities."""
    wide: np.ndarray[Any, Any] = values.astype(np.float64)
    if ((wide >= 0) & (wide <= 1)).all():
        return wide
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-wide)))


def _cells(values: np.ndarray[Any, Any]) -> list[Any]:
    """Return numbers of Python, of float32 those with the fewest digits; NaN as None."""
    if values.dtype.kind != "f" or values.ndim > 1:
        return list(values.tolist())
    return [None if value != value else float(str(value)) for value in values]
