"""Time a whole model, original and swapped: layers that are faster by themselves may make it slower."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from burnt import _torch
from burnt.swapping.kind import is_swapped, original_class
from burnt.swapping.measure import (
    Call,
    ModelTiming,
    NotCallableError,
    copy_arguments,
    race,
    shared_copy,
    summarize_error,
)
from burnt.swapping.site import SECONDS_BETWEEN_LINES, SwapPlan, restore_class, show_progress, site_of
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
    return type(module) if site is not None and site.state == "swapped" else original_class(module)


def _class_when_restored(module: nn.Module) -> type:
    site = site_of(module)
    return type(module) if site is not None and site.requested else original_class(module)


def loss_or_output(output: Any) -> Any:
    """Return the loss in a model's output, or else the output."""
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    return loss if isinstance(loss, Tensor) else output
