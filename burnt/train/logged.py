"""What steps log besides metrics: scalars, images, tables, histograms and texts, into the run store.

`log` works wherever the code runs, in a model's forward pass too; outside of a training it does nothing.
Scalars stay on their device until the metrics are read, so that logging one never waits for the device.
"""

from __future__ import annotations

import dataclasses
import numbers
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from burnt.codegen.verification import listeners
from burnt.errors import MetricError
from burnt.store import RunWriter
from burnt.train.other_trainers import LOG_OPTIONS

if TYPE_CHECKING:
    from burnt.train.ranks.ranks import Ranks

_ACTIVE: ContextVar[StepLog | None] = ContextVar("_ACTIVE", default=None)


@dataclasses.dataclass(frozen=True)
class Image:
    """An image to log.

    Args:
        pixels: ``[3, H, W]`` or ``[1, H, W]`` or ``[H, W]``, as uint8 or as floating-point numbers from 0
            to 1 (values outside are clipped); or ``[n, C, H, W]``, drawn side by side. A tensor or an array.

    Raises:
        MetricError: another shape or dtype.

    >>> Image(torch.rand(4, 1, 8, 8)).png()[:4]
    b'\\x89PNG'
    """

    pixels: Any

    def __post_init__(self) -> None:
        pixels = torch.as_tensor(self.pixels).detach()
        if pixels.dim() == 2:
            pixels = pixels[None]
        channels = pixels.shape[-3] if pixels.dim() in (3, 4) else 0
        if channels not in (1, 3) or 0 in pixels.shape:
            raise MetricError(
                "this is not an image",
                expected="pixels of shape [H, W], [1, H, W], [3, H, W] or [n, C, H, W]",
                found=f"shape {tuple(torch.as_tensor(self.pixels).shape)}",
                hint="channels come first: pixels.permute(2, 0, 1)" if pixels.shape[-1:] == (3,) else None,
            )
        if pixels.dtype != torch.uint8 and not pixels.is_floating_point():
            raise MetricError(
                "this is not an image",
                expected="uint8, or floating-point numbers from 0 to 1",
                found=pixels.dtype,
            )
        # A copy: the step may go on to change its tensor.
        object.__setattr__(self, "pixels", pixels.clone())

    def png(self) -> bytes:
        """Return the bytes of a PNG file."""
        pixels = self.pixels
        if pixels.dim() == 4:
            pixels = torch.cat(list(pixels), dim=-1)
        if pixels.is_floating_point():
            pixels = pixels.float().nan_to_num(0.0).clamp(0, 1).mul(255).round().to(torch.uint8)
        return _encode_png(pixels.permute(1, 2, 0).cpu().contiguous().numpy())

    def record(self, writer: RunWriter, name: str, step: int) -> None:
        """Write the image to the run store."""
        writer.record_image(name, self.png(), step)


@dataclasses.dataclass(frozen=True)
class Table:
    """A table to log.

    Args:
        columns: the names of the columns.
        rows: the rows, each with a value per column.

    Raises:
        MetricError: a row has another length than `columns`.

    >>> Table(["word", "count"], [["to", 2], ["be", 2]]).columns
    ('word', 'count')
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        object.__setattr__(self, "rows", [list(row) for row in self.rows])
        wrong = next((row for row in self.rows if len(row) != len(self.columns)), None)
        if wrong is not None:
            raise MetricError(
                "a row does not fit the columns of its table",
                expected=f"{len(self.columns)} values: {', '.join(self.columns)}",
                found=f"{len(wrong)} values: {wrong}"[:200],
            )

    def record(self, writer: RunWriter, name: str, step: int) -> None:
        """Write the table to the run store."""
        writer.record_table(name, self.columns, self.rows, step)


@dataclasses.dataclass(frozen=True)
class Histogram:
    """The distribution of values to log.

    Args:
        values: a tensor or an array of any shape. Values that are not finite are left out.
        bins: the number of bins, of equal width between the smallest and the largest value.

    Raises:
        MetricError: `bins` is below 1, or the values are not numbers.

    >>> Histogram(torch.tensor([0.0, 0.1, 0.2, 1.0]), bins=2).counts()
    ([3.0, 1.0], [0.0, 0.5, 1.0])
    """

    values: Any
    bins: int = 64

    def __post_init__(self) -> None:
        if self.bins < 1:
            raise MetricError("a histogram needs bins", expected="at least 1", found=self.bins)
        values = torch.as_tensor(self.values).detach()
        if values.is_complex():
            raise MetricError("a histogram needs real numbers", expected="a real dtype", found=values.dtype)
        object.__setattr__(self, "values", values.double() if values.device.type != "mps" else values.float())

    def counts(self) -> tuple[list[float], list[float]]:
        """Return the counts and the bins' edges, one more."""
        values = self.values.reshape(-1).cpu()
        counts, edges = np.histogram(values[values.isfinite()].numpy(), self.bins)
        return counts.astype(float).tolist(), edges.tolist()

    def record(self, writer: RunWriter, name: str, step: int) -> None:
        """Write the histogram to the run store."""
        writer.record_histogram(name, *self.counts(), step)


