"""The steps of a recurrent layer in Triton: as `burnt.kernels.ops.rnn.loop_c`, forward and backward.

Few hidden units: a program takes some rows of the batch through all steps, its states in registers. More:
the states' product is torch's, a call for each step, and what follows it is one kernel.

Layouts: T steps, B rows, d hidden units, G gates. Cells are computed in float32; states are rounded to the
dtype of the gates where a product takes them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from burnt.codegen.render.triton.device_math import sigmoid, tanh

__all__ = ["backward_all", "backward_cell", "backward_steps", "forward_all", "forward_cell", "forward_steps"]

_LARGEST = (
    2 << 10
)  # bytes of a gate's weights; with more, the registers of some targets do not hold all gates'
_ROWS = 16  # of a program that takes all steps
_BLOCK = 256  # elements of a program that takes one


@triton.jit
def _read(pointer, at, inside):  # type: ignore[no-untyped-def]
    return tl.load(pointer + at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _forward_lstm(i, f, g, o, c):  # type: ignore[no-untyped-def]
    """Gates before their functions, and the cells: the gates, the new cells and states."""
    i, f, g, o = sigmoid(i), sigmoid(f), tanh(g), sigmoid(o)
    cell = f * c + i * g
    return i, f, g, o, cell, o * tanh(cell)


@triton.jit
def _backward_lstm(i, f, g, o, cell, before, dh, dc):  # type: ignore[no-untyped-def]
    """The gradients of the gates before their functions, and of the cells before."""
    told = tanh(cell)
    d_cell = dc + dh * o * (1.0 - told * told)
    d_i = d_cell * g * i * (1.0 - i)
    d_f = d_cell * before * f * (1.0 - f)
    d_g = d_cell * i * (1.0 - g * g)
    d_o = dh * told * o * (1.0 - o)
    return d_i, d_f, d_g, d_o, d_cell * f


@triton.jit
def _forward_gru(r, z, n, told, h):  # type: ignore[no-untyped-def]
    """Gates before their functions, `told` by the state to the last one, and the state: gates, new state."""
    r, z = sigmoid(r), sigmoid(z)
    n = tanh(n + r * told)
    return r, z, n, n + z * (h - n)


@triton.jit
def _backward_gru(r, z, n, told, before, dh):  # type: ignore[no-untyped-def]
    """The gradients of the gates before their functions, of `told`, and, without a product, of the state."""
    d_n = dh * (1.0 - z) * (1.0 - n * n)
    d_r = d_n * told * r * (1.0 - r)
    d_z = dh * (before - n) * z * (1.0 - z)
    return d_r, d_z, d_n, d_n * r, dh * z


# --- a step -----------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["t"])  # type: ignore[untyped-decorator]
def forward_cell(  # type: ignore[no-untyped-def]
    z,  # [B, G d]: what the state adds to the gates
    bias,  # [d] or None: of what it adds to a GRU's last
    gates,  # [T, B, G d]: what the input adds; then, with KEEP, the gates
    h,  # [B, d]: the states, changed
    c,  # [B, d], float32: an LSTM's cells, changed
    lengths,  # [B] or None
    y,  # [T, B, d]
    kept,  # [T, B, d]: with KEEP, the cells, or what the state added to a GRU's last gate
    t,
    B,
    d,
    LSTM: tl.constexpr,
    KEEP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """All rows of a step; a program takes BLOCK elements."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < tl.full([], 1, tl.int64) * B * d
    row, k = at // d, at % d
    step = tl.full([], 0, tl.int64) + t
    here = inside
    if lengths is not None:
        here = inside & (step < tl.load(lengths + row, mask=inside, other=0))
    if LSTM:
        to = (step * B + row) * 4 * d + k
        of = row * 4 * d + k
        i, f, g, o, cell, state = _forward_lstm(
            _read(gates, to, here) + _read(z, of, here),
            _read(gates, to + d, here) + _read(z, of + d, here),
            _read(gates, to + 2 * d, here) + _read(z, of + 2 * d, here),
            _read(gates, to + 3 * d, here) + _read(z, of + 3 * d, here),
            _read(c, at, here),
        )
        tl.store(c + at, cell, mask=here)
        if KEEP:
            tl.store(gates + to, i, mask=here)
            tl.store(gates + to + d, f, mask=here)
            tl.store(gates + to + 2 * d, g, mask=here)
            tl.store(gates + to + 3 * d, o, mask=here)
            tl.store(kept + step * B * d + at, cell, mask=here)
    else:
        to = (step * B + row) * 3 * d + k
        of = row * 3 * d + k
        told = _read(z, of + 2 * d, here) + _read(bias, k, here)
        r, u, n, state = _forward_gru(
            _read(gates, to, here) + _read(z, of, here),
            _read(gates, to + d, here) + _read(z, of + d, here),
            _read(gates, to + 2 * d, here),
            told,
            _read(h, at, here),
        )
        if KEEP:
            tl.store(gates + to, r, mask=here)
            tl.store(gates + to + d, u, mask=here)
            tl.store(gates + to + 2 * d, n, mask=here)
            tl.store(kept + step * B * d + at, told, mask=here)
    tl.store(h + at, state, mask=here)
    tl.store(y + step * B * d + at, tl.where(here, state, 0.0), mask=inside)


