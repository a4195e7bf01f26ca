"""Checkpoints: everything that a training needs to resume as if it had never stopped.

A checkpoint is a folder ``step-00001200`` with two files: ``model.safetensors``, which `Module.load` can
read, and ``training.safetensors``, which holds the optimizer's state, the metrics' sums, the random states
and a JSON document with the rest. It is written under a temporary name and then renamed, so it is always
complete. Both files have checksums, and the document names the model's checksum.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from burnt._files import replacing, sync_folder
from burnt.errors import CheckpointError, ConfigError, RecordError
from burnt.module import restore_fields
from burnt.optim import OptimizerRecord
from burnt.record import Record, load_into, read_document, read_tensors, record_of, write_tensors
from burnt.record.formats.checksums import check_checksum
from burnt.record.formats.safetensors_file import read_header_checksum
from burnt.store.write_lease import WriteLease
from burnt.train.checkpoints.buffers import allocated, load_buffers
from burnt.train.checkpoints.rng import RandomStates
from burnt.train.duration import Duration, Position
from burnt.train.metrics.base import Metric
from burnt.train.metrics.monitored_metric import Monitored
from burnt.train.placement import device_of


def copied_record(record: Record) -> Record:
    """Return a record with copies of the values, in memory that the training does not change."""
    return dataclasses.replace(
        record, tensors=copied_tensors(record.tensors), static=copy.deepcopy(record.static)
    )


def copied_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of tensors on the host; from CUDA, all at once through pinned memory.

    >>> ours = torch.ones(2)
    >>> copies = copied_tensors({"a": ours})
    >>> ours.zero_(), copies
    (tensor([0., 0.]), {'a': tensor([1., 1.])})
    """
    copies = {name: _copied(tensor.detach()) for name, tensor in tensors.items()}
    for device in {tensor.device for tensor in tensors.values() if tensor.is_cuda}:
        torch.cuda.current_stream(device).synchronize()
    return copies


def _copied(tensor: Tensor) -> Tensor:
    if tensor.layout is not torch.strided or hasattr(tensor, "__tensor_flatten__") or tensor.is_meta:
        return tensor  # which the writer refuses
    if tensor.is_cuda:
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return host.copy_(tensor, non_blocking=True)
    return tensor.to("cpu", copy=True, memory_format=torch.contiguous_format)


FORMAT = 1
MODEL_FILE, TRAINING_FILE = "model.safetensors", "training.safetensors"
_MOVED = ".tmp-moved-"
"""The prefix of a checkpoint while another one of the same step takes its place."""
_MODEL_SEAL = "model_crc32"
"""The key of the checksum of the header of the model's file, which holds the checksums of its tensors."""
_MOST_LISTINGS = 10
_KEYS = {"position", "values", "optimizer", "metrics", "rng"}


@dataclasses.dataclass(frozen=True)
class Saved:
    """A checkpoint on disk.

    Args:
        path: the checkpoint's folder.
        position: the training's position when it was saved.
        values: the metric values measured at that step, ``{"valid/loss": 0.1}``: from a validation of
            exactly these weights, and from the training epoch that ended there.
        kept: whether it was saved by a command; then it is never removed.
        scheduled: whether the settings of the training asked for it, and not an interruption or a command.
            Keepers select only among those, so that an interruption does not change which ones are kept.
    """

    path: Path
    position: Position
    values: Mapping[str, float]
    kept: bool = False
    scheduled: bool = True

    def bytes(self) -> int:
        """Return the size of its files on disk; files removed meanwhile are not counted."""
        size = 0
        with contextlib.suppress(FileNotFoundError):  # the folder
            for file in self.path.iterdir():
                with contextlib.suppress(FileNotFoundError):
                    size += file.stat().st_size
        return size


@dataclasses.dataclass(frozen=True)
class Loaded:
    """Where a training begins: parts of a checkpoint other than model and metrics; empty at first."""

    position: Position = dataclasses.field(default_factory=Position)
    document: dict[str, Any] = dataclasses.field(default_factory=dict)
    optimizer: OptimizerRecord | None = None
    rng: RandomStates | None = None  # at the position; None at the start
    epoch_rng: RandomStates | None = None  # at the start of that epoch
    fields_set: Sequence[str] = ()  # texts on static fields of the model that were set as in the checkpoint
    fields_kept: Sequence[str] = ()  # texts on those that differ and were kept

    def last_values(self) -> dict[str, float]:
        """Return the last metric values of each split, including values of earlier steps."""
        return dict(self.document.get("last_values", self.document.get("values", {})))


