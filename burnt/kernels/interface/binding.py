"""A candidate bound to arguments: a function with its configuration, in the autograd graph."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from burnt import _torch
from burnt.codegen.function import Function
from burnt.kernels.interface.candidate import Candidate
from burnt.kernels.interface.checks import describe, explain_error
from burnt.kernels.interface.op_protocol import AnyOp
from burnt.kernels.interface.results import as_list
from burnt.kernels.interface.static_args import PartialReference, StaticArg
from burnt.kernels.interface.vjp import Vjp

__all__ = ["bound_call", "reference_gradient"]


def brief_descriptions(results: Any) -> list[str]:
    """Results in short, without their device: ``["float32 (2, 3)"]``."""
    return [describe(r).partition(" on ")[0] if isinstance(r, Tensor) else repr(r) for r in as_list(results)]


def bound_call(
    op: AnyOp, candidate: Candidate, config: dict[str, Any] | None, args: Sequence[Any]
) -> Callable[..., Any]:
    """A candidate as a function of the op's arguments: with its configuration, and in the autograd graph."""
    call = candidate.bound(args, config)
    tensors = [a for a in args if isinstance(a, Tensor)]
    if candidate.differentiable or not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors)):
        return call
    return functools.partial(_Custom.apply, op, candidate, call)


class _Custom(torch.autograd.Function):
    """A candidate that autograd does not follow, in the autograd graph."""

    @staticmethod
    def forward(ctx: Any, op: AnyOp, candidate: Candidate, call: Any, *args: Any) -> Any:
        """Run the candidate."""
        results = call(*args)
        flat = results if isinstance(results, tuple) else (results,)
        if not all(isinstance(r, Tensor) for r in flat):
            op.check_results(candidate, args, results)
        tensors = [a for a in args if isinstance(a, Tensor)]
        ctx.save_for_backward(*tensors, *flat)
        ctx.mark_non_differentiable(*[r for r in flat if not r.is_floating_point()])
        ctx.op, ctx.candidate = op, candidate
        ctx.args = [_TENSOR if isinstance(a, Tensor) else a for a in args]
        return results

    @staticmethod
    @_torch.without_autocast()
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        """Its own gradient; for second derivatives, and where it has none, the reference's."""
        saved = iter(ctx.saved_tensors)
        args = [next(saved) if a is _TENSOR else a for a in ctx.args]
        wanted = ctx.needs_input_grad[3:]
        if ctx.candidate.pull is None or torch.is_grad_enabled():
            gradients = iter(reference_gradient(ctx.op, cotangents, args, wanted))
            return (None, None, None, *[next(gradients) if want else None for want in wanted])
        pulled = iter(_pulled(ctx.op, ctx.candidate, cotangents, tuple(saved), args))
        return (None, None, None, *[next(pulled) if isinstance(a, Tensor) else None for a in args])


def _pulled(
    op: AnyOp,
    candidate: Candidate,
    cotangents: Sequence[Tensor],
    results: Sequence[Tensor],
    args: Sequence[Any],
) -> Sequence[Tensor | None]:
    """The gradients that somebody's own candidate gives, as many as there are tensors and of their shapes."""
    assert candidate.pull is not None
    given = op.named_tensors(args)
    given += [(f"the cotangent {i}", c) for i, c in enumerate(cotangents)]
    given += [(f"the result {i}", r) for i, r in enumerate(results)]
    versions = [_torch.version_of(tensor) for _, tensor in given]
    try:
        made: Any = candidate.pull(cotangents, results, *args)
    except Exception as error:
        told = explain_error(op, args, error, candidate.name, "the backward of ")
        if told is error:
            raise
        raise told from error
    op.check_versions(f"the backward of the candidate {candidate.name!r}", given, versions)
    tensors = {name: a for name, a in zip(op.positions, args, strict=True) if isinstance(a, Tensor)}
    good = isinstance(made, tuple | list) and len(made) == len(tensors)
    if not good or any(
        g is not None and not (isinstance(g, Tensor) and g.shape == t.shape)
        for g, t in zip(made, tensors.values(), strict=True)
    ):
        expected = ", ".join(f"{name} {tuple(t.shape)}" for name, t in tensors.items())
        listed = isinstance(made, tuple | list)
        found = ", ".join(brief_descriptions(made)) or "nothing"
        raise candidate.misdefined(
            "the backward",
            f"a tuple of {len(tensors)}, a gradient or None for each tensor: {expected}",
            f"a {type(made).__name__} of {len(made)}: {found}" if listed else f"no tuple: {found}",
            "return (dx,), with a comma" if isinstance(made, Tensor) and len(tensors) == 1 else None,
        )
    return tuple(made)


_TENSOR = object()


def reference_gradient(
    op: AnyOp, cotangents: Sequence[Tensor], args: Sequence[Any], wanted: Sequence[bool]
) -> list[Tensor]:
    """The gradients of the arguments that are wanted, by kernels made of the reference's derivative."""
    kept = [a for a in args if isinstance(a, Tensor | float)]
    statics = tuple(
        None if isinstance(a, Tensor | float) else StaticArg(tuple(a) if isinstance(a, list) else a)
        for a in args
    )
    chosen = tuple(w for w, a in zip(wanted, args, strict=True) if isinstance(a, Tensor | float))
    key = (statics, chosen)
    function = op.gradients.get(key)
    if function is None:
        vjp = Vjp(PartialReference(op.reference, statics), len(cotangents), chosen)
        function = op.gradients[key] = Function(vjp, lowered=True)
    made = function(*cotangents, *kept)
    return list(made)
