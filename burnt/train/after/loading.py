"""load: the model of a run, in any process."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch

from burnt._files import parse_json
from burnt.data.description import HINT, TableDescription
from burnt.errors import CheckpointError, RecordError, RunError, UnsupportedError, clean, did_you_mean
from burnt.inspect.signature import Signature
from burnt.module import Module, restore_fields
from burnt.record import Record, load_into
from burnt.train.after.trained import TrainedAs
from burnt.train.checkpoints.checkpoint import Checkpoints, Saved, model_file, stamp
from burnt.train.code.source import Source
from burnt.train.code.trust import trusting

_MOST_CHOICES = 10  # of a checkpoint whose files are removed while they are read

T = TypeVar("T")


def load(
    run: str | os.PathLike[str],
    checkpoint: str | int = "best",
    model: torch.nn.Module | type[Module] | None = None,
    import_code: bool = False,
    trust: bool = False,
) -> torch.nn.Module:
    """Return the model of a run with the weights of a checkpoint, in evaluation mode.

    Nothing in the run is executed, and by default nothing is imported: the model's class is looked for among
    those that are already imported, and built by the Config that the checkpoint holds.

    Args:
        run: the run folder.
        checkpoint: ``"best"``, ``"last"``, a step, or the name of one, ``"step-00000870"``. The best one is
            the one that `KeepBest` ranks first, or the last one where the run had no `KeepBest`.
        model: the model to load into, or its class, for runs whose model no Config has built or whose class
            has another name by now. A warning names the static fields that differ from the run's;
            they are set as in the run, unless another Config has built this model.
        import_code: import the module that defined the model when the run was started: from its file, if you
            trained the run on this machine, or else if it is installed.
        trust: import it from its file, whoever trained the run. This is remembered until ``config.json``
            changes, or the code in the run's folder ([trust.md](trust.md)).

    Returns:
        The model, on the CPU unless its `init` or `model` chooses another device.

    Raises:
        RunError: the folder holds no run, or one whose code is to be imported and not trusted.
        CheckpointError: there is no such checkpoint.
        RecordError: the class is not known or cannot be built, or the weights do not fit it.

    >>> import tempfile
    >>> from burnt import nn, optim
    >>> from burnt.train import Learner, StepOutput, SupervisedTraining
    >>> def step(model, batch):
    ...     return StepOutput(loss=model(batch["x"]).square().mean(), targets=batch["x"])
    >>> learner = Learner(nn.Linear.Config(in_features=2, out_features=1).init(), optim.AdamW(), 1e-3, step)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = SupervisedTraining(
    ...         folder, train=[{"x": torch.ones(4, 2)}], duration="2 epochs", monitor="off"
    ...     ).run(learner)
    ...     model = load(folder)
    >>> type(model).__name__, model.training, bool((model.weight == learner.model.weight).all())
    ('Linear', False, True)
    """
    return load_with_checkpoint(RunFiles.read(run), checkpoint, model, import_code, trust)[1]


def load_with_checkpoint(
    files: RunFiles,
    checkpoint: str | int = "best",
    model: torch.nn.Module | type[Module] | None = None,
    import_code: bool = False,
    trust: bool = False,
) -> tuple[Saved, torch.nn.Module]:
    """Load the model of a run as `load` does; return the checkpoint too."""
    source = files.source
    if isinstance(model, torch.nn.Module):
        saved, record = files.read_checkpoint(checkpoint, lambda saved: Record.load(model_file(saved.path)))
        load_into(model, record)
        was_set, was_kept = restore_fields(model, record)
        if was_set:
            warnings.warn(f"the model got fields as they were in the run: {', '.join(was_set)}", stacklevel=3)
        if was_kept:
            warnings.warn(f"the model differs from that of the run: {', '.join(was_kept)}", stacklevel=3)
        files.trained_as().attach(model)
        return saved, model.eval()
    kind: type[torch.nn.Module] | None = model
    if kind is None and source is not None:
        if import_code or trust:
            with trusting(trust):
                kind = source.import_class(files.folder, files.document)
        else:
            kind = source.imported_class(files.folder)
    if kind is None:
        raise RecordError(
            "the class of the run's model is not imported",
            where=str(files.folder),
            expected=_class_text(source),
            hint="import it first, let load(..., import_code=True) do so, or pass it: load(..., model=...)",
        )
    if not issubclass(kind, Module):
        raise RecordError(
            f"{kind.__name__} cannot be built from the run",
            where=str(files.folder),
            expected="a burnt.Module that a Config has built",
            found=f"a {kind.__mro__[1].__name__}",
            hint=f"build it as the training did and pass it: load(..., model={kind.__name__}(...))",
        )
    code = None if source is None else source.find_file(files.folder)
    has_changed = source is not None and code is not None and source.has_changed(code)
    build = kind.load
    try:
        saved, loaded = files.read_checkpoint(checkpoint, lambda saved: build(model_file(saved.path)))
    except RecordError as error:
        if has_changed:
            error.origin = (*error.origin, f"{code} has changed since the run was started")
        raise
    if has_changed:
        text = f"{code} has changed since the run {files.folder.name} was started"
        warnings.warn(clean(text), stacklevel=3)
    files.trained_as().attach(loaded)
    return saved, loaded.eval()


@dataclass(frozen=True)
class RunFiles:
    """What a run folder holds for building its model: ``config.json`` and the checkpoints."""

    folder: Path
    document: Mapping[str, Any]

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> RunFiles:
        """Read a run folder."""
        path = Path(folder) / "config.json"
        try:
            document = parse_json(path.read_bytes())
        except FileNotFoundError:
            raise RunError(
                f"{folder} holds no run",
                expected=str(path),
                hint="`burnt runs list` lists the runs below a folder",
            ) from None
        except NotADirectoryError:
            raise RunError(
                f"{folder} is a file, not the folder of a run",
                expected=str(path),
                hint="a model that was saved by itself is loaded by its class, Net.load(file)"
                if Path(folder).suffix == ".safetensors"
                else None,
            ) from None
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise RunError("a run's configuration is damaged", where=str(path), found=str(error)) from None
        if not isinstance(document, dict) or "model" not in document:
            is_snapshot = isinstance(document, dict) and "model_type" in document
            raise RunError(
                "this is not the configuration of a run",
                where=str(path),
                found=str(document)[:80],
                hint="burnt.models.load_pretrained(folder) loads a snapshot of Hugging Face"
                if is_snapshot
                else None,
            )
        return cls(Path(folder), document)

    @property
    def _load(self) -> Mapping[str, Any]:
        """What the training wrote for `load`; runs of an older burnt lack it."""
        found = self.document.get("load")
        return found if isinstance(found, dict) else {}

    @property
    def source(self) -> Source | None:
        """The code of the run; None for a run of an older burnt."""
        try:
            return Source.from_dict(self._load["source"])
        except (KeyError, TypeError):
            return None

    @property
    def classes(self) -> list[str] | None:
        """The names of the classes, where the dataset had them."""
        return self._load.get("classes")

    @property
    def categories(self) -> dict[str, list[str]]:
        """The names of the values of each column of categories, where the dataset had them."""
        return self._load.get("categories") or {}

    def table(self) -> TableDescription:
        """Return what the columns of the training's data become in a batch, as far as the model takes them.

        Raises:
            UnsupportedError: the data was no table, code changes its items, or the training step computes the
                model's inputs from the batch.
        """
        document, sources = self._load.get("data"), self._load.get("sources") or ()
        table = reason = None
        if None in sources:
            reason = "a training step that computes the model's inputs from the batch"
        elif isinstance(document, dict) and "unknown" in document:
            reason = document["unknown"]
        else:
            try:
                table = TableDescription.from_dict(document)
            except ValueError:
                reason = "data of a kind that is not described, or a run of an older burnt"
        if table is None:
            raise UnsupportedError(
                "the run does not know how the model's inputs come from the columns of a file",
                where=str(self.folder),
                found=reason,
                hint=HINT,
            )
        return table.only(str(path[0]) for path in sources) if sources else table

    def input_table(self) -> TableDescription | None:
        """Return `table` with the model's inputs as its entries; None if these are not numbers of columns."""
        trained = self.trained_as()
        if trained.signature is None or len(trained.sources) != len(trained.signature.inputs):
            return None
        try:
            table = self.table()
        except UnsupportedError:
            return None
        entries = {}
        for info, path in zip(trained.signature.inputs, trained.sources, strict=True):
            if path is None or len(path) != 1 or path[0] not in table.entries or info.batch_axis != 0:
                return None
            group = entries[info.name] = table.entries[str(path[0])]
            is_one = isinstance(group, str)
            if table.numbers(str(path[0])) is None or info.shape[1:] != (() if is_one else (len(group),)):
                return None
        return msgspec.structs.replace(table, entries=entries)

    def target_names(self) -> list[str]:
        """Return the columns that the model was trained to predict; empty if they are not known."""
        targets, data = self._load.get("targets") or {}, self._load.get("data") or {}
        names = (data.get("entries") or {}).get(targets.get("entry")) or []
        return [names] if isinstance(names, str) else list(names)

    @property
    def is_multi_label(self) -> bool:
        """Whether an item may have several of the classes: their targets are no class numbers."""
        dtype = (self._load.get("targets") or {}).get("dtype", "int64")
        has_label = (self._load.get("data") or {}).get("label") is not None
        return self.classes is not None and not has_label and dtype.startswith(("float", "bfloat", "bool"))

    @property
    def returns_sigmoid(self) -> bool:
        """Whether the model's only output is between 0 and 1 by its last operation."""
        signature = self.trained_as().signature
        return signature is not None and [info.range for info in signature.outputs] == [(0, 1)]

    def metrics(self) -> dict[str, Mapping[str, Any]]:
        """Return the metrics of the training by name, for `metric_from_dict`."""
        found = self._load.get("metrics") or ()
        return {str(document["name"]): document for document in found}

    def trained_as(self) -> TrainedAs:
        """Return how the model was trained."""
        return TrainedAs.read(self.document.get("precision", "float32"), self._load)

    def signature(self) -> Signature:
        """Return what the model takes and returns."""
        if (signature := self.trained_as().signature) is not None:
            table = self.input_table()
            if table is None:
                return signature
            inputs = (replace(info, columns=table.numbers(info.name) or ()) for info in signature.inputs)
            return replace(signature, inputs=tuple(inputs))
        document = self._load.get("signature")
        reason = document.get("unknown") if isinstance(document, dict) else None
        raise UnsupportedError(
            "the run does not know the inputs of its model",
            where=str(self.folder),
            found=reason or "a run without a check before its first step, or of an older burnt",
            hint="pass an example of the inputs",
        )

    def checkpoint(self, wanted: str | int = "best") -> Saved:
        """Return a checkpoint by ``"best"``, ``"last"``, its step or its name."""
        checkpoints = Checkpoints(self.folder / "checkpoints")
        saved = checkpoints.saved()
        damaged = clean(", ".join(path.name for path in checkpoints.unreadable()))
        if not saved:
            why = "was it stopped before its first one, or trained with checkpoints=None?"
            raise CheckpointError(
                "the run has no checkpoint",
                where=str(self.folder / "checkpoints"),
                found=f"{damaged}, damaged" if damaged else None,
                hint=None if damaged else why,
            )
        if damaged and wanted in ("best", "last"):
            warnings.warn(
                f"the {wanted} checkpoint of {self.folder} is chosen without {damaged}, which is damaged",
                stacklevel=5,
            )
        if wanted == "last":
            return saved[-1]
        if wanted == "best":
            return self._best(saved)
        name = wanted if isinstance(wanted, str) and not wanted.isdigit() else f"step-{int(wanted):08d}"
        found = next((entry for entry in saved if entry.path.name == name), None)
        if found is None:
            names = [entry.path.name for entry in saved]
            raise CheckpointError(
                f"the run has no checkpoint {wanted!r}",
                where=str(self.folder / "checkpoints"),
                expected=f"best, last, or one of {', '.join(names)}",
                hint=did_you_mean(name, [*names, "best", "last"]),
            )
        return found

    def read_checkpoint(self, wanted: str | int, read: Callable[[Saved], T]) -> tuple[Saved, T]:
        """Choose a checkpoint and read it; choose again if the training has removed or replaced it."""
        for _ in range(_MOST_CHOICES):
            saved = self.checkpoint(wanted)
            before = stamp(saved.path)
            try:
                return saved, read(saved)
            except (OSError, RecordError):
                if before is not None and stamp(saved.path) == before:
                    raise
        raise CheckpointError(
            f"the training removed {_MOST_CHOICES} checkpoints before they were read",
            where=str(self.folder / "checkpoints"),
            hint="let it keep them longer: checkpoints=[KeepLast(3), ...], or a longer checkpoint_every=",
        )

    def _best(self, saved: list[Saved]) -> Saved:
        best = self._load.get("best")
        if not isinstance(best, dict):
            return saved[-1]
        key, sign = best["metric"], -1.0 if best["higher_is_better"] else 1.0
        ranked = [entry for entry in saved if entry.values.get(key) is not None]
        # NaN is never the best, and of two equal ones the older is.
        ranked = [entry for entry in ranked if entry.values[key] == entry.values[key]]
        return min(ranked, key=lambda entry: sign * entry.values[key], default=saved[-1])


def _class_text(source: Source | None) -> str:
    if source is None:
        return "the class and its file in the run's config.json, which runs of an older burnt lack"
    return f"{source.module}.{source.model}" + (f" of {source.file}" if source.file else "")
