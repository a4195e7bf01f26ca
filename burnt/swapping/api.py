"""`swap` and `unswap`: select the sites of a model, and measure them with a batch."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from burnt.codegen.verification import interval_of
from burnt.errors import SwapError, did_you_mean, quantity
from burnt.swapping.first_call import FirstCall, differences, unregister
from burnt.swapping.kind import KINDS, Kind, is_lazy, is_swapped
from burnt.swapping.measure import context_of, device_of
from burnt.swapping.patterns import (  # noqa: F401  importing these registers their kinds
    conv_linear_blocks,
    hf_attention,
    hf_layers,
    torch_layers,
    torch_sequence_layers,
)
from burnt.swapping.report import Report
from burnt.swapping.site import Site, SwapPlan, restore_class, site_of, start
from burnt.swapping.state import preserved_state

_MARK = "_burnt_swap"


def swap(
    model: nn.Module,
    only: str | Sequence[str] | None = None,
    skip: str | Sequence[str] | None = None,
    mode: Literal["train", "infer"] = "train",
    verify: Any = None,
    defer_logits: bool = False,
    *,
    decisions: Report | str | os.PathLike[str] | None = None,
    remeasure: bool = False,
) -> Report:
    """Make an existing model use burnt's kernels, in place.

    Modules stay the same objects, with the same parameters and hooks, and still pass `isinstance`;
    ``state_dict``, optimizers, DDP, wrappers and copies work as before; `torch.compile` sees the original.
    Each site (a module that burnt has a kernel for) is measured against the original. It is swapped if it is
    at least 1.02 times as fast, certainly faster, and differs by no more than rounding explains. Both are
    sampled in turns until the samples decide; a site that is undecided after 3 s stays the original.
    This happens now if `verify` is given, else at the site's first call; it takes some tenths of a second for
    each kind of layer and shape.

    After the model's first call, the whole model is timed, original and swapped, as that call was made: with
    its inputs, training modes and gradients (the backward with ``mode="train"``). Where the swapped model is
    slower beyond the scatter of the samples, the original is restored. This has no effects on the model. It
    takes some 15 calls, or for small models at most 5 s, and the memory of another call and of a copy of the
    parameters. A model whose call takes more than 1.5 s, or that runs in several processes, is not timed, and
    the report says so.

    Decisions are kept in burnt's cache folder, for the model, the shapes and dtypes of its inputs, and the
    machine with its number of threads: the next process with the same takes them, and measures nothing.
    ``BURNT_SWAP_CACHE=0`` turns that off, ``burnt tune clear`` deletes them.

    ``type(layer) is nn.Linear`` is False while a layer is swapped or waits, so code that compares exact
    classes skips it, such as ``torch.ao.quantization.quantize_dynamic`` or some ``init`` functions.
    ``torch.jit.script`` does not accept it. Call `unswap` first.

    Without gradients, a CPU may cache a repacked copy of a weight until the weight changes. Changes through
    ``.data`` are detected by comparing the weight's values: all of them if a call uses each element often;
    else (a large weight and fewer than some 200 rows or positions) a sample, so that partial changes may be
    missed. Change such weights under ``torch.no_grad()``, which torch's version counter records.

    Args:
        model: any module. Layers of `torch.nn` and of Hugging Face's models are recognised, and blocks of
            layers by their structure, such as torchvision's and timm's.
        only: what to swap: module paths (globs, where ``*`` also matches dots) or class names
            (``"LayerNorm"``), each with everything below, or kinds (``"linear"``; see `Row`). None is
            everything.
        skip: what not to swap, in the same form.
        mode: what must become faster: ``"train"`` for forward and backward, ``"infer"`` for the forward
            without gradients. The model computes the same in both.
        verify: a batch to measure with: a tensor, a tuple of arguments, or a mapping of keyword arguments.
            Parameters, buffers, training modes, the model's other attributes and the random generators are
            restored afterwards, from a copy in host memory. Lazy modules stay initialized. Or a share of each
            site's calls, such as ``1/1000``, to compare with the original's, as in `burnt.compile`.
        defer_logits: compute the loss of a language model that trains with labels without its logits. The
            logits that it returns are an object that acts like a tensor and is computed when it is read.
        decisions: the report of an earlier swap of this model, or the path of its file (`Report.save`). Sites
            that it decided for the same settings and shapes are not measured; others are. If it is of another
            machine, number of threads, mode, or version of burnt or torch, it is not used, with a warning.
            With `verify`, errors are checked again, but not times.
        remeasure: do not use what an earlier process has kept.

    Returns:
        A report of what was swapped, with which kernel, and why not; printed, a table.

    Raises:
        SwapError: the model, or a part of it, is already swapped; a word in `only` or `skip` is not a path,
            class or kind; an unknown mode; `defer_logits` for a model without such a loss; `decisions` that
            are not a report, have no decisions, are of another model, or come with `remeasure`; the model or
            the batch is on the meta device; or the model, or measuring it, fails with the batch. The model is
            left unchanged.

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
        raise SwapError("swap needs a model", expected="a torch.nn.Module", found=type(model).__name__)
    if mode not in ("train", "infer"):
        raise SwapError("mode= of swap is unknown", expected="'train' or 'infer'", found=repr(mode))
    for path, module in model.named_modules():
        if _MARK in module.__dict__ or is_swapped(module):
            raise SwapError(
                "the model is already swapped" if not path else "a part of the model is already swapped",
                where=path or None,
                found=type(module).__name__,
                hint="call burnt.unswap(model) first",
            )
    if defer_logits and mode == "infer":
        raise SwapError(
            "defer_logits=True works only in training", expected="mode='train'", found="mode='infer'"
        )
    if decisions is not None and remeasure:
        raise SwapError(
            "remeasure=True ignores what decisions= gives",
            expected="one of them",
            hint="without decisions=, remeasure=True measures every site",
        )
    heads = _heads(model) if defer_logits else {}
    is_share = isinstance(verify, int | float)
    plan = SwapPlan(mode, interval=interval_of(verify, "burnt.swap") if is_share else None)
    verify = None if is_share else verify
    included = _resolve(model, only, "only")
    skipped = _resolve(model, skip, "skip") if skip is not None else set()
    kinds = [k for k in KINDS.values() if not (k.inference_only and mode == "train")]
    if only and included <= KINDS.keys() - {k.name for k in kinds}:
        raise SwapError(
            f"only={only!r} of swap selects kinds that are faster only in inference",
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
            kind = heads.get(module) or _kind_of(module, kinds)
            if kind is None:
                if not any(True for _ in module.children()):
                    others[type(module).__name__] = others.get(type(module).__name__, 0) + 1
                continue
            words = {path, kind.name}
            if not words & included or words & skipped or _absorbs_any(module, kind, skipped, paths):
                excluded += 1
                continue
            site = Site(path, type(module).__name__, kind, plan)
            site.why = _fallback_reason(module, kind)
            if kind.training_only and mode == "infer":
                site.why = "does nothing in evaluation"
            sites.append(site)
            site.requested = site.why is None and (module in heads or not kind.is_measured)
            site.state = "left" if site.why is not None else "swapped" if site.requested else "waiting"
            if site.why is None:
                start(module, site, skip_measuring=site.requested)
        report = Report(plan, others, excluded)
        given = None if decisions is None else _take(decisions, model, plan)
        first_call = FirstCall(report, given, remeasure)
        if verify is not None:
            plan.checks_errors = True
            _verify(model, mode, verify, first_call)
            for site in sites:
                if site.state == "waiting":
                    site.why = "it was not called with the batch of verify="
        elif any(site.state == "waiting" for site in sites):
            first_call.register(model)
    except BaseException:
        _restore(model)
        raise
    return report


def _take(decisions: Any, model: nn.Module, plan: SwapPlan) -> Report | None:
    """Use the decisions of an earlier report; return None, with a warning, if they do not hold here."""
    if not isinstance(decisions, Report | str | os.PathLike):
        raise SwapError(
            "decisions= of swap has the wrong type",
            expected="the report of an earlier swap, or the path of its JSON file",
            found=type(decisions).__name__,
        )
    report = decisions if isinstance(decisions, Report) else Report.load(decisions)
    where = None if isinstance(decisions, Report) else str(decisions)
    earlier = {site.path: site for site in report.plan.sites}
    waiting = [site.path for site in earlier.values() if site.state == "waiting" and site.why is None]
    if waiting and not any(site.signature for site in earlier.values()):
        raise SwapError(
            "the report has no decisions",
            where=where,
            expected="a report that was saved after the model's first call",
            found=f"{quantity(len(waiting), 'site')} waiting for that call, none measured",
            hint="swap with verify=batch, or call the model once before report.save(path)",
        )
    names = [
        {(site.path, site.layer, site.kind) for site in sites} for sites in (plan.sites, earlier.values())
    ]
    if plan.sites and not names[0] & names[1]:
        raise SwapError(
            "the decisions are of another model",
            where=where,
            expected=", ".join(f"{site.path!r} ({site.layer})" for site in plan.sites[:3]),
            found=", ".join(f"{path!r} ({layer})" for path, layer, _ in sorted(names[1], key=str)[:3]),
            hint="without decisions= the model is measured",
        )
    plan.context = context_of(device_of(model))
    if stale := differences(report.plan, plan):
        plan.notes.append(f"the given decisions were not used: {stale}")
        warnings.warn(
            f"burnt.swap measures anew, and does not use the decisions: {stale}", RuntimeWarning, stacklevel=3
        )
        return None
    plan.earlier, plan.earlier_source, plan.earlier_at = earlier, "given", report.plan.at
    return report


def _kind_of(module: nn.Module, kinds: Sequence[Kind]) -> Kind | None:
    """Return the first kind that matches a module; None for a ScriptModule, which runs without Python."""
    if isinstance(module, torch.jit.ScriptModule):
        return None
    return next((kind for kind in kinds if kind.matches(module)), None)


def _absorbs_any(module: nn.Module, kind: Kind, words: set[str], paths: Mapping[nn.Module, str]) -> bool:
    """Whether a module's kernels would absorb a submodule with one of these paths or kinds."""
    if not words:
        return False
    layers = [layer for _, layer in kind.absorbed(module)]
    names = {k.name for k in KINDS.values() for layer in layers if k.matches(layer)}
    return bool(words & (names | {paths[layer] for layer in layers}))


def _heads(model: nn.Module) -> dict[nn.Module, Kind]:
    """Map language models to the kind of their loss, and their last layers to the kind of a head."""
    heads: dict[nn.Module, Kind] = {}
    for module in model.modules():
        head = hf_layers.head_of(module)
        if head is not None:
            heads |= {head: hf_layers.HEAD, module: KINDS["loss"]}
    if not heads:
        raise SwapError(
            "defer_logits=True found no loss that can be computed without logits",
            expected="a language model of Hugging Face's that ends with a plain torch.nn.Linear",
            found=type(model).__name__,
            hint="your own loss can call burnt.kernels.linear_cross_entropy",
        )
    return heads


def unswap(model: nn.Module) -> None:
    """Undo `swap`: give every module its original class.

    Args:
        model: the swapped model, a copy of it, a part of it, or its wrapper.

    Raises:
        SwapError: no part of it is swapped, or it is not a module.
    """
    if not isinstance(model, nn.Module):
        raise SwapError("unswap needs a model", expected="a torch.nn.Module", found=type(model).__name__)
    if not _restore(model):
        raise SwapError("the model is not swapped", found=type(model).__name__, hint="burnt.swap(model)")


def _restore(model: nn.Module) -> bool:
    """Restore the original classes of a model; return whether any was swapped."""
    any_swapped = False
    for module in model.modules():
        any_swapped |= module.__dict__.pop(_MARK, None) is not None
        if not isinstance(module, torch.jit.ScriptModule):
            unregister(module)
        if is_swapped(module):
            restore_class(module)
            any_swapped = True
        elif site_of(module) is not None:
            raise SwapError(
                "a module's class was changed after it was swapped",
                found=" <- ".join(cls.__qualname__ for cls in type(module).__mro__[:3]),
                hint="undo that change first; remove_parametrizations undoes a parametrization",
            )
    return any_swapped


def _fallback_reason(module: nn.Module, kind: Kind) -> str | None:
    """Return why a module of this kind cannot be swapped, or None."""
    if kind.method in module.__dict__:
        return f"user code replaced its {kind.method}"
    if nn.utils.parametrize.is_parametrized(module):
        return "is parametrized"
    if is_lazy(module):
        return "is lazy: call the model once before"
    return kind.fallback_reason(module)


# --- selecting sites --------------------------------------------------------------------------------------


def _resolve(model: nn.Module, words: str | Sequence[str] | None, argument: str) -> set[str]:
    """Return the paths and kinds that words select; a class selects its modules and everything below them."""
    classes: dict[str, list[str]] = {}
    for path, module in model.named_modules():
        classes.setdefault(type(module).__name__, []).append(path)
    paths = [path for of_class in classes.values() for path in of_class]
    if words is None:
        return set(paths)
    patterns = [words] if isinstance(words, str) else words
    if not isinstance(patterns, Iterable) or not all(isinstance(word, str) for word in patterns):
        raise SwapError(
            f"{argument}= of swap has the wrong type",
            expected="a string, or a list of strings",
            found=repr(words),
        )
    selected: set[str] = set()
    for word in patterns:
        matches = {path for path in paths if _covers(word, path)}
        matches |= {path for path in paths if any(_is_below(path, own) for own in classes.get(word, ()))}
        if word in KINDS:
            matches.add(word)
        if not matches:
            raise SwapError(
                f"{word!r} in {argument}= is not a path or class in {type(model).__name__}, and no kind",
                expected="a module's path, a glob on paths, a class, or a kind: " + ", ".join(KINDS),
                found=repr(word),
                hint=did_you_mean(word, [*KINDS, *classes, *filter(None, paths)]),
            )
        selected |= matches
    return selected


def _covers(pattern: str, path: str) -> bool:
    """Whether a glob matches a path or one of its parents."""
    parts = path.split(".")
    return any(fnmatchcase(".".join(parts[: i + 1]), pattern) for i in range(len(parts)))


def _is_below(path: str, other: str) -> bool:
    return not other or path == other or path.startswith(f"{other}.")


# --- measuring with a batch -------------------------------------------------------------------------------


def _verify(model: nn.Module, mode: str, batch: Any, first_call: FirstCall) -> None:
    """Call a model so that its sites are measured, then restore its state and the random generators."""
    args, kwargs = as_arguments(batch)
    inputs = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    for what, tensors in ("batch of verify=", inputs), ("model", (*model.parameters(), *model.buffers())):
        if any(t.is_meta for t in tensors):
            raise SwapError(
                f"the {what} is on the meta device, so nothing can be measured",
                expected="tensors with memory",
                found=_outline(args, kwargs) if tensors is inputs else type(model).__name__,
                hint="without verify= each site is measured at its first call that computes",
            )
    with preserved_state(model, on_host=True), torch.set_grad_enabled(mode == "train"):
        model.train(mode == "train")
        first_call.before(model, args, kwargs)
        try:
            output = model(*args, **kwargs)
        except Exception as failure:  # a user's model may raise any exception
            _restore(model)
            try:
                model(*args, **kwargs)
            except Exception as own:
                error = own
            else:
                raise SwapError(
                    "the model works with the batch of verify=, but burnt failed to measure it",
                    where=type(model).__name__,
                    found=f"{type(failure).__name__}: {failure}",
                    hint="nothing was swapped; skip= leaves out a layer. Please report this error",
                ) from failure
            raise SwapError(
                "the model fails with the batch of verify=",
                where=type(model).__name__,
                expected="a tensor, a tuple of arguments, or a mapping of keyword arguments that it takes",
                found=f"{_outline(args, kwargs)}; {type(error).__name__}: {error}",
                hint="the model must work with it before swap",
            ) from error
        first_call.after(model, args, kwargs, output)


def as_arguments(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and keyword arguments that a batch stands for."""
    if isinstance(batch, Mapping):
        return (), dict(batch)
    return (tuple(batch), {}) if isinstance(batch, tuple | list) else ((batch,), {})


def _outline(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Format arguments by their shapes or types, for messages."""
    parts = [("", value) for value in args] + [(f"{name}=", value) for name, value in kwargs.items()]
    return ", ".join(
        f"{name}{tuple(v.shape)}" if isinstance(v, Tensor) else f"{name}{type(v).__name__}"
        for name, v in parts
    )
