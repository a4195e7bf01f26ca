"""The loop over the steps of a recurrent layer in Triton, with the interface of
`burnt.kernels.ops.rnn.loop_c`: each step is one `torch.mm` of the states and one kernel.

Layouts: T steps, B rows, d hidden units, G gates. Cells are computed in float32; states are rounded to the
dtype of the gates before a matmul.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from burnt.codegen.render.triton.device_math import sigmoid, tanh
from burnt.kernels.interface.launch import on_device_of
from burnt.kernels.ops.rnn.loop_c import Loop

_STEP_BLOCK = 256  # elements per program that runs one step


@triton.jit
def _load_float32(pointer, index, mask):  # type: ignore[no-untyped-def]
    return tl.load(pointer + index, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _forward_lstm(i, f, g, o, c):  # type: ignore[no-untyped-def]
    """Return the activated gates, new cells and new states, given pre-activation gates and cells."""
    i, f, g, o = sigmoid(i), sigmoid(f), tanh(g), sigmoid(o)
    cell = f * c + i * g
    return i, f, g, o, cell, o * tanh(cell)


@triton.jit
def _backward_lstm(i, f, g, o, cell, previous_cell, dh, dc):  # type: ignore[no-untyped-def]
    """Return the gradients of the pre-activation gates and of the previous cells."""
    tanh_cell = tanh(cell)
    d_cell = dc + dh * o * (1.0 - tanh_cell * tanh_cell)
    d_i = d_cell * g * i * (1.0 - i)
    d_f = d_cell * previous_cell * f * (1.0 - f)
    d_g = d_cell * i * (1.0 - g * g)
    d_o = dh * tanh_cell * o * (1.0 - o)
    return d_i, d_f, d_g, d_o, d_cell * f


@triton.jit
def _forward_gru(r, z, n, state_n, h):  # type: ignore[no-untyped-def]
    """Return the activated gates and new state; `state_n` is the state's part of the last gate."""
    r, z = sigmoid(r), sigmoid(z)
    n = tanh(n + r * state_n)
    return r, z, n, n + z * (h - n)


@triton.jit
def _backward_gru(r, z, n, state_n, previous_h, dh):  # type: ignore[no-untyped-def]
    """Return the gradients of the pre-activation gates, `state_n`, and the state (all but its matmul)."""
    d_n = dh * (1.0 - z) * (1.0 - n * n)
    d_r = d_n * state_n * r * (1.0 - r)
    d_z = dh * (previous_h - n) * z * (1.0 - z)
    return d_r, d_z, d_n, d_n * r, dh * z


