"""Recurrent layers: `lstm` and `gru` of several layers and directions, and the ops that make one of them.

Axes: B batch, T steps, I input features, H hidden units. Outputs lie in memory with the steps first, as
torch's do, so that a layer's output is the next one's input as it is. Ours is ``steps``: products of all
steps around a loop that is written by hand (`burnt.kernels.ops.rnn.layer`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from burnt.codegen.frontend.trace import is_tracing
from burnt.device import processor
from burnt.errors import InputRuntimeError, InputTypeError, InputValueError, UnsupportedError
from burnt.kernels.dispatch.op import op
from burnt.kernels.interface.autocast import cast, cast_all
from burnt.kernels.interface.checks import check_floating, check_one_device, check_one_dtype, describe
from burnt.kernels.interface.tuning_key import wants_gradient
from burnt.kernels.ops.rnn.layer import DTYPES, run, why_not, within

__all__ = ["gru", "gru_layer", "lstm", "lstm_layer"]

_GATES = {"lstm": 4, "gru": 3}


# --- what fits --------------------------------------------------------------------------------------------


def _check(
    kind: str,
    x: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None,
    bias_hh: Tensor | None,
    start: dict[str, Tensor | None],
    lengths: Tensor | None,
) -> None:
    name = f"{kind}_layer"
    numbers: dict[str, Tensor | None] = {
        "x": x, "weight_ih": weight_ih, "weight_hh": weight_hh, "bias_ih": bias_ih, "bias_hh": bias_hh,
        **start,
    }  # fmt: skip
    check_floating(name, **numbers)
    check_one_device(name, **numbers, lengths=lengths)
    check_one_dtype(name, **numbers)
    if x.dim() != 3 or not x.shape[1]:
        raise InputRuntimeError(
            "the input of a recurrent layer has no steps",
            where=f"burnt.kernels.{name}",
            expected="[batch, steps, features], at least one step",
            found=list(x.shape),
            hint="x.unsqueeze(0) makes a batch of one sequence" if x.dim() == 2 else None,
        )
    width = weight_hh.shape[-1] if weight_hh.dim() else 0
    gates = _GATES[kind] * width
    wanted = {
        "weight_ih": [gates, x.shape[2]], "weight_hh": [gates, width], "bias_ih": [gates], "bias_hh": [gates],
        "h0": [x.shape[0], width], "c0": [x.shape[0], width], "lengths": [x.shape[0]],
    }  # fmt: skip
    for argument, tensor in {**numbers, "lengths": lengths}.items():
        if tensor is not None and argument != "x" and list(tensor.shape) != wanted[argument]:
            raise InputRuntimeError(
                f"{argument} of {name} has another shape",
                where=f"burnt.kernels.{name}",
                expected=f"{wanted[argument]}, for an input {list(x.shape)} and {width} hidden units",
                found=list(tensor.shape),
            )
    if (bias_ih is None) != (bias_hh is None):
        raise InputRuntimeError(
            f"{name} has both biases or none",
            where=f"burnt.kernels.{name}",
            expected="bias_ih and bias_hh",
            found=f"bias_{'ih' if bias_hh is None else 'hh'} alone",
        )
    if lengths is not None and lengths.dtype != torch.int64:
        raise InputRuntimeError(
            f"lengths of {name} are of another dtype",
            where=f"burnt.kernels.{name}",
            expected="int64",
            found=lengths.dtype,
            hint="lengths.long()",
        )


def _look(name: str, x: Tensor, lengths: Tensor | None) -> None:
    if lengths is None or not lengths.numel():
        return
    smallest, largest = (int(n) for n in torch.aminmax(lengths))
    if smallest < 1 or largest > x.shape[1]:
        raise InputRuntimeError(
            "a sequence has no steps, or more than the input",
            where=f"burnt.kernels.{name}",
            expected=f"lengths from 1 to {x.shape[1]}",
            found=smallest if smallest < 1 else largest,
        )


def _check_lstm(
    x: Tensor, w: Tensor, u: Tensor, b: Any, c: Any, h0: Any, c0: Any, lengths: Any, *_: Any
) -> None:
    _check("lstm", x, w, u, b, c, {"h0": h0, "c0": c0}, lengths)


def _check_gru(x: Tensor, w: Tensor, u: Tensor, b: Any, c: Any, h0: Any, lengths: Any, *_: Any) -> None:
    _check("gru", x, w, u, b, c, {"h0": h0}, lengths)


def _examples(kind: str) -> Callable[[torch.device], list[tuple[object, ...]]]:
    def examples(device: torch.device) -> list[tuple[object, ...]]:
        made: list[tuple[object, ...]] = []
        for batch, steps, features, width in [(16, 128, 256, 256), (64, 40, 100, 64), (3, 5, 7, 11)]:
            rows = _GATES[kind] * width
            sizes = [(rows, features), (rows, width), (rows,), (rows,)]
            weights = [torch.empty(size, device=device).uniform_(-1, 1) / width**0.5 for size in sizes]
            made.append((torch.randn(batch, steps, features, device=device), *weights))
        return made

    return examples


def _not_traced() -> None:
    """Keep the compiler of kernels from a loop whose every step would be kernels of their own."""
    if is_tracing():
        raise UnsupportedError("the steps of a recurrent layer are not made into kernels")


def _autocast_gru(dtype: torch.dtype, x: Tensor, *rest: Any) -> tuple[Any, ...]:
    """As torch has it: all that cuDNN is given is cast; elsewhere states stay as wide as they begin."""
    begin = x if rest[4] is None else rest[4]
    return cast_all(dtype if x.is_cuda else torch.promote_types(dtype, begin.dtype), x, *rest)


# --- the ops ----------------------------------------------------------------------------------------------


def _by_torch(
    kind: str,
    x: Tensor,
    weights: Sequence[Tensor],
    start: Sequence[Tensor],
    lengths: Tensor | None,
    *,
    biases: bool,
    layers: int = 1,
    bidirectional: bool = False,
    dropout: float = 0.0,
    train: bool = False,
) -> tuple[Tensor, list[Tensor]]:
    """torch's own call: outputs, and the last states ``[layers * directions, B, H]``."""
    narrow = None if lengths is not None else _not_by_onednn(kind, x)  # oneDNN takes no packed ones
    if narrow is not None:
        given, begin = ([t.to(narrow) for t in tensors] for tensors in (weights, start))
        with torch.autocast("cpu", enabled=False):
            return _by_torch(
                kind,
                x.to(narrow),
                given,
                begin,
                lengths,
                biases=biases,
                layers=layers,
                bidirectional=bidirectional,
                dropout=dropout,
                train=train,
            )
    call: Any = torch.lstm if kind == "lstm" else torch.gru
    settings = (list(weights), biases, layers, dropout, train, bidirectional)
    if lengths is None:
        output, *last = call(x, start if kind == "lstm" else start[0], *settings, True)
        return output, last
    packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
    assert packed.sorted_indices is not None
    assert packed.unsorted_indices is not None
    begin = [state.index_select(1, packed.sorted_indices) for state in start]
    data, *last = call(packed.data, packed.batch_sizes, begin if kind == "lstm" else begin[0], *settings)
    output, _ = pad_packed_sequence(packed._replace(data=data), total_length=x.shape[1])
    return output.transpose(0, 1), [state.index_select(1, packed.unsorted_indices) for state in last]


