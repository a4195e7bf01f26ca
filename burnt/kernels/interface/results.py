"""The results of a call and the gradients of its arguments, as flat lists that can be compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from burnt import _torch


def results_and_gradients(
    call: Callable[..., Any],
    args: Sequence[Any],
    used_grad_outs: list[Tensor] | None = None,
    make_grad_out: Callable[[int, Tensor], Tensor] | None = None,
) -> list[Tensor]:
    """Return the results of a call, then the gradients of the arguments that require one.

    The gradients of the results are `default_grad_out`, the same values at every call, or what
    `make_grad_out` returns for a result and its index. They are appended to `used_grad_outs`.
    """
    returned = call(*args)
    results = list(returned) if isinstance(returned, tuple | list) else [returned]
    leaves = [a for a in args if isinstance(a, Tensor) and a.requires_grad]
    roots = {i: r for i, r in enumerate(results) if r.requires_grad}
    if not (torch.is_grad_enabled() and leaves and roots):
        return [r.detach() for r in results]
    grad_outs = [
        default_grad_out(r) if make_grad_out is None else make_grad_out(i, r) for i, r in roots.items()
    ]
    if used_grad_outs is not None:
        used_grad_outs += grad_outs
    computed = torch.autograd.grad(list(roots.values()), leaves, grad_outs, allow_unused=True)
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
    """Return `exact_numbers` in the shape, dtype and strides of a result."""
    return torch.empty_like(like, requires_grad=False).copy_(exact_numbers(like.shape, like.device))


def exact_numbers(shape: Sequence[int], device: torch.device) -> Tensor:
    """Return numbers that differ between neighbours and are exactly representable in every dtype."""
    return ((torch.arange(math.prod(shape), device=device) % 7 - 2.5) / 4).view(tuple(shape))
