"""`swap` and `unswap`: the places of a model, and a look at what becomes of them with a batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from burnt.errors import SwapError, nearest
from burnt.swapping.kind import KINDS, Kind, is_swapped
from burnt.swapping.patterns import (  # noqa: F401  these define kinds
    conv_linear_blocks,
    hf_attention,
    hf_layers,
    torch_layers,
    torch_sequence_layers,
)
from burnt.swapping.report import Report
from burnt.swapping.site import Site, SwapPlan, restore_class, site_of, start

__all__ = ["as_arguments", "swap", "unswap"]

_MARK = "_burnt_swap"


def swap(
    model: nn.Module,
    only: str | Sequence[str] | None = None,
    skip: str | Sequence[str] | None = None,
    mode: Literal["train", "infer"] = "train",
    verify: Any = None,
    defer_logits: bool = False,
) -> Report:
    """Put burnt's kernels into a model that exists, in place.

    Modules stay the objects that they are, with the same parameters, hooks and classes to `isinstance`;
    ``state_dict``, optimizers, DDP, wrappers and copies work as before, and a compiler sees the original.
    Each place is measured beside the original, which stays where the swapped one is not 1.02 times as fast or
    differs by more than rounding explains: with `verify` now, else at its first call, which takes some tenths
    of a second for each kind of layer and shape.

    ``type(layer) is nn.Linear`` is False while a layer is swapped or waits: what goes by exact classes, such
    as ``torch.ao.quantization.quantize_dynamic`` or an ``init`` function of that kind, passes it over.
    ``torch.jit.script`` does not take it. `unswap` first.

    Without gradients, a CPU may keep weights in a layout of its own until they change. Changes through
    ``.data`` are noticed by looking at the weight: at all of it where a call uses each element often, else (a
    large weight and less than some 200 rows or places) at some, and changes in part may be missed. Change
    it under ``torch.no_grad()`` there, which torch counts.

    Args:
        model: any module; layers of `torch.nn` are recognised, those of Hugging Face's models, and blocks of
            layers whatever they are called, as torchvision and timm have them.
        only: what is swapped: module paths (globs, where ``*`` crosses dots) and names of classes
            (``"LayerNorm"``), with all below them, or kinds (``"linear"``; `Row` has them); None is
            everything.
        skip: what is not, likewise.
        mode: what must become faster: ``"train"`` forward and backward, ``"infer"`` the forward without
            gradients. Both compute the same in either case.
        verify: a batch for the model to measure with: a tensor, a tuple of arguments, or a mapping of
            keyword arguments. The model's buffers, random generators and modes are as before afterwards.
        defer_logits: a language model that trains with labels computes its loss without the logits. What it
            returns as logits is computed when it is looked at: it is no tensor, but goes where one goes.

    Returns:
        What was swapped with what, where, and why not; printed, a table.

    Raises:
        SwapError: the model, or a part, is swapped already; a word in `only` or `skip` is no path, class or
            kind; another mode; `defer_logits` for a model that has no loss of that kind; the model or the
            batch is on meta; or the model fails with the batch, and is as it was.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Softmax(-1))
    >>> report = swap(model, skip="softmax")
    >>> report.waiting
    ['0']
    >>> isinstance(model[0], torch.nn.Linear)
    True
    >>> unswap(model)
    """
    if not isinstance(model, nn.Module):
        raise SwapError("there is no model to swap", expected="a torch.nn.Module", found=type(model).__name__)
    if mode not in ("train", "infer"):
        raise SwapError(
            "a model is swapped to train or to infer", expected="'train' or 'infer'", found=repr(mode)
        )
    for path, module in model.named_modules():
        if _MARK in module.__dict__ or is_swapped(module):
            raise SwapError(
                "the model is swapped already" if not path else "a part of the model is swapped already",
                where=path or None,
                found=type(module).__name__,
                hint="burnt.unswap(model) first",
            )
    if defer_logits and mode == "infer":
        raise SwapError(
            "logits are deferred in training alone", expected="mode='train'", found="mode='infer'"
        )
    heads = _heads(model) if defer_logits else {}
    plan = SwapPlan(mode)
    wanted = _chosen(model, only, "only")
    unwanted = _chosen(model, skip, "skip") if skip is not None else set()
    asked = [k for k in KINDS.values() if not (k.inference and mode == "train")]
    if only and wanted <= KINDS.keys() - {k.name for k in asked}:
        raise SwapError(
            f"only={only!r} of swap is nothing that training gains from",
            expected="mode='infer', or another kind",
            found=f"mode={mode!r}",
        )
    sites = plan.sites
    others: dict[str, int] = {}
    excluded = 0
    model.__dict__[_MARK] = mode
    paths = {module: path for path, module in model.named_modules()}
    try:
        for path, module in model.named_modules():
            kind = heads.get(module) or _kind_of(module, asked)
            if kind is None:
                if not any(True for _ in module.children()):
                    others[type(module).__name__] = others.get(type(module).__name__, 0) + 1
                continue
            words = {path, kind.name, *([kind.makes] if kind.makes is not None else [])}
            if not words & wanted or words & unwanted or _holds(module, kind, unwanted, paths):
                excluded += 1
                continue
            site = Site(path, type(module).__name__, kind, plan)
            site.why = _why_not(module, kind)
            if kind.training and mode == "infer":
                site.why = "does nothing in evaluation"
            if kind.makes is not None and site.why is None:
                start(module, site, settled=True)  # what it makes are the places
                continue
            sites.append(site)
            deferred = module in heads
            site.state = "left" if site.why is not None else "swapped" if deferred else "waiting"
            if site.why is None:
                start(module, site, settled=deferred)
        if verify is not None:
            _verify(model, mode, verify)
            for site in sites:
                if site.state == "waiting":
                    site.why = "the batch of verify= does not reach it"
    except BaseException:
        unswap(model)
        raise
    return Report(plan, others, excluded)


def _kind_of(module: nn.Module, asked: Sequence[Kind]) -> Kind | None:
    """The first kind that a module is of; a script, which runs without Python, is of none."""
    if isinstance(module, torch.jit.ScriptModule):
        return None
    return next((kind for kind in asked if kind.matches(module)), None)


def _holds(module: nn.Module, kind: Kind, words: set[str], paths: Mapping[nn.Module, str]) -> bool:
    """Whether some of these paths and kinds would be part of a module's kernels."""
    if not words:
        return False
    layers = [layer for _, layer in kind.inside(module)]
    known = {k.name for k in KINDS.values() for layer in layers if k.matches(layer)}
    return bool(words & (known | {paths[layer] for layer in layers}))


