"""Functions whose products are kernels, compared with torch's in the same dtype and in float64."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from burnt.codegen.block_sizes import pick
from burnt.codegen.function import Function
from burnt.codegen.product_blocks import ProductConfig, ProductForm
from burnt.codegen.target import TRITON, Target
from burnt.codegen.triton_launch import build
from tests.codegen.compare import Verdict, compare


def always(config: ProductConfig | None = None) -> Target:
    """Every product is a kernel, of these block sizes."""
    target = dataclasses.replace(TRITON, products=lambda node: None)
    if config is None:
        return target

    def choose(form: Any) -> Any:
        return config if isinstance(form, ProductForm) else pick(form)

    return dataclasses.replace(target, build=functools.partial(build, choose=choose))


def _leaves(made: Any) -> list[Tensor]:
    return list(made) if isinstance(made, tuple) else [made]


def agree(
    name: str, fn: Callable[..., Any], args: Sequence[Tensor], target: Target, *, gradients: bool = True
) -> None:
    """Values and gradients are as near to those of float64 as torch's own are."""
    source = torch.Generator().manual_seed(8)
    dtype = args[0].dtype
    cotangents = None
    found: list[list[Tensor]] = []
    for run, given in (
        (Function(fn, target=target), args),
        (fn, args),
        (fn, [a.double() for a in args]),
    ):
        given = [a.clone().requires_grad_(gradients) for a in given]
        made = _leaves(run(*given))
        if cotangents is None:
            cotangents = [torch.randn(m.shape, generator=source).to(dtype) for m in made]
        grads: Sequence[Tensor] = ()
        if gradients:
            grads = torch.autograd.grad(
                made, given, [c.to(m.dtype) for c, m in zip(cotangents, made, strict=True)]
            )
        found.append([t.detach() for t in (*made, *grads)])
    for i, (ours, theirs, exact) in enumerate(zip(*found, strict=True)):
        assert ours.stride() == theirs.stride(), f"{name} {i}"
        slack = 4 * torch.finfo(dtype).eps * max(float(exact.abs().max()), 1.0)
        compare(f"{name} {i}", ours, theirs, exact, [], slack, Verdict())
