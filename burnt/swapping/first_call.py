"""The first call of a swapped model: look up what an earlier process decided before, time the whole after."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from burnt import _torch
from burnt.codegen.precision import precision
from burnt.errors import CacheError, SwapError
from burnt.swapping import kept
from burnt.swapping.kind import is_swapped, original_class
from burnt.swapping.measure import (
    Call,
    ModelTiming,
    NotCallableError,
    context_of,
    copy_arguments,
    device_of,
    race,
    shared_copy,
    summarize_error,
)
from burnt.swapping.report import Report
from burnt.swapping.site import (
    SECONDS_BETWEEN_LINES,
    SwapPlan,
    can_measure,
    class_with_kernels,
    restore_class,
    show_progress,
    site_of,
)
from burnt.swapping.state import preserved_state

_SECONDS = 5.0  # for what is undecided; the minimum number of rounds may take longer
_SLOWEST = 1.5  # seconds of a call; some 15 are needed


def time_model(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], backward: bool
) -> ModelTiming:
    """Time a model's call, original and swapped, on copies: it has no effects on the model.

    The call is timed as it is made: with the modules' training modes, and with gradients if they are enabled.
    With `backward`, also the backward of the loss that the model returns, or else of all its outputs.
    """
    training = "training" if model.training else "evaluation"
    finding = ModelTiming(f"forward in {training} mode")
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        finding.why = "it may communicate with other processes, which would have to make the same calls"
        return finding
    if (wrapper := _wrapper_in(model)) is not None:
        finding.why = f"a {wrapper} expects a backward after each call"
        return finding
    with (
        preserved_state(model, on_host=True),
        _torch.without_saved_tensor_hooks(),
        _torch.without_global_hooks(),
    ):
        try:
            inputs = copy_arguments(model, args, kwargs)
            theirs, ours = (
                Call(shared_copy(model, cls(model), cls), *inputs, backward, select_output=loss_or_output)
                for cls in (_class_when_restored, _class_now)
            )
            if theirs.leaves:
                finding.how = f"forward and backward in {training} mode"
            seconds = theirs.once()
            if seconds > _SLOWEST:
                finding.why = f"a call takes {seconds:.1f} s, and some 15 are needed"
                return finding
            if 15 * seconds > SECONDS_BETWEEN_LINES:
                show_progress(f"times the whole model, for some {15 * seconds:.0f} s")
            finding.timing = race(theirs, ours, lambda timing: timing.is_surely_faster_or_slower, _SECONDS)
        except NotCallableError as error:
            finding.why = f"its call cannot be repeated: {error}"
        except Exception as error:  # user code, called once more, may raise any exception
            finding.why = f"its call cannot be repeated: {summarize_error(error)}"
    return finding


def restore_original(model: nn.Module, plan: SwapPlan, why: str) -> None:
    """Give a model's modules their original classes, except those swapped on request, and say why."""
    for module in model.modules():
        site = site_of(module)
        if site is not None and is_swapped(module) and not site.requested:
            restore_class(module)
    for site in plan.sites:
        if site.state != "left" and not site.requested:
            site.state, site.why = "left", why


def _wrapper_in(model: nn.Module) -> str | None:
    """Return the class of a module that wraps others for several devices or processes, if there is one."""
    for module in model.modules():
        names = [base.__module__ for base in type(module).__mro__]
        if any(name.startswith(("torch.nn.parallel.", "torch.distributed.")) for name in names):
            return type(module).__name__
    return None


def _class_now(module: nn.Module) -> type:
    """Return a module's class, or its original one if it waits: copies do not decide."""
    site = site_of(module)
    if site is not None and site.state == "swapped":
        return class_with_kernels(module, site.kind)
    original: type = original_class(module)
    return original


def _class_when_restored(module: nn.Module) -> type:
    site = site_of(module)
    return type(module) if site is not None and site.requested else original_class(module)


def loss_or_output(output: Any) -> Any:
    """Return the loss in a model's output, or else the output."""
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    return loss if isinstance(loss, Tensor) else output


_lock = threading.Lock()


