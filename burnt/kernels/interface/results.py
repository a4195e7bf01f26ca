"""The results of a call and the gradients of its arguments, as flat lists that can be compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from burnt import _torch


def results_and_gradients(
    call: Callable[..., Any], args: Sequence[Any], used_grad_outs: list[Tensor] | None = None
) -> list[Tensor]:
    """Return the results of a call, then the gradients of the arguments that require one.

    The gradients of the results are `default_grad_out`, the same values at every call; they are appended to
    `used_grad_outs`.
    """
    returned = call(*args)
    results = list(returned) if isinstance(returned, tuple | list) else [returned]
    leaves = [a for a in args if isinstance(a, Tensor) and a.requires_grad]
    roots = [r for r in results if r.requires_grad]
    if not (torch.is_grad_enabled() and leaves and roots):
        return [r.detach() for r in results]
    grad_outs = [default_grad_out(r) for r in roots]
    if used_grad_outs is not None:
        used_grad_outs += grad_outs
    computed = torch.autograd.grad(roots, leaves, grad_outs, allow_unused=True)
    gradients = [torch.zeros_like(a) if g is None else g for a, g in zip(leaves, computed, strict=True)]
    return [*(r.detach() for r in results), *gradients]


def as_list(results: Any) -> Sequence[Any]:
    """Return a tuple or list of results unchanged, a single result in a list."""
    return results if isinstance(results, tuple | list) else [results]


def structure_of(results: Any) -> str:
    """Describe whether results are a tensor, a tuple or a list, and of how many: ``"a tuple of 2"``."""
    if isinstance(results, tuple | list):
        return f"a {'list' if isinstance(results, list) else 'tuple'} of {len(results)}"
    return "a tensor" if isinstance(results, Tensor) else f"a {type(results).__name__}"


def aliases(results: Any, args: Sequence[Any], names: Iterable[str]) -> dict[int, str]:
    """Find results that are an argument or share its memory: result index -> name of the argument."""
    aliased: dict[int, str] = {}
    for i, result in enumerate(as_list(results)):
        for name, a in zip(names, args, strict=True):
            if isinstance(a, Tensor) and isinstance(result, Tensor) and _torch.share_memory(result, a):
                aliased.setdefault(i, name)
    return aliased


def default_grad_out(like: Tensor) -> Tensor:
    """Return a gradient like a result: neighbours differ, all are exactly representable in every dtype."""
    numbers = (torch.arange(like.numel(), device=like.device) % 7 - 2.5) / 4
    return torch.empty_like(like, requires_grad=False).copy_(numbers.view(like.shape))