def _not_by_onednn(kind: str, x: Tensor) -> torch.dtype | None:
    """What autocast makes of an LSTM's tensors after torch has picked oneDNN for float32, which raises on
    processors without instructions for that. For tensors that are of it already torch does not pick it."""
    if kind != "lstm" or not x.is_cpu or x.dtype == torch.float64 or not torch.is_autocast_enabled("cpu"):
        return None
    narrow = torch.get_autocast_dtype("cpu")
    return None if narrow in processor().onednn else narrow


def _turned(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Each sequence from its end to its beginning; what comes after it stays."""
    if lengths is None:
        return x.flip(1)
    steps = torch.arange(x.shape[1], device=x.device)
    left = lengths.unsqueeze(1) - 1 - steps
    at = torch.where(left >= 0, left, steps).unsqueeze(2).expand_as(x)
    return x.transpose(0, 1).gather(0, at.transpose(0, 1)).transpose(0, 1)


def _one_by_torch(
    kind: str,
    x: Tensor,
    weights: Sequence[Tensor | None],
    start: Sequence[Tensor | None],
    lengths: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, ...]:
    _look(f"{kind}_layer", x, lengths)
    given = [w for w in weights if w is not None]
    zeros = x.new_zeros(1, x.shape[0], given[1].shape[1])
    output, last = _by_torch(
        kind,
        _turned(x, lengths) if reverse else x,
        given,
        [zeros if state is None else state.unsqueeze(0) for state in start],
        lengths,
        biases=len(given) == 4,
        train=wants_gradient(x, *given, *start),
    )
    return _turned(output, lengths) if reverse else output, *(state[0] for state in last)


def _lstm_by_torch(
    x: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None = None,
    bias_hh: Tensor | None = None,
    h0: Tensor | None = None,
    c0: Tensor | None = None,
    lengths: Tensor | None = None,
    reverse: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    weights = weight_ih, weight_hh, bias_ih, bias_hh
    return _one_by_torch("lstm", x, weights, (h0, c0), lengths, reverse)  # type: ignore[return-value]


def _gru_by_torch(
    x: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None = None,
    bias_hh: Tensor | None = None,
    h0: Tensor | None = None,
    lengths: Tensor | None = None,
    reverse: bool = False,
) -> tuple[Tensor, Tensor]:
    weights = weight_ih, weight_hh, bias_ih, bias_hh
    return _one_by_torch("gru", x, weights, (h0,), lengths, reverse)  # type: ignore[return-value]


@op(
    library=_lstm_by_torch,
    check=_check_lstm,
    look=lambda x, *rest: _look("lstm_layer", x, rest[6]),
    examples=_examples("lstm"),
    autocast=cast_all,
)
def lstm_layer(
    x: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None = None,
    bias_hh: Tensor | None = None,
    h0: Tensor | None = None,
    c0: Tensor | None = None,
    lengths: Tensor | None = None,
    reverse: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    r"""One layer of an LSTM in one direction.

    .. math:: i, f, g, o &= \sigma, \sigma, \tanh, \sigma(x_t W_{ih}^\top + b_{ih}
              + h_{t-1} W_{hh}^\top + b_{hh}) \\
              c_t &= f c_{t-1} + i g, \quad h_t = o \tanh(c_t)

    Args:
        x: ``[B, T, I]``, of a floating-point dtype.
        weight_ih: ``[4 H, I]``, of the same dtype, as the others; gates i, f, g, o, in this order.
        weight_hh: ``[4 H, H]``.
        bias_ih: ``[4 H]``, or None, and so `bias_hh`.
        bias_hh: ``[4 H]``.
        h0: ``[B, H]``, the state to begin with; None is zeros.
        c0: ``[B, H]``, the cells to begin with; None is zeros.
        lengths: ``[B]``, int64: steps of each sequence, 1 to T. Outputs beyond are zero.
        reverse: the last step of each sequence comes first.

    Returns:
        ``[B, T, H]``, the states after each step, and h and c after the last one of each sequence,
        ``[B, H]``, as `x`. The first has its steps first in memory.

    Raises:
        InputRuntimeError: shapes, dtypes or devices do not fit each other, or a length is out of range (on
            the CPU).
        InputUnsupportedError: not of a floating-point dtype.

    As `torch.nn.LSTM` of one layer. Hochreiter and Schmidhuber, 1997; Gers, Schmidhuber and Cummins, 2000.

    >>> weights = torch.ones(4, 2), torch.zeros(4, 1)
    >>> lstm_layer(torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]), *weights)[0]
    tensor([[[0.3696],
             [0.5453]]])
    """
    _not_traced()
    inputs = F.linear(within(x, lengths), weight_ih, bias_ih)
    # Under autocast the gates are of another dtype than what is given.
    zeros = inputs.new_zeros(x.shape[0], weight_hh.shape[1])
    h, c = (zeros if state is None else cast(state, inputs.dtype) for state in (h0, c0))
    outputs: list[Tensor] = []
    for t in reversed(range(x.shape[1])) if reverse else range(x.shape[1]):
        i, f, g, o = (inputs[:, t] + F.linear(h, weight_hh, bias_hh)).chunk(4, 1)
        next_c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        next_h = torch.sigmoid(o) * torch.tanh(next_c)
        if lengths is None:
            h, c = next_h, next_c
            outputs.append(h)
        else:
            inside = (lengths > t).unsqueeze(1)
            h, c = torch.where(inside, next_h, h), torch.where(inside, next_c, c)
            outputs.append(torch.where(inside, next_h, 0.0))
    return torch.stack(outputs[::-1] if reverse else outputs).transpose(0, 1), h, c


@op(
    library=_gru_by_torch,
    check=_check_gru,
    look=lambda x, *rest: _look("gru_layer", x, rest[5]),
    examples=_examples("gru"),
    autocast=_autocast_gru,
)
def gru_layer(
    x: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None = None,
    bias_hh: Tensor | None = None,
    h0: Tensor | None = None,
    lengths: Tensor | None = None,
    reverse: bool = False,
) -> tuple[Tensor, Tensor]:
    r"""One layer of gated recurrent units in one direction.

    .. math:: r, z &= \sigma(x_t W_{ih}^\top + b_{ih} + h_{t-1} W_{hh}^\top + b_{hh}) \\
              n &= \tanh(x_t W_{in}^\top + b_{in} + r (h_{t-1} W_{hn}^\top + b_{hn})) \\
              h_t &= (1 - z) n + z h_{t-1}

    Args:
        x: ``[B, T, I]``, of a floating-point dtype.
        weight_ih: ``[3 H, I]``, of the same dtype, as the others; gates r, z, n, in this order.
        weight_hh: ``[3 H, H]``.
        bias_ih: ``[3 H]``, or None, and so `bias_hh`.
        bias_hh: ``[3 H]``.
        h0: ``[B, H]``, the state to begin with; None is zeros.
        lengths: ``[B]``, int64: steps of each sequence, 1 to T. Outputs beyond are zero.
        reverse: the last step of each sequence comes first.

    Returns:
        ``[B, T, H]``, the states after each step, and the one after the last step of each sequence,
        ``[B, H]``, as `x`. The first has its steps first in memory.

    Raises:
        InputRuntimeError: shapes, dtypes or devices do not fit each other, or a length is out of range (on
            the CPU).
        InputUnsupportedError: not of a floating-point dtype.

    As `torch.nn.GRU` of one layer. Cho et al., 2014; the reset gate comes after the product.

    >>> weights = torch.ones(3, 2), torch.zeros(3, 1)
    >>> gru_layer(torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]), *weights)[0]
    tensor([[[0.2048],
             [0.3546]]])
    """
    _not_traced()
    inputs = F.linear(within(x, lengths), weight_ih, bias_ih)
    h = x.new_zeros(x.shape[0], weight_hh.shape[1]) if h0 is None else h0
    outputs: list[Tensor] = []
    for t in reversed(range(x.shape[1])) if reverse else range(x.shape[1]):
        of_input = inputs[:, t].chunk(3, 1)
        of_state = F.linear(h, weight_hh, bias_hh).chunk(3, 1)
        r, z = (torch.sigmoid(a + b) for a, b in zip(of_input[:2], of_state[:2], strict=True))
        n = torch.tanh(of_input[2] + r * of_state[2])
        next_h = n + z * (h - n)
        if lengths is None:
            h = next_h
            outputs.append(h)
        else:
            inside = (lengths > t).unsqueeze(1)
            h = torch.where(inside, next_h, h)
            outputs.append(torch.where(inside, next_h, 0.0))
    return torch.stack(outputs[::-1] if reverse else outputs).transpose(0, 1), h


# See `_not_traced`.
lstm_layer.discard("generated")
gru_layer.discard("generated")


# Times as fast as torch's, forward and backward, one thread: LSTMs of 16 x 128 x 256 0.97, 64 x 40 x 64 0.98,
# 4 x 32 x 64 0.8, 16 x 32 x 1024 1.2; GRUs 1.6, 1.6, 3.4, 1.9. In float16 13, in bfloat16 0.7 and 1.4.
_LARGE = 1 << 24  # multiplications
_WIDE = 512


def _best_lstm(x: Tensor, weight_ih: Tensor, weight_hh: Tensor, *rest: Any) -> bool:
    """oneDNN's is as fast on one thread, but its threads wait for each other at every step.

    With AVX-512 on AMD's processors it is 0.85 to 0.95 times as fast as steps of large batches with their
    gradients, and 1.0 to 1.2 times elsewhere (two threads of a Zen 5).
    """
    if x.dtype.itemsize == 2:
        return x.dtype not in processor().onednn and _best_gru(x)
    width, threads = weight_hh.shape[1], torch.get_num_threads()
    large = x[..., 0].numel() * width * (x.shape[2] + width) >= _LARGE
    if processor().mkl_is_slow:
        large &= x.shape[0] >= 48 and width >= 256 and wants_gradient(x, weight_ih, weight_hh, *rest)
    return large and (1 < threads <= x.shape[0] or width >= _WIDE) and _best_gru(x)


def _best_gru(x: Tensor, *rest: Any) -> bool:
    """torch has no GRU of oneDNN's, and runs its ops one by one."""
    return x.is_cpu and torch.get_num_threads() <= 4 * x.shape[0]


