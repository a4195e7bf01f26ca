"""A layer of `burnt.kernels.ops.rnn.rnn` around a loop of ours: what is no loop is one product over all
steps.

The inputs' share of the gates is one product before the loop. Backward, the loop makes the gates' gradients
alone; those of both weights and of the inputs are products of all steps after it. The loop itself is C on a
CPU (`burnt.kernels.ops.rnn.loop_c`), Triton on a GPU (`burnt.kernels.ops.rnn.loop_triton`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from burnt import _torch
from burnt.codegen.runtime.targets import target_of
from burnt.kernels.interface.tuning_key import wants_gradient
from burnt.kernels.ops.matmul import linear, matmul

__all__ = ["DTYPES", "run", "why_not", "within"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def why_not(x: Tensor, weight_ih: Tensor, weight_hh: Tensor, *rest: Any) -> str | None:
    """Why a layer cannot be run here, or None."""
    if not (x.numel() and weight_hh.numel()):
        return "an empty tensor"
    target = target_of(x.device)
    return target if isinstance(target, str) else None


def within(x: Tensor, lengths: Tensor | None) -> Tensor:
    """``[B, T, n]`` with zeros beyond each sequence: a gradient of zero does not hide what is not finite."""
    if lengths is None:
        return x
    beyond = torch.arange(x.shape[1], device=x.device) >= lengths.unsqueeze(1)
    return x.masked_fill(beyond.unsqueeze(2), 0.0)


def run(
    kind: str,
    reference: Callable[..., tuple[Tensor, ...]],
    x: Tensor,
    weights: Sequence[Tensor | None],
    start: Sequence[Tensor | None],
    lengths: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, ...]:
    """A layer; autograd follows.

    Args:
        kind: ``"lstm"`` or ``"gru"``.
        reference: of the layer, for second derivatives.
        x, lengths, reverse: as in `burnt.kernels.lstm_layer`.
        weights: weight_ih, weight_hh, bias_ih, bias_hh.
        start: states to begin with.

    Returns:
        Outputs and last states.
    """
    if wants_gradient(x, *weights, *start):
        made: tuple[Tensor, ...] = _Steps.apply(  # type: ignore[no-untyped-call]
            kind, reference, x, *weights, lengths, reverse, *start
        )
        return made
    with torch.no_grad():
        output, _, _, last = _forward(kind, x, weights, start, lengths, reverse, keep=False)
    return output.to(x.dtype), *(state.to(x.dtype) for state in last)


def _loop(x: Tensor) -> ModuleType:
    """What has `forward_steps` and `backward_steps` for a device."""
    return importlib.import_module(f"burnt.kernels.ops.rnn.loop_{'triton' if x.is_cuda else 'c'}")


def _inside(x: Tensor) -> torch.dtype:
    """What is computed with: on a CPU, where 16 bits are slow but in products, float32."""
    return torch.float32 if x.is_cpu else x.dtype


def _steps_first(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``[B, T, n]`` as rows ``[T * B, n]``."""
    return x.transpose(0, 1).to(dtype).reshape(-1, x.shape[2]).contiguous()