@dataclasses.dataclass(frozen=True)
class TrainingState:
    """What `Checkpoints.save` writes: the state of a training between two steps.

    Args:
        model: the model; its config is saved, too.
        optimizer: the optimizer's state.
        metrics: the training set's metrics, with the sums of the epoch so far.
        position: the training's position.
        values: the metric values measured at this step, by which keepers rank the checkpoint.
        epoch_rng: the random states at the start of the epoch.
        rng: the random states at the position, by default the current ones.
        document: the rest of the state, as JSON.
        buffers: the buffers that are not in the model's state dict, by path.
        kept: the checkpoint is never removed, and neither is one of the same step that replaces it.
        scheduled: keepers may select the checkpoint; otherwise it is removed once there is a newer one.
        rank_rngs: the random states of the other processes: ``"rng1"``, ``"epoch_rng1"``, ``"rng2"``, ...
        record: the model's, where it is known; of a model whose parts are on several processes.
    """

    model: torch.nn.Module
    optimizer: OptimizerRecord
    metrics: Sequence[Metric]
    position: Position
    values: Mapping[str, float]
    epoch_rng: RandomStates
    rng: RandomStates = dataclasses.field(default_factory=RandomStates.capture)
    document: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    buffers: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    kept: bool = False
    scheduled: bool = True
    rank_rngs: Mapping[str, RandomStates] = dataclasses.field(default_factory=dict)
    record: Record | None = None

    def training_file(self, saved: Saved) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the tensors and the JSON document of the file next to the model's."""
        rngs = {"rng": self.rng, "epoch_rng": self.epoch_rng, **self.rank_rngs}
        tensors: dict[str, Tensor] = {f"optimizer/{name}": t for name, t in self.optimizer.tensors.items()}
        tensors |= {f"metric/{m.name}": m.total for m in self.metrics if m.total is not None}
        states = {metric.name: metric.state() for metric in self.metrics}
        for name, state in states.items():
            tensors |= {
                f"metric_state/{name}/{key}": one for key, one in state.items() if isinstance(one, Tensor)
            }
        tensors |= {f"buffer/{path}": buffer for path, buffer in self.buffers.items()}
        for kind, rng in rngs.items():
            tensors |= {f"{kind}/{name}": state for name, state in rng.tensors.items()}
        document = {
            "format": FORMAT,
            "position": dataclasses.asdict(saved.position),
            "values": dict(saved.values),
            "optimizer": {"class": self.optimizer.optimizer, "options": dict(self.optimizer.options)},
            "metrics": {metric.name: metric.count for metric in self.metrics},
            "metric_states": {
                name: {key: None if isinstance(one, Tensor) else one for key, one in state.items()}
                for name, state in states.items() if state
            },
            "strides": {
                path: buffer.stride()
                for path, buffer in self.model.named_buffers(remove_duplicate=False)
                if buffer.layout is torch.strided and not buffer.is_contiguous()
            },
            **{kind: rng.document for kind, rng in rngs.items()},
            **({"kept": True} if saved.kept else {}),
            **({} if saved.scheduled else {"scheduled": False}),
            **self.document,
        }  # fmt: skip
        return tensors, document


class Keeper(Protocol):
    """Selects the checkpoints to keep."""

    def keep(self, saved: Sequence[Saved]) -> Iterable[Saved]:
        """Return the checkpoints to keep; `saved` is sorted oldest first."""
        ...


def checked_keepers(keepers: Any) -> list[Keeper]:
    """Return the keepers as a list; raise a ConfigError if they are none."""
    is_list = isinstance(keepers, Iterable) and not isinstance(keepers, str)
    listed = list(keepers) if is_list else [keepers]
    unfit = [keeper for keeper in listed if isinstance(keeper, type) or not hasattr(keeper, "keep")]
    if unfit or not is_list:
        raise ConfigError(
            "checkpoints= takes a list of keepers",
            where="checkpoints",
            expected='None, or such as [KeepLast(2), KeepBest("accuracy"), Every("500 steps")]',
            found=repr(unfit[0]) if unfit else f"{type(keepers).__name__}, outside of a list",
        )
    return listed