Artefact = Image | Table | Histogram


def log(values: Mapping[str, Any] | None = None, /, *more: object, **named: Any) -> None:
    """Log values from a step, a model's forward pass or a callback. Outside of a training, do nothing.

    Args:
        values: name -> value: a number or a scalar tensor, ``[]``, of which the mean is recorded whenever the
            metrics are read; or an `Image`, a `Table`, a `Histogram` or a text (a `str`, such as a generated
            sample), recorded at the steps after which the metrics are read, the first of each name, and in a
            validation for its first batch. Of several processes, those of rank 0 are recorded.
        named: the same, for names that are identifiers.

    Raises:
        MetricError: a value is something else, or a metric has this name; or the call is one of Lightning's
            ``self.log``, whose options burnt does not have.

    >>> import burnt
    >>> burnt.log(gate=0.5)  # no training: nothing happens
    """
    is_mapping = values is None or isinstance(values, Mapping)
    if more or not is_mapping or not LOG_OPTIONS.isdisjoint(named):
        raise MetricError(
            "log takes names and their values, and no options",
            expected="log(error=0.1) or log({'error/mean': 0.1})",
            found=", ".join([*([] if values is None else [repr(values)]), *map("{}=".format, named)]),
            hint="the mean since the last reading is recorded, and in a validation that of all its batches",
        )
    active = _ACTIVE.get()
    if active is not None:
        active.add({**(values or {}), **named})


