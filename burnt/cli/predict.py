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

from burnt._probabilities import classify
from burnt.cli.evaluate import load_data
from burnt.cli.output import UsageError, check_target
from burnt.cli.row_files import SUFFIXES, Rows, rows_of, written
from burnt.cli.run_model import load_model, read_run
from burnt.data.files.image_files import ImageFiles
from burnt.data.files.schema import shorten
from burnt.errors import DataError, quantity

if TYPE_CHECKING:
    from burnt.train.after.loading import RunFiles

_PREDICTION = "prediction"


def run(args: argparse.Namespace) -> int:
    """Predict data and write a row for each item. The code that the run names is imported."""
    try:
        return _run(args)
    except DataError as error:  # what it says of a dataset's options is about the training
        if "= names a column that does not exist" in error.what:
            error.what = "a column of the training's data is missing"
            error.expected, error.found = error.found, str(error.expected or "").removeprefix("one of ")
        if "=" in (error.hint or ""):
            error.hint = "new data has the columns of the training's, written in the same way"
        raise


def _run(args: argparse.Namespace) -> int:
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
    data, rows, dataset = _open(args, files)
    keep = rows.choose(args.keep)
    _, model = load_model(files, args.checkpoint, args.model)
    namer = _Columns(files.classes, files.is_multi_label, files.returns_sigmoid, files.target_names())
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
    for note in _notes(dataset):
        print(note, file=sys.stderr)
    return 0


def _notes(dataset: Any) -> Iterator[str]:
    """Yield what may be wrong with data without an error: other images, other categories."""
    encoding = dataset.encoding() if hasattr(dataset, "encoding") else None
    for column, kind in encoding.kinds.items() if encoding else ():
        if isinstance(kind, ImageFiles) and kind.folder:
            yield f"column {column!r}: images in {kind.place}"
    for column, categories in encoding.known.items() if encoding else ():
        if others := categories.others:
            count, names = quantity(len(others), "value"), shorten(", ".join(map(str, others)))
            yield f"column {column!r}: {count} unknown to the training: {names}"


def _open(args: argparse.Namespace, files: RunFiles) -> tuple[Any, Rows, Any]:
    """Return the data as `burnt.predict` takes it, its own columns, and the dataset of its file."""
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
        return loader, Rows([], lambda names, size: iter(())), None
    table = files.table()
    dataset = table.open(args.data)
    return table.transformed(dataset), rows_of(dataset, args.data), dataset


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
    is_probability: bool
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
        if is_single and self.classes:
            found = classify(values, self.classes, self.is_multi_label, self.is_probability)
            if found is not None:
                labels, shares = found[0], found[1].astype(np.float32)
                cells = {f"probability_{c}": _cells(shares[:, i]) for i, c in enumerate(self.classes)}
                return {_PREDICTION: labels} | cells
        values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
        if values.ndim != 2:
            return {name: _cells(values)}
        count = values.shape[1]
        names = self.targets if is_single and len(self.targets) == count else range(count)
        return {f"{name}_{part}": _cells(values[:, number]) for number, part in enumerate(names)}


def _cells(values: np.ndarray[Any, Any]) -> list[Any]:
    """Return numbers of Python, of float32 those with the fewest digits; NaN as None."""
    if values.dtype.kind != "f" or values.ndim > 1:
        return list(values.tolist())
    return [None if value != value else float(str(value)) for value in values]
