"""The candidate ``steps`` of a recurrent layer: a hand-written loop over time between matmuls over all steps.

Before the loop, one matmul computes the inputs' contribution to the gates of all steps. In the backward, the
loop computes only the gates' gradients; those of both weights and of the inputs are matmuls over all steps
after it. The loop is C on a CPU (`burnt.kernels.ops.rnn.loop_c`) and Triton on a GPU
(`burnt.kernels.ops.rnn.loop_triton`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from burnt import _torch
from burnt.codegen.backward import grad_by_torch
from burnt.codegen.runtime.targets import target_of
from burnt.kernels.interface.tuning_key import wants_gradient
from burnt.kernels.ops.matmul import linear, matmul
from burnt.kernels.ops.rnn.loop_c import Loop

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def unsupported_reason(x: Tensor, weight_ih: Tensor, weight_hh: Tensor, *rest: Any) -> str | None:
    """Return why this candidate cannot run a layer, or None."""
    if not (x.numel() and weight_hh.numel()):
        return "an empty tensor"
    target = target_of(x.device)
    return target if isinstance(target, str) else None


def zero_padding(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Return ``[B, T, n]`` with zeros as padding: NaN there would stay NaN even with a gradient of zero."""
    if lengths is None:
        return x
    beyond = torch.arange(x.shape[1], device=x.device) >= lengths.unsqueeze(1)
    return x.masked_fill(beyond.unsqueeze(2), 0.0)


def run_layer(
    kind: str,
    reference: Callable[..., tuple[Tensor, ...]],
    x: Tensor,
    weights: Sequence[Tensor | None],
    initial: Sequence[Tensor | None],
    lengths: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, ...]:
    """Compute a layer, with autograd: outputs and last states.

    `weights` are weight_ih, weight_hh, bias_ih and bias_hh; `reference`, the eager layer, gives second
    derivatives.
    """
    if wants_gradient(x, *weights, *initial):
        outputs: tuple[Tensor, ...] = _StepsFunction.apply(  # type: ignore[no-untyped-call]
            kind, reference, x, *weights, lengths, reverse, *initial
        )
        return outputs
    with torch.no_grad():
        output, _, _, last = _forward(kind, x, weights, initial, lengths, reverse, save=False)
    return output.to(x.dtype), *(state.to(x.dtype) for state in last)


def _loop_module(x: Tensor) -> ModuleType:
    """Return the module with `forward_steps` and `backward_steps` for the tensor's device."""
    if x.is_cuda:
        from burnt.kernels.ops.rnn import loop_triton

        return loop_triton
    from burnt.kernels.ops.rnn import loop_c

    return loop_c


def _compute_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype to compute in: float32 on a CPU, where 16 bits are slow except in matmuls."""
    return torch.float32 if x.is_cpu else x.dtype


def _steps_first(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``[B, T, n]`` as rows ``[T * B, n]``."""
    return x.transpose(0, 1).to(dtype).reshape(-1, x.shape[2]).contiguous()


def _cast_tensors(dtype: torch.dtype, tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    return [None if t is None else t.to(dtype).contiguous() for t in tensors]


def _forward(
    kind: str,
    x: Tensor,
    weights: Sequence[Tensor | None],
    initial: Sequence[Tensor | None],
    lengths: Tensor | None,
    reverse: bool,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor | None, list[Tensor]]:
    """Return outputs ``[B, T, H]``, gates, the loop's other saved tensor, and the last states."""
    compute_dtype = _compute_dtype(x)
    weight_ih, weight_hh, bias_ih, bias_hh = _cast_tensors(compute_dtype, weights)
    assert weight_ih is not None
    assert weight_hh is not None
    bias, bias_n = bias_ih, None
    width = weight_hh.shape[1]
    if kind == "gru":
        bias_n = x.new_zeros(width, dtype=compute_dtype) if bias_hh is None else bias_hh[2 * width :]
    if bias_ih is not None and bias_hh is not None:
        bias = bias_ih.clone()
        recurrent_bias = bias_hh[: 2 * width] if kind == "gru" else bias_hh
        bias[: len(recurrent_bias)] += recurrent_bias
    gates = linear(_steps_first(x, compute_dtype), weight_ih, bias).view(x.shape[1], x.shape[0], -1)
    states = _cast_tensors(compute_dtype, initial)
    loop = Loop(kind, gates, weight_hh, bias_n, states, lengths, reverse)
    output, saved, last = _loop_module(x).forward_steps(loop, save)
    return output, gates, saved, last


class _StepsFunction(torch.autograd.Function):
    """The autograd function of a layer."""

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
        *initial: Tensor | None,
    ) -> tuple[Tensor, ...]:
        # Detach: matmul caches a packed copy of a parameter until it changes, and each step changes it.
        weights = [None if w is None else w.detach() for w in (weight_ih, weight_hh, bias_ih, bias_hh)]
        output, gates, saved, last = _forward(kind, x, weights, initial, lengths, reverse, save=True)
        rounded = output.to(x.dtype)
        unrounded = output if rounded is not output else None  # in the compute dtype
        ctx.save_for_backward(
            x, weight_ih, weight_hh, bias_ih, bias_hh, lengths, gates, saved, rounded, unrounded, *initial
        )
        ctx.kind, ctx.reference, ctx.reverse = kind, reference, reverse
        ctx.set_materialize_grads(False)
        return rounded, *(state.to(x.dtype) for state in last)

    @staticmethod
    @_torch.kernel_backward
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> Any:
        x, weight_ih, weight_hh, bias_ih, bias_hh, lengths, gates, saved, rounded, unrounded, *initial = (
            ctx.saved_tensors
        )
        needs_input_grad = ctx.needs_input_grad
        needs_grad = (*needs_input_grad[2:7], *needs_input_grad[9:])
        if not _torch.is_plain_backward():
            args = (x, weight_ih, weight_hh, bias_ih, bias_hh, *initial)
            reference = functools.partial(ctx.reference, lengths=lengths, reverse=ctx.reverse)
            all_grads = grad_by_torch(reference, args, needs_grad, grad_outputs)
        else:
            output = rounded if unrounded is None else unrounded
            tensors = (x, weight_ih, weight_hh, lengths, gates, saved, output)
            all_grads = _gradients(ctx.kind, ctx.reverse, tensors, initial, grad_outputs, needs_grad)
        return None, None, *all_grads[:5], None, None, *all_grads[5:]