class KeepLast:
    """Keep the newest checkpoints.

    Args:
        count: how many, at least 1: a run resumes from the newest.

    Raises:
        ConfigError: `count` is below 1.
    """

    def __init__(self, count: int = 1) -> None:
        self.count = _checked_count(count, "KeepLast")

    def keep(self, saved: Sequence[Saved]) -> Sequence[Saved]:
        """Return the newest checkpoints."""
        return saved[-self.count :]


class Every:
    """Keep a checkpoint at each multiple of an interval.

    The training saves then, whatever its ``checkpoint_every``. With an interval in seconds, the first
    checkpoint after each multiple is kept.

    Args:
        interval: ``"500 steps"``, ``"5 epochs"``, ``"2 h"``; or several, ``"5 epochs or 2 h"``.

    Raises:
        ConfigError: the interval is not a duration.

    >>> saved = [Saved(Path(f"step-{step}"), Position(step), {}) for step in (400, 500, 900, 1000)]
    >>> [entry.position.step for entry in Every("500 steps").keep(saved)]
    [500, 1000]
    """

    def __init__(self, interval: str | Duration) -> None:
        self.interval = Duration.parse(interval, "Every")

    def keep(self, saved: Sequence[Saved]) -> Sequence[Saved]:
        """Return the checkpoints at the multiples of the interval."""
        kept, since = [], 0.0
        for entry in saved:
            position = entry.position
            if self.interval.due(position, epoch_ended=not position.batch, since=since):
                kept.append(entry)
            since = position.seconds
        return kept


class KeepBest:
    """Keep the checkpoints with the best values of a metric.

    A checkpoint is ranked by the value measured at its own step: by a validation of exactly its weights, or
    with `split` ``"train"`` by the mean over the epoch that ended there. Checkpoints without such a value are
    not kept. The training saves a checkpoint of every value that is among the best, whatever its
    ``checkpoint_every``.

    Args:
        metric: the metric to compare by, as an object or by name; or the name of any logged value.
        split: ``"train"`` or the name of a validation set; by default ``"valid"``, or the first one.
        count: how many, at least 1.
        higher_is_better: which values are better, of a value that steps log or a metric that does not say.

    Raises:
        ConfigError: `count` is below 1.
    """

    def __init__(
        self,
        metric: Metric | str,
        split: str | None = None,
        count: int = 1,
        *,
        higher_is_better: bool | None = None,
    ) -> None:
        self.monitored = Monitored(metric, split, "KeepBest", higher_is_better)
        self.count = _checked_count(count, "KeepBest")

    def keep(self, saved: Sequence[Saved]) -> Sequence[Saved]:
        """Return the best checkpoints; the older of two equal ones, and none with NaN."""
        sign = -1.0 if self.monitored.metric.higher_is_better else 1.0
        key = self.monitored.key
        known = [s for s in saved if key in s.values and s.values[key] == s.values[key]]
        return sorted(known, key=lambda s: (sign * s.values[key], s.position.step))[: self.count]


