"""Functions whose products are kernels, compared with torch's in the same dtype and in float64."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from burnt.codegen.function import Function
from burnt.codegen.render.triton.configs import select_config
from burnt.codegen.render.triton.matmul_config import MatmulConfig, MatmulStructure
from burnt.codegen.runtime.target import Target
from burnt.codegen.runtime.triton_backend import TRITON
from burnt.codegen.runtime.triton_launch import build
from tests.codegen.compare import Verdict, compare


def always(config: MatmulConfig | None = None) -> Target:
    """Every product is a kernel, of these block sizes."""
    target = dataclasses.replace(TRITON, why_eager_matmul=lambda node: None)
    if config is None:
        return target

    def choose(form: Any) -> Any:
        return config if isinstance(form, MatmulStructure) else select_config(form)

    return dataclasses.replace(target, build=functools.partial(build, choose=choose))


def runs_alike(
    fn: Callable[..., Any], args: Sequence[Tensor], target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values and gradients are equal bit by bit from run to run, whatever the order of the programs."""
    from triton.runtime.interpreter import interpreter_builder

    function, found = Function(fn, target=target), []
    usual = interpreter_builder.set_grid_idx
    for backwards in (False, True):
        if backwards:
            monkeypatch.setattr(
                interpreter_builder,
                "set_grid_idx",
                lambda *at: usual(
                    *(n - 1 - i for n, i in zip(interpreter_builder.grid_dim, at, strict=True))
                ),
            )
        given = [a.clone().requires_grad_() for a in args]
        made = _leaves(function(*given))
        found.append([*made, *torch.autograd.grad(made, given, [torch.cos(m.detach()) for m in made])])
    for again in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(found[0], again, strict=True))


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
