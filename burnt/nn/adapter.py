"""LoRA: train a model by small matrices next to its frozen weights.

A layer keeps its weight and the names of its parameters. It gets two small submodules, ``lora_A`` and
``lora_B`` (peft's names), and a forward hook that adds their product to the output. So a checkpoint of the
base model still loads (``strict=False``), and every kind of Linear works.

Attention layers have weights that no layer of their own multiplies. Such a layer gets a class in which the
weight is a property, the sum of the parameter and the product of two more, which every reader then sees.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from burnt._hints import explain_arguments
from burnt._patterns import matches, near, warn_unmatched
from burnt.config import qualified_name
from burnt.errors import ConfigError, InputValueError, RecordError, quantity
from burnt.nn.dropout import Dropout
from burnt.nn.linear import Linear
from burnt.record import FORMAT, check_format, read_tensors, read_weights, write_tensors

_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_KINDS = (nn.Linear, nn.Embedding, *_CONVS)
_PROJECTIONS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
_ADAPTED = "it has an adapter already"
_CHANGED = "_reads_changed_weights"  # an attribute of the classes that do
_NAMES = (
    *("lora_A", "lora_B", "lora_dropout", "lora_embedding_A", "lora_embedding_B"),
    *(f"lora_{name}_{part}" for name in (*_PROJECTIONS, "weight") for part in "AB"),
)


class _Settings(msgspec.Struct, frozen=True):
    """The numbers of an adapter, as in an adapter's file."""

    rank: int
    alpha: float
    dropout: float
    rank_stabilized: bool

    @property
    def scale(self) -> float:
        return float(self.alpha / (self.rank**0.5 if self.rank_stabilized else self.rank))


