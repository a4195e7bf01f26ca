"""Recurrent layers: `lstm` and `gru` with several layers and directions, and the ops of one layer.

Axes: B batch, T steps, I input features, H hidden units. Outputs are stored with the steps first, like
torch's, so that the next layer reads them without a copy. The candidate ``steps`` is a hand-written loop over
time between matmuls over all steps (`burnt.kernels.ops.rnn.layer`).
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling, is_exporting
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from burnt.codegen.frontend.trace import is_tracing
from burnt.device import processor
from burnt.errors import InputRuntimeError, InputTypeError, InputValueError, UnsupportedError
from burnt.kernels.dispatch.op import op
from burnt.kernels.interface.autocast import cast, cast_all
from burnt.kernels.interface.checks import (
    check_floating,
    check_one_device,
    check_one_dtype,
    check_shape,
    describe,
)
from burnt.kernels.interface.tuning_key import wants_gradient
from burnt.kernels.ops.rnn.layer import DTYPES, run_layer, unsupported_reason, zero_padding

_GATES = {"lstm": 4, "gru": 3}

# cuDNN copies the weights of each call into one piece of memory. torch advises its `flatten_parameters()`,
# which burnt's layers do not have: the copy is small next to the steps.
warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")


# --- input checks -----------------------------------------------------------------------------------------


def _check(
    kind: str, x: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Any, bias_hh: Any, *rest: Any
) -> None:
    *states, lengths, _ = rest
    initial = dict(zip(("h0", "c0"), states, strict=False))
    name = f"{kind}_layer"
    floats: dict[str, Tensor | None] = {
        "x": x, "weight_ih": weight_ih, "weight_hh": weight_hh, "bias_ih": bias_ih, "bias_hh": bias_hh,
        **initial,
    }  # fmt: skip
    check_floating(name, **floats)
    check_one_device(name, **floats, lengths=lengths)
    check_one_dtype(name, **floats)
    if x.dim() != 3 or not x.shape[1]:
        raise InputRuntimeError(
            "the input of a recurrent layer has the wrong shape",
            where=f"burnt.kernels.{name}",
            expected="[batch, steps, features], with at least one step",
            found=list(x.shape),
            hint="x.unsqueeze(0) makes a batch of one sequence" if x.dim() == 2 else None,
        )
    width = weight_hh.shape[-1] if weight_hh.dim() else 0
    gates = _GATES[kind] * width
    row = x.shape[0], width
    shapes: dict[str, Sequence[int]] = {
        "x": x.shape, "weight_ih": [gates, x.shape[2]], "weight_hh": [gates, width], "bias_ih": [gates],
        "bias_hh": [gates], "h0": row, "c0": row, "lengths": row[:1],
    }  # fmt: skip
    for argument, tensor in {**floats, "lengths": lengths}.items():
        check_shape(name, argument, tensor, shapes[argument])
    if (bias_ih is None) != (bias_hh is None):
        raise InputRuntimeError(
            f"{name} needs both biases or none",
            where=f"burnt.kernels.{name}",
            expected="bias_ih and bias_hh",
            found=f"only bias_{'ih' if bias_hh is None else 'hh'}",
        )
    if lengths is not None and lengths.dtype != torch.int64:
        raise InputRuntimeError(
            f"lengths of {name} have the wrong dtype",
            where=f"burnt.kernels.{name}",
            expected="int64",
            found=lengths.dtype,
            hint="lengths.long()",
        )


def check_lengths(name: str, x: Tensor, lengths: Tensor | None) -> None:
    """Raise an InputRuntimeError unless lengths are from 1 to the number of steps."""
    if lengths is None or not lengths.numel():
        return
    smallest, largest = (int(n) for n in torch.aminmax(lengths))
    if smallest < 1 or largest > x.shape[1]:
        raise InputRuntimeError(
            "the lengths of a recurrent layer are out of range",
            where=f"burnt.kernels.{name}",
            expected=f"lengths from 1 to {x.shape[1]}",
            found=smallest if smallest < 1 else largest,
        )


def _examples(kind: str) -> Callable[[torch.device], list[tuple[object, ...]]]:
    def examples(device: torch.device) -> list[tuple[object, ...]]:
        cases: list[tuple[object, ...]] = []
        for batch, steps, features, width in [(16, 128, 256, 256), (64, 40, 100, 64), (3, 5, 7, 11)]:
            rows = _GATES[kind] * width
            sizes = [(rows, features), (rows, width), (rows,), (rows,)]
            weights = [torch.empty(size, device=device).uniform_(-1, 1) / width**0.5 for size in sizes]
            cases.append((torch.randn(batch, steps, features, device=device), *weights))
        return cases

    return examples


def _forbid_tracing() -> None:
    """Refuse tracing by the kernel compiler: each step of the loop would become kernels of its own."""
    if is_tracing():
        raise UnsupportedError("the kernel compiler does not unroll the steps of a recurrent layer")


def _autocast_gru(dtype: torch.dtype, x: Tensor, *rest: Any) -> tuple[Any, ...]:
    """Cast like torch: everything on CUDA (for cuDNN); elsewhere keep the initial state's wider dtype."""
    widest = x if rest[4] is None else rest[4]
    return cast_all(dtype if x.is_cuda else torch.promote_types(dtype, widest.dtype), x, *rest)


