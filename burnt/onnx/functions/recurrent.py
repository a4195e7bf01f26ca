"""Recurrent ops with ONNX's activations, clipping, directions and layouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

_ACTIVATIONS: dict[str, tuple[Callable[..., Tensor], *tuple[float, ...]]] = {
    # functions, and the defaults of alpha and beta where they have these
    "relu": (torch.relu,),
    "tanh": (torch.tanh,),
    "sigmoid": (torch.sigmoid,),
    "affine": (lambda x, a, b: a * x + b, 1.0, 0.0),
    "leakyrelu": (F.leaky_relu, 0.01),
    "thresholdedrelu": (lambda x, a: torch.where(x > a, x, torch.zeros_like(x)), 1.0),
    "scaledtanh": (lambda x, a, b: a * torch.tanh(b * x), 1.0, 1.0),
    "hardsigmoid": (lambda x, a, b: (a * x + b).clamp(0, 1), 0.2, 0.5),
    "elu": (F.elu, 1.0),
    "softsign": (F.softsign,),
    "softplus": (F.softplus,),
}


def _activations(
    names: Sequence[str], alpha: Sequence[float], beta: Sequence[float]
) -> list[Callable[[Tensor], Tensor]]:
    """Return functions; alphas and betas are taken in order by those that have them."""
    given = list(alpha), list(beta)
    found: list[Callable[[Tensor], Tensor]] = []
    for name in names:
        function, *defaults = _ACTIVATIONS[name.lower()]
        numbers = [
            values.pop(0) if values else default for values, default in zip(given, defaults, strict=False)
        ]
        found.append(lambda x, function=function, numbers=numbers: function(x, *numbers))  # type: ignore[misc]
    return found


_Functions: TypeAlias = list[Callable[[Tensor], Tensor]]
_Step: TypeAlias = Callable[[Tensor, tuple[Tensor, ...], int, _Functions], tuple[Tensor, ...]]


def _run(
    step: _Step,
    x: Tensor,
    recurrence: Tensor,
    initial: Sequence[Tensor | None],
    lengths: Tensor | None,
    activations: Sequence[str],
    count: int,
    *,
    direction: str = "forward",
    alpha: Sequence[float] = (),
    beta: Sequence[float] = (),
    layout: int = 0,
) -> tuple[Tensor, ...]:
    """Run steps over ``[T, B, I]`` in each direction; return all outputs and the last states.

    A step is given the input, the states, the direction's number and its `count` activations.
    """
    if layout:
        x, initial = x.transpose(0, 1), [None if s is None else s.transpose(0, 1) for s in initial]
    steps, directions, hidden = x.shape[0], recurrence.shape[0], recurrence.shape[-1]
    functions = _activations(activations, alpha, beta)
    zeros = x.new_zeros(directions, x.shape[1], hidden)
    states = [zeros if state is None else state for state in initial]
    outputs, last = [], []
    for number in range(directions):
        current = tuple(state[number] for state in states)
        own = functions[count * number : count * (number + 1)]
        backward = direction == "reverse" or number == 1
        found: list[Tensor] = [x.new_zeros(current[0].shape)] * steps
        for t in range(steps - 1, -1, -1) if backward else range(steps):
            new = step(x[t], current, number, own)
            if lengths is not None:
                valid = (t < lengths)[:, None]
                new = tuple(torch.where(valid, n, c) for n, c in zip(new, current, strict=True))
                found[t] = torch.where(valid, new[0], torch.zeros_like(new[0]))
            else:
                found[t] = new[0]
            current = new
        outputs.append(torch.stack(found) if found else x.new_zeros(0, *current[0].shape))
        last.append(current)
    y = torch.stack(outputs, 1)
    finals = tuple(torch.stack(parts) for parts in zip(*last, strict=True))
    if layout:
        return (y.permute(2, 0, 1, 3), *(final.transpose(0, 1) for final in finals))
    return (y, *finals)


def _clipped(x: Tensor, clip: float | None) -> Tensor:
    return x if clip is None else x.clamp(-clip, clip)


def rnn(
    x: Tensor,
    weight: Tensor,
    recurrence: Tensor,
    bias: Tensor | None = None,
    lengths: Tensor | None = None,
    state: Tensor | None = None,
    *,
    activations: Sequence[str] = ("Tanh", "Tanh"),
    clip: float | None = None,
    **options: Any,
) -> tuple[Tensor, ...]:
    """Recurrent network of one gate: ``h = f(W x + R h + b)``.

    Shapes with D directions are: `x` ``[T, B, I]``, or ``[B, T, I]`` with layout 1; `weight` ``[D, H, I]``;
    `recurrence` ``[D, H, H]``; `bias` ``[D, 2 H]``; `lengths` of sequences ``[B]``; `state` ``[D, B, H]``.
    `direction` is forward, reverse or bidirectional; `activations` are one per direction, with the parameters
    `alpha` and `beta`, and `clip` is the limit of what they are given.

    Returns the states after each step ``[T, D, B, H]``, and the last ``[D, B, H]``.
    """
    hidden = recurrence.shape[-1]

    def step(
        value: Tensor, states: tuple[Tensor, ...], number: int, functions: _Functions
    ) -> tuple[Tensor, ...]:
        total = value @ weight[number].t() + states[0] @ recurrence[number].t()
        if bias is not None:
            total = total + bias[number, :hidden] + bias[number, hidden:]
        return (functions[0](_clipped(total, clip)),)

    return _run(step, x, recurrence, [state], lengths, activations, 1, **options)


def gru(
    x: Tensor,
    weight: Tensor,
    recurrence: Tensor,
    bias: Tensor | None = None,
    lengths: Tensor | None = None,
    state: Tensor | None = None,
    *,
    activations: Sequence[str] = ("Sigmoid", "Tanh", "Sigmoid", "Tanh"),
    clip: float | None = None,
    linear_before_reset: bool = False,
    **options: Any,
) -> tuple[Tensor, ...]:
    """Gated recurrent unit, gates in the order update, reset, new; see `rnn`. Cho and others, 2014."""
    hidden = recurrence.shape[-1]

    def step(
        value: Tensor, states: tuple[Tensor, ...], number: int, functions: _Functions
    ) -> tuple[Tensor, ...]:
        f, g = functions
        (h,) = states
        w = F.linear(value, weight[number], None if bias is None else bias[number, : 3 * hidden])
        b = h.new_zeros(3 * hidden) if bias is None else bias[number, 3 * hidden :]
        r_zr = F.linear(h, recurrence[number, : 2 * hidden], b[: 2 * hidden])
        z, r = f(_clipped(w[:, : 2 * hidden] + r_zr, clip)).chunk(2, -1)
        r_n, b_n = recurrence[number, 2 * hidden :], b[2 * hidden :]
        inner = r * F.linear(h, r_n, b_n) if linear_before_reset else F.linear(r * h, r_n, b_n)
        new = g(_clipped(w[:, 2 * hidden :] + inner, clip))
        return ((1 - z) * new + z * h,)

    return _run(step, x, recurrence, [state], lengths, activations, 2, **options)


def lstm(
    x: Tensor,
    weight: Tensor,
    recurrence: Tensor,
    bias: Tensor | None = None,
    lengths: Tensor | None = None,
    state: Tensor | None = None,
    cell: Tensor | None = None,
    peepholes: Tensor | None = None,
    *,
    activations: Sequence[str] = ("Sigmoid", "Tanh", "Tanh", "Sigmoid", "Tanh", "Tanh"),
    clip: float | None = None,
    input_forget: bool = False,
    **options: Any,
) -> tuple[Tensor, ...]:
    """Long short-term memory, gates in the order input, output, forget, cell; see `rnn`.

    Hochreiter and Schmidhuber, 1997. `peepholes` are ``[D, 3 H]``: input, output, forget.
    """
    hidden = recurrence.shape[-1]

    def step(
        value: Tensor, states: tuple[Tensor, ...], number: int, functions: _Functions
    ) -> tuple[Tensor, ...]:
        f, g, last = functions
        h, c = states
        total = value @ weight[number].t() + h @ recurrence[number].t()
        if bias is not None:
            total = total + bias[number, : 4 * hidden] + bias[number, 4 * hidden :]
        i, o, forget, new = total.chunk(4, -1)
        if peepholes is not None:
            p_i, p_o, p_f = peepholes[number].chunk(3)
            i, forget = i + p_i * c, forget + p_f * c
        i = f(_clipped(i, clip))
        forget = 1 - i if input_forget else f(_clipped(forget, clip))
        c = forget * c + i * g(_clipped(new, clip))
        if peepholes is not None:
            o = o + p_o * c
        return f(_clipped(o, clip)) * last(c), c

    return _run(step, x, recurrence, [state, cell], lengths, activations, 3, **options)