class Checkpoints:
    """The checkpoints of a run.

    Args:
        folder: the folder that contains them.
        keepers: select the checkpoints to keep: those that any of them selects, and always the newest one,
            because a run resumes from it.

    Attributes:
        lease: of the attempt that writes them, held while files change. None outside of a run.
    """

    def __init__(self, folder: Path, keepers: Sequence[Keeper] = ()) -> None:
        self.folder = folder
        self.keepers = keepers
        self.lease: WriteLease | None = None
        self._known: dict[tuple[Path, object], Saved] = {}

    def saved(self) -> list[Saved]:
        """Return the readable checkpoints, oldest first; damaged ones are neither listed nor removed."""
        for _ in range(_MOST_LISTINGS):
            known: dict[tuple[Path, object], Saved] = {}
            folders = self.folders()
            for path in folders:
                # Read once: a document grows with the kernels selected in the process, and each save asks.
                key = path, stamp(path)
                # A damaged checkpoint must not make the next save fail; loading it raises the error.
                with contextlib.suppress(RecordError, OSError):
                    known[key] = self._known[key] if key in self._known else _read_saved(path)
            if all(path.exists() for path in folders):
                break  # else the training has removed one, after it had written a newer one
        self._known = known
        return list(known.values())

    def unreadable(self) -> list[Path]:
        """Return the folders of the damaged checkpoints, oldest first."""
        folders = self.folders()  # first: a later one may be new
        readable = {saved.path for saved in self.saved()}
        # One that is gone by now was removed meanwhile by the training.
        return [path for path in folders if path not in readable and path.exists()]

    def is_best(self, position: Position, values: Mapping[str, float]) -> bool:
        """Whether a `KeepBest` would keep a checkpoint of this position with these metric values."""
        keepers = [keeper for keeper in self.keepers if isinstance(keeper, KeepBest)]
        if not any(keeper.monitored.key in values for keeper in keepers):
            return False
        new = Saved(self._path(position), position, values)
        saved = [*(entry for entry in self.saved() if entry.scheduled and entry.path != new.path), new]
        return any(entry is new for keeper in keepers for entry in keeper.keep(saved))

    def intervals(self) -> list[Duration]:
        """Return the intervals at which an `Every` wants a checkpoint."""
        return [keeper.interval for keeper in self.keepers if isinstance(keeper, Every)]

    def newest(self) -> Path | None:
        """Return the folder of the newest checkpoint, or None."""
        return next(reversed(self.folders()), None)

    def save(self, state: TrainingState, sync: Callable[[], object] | None = None) -> Saved:
        """Write a checkpoint, then remove those that no keeper selects.

        `sync` is called before the checkpoint takes its name; it returns once the run store has what a resume
        from it expects.

        Raises:
            OSError: the folder cannot be written or is full; older checkpoints are untouched.
            TakenOverError: another process has resumed the run; its files are untouched.
        """
        return self.prepare(state, sync)[1]()

    def prepare(
        self, state: TrainingState, sync: Callable[[], object] | None = None, *, copied: bool = False
    ) -> tuple[Saved, Callable[[], Saved]]:
        """Return a checkpoint, and a function that writes it as `save` does.

        With `copied`, it writes a copy, so that the training may go on; until it is written, no other method
        may be called.
        """
        target = self._path(state.position)
        earlier = [saved for saved in self.saved() if saved.path == target]
        new = Saved(
            target,
            dataclasses.replace(state.position),
            dict(state.values),
            kept=state.kept or any(saved.kept for saved in earlier),
            scheduled=state.scheduled or any(saved.scheduled for saved in earlier),
        )
        tensors, document = state.training_file(new)
        record = state.record or record_of(state.model, config=getattr(state.model, "_built_by", None))
        if copied:
            record, tensors = copied_record(record), copied_tensors(tensors)
            document = copy.deepcopy(document)
        return new, functools.partial(self._write, new, record, tensors, document, sync)

    def _write(
        self,
        new: Saved,
        record: Record,
        tensors: Mapping[str, Tensor],
        document: Mapping[str, Any],
        sync: Callable[[], object] | None,
    ) -> Saved:
        """Write the files of a checkpoint under a temporary name, rename their folder, and remove others."""
        target = new.path
        temporary, old = self._temporary(target.name), self.folder / f"{_MOVED}{target.name}"
        with self._changing():
            self.folder.mkdir(parents=True, exist_ok=True)
            self._restore_moved()
            leftovers = [*self.folder.glob(".tmp-*")]  # of a killed process, or one that still writes there
        # Not while others wait to write the run.
        for leftover in leftovers:
            shutil.rmtree(leftover, ignore_errors=True)
        temporary.mkdir()
        try:
            record.save(temporary / MODEL_FILE)
            tie = {_MODEL_SEAL: read_header_checksum(temporary / MODEL_FILE)}
            write_tensors(temporary / TRAINING_FILE, tensors, {**document, **tie})
            sync_folder(temporary)
            if sync is not None:
                sync()
            with self._changing():
                if target.exists():
                    # An earlier attempt saved the same step.
                    target.rename(old)
                temporary.rename(target)
            sync_folder(self.folder)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            with self._changing():  # raises if another process has removed the files
                if old.exists() and not target.exists():
                    old.rename(target)
            raise
        self.prune()
        return new

    def adopt(self, source: Path) -> None:
        """Copy a checkpoint of another run, never to be removed: the run goes on from it.

        Raises:
            CheckpointError: it is damaged.
            OSError: the folder cannot be written or is full.
        """
        tensors, document = _read_training(source)
        _read_model(source)
        temporary = self._temporary(source.name)
        temporary.mkdir(parents=True)
        with replacing(temporary / MODEL_FILE) as copied:
            shutil.copyfile(source / MODEL_FILE, copied)
        write_tensors(temporary / TRAINING_FILE, tensors, {**document, "kept": True})
        sync_folder(temporary)
        temporary.rename(self.folder / source.name)
        sync_folder(self.folder)

    def _path(self, position: Position) -> Path:
        return self.folder / f"step-{position.step:08d}"

    def _temporary(self, name: str) -> Path:
        """Return a name that no other attempt uses."""
        return self.folder / f".tmp-{0 if self.lease is None else self.lease.attempt}-{name}"

    def _changing(self) -> AbstractContextManager[None]:
        return nullcontext() if self.lease is None else self.lease.hold()

    def _moved(self) -> list[tuple[Path, Path]]:
        """Return checkpoints that were moved aside for new ones of the same step, with their names."""
        return [(old, self.folder / old.name.removeprefix(_MOVED)) for old in self.folder.glob(f"{_MOVED}*")]

    def _restore_moved(self) -> None:
        """Restore a checkpoint that a process had moved aside for a new one, and was killed in between."""
        for old, target in self._moved():
            if not target.exists():
                old.rename(target)

    def prune(self) -> None:
        """Remove the checkpoints that no keeper selects, but those saved by a command and the newest one.

        Raises:
            TakenOverError: another process has resumed the run.
        """
        with self._changing():
            self._restore_moved()
            saved = self.saved()
            scheduled = [entry for entry in saved if entry.scheduled]
            wanted = {s.path for s in (*saved[-1:], *(s for k in self.keepers for s in k.keep(scheduled)))}
            removed = [self._hide(old.path) for old in saved if not old.kept and old.path not in wanted]
            removed += [moved for moved, _ in self._moved()]
        for path in removed:  # not while others wait to write the run
            if path is not None:
                with suppress(FileNotFoundError):  # another one saves, and removes what is left over
                    shutil.rmtree(path)

    def folders(self) -> list[Path]:
        """Return all checkpoint folders, oldest first, readable or not; also one that is just moved aside."""
        found = set(self.folder.glob("step-*"))
        found |= {target if target.exists() else old for old, target in self._moved()}
        return sorted(found, key=_step_order)

    def _hide(self, path: Path) -> Path | None:
        """Rename a checkpoint to be removed, as a partly removed folder is none; return its new name."""
        if path.is_symlink():  # to the checkpoint of a run that is trained forward again, which keeps it
            path.unlink()
            return None
        return path.rename(path.with_name(f".tmp-old-{path.name}"))

    def load(self, path: Path, model: torch.nn.Module, metrics: Sequence[Metric], rank: int = 0) -> Loaded:
        """Load a checkpoint into a model and its metrics, and return its other parts.

        The random states are those of a rank, or of rank 0 if the run had fewer.

        Raises:
            CheckpointError: it is damaged, or does not fit the model.
        """
        tensors, document = _read_training(path)
        record = _read_model(path)
        changed = document.get("loop", {}).get("fields", ())
        try:
            load_into(model, record)
            fields_set, fields_kept = restore_fields(model, record, always=changed, by_hand=False)
        except RecordError as error:
            raise CheckpointError(
                f"the checkpoint {path.name} does not fit the model: {error.what}",
                where=os.fspath(path),
                expected=error.expected,
                found=error.found,
                origin=error.origin,
                hint="build the same model as in the original run, or start a new run in another folder",
            ) from None
        device = device_of(model)
        for metric in metrics:
            metric.reset()
            total = tensors.get(f"metric/{metric.name}")
            if total is not None:
                metric.total = allocated(total, device, total.stride())
                metric.count = document["metrics"][metric.name]
            state = document.get("metric_states", {}).get(metric.name)  # earlier checkpoints have none
            if state:
                arrays = {key: tensors.get(f"metric_state/{metric.name}/{key}") for key in state}
                metric.load_state(
                    {key: state[key] if one is None else one.to(device) for key, one in arrays.items()}
                )
        load_buffers(model, _select_prefix("buffer/", tensors), document.get("strides"))
        saved, state = document["optimizer"], _select_prefix("optimizer/", tensors)
        optimizer = OptimizerRecord(saved["class"], saved["options"], state)
        rng, epoch_rng = (
            RandomStates(_select_prefix(f"{kind}/", tensors), document[kind])
            # The first checkpoints of burnt have one state, which they restored for both.
            for kind in (
                f"{name if name in document else 'rng'}{rank if f'rng{rank}' in document else ''}"
                for name in ("rng", "epoch_rng")
            )
        )
        position = Position(**document["position"])
        return Loaded(position, document, optimizer, rng, epoch_rng, fields_set, fields_kept)


