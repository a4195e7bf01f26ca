"""Functions of ONNX's preview training ops: one step of an optimizer for several tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def adagrad_step(
    rate: Tensor,
    step: Tensor,
    tensors: Sequence[Tensor],
    *,
    epsilon: float = 0.0,
    decay: float = 0.0,
    penalty: float = 0.0,
) -> tuple[Tensor, ...]:
    """Return new values and new sums of squares; `tensors` are values, gradients and sums of squares."""
    count = len(tensors) // 3
    values, sums = [], []
    for x, grad, total in zip(tensors[:count], tensors[count : 2 * count], tensors[2 * count :], strict=True):
        grad = penalty * x + grad
        sums.append(total + grad * grad)
        values.append(x - rate / (1 + step * decay) * grad / (torch.sqrt(sums[-1]) + epsilon))
    return (*values, *sums)


def adam_step(
    rate: Tensor,
    step: Tensor,
    tensors: Sequence[Tensor],
    *,
    alpha: float = 0.9,
    beta: float = 0.999,
    epsilon: float = 0.0,
    penalty: float = 0.0,
    penalty_after: float = 0.0,
) -> tuple[Tensor, ...]:
    """Return new values and both new moments; `tensors` are values, gradients and both moments."""
    count = len(tensors) // 4
    parts = [tensors[i * count : (i + 1) * count] for i in range(4)]
    values, firsts, seconds = [], [], []
    for x, grad, first, second in zip(*parts, strict=True):
        grad = penalty * x + grad
        firsts.append(alpha * first + (1 - alpha) * grad)
        seconds.append(beta * second + (1 - beta) * grad * grad)
        adjusted = rate * (1 - beta**step) ** 0.5 / (1 - alpha**step) if int(step) > 0 else rate
        new = x - adjusted * firsts[-1] / (torch.sqrt(seconds[-1]) + epsilon)
        values.append((1 - penalty_after) * new)
    return tuple(tensor.to(tensors[0].dtype) for tensor in (*values, *firsts, *seconds))


def momentum_step(
    rate: Tensor,
    step: Tensor,
    tensors: Sequence[Tensor],
    *,
    alpha: float,
    beta: float,
    penalty: float,
    nesterov: bool = False,
) -> tuple[Tensor, ...]:
    """Return new values and new momenta; `tensors` are values, gradients and momenta."""
    count = len(tensors) // 3
    values, momenta = [], []
    for x, grad, old in zip(tensors[:count], tensors[count : 2 * count], tensors[2 * count :], strict=True):
        grad = penalty * x + grad
        momenta.append(alpha * old + (beta if int(step) > 0 else 1.0) * grad)
        values.append(x - rate * (grad + alpha * momenta[-1] if nesterov else momenta[-1]))
    return (*values, *momenta)
