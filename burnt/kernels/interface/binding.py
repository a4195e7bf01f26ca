"""Bind a candidate to its configuration, record its calls in the autograd graph, trace references."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from burnt import _torch
from burnt.codegen.frontend.guards import GuardedCall
from burnt.codegen.function import Function
from burnt.kernels.interface.candidate import AnyOp, Candidate
from burnt.kernels.interface.checks import describe, translate_error


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


class StaticArg(NamedTuple):
    """Wraps an argument that is neither a tensor nor a float."""

    value: Any


class PartialReference:
    """A reference as a function of its tensors and floats only.

    `arguments` has a `StaticArg` for each argument that is filled in, anything else for one that is passed.
    """

    __slots__ = ("__name__", "arguments", "reference")

    def __init__(self, reference: Callable[..., Any], arguments: Sequence[Any]) -> None:
        self.reference, self.arguments = reference, tuple(arguments)
        self.__name__ = reference.__name__

    def __call__(self, *dynamic_args: Any) -> Any:
        """Call the reference."""
        remaining = iter(dynamic_args)
        return self.reference(*[a.value if type(a) is StaticArg else next(remaining) for a in self.arguments])


class Vjp:
    """The vector-Jacobian product of `fn`: maps ``(*grad_outs, *args)`` to the gradients that are needed.

    The first `num_grad_outs` arguments are gradients of results; for integers and booleans, they are ignored.
    """

    __slots__ = ("__name__", "fn", "needs_grad", "num_grad_outs")

    def __init__(self, fn: Callable[..., Any], num_grad_outs: int, needs_grad: Sequence[bool]) -> None:
        self.fn, self.num_grad_outs, self.needs_grad = fn, num_grad_outs, tuple(needs_grad)
        self.__name__ = f"{fn.__name__}_backward"

    def __call__(self, *inputs: Any) -> tuple[Tensor, ...]:
        """Return the gradients of the arguments that need one."""
        grad_outs, args = inputs[: self.num_grad_outs], inputs[self.num_grad_outs :]
        floating = [g for g in grad_outs if g.is_floating_point()]

        def floating_results(*differentiated: Tensor) -> tuple[Tensor, ...]:
            remaining = iter(differentiated)
            returned = self.fn(
                *[next(remaining) if n else a for a, n in zip(args, self.needs_grad, strict=True)]
            )
            results = returned if isinstance(returned, tuple) else (returned,)
            return tuple(r for r in results if r.is_floating_point())

        primals = [a for a, n in zip(args, self.needs_grad, strict=True) if n]
        return tuple(torch.func.vjp(floating_results, *primals)[1](tuple(floating)))


def describe_results(results: Any) -> list[str]:
    """Return the dtype and shape of each result: ``["float32 (2, 3)"]``."""
    return [describe(r).partition(" on ")[0] if isinstance(r, Tensor) else repr(r) for r in as_list(results)]


def bind_candidate(
    op: AnyOp, candidate: Candidate, config: dict[str, Any] | None, args: Sequence[Any]
) -> Callable[..., Any]:
    """Return a function of the op's arguments that runs a candidate with its configuration.

    If the candidate is not differentiable and a gradient is needed, the call is an autograd function.
    """
    return _differentiable(op, candidate, candidate.bind_config(args, config), args)


def bind_guarded(
    op: AnyOp, candidate: Candidate, config: dict[str, Any] | None, args: Sequence[Any]
) -> GuardedCall | None:
    """Return the same for arguments that a guard finds to be like these; None if it is no faster."""
    bound = candidate.bind_guarded(args, config)
    return None if bound is None else bound._replace(call=_differentiable(op, candidate, bound.call, args))


def _differentiable(
    op: AnyOp, candidate: Candidate, call: Callable[..., Any], args: Sequence[Any]
) -> Callable[..., Any]:
    tensors = [a for a in args if isinstance(a, Tensor)]
    if candidate.differentiable or not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors)):
        return call
    return functools.partial(_CandidateFunction.apply, op, candidate, call)


class _CandidateFunction(torch.autograd.Function):
    """A call of a candidate that autograd cannot differentiate."""

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
    @_torch.kernel_backward
    def backward(ctx: Any, *grad_outs: Tensor) -> Any:
        """Call the candidate's backward; use the reference's without one, and where kernels cannot run."""
        saved = iter(ctx.saved_tensors)
        args = [next(saved) if a is _TENSOR else a for a in ctx.args]
        needs_grad = ctx.needs_input_grad[3:]
        if ctx.candidate.backward_fn is None or not _torch.is_plain_backward():
            gradients = iter(reference_gradient(ctx.op, grad_outs, args, needs_grad))
            return (None, None, None, *[next(gradients) if needed else None for needed in needs_grad])
        own_gradients = iter(_candidate_gradient(ctx.op, ctx.candidate, grad_outs, tuple(saved), args))
        return (None, None, None, *[next(own_gradients) if isinstance(a, Tensor) else None for a in args])


def _candidate_gradient(
    op: AnyOp,
    candidate: Candidate,
    grad_outs: Sequence[Tensor],
    results: Sequence[Tensor],
    args: Sequence[Any],
) -> Sequence[Tensor | None]:
    """Call a candidate's backward function; check that it returns a gradient or None for each tensor."""
    assert candidate.backward_fn is not None
    inputs = op.named_tensors(args)
    inputs += [(f"grad_outs[{i}]", g) for i, g in enumerate(grad_outs)]
    inputs += [(f"results[{i}]", r) for i, r in enumerate(results)]
    versions = [_torch.version_of(tensor) for _, tensor in inputs]
    try:
        gradients: Any = candidate.backward_fn(grad_outs, results, *args)
    except Exception as error:
        translated = translate_error(op, args, error, candidate.name, "the backward of ")
        if translated is error:
            raise
        raise translated from error
    op.check_unmodified(f"the backward of the candidate {candidate.name!r}", inputs, versions)
    tensors = {name: a for name, a in zip(op.positions, args, strict=True) if isinstance(a, Tensor)}
    is_one_per_tensor = isinstance(gradients, tuple | list) and len(gradients) == len(tensors)
    if not is_one_per_tensor or any(
        g is not None and not (isinstance(g, Tensor) and g.shape == t.shape)
        for g, t in zip(gradients, tensors.values(), strict=True)
    ):
        expected = ", ".join(f"{name} {tuple(t.shape)}" for name, t in tensors.items())
        is_sequence = isinstance(gradients, tuple | list)
        found = ", ".join(describe_results(gradients)) or "nothing"
        raise candidate.definition_error(
            "the backward",
            f"a tuple of {len(tensors)}, a gradient or None for each tensor: {expected}",
            f"a {type(gradients).__name__} of {len(gradients)}: {found}"
            if is_sequence
            else f"not a tuple: {found}",
            "return (dx,), with a comma" if isinstance(gradients, Tensor) and len(tensors) == 1 else None,
        )
    return tuple(gradients)


_TENSOR = object()  # stands for a saved tensor among the arguments


def reference_gradient(
    op: AnyOp, grad_outs: Sequence[Tensor], args: Sequence[Any], needs_grad: Sequence[bool]
) -> list[Tensor]:
    """Compute the gradients of the arguments with kernels generated from the reference's derivative."""
    traced_args = [a for a in args if isinstance(a, Tensor | float)]
    statics = tuple(
        None if isinstance(a, Tensor | float) else StaticArg(tuple(a) if isinstance(a, list) else a)
        for a in args
    )
    needs_traced = tuple(n for n, a in zip(needs_grad, args, strict=True) if isinstance(a, Tensor | float))
    key = (statics, needs_traced)
    function = op.gradient_functions.get(key)
    if function is None:
        vjp = Vjp(PartialReference(op.reference, statics), len(grad_outs), needs_traced)
        function = op.gradient_functions[key] = Function(vjp, always_generate=True)
    gradients = function(*grad_outs, *traced_args)
    return list(gradients)
