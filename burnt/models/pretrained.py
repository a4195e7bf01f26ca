"""What the models share: a Config read from ``config.json``, and weights in published layouts."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar, cast

import torch

from burnt._files import replacing
from burnt._json import parse_json
from burnt._patterns import matches
from burnt.config import Config, field_values
from burnt.errors import ConfigError, RecordError
from burnt.module import Module
from burnt.record import Layout, LoadReport, Record, load_weights, record_of

__all__ = ["Pretrained", "PretrainedConfig", "build"]

_C = TypeVar("_C", bound="PretrainedConfig")
_M = TypeVar("_M", bound="Pretrained[Any]")


class PretrainedConfig(Config):
    """Base of the models' Configs, which read and write Hugging Face's ``config.json``.

    A subclass has in `_KEYS` the key of each field, in `_MODEL_TYPES` the model types that it reads, and in
    `_FIXED` the keys that change what the model computes, and of which it has this value alone.
    """

    other: dict[str, Any] = {}  # noqa: RUF012  # a Config copies it
    """The keys of the ``config.json`` it was read from that the model makes no use of; written back."""

    _MODEL_TYPES: ClassVar[tuple[str, ...]]
    _KEYS: ClassVar[Mapping[str, str]]
    _FIXED: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def from_hugging_face(cls, document: Mapping[str, Any], *, where: str = "config.json") -> Self:
        """Return the Config that a ``config.json`` describes.

        Args:
            document: the contents of the file.
            where: what messages call it.

        Raises:
            ConfigError: it is of another model, or has a feature that this one has not.
        """
        kind = document.get("model_type")
        if kind not in cls._MODEL_TYPES:
            raise ConfigError(
                f"this is no model for {cls.__name__}",
                where=f"{where}: model_type",
                expected=" or ".join(map(repr, cls._MODEL_TYPES)),
                found=repr(kind),
            )
        values, rest = cls._fields_of(dict(document), where)
        for key, wanted in cls._FIXED.items():
            if rest.get(key, wanted) != wanted:
                raise ConfigError(
                    f"{cls.__name__} has no such feature",
                    where=f"{where}: {key}",
                    expected=repr(wanted),
                    found=repr(rest[key]),
                )
        return cls(**values, other={key: value for key, value in rest.items() if key not in cls._FIXED})

    def to_hugging_face(self) -> dict[str, Any]:
        """Return the contents of the ``config.json`` of this model."""
        values = field_values(self)
        keys = {key: values[name] for name, key in self._KEYS.items()}
        return {**self.other, "model_type": self._MODEL_TYPES[0], **self._FIXED, **keys}

    @classmethod
    def load_hugging_face(cls, path: str | os.PathLike[str]) -> Self:
        """Read a ``config.json``.

        Raises:
            ConfigError: it is no JSON, of another model, or has a feature that this one has not.
            OSError: it does not exist or cannot be read.
        """
        where = os.fspath(path)
        return cls.from_hugging_face(read_json(Path(path)), where=where)

    @classmethod
    def _fields_of(cls, document: dict[str, Any], where: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Divide a document into the values of fields and the rest; subclasses translate more than names."""
        values = {name: document.pop(key) for name, key in cls._KEYS.items() if key in document}
        return values, document