def _unroll(
    inputs: Tensor,
    states: Sequence[Tensor],
    lengths: Tensor | None,
    reverse: bool,
    cell: Callable[..., Sequence[Tensor]],
) -> tuple[Tensor, ...]:
    """Run a cell over the gates ``[B, T, *]`` of all steps; return outputs ``[B, T, H]`` and last states."""
    outputs: list[Tensor] = []
    for t in reversed(range(inputs.shape[1])) if reverse else range(inputs.shape[1]):
        new_states = cell(inputs[:, t], *states)
        output = new_states[0]
        if lengths is not None:
            is_active = (lengths > t).unsqueeze(1)
            output = torch.where(is_active, output, 0.0)
            pairs = zip(new_states, states, strict=True)
            new_states = [torch.where(is_active, new, old) for new, old in pairs]
        states = new_states
        outputs.append(output)
    return torch.stack(outputs[::-1] if reverse else outputs).transpose(0, 1), *states


# --- the ops ----------------------------------------------------------------------------------------------


def _torch_rnn(
    kind: str,
    x: Tensor,
    weights: Sequence[Tensor],
    initial: Sequence[Tensor],
    lengths: Tensor | None,
    *,
    biases: bool,
    layers: int = 1,
    bidirectional: bool = False,
    dropout: float = 0.0,
    train: bool = False,
) -> tuple[Tensor, list[Tensor]]:
    """Call `torch.lstm` or `torch.gru`; results are as in `call_torch`."""
    if lengths is None and (cast_to := _dtype_without_onednn(kind, x)) is not None:
        cast_weights, states = ([t.to(cast_to) for t in tensors] for tensors in (weights, initial))
        with torch.autocast("cpu", enabled=False):
            return _torch_rnn(
                kind, x.to(cast_to), cast_weights, states, lengths, biases=biases, layers=layers,
                bidirectional=bidirectional, dropout=dropout, train=train,
            )  # fmt: skip
    settings = (list(weights), biases, layers, dropout, train, bidirectional)
    return call_torch(torch.lstm if kind == "lstm" else torch.gru, x, initial, lengths, *settings)


def call_torch(
    call: Any, x: Tensor, initial: Sequence[Tensor], lengths: Tensor | None, *settings: Any
) -> tuple[Tensor, list[Tensor]]:
    """Call a recurrent function of torch: return outputs, and last states ``[layers * directions, B, H]``."""

    def pack(states: Sequence[Tensor]) -> Any:
        return states if len(states) > 1 else states[0]

    if lengths is None:
        output, *last = call(x, pack(initial), *settings, True)
        return output, last
    packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
    assert packed.sorted_indices is not None
    assert packed.unsorted_indices is not None
    states = [state.index_select(1, packed.sorted_indices) for state in initial]
    data, *last = call(packed.data, packed.batch_sizes, pack(states), *settings)
    output, _ = pad_packed_sequence(packed._replace(data=data), total_length=x.shape[1])
    return output.transpose(0, 1), [state.index_select(1, packed.unsorted_indices) for state in last]