def _step_order(path: Path) -> tuple[int, str]:
    # By length first: from 100 million steps on, the step has more than eight digits.
    name = path.name.removeprefix(_MOVED)
    return len(name), name


def _checked_count(count: int, keeper: str) -> int:
    if not isinstance(count, int) or count < 1:
        raise ConfigError(
            f"{keeper} cannot be built",
            where="count",
            expected="a number of checkpoints, at least 1",
            found=repr(count),
            hint="checkpoints=None saves none",
        )
    return count


def stamp(path: Path) -> tuple[int, int] | None:
    """Return what changes when a checkpoint is replaced; None when it was removed."""
    with contextlib.suppress(OSError):
        status = (path / TRAINING_FILE).stat()
        return status.st_ino, status.st_mtime_ns
    return None


def model_file(path: Path) -> Path:
    """Return the file of a checkpoint's model, after a check that it was saved with the rest.

    A damaged header or a removed checkpoint raises a RecordError or an OSError.
    """
    document = _checked_document(path, read_document(path / TRAINING_FILE))
    model, what = path / MODEL_FILE, "the model's file is not that of this checkpoint"
    if _MODEL_SEAL in document:  # the first checkpoints of burnt do not say
        check_checksum(document[_MODEL_SEAL], read_header_checksum(model), os.fspath(model), what)
    return model


