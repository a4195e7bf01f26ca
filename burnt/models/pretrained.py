"""What the models share: a Config read from ``config.json``, weights in published layouts, downloads."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, Self, TypeAlias, TypeVar, cast

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from burnt import nn
from burnt._files import parse_json, replacing
from burnt._patterns import matches
from burnt.config import Config, field_values
from burnt.device import as_device
from burnt.errors import ConfigError, InputTypeError, RecordError, ShapeError, UnsupportedError, did_you_mean
from burnt.module import Module
from burnt.record import Join, Layout, LoadReport, Record, Step, load_weights, record_of
from burnt.record.sources import open_source

_CONFIGS = ["config.json", "generation_config.json", "preprocessor_config.json"]
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.txt", "vocab.json", "merges.txt", "chat_template.jinja",
)  # fmt: skip
"""What snapshots have for their tokenizers. burnt makes no use of a chat template, but copies it."""

_SAFETENSORS = ["model*.safetensors", "model*.safetensors.index.json"]
_BIN = ["pytorch_model*.bin", "pytorch_model*.bin.index.json"]


def find_folder(
    source: str | os.PathLike[str], *, download: bool, revision: str | None, weights: bool = True
) -> Path:
    """Return a folder, or that of the Hub's cache with what was downloaded, if that is asked for."""
    folder = Path(source)
    if folder.is_dir():
        return folder
    if download:
        return download_snapshot(os.fspath(source), revision=revision, weights=weights)
    raise RecordError(
        "there is no such snapshot",
        where=os.fspath(source),
        expected=f"a folder with {'config.json and weights' if weights else 'the files of a tokenizer'}",
        found="a file" if folder.exists() else "nothing",
        hint="pass the folder that it is in"
        if folder.exists()
        else "download=True fetches one by its name on the Hugging Face Hub, such as 'Qwen/Qwen2-0.5B'",
    )


def download_snapshot(name: str, *, revision: str | None = None, weights: bool = True) -> Path:
    """Download what burnt reads of a repository, or take it from huggingface_hub's cache.

    That is the configuration, the files of the tokenizer, and the weights: as safetensors, or where there are
    none as ``.bin`` files. Cache, offline mode, tokens and mirrors are huggingface_hub's, with its
    environment variables (``HF_HOME``, ``HF_HUB_OFFLINE``, ``HF_TOKEN``, ``HF_ENDPOINT``).

    `name` is ``"owner/name"``, or ``"name"`` for the oldest repositories, `revision` a branch, tag or commit.
    Returns the folder in the cache. Without huggingface_hub it raises an UnsupportedError, and a RecordError,
    whose cause is huggingface_hub's, if nothing can be downloaded.
    """
    try:
        import huggingface_hub
    except ImportError as error:
        raise UnsupportedError(
            "a snapshot is downloaded by huggingface_hub, which is not installed",
            where=name,
            hint='pip install "burnt[models]"; or download its files into a folder, and pass the folder',
        ) from error
    for files in (_SAFETENSORS, _BIN) if weights else ([],):
        try:
            folder = Path(
                huggingface_hub.snapshot_download(
                    name,
                    revision=revision,
                    allow_patterns=[*_CONFIGS, *TOKENIZER_FILES, *files],
                    ignore_patterns=["*/*"],  # the patterns match in folders, too
                )
            )
        except Exception as error:  # of huggingface_hub, of its HTTP client and of the system
            raise _download_error(name, revision, error) from error
        if not weights or any(any(folder.glob(pattern)) for pattern in files):
            return folder
    raise RecordError(
        "a repository has no weights that can be read",
        where=name,
        expected="model.safetensors or pytorch_model.bin, or shards with their index",
        found=", ".join(sorted(path.name for path in folder.iterdir())[:5]) or "nothing",
    )