@triton.jit(do_not_specialize=["t"])  # type: ignore[untyped-decorator]
def forward_cell(  # type: ignore[no-untyped-def]
    z,  # [B, G d]: the states' part of the gates
    bias,  # [d] or None: recurrent bias of a GRU's last gate
    gates,  # [T, B, G d]: the inputs' part; with SAVE, overwritten by the gates
    h,  # [B, d]: the states, updated
    c,  # [B, d], float32: an LSTM's cells, updated
    lengths,  # [B] or None
    y,  # [T, B, d]
    saved,  # [T, B, d]: with SAVE, the cells, or the states' part of a GRU's last gate
    t,
    B,
    d,
    LSTM: tl.constexpr,
    SAVE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute one step of all rows, BLOCK elements per program."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    in_bounds = index < tl.full([], 1, tl.int64) * B * d
    row, k = index // d, index % d
    step = tl.full([], 0, tl.int64) + t
    is_active = in_bounds
    if lengths is not None:
        is_active = in_bounds & (step < tl.load(lengths + row, mask=in_bounds, other=0))
    if LSTM:
        gate_index = (step * B + row) * 4 * d + k
        hidden_index = row * 4 * d + k
        i, f, g, o, cell, state = _forward_lstm(
            _load_float32(gates, gate_index, is_active) + _load_float32(z, hidden_index, is_active),
            _load_float32(gates, gate_index + d, is_active) + _load_float32(z, hidden_index + d, is_active),
            _load_float32(gates, gate_index + 2 * d, is_active)
            + _load_float32(z, hidden_index + 2 * d, is_active),
            _load_float32(gates, gate_index + 3 * d, is_active)
            + _load_float32(z, hidden_index + 3 * d, is_active),
            _load_float32(c, index, is_active),
        )
        tl.store(c + index, cell, mask=is_active)
        if SAVE:
            tl.store(gates + gate_index, i, mask=is_active)
            tl.store(gates + gate_index + d, f, mask=is_active)
            tl.store(gates + gate_index + 2 * d, g, mask=is_active)
            tl.store(gates + gate_index + 3 * d, o, mask=is_active)
            tl.store(saved + step * B * d + index, cell, mask=is_active)
    else:
        gate_index = (step * B + row) * 3 * d + k
        hidden_index = row * 3 * d + k
        state_n = _load_float32(z, hidden_index + 2 * d, is_active) + _load_float32(bias, k, is_active)
        r, u, n, state = _forward_gru(
            _load_float32(gates, gate_index, is_active) + _load_float32(z, hidden_index, is_active),
            _load_float32(gates, gate_index + d, is_active) + _load_float32(z, hidden_index + d, is_active),
            _load_float32(gates, gate_index + 2 * d, is_active),
            state_n,
            _load_float32(h, index, is_active),
        )
        if SAVE:
            tl.store(gates + gate_index, r, mask=is_active)
            tl.store(gates + gate_index + d, u, mask=is_active)
            tl.store(gates + gate_index + 2 * d, n, mask=is_active)
            tl.store(saved + step * B * d + index, state_n, mask=is_active)
    tl.store(h + index, state, mask=is_active)
    tl.store(y + step * B * d + index, tl.where(is_active, state, 0.0), mask=in_bounds)


@triton.jit(do_not_specialize=["t"])  # type: ignore[untyped-decorator]
def backward_cell(  # type: ignore[no-untyped-def]
    z,  # [B, d] or None: the states' gradient from the next step's matmul
    dh,  # [B, d], float32: the rest of their gradient, updated
    dc,  # [B, d], float32: gradient of an LSTM's cells, updated
    dy,  # [T, B, d] by strides, or None
    gates,  # [T, B, G d]
    saved,  # [T, B, d]
    previous,  # [T, B, d]: c (LSTM) or h (GRU) of all steps; a cell reads that of the step before it
    initial,  # [B, d] or None: the state before the first step
    lengths,  # [B] or None
    d_input,  # [T, B, G d]: gradient of the inputs' part of the gates
    d_state,  # [T, B, G d]: gradient of the states' part, for a GRU
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
    """Compute one step of all rows, BLOCK elements per program."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    in_bounds = index < tl.full([], 1, tl.int64) * B * d
    row, k = index // d, index % d
    step = tl.full([], 0, tl.int64) + t
    length = tl.zeros([BLOCK], tl.int64) + T
    if lengths is not None:
        length = tl.load(lengths + row, mask=in_bounds, other=0)
    is_active = in_bounds & (step < length)
    if REVERSE:
        is_first = step == length - 1
        previous_index = (step + 1) * B * d + index
    else:
        is_first = step + tl.zeros([BLOCK], tl.int64) == 0
        previous_index = (step - 1) * B * d + index
    previous_state = _load_float32(previous, previous_index, is_active & (is_first == 0))
    if initial is not None:
        previous_state += _load_float32(initial, index, is_active & is_first)
    total = _load_float32(dh, index, in_bounds)
    if z is not None:
        total += _load_float32(z, index, in_bounds)
    dh_step = total
    if dy is not None:
        dh_step += _load_float32(dy, step * dy_step + row * dy_row + k, is_active)
    hidden_index = step * B * d + index
    if LSTM:
        gate_index = (step * B + row) * 4 * d + k
        i, f, g, o, dc_previous = _backward_lstm(
            _load_float32(gates, gate_index, is_active),
            _load_float32(gates, gate_index + d, is_active),
            _load_float32(gates, gate_index + 2 * d, is_active),
            _load_float32(gates, gate_index + 3 * d, is_active),
            _load_float32(saved, hidden_index, is_active),
            previous_state,
            dh_step,
            _load_float32(dc, index, is_active),
        )
        tl.store(d_input + gate_index, tl.where(is_active, i, 0.0), mask=in_bounds)
        tl.store(d_input + gate_index + d, tl.where(is_active, f, 0.0), mask=in_bounds)
        tl.store(d_input + gate_index + 2 * d, tl.where(is_active, g, 0.0), mask=in_bounds)
        tl.store(d_input + gate_index + 3 * d, tl.where(is_active, o, 0.0), mask=in_bounds)
        tl.store(dc + index, dc_previous, mask=is_active)
        tl.store(dh + index, tl.where(is_active, 0.0, total), mask=in_bounds)
    else:
        gate_index = (step * B + row) * 3 * d + k
        r, u, n, state_n, dh_direct = _backward_gru(
            _load_float32(gates, gate_index, is_active),
            _load_float32(gates, gate_index + d, is_active),
            _load_float32(gates, gate_index + 2 * d, is_active),
            _load_float32(saved, hidden_index, is_active),
            previous_state,
            dh_step,
        )
        tl.store(d_input + gate_index, tl.where(is_active, r, 0.0), mask=in_bounds)
        tl.store(d_input + gate_index + d, tl.where(is_active, u, 0.0), mask=in_bounds)
        tl.store(d_input + gate_index + 2 * d, tl.where(is_active, n, 0.0), mask=in_bounds)
        tl.store(d_state + gate_index, tl.where(is_active, r, 0.0), mask=in_bounds)
        tl.store(d_state + gate_index + d, tl.where(is_active, u, 0.0), mask=in_bounds)
        tl.store(d_state + gate_index + 2 * d, tl.where(is_active, state_n, 0.0), mask=in_bounds)
        tl.store(dh + index, tl.where(is_active, dh_direct, total), mask=in_bounds)


def forward_steps(loop: Loop, save: bool) -> tuple[Tensor, Tensor | None, list[Tensor]]:
    """Run all steps of a layer: arguments and results as in `burnt.kernels.ops.rnn.loop_c`, of any dtype."""
    kind, gates, weight, bias, initial, lengths, reverse = loop
    steps, batch, _ = gates.shape
    width, lstm = weight.shape[1], kind == "lstm"
    output = gates.new_empty_strided((batch, steps, width), (width, batch * width, 1))
    saved = gates.new_empty(steps, batch, width) if save else None
    with on_device_of(gates):
        zeros = gates.new_zeros(batch, width)
        h = zeros if initial[0] is None else initial[0].clone()
        c = None
        if lstm:
            c = (zeros if initial[1] is None else initial[1]).to(torch.float32, copy=True)
        grid, weight_t = (triton.cdiv(batch * width, _STEP_BLOCK),), weight.t()
        for t in reversed(range(steps)) if reverse else range(steps):
            z = torch.mm(h, weight_t)
            forward_cell[grid](
                z, bias, gates, h, c, lengths, output, saved, t, batch, width, lstm, save, _STEP_BLOCK
            )
    return output, saved, [h] if c is None else [h, c.to(gates.dtype)]


def backward_steps(
    loop: Loop, saved: Tensor, output: Tensor, grad_output: Tensor | None, grad_last: Sequence[Tensor | None]
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Run all steps of the backward, as in `burnt.kernels.ops.rnn.loop_c`."""
    kind, gates, weight, _, initial, lengths, reverse = loop
    steps, batch, _ = gates.shape
    width, lstm = weight.shape[1], kind == "lstm"
    grad_input_gates = torch.empty_like(gates)
    grad_state_gates = grad_input_gates if lstm else torch.empty_like(gates)
    previous = saved if lstm else output
    strides = (0, 0) if grad_output is None else grad_output.stride()[:2]
    with on_device_of(gates):
        zeros = torch.zeros(batch, width, dtype=torch.float32, device=gates.device)
        grad_states = [zeros.clone() if g is None else g.float().clone() for g in grad_last]
        z = None
        for t in range(steps) if reverse else reversed(range(steps)):
            backward_cell[(triton.cdiv(batch * width, _STEP_BLOCK),)](
                z, grad_states[0], grad_states[-1], grad_output, gates, saved, previous, initial[-1], lengths,
                grad_input_gates, grad_state_gates, t, steps, batch, width, *strides, lstm, reverse,
                _STEP_BLOCK,
            )  # fmt: skip
            z = torch.mm(grad_state_gates[t], weight)
        assert z is not None
        grad_states[0] += z
    return grad_input_gates, grad_state_gates, [g.to(gates.dtype) for g in grad_states]
