"""Compare functions whose matmuls are kernels with torch in the same dtype and in float64."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from burnt.codegen.function import Function
from burnt.codegen.render.triton.matmul_config import MatmulConfig, MatmulStructure
from burnt.codegen.render.triton.source import select_config
from burnt.codegen.runtime.target import Target
from burnt.codegen.runtime.triton_backend import TRITON
from burnt.codegen.runtime.triton_launch import build
from tests.codegen.compare import Verdict, compare


def always(config: MatmulConfig | None = None) -> Target:
    """Return a target for which every matmul is a kernel, with these block sizes."""
    target = dataclasses.replace(TRITON, why_torch_matmul=lambda node: None)
    if config is None:
        return target

    def choose(structure: Any) -> Any:
        return config if isinstance(structure, MatmulStructure) else select_config(structure)

    return dataclasses.replace(target, build=functools.partial(build, choose=choose))


def runs_alike(
    fn: Callable[..., Any], args: Sequence[Tensor], target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that results and gradients are bitwise equal in every run, whatever the order of the programs."""
    from triton.runtime.interpreter import interpreter_builder

    function, outputs = Function(fn, target=target), []
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
        inputs = [a.clone().requires_grad_() for a in args]
        results = _leaves(function(*inputs))
        outputs.append(
            [*results, *torch.autograd.grad(results, inputs, [torch.cos(m.detach()) for m in results])]
        )
    for other_run in outputs[1:]:
        assert all(torch.equal(one, other) for one, other in zip(outputs[0], other_run, strict=True))


def _leaves(result: Any) -> list[Tensor]:
    return list(result) if isinstance(result, tuple) else [result]


def agree(
    name: str, fn: Callable[..., Any], args: Sequence[Tensor], target: Target, *, gradients: bool = True
) -> None:
    """Check that results and gradients are as close to float64's as torch's own."""
    source = torch.Generator().manual_seed(8)
    dtype = args[0].dtype
    cotangents = None
    outputs: list[list[Tensor]] = []
    for call, inputs in ((Function(fn, target=target), args), (fn, args), (fn, [a.double() for a in args])):
        inputs = [a.clone().requires_grad_(gradients) for a in inputs]
        results = _leaves(call(*inputs))
        if cotangents is None:
            cotangents = [torch.randn(m.shape, generator=source).to(dtype) for m in results]
        grads: Sequence[Tensor] = ()
        if gradients:
            grads = torch.autograd.grad(
                results, inputs, [c.to(m.dtype) for c, m in zip(cotangents, results, strict=True)]
            )
        outputs.append([t.detach() for t in (*results, *grads)])
    for i, (ours, theirs, exact) in enumerate(zip(*outputs, strict=True)):
        assert ours.stride() == theirs.stride(), f"{name} {i}"
        slack = 4 * torch.finfo(dtype).eps * max(float(exact.abs().max()), 1.0)
        compare(f"{name} {i}", ours, theirs, exact, [], slack, Verdict())