def _download_error(name: str, revision: str | None, error: Exception) -> RecordError:
    from huggingface_hub import errors

    at = name if revision is None else f"{name} at {revision}"
    found = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
    login = "`hf auth login`, or HF_TOKEN"
    if isinstance(error, errors.GatedRepoError):  # is a RepositoryNotFoundError
        return RecordError(
            "a repository may be downloaded only after its terms are accepted",
            where=at,
            found=found,
            hint=f"accept them at https://huggingface.co/{name}, then {login}",
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        hint = f"check the name; a private repository needs {login}"
        return RecordError("there is no such repository on the Hub", where=at, found=found, hint=hint)
    if isinstance(error, errors.RevisionNotFoundError):
        hint = f"see https://huggingface.co/{name}/refs for branches and tags"
        return RecordError("the repository has no such revision", where=at, found=found, hint=hint)
    if isinstance(error, errors.HFValidationError):
        return RecordError(
            "this is neither a folder nor a name on the Hub",
            where=at,
            expected="owner/name, such as 'Qwen/Qwen2-0.5B'",
            found=found,
        )
    if isinstance(error, errors.LocalEntryNotFoundError):
        return RecordError(
            "the snapshot is not in the cache, and the Hub cannot be reached",
            where=at,
            found=found,
            hint="check the network, and whether HF_HUB_OFFLINE is set; or pass a folder with the files",
        )
    return RecordError("the snapshot cannot be downloaded", where=at, found=found)


Activation: TypeAlias = Literal[
    "gelu",
    "gelu_tanh",
    "hardswish",
    "leaky_relu",
    "mish",
    "relu",
    "relu2",
    "relu6",
    "sigmoid",
    "silu",
    "tanh",
]
"""The names of `burnt.nn.build_activation` that transformers has, too."""

_NAMES: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "hardswish": "hardswish",
    "leaky_relu": "leaky_relu",
    "mish": "mish",
    "relu": "relu",
    "relu2": "relu2",
    "relu6": "relu6",
    "sigmoid": "sigmoid",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
"""burnt's names of transformers' activations; the first of several is the one that is written."""


def read_activation(name: str, where: str) -> Activation:
    """Return burnt's name of one of transformers' activations; a ConfigError if there is none."""
    if name not in _NAMES:
        raise ConfigError(
            "the models have no such activation",
            where=where,
            expected=" or ".join(map(repr, _NAMES)),
            found=repr(name),
            hint=did_you_mean(name, _NAMES),
        )
    return _NAMES[name]


def name_activation(activation: str, before: str) -> str:
    """Return transformers' name of an activation: the one before if that is the same activation."""
    if _NAMES.get(before) == activation:
        return before
    return next(name for name, ours in _NAMES.items() if ours == activation)


_OTHER_NAMES = {"num_labels": "num_classes", "torch_dtype": "dtype", "device_map": "device"}
"""Arguments of transformers' `from_pretrained` that have another name here."""

LAYER_KEYS = {
    "d_model": "hidden_size",
    "d_ff": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "activation": "hidden_act",
    "init_std": "initializer_range",
}
"""The keys of fields that Configs of transformers have, but for GPT-2's."""

_C = TypeVar("_C", bound="PretrainedConfig")
_M = TypeVar("_M", bound="Pretrained[Any]")


class PretrainedConfig(Config):
    """Base of the models' Configs, which read and write Hugging Face's ``config.json``.

    A subclass has in `_KEYS` the key of each field, in `_ACTIVATIONS` the fields that hold activations, and
    in `_FIXED` the keys that change what the model computes, and of which it has only this value.
    `_MODEL_TYPES` has how the name of transformers' class begins, by model type, and `_HEADS` the value of
    the field `head` by how it ends. A field `num_classes` is the number of labels.
    """

    other: dict[str, Any] = {}  # noqa: RUF012  # a Config copies it
    """The keys of the ``config.json`` it was read from that are not fields; written back."""

    _MODEL_TYPES: ClassVar[Mapping[str, str]]
    _KEYS: ClassVar[Mapping[str, str]]
    _ACTIVATIONS: ClassVar[tuple[str, ...]] = ("activation",)
    _FIXED: ClassVar[Mapping[str, Any]] = {}
    _HEADS: ClassVar[Mapping[str, str | None]] = {}

    @classmethod
    def from_hugging_face(cls, document: Mapping[str, Any], *, where: str = "config.json") -> Self:
        """Return the Config that a ``config.json`` describes.

        Args:
            document: the contents of the file.
            where: what messages call the source.

        Raises:
            ConfigError: it is of another model, or has a feature that this one has not.
        """
        kind = document.get("model_type")
        if kind not in cls._MODEL_TYPES:
            known = model_classes()
            raise ConfigError(
                f"this is not a model for {cls.__name__}",
                where=f"{where}: model_type",
                expected=" or ".join(map(repr, cls._MODEL_TYPES)),
                found=repr(kind),
                hint=f"burnt.models.{known[str(kind)].__name__} reads it" if str(kind) in known else None,
            )
        if document.get("quantization_config"):
            raise ConfigError(
                "quantized weights cannot be loaded",
                where=f"{where}: quantization_config",
                found=repr(document["quantization_config"]),
                hint="take the snapshot that it was made from, which has weights of 16 or 32 bits",
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
        values = {**cls._labels_of(document), **values}
        try:
            return cls(**values, other=rest)
        except ConfigError as error:
            error.where = f"{where}: {cls._KEYS.get(error.where or '', error.where)}"
            raise

    def to_hugging_face(self) -> dict[str, Any]:
        """Return the contents of the ``config.json`` of this model."""
        values = field_values(self)
        document = {**self.other, "model_type": next(iter(self._MODEL_TYPES))}
        for name in self._ACTIVATIONS:
            values[name] = name_activation(values[name], document.get(self._KEYS[name], ""))
        document |= {key: values[name] for name, key in self._KEYS.items()}
        number = values.get("num_classes")
        if number is not None and number != _count_labels(document):
            labels = {str(i): f"LABEL_{i}" for i in range(number)}
            document |= {"id2label": labels, "label2id": {label: int(i) for i, label in labels.items()}}
            document.pop("num_labels", None)
        return document

    @classmethod
    def load_hugging_face(cls, path: str | os.PathLike[str]) -> Self:
        """Read a ``config.json``.

        Raises:
            ConfigError: it is not JSON, of another model, or has a feature that this one has not.
            OSError: it does not exist or cannot be read.
        """
        where = os.fspath(path)
        return cls.from_hugging_face(read_json(Path(path)), where=where)

    @classmethod
    def _labels_of(cls, document: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields `head` and `num_classes`, as far as the document has them."""
        values: dict[str, Any] = {}
        ends = [
            (end, head)
            for name in document.get("architectures") or ()
            for end, head in cls._HEADS.items()
            if name.endswith(end)
        ]
        if ends:
            values["head"] = ends[0][1]
        if "num_classes" in cls.__struct_fields__:
            values["num_classes"] = _count_labels(document)
        return values

    @classmethod
    def _fields_of(cls, document: dict[str, Any], where: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Divide a document into the values of fields and the rest; subclasses translate more than names."""
        values: dict[str, Any] = {}
        for name, key in cls._KEYS.items():
            if key in document and name in cls._ACTIVATIONS:  # stays, as several names mean the same
                values[name] = read_activation(document[key], f"{where}: {key}")
            elif key in document:
                value = document.pop(key)
                values[name] = tuple(value) if isinstance(value, list) else value
        return values, document


class Pretrained(Module, Generic[_C]):
    """Base of the models: built from a Config, read from and written to snapshots like Hugging Face's.

    Subclasses have their Config in `config_class`, the paths of their heads in `HEADS`, and the published
    layouts of their tensors in `layouts`.
    """

    config_class: ClassVar[type[PretrainedConfig]]
    HEADS: ClassVar[tuple[str, ...]] = ()
    """Patterns on paths of what a file of only the body lacks: it is new where a file does not have it."""

    def __init__(self, config: _C) -> None:
        super().__init__()
        self._config = config
        self.load_report: LoadReport | None = None
        """What `from_pretrained` loaded, and what the snapshot had besides."""
        self.generation_config: dict[str, Any] = {}
        """The ``generation_config.json`` of the snapshot, such as the tokens that end a text; saved too."""

    def _initialize(self, std: float) -> None:
        """Fill matrices with normal numbers, and biases with zeros; the vectors of padding stay zero."""
        _fill_normal(self.named_parameters(), std)
        with torch.no_grad():
            for module in self.modules():
                if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                    module.weight[module.padding_idx] = 0.0

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
        config: Any = self.config
        family: str = config._MODEL_TYPES[config.to_hugging_face()["model_type"]]
        end: str = next(end for end, head in config._HEADS.items() if head == config.head)
        return family + end

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
            device: device of the parameters; None is torch's default device.
            dtype: dtype of the parameters; ``"stored"`` keeps the file's for each, None is torch's default.
            changes: fields of the Config to change, such as ``head="classification", num_classes=3``. A head
                that the snapshot lacks, or has for other classes, gets new weights; where it is not one of
                `changes`, a warning says so.

        Returns:
            the model in eval mode; ``model.load_report`` says what was loaded.

        Raises:
            ConfigError: the snapshot is of another model, or has a feature that this one has not.
            RecordError: there is no such snapshot, or its weights are damaged or do not fit.
            DeviceError: there is no such device.
            InputTypeError: `dtype` is not a floating-point dtype.
            OSError: a file cannot be read.
        """
        place = torch.get_default_device() if device is None else as_device(device)
        _check_dtype(dtype)
        folder = snapshot(source, download=download, revision=revision)
        config = cls.config_class.load_hugging_face(folder / "config.json")
        try:
            config = config.replace(**changes)
        except ConfigError as error:
            names = {key: name for name, key in config._KEYS.items()} | _OTHER_NAMES
            if error.where in names:
                error.hint = f"in burnt: {names[error.where]}"
            raise
        with torch.device("meta"), _WithoutInit():
            model = cls(cast(_C, config))
        model._remember_config(config)
        is_new_head = not changes.keys().isdisjoint(("head", "num_classes"))
        skip = _resized_heads(model, folder) if is_new_head else []
        try:
            with place:
                report = load_weights(
                    model, folder, skip=skip, layout="hugging_face", partial=True, dtype=dtype
                )
        except RecordError as error:
            if error.origin:  # shapes differ; the hint of `load_weights` is an argument that this lacks
                error.hint = "config.json and weights are of different models"
                if changes:
                    error.hint = f"without {', '.join(changes)}, the sizes are those of config.json"
            raise
        _check_fit(model, report, changes, warn=not is_new_head)
        _fill(model, place, dtype)
        model.load_report = replace(report, meta=())
        if (folder / "generation_config.json").is_file():
            model.generation_config = read_json(folder / "generation_config.json")
        return model.eval()

    def save_pretrained(self, folder: str | os.PathLike[str], *, shard_bytes: int = 5_000_000_000) -> None:
        """Write a snapshot that transformers loads: ``config.json`` and the weights in its layout.

        Args:
            folder: is created if its parent exists; other files in it stay, such as a tokenizer's. A
                snapshot in it is replaced.
            shard_bytes: the size of a file of weights; only a single larger tensor makes a larger one.

        Raises:
            RecordError: the model has LoRA adapters that are not merged, or `folder` is a file or has weights
                that cannot be replaced at once.
            OSError: the folder cannot be written or is full; a snapshot in it is as before.
        """
        record = record_of(self)
        if adapters := [path for path in record.tensors if ".lora_" in f".{path}"]:
            raise RecordError(
                "a snapshot cannot hold LoRA adapters",
                where=adapters[0],
                hint="burnt.nn.merge_lora(model) adds them to the weights, unmerge_lora(model) takes them "
                "out again; burnt.nn.save_lora(model, path) saves only them",
            )
        tensors = self.layouts["hugging_face"].write(record.tensors)
        dtypes = [value.dtype for value in self.parameters() if value.is_floating_point()]
        document = {**self.config.to_hugging_face(), "architectures": [self.architecture]}
        document.pop("torch_dtype", None)
        document["dtype"] = str(dtypes[0]).removeprefix("torch.")
        folder = Path(folder)
        if folder.is_file():
            raise RecordError(
                "a snapshot is a folder", where=os.fspath(folder), expected="a folder", found="a file"
            )
        folder.mkdir(exist_ok=True)
        # The old config.json is replaced only when the weights are.
        with replacing(folder / "config.json") as temporary:
            temporary.write_text(json.dumps(document, indent=2) + "\n")
            Record(tensors).save_folder(folder, shard_bytes=shard_bytes)
        if self.generation_config:
            with replacing(folder / "generation_config.json") as temporary:
                temporary.write_text(json.dumps(self.generation_config, indent=2) + "\n")


def load_pretrained(
    source: str | os.PathLike[str],
    *,
    download: bool = False,
    revision: str | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | Literal["stored"] | None = None,
    **changes: Any,
) -> Pretrained[Any]:
    """Load a snapshot into the model of `burnt.models` that its ``config.json`` names.

    Arguments, results and errors are as in `Pretrained.from_pretrained`.

    >>> import tempfile
    >>> from burnt.models import LlamaConfig
    >>> config = LlamaConfig(vocab_size=100, d_model=32, d_ff=64, num_layers=2, num_heads=4)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     config.init().save_pretrained(folder)
    ...     print(type(load_pretrained(folder)).__name__)
    Llama
    """
    folder = snapshot(source, download=download, revision=revision)
    where = folder / "config.json"
    kind = str(read_json(where).get("model_type"))
    if kind not in model_classes():
        raise ConfigError(
            "burnt has no such model",
            where=f"{where}: model_type",
            expected=" or ".join(map(repr, model_classes())),
            found=repr(kind),
            hint="burnt.load_weights loads the weights into any torch.nn.Module that you build",
        )
    return model_classes()[kind].from_pretrained(folder, device=device, dtype=dtype, **changes)


def check_tokens(tokens: object, padding: object, where: str, *, single: bool = False) -> None:
    """Refuse what is not a batch of token ids (if `single`: a sequence), and padding that is not boolean."""
    if not isinstance(tokens, Tensor):
        raise InputTypeError(
            "tokens are a tensor",
            where=where,
            expected="integers [B, L]",
            found=type(tokens).__name__,
            hint="tokens, padding = tokenizer.batch(texts), or torch.tensor([ids])",
        )
    if tokens.dim() != 2 and not (single and tokens.dim() == 1):
        raise ShapeError(
            "tokens are a batch of sequences",
            where=where,
            expected="[B, L]",
            found=tuple(tokens.shape),
            hint="tokens[None] is a batch of one sequence" if tokens.dim() == 1 else None,
        )
    check_padding(padding, where)


def check_padding(padding: object, where: str) -> None:
    """Raise an InputTypeError for padding that is not boolean."""
    if padding is not None and not (isinstance(padding, Tensor) and padding.dtype == torch.bool):
        raise InputTypeError(
            "padding is boolean",
            where=where,
            expected="True at tokens to ignore",
            found=str(padding.dtype) if isinstance(padding, Tensor) else type(padding).__name__,
            hint="padding=attention_mask == 0, of a tokenizer's attention_mask",
        )


def check_heads(d_model: int, num_heads: int, otherwise: str = "") -> None:
    """Raise a ConfigError for vectors that cannot be split into heads."""
    if num_heads < 1 or d_model % num_heads:
        raise ConfigError(
            "d_model cannot be split into heads",
            where="d_model",
            expected=f"a multiple of num_heads = {num_heads}{otherwise}",
            found=d_model,
        )


def check_length(length: int, longest: int, where: str) -> None:
    """Raise a ShapeError for a sequence that is longer than the positions of a model."""
    if length > longest:
        raise ShapeError(
            "the sequence is longer than the model's positions",
            where=where,
            expected=f"at most {longest} tokens",
            found=length,
            hint="shorten it; the positions are learned, so that there are no others",
        )


def join_qkv(parts: Iterable[str], attention: str, sizes: tuple[int, ...] | None = None) -> list[Step]:
    """Return the steps of a layout that join queries, keys and values; `sizes` are the parts' sizes."""
    parts = tuple(parts)
    return [
        Join(tuple(f"{part}.{kind}" for part in parts), f"{attention}.in_proj_{kind}", sizes)
        for kind in ("weight", "bias")
    ]


def model_classes() -> dict[str, type[Pretrained[Any]]]:
    """Return the models by model type."""
    bases: list[type[Pretrained[Any]]] = [Pretrained, *Pretrained.__subclasses__()]
    models = [model for base in bases for model in base.__subclasses__() if hasattr(model, "config_class")]
    return {kind: model for model in models for kind in model.config_class._MODEL_TYPES}


def build(
    model: type[_M], config: PretrainedConfig, device: torch.device | str | None, dtype: torch.dtype | None
) -> _M:
    """Build a model with new weights on a device, then convert it."""
    with torch.get_default_device() if device is None else torch.device(device):
        return model(config).to(dtype=dtype)


def snapshot(source: str | os.PathLike[str], *, download: bool = False, revision: str | None = None) -> Path:
    """Return the folder of a snapshot, downloaded if that is asked for."""
    folder = find_folder(source, download=download, revision=revision)
    if not (folder / "config.json").is_file():
        raise _no_config(folder)
    return folder


def _no_config(folder: Path) -> RecordError:
    names = sorted(path.name for path in folder.iterdir())
    hint = "burnt.load_weights(model, folder) loads weights into a model that you have built"
    if "adapter_config.json" in names:
        hint = "these are adapters: load the model that they are for, then burnt.nn.load_lora(model, folder)"
    elif inner := sorted(folder.glob("snapshots/*/config.json")):
        hint = f"this is a folder of the Hub's cache: {os.fspath(inner[-1].parent)!r} is a snapshot in it"
    return RecordError(
        "the folder is not a snapshot",
        where=os.fspath(folder),
        expected="config.json and weights",
        found=(", ".join(names[:5]) + (", ..." if len(names) > 5 else "")) or "nothing",
        hint=hint,
    )


def _count_labels(document: Mapping[str, Any]) -> int:
    labels = document.get("id2label")
    return len(labels) if labels else document.get("num_labels") or 2


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object; a ConfigError if it holds something else."""
    try:
        document = parse_json(path.read_bytes())
    except ValueError as error:
        raise ConfigError("this is not JSON", where=os.fspath(path), found=str(error)) from None
    if not isinstance(document, dict):
        raise ConfigError(
            "this is not a JSON object",
            where=os.fspath(path),
            expected="{...}",
            found=type(document).__name__,
        )
    return document


def _check_dtype(dtype: Any) -> None:
    if isinstance(dtype, torch.dtype) and (dtype.is_floating_point or dtype.is_complex):
        return
    if dtype in (None, "stored"):
        return
    is_name = isinstance(dtype, str) and isinstance(getattr(torch, dtype, None), torch.dtype)
    raise InputTypeError(
        "this is not a dtype of parameters",
        where="dtype",
        expected="a floating-point torch.dtype, 'stored' or None",
        found=repr(dtype),
        hint=f"dtype=torch.{dtype}" if is_name else "dtype='stored'" if dtype == "auto" else None,
    )


def _check_fit(model: Pretrained[Any], report: LoadReport, changes: Mapping[str, Any], *, warn: bool) -> None:
    """Refuse a snapshot that lacks more than a head, or has more of what the model has.

    With `warn` there is a warning of a new head; new parts next to it, such as a pooler, always get one.
    """
    children = {name for name, _ in model.named_children()}
    new = [path for path in report.missing if any(matches(head, path) for head in model.HEADS)]
    missing = [path for path in report.missing if path not in new]
    unexpected = [name for name in report.unexpected if name.split(".")[0] in children]
    if missing or unexpected:
        raise RecordError(
            f"the weights do not fit their config.json: {len(missing) + len(unexpected):,} tensors",
            where=report.source,
            expected=f"the tensors of {type(model).__name__}",
            origin=[
                *(f"missing     {report.describe_missing(path)}" for path in missing[:12]),
                *(f"unexpected  {name}" for name in unexpected[:12]),
            ],
            hint=f"without {', '.join(changes)}, the sizes are those of config.json" if changes else None,
        )
    if unasked := [path for path in new if warn or not matches("head", path)]:
        warnings.warn(
            f"{report.source} has no {', '.join(unasked)}: these weights are new and have to be trained",
            stacklevel=3,
        )


class _WithoutInit(TorchFunctionMode):
    """Skips the initialisation of weights, of which a tensor on the meta device has none.

    ``normal_`` on that device would import all of torch's compiler: 3 s and 100 MB.
    """

    def __torch_function__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init" or func in (Tensor.normal_, Tensor.uniform_):
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


def _resized_heads(model: Pretrained[Any], folder: Path) -> list[str]:
    """Return the paths of heads that have another shape in a snapshot, such as heads for other classes."""
    with ExitStack() as stack:
        stored = model.layouts["hugging_face"].arrange(open_source(folder, stack).tensors).tensors
    return [
        path
        for path, value in model.state_dict().items()
        if path in stored
        and stored[path].shape != tuple(value.shape)
        and any(matches(head, path) for head in model.HEADS)
    ]


def _fill_normal(parameters: Iterable[tuple[str, Tensor]], std: float) -> None:
    """Fill what has several axes with normal numbers, and biases with zeros; norms keep their ones."""
    with torch.no_grad():
        for path, parameter in parameters:
            if parameter.dim() > 1:
                parameter.normal_(std=std)
            elif path.endswith("bias"):
                parameter.zero_()


def _fill(
    model: Pretrained[Any], device: torch.device, dtype: torch.dtype | Literal["stored"] | None
) -> None:
    """Give memory and values to what no file holds: a new head, and tables that sizes determine.

    A new head has the dtype of the loaded parameters.
    """
    loaded_dtypes = (p.dtype for p in model.parameters() if not p.is_meta and p.is_floating_point())
    new_dtype = next(loaded_dtypes, None) if dtype == "stored" else dtype
    std = getattr(model.config, "init_std", None)  # a ResNet has none
    created: dict[Tensor, Tensor] = {}
    for module in model.modules():
        own = dict([*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)])
        loaded = {name: tensor.data for name, tensor in own.items() if not tensor.is_meta}
        if len(loaded) == len(own):
            continue
        for name, tensor in own.items():
            # `to_empty` would import sympy, which takes a second.
            value = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
            if name in loaded:
                tensor.data = value
            elif isinstance(tensor, torch.nn.Parameter):
                setattr(module, name, created.setdefault(tensor, torch.nn.Parameter(value)))
            else:
                setattr(module, name, value)
        module.reset_parameters()  # type: ignore[operator]
        if std is not None:
            new = ((name, p) for name, p in module.named_parameters(recurse=False) if name not in loaded)
            _fill_normal(new, std)
        module.to(dtype=new_dtype)
        for name, value in loaded.items():
            getattr(module, name).data = value