def _read_saved(path: Path) -> Saved:
    """Read what keepers ask of a checkpoint."""
    document = read_document(path / TRAINING_FILE)
    if document is None or not document.keys() >= _KEYS:
        raise _no_checkpoint(path)
    return Saved(
        path,
        Position(**document["position"]),
        document["values"],
        bool(document.get("kept")),
        document.get("scheduled", True),
    )


def _read_training(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        tensors, document = read_tensors(path / TRAINING_FILE)
    except (RecordError, OSError) as error:
        raise _damaged_error(path, error) from error
    if document is None or not isinstance(document.get("format"), int):
        document = {"format": 0}
    if document["format"] > FORMAT:
        raise CheckpointError(
            "the checkpoint has a newer format than this burnt can read",
            where=os.fspath(path),
            expected=f"format {FORMAT}",
            found=f"format {document['format']}",
            hint="it was written by a newer burnt: upgrade burnt",
        )
    try:
        return tensors, _checked_document(path, document)
    except CheckpointError as error:
        raise _damaged_error(path, error) from error


def _no_checkpoint(path: Path) -> CheckpointError:
    return CheckpointError(f"its {TRAINING_FILE} is not a checkpoint", where=os.fspath(path))


def _checked_document(path: Path, document: dict[str, Any] | None) -> dict[str, Any]:
    """Return the document of a checkpoint if it is one, and of the step in the folder's name."""
    if document is None or not document.keys() >= _KEYS:
        raise _no_checkpoint(path)
    name, step = path.name.removeprefix(_MOVED).removeprefix("step-"), document["position"]["step"]
    if name.isdecimal() and int(name) != step:
        raise CheckpointError(
            "a checkpoint is in the folder of another one",
            where=os.fspath(path),
            expected=f"that of step {int(name)}",
            found=f"that of step {step}",
        )
    return document


def _read_model(path: Path) -> Record:
    try:
        return Record.load(model_file(path))
    except (RecordError, OSError) as error:
        raise _damaged_error(path, error) from error


def _damaged_error(path: Path, error: Exception) -> CheckpointError:
    if not path.exists():
        what = f"the checkpoint {path.name} was removed while it was read"
        return CheckpointError(what, where=os.fspath(path), hint="its run is training: choose another one")
    others = sorted(p.name for p in path.parent.glob("step-*") if p != path)
    inner = error if isinstance(error, RecordError) else None
    return CheckpointError(
        f"the checkpoint {path.name} cannot be used: {inner.what if inner else error}",
        where=inner.where if inner else os.fspath(path),
        expected=inner.expected if inner else None,
        found=inner.found if inner else None,
        origin=inner.origin if inner else (),
        hint=f"remove the folder {path} to resume from "
        + (f"{others[-1]}, or load that one" if others else "the beginning (there is no other checkpoint)"),
    )


def _select_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