def _heads(model: nn.Module) -> dict[nn.Module, Kind]:
    """The last layers of language models, and the models, which have their losses.

    Raises:
        SwapError: there are none.
    """
    found: dict[nn.Module, Kind] = {}
    for module in model.modules():
        head = hf_layers.head_of(module)
        if head is not None:
            found |= {head: hf_layers.HEAD, module: KINDS["loss"]}
    if not found:
        raise SwapError(
            "defer_logits=True finds no loss that can do without logits",
            expected="a language model of Hugging Face's with a plain torch.nn.Linear at its end",
            found=type(model).__name__,
            hint="a loss of one's own can call burnt.kernels.linear_cross_entropy",
        )
    return found


def unswap(model: nn.Module) -> None:
    """Take burnt's kernels out of a model again; every module gets its own class back.

    Args:
        model: what was given to `swap`, a copy of it, a part of it, or what wraps it.

    Raises:
        SwapError: nothing of it is swapped, or it is no module.
    """
    if not isinstance(model, nn.Module):
        raise SwapError(
            "there is no model to take kernels out of",
            expected="a torch.nn.Module",
            found=type(model).__name__,
        )
    found = False
    for module in model.modules():
        found |= module.__dict__.pop(_MARK, None) is not None
        if is_swapped(module):
            restore_class(module)
            found = True
        elif site_of(module) is not None:
            raise SwapError(
                "a module was given another class after it was swapped",
                found=" <- ".join(cls.__qualname__ for cls in type(module).__mro__[:3]),
                hint="take that back first; a parametrization by remove_parametrizations",
            )
    if not found:
        raise SwapError("the model is not swapped", found=type(model).__name__, hint="burnt.swap(model)")


def _why_not(module: nn.Module, kind: Kind) -> str | None:
    if kind.method in module.__dict__:
        return f"its {kind.method} was replaced by somebody"
    if nn.utils.parametrize.is_parametrized(module):
        return "is parametrized"
    return kind.why_not(module)