class StepLog:
    """What is logged during a training, until it is written.

    `taken` are the names of the metrics, which cannot be logged. `step` returns the step in progress, or the
    last one between two; whether the metrics are read after it; and whether it is in progress.

    Of several `ranks`, each weighs what it logs in a step by its share of the batch's items, so that the mean
    of a value that is a mean over items is that of one process; a rank without items logs nothing there.
    """

    def __init__(
        self,
        writer: RunWriter,
        taken: Sequence[str],
        step: Callable[[], tuple[int, bool, bool]],
        ranks: Ranks | None = None,
    ) -> None:
        self._writer, self._taken, self._step, self._ranks = writer, frozenset(taken), step, ranks
        self._scalars: dict[str, list[tuple[Tensor | float, float]]] = {}  # values with their weights
        self._training = self._scalars  # those of the training, while a validation is in progress
        self._split: str | None = None  # of the validation in progress
        self._recorded: set[str] = set()  # artefacts of that validation, or of the step
        self._recorded_step = -1

    @contextmanager
    def active(self) -> Iterator[None]:
        """Receive what `log` is called with while the block runs."""
        token = _ACTIVE.set(self)
        listeners.append(self.add)  # from any thread, such as autograd's of a GPU
        try:
            yield
        finally:
            listeners.remove(self.add)
            _ACTIVE.reset(token)

    @contextmanager
    def validating(self, split: str) -> Iterator[dict[str, float]]:
        """Collect what a validation logs; the dict has the means of its scalars afterwards."""
        training = self._training = self._scalars
        self._scalars, self._split = {}, split
        self._recorded.clear()
        means: dict[str, float] = {}
        try:
            yield means
            means |= self.read()
        finally:
            self._scalars, self._split = training, None

    def add(self, values: Mapping[str, Any]) -> None:
        """Add values by name."""
        if not isinstance(values, Mapping):
            raise MetricError(
                "these values cannot be logged", expected="a value by name", found=type(values).__name__
            )
        weight = 1.0
        if self._ranks is not None and (self._split is not None or self._step()[2]):
            weight = self._ranks.part.count / max(self._ranks.part.total, 1)
            if not weight:
                return
        for name, value in values.items():
            if not isinstance(name, str) or not name or name in self._taken:
                raise MetricError(
                    "this name cannot be logged",
                    expected="a name that no metric of the training has",
                    found=repr(name),
                )
            if isinstance(value, str):
                self._record(name, Table(["text"], [[value]]))
            elif isinstance(value, Artefact):
                self._record(name, value)
            elif isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
                # A copy: a view would keep all of its tensor alive until the reading.
                self._scalars.setdefault(name, []).append((value.detach().clone(), weight))
            elif isinstance(value, numbers.Real | np.bool_):
                self._scalars.setdefault(name, []).append((float(value), weight))
            else:
                raise _unknown_kind(name, value)

    def _record(self, name: str, value: Artefact) -> None:
        if self._ranks is not None and self._ranks.rank:
            return
        step, is_read, is_stepping = self._step()
        if self._split is not None:
            name = f"{self._split}/{name}"
        elif not is_read:
            return
        elif is_stepping and step != self._recorded_step:
            self._recorded.clear()
            self._recorded_step = step
        if self._split is not None or is_stepping:
            # A step may run the code several times: for each of its batches, or for checkpointed activations.
            if name in self._recorded:
                return
            self._recorded.add(name)
        value.record(self._writer, name, step)

    def state(self) -> dict[str, list[Any]]:
        """Return the scalars of the training since the last reading, of all ranks, for a checkpoint."""
        own = {
            name: [float(value) if weight == 1 else [float(value), weight] for value, weight in values]
            for name, values in (self._scalars if self._split is None else self._training).items()
        }
        return own if self._ranks is None else _joined(self._ranks.every(own))

    def load_state(self, state: Mapping[str, Sequence[Any]]) -> None:
        """Restore what `state` returned; of several ranks, rank 0 goes on with the values of all."""
        if self._ranks is None or self._ranks.rank == 0:
            self._scalars = {
                name: [tuple(value) if isinstance(value, list) else (value, 1.0) for value in values]
                for name, values in state.items()
            }

    def read(self) -> dict[str, float]:
        """Return the mean of each scalar since the last reading, copied from the device at once."""
        scalars, self._scalars = self._scalars, {}
        tensors = [value for values in scalars.values() for value, _ in values if isinstance(value, Tensor)]
        on_host: Iterator[float] = iter(())
        if tensors:
            device = tensors[0].device
            dtype = torch.float32 if device.type == "mps" else torch.float64
            on_host = iter(torch.stack([t.reshape(()).to(device, dtype) for t in tensors]).tolist())
        sums = {
            name: [
                (
                    sum(w * (next(on_host) if isinstance(value, Tensor) else value) for value, w in values),
                    sum(w for _, w in values),
                )
            ]
            for name, values in scalars.items()
        }
        if self._ranks is not None:
            sums = _joined(self._ranks.every(sums))
        return {name: sum(s for s, _ in parts) / sum(w for _, w in parts) for name, parts in sums.items()}


def _joined(every: Sequence[Mapping[str, list[Any]]]) -> dict[str, list[Any]]:
    """Return the lists of all ranks by name, one after the other."""
    names = dict.fromkeys(name for own in every for name in own)
    return {name: [value for own in every for value in own.get(name, ())] for name in names}


@contextmanager
def collected_names() -> Iterator[set[str]]:
    """Collect the names of what is logged while the block runs; nothing is recorded."""
    names = _Names()
    with names.active():
        yield names.names


class _Names(StepLog):
    def __init__(self) -> None:
        self.names: set[str] = set()

    def add(self, values: Mapping[str, Any]) -> None:
        """Add the names."""
        self.names.update(values)


def _unknown_kind(name: str, value: Any) -> MetricError:
    hint = None
    if isinstance(value, Tensor | np.ndarray):
        hint = (
            f"log(**{{{name!r}: value.mean()}}), or burnt.train.Histogram(value) or burnt.train.Image(value)"
        )
    return MetricError(
        f"{name!r} cannot be logged",
        expected="a number, a scalar tensor, a text, or an Image, a Table or a Histogram of burnt.train",
        found=f"a {type(value).__name__}"
        + (f" of shape {tuple(value.shape)}" if isinstance(value, Tensor | np.ndarray) else ""),
        hint=hint,
    )


def _encode_png(pixels: np.ndarray[Any, Any]) -> bytes:
    """Return a PNG file of uint8 values, ``[H, W, 1]`` or ``[H, W, 3]``; its rows have no filter."""
    height, width, channels = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)