def _gradients(
    kind: str,
    reverse: bool,
    tensors: Sequence[Any],
    initial: Sequence[Tensor | None],
    grad_outputs: Sequence[Tensor | None],
    needs_grad: Sequence[bool],
) -> list[Tensor | None]:
    """Return the gradients of x, both weights, both biases and the initial states; None if not needed."""
    x, weight_ih, weight_hh, lengths, gates, saved, output = tensors
    compute_dtype = gates.dtype
    grad_output, *grad_last = [None if c is None else c.to(compute_dtype) for c in grad_outputs]
    if grad_output is not None and grad_output.stride(-1) != 1:
        grad_output = grad_output.contiguous()
    initial_states = _cast_tensors(compute_dtype, initial)
    recurrent = weight_hh.to(compute_dtype).contiguous()
    grad_input_gates, grad_state_gates, grad_initial = _loop_module(x).backward_steps(
        Loop(kind, gates, recurrent, None, initial_states, lengths, reverse),
        saved,
        output.transpose(0, 1),
        None if grad_output is None else grad_output.transpose(0, 1),
        [None if c is None else c.contiguous() for c in grad_last],
    )
    rows, columns = grad_input_gates.flatten(0, 1), grad_input_gates.shape[2]
    grads: list[Tensor | None] = [None] * 5
    if needs_grad[0]:
        grad_x = matmul(rows, weight_ih.to(compute_dtype))
        grads[0] = grad_x.view(x.shape[1], x.shape[0], -1).transpose(0, 1)
    if needs_grad[1]:
        grads[1] = _weight_gradient(rows, _steps_first(zero_padding(x, lengths), compute_dtype))
    if needs_grad[2]:
        grads[2] = _recurrent_weight_gradient(
            grad_state_gates, output.transpose(0, 1), initial_states[0], lengths, reverse
        )
    if needs_grad[3]:
        grads[3] = rows.sum(0)
    if needs_grad[4]:
        is_same = grad_state_gates is grad_input_gates and needs_grad[3]
        grads[4] = grads[3] if is_same else grad_state_gates.view(-1, columns).sum(0)
    grads += [g if needed else None for g, needed in zip(grad_initial, needs_grad[5:], strict=True)]
    return [None if g is None else g.to(x.dtype) for g in grads]


def _weight_gradient(grad_gates: Tensor, rows: Tensor) -> Tensor:
    """Return ``grad_gates.T @ rows``."""
    if grad_gates.shape[1] < rows.shape[1] or not rows.is_cpu:
        return matmul(grad_gates.t(), rows)
    # oneDNN is faster if the result has more columns than rows: 11.7 ms, not 13.6, for 256 x 2048 x 1024.
    return matmul(rows.t(), grad_gates).t().contiguous()


def _recurrent_weight_gradient(
    grad_gates: Tensor, output: Tensor, initial: Tensor | None, lengths: Tensor | None, reverse: bool
) -> Tensor:
    """Return the gradient of the recurrent weights, from each step's gate gradients and previous state."""
    later, previous = (grad_gates[:-1], output[1:]) if reverse else (grad_gates[1:], output[:-1])
    grad_weight = _weight_gradient(later.flatten(0, 1), previous.flatten(0, 1))
    if initial is None:
        return grad_weight
    if not reverse:
        first = grad_gates[0]
    elif lengths is None:
        first = grad_gates[-1]
    else:  # outputs after a sequence's end are zero and contributed nothing above
        first = grad_gates[lengths - 1, torch.arange(len(lengths), device=lengths.device)]
    return grad_weight.addmm_(first.t(), initial)