@dataclasses.dataclass(eq=False)
class _Adapter:
    """The forward hook of a layer, which is also its attribute ``lora_adapter``."""

    settings: _Settings
    weights: tuple[str, ...] = ()  # the parameters that are read with their change; then there is no hook
    handle: Any = None  # removes the hook
    enabled: bool = True  # False within `without_lora`
    merged: dict[str, Any] | None = None  # the adapter's parts while it is merged and the layer lacks them

    def activate(self, layer: Any) -> None:
        if not self.weights:
            self.handle = layer.register_forward_hook(self, with_kwargs=True)
        elif not any(_is_changed(kind) for kind in type(layer).__mro__):
            kind: Any = type(layer)
            layer.__class__ = _with_changed_weights(kind, self.weights)

    def deactivate(self, layer: Any) -> None:
        if not self.weights:
            self.handle.remove()
        elif _is_changed(type(layer)):  # else `burnt.swap` has put its class on top: the property sees to it
            layer.__class__ = type(layer).__base__

    def __call__(self, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Tensor:
        if not self.enabled:
            return output
        x: Tensor = args[0] if args else kwargs["input"]
        change: Tensor
        if hasattr(layer, "lora_embedding_A"):
            low = F.embedding(x, layer.lora_embedding_A.t(), layer.padding_idx)
            change = F.linear(low, layer.lora_embedding_B)
        else:
            x = x.to(layer.lora_A.weight.dtype)
            x = layer.lora_dropout(x) if self.settings.dropout else x
            change = layer.lora_B(layer.lora_A(x))
        return (output + change * self.settings.scale).to(output.dtype)


@explain_arguments(use_rslora="rank_stabilized=True")
def lora(
    model: nn.Module,
    rank: int = 8,
    targets: str | Sequence[str] | None = None,
    *,
    alpha: float | None = None,
    dropout: float = 0.0,
    rank_stabilized: bool = False,
    dtype: torch.dtype | None = None,
) -> list[str]:
    r"""Freeze a model, and put a small trainable matrix product next to some of its weights.

    .. math:: y = W x + \frac{\alpha}{r} B A x

    Args:
        model: any module; it is changed in place.
        rank: :math:`r`, the size between `A` and `B`.
        targets: patterns on the paths of layers, as in `burnt.freeze`: Linears, attention layers, Embeddings
            and convolutions that match get an adapter. None is every Linear and attention layer.
        alpha: :math:`\alpha`; None is `rank`, so that the factor is 1.
        dropout: probability of dropping an input of `A` while training, for Linears and convolutions.
        rank_stabilized: divide by :math:`\sqrt r` (Kalajdzievski, 2023).
        dtype: dtype of `A` and `B`; None is float32 next to weights of 16 bits, else the weight's.

    Returns:
        The paths of the layers with an adapter. `A` is random and `B` is zero, so that outputs do not change.

    Raises:
        ConfigError: a pattern matches no layer that can be adapted. (One of several alternatives, separated
            by ``|``, that matches none gives a warning.)
        InputValueError: `rank`, `alpha` or `dropout` is not possible.

    May be called again with other targets, which freezes nothing more. ``burnt.unfreeze(model, "head")``
    trains a layer as a whole. In an attention layer, the packed projection of queries, keys and values gets
    one adapter, and so does ``out_proj``. Layers whose weight another layer shares are left out, as are
    convolutions with groups. Hu et al., 2021; Burn's ``apply_lora``.

    >>> import burnt
    >>> model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    >>> lora(model, rank=2, targets="0")
    ['0']
    >>> [path for path, p in model.named_parameters() if p.requires_grad]
    ['0.lora_A.weight', '0.lora_B.weight']
    """
    settings = _Settings(rank, float(rank if alpha is None else alpha), dropout, rank_stabilized)
    for name, holds, expected in (
        ("rank", rank >= 1, "at least 1"),
        ("alpha", settings.alpha > 0, "above 0"),
        ("dropout", 0 <= dropout < 1, "from 0 to below 1"),
    ):
        if not holds:
            raise InputValueError(
                f"LoRA cannot have this {name}",
                where="burnt.nn.lora",
                expected=expected,
                found=getattr(settings, name),
            )
    layers = _select(model, [targets] if isinstance(targets, str) else targets)
    if not any(hasattr(module, "lora_adapter") for module in model.modules()):
        model.requires_grad_(False)
    for layer in layers.values():
        _attach(layer, settings, dtype)
    return list(layers)


def merge_lora(model: nn.Module) -> list[str]:
    """Add each adapter to the weight next to it, and take it out of the model, which then runs as the base.

    Returns:
        The paths of the layers.

    Raises:
        ConfigError: the model has no adapters, or they are merged already; or a weight is shared with another
            layer, as after `load_lora` of peft's adapter of a head that is tied to an embedding; or an
            Embedding has `max_norm`.

    The adapters are kept for `unmerge_lora` until `remove_lora` drops them.

    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    >>> _ = lora(model, rank=2)
    >>> merge_lora(model), list(model.state_dict())
    (['0'], ['0.weight', '0.bias'])
    """
    layers = _adapted(model, merged=False)
    for path, layer in layers.items():
        if reason := _sharing_reason(model, layer):
            raise ConfigError(
                "an adapter cannot be merged without changing another layer",
                where=path,
                found=reason,
                hint="nothing was changed; run the model with its adapters, or copy the weight first",
            )
        if getattr(layer, "max_norm", None) is not None:
            raise ConfigError(
                "an adapter of an Embedding with max_norm cannot be merged",
                where=path,
                expected="max_norm=None: the adapter is added after the norm is limited",
                found=f"max_norm={layer.max_norm}",
                hint="nothing was changed; run the model with its adapters",
            )
    for layer in layers.values():
        _add_to_weight(layer, 1)
        adapter: _Adapter = layer.lora_adapter
        adapter.deactivate(layer)
        adapter.merged = {}
        for name in _NAMES:
            if hasattr(layer, name):
                adapter.merged[name] = getattr(layer, name)
                delattr(layer, name)
    return list(layers)


def unmerge_lora(model: nn.Module) -> list[str]:
    """Undo `merge_lora`: subtract each adapter from its weight, and put it back.

    Returns:
        The paths of the layers. The weights are as before but for rounding; to get them back exactly, load
        the base model again, and `load_lora`.

    Raises:
        ConfigError: no adapters are merged.
    """
    layers = _adapted(model, merged=True)
    for layer in layers.values():
        adapter: _Adapter = layer.lora_adapter
        assert adapter.merged is not None
        device = next(layer.parameters()).device
        for name, part in adapter.merged.items():
            if isinstance(part, nn.Module):
                part.to(device).train(layer.training)
            elif part.device != device:
                part = nn.Parameter(part.detach().to(device), requires_grad=part.requires_grad)
            setattr(layer, name, part)
        adapter.merged = None
        _add_to_weight(layer, -1)
        adapter.activate(layer)
    return list(layers)


def remove_lora(model: nn.Module) -> list[str]:
    """Drop the adapters: merged ones stay in the weights, others leave the base model as it was.

    Returns:
        The paths of the layers. The base stays frozen: see `burnt.unfreeze`.

    Raises:
        ConfigError: the model has no adapters.
    """
    layers = _adapted(model)
    for layer in layers.values():
        layer.lora_adapter.deactivate(layer)
        del layer.lora_adapter
        for name in _NAMES:
            if hasattr(layer, name):
                delattr(layer, name)
    return list(layers)


@contextmanager
def without_lora(model: nn.Module) -> Iterator[None]:
    """Turn the adapters off within a block, such as for the reference of a preference loss.

    The model is then the base model, except for parameters that were unfrozen and trained.

    Raises:
        ConfigError: the model has no adapters, or they are merged.
    """
    adapters = [layer.lora_adapter for layer in _adapted(model, merged=False).values()]
    before = [adapter.enabled for adapter in adapters]
    for adapter in adapters:
        adapter.enabled = False
    try:
        yield
    finally:
        for adapter, enabled in zip(adapters, before, strict=True):
            adapter.enabled = enabled


def save_lora(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write the adapters, and other parameters that are trained, to one safetensors file, atomically.

    The file's metadata has rank, alpha, dropout and the paths of the layers.

    Raises:
        ConfigError: the model has no adapters, or they are merged.
        OSError: the folder cannot be written; an old file is unchanged.
    """
    groups: dict[_Settings, list[str]] = {}
    for target, layer in _adapted(model, merged=False).items():
        groups.setdefault(layer.lora_adapter.settings, []).append(target)
    tensors = {p: v for p, v in model.named_parameters() if v.requires_grad or _is_of_adapter(p)}
    document = {
        "format": FORMAT,
        "torch": torch.__version__,
        "aliases": {},
        "model": qualified_name(type(model)),
        "config_type": None,
        "config": None,
        "static": {},
        "lora": [{**msgspec.structs.asdict(s), "targets": paths} for s, paths in groups.items()],
    }
    write_tensors(path, tensors, document)


class _Group(_Settings, frozen=True):
    """The layers that have adapters with the same settings."""

    targets: list[str]

    @property
    def settings(self) -> _Settings:
        return _Settings(self.rank, self.alpha, self.dropout, self.rank_stabilized)


def load_lora(model: nn.Module, path: str | os.PathLike[str]) -> list[str]:
    """Freeze a base model, and put the adapters of a file next to its weights.

    Args:
        model: the base model, without adapters; it is changed in place.
        path: a file that `save_lora` wrote, or a folder that peft's ``save_pretrained`` wrote.

    Returns:
        The paths of the layers with an adapter. Other parameters in the file are loaded and trained too;
        weights of adapted embeddings and heads that peft repeats in its file stay frozen.

    Raises:
        ConfigError: the model has adapters already.
        RecordError: the file is damaged, is not an adapter, or does not fit the model, which is then
            unchanged; or peft's options have one that is not applied here; or the file has a weight of its
            own for one of several layers that share one in the model.
        OSError: the file cannot be read.
    """
    tensors, groups = _read_peft(model, Path(path)) if os.path.isdir(path) else _read(path)
    modules = dict(model.named_modules())
    if present := [name for name, module in modules.items() if hasattr(module, "lora_adapter")]:
        raise ConfigError(
            f"{type(model).__name__} has adapters already",
            found=f"an adapter of {present[0]!r}",
            hint="burnt.nn.remove_lora(model) drops them",
        )
    targets = {target: group for group in groups for target in group.targets}
    for target in targets:
        if target not in modules or not _is_adaptable(modules[target]):
            kind = type(modules[target]).__name__ if target in modules else "nothing"
            raise _mismatch(model, path, target, f"an adapter in the file, {kind} in the model")
    names = {name for name, _ in model.named_parameters()}
    for target, group in targets.items():
        dtypes = (t.dtype for name, t in tensors.items() if name.startswith(_join(target, "lora_")))
        _attach(modules[target], group.settings, next(dtypes, None))
    parameters = dict(model.named_parameters())
    for name in sorted(tensors.keys() | (parameters.keys() - names)):
        here, there = (tuple(d[name].shape) if name in d else "nothing" for d in (parameters, tensors))
        if here != there:
            if targets:
                remove_lora(model)
            raise _mismatch(model, path, name, f"{there} in the file, {here} in the model")
    model.requires_grad_(False)
    for name, value in tensors.items():
        parameters[name].detach().copy_(value)
        parameters[name].requires_grad_(True)
    return list(targets)


# --- files ------------------------------------------------------------------------------------------------


def _read(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], list[_Group]]:
    tensors, document = read_tensors(path)
    if document is not None:
        check_format(document, os.fspath(path))
    try:
        return tensors, msgspec.convert((document or {}).get("lora"), list[_Group])
    except msgspec.ValidationError as error:
        raise RecordError(
            "this is not a file of LoRA adapters",
            where=os.fspath(path),
            expected="a file that burnt.nn.save_lora wrote",
            found=str(error) if document and "lora" in document else "a tensor file without adapters",
        ) from None


_PEFT_INERT = {
    *("task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode"),
    *("target_modules", "exclude_modules", "target_parameters"),
    *(
        "layers_to_transform",
        "layers_pattern",
        "eva_config",
        "corda_config",
        "loftq_config",
        "lora_ga_config",
    ),
    *("megatron_core", "qalora_group_size", "runtime_config"),
}
"""Options of peft that only decide which tensors an adapter has, and how they were initialized."""

_PEFT_COPIES = {"modules_to_save", "original_module"}
"""Parts of the names under which ``bias="all"`` repeats the biases of layers that are saved as a whole."""


class _PeftConfig(msgspec.Struct):
    """The options in peft's ``adapter_config.json`` that `load_lora` applies."""

    peft_type: Literal["LORA"]
    lora_alpha: float
    r: int | None = None
    rank_pattern: dict[str, int] = {}
    lora_dropout: float = 0.0
    use_rslora: bool = False
    init_lora_weights: bool | Literal["gaussian", "eva", "orthogonal"] = True  # others change the base, too
    bias: Literal["none", "all", "lora_only"] = "none"
    modules_to_save: list[str] | None = None


def _read_peft_config(file: Path) -> _PeftConfig:
    """Read the options of peft's adapter; another option that is on is refused by name."""
    try:
        options = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
        config = msgspec.convert(options, _PeftConfig)
    except msgspec.MsgspecError as error:
        problem = str(error)
    else:
        others = options.keys() - _PEFT_INERT - set(_PeftConfig.__struct_fields__)
        problem = ", ".join(f"{name}={options[name]!r}" for name in sorted(others) if options[name])
        if not problem:
            return config
    raise RecordError(
        "peft's adapter cannot be read",
        where=str(file),
        expected="a LoRA next to unchanged weights, with one alpha and no variant such as DoRA",
        found=problem,
        hint="merge the adapter into the base model with peft, and load the merged weights",
    )


def _read_peft(model: nn.Module, folder: Path) -> tuple[dict[str, Tensor], list[_Group]]:
    config = _read_peft_config(folder / "adapter_config.json")
    files = [folder / f"adapter_model{ending}" for ending in (".safetensors", ".bin")]
    file = next((file for file in files if file.exists()), None)
    if file is None:
        raise RecordError(
            "the folder has no weights of an adapter",
            where=str(folder),
            expected=" or ".join(file.name for file in files),
            found=", ".join(sorted(entry.name for entry in folder.iterdir())),
        )
    saved = {name.removeprefix("base_model.model."): t for name, t in read_weights(file).tensors.items()}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    tensors: dict[str, Tensor] = {}
    for name, value in saved.items():
        if _PEFT_COPIES & set(name.split(".")):
            continue
        # peft calls an adapted layer's own tensors those of its base_layer: biases that are trained, and the
        # weights of embeddings and heads, which are the base model's unless its vocabulary was resized.
        inner = name not in parameters and "base_layer" in name.split(".") and not _is_of_adapter(name)
        own = ".".join(part for part in name.split(".") if part != "base_layer") if inner else name
        trained = config.bias != "none" and own.endswith("bias")
        if not inner or trained or own not in parameters or not _is_same(parameters[own], value):
            tensors[own] = value
    # peft lists modules that the model may lack: "classifier" and "score" for each classifier.
    saved_whole = [
        m for m in config.modules_to_save or () if any(f".{m}." in f".{name}" for name in parameters)
    ]
    for part in ("lora_", *saved_whole):
        if not any(f".{part}" in f".{name}" for name in tensors):
            raise RecordError(
                "a tensor of peft's adapter is missing",
                where=str(file),
                expected=f"tensors of {part}",
                found=", ".join(sorted(tensors)[:5]) or "none",
                hint="copy the adapter's folder again",
            )
    groups: dict[int, list[str]] = {}
    for name, value in tensors.items():
        layer, _, part = name.removesuffix(".weight").rpartition(".lora_")
        if part not in ("A", "B", "embedding_A", "embedding_B"):
            continue
        both = {name, name.replace(".lora_" + part, ".lora_" + part[:-1] + "BA"["AB".index(part[-1])])}
        if missing := both - tensors.keys():
            raise RecordError(
                "a tensor of peft's adapter is missing",
                where=str(file),
                expected=missing.pop(),
                found=f"only {name}",
                hint="copy the adapter's folder again",
            )
        if part.endswith("B"):
            continue
        keys = (key for key in config.rank_pattern if re.fullmatch(rf"(.*\.)?({key})", layer))
        rank = config.rank_pattern.get(next(keys, ""), config.r or len(value))
        if rank != len(value):
            raise RecordError(
                "peft's adapter cannot be read",
                where=f"{file}: {name}",
                expected=f"rank {rank}, as adapter_config.json says",
                found=f"rank {len(value)}",
                hint="restore r= and rank_pattern= in adapter_config.json, on which the scale depends",
            )
        groups.setdefault(rank, []).append(layer)
    _check_ties(model, file, tensors)
    return tensors, [
        _Group(rank, config.lora_alpha, config.lora_dropout, config.use_rslora, targets=targets)
        for rank, targets in groups.items()
    ]


def _is_same(base: Tensor, value: Tensor) -> bool:
    """Whether a tensor in a file is the model's, perhaps in another dtype."""
    base = base.detach().to(value.device)
    return base.shape == value.shape and (
        torch.equal(base.to(value.dtype), value) or torch.equal(base, value.to(base.dtype))
    )


def _check_ties(model: nn.Module, file: Path, tensors: dict[str, Tensor]) -> None:
    """Refuse what would change another layer: peft gives each layer of a tied weight its own copy.

    Tensors that have equal values for all layers of a weight become one.
    """
    ties: dict[Tensor, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        ties.setdefault(parameter, []).append(name)
    for names in ties.values():
        given = [name for name in names if name in tensors]
        if len(names) == 1 or not given:
            continue
        if len(given) < len(names) or any(not torch.equal(tensors[given[0]], tensors[n]) for n in given):
            raise RecordError(
                "the adapter has a weight of its own for a layer that shares one in the model",
                where=f"{file}: {given[0]}",
                expected="the same values for " + " and ".join(names),
                found=f"{' and '.join(given)}{' with different values' if len(given) > 1 else ' only'}",
                hint="give the layers weights of their own first: "
                f"layer.weight = torch.nn.Parameter(layer.weight.clone()) for {names[-1]!r}",
            )
        for name in given[1:]:
            del tensors[name]


# --- parts ------------------------------------------------------------------------------------------------


def _select(model: nn.Module, patterns: Sequence[str] | None) -> dict[str, Any]:
    """Return the layers to adapt, by path."""
    paths = {path: m for path, m in model.named_modules() if _is_adaptable(m) and not _is_of_adapter(path)}
    reasons = {path: _unsupported_reason(model, path, layer) for path, layer in paths.items()}
    if patterns is None:
        wide = (nn.Embedding, *_CONVS)
        narrow = {path: reasons[path] for path, m in paths.items() if not isinstance(m, wide)}
        chosen = {path for path, reason in narrow.items() if reason is None}
        if not chosen:
            raise _no_target(model, None, narrow, ())
    else:
        chosen = set()
        adaptable = [path for path, reason in reasons.items() if reason is None]
        for pattern in patterns:
            matching = {path for path in paths if matches(pattern, path)}
            if not any(reasons[path] is None for path in matching):
                raise _no_target(model, pattern, {path: reasons[path] for path in sorted(matching)}, paths)
            warn_unmatched(pattern, adaptable, "layer that can be adapted")
            chosen |= {path for path in matching if reasons[path] is None}
    return {path: layer for path, layer in paths.items() if path in chosen}


def _unsupported_reason(model: nn.Module, path: str, layer: Any) -> str | None:
    """Return why a layer cannot be adapted; None if it can."""
    if hasattr(layer, "lora_adapter"):
        return _ADAPTED
    if isinstance(layer, _CONVS) and layer.groups != 1:
        return "it is a convolution with groups"
    if any(layer._parameters.get(name) is None for name in _bare_weights(layer) or ("weight",)):
        return "its weight is not a parameter, as with a parametrization"
    return _sharing_reason(model, layer)


def _sharing_reason(model: nn.Module, layer: Any) -> str | None:
    """Return which other layer has the same weight; None if there is none."""
    weights = [layer._parameters[name] for name in _bare_weights(layer) or ("weight",)]
    owners = ((name.rpartition(".")[0], p) for name, p in model.named_parameters(remove_duplicate=False))
    sharing = [
        owner
        for owner, p in owners
        if any(p is weight for weight in weights) and model.get_submodule(owner) is not layer
    ]
    return f"its weight is shared with {sharing[0]!r}" if sharing else None


def _no_target(
    model: nn.Module, pattern: str | None, reasons: Mapping[str, str | None], known: Iterable[str]
) -> ConfigError:
    if reasons and set(reasons.values()) == {_ADAPTED}:
        return ConfigError(
            f"all layers of {type(model).__name__} for targets={pattern!r} have adapters already",
            found=f"{quantity(len(reasons), 'layer')} with an adapter, such as {next(iter(reasons))!r}",
            hint="burnt.nn.remove_lora(model) drops the adapters of the model",
        )
    problems = [f"{path or 'the model'}: {reason}" for path, reason in reasons.items()]
    if not problems and pattern is not None:
        others = ((path, module) for path, module in model.named_modules() if path and matches(pattern, path))
        problems = [f"{path}: a {type(module).__name__}, which LoRA cannot adapt" for path, module in others]
    return ConfigError(
        f"targets={pattern!r} matches no layer of {type(model).__name__} that can be adapted",
        expected="the path of a Linear, an attention layer, an Embedding or a convolution, or a pattern",
        found=problems[0] if problems else "no such layer",
        hint=None if problems or pattern is None else near(pattern, known),
    )


def _attach(layer: Any, settings: _Settings, dtype: torch.dtype | None) -> None:
    """Put the parts of an adapter, and the hook, into a layer."""
    weights, rank = _bare_weights(layer), settings.rank
    weight = layer._parameters[weights[0]] if weights else layer.weight
    if dtype is None:
        dtype = torch.float32 if weight.element_size() < 4 else weight.dtype
    placed: dict[str, Any] = {"device": weight.device, "dtype": dtype}
    if weights:
        for name in weights:
            rows, columns = layer._parameters[name].shape
            setattr(layer, f"lora_{name}_A", nn.Parameter(_small(rank, columns, placed)))
            setattr(layer, f"lora_{name}_B", nn.Parameter(torch.zeros(rows, rank, **placed)))
    elif isinstance(layer, nn.Embedding):
        layer.lora_embedding_A = nn.Parameter(torch.zeros(rank, layer.num_embeddings, **placed))
        layer.lora_embedding_B = nn.Parameter(torch.randn(layer.embedding_dim, rank, **placed))
    elif isinstance(layer, nn.Linear):
        layer.lora_A = Linear(layer.in_features, rank, False, **placed)
        layer.lora_B = Linear(rank, layer.out_features, False, **placed)
    else:
        # A convolution of the layer's kind, so that it pads in the same way, and then one of single pixels.
        kind = next(c for c in type(layer).__mro__ if c.__module__.startswith(("burnt.nn.", "torch.nn.")))
        layer.lora_A = kind(
            layer.in_channels,
            rank,
            layer.kernel_size,
            layer.stride,
            layer.padding,
            layer.dilation,
            bias=False,
            padding_mode=layer.padding_mode,
            **placed,
        )
        layer.lora_B = kind(rank, layer.out_channels, 1, bias=False, **placed)
    if hasattr(layer, "lora_B"):
        nn.init.zeros_(layer.lora_B.weight)
        if settings.dropout:
            layer.lora_dropout = Dropout(settings.dropout)
        for name, part in layer.named_children():
            if name in _NAMES:
                part.train(layer.training)  # new modules are in training mode
    layer.lora_adapter = _Adapter(settings, weights)
    layer.lora_adapter.activate(layer)


def _small(rank: int, columns: int, placed: dict[str, Any]) -> Tensor:
    """Return the first values of `A`, drawn as a Linear's."""
    return nn.init.kaiming_uniform_(torch.empty(rank, columns, **placed), math.sqrt(5))


def _change(layer: Any, name: str) -> Tensor:
    """Return what an adapter adds to a weight."""
    if name in layer.lora_adapter.weights:
        product = getattr(layer, f"lora_{name}_B") @ getattr(layer, f"lora_{name}_A")
    elif hasattr(layer, "lora_embedding_A"):
        product = (layer.lora_embedding_B @ layer.lora_embedding_A).t()
    else:
        product = (layer.lora_B.weight.flatten(1) @ layer.lora_A.weight.flatten(1)).view(layer.weight.shape)
    return cast(Tensor, product * layer.lora_adapter.settings.scale)


def _add_to_weight(layer: Any, sign: int) -> None:
    """Add ``sign`` times the adapter's product to a layer's weights, in place."""
    for name in layer.lora_adapter.weights or ("weight",):
        weight = layer._parameters[name].detach()
        weight.copy_(weight + sign * _change(layer, name).detach())


def _is_adaptable(module: nn.Module) -> bool:
    return isinstance(module, _KINDS) or bool(_bare_weights(module))


def _bare_weights(layer: nn.Module) -> tuple[str, ...]:
    """Return the names of the matrices that something else than a call of their own layer multiplies."""
    if isinstance(layer, NonDynamicallyQuantizableLinear):  # in torch's attention
        return ("weight",)
    return tuple(name for name in _PROJECTIONS if layer._parameters.get(name) is not None)


@functools.cache
def _with_changed_weights(kind: Any, names: tuple[str, ...]) -> Any:
    """Return a subclass whose weights are read with their change, and that copies and pickles as such."""

    def read(name: str) -> property:
        def weight(layer: Any) -> Tensor:
            base: Tensor = layer._parameters[name]
            adapter = vars(layer).get("lora_adapter")
            if adapter is None or adapter.merged is not None or not adapter.enabled:
                return base
            return (base + _change(layer, name)).to(base.dtype)

        return property(weight)

    def reduce(layer: Any, protocol: Any) -> tuple[Any, ...]:
        return _rebuild, (kind, names), *kind.__reduce_ex__(layer, protocol)[2:]

    same = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    body = {**same, _CHANGED: True, "__reduce_ex__": reduce, **{name: read(name) for name in names}}
    return type(kind)(kind.__name__, (kind,), body)


def _is_changed(kind: type) -> bool:
    return _CHANGED in vars(kind)


def _rebuild(kind: Any, names: tuple[str, ...]) -> Any:
    changed = _with_changed_weights(kind, names)
    return changed.__new__(changed)


def _adapted(model: nn.Module, merged: bool | None = None) -> dict[str, Any]:
    """Return the layers with an adapter, merged or not, by path; a ConfigError if there are none."""
    layers: dict[str, Any] = {p: m for p, m in model.named_modules() if hasattr(m, "lora_adapter")}
    right = {
        p: m for p, m in layers.items() if merged is None or merged == (m.lora_adapter.merged is not None)
    }
    if not right:
        state = {None: "", True: "merged ", False: "active "}[merged]
        other = "" if not layers else f"; those it has are {'active' if merged else 'merged'}"
        raise ConfigError(
            f"{type(model).__name__} has no {state}LoRA adapters{other}",
            hint="burnt.nn.unmerge_lora(model) makes them active again"
            if layers and not merged
            else "burnt.nn.lora(model) adds adapters",
        )
    return right


def _is_of_adapter(path: str) -> bool:
    return any(name in _NAMES for name in path.split("."))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _mismatch(model: nn.Module, path: str | os.PathLike[str], name: str, found: str) -> RecordError:
    return RecordError(
        f"the adapters do not fit {type(model).__name__}",
        where=f"{os.fspath(path)}: {name}",
        expected="the base model that they were trained on",
        found=found,
        hint="nothing was changed",
    )