# --- which places -----------------------------------------------------------------------------------------


def _chosen(model: nn.Module, words: str | Sequence[str] | None, argument: str) -> set[str]:
    """The paths and kinds that words stand for; a class stands for the paths of its modules, and those below.

    Raises:
        SwapError: a word stands for nothing.
    """
    classes: dict[str, list[str]] = {}
    for path, module in model.named_modules():
        classes.setdefault(type(module).__name__, []).append(path)
    paths = [path for of_class in classes.values() for path in of_class]
    if words is None:
        return set(paths)
    given = [words] if isinstance(words, str) else words
    if not isinstance(given, Iterable) or not all(isinstance(word, str) for word in given):
        raise SwapError(
            f"{argument}= of swap cannot be read", expected="a text, or a list of texts", found=repr(words)
        )
    found: set[str] = set()
    for word in given:
        covered = {path for path in paths if _covers(word, path)}
        covered |= {path for path in paths if any(_is_below(path, own) for own in classes.get(word, ()))}
        if word in KINDS:
            covered.add(word)
        if not covered:
            close = nearest(word, [*KINDS, *classes, *filter(None, paths)])
            raise SwapError(
                f"{word!r} in {argument}= is no path or class in {type(model).__name__}, and no kind",
                expected="a module's path, a glob on paths, a class, or a kind: " + ", ".join(KINDS),
                found=repr(word),
                hint=None if close is None else f"did you mean {close!r}?",
            )
        found |= covered
    return found


def _covers(pattern: str, path: str) -> bool:
    parts = path.split(".")
    return any(fnmatchcase(".".join(parts[: i + 1]), pattern) for i in range(len(parts)))


def _is_below(path: str, other: str) -> bool:
    return not other or path == other or path.startswith(f"{other}.")


# --- a look with a batch ----------------------------------------------------------------------------------


def _verify(model: nn.Module, mode: str, batch: Any) -> None:
    """Call a model so that its places are measured, and leave no trace of it.

    Raises:
        SwapError: the model fails, or there is nothing to compute with.
    """
    args, kwargs = as_arguments(batch)
    given = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    for what, tensors in ("batch of verify=", given), ("model", (*model.parameters(), *model.buffers())):
        if any(t.is_meta for t in tensors):
            raise SwapError(
                f"the {what} is on meta, where there is nothing to measure",
                expected="tensors with memory",
                found=_outline(args, kwargs) if tensors is given else type(model).__name__,
                hint="without verify= each place is measured at its first call that computes",
            )
    modes = {module: module.training for module in model.modules()}
    buffers = [(buffer, buffer._version, buffer.clone()) for buffer in model.buffers()]
    cuda = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    try:
        model.train(mode == "train")
        with torch.random.fork_rng(devices=cuda), torch.set_grad_enabled(mode == "train"):
            model(*args, **kwargs)
    except Exception as error:  # of any kind: it is somebody's model
        raise SwapError(
            "the model fails with the batch of verify=",
            where=type(model).__name__,
            expected="a tensor, a tuple of arguments, or a mapping of keyword arguments that the model takes",
            found=f"{_outline(args, kwargs)}; {type(error).__name__}: {error}",
            hint=f"model({_stars(batch)}batch) must work as it stands",
        ) from error
    finally:
        for module, training in modes.items():
            module.training = training
        with torch.no_grad():
            for buffer, version, before in buffers:
                if buffer._version != version:
                    buffer.copy_(before)


def as_arguments(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A batch as what a model is called with, by position and by name."""
    if isinstance(batch, Mapping):
        return (), dict(batch)
    return (tuple(batch), {}) if isinstance(batch, tuple | list) else ((batch,), {})


def _stars(batch: Any) -> str:
    """How a batch is given to a model: as it is, by position or by name."""
    return "**" if isinstance(batch, Mapping) else "*" if isinstance(batch, tuple | list) else ""


def _outline(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    parts = [("", value) for value in args] + [(f"{name}=", value) for name, value in kwargs.items()]
    return ", ".join(
        f"{name}{tuple(v.shape)}" if isinstance(v, Tensor) else f"{name}{type(v).__name__}"
        for name, v in parts
    )