class FirstCall:
    """The hooks of a model that waits for its first call; they are removed after it.

    With `verify`, `before` and `after` are called instead. `given` is the report of an earlier swap, whose
    decisions are used; `remeasure` ignores what an earlier process has kept.
    """

    def __init__(self, report: Report, given: Report | None = None, remeasure: bool = False) -> None:
        self.report, self.remeasure = report, remeasure
        self.earlier = given
        self.path: Path | None = None
        self.has_begun = False
        self.is_copy = False

    def __getstate__(self) -> dict[str, Any]:
        # A copy of the model has no report, and each of its sites decides for itself.
        return {"is_copy": True, "has_begun": False}

    def register(self, model: nn.Module) -> None:
        """Register the hooks, unless the model looks at its own hooks, and would compute in another way."""
        if isinstance(model, nn.TransformerEncoderLayer):
            return
        model.register_forward_pre_hook(self.before, with_kwargs=True)
        model.register_forward_hook(self.after, with_kwargs=True)

    def before(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Find the decisions of an earlier process for this model and these inputs."""
        if torch.compiler.is_compiling():
            return
        if self.is_copy:
            unregister(model)
            return
        plan = self.report.plan
        is_replica = getattr(model, "_is_replica", False)  # of DataParallel: it shares the hooks
        self.has_begun = not is_replica and can_measure(model, args, kwargs)
        if not self.has_begun:
            return
        digests = _digest_model(model, plan), _digest_call(model, args, kwargs)
        if digests == (plan.model, plan.inputs):
            return  # a call like this one has decided nothing
        plan.model, plan.inputs = digests
        plan.context = context_of(device_of(model, args, kwargs))
        if plan.earlier_source == "kept":
            self.earlier = self._load()
            if self.earlier is not None:
                plan.earlier = {site.path: site for site in self.earlier.plan.sites}
                plan.earlier_at = self.earlier.plan.at
        whole = self._earlier_whole()
        if whole is not None and whole.timing is not None and whole.restored:
            for site in plan.sites:
                earlier = plan.earlier.get(site.path)
                if earlier is not None and site.state == "waiting":
                    site.finding, site.shape, site.like = earlier.finding, earlier.shape, earlier.like
                    site.error, site.reference = earlier.error, earlier.reference
                    site.signature, site.source = earlier.signature, plan.earlier_source
            restore_original(model, plan, _slower(whole.timing.speed))
            plan.whole = replace(whole, source=plan.earlier_source)

    def after(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: object) -> None:
        """Time the whole model, restore the original if it is faster, and keep the decisions."""
        # One thread does this, and the others go on.
        if torch.compiler.is_compiling() or not self.has_begun or not _lock.acquire(blocking=False):
            return
        try:
            self._finish(model, args, kwargs)
        finally:
            _lock.release()

    def _finish(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        plan = self.report.plan
        if not any(site.signature for site in plan.sites):
            return
        unregister(model)
        any_swapped = any(site.state == "swapped" and not site.requested for site in plan.sites)
        is_new = any(site.source == "measured" for site in plan.sites)
        if any_swapped:
            whole = self._earlier_whole()
            if not is_new and whole is not None:
                plan.whole = replace(whole, source=plan.earlier_source)
            else:
                is_new = True
                self._time(model, args, kwargs)
        plan.at = time.time() if is_new else plan.earlier_at
        if is_new:
            self._store()

    def _time(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        plan = self.report.plan
        backward = plan.mode == "train" and torch.is_grad_enabled()
        plan.whole = whole = time_model(model, args, kwargs, backward)
        if whole.timing is None or not whole.timing.is_slower:
            return
        if plan.has_hooks:
            whole.why = (
                "slower, but not restored: checkpointing may call layers again in the backward, and would "
                "find other ones; call burnt.unswap before the next step"
            )
            return
        whole.restored = True
        whole.why = "slower beyond the scatter of the samples: the original was restored"
        restore_original(model, plan, _slower(whole.timing.speed))

    def _earlier_whole(self) -> ModelTiming | None:
        """Return the earlier time of the whole model, if it is of this model and of inputs like these."""
        if self.earlier is None:
            return None
        plan, earlier = self.report.plan, self.earlier.plan
        is_alike = (earlier.model, earlier.inputs) == (plan.model, plan.inputs)
        return earlier.whole if is_alike else None

    def _load(self) -> Report | None:
        """Return what an earlier process has kept, if it still holds."""
        plan = self.report.plan
        if not kept.is_enabled():
            return None
        try:
            self.path = kept.path_of(plan.mode, plan.model, plan.inputs, plan.context["machine"])
            report = None if self.remeasure or not self.path.exists() else Report.load(self.path)
        except (SwapError, CacheError, OSError) as error:
            plan.notes.append(f"kept decisions cannot be used: {_first_line(error)}")
            return None
        if report is not None and (stale := differences(report.plan, plan)):
            plan.notes.append(f"kept decisions were measured again: {stale}")
            return None
        return report

    def _store(self) -> None:
        if self.path is None:
            return
        try:
            kept.store(self.path, self.report)
        except (CacheError, OSError) as error:
            self.report.plan.notes.append(f"the decisions cannot be kept: {_first_line(error)}")


def differences(earlier: SwapPlan, now: SwapPlan) -> str:
    """Return in what the conditions of two swaps differ, as text; empty if in nothing."""
    before, after = ({"mode": plan.mode, **plan.context} for plan in (earlier, now))
    texts = [
        f"{name} was {before.get(name, 'unknown')}, and is {value}"
        for name, value in after.items()
        if before.get(name) != value
    ]
    return "; ".join(texts)


def unregister(model: nn.Module) -> None:
    """Remove the hooks of a `FirstCall`, if there are any."""
    tables = (
        (model._forward_hooks, model._forward_hooks_with_kwargs),
        (model._forward_pre_hooks, model._forward_pre_hooks_with_kwargs),
    )
    for hooks, flags in tables:
        for key in [
            key for key, hook in hooks.items() if isinstance(getattr(hook, "__self__", None), FirstCall)
        ]:
            del hooks[key], flags[key]


def _slower(speed: float) -> str:
    return f"the whole model is {speed:.2f} times as fast swapped"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def _digest_model(model: nn.Module, plan: SwapPlan) -> str:
    """Return a hash of a model's classes, its parameters' and buffers' properties, and its sites."""
    classes = [(path, original_class(module)) for path, module in model.named_modules()]
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return _digest(
        (
            [(path, cls.__module__, cls.__qualname__) for path, cls in classes],
            [
                (name, None if is_lazy(t) else tuple(t.shape), t.dtype, t.device.type, t.requires_grad)
                for name, t in tensors
            ],
            [(site.path, site.kind.name, site.requested) for site in plan.sites],
        )
    )


def _digest_call(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Return a hash of what the time of a call depends on besides the model: shapes, dtypes, modes, autocast.

    Numbers may differ from call to call; of texts and truth values the value counts.
    """
    leaves = [
        (tuple(v.shape), v.stride(), v.dtype, v.device, v.requires_grad)
        if isinstance(v, Tensor)
        else v
        if isinstance(v, bool | str | None)
        else type(v).__qualname__
        for v in pytree.tree_leaves((args, dict(sorted(kwargs.items()))))
    ]
    casts = torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda"), precision()
    modes = [module.training for module in model.modules()]
    return _digest((leaves, sorted(kwargs), torch.is_grad_enabled(), modes, casts))
