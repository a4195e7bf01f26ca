"""The results of a call and the gradients of its arguments, as lists that can be compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from burnt import _torch

__all__ = ["aliases", "as_list", "results_and_gradients", "structure_of"]


def results_and_gradients(
    call: Callable[..., Any],
    args: Sequence[Any],
    given: list[Tensor] | None = None,
    cotangent: Callable[[int, Tensor], Tensor] | None = None,
) -> list[Tensor]:
    """The results of a call, and the gradients of the arguments that want one, for fixed cotangents.

    Args:
        call: the function.
        args: its arguments.
        given: where to note the cotangents that its backward was given.
        cotangent: gives that of a result, by its place.
    """
    made = call(*args)
    results = list(made) if isinstance(made, tuple | list) else [made]
    wanted = [a for a in args if isinstance(a, Tensor) and a.requires_grad]
    roots = {i: r for i, r in enumerate(results) if r.requires_grad}
    if not (torch.is_grad_enabled() and wanted and roots):
        return [r.detach() for r in results]
    pulls = [default_grad_out(r) if cotangent is None else cotangent(i, r) for i, r in roots.items()]
    if given is not None:
        given += pulls
    found = torch.autograd.grad(list(roots.values()), wanted, pulls, allow_unused=True)
    gradients = [torch.zeros_like(a) if g is None else g for a, g in zip(wanted, found, strict=True)]
    return [*(r.detach() for r in results), *gradients]


def as_list(results: Any) -> Sequence[Any]:
    """One result as several are."""
    return results if isinstance(results, tuple | list) else [results]


def structure_of(results: Any) -> str:
    """Whether results are a tensor, or how many in what: ``"a tuple of 2"``."""
    if isinstance(results, tuple | list):
        return f"a {'list' if isinstance(results, list) else 'tuple'} of {len(results)}"
    return "a tensor" if isinstance(results, Tensor) else f"a {type(results).__name__}"


def aliases(results: Any, args: Sequence[Any], names: Iterable[str]) -> dict[int, str]:
    """Results that are an argument or share its memory: the argument's name by the result's place."""
    found: dict[int, str] = {}
    for i, made in enumerate(as_list(results)):
        for name, a in zip(names, args, strict=True):
            if isinstance(a, Tensor) and isinstance(made, Tensor) and _torch.share_memory(made, a):
                found.setdefault(i, name)
    return found


def default_grad_out(like: Tensor) -> Tensor:
    """`exact_numbers` in the layout of a result."""
    return torch.empty_like(like, requires_grad=False).copy_(exact_numbers(like.shape, like.device))


def exact_numbers(shape: Sequence[int], device: torch.device) -> Tensor:
    """Numbers that differ between neighbours, and are exact in every dtype."""
    return ((torch.arange(math.prod(shape), device=device) % 7 - 2.5) / 4).view(*shape)