class Pretrained(Module, Generic[_C]):
    """Base of the models: built from a Config, read from and written to snapshots as those of Hugging Face.

    Subclasses have their Config in `config_class`, the paths of their heads in `HEADS`, and the published
    layouts of their tensors in `layouts`.
    """

    config_class: ClassVar[type[PretrainedConfig]]
    HEADS: ClassVar[tuple[str, ...]] = ()
    """Patterns on paths of what a file of the body alone lacks: it is new where a file does not have it."""

    def __init__(self, config: _C) -> None:
        super().__init__()
        self._config = config
        self.load_report: LoadReport | None = None
        """What `from_pretrained` loaded, and what the snapshot had besides."""

    @property
    def config(self) -> _C:
        """The Config that the model was built from."""
        return self._config

    @property
    def layouts(self) -> Mapping[str, Layout]:
        """The layouts that `burnt.load_weights` takes as ``layout=``, ``"hugging_face"`` among them."""
        raise NotImplementedError

    @property
    def architecture(self) -> str:
        """The name of transformers' class of the same model."""
        raise NotImplementedError

    @classmethod
    def from_pretrained(
        cls,
        source: str | os.PathLike[str],
        *,
        download: bool = False,
        revision: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | Literal["stored"] | None = None,
        **changes: Any,
    ) -> Self:
        """Build the model that a snapshot describes, and load its weights.

        Args:
            source: a folder with ``config.json`` and weights, as transformers' ``save_pretrained`` writes it;
                with `download`, a name on the Hugging Face Hub, ``"owner/name"``.
            download: fetch the snapshot from the Hub, or take it from the cache of huggingface_hub, which
                has to be installed. Nothing is downloaded without it.
            revision: branch, tag or commit of the snapshot to download.
            device: of the parameters; None is torch's default device.
            dtype: of the parameters; ``"stored"`` is what each has in the file, None torch's default dtype.
            changes: fields of the Config to change, such as another head. A head that the snapshot lacks has
                new weights, and a warning names them, unless it is one of `changes`.

        Returns:
            the model in eval mode.

        Raises:
            ConfigError: the snapshot is of another model, or has a feature that this one has not.
            RecordError: the weights are damaged or do not fit.
            OSError: there is no such folder, or it cannot be read.
        """
        folder = snapshot(source, download=download, revision=revision)
        config = cls.config_class.load_hugging_face(folder / "config.json").replace(**changes)
        place = torch.get_default_device() if device is None else torch.device(device)
        with torch.device("meta"):
            model = config.init()  # type: ignore[attr-defined]
        with place:
            report = load_weights(model, folder, layout="hugging_face", partial=True, dtype=dtype)
        _check_fit(model, report, changed=bool(changes))
        _fill(model, place)
        model.load_report = replace(report, meta=())
        return cast(Self, model.eval())

    def save_pretrained(self, folder: str | os.PathLike[str], *, shard_bytes: int = 5_000_000_000) -> None:
        """Write a snapshot that transformers loads: ``config.json`` and the weights in its layout.

        Args:
            folder: is created if its parent exists; other files in it stay, such as those of a tokenizer.
            shard_bytes: the size of a file of weights; only a single larger tensor makes a larger one.

        Raises:
            RecordError: the folder has weights that cannot be replaced at once.
            OSError: the folder cannot be written or is full.
        """
        record = record_of(self)
        tensors = self.layouts["hugging_face"].write(record.tensors)
        Record(tensors).save_folder(folder, shard_bytes=shard_bytes)
        document = {**self.config.to_hugging_face(), "architectures": [self.architecture]}
        with replacing(Path(folder) / "config.json") as temporary:
            temporary.write_text(json.dumps(document, indent=2) + "\n")


def build(
    model: type[_M], config: PretrainedConfig, device: torch.device | str | None, dtype: torch.dtype | None
) -> _M:
    """Build a model with new weights on a device, then convert it."""
    with torch.get_default_device() if device is None else torch.device(device):
        return model(config).to(dtype=dtype)


def snapshot(source: str | os.PathLike[str], *, download: bool = False, revision: str | None = None) -> Path:
    """Return the folder of a snapshot, downloaded if that is asked for.

    Raises:
        RecordError: there is no such folder, or nothing can be downloaded.
    """
    folder = Path(source)
    if folder.is_dir():
        return folder
    if not download:
        raise RecordError(
            "there is no such snapshot",
            where=os.fspath(source),
            expected="a folder with config.json and weights",
            found="a file" if folder.exists() else "nothing",
            hint="download=True fetches one by its name on the Hugging Face Hub, such as 'Qwen/Qwen2-0.5B'",
        )
    raise NotImplementedError


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object.

    Raises:
        ConfigError: it holds something else.
        OSError: it does not exist or cannot be read.
    """
    try:
        document = parse_json(path.read_bytes())
    except ValueError as error:
        raise ConfigError("this is no JSON", where=os.fspath(path), found=str(error)) from None
    if not isinstance(document, dict):
        raise ConfigError(
            "this is no JSON object", where=os.fspath(path), expected="{...}", found=type(document).__name__
        )
    return document


def _check_fit(model: Pretrained[Any], report: LoadReport, *, changed: bool) -> None:
    """Refuse a snapshot that lacks more than a head, or has more of what the model has."""
    children = {name for name, _ in model.named_children()}
    new = [path for path in report.missing if any(matches(head, path) for head in model.HEADS)]
    missing = [path for path in report.missing if path not in new]
    unexpected = [name for name in report.unexpected if name.split(".")[0] in children]
    if missing or unexpected:
        raise RecordError(
            f"the weights do not fit the config.json beside them: {len(missing) + len(unexpected):,} tensors",
            where=report.source,
            expected=f"the tensors of {type(model).__name__}",
            origin=[
                *(f"missing     {path}" for path in missing[:12]),
                *(f"unexpected  {name}" for name in unexpected[:12]),
            ],
        )
    if new and not changed:
        warnings.warn(
            f"{report.source} has no {', '.join(new)}: these weights are new and have to be trained",
            stacklevel=3,
        )


def _fill(model: torch.nn.Module, device: torch.device) -> None:
    """Give memory and values to what no file holds: a new head, and tables that sizes determine."""
    for module in model.modules():
        own = dict([*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)])
        loaded = {name: tensor.data for name, tensor in own.items() if not tensor.is_meta}
        if len(loaded) == len(own):
            continue
        module.to_empty(device=device, recurse=False)
        module.reset_parameters()  # type: ignore[operator]
        for name, value in loaded.items():
            getattr(module, name).data = value