@triton.jit(do_not_specialize=["t"])  # type: ignore[untyped-decorator]
def backward_cell(  # type: ignore[no-untyped-def]
    z,  # [B, d] or None: what the step after, by its product, makes of the states
    dh,  # [B, d], float32: what else reaches them, changed
    dc,  # [B, d], float32: of an LSTM's cells, changed
    dy,  # [T, B, d] by strides, or None
    gates,  # [T, B, G d]
    kept,  # [T, B, d]
    before,  # [T, B, d]: what a cell needs of the state that it began with is that of the step before it
    start,  # [B, d] or None: before the first step
    lengths,  # [B] or None
    d_input,  # [T, B, G d]: gradients of what the input adds to the gates
    d_state,  # [T, B, G d]: of what the state adds to a GRU's
    t,
    T,
    B,
    d,
    dy_step,
    dy_row,
    LSTM: tl.constexpr,
    REVERSE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """All rows of a step; a program takes BLOCK elements."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < tl.full([], 1, tl.int64) * B * d
    row, k = at // d, at % d
    step = tl.full([], 0, tl.int64) + t
    length = tl.zeros([BLOCK], tl.int64) + T
    if lengths is not None:
        length = tl.load(lengths + row, mask=inside, other=0)
    here = inside & (step < length)
    if REVERSE:
        first = step == length - 1
        neighbour = (step + 1) * B * d + at
    else:
        first = step + tl.zeros([BLOCK], tl.int64) == 0
        neighbour = (step - 1) * B * d + at
    old = _read(before, neighbour, here & (first == 0))
    if start is not None:
        old += _read(start, at, here & first)
    total = _read(dh, at, inside)
    if z is not None:
        total += _read(z, at, inside)
    given = total
    if dy is not None:
        given += _read(dy, step * dy_step + row * dy_row + k, here)
    of = step * B * d + at
    if LSTM:
        to = (step * B + row) * 4 * d + k
        i, f, g, o, cells = _backward_lstm(
            _read(gates, to, here),
            _read(gates, to + d, here),
            _read(gates, to + 2 * d, here),
            _read(gates, to + 3 * d, here),
            _read(kept, of, here),
            old,
            given,
            _read(dc, at, here),
        )
        tl.store(d_input + to, tl.where(here, i, 0.0), mask=inside)
        tl.store(d_input + to + d, tl.where(here, f, 0.0), mask=inside)
        tl.store(d_input + to + 2 * d, tl.where(here, g, 0.0), mask=inside)
        tl.store(d_input + to + 3 * d, tl.where(here, o, 0.0), mask=inside)
        tl.store(dc + at, cells, mask=here)
        tl.store(dh + at, tl.where(here, 0.0, total), mask=inside)
    else:
        to = (step * B + row) * 3 * d + k
        r, u, n, told, rest = _backward_gru(
            _read(gates, to, here),
            _read(gates, to + d, here),
            _read(gates, to + 2 * d, here),
            _read(kept, of, here),
            old,
            given,
        )
        tl.store(d_input + to, tl.where(here, r, 0.0), mask=inside)
        tl.store(d_input + to + d, tl.where(here, u, 0.0), mask=inside)
        tl.store(d_input + to + 2 * d, tl.where(here, n, 0.0), mask=inside)
        tl.store(d_state + to, tl.where(here, r, 0.0), mask=inside)
        tl.store(d_state + to + d, tl.where(here, u, 0.0), mask=inside)
        tl.store(d_state + to + 2 * d, tl.where(here, told, 0.0), mask=inside)
        tl.store(dh + at, tl.where(here, rest, total), mask=inside)


# --- all steps --------------------------------------------------------------------------------------------


@triton.jit  # type: ignore[untyped-decorator]
def _weights(weight, gate, d, TRANSPOSED: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The rows of a gate, ``[d, d]``, or, turned around, the factor of the states."""
    i, j = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    inside = (i < d) & (j < d)
    if TRANSPOSED:
        return tl.load(weight + (gate * d + j) * d + i, mask=inside, other=0.0)
    return tl.load(weight + (gate * d + i) * d + j, mask=inside, other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _times(h, weight, gate, d, TRANSPOSED: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    w = _weights(weight, gate, d, TRANSPOSED, BLOCK)
    return tl.dot(h.to(w.dtype), w, input_precision="ieee")


@triton.jit  # type: ignore[untyped-decorator]
def forward_all(  # type: ignore[no-untyped-def]
    weight,  # [G d, d]
    bias,
    gates,
    h0,  # [B, d] or None
    c0,
    lengths,
    y,
    kept,
    h_n,  # [B, d]
    c_n,
    T,
    B,
    d,
    LSTM: tl.constexpr,
    KEEP: tl.constexpr,
    REVERSE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """All steps of ROWS rows; what has no note is as in `forward_cell`."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    k = tl.arange(0, BLOCK)[None, :]
    inside = (row < B) & (k < d)
    at = row * d + k
    h = tl.zeros([ROWS, BLOCK], tl.float32)
    c = tl.zeros([ROWS, BLOCK], tl.float32)
    length = tl.zeros([ROWS, BLOCK], tl.int64) + T
    if h0 is not None:
        h = _read(h0, at, inside)
    if LSTM and c0 is not None:
        c = _read(c0, at, inside)
    if lengths is not None:
        length = tl.load(lengths + row + 0 * k, mask=inside, other=0)
    for number in range(T):
        step = tl.full([], 0, tl.int64) + number
        if REVERSE:
            step = T - 1 - step
        here = inside & (step < length)
        if LSTM:
            to = (step * B + row) * 4 * d + k
            i, f, g, o, cell, state = _forward_lstm(
                _read(gates, to, here) + _times(h, weight, 0, d, True, BLOCK),
                _read(gates, to + d, here) + _times(h, weight, 1, d, True, BLOCK),
                _read(gates, to + 2 * d, here) + _times(h, weight, 2, d, True, BLOCK),
                _read(gates, to + 3 * d, here) + _times(h, weight, 3, d, True, BLOCK),
                c,
            )
            c = tl.where(here, cell, c)
            if KEEP:
                tl.store(gates + to, i, mask=here)
                tl.store(gates + to + d, f, mask=here)
                tl.store(gates + to + 2 * d, g, mask=here)
                tl.store(gates + to + 3 * d, o, mask=here)
                tl.store(kept + step * B * d + at, cell, mask=here)
        else:
            to = (step * B + row) * 3 * d + k
            told = _times(h, weight, 2, d, True, BLOCK) + _read(bias, k, k < d)
            r, u, n, state = _forward_gru(
                _read(gates, to, here) + _times(h, weight, 0, d, True, BLOCK),
                _read(gates, to + d, here) + _times(h, weight, 1, d, True, BLOCK),
                _read(gates, to + 2 * d, here),
                told,
                h,
            )
            if KEEP:
                tl.store(gates + to, r, mask=here)
                tl.store(gates + to + d, u, mask=here)
                tl.store(gates + to + 2 * d, n, mask=here)
                tl.store(kept + step * B * d + at, told, mask=here)
        h = tl.where(here, state, h)
        tl.store(y + step * B * d + at, tl.where(here, state, 0.0), mask=inside)
    tl.store(h_n + at, h, mask=inside)
    if LSTM:
        tl.store(c_n + at, c, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def backward_all(  # type: ignore[no-untyped-def]
    weight,  # [G d, d]
    dh_n,  # [B, d] or None
    dc_n,
    dy,
    gates,
    kept,
    before,
    start,
    lengths,
    d_input,
    d_state,
    dh_0,  # [B, d]
    dc_0,
    T,
    B,
    d,
    dy_step,
    dy_row,
    LSTM: tl.constexpr,
    REVERSE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """All steps of ROWS rows; what has no note is as in `backward_cell`."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    k = tl.arange(0, BLOCK)[None, :]
    inside = (row < B) & (k < d)
    at = row * d + k
    dh = tl.zeros([ROWS, BLOCK], tl.float32)
    dc = tl.zeros([ROWS, BLOCK], tl.float32)
    length = tl.zeros([ROWS, BLOCK], tl.int64) + T
    if dh_n is not None:
        dh = _read(dh_n, at, inside)
    if LSTM and dc_n is not None:
        dc = _read(dc_n, at, inside)
    if lengths is not None:
        length = tl.load(lengths + row + 0 * k, mask=inside, other=0)
    for number in range(T):
        step = tl.full([], 0, tl.int64) + number
        if REVERSE:
            neighbour = (step + 1) * B * d + at
            first = length - 1 == step
        else:
            step = T - 1 - step
            neighbour = (step - 1) * B * d + at
            first = 0 * length == step
        here = inside & (step < length)
        old = _read(before, neighbour, here & (first == 0))
        if start is not None:
            old += _read(start, at, here & first)
        given = dh
        if dy is not None:
            given += _read(dy, step * dy_step + row * dy_row + k, here)
        of = step * B * d + at
        if LSTM:
            to = (step * B + row) * 4 * d + k
            i, f, g, o, cells = _backward_lstm(
                _read(gates, to, here),
                _read(gates, to + d, here),
                _read(gates, to + 2 * d, here),
                _read(gates, to + 3 * d, here),
                _read(kept, of, here),
                old,
                given,
                dc,
            )
            i, f = tl.where(here, i, 0.0), tl.where(here, f, 0.0)
            g, o = tl.where(here, g, 0.0), tl.where(here, o, 0.0)
            tl.store(d_input + to, i, mask=inside)
            tl.store(d_input + to + d, f, mask=inside)
            tl.store(d_input + to + 2 * d, g, mask=inside)
            tl.store(d_input + to + 3 * d, o, mask=inside)
            dc = tl.where(here, cells, dc)
            dh = tl.where(here, 0.0, dh)
            dh += _times(i, weight, 0, d, False, BLOCK)
            dh += _times(f, weight, 1, d, False, BLOCK)
            dh += _times(g, weight, 2, d, False, BLOCK)
            dh += _times(o, weight, 3, d, False, BLOCK)
        else:
            to = (step * B + row) * 3 * d + k
            r, u, n, told, rest = _backward_gru(
                _read(gates, to, here),
                _read(gates, to + d, here),
                _read(gates, to + 2 * d, here),
                _read(kept, of, here),
                old,
                given,
            )
            r, u = tl.where(here, r, 0.0), tl.where(here, u, 0.0)
            n, told = tl.where(here, n, 0.0), tl.where(here, told, 0.0)
            tl.store(d_input + to, r, mask=inside)
            tl.store(d_input + to + d, u, mask=inside)
            tl.store(d_input + to + 2 * d, n, mask=inside)
            tl.store(d_state + to, r, mask=inside)
            tl.store(d_state + to + d, u, mask=inside)
            tl.store(d_state + to + 2 * d, told, mask=inside)
            dh = tl.where(here, rest, dh)
            dh += _times(r, weight, 0, d, False, BLOCK)
            dh += _times(u, weight, 1, d, False, BLOCK)
            dh += _times(told, weight, 2, d, False, BLOCK)
    tl.store(dh_0 + at, dh, mask=inside)
    if LSTM:
        tl.store(dc_0 + at, dc, mask=inside)


# --- launches ---------------------------------------------------------------------------------------------


def _block(weight: Tensor) -> int | None:
    """Columns of a program that takes all steps, where there are few enough hidden units."""
    block = max(16, int(triton.next_power_of_2(weight.shape[1])))
    return block if block * block * weight.element_size() <= _LARGEST else None


def _on(tensor: Tensor) -> Any:
    return torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext()


def forward_steps(
    kind: str,
    gates: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    start: Sequence[Tensor | None],
    lengths: Tensor | None,
    reverse: bool,
    keep: bool,
) -> tuple[Tensor, Tensor | None, list[Tensor]]:
    """All steps of a layer: arguments and results as in `burnt.kernels.ops.rnn.loop_c`, of any dtype."""
    steps, batch, _ = gates.shape
    width, lstm, block = weight.shape[1], kind == "lstm", _block(weight)
    output = gates.new_empty_strided((batch, steps, width), (width, batch * width, 1))
    kept = gates.new_empty(steps, batch, width) if keep else None
    with _on(gates):
        if block is not None:
            h, c = gates.new_empty(batch, width), gates.new_empty(batch, width) if lstm else None
            forward_all[(triton.cdiv(batch, _ROWS),)](
                weight, bias, gates, start[0], start[1] if lstm else None, lengths, output, kept, h, c,
                steps, batch, width, lstm, keep, reverse, _ROWS, block,
            )  # fmt: skip
            return output, kept, [h] if c is None else [h, c]
        first = gates.new_zeros(batch, width)
        h = first if start[0] is None else start[0].clone()
        c = None
        if lstm:
            c = torch.zeros_like(first, dtype=torch.float32) if start[1] is None else start[1].float().clone()
        grid, across = (triton.cdiv(batch * width, _BLOCK),), weight.t()
        for t in reversed(range(steps)) if reverse else range(steps):
            z = torch.mm(h, across)
            forward_cell[grid](
                z, bias, gates, h, c, lengths, output, kept, t, batch, width, lstm, keep, _BLOCK
            )
    return output, kept, [h] if c is None else [h, c.to(gates.dtype)]


def backward_steps(
    kind: str,
    gates: Tensor,
    kept: Tensor,
    output: Tensor,
    weight: Tensor,
    start: Sequence[Tensor | None],
    lengths: Tensor | None,
    reverse: bool,
    cotangent: Tensor | None,
    last: Sequence[Tensor | None],
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """What cotangents make of the gates and first states, as in `burnt.kernels.ops.rnn.loop_c`."""
    steps, batch, _ = gates.shape
    width, lstm, block = weight.shape[1], kind == "lstm", _block(weight)
    of_input = torch.empty_like(gates)
    of_state = of_input if lstm else torch.empty_like(gates)
    before = kept if lstm else output
    strides = (0, 0) if cotangent is None else cotangent.stride()[:2]
    with _on(gates):
        if block is not None:
            first = [gates.new_empty(batch, width) for _ in start]
            backward_all[(triton.cdiv(batch, _ROWS),)](
                weight, last[0], last[1] if lstm else None, cotangent, gates, kept, before, start[-1],
                lengths, of_input, of_state, first[0], first[-1], steps, batch, width, *strides, lstm,
                reverse, _ROWS, block,
            )  # fmt: skip
            return of_input, of_state, first
        zeros = torch.zeros(batch, width, dtype=torch.float32, device=gates.device)
        carried = [zeros.clone() if g is None else g.float().clone() for g in last]
        z = None
        for t in range(steps) if reverse else reversed(range(steps)):
            backward_cell[(triton.cdiv(batch * width, _BLOCK),)](
                z, carried[0], carried[-1], cotangent, gates, kept, before, start[-1], lengths, of_input,
                of_state, t, steps, batch, width, *strides, lstm, reverse, _BLOCK,
            )  # fmt: skip
            z = torch.mm(of_state[t], weight)
        assert z is not None
        carried[0] += z
    return of_input, of_state, [g.to(gates.dtype) for g in carried]