@lstm_layer.candidate(
    "steps", devices=["cpu", "cuda"], dtypes=DTYPES, when=why_not, best=_best_lstm, differentiable=True
)
def _lstm_by_steps(x: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    *weights, h0, c0, lengths, reverse = rest
    return run("lstm", lstm_layer.reference, x, weights, (h0, c0), lengths, reverse)


@gru_layer.candidate(
    "steps", devices=["cpu", "cuda"], dtypes=DTYPES, when=why_not, best=_best_gru, differentiable=True
)
def _gru_by_steps(x: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    *weights, h0, lengths, reverse = rest
    return run("gru", gru_layer.reference, x, weights, (h0,), lengths, reverse)


# --- several layers and directions ------------------------------------------------------------------------


def lstm(
    x: Tensor,
    weights: Sequence[Sequence[Tensor]],
    hx: tuple[Tensor, Tensor] | None = None,
    *,
    lengths: Tensor | None = None,
    bidirectional: bool = False,
    dropout: float = 0.0,
    training: bool = False,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """An LSTM of several layers and one or two directions.

    Args:
        x: ``[B, T, I]``, of a floating-point dtype.
        weights: for each layer, and in it for each direction, what `lstm_layer` takes: ``weight_ih,
            weight_hh``, or these and ``bias_ih, bias_hh``; the order of `torch.nn.LSTM.all_weights`.
        hx: states h and c to begin with, ``[layers * directions, B, H]``; None is zeros.
        lengths: ``[B]``, int64: steps of each sequence, 1 to T, in any order. Outputs beyond are zero.
        bidirectional: layers go through the sequences in both directions, and hand on both outputs side by
            side.
        dropout: probability of dropping an output of a layer before the next one.
        training: whether to drop any.

    Returns:
        ``[B, T, H * directions]``, and the last states h and c, ``[layers * directions, B, H]``.

    Raises:
        InputRuntimeError: shapes, dtypes or devices do not fit each other, or a length is out of range.
        InputTypeError: `hx` is no pair of tensors.
        InputValueError: a number of weights that makes no layers.

    As `torch.nn.LSTM` with the batch first.

    >>> layers = [(torch.ones(4, 2), torch.zeros(4, 1)), (torch.ones(4, 1), torch.zeros(4, 1))]
    >>> output, (h, c) = lstm(torch.ones(3, 5, 2), layers)
    >>> output.shape, h.shape
    (torch.Size([3, 5, 1]), torch.Size([2, 3, 1]))
    """
    output, last = _stacked("lstm", x, weights, hx, lengths, bidirectional, dropout if training else 0.0)
    return output, (last[0], last[1])


def gru(
    x: Tensor,
    weights: Sequence[Sequence[Tensor]],
    hx: Tensor | None = None,
    *,
    lengths: Tensor | None = None,
    bidirectional: bool = False,
    dropout: float = 0.0,
    training: bool = False,
) -> tuple[Tensor, Tensor]:
    """Gated recurrent units of several layers and one or two directions.

    Arguments and results are those of `lstm`, with one state instead of two. As `torch.nn.GRU` with the batch
    first.

    >>> output, h = gru(torch.ones(3, 5, 2), [(torch.ones(3, 2), torch.zeros(3, 1))])
    >>> output.shape, h.shape
    (torch.Size([3, 5, 1]), torch.Size([1, 3, 1]))
    """
    start = None if hx is None else (hx,)
    output, last = _stacked("gru", x, weights, start, lengths, bidirectional, dropout if training else 0.0)
    return output, last[0]


def _stacked(
    kind: str,
    x: Tensor,
    weights: Sequence[Sequence[Tensor]],
    start: Sequence[Tensor] | None,
    lengths: Tensor | None,
    bidirectional: bool,
    dropout: float,
) -> tuple[Tensor, list[Tensor]]:
    directions = 2 if bidirectional else 1
    layers = len(weights) // directions
    if not layers or len(weights) % directions:
        raise InputValueError(
            "these weights make no layers",
            where=f"burnt.kernels.{kind}",
            expected=f"{directions} tuples of weights for each layer",
            found=len(weights),
        )
    states = 2 if kind == "lstm" else 1
    _check_start(kind, start, states)
    for state in start or ():
        if state.dim() != 3 or len(state) != len(weights):
            raise InputRuntimeError(
                "states to begin with are not as many as layers and directions",
                where=f"burnt.kernels.{kind}",
                expected=[len(weights), x.shape[0], weights[0][1].shape[-1]],
                found=list(state.shape),
            )
    compiling = torch.compiler.is_compiling()
    if lengths is None and (compiling or (len(weights) > 1 and x.device.type != "cpu")):
        # Compilers know torch's call, and a GPU's library goes through several layers at a time.
        return _whole(kind, x, weights, start, layers, bidirectional, dropout)
    layer: Any = lstm_layer if kind == "lstm" else gru_layer
    of_layer = layer.reference if compiling else layer  # a compiler cannot see through an op
    last: list[tuple[Tensor, ...]] = []
    for at in range(0, len(weights), directions):
        outputs = []
        for n in range(at, at + directions):
            begin = [None] * states if start is None else [state[n] for state in start]
            biases = () if len(weights[n]) > 2 else (None, None)
            output, *end = of_layer(x, *weights[n], *biases, *begin, lengths, n > at)
            outputs.append(output)
            last.append(tuple(end))
        x = outputs[0]
        if bidirectional:
            x = torch.cat([output.transpose(0, 1) for output in outputs], 2).transpose(0, 1)
        if dropout and at + directions < len(weights):
            x = F.dropout(x.transpose(0, 1), dropout).transpose(0, 1)
    return x, [torch.stack(state) for state in zip(*last, strict=True)]


def _check_start(kind: str, start: object, states: int) -> None:
    """States to begin with are as many tensors as the layer has, or None."""
    if start is None:
        return
    listed = list(start) if isinstance(start, list | tuple) else []
    tensors = all(isinstance(state, Tensor) for state in listed)
    if len(listed) == states and tensors:
        return
    expected = "a pair of tensors, h and c" if states == 2 else "a tensor, h"
    one = listed[0] if states == 1 and listed else start
    raise (InputRuntimeError if tensors and listed else InputTypeError)(
        f"{kind} begins with {'two states' if states == 2 else 'one state'}",
        where=f"burnt.kernels.{kind}",
        expected=f"hx, {expected}: [layers * directions, batch, hidden]",
        found=f"{type(one).__name__} of {len(one)}" if isinstance(one, list | tuple) else describe(one),
        hint="hx=(h, c)" if states == 2 and isinstance(start, Tensor) else None,
    )


def _whole(
    kind: str,
    x: Tensor,
    weights: Sequence[Sequence[Tensor]],
    start: Sequence[Tensor] | None,
    layers: int,
    bidirectional: bool,
    dropout: float,
) -> tuple[Tensor, list[Tensor]]:
    zeros = x.new_zeros(len(weights), x.shape[0], weights[0][1].shape[1])
    flat = [w for layer in weights for w in layer]
    return _by_torch(
        kind,
        x,
        flat,
        [zeros, zeros][: 2 if kind == "lstm" else 1] if start is None else start,
        None,
        biases=len(weights[0]) > 2,
        layers=layers,
        bidirectional=bidirectional,
        dropout=dropout,
        train=dropout > 0 or wants_gradient(x, *flat, *(start or ())),
    )