def _as(dtype: torch.dtype, tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    return [None if t is None else t.to(dtype).contiguous() for t in tensors]


def _forward(
    kind: str,
    x: Tensor,
    weights: Sequence[Tensor | None],
    start: Sequence[Tensor | None],
    lengths: Tensor | None,
    reverse: bool,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor | None, list[Tensor]]:
    """Outputs ``[B, T, H]``, gates, what is kept beside them, and the last states, as the loop makes them."""
    inside = _inside(x)
    weight_ih, weight_hh, bias_ih, bias_hh = _as(inside, weights)
    assert weight_ih is not None
    assert weight_hh is not None
    bias, of_last = bias_ih, None
    width = weight_hh.shape[1]
    if kind == "gru":
        of_last = x.new_zeros(width, dtype=inside) if bias_hh is None else bias_hh[2 * width :]
    if bias_ih is not None and bias_hh is not None:
        bias = bias_ih.clone()
        given = bias_hh[: 2 * width] if kind == "gru" else bias_hh
        bias[: len(given)] += given
    gates = linear(_steps_first(x, inside), weight_ih, bias).view(x.shape[1], x.shape[0], -1)
    output, kept, last = _loop(x).forward_steps(
        kind, gates, weight_hh, of_last, _as(inside, start), lengths, reverse, keep
    )
    return output, gates, kept, last


class _Steps(torch.autograd.Function):
    """A layer and its gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        kind: str,
        reference: Callable[..., tuple[Tensor, ...]],
        x: Tensor,
        weight_ih: Tensor,
        weight_hh: Tensor,
        bias_ih: Tensor | None,
        bias_hh: Tensor | None,
        lengths: Tensor | None,
        reverse: bool,
        *start: Tensor | None,
    ) -> tuple[Tensor, ...]:
        # Not a parameter any more, whose packed copy would be kept until it changes, with every step.
        weights = [None if w is None else w.detach() for w in (weight_ih, weight_hh, bias_ih, bias_hh)]
        output, gates, kept, last = _forward(kind, x, weights, start, lengths, reverse, keep=True)
        made = output.to(x.dtype)
        states = output if made is not output else None  # as they are, not rounded
        ctx.save_for_backward(
            x, weight_ih, weight_hh, bias_ih, bias_hh, lengths, gates, kept, made, states, *start
        )
        ctx.kind, ctx.reference, ctx.reverse = kind, reference, reverse
        ctx.set_materialize_grads(False)
        return made, *(state.to(x.dtype) for state in last)

    @staticmethod
    @_torch.without_autocast()
    def backward(ctx: Any, *cotangents: Tensor | None) -> Any:
        x, weight_ih, weight_hh, bias_ih, bias_hh, lengths, gates, kept, made, states, *start = (
            ctx.saved_tensors
        )
        needs = ctx.needs_input_grad
        wanted = (*needs[2:7], *needs[9:])
        if torch.is_grad_enabled():  # a second derivative is wanted: that of the definition
            args = (x, weight_ih, weight_hh, bias_ih, bias_hh, *start)
            results = ctx.reference(*args, lengths, ctx.reverse)
            pairs = [(r, c) for r, c in zip(results, cotangents, strict=True) if c is not None]
            pulled = torch.autograd.grad(
                [r for r, _ in pairs],
                [a for a, w in zip(args, wanted, strict=True) if w],
                [c for _, c in pairs],
                create_graph=True,
                allow_unused=True,
            )
            left = iter(pulled)
            found = [next(left) if w else None for w in wanted]
        else:
            saved = x, weight_ih, weight_hh, lengths, gates, kept, made if states is None else states
            found = _gradients(ctx.kind, ctx.reverse, saved, start, cotangents, wanted)
        return None, None, *found[:5], None, None, *found[5:]


def _gradients(
    kind: str,
    reverse: bool,
    saved: Sequence[Any],
    start: Sequence[Tensor | None],
    cotangents: Sequence[Tensor | None],
    wanted: Sequence[bool],
) -> list[Tensor | None]:
    """Gradients of x, both weights, both biases and the first states, of those that are wanted."""
    x, weight_ih, weight_hh, lengths, gates, kept, output = saved
    inside = gates.dtype
    of_output, *of_last = [None if c is None else c.to(inside) for c in cotangents]
    if of_output is not None and of_output.stride(-1) != 1:
        of_output = of_output.contiguous()
    begin = _as(inside, start)
    of_input, of_state, of_start = _loop(x).backward_steps(
        kind,
        gates,
        kept,
        output.transpose(0, 1),
        weight_hh.to(inside).contiguous(),
        begin,
        lengths,
        reverse,
        None if of_output is None else of_output.transpose(0, 1),
        [None if c is None else c.contiguous() for c in of_last],
    )
    rows, columns = of_input.flatten(0, 1), of_input.shape[2]
    found: list[Tensor | None] = [None] * 5
    if wanted[0]:
        made = matmul(rows, weight_ih.to(inside))
        found[0] = made.view(x.shape[1], x.shape[0], -1).transpose(0, 1)
    if wanted[1]:
        found[1] = _of_weights(rows, _steps_first(within(x, lengths), inside))
    if wanted[2]:
        found[2] = _of_states(of_state, output.transpose(0, 1), begin[0], lengths, reverse)
    if wanted[3]:
        found[3] = rows.sum(0)
    if wanted[4]:
        found[4] = found[3] if of_state is of_input and wanted[3] else of_state.view(-1, columns).sum(0)
    found += [g if w else None for g, w in zip(of_start, wanted[5:], strict=True)]
    return [None if g is None else g.to(x.dtype) for g in found]


def _of_weights(gradient: Tensor, rows: Tensor) -> Tensor:
    """``gradient.T @ rows``."""
    if gradient.shape[1] < rows.shape[1] or not rows.is_cpu:
        return matmul(gradient.t(), rows)
    # oneDNN is faster where the result has more columns than rows: 11.7 ms, not 13.6, for 256 x 2048 x 1024.
    return matmul(rows.t(), gradient).t().contiguous()


def _of_states(
    gradient: Tensor, output: Tensor, start: Tensor | None, lengths: Tensor | None, reverse: bool
) -> Tensor:
    """The gradient of the recurrent weights: of each step's gates, with the states that it began with."""
    later, before = (gradient[:-1], output[1:]) if reverse else (gradient[1:], output[:-1])
    made = _of_weights(later.flatten(0, 1), before.flatten(0, 1))
    if start is None:
        return made
    if not reverse:
        first = gradient[0]
    elif lengths is None:
        first = gradient[-1]
    else:  # outputs beyond a sequence are zero, and have added nothing
        first = gradient[lengths - 1, torch.arange(len(lengths), device=lengths.device)]
    return made.addmm_(first.t(), start)