def _dtype_without_onednn(kind: str, x: Tensor) -> torch.dtype | None:
    """Return the autocast dtype to cast an LSTM's tensors to before calling torch; None to leave them.

    Given float32 tensors, torch selects oneDNN and casts afterwards, which raises on processors without
    instructions for that dtype. Given tensors already cast, torch does not select oneDNN.
    """
    if kind != "lstm" or not x.is_cpu or x.dtype == torch.float64 or not torch.is_autocast_enabled("cpu"):
        return None
    autocast = torch.get_autocast_dtype("cpu")
    return None if autocast in processor().onednn else autocast


def _reverse_sequences(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Reverse each sequence in time; the padding stays in place."""
    if lengths is None:
        return x.flip(1)
    steps = torch.arange(x.shape[1], device=x.device)
    reversed_steps = lengths.unsqueeze(1) - 1 - steps
    index = torch.where(reversed_steps >= 0, reversed_steps, steps).unsqueeze(2).expand_as(x)
    return x.transpose(0, 1).gather(0, index.transpose(0, 1)).transpose(0, 1)


def _torch_layer(kind: str, x: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    *tensors, lengths, reverse = rest
    weights, initial = tensors[:4], tensors[4:]
    check_lengths(f"{kind}_layer", x, lengths)
    present = [w for w in weights if w is not None]
    zeros = x.new_zeros(1, x.shape[0], present[1].shape[1])
    output, last = _torch_rnn(
        kind,
        _reverse_sequences(x, lengths) if reverse else x,
        present,
        [zeros if state is None else state.unsqueeze(0) for state in initial],
        lengths,
        biases=len(present) == 4,
        train=wants_gradient(x, *present, *initial),
    )
    return _reverse_sequences(output, lengths) if reverse else output, *(state[0] for state in last)


@op(
    library=functools.partial(_torch_layer, "lstm"),
    check=functools.partial(_check, "lstm"),
    look=lambda x, *rest: check_lengths("lstm_layer", x, rest[6]),
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
    r"""Compute one layer of an LSTM in one direction.

    .. math:: i, f, g, o &= \sigma, \sigma, \tanh, \sigma(x_t W_{ih}^\top + b_{ih}
              + h_{t-1} W_{hh}^\top + b_{hh}) \\
              c_t &= f c_{t-1} + i g, \quad h_t = o \tanh(c_t)

    Args:
        x: ``[B, T, I]``, of a floating-point dtype.
        weight_ih: ``[4 H, I]``, with gates in the order i, f, g, o; all tensors have the dtype of `x`.
        weight_hh: ``[4 H, H]``, the recurrent weight.
        bias_ih: ``[4 H]``; both biases may be None.
        bias_hh: ``[4 H]``, the recurrent bias.
        h0: ``[B, H]``, the initial state; None is zeros.
        c0: ``[B, H]``, the initial cell state; None is zeros.
        lengths: ``[B]``, int64: steps of each sequence, 1 to T. Outputs after them are zero.
        reverse: whether to start from the last step of each sequence.

    Returns:
        The states after each step, ``[B, T, H]``, stored with the steps first, and h and c after the last
        step of each sequence, ``[B, H]``; all in the dtype of `x`.

    Raises:
        InputRuntimeError: the shapes, dtypes or devices do not match, or a length is out of range (on the
            CPU).

    As `torch.nn.LSTM` of one layer. Hochreiter and Schmidhuber, 1997; Gers, Schmidhuber and Cummins, 2000.

    >>> weights = torch.ones(4, 2), torch.zeros(4, 1)
    >>> lstm_layer(torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]), *weights)[0]
    tensor([[[0.3696],
             [0.5453]]])
    """
    _forbid_tracing()
    inputs = F.linear(zero_padding(x, lengths), weight_ih, bias_ih)
    # Under autocast the gates have another dtype than the inputs.
    zeros = inputs.new_zeros(x.shape[0], weight_hh.shape[1])
    h, c = (zeros if state is None else cast(state, inputs.dtype) for state in (h0, c0))

    def cell(gates: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        i, f, g, o = (gates + F.linear(h, weight_hh, bias_hh)).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c

    return _unroll(inputs, (h, c), lengths, reverse, cell)  # type: ignore[return-value]


@op(
    library=functools.partial(_torch_layer, "gru"),
    check=functools.partial(_check, "gru"),
    look=lambda x, *rest: check_lengths("gru_layer", x, rest[5]),
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
    r"""Compute one layer of gated recurrent units (GRU) in one direction.

    .. math:: r, z &= \sigma(x_t W_{ih}^\top + b_{ih} + h_{t-1} W_{hh}^\top + b_{hh}) \\
              n &= \tanh(x_t W_{in}^\top + b_{in} + r (h_{t-1} W_{hn}^\top + b_{hn})) \\
              h_t &= (1 - z) n + z h_{t-1}

    Weights and biases have ``3 H`` rows, with gates in the order r, z, n, and there is no cell state;
    otherwise arguments, results and errors are as in `lstm_layer`.

    As `torch.nn.GRU` of one layer. Cho et al., 2014; the reset gate is applied after the matmul.

    >>> weights = torch.ones(3, 2), torch.zeros(3, 1)
    >>> gru_layer(torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]), *weights)[0]
    tensor([[[0.2048],
             [0.3546]]])
    """
    _forbid_tracing()
    inputs = F.linear(zero_padding(x, lengths), weight_ih, bias_ih)
    h = x.new_zeros(x.shape[0], weight_hh.shape[1]) if h0 is None else h0

    def cell(gates: Tensor, h: Tensor) -> tuple[Tensor]:
        input_gates, state_gates = gates.chunk(3, 1), F.linear(h, weight_hh, bias_hh).chunk(3, 1)
        r, z = (torch.sigmoid(a + b) for a, b in zip(input_gates[:2], state_gates[:2], strict=True))
        n = torch.tanh(input_gates[2] + r * state_gates[2])
        return (n + z * (h - n),)

    return _unroll(inputs, (h,), lengths, reverse, cell)  # type: ignore[return-value]


# See `_forbid_tracing`.
lstm_layer.discard("generated")
gru_layer.discard("generated")


# Speedup over torch, forward and backward, one thread: LSTMs of 16 x 128 x 256 0.97, 64 x 40 x 64 0.98,
# 4 x 32 x 64 0.8, 16 x 32 x 1024 1.2; GRUs 1.6, 1.6, 3.4, 1.9. In float16 13, in bfloat16 0.7 and 1.4.
_MIN_MULTIPLICATIONS = 1 << 24
_MIN_WIDTH = 512


def _is_best_lstm(x: Tensor, weight_ih: Tensor, weight_hh: Tensor, *rest: Any) -> bool:
    """Whether ``steps`` beats oneDNN's LSTM, which is as fast on one thread but synchronizes threads every
    step.

    With AVX-512 on AMD processors oneDNN is 0.85 to 0.95 times as fast as ``steps`` for large batches with
    gradients, and 1.0 to 1.2 times otherwise (two threads of a Zen 5).
    """
    if x.dtype.itemsize == 2:
        return x.dtype not in processor().onednn and _is_best_gru(x)
    width, threads = weight_hh.shape[1], torch.get_num_threads()
    is_large = x[..., 0].numel() * width * (x.shape[2] + width) >= _MIN_MULTIPLICATIONS
    if processor().mkl_is_slow:
        is_large &= x.shape[0] >= 48 and width >= 256 and wants_gradient(x, weight_ih, weight_hh, *rest)
    return is_large and (1 < threads <= x.shape[0] or width >= _MIN_WIDTH) and _is_best_gru(x)


def _is_best_gru(x: Tensor, *rest: Any) -> bool:
    """Whether ``steps`` beats torch's GRU, which does not use oneDNN and runs op by op."""
    return x.is_cpu and torch.get_num_threads() <= 4 * x.shape[0]


def _steps(kind: str, x: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    layer: Any = lstm_layer if kind == "lstm" else gru_layer
    return run_layer(kind, layer.reference, x, rest[:4], rest[4:-2], *rest[-2:])


_STEPS: dict[str, Any] = {
    "devices": ["cpu", "cuda"], "dtypes": DTYPES, "when": unsupported_reason, "differentiable": True,
}  # fmt: skip
lstm_layer.candidate("steps", best=_is_best_lstm, **_STEPS)(functools.partial(_steps, "lstm"))
gru_layer.candidate("steps", best=_is_best_gru, **_STEPS)(functools.partial(_steps, "gru"))


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
    """Compute an LSTM with several layers and one or two directions.

    Args:
        x: ``[B, T, I]``, of a floating-point dtype.
        weights: for each layer, and in it for each direction, ``(weight_ih, weight_hh)`` or ``(weight_ih,
            weight_hh, bias_ih, bias_hh)`` as in `lstm_layer`; the order of `torch.nn.LSTM.all_weights`.
        hx: initial states h and c, ``[layers * directions, B, H]``; None is zeros.
        lengths: ``[B]``, int64: steps of each sequence, 1 to T, in any order. Outputs after them are zero.
        bidirectional: whether layers run in both directions and concatenate both outputs.
        dropout: probability of dropping an output between layers.
        training: whether to apply dropout.

    Returns:
        ``[B, T, H * directions]``, and the last states h and c, ``[layers * directions, B, H]``.

    Raises:
        InputRuntimeError: the shapes, dtypes or devices do not match, or a length is out of range.
        InputTypeError: `hx` is not a pair of tensors.
        InputValueError: the number of weights does not match the number of directions.

    As `torch.nn.LSTM` with ``batch_first=True``.

    >>> layers = [(torch.ones(4, 2), torch.zeros(4, 1)), (torch.ones(4, 1), torch.zeros(4, 1))]
    >>> output, (h, c) = lstm(torch.ones(3, 5, 2), layers)
    >>> output.shape, h.shape
    (torch.Size([3, 5, 1]), torch.Size([2, 3, 1]))
    """
    output, last = _run_stack("lstm", x, weights, hx, lengths, bidirectional, dropout if training else 0.0)
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
    """Compute a GRU with several layers and one or two directions.

    Arguments and results are as in `lstm`, with one state instead of two. As `torch.nn.GRU` with
    ``batch_first=True``.

    >>> output, h = gru(torch.ones(3, 5, 2), [(torch.ones(3, 2), torch.zeros(3, 1))])
    >>> output.shape, h.shape
    (torch.Size([3, 5, 1]), torch.Size([1, 3, 1]))
    """
    initial = None if hx is None else (hx,)
    output, last = _run_stack(
        "gru", x, weights, initial, lengths, bidirectional, dropout if training else 0.0
    )
    return output, last[0]


def _run_stack(
    kind: str,
    x: Tensor,
    weights: Sequence[Sequence[Tensor]],
    initial: Sequence[Tensor] | None,
    lengths: Tensor | None,
    bidirectional: bool,
    dropout: float,
) -> tuple[Tensor, list[Tensor]]:
    directions = 2 if bidirectional else 1
    layers = len(weights) // directions
    if not layers or len(weights) % directions:
        raise InputValueError(
            "the number of weight tuples does not match the directions",
            where=f"burnt.kernels.{kind}",
            expected=f"{directions} tuples of weights for each layer",
            found=len(weights),
        )
    states = 2 if kind == "lstm" else 1
    _check_initial_states(kind, initial, states)
    for state in initial or ():
        if state.dim() != 3 or len(state) != len(weights):
            raise InputRuntimeError(
                "the initial states do not match the layers and directions",
                where=f"burnt.kernels.{kind}",
                expected=[len(weights), x.shape[0], weights[0][1].shape[-1]],
                found=list(state.shape),
            )
    compiling = torch.compiler.is_compiling()
    if lengths is None and (
        (compiling and not _fails_compiled(kind, x, weights, initial))
        or (len(weights) > 1 and x.device.type != "cpu")
    ):
        # Compilers know torch's call, and cuDNN runs several layers at once.
        zeros = x.new_zeros(len(weights), x.shape[0], weights[0][1].shape[1])
        flat = [w for layer in weights for w in layer]
        return _torch_rnn(
            kind,
            x,
            flat,
            [zeros] * states if initial is None else initial,
            None,
            biases=len(weights[0]) > 2,
            layers=layers,
            bidirectional=bidirectional,
            dropout=dropout,
            train=dropout > 0 or wants_gradient(x, *flat, *(initial or ())),
        )
    layer: Any = lstm_layer if kind == "lstm" else gru_layer
    call = layer.reference if compiling else layer  # a compiler cannot see through an op

    def run_one(x: Tensor, tensors: Sequence[Tensor], start: Sequence[Any], *rest: Any) -> Any:
        return call(x, *tensors, *(() if len(tensors) > 2 else (None, None)), *start, *rest)

    return run_layers(
        run_one, x, weights, initial or [[None] * len(weights)] * states, lengths, directions, dropout
    )


def run_layers(
    run_one: Callable[..., tuple[Tensor, ...]],
    x: Tensor,
    weights: Sequence[Sequence[Tensor]],
    initial: Sequence[Any],
    lengths: Tensor | None,
    directions: int,
    dropout: float,
) -> tuple[Tensor, list[Tensor]]:
    """Run layer after layer in both directions; `run_one` runs one of them, ``(x, weights, states, lengths,
    reverse)``, and returns its outputs and last states."""
    last: list[tuple[Tensor, ...]] = []
    for first in range(0, len(weights), directions):
        outputs = []
        for index in range(first, first + directions):
            start = [state[index] for state in initial]
            output, *end = run_one(x, weights[index], start, lengths, index > first)
            outputs.append(output)
            last.append(tuple(end))
        x = outputs[0]
        if directions == 2:
            x = torch.cat([output.transpose(0, 1) for output in outputs], 2).transpose(0, 1)
        if dropout and first + directions < len(weights):
            x = F.dropout(x.transpose(0, 1), dropout).transpose(0, 1)
    return x, [torch.stack(state) for state in zip(*last, strict=True)]


def _fails_compiled(
    kind: str, x: Tensor, weights: Sequence[Sequence[Tensor]], initial: Sequence[Tensor] | None
) -> bool:
    """Whether torch.compile fails on torch's call: AOTAutograd, on gradients of oneDNN's LSTM.

    The layers are then compiled step by step, as torch itself decomposes a GRU.
    """
    if kind != "lstm" or not x.is_cpu or not is_dynamo_compiling() or is_exporting():
        return False
    return wants_gradient(x, *(w for layer in weights for w in layer), *(initial or ()))


def _check_initial_states(kind: str, initial: object, num_states: int) -> None:
    """Check that the initial states are None, or one tensor per state of the layer."""
    if initial is None:
        return
    items = list(initial) if isinstance(initial, list | tuple) else []
    are_tensors = all(isinstance(state, Tensor) for state in items)
    if len(items) == num_states and are_tensors:
        return
    raise (InputRuntimeError if are_tensors and items else InputTypeError)(
        f"{kind} takes {'two initial states' if num_states == 2 else 'one initial state'}",
        where=f"burnt.kernels.{kind}",
        expected=f"hx, {'a pair of tensors, h and c' if num_states == 2 else 'a tensor, h'}: "
        "[layers * directions, batch, hidden]",
        found=", ".join(map(describe, items)) if items else describe(initial),
    )
