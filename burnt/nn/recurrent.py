"""Recurrent layers: plain ones, LSTM and gated recurrent units, and the cells of one step.

Axes: B batch, T steps, I input_size, H hidden_size, P proj_size or hidden_size, D directions, N num_layers.
"""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from burnt import kernels
from burnt.errors import InputError, InputRuntimeError, InputTypeError, InputValueError, ShapeError
from burnt.kernels.ops.rnn.rnn import call_torch, check_lengths, run_layers
from burnt.module import Module
from burnt.nn.attention import length_mask
from burnt.nn.checks import check_dtype, require


class _Recurrent(Module):
    """Base of the layers: parameters with torch's names, sequences of different lengths, and single steps."""

    _GATES: ClassVar[int]
    _STATES: ClassVar[tuple[str, ...]]
    _TORCH: ClassVar[type[torch.nn.RNNBase]]
    _OWN: ClassVar[dict[str, Any]] = {}
    """The arguments that only this layer has, and their defaults."""

    input_size: int
    hidden_size: int
    num_layers: int
    bias: bool
    dropout: float
    bidirectional: bool

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        bias: bool,
        dropout: float,
        bidirectional: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
        proj_size: int = 0,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        sizes: dict[str, Any] = {
            "input_size": input_size,
            "hidden_size": hidden_size,
            "num_layers": num_layers,
        }
        for argument, size in sizes.items():
            if not isinstance(size, numbers.Integral):
                raise InputTypeError(
                    f"{argument} of a recurrent layer is an integer",
                    where=name,
                    expected="an integer",
                    found=repr(size),
                )
            least = int(argument != "input_size")
            require(int(size) >= least, name, argument, f"at least {least}", size)
        is_number = isinstance(dropout, numbers.Real)
        is_probability = is_number and 0 <= dropout <= 1
        require(is_probability, name, "dropout", "a probability from 0 to 1", dropout)
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.dropout, self.bidirectional = bias, dropout, bidirectional
        rows, outputs = self._GATES * hidden_size, proj_size or hidden_size
        for layer in range(num_layers):
            columns = input_size if layer == 0 else outputs * self.num_directions
            shapes: dict[str, tuple[int, ...]] = {"weight_ih": (rows, columns), "weight_hh": (rows, outputs)}
            shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)} if bias else {}
            shapes |= {"weight_hr": (proj_size, hidden_size)} if proj_size else {}
            for suffix in self._suffixes(layer):
                for parameter, shape in shapes.items():
                    tensor = torch.empty(shape, device=device, dtype=dtype)
                    self.register_parameter(parameter + suffix, Parameter(tensor))
        self.reset_parameters()

    @property
    def num_directions(self) -> int:
        """The number D of directions."""
        return 2 if self.bidirectional else 1

    @property
    def all_weights(self) -> list[list[Parameter]]:
        """The parameters by layer and direction: weight_ih, weight_hh, bias_ih, bias_hh and weight_hr."""
        names = ["weight_ih", "weight_hh"]
        names += ["bias_ih", "bias_hh"] if self.bias else []
        names += ["weight_hr"] if self._state_sizes()[0] != self.hidden_size else []
        suffixes = [s for layer in range(self.num_layers) for s in self._suffixes(layer)]
        return [[getattr(self, name + suffix) for name in names] for suffix in suffixes]

    def reset_parameters(self) -> None:
        """Reinitialise all parameters uniformly between -1 / sqrt(H) and 1 / sqrt(H)."""
        bound = 1 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            torch.nn.init.uniform_(parameter, -bound, bound)

    def extra_repr(self) -> str:
        """Return the sizes, and the options that differ from the defaults."""
        text = f"{self.input_size}, {self.hidden_size}"
        rest = {"num_layers": 1, "bias": True, "dropout": 0.0, "bidirectional": False} | self._OWN
        return text + "".join(
            f", {name}={getattr(self, name)!r}"
            for name, usual in rest.items()
            if getattr(self, name) != usual
        )

    @classmethod
    def from_torch(cls, layer: torch.nn.RNNBase) -> Self:
        """Build a copy of torch's layer of the same kind; its input has the batch axis first.

        Raises:
            InputTypeError: a layer of another kind.
        """
        if not isinstance(layer, cls._TORCH):
            raise InputTypeError(
                "the layer is of another kind",
                where=f"{cls.__name__}.from_torch",
                expected=f"a torch.nn.{cls._TORCH.__name__}",
                found=f"a {type(layer).__name__}",
            )
        weight = layer.weight_ih_l0
        assert isinstance(weight, Tensor)
        names = ("num_layers", "bias", "dropout", "bidirectional", *cls._OWN)
        arguments: dict[str, Any] = {name: getattr(layer, name) for name in names}
        copy = cls(layer.input_size, layer.hidden_size, **arguments, device=weight.device, dtype=weight.dtype)
        copy.load_state_dict(layer.state_dict())
        return copy.train(layer.training)

    def _state_sizes(self) -> tuple[int, ...]:
        """Return the size of the last axis of each state."""
        return (self.hidden_size,) * len(self._STATES)

    def _suffixes(self, layer: int) -> list[str]:
        return [f"_l{layer}", f"_l{layer}_reverse"][: self.num_directions]

    def _run(
        self, input: Tensor | PackedSequence, start: tuple[Tensor, ...] | None, lengths: Tensor | None
    ) -> tuple[Any, tuple[Tensor, ...]]:
        """Return the output, batched or packed like the input, and the last states."""
        if isinstance(input, PackedSequence):
            if lengths is not None:
                raise InputValueError(
                    "a packed input has its lengths itself", where=self._name(), expected="lengths=None"
                )
            return run_packed(input, lambda padded, lengths: self._run(padded, start, lengths))
        batched = input.dim() == 3
        self._check(input, start, lengths)
        x = input if batched else input.unsqueeze(0)
        if start is not None and not batched:
            start = tuple(state.unsqueeze(1) for state in start)
        hx = start if start is None or len(self._STATES) > 1 else start[0]
        try:
            output, end = self._op()(
                x,
                self.all_weights,
                hx,
                lengths=None if lengths is None else lengths.to(x.device),
                bidirectional=self.bidirectional,
                dropout=self.dropout,
                training=self.training,
            )
        except InputError as error:
            error.where = self._name()  # not the kernel of one of its layers
            raise
        last = end if len(self._STATES) > 1 else (end,)
        return (output, last) if batched else (output[0], tuple(state[:, 0] for state in last))

    def _run_step(self, input: Tensor, start: tuple[Tensor, ...] | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the output of one step, and the states after it.

        By torch's cells: a layer's kernel over one step takes 2 to 9 times as long, for 1 to 64 rows.
        """
        if self.bidirectional:
            raise InputValueError(
                "a layer that also runs backwards has no single steps",
                where=self._name(),
                expected="bidirectional=False",
                hint="the whole sequence: layer(input)",
            )
        if input.dim() not in (1, 2):
            raise InputValueError(
                "the input is not a step",
                where=self._name(),
                expected=f"[batch, {self.input_size}] or [{self.input_size}]",
                found=tuple(input.shape),
                hint="input[:, t]" if input.dim() == 3 else None,
            )
        self._check(input, start, None, axes=("batch",))
        batched = input.dim() == 2
        x = input if batched else input.unsqueeze(0)
        if start is None:
            states = [x.new_zeros(self.num_layers, x.shape[0], size) for size in self._state_sizes()]
        else:
            states = [state if batched else state.unsqueeze(1) for state in start]
        after = []
        for layer, weights in enumerate(self.all_weights):
            if layer and self.dropout:
                x = F.dropout(x, self.dropout, self.training)
            after.append(self._cell(x, [state[layer] for state in states], weights))
            x = after[-1][0]
        last = tuple(torch.stack(state) for state in zip(*after, strict=True))
        return (x, last) if batched else (x[0], tuple(state[:, 0] for state in last))

    def _cell(self, x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the states of a layer after one step, the output first."""
        raise NotImplementedError

    def _op(self) -> Any:
        """Return the function that runs the layer over sequences."""
        raise NotImplementedError

    def _biases(self, weights: Sequence[Tensor]) -> Sequence[Tensor | None]:
        return weights[2:4] if self.bias else (None, None)

    def _check(
        self, input: Tensor, start: Any, lengths: Tensor | None, axes: tuple[str, ...] = ("batch", "steps")
    ) -> None:
        """Check what a call is given; `axes` are the input's before its features, of which batch may lack."""
        check_dtype(self._name(), "input", input, self.all_weights[0][0].dtype)
        batched = input.dim() == len(axes) + 1
        if not batched and input.dim() != len(axes):
            raise InputValueError(
                "the input does not fit a recurrent layer",
                where=self._name(),
                expected=f"[batch, steps, {self.input_size}] or [steps, {self.input_size}]",
                found=tuple(input.shape),
            )
        if input.shape[-1] != self.input_size:
            raise InputRuntimeError(
                "the input does not fit a recurrent layer",
                where=self._name(),
                expected=f"({', '.join((*axes[0 if batched else 1 :], str(self.input_size)))})",
                found=tuple(input.shape),
                hint=f"the layer before makes {input.shape[-1]} features",
            )
        if "steps" in axes and not input.shape[-2]:
            raise InputRuntimeError(
                "a recurrent layer needs at least one step",
                where=self._name(),
                expected="steps > 0",
                found=tuple(input.shape),
            )
        if lengths is not None:
            self._check_lengths(lengths)
        if lengths is not None and (not batched or lengths.shape != input.shape[:1]):
            raise ShapeError(
                "lengths do not fit the batch",
                where=self._name(),
                expected=f"{tuple(input.shape[:1])}, a length for each sequence"
                if batched
                else "none for an input that is one sequence",
                found=tuple(lengths.shape),
            )
        if start is None:
            return
        given = [start] if isinstance(start, Tensor) else start
        if len(given) != len(self._STATES) or not all(isinstance(state, Tensor) for state in given):
            raise InputRuntimeError(
                "hx is not the states to begin with",
                where=self._name(),
                expected=" and ".join(self._STATES) + (", as a pair" if len(self._STATES) > 1 else ""),
                found=f"({', '.join(type(state).__name__ for state in given)})",
            )
        batch = tuple(input.shape[:1]) if batched else ()
        for name, state, size in zip(self._STATES, start, self._state_sizes(), strict=True):
            expected = (self.num_layers * self.num_directions, *batch, size)
            if tuple(state.shape) != expected:
                raise InputRuntimeError(
                    f"the state {name} does not fit a recurrent layer",
                    where=self._name(),
                    expected=expected,
                    found=tuple(state.shape),
                )
            check_dtype(self._name(), name, state, self.all_weights[0][0].dtype)

    def _check_lengths(self, lengths: Any) -> None:
        if not isinstance(lengths, Tensor):
            raise InputTypeError(
                "lengths are a tensor",
                where=self._name(),
                expected="a tensor of dtype int64, a length for each sequence",
                found=repr(lengths)[:80],
                hint="torch.tensor(lengths)" if isinstance(lengths, list | tuple) else None,
            )
        if lengths.dtype != torch.int64:
            raise InputRuntimeError(
                "lengths have the wrong dtype",
                where=self._name(),
                expected="lengths of dtype int64",
                found=lengths.dtype,
                hint="lengths.long()",
            )

    def _name(self) -> str:
        return f"{type(self).__name__}({self.input_size}, {self.hidden_size})"


def run_packed(
    input: PackedSequence, run: Callable[[Tensor, Tensor], tuple[Tensor, Any]]
) -> tuple[PackedSequence, Any]:
    """Call ``run(padded, lengths)`` for a packed sequence, and pack its outputs like the input."""
    padded, lengths = pad_packed_sequence(input, batch_first=True)
    output, last = run(padded, lengths)
    if input.sorted_indices is not None:
        output = output.index_select(0, input.sorted_indices)
        lengths = lengths.index_select(0, input.sorted_indices.cpu())
    return input._replace(data=pack_padded_sequence(output, lengths, batch_first=True).data), last


class Lstm(_Recurrent):
    r"""Long short-term memory: a state and cells, carried through a sequence by gates.

    .. math:: i, f, g, o &= \sigma, \sigma, \tanh, \sigma(x_t W_{ih}^\top + b_{ih}
              + h_{t-1} W_{hh}^\top + b_{hh}) \\
              c_t &= f c_{t-1} + i g, \quad h_t = o \tanh(c_t)

    Args:
        input_size: number I of features of a step.
        hidden_size: number H of hidden units.
        num_layers: number N of layers, each of which takes the outputs of the one before.
        bias: whether there are the biases ``b``.
        dropout: probability of dropping an output of a layer, but the last one, while training.
        bidirectional: each layer goes through the sequence in both directions (D = 2).
        proj_size: size P of the states h, and outputs, to which ``weight_hr`` projects H hidden units
            (Sak et al., 2014); less than H; 0 is none, P = H.

    Shapes:
        input ``[B, T, I]``, or ``[T, I]`` for one sequence, output ``[B, T, D * P]``; states h
        ``[D * N, B, P]`` and c ``[D * N, B, H]``, of layer after layer, both directions of each. For each
        layer k, ``weight_ih_lk`` is ``[4 H, I]`` (``[4 H, D * P]`` from the second layer on),
        ``weight_hh_lk`` ``[4 H, P]``, ``bias_ih_lk`` and ``bias_hh_lk`` ``[4 H]``, ``weight_hr_lk``
        ``[P, H]``; gates are i, f, g, o. Names of the other direction end in ``_reverse``.

    Raises:
        InputValueError: no hidden unit or layer, a dropout that is not a probability, or a projection to H or
            more.

    Parameters, their names and initial values are as in :class:`torch.nn.LSTM`, whose state loads
    unchanged; `from_torch` takes the whole layer. The batch always comes first. (Burn's Lstm has one layer,
    eight Linears, and one bias for each gate too many.) Hochreiter and Schmidhuber, 1997.

    >>> output, (h, c) = Lstm(8, 6, num_layers=2)(torch.zeros(3, 5, 8))
    >>> output.shape, h.shape
    (torch.Size([3, 5, 6]), torch.Size([2, 3, 6]))
    """

    _GATES = 4
    _TORCH = torch.nn.LSTM
    _STATES = ("h0", "c0")
    _OWN: ClassVar = {"proj_size": 0}

    proj_size: int

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        expected = f"less than hidden_size, {hidden_size}, or 0 for no projection"
        require(0 <= proj_size < max(hidden_size, 1), "Lstm", "proj_size", expected, proj_size)
        super().__init__(
            input_size, hidden_size, num_layers, bias, dropout, bidirectional, device, dtype, proj_size
        )
        self.proj_size = proj_size

    def forward(
        self,
        input: Tensor | PackedSequence,
        hx: tuple[Tensor, Tensor] | None = None,
        lengths: Tensor | None = None,
    ) -> tuple[Any, tuple[Tensor, Tensor]]:
        """Run the layer over sequences.

        Args:
            input: ``[B, T, I]`` or ``[T, I]``, or a PackedSequence of ``[*, I]``.
            hx: states h and c to begin with, ``[D * N, B, P]`` and ``[D * N, B, H]`` or, for one sequence,
                ``[D * N, P]`` and ``[D * N, H]``; None is zeros.
            lengths: ``[B]``, int64: steps of each sequence, in any order; None is T. Outputs beyond are zero.

        Returns:
            The states h after each step, ``[B, T, D * P]``, or ``[T, D * P]``, or a PackedSequence of
            ``[*, D * P]``; and the last states h and c of each sequence, as `hx`.

        Raises:
            InputRuntimeError: another number of features, states of another shape, or a length out of range.
            InputValueError: an input with one axis, or with more than three.
            ShapeError: `lengths` are not one for each sequence.
        """
        output, (h, c) = self._run(input, hx, lengths)
        return output, (h, c)

    def step(
        self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Run the layer over one step of sequences, with the states of the step before.

        Args:
            input: ``[B, I]`` or ``[I]``.
            hx: the states that the last call returned; None is zeros, at the start of a sequence.

        Returns:
            The output ``[B, P]`` or ``[P]``, and the states h and c, for the next call. All steps in turn
            give what `forward` gives for the sequence.

        Raises:
            InputValueError: the layer is bidirectional, or the input is not a step.

        >>> layer, state = Lstm(8, 6), None
        >>> for x in torch.zeros(5, 3, 8):
        ...     output, state = layer.step(x, state)
        >>> output.shape
        torch.Size([3, 6])
        """
        output, (h, c) = self._run_step(input, hx)
        return output, (h, c)

    def _cell(self, x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor]) -> tuple[Tensor, ...]:
        weight_ih, weight_hh, *_ = weights
        bias_ih, bias_hh = self._biases(weights)
        if not self.proj_size:
            return torch.lstm_cell(x, list(states), weight_ih, weight_hh, bias_ih, bias_hh)
        h, c = states  # torch's cell has no projection
        gates = F.linear(x, weight_ih, bias_ih) + F.linear(h, weight_hh, bias_hh)
        i, f, g, o = gates.chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return F.linear(torch.sigmoid(o) * torch.tanh(c), weights[-1]), c

    def _state_sizes(self) -> tuple[int, ...]:
        return self.proj_size or self.hidden_size, self.hidden_size

    def _op(self) -> Any:
        return functools.partial(_run_torch, torch.lstm, self._cell) if self.proj_size else kernels.lstm


class _OneState(_Recurrent, init=False):
    """The layers whose state is only h."""

    _STATES = ("h0",)

    def forward(
        self, input: Tensor | PackedSequence, hx: Tensor | None = None, lengths: Tensor | None = None
    ) -> tuple[Any, Tensor]:
        """Run the layer over sequences: as `Lstm.forward`, with one state instead of a pair."""
        output, (h,) = self._run(input, None if hx is None else (hx,), lengths)
        return output, h

    def step(self, input: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Run the layer over one step of sequences: as `Lstm.step`, with one state instead of a pair."""
        output, (h,) = self._run_step(input, None if hx is None else (hx,))
        return output, h


class Gru(_OneState):
    r"""Gated recurrent units: a state, carried through a sequence by two gates.

    .. math:: r, z &= \sigma(x_t W_{ih}^\top + b_{ih} + h_{t-1} W_{hh}^\top + b_{hh}) \\
              n &= \tanh(x_t W_{in}^\top + b_{in} + r (h_{t-1} W_{hn}^\top + b_{hn})) \\
              h_t &= (1 - z) n + z h_{t-1}

    Arguments, shapes and errors are as in `Lstm` without projection and cells, with ``3 H`` rows in each
    parameter; gates are r, z, n. Parameters, their names and initial values are as in
    :class:`torch.nn.GRU`, whose state loads unchanged; `from_torch` takes the whole layer. (Burn's Gru has
    one layer; with ``reset_after=True``, its default, it computes the same.) Cho et al., 2014.

    >>> output, h = Gru(8, 6, bidirectional=True)(torch.zeros(3, 5, 8))
    >>> output.shape, h.shape
    (torch.Size([3, 5, 12]), torch.Size([2, 3, 6]))
    """

    _GATES = 3
    _TORCH = torch.nn.GRU

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, bias, dropout, bidirectional, device, dtype)

    def _cell(self, x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return (torch.gru_cell(x, states[0], *weights[:2], *self._biases(weights)),)

    def _op(self) -> Any:
        return kernels.gru


class Rnn(_OneState):
    r"""Plain recurrent layer: a state, carried through a sequence.

    .. math:: h_t = \tanh(x_t W_{ih}^\top + b_{ih} + h_{t-1} W_{hh}^\top + b_{hh})

    Args:
        nonlinearity: ``"tanh"`` or ``"relu"``.

    Other arguments, shapes and errors are as in `Lstm` without projection and cells, with ``H`` rows in
    each parameter. Parameters, their names, initial values and the computation are as in
    :class:`torch.nn.RNN`; `from_torch` takes the whole layer. Elman, 1990. (Burn's Rnn has one layer.)

    >>> output, h = Rnn(8, 6, bidirectional=True)(torch.zeros(3, 5, 8))
    >>> output.shape, h.shape
    (torch.Size([3, 5, 12]), torch.Size([2, 3, 6]))
    """

    _GATES = 1
    _TORCH = torch.nn.RNN
    _OWN: ClassVar = {"nonlinearity": "tanh"}

    nonlinearity: str

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: Literal["tanh", "relu"] = "tanh",
        bias: bool = True,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        _check_nonlinearity("Rnn", nonlinearity)
        super().__init__(input_size, hidden_size, num_layers, bias, dropout, bidirectional, device, dtype)
        self.nonlinearity = nonlinearity

    def _cell(self, x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor]) -> tuple[Tensor, ...]:
        call = torch.rnn_tanh_cell if self.nonlinearity == "tanh" else torch.rnn_relu_cell
        return (call(x, states[0], *weights[:2], *self._biases(weights)),)

    def _op(self) -> Any:
        call = torch.rnn_tanh if self.nonlinearity == "tanh" else torch.rnn_relu
        return functools.partial(_run_torch, call, self._cell)


def _check_nonlinearity(name: str, nonlinearity: str) -> None:
    require(nonlinearity in ("tanh", "relu"), name, "nonlinearity", "'tanh', 'relu'", repr(nonlinearity))


def _run_torch(
    call: Any,
    cell: Any,
    x: Tensor,
    weights: Sequence[Sequence[Tensor]],
    hx: Tensor | tuple[Tensor, Tensor] | None,
    *,
    lengths: Tensor | None,
    bidirectional: bool,
    dropout: float,
    training: bool,
) -> tuple[Tensor, Any]:
    """Run a recurrent function of torch: arguments and results are as in `burnt.kernels.lstm`.

    `cell` is the function's `_Recurrent._cell`.
    """
    directions = 2 if bidirectional else 1
    if hx is None:
        # h has the recurrent weights' size, c the hidden units'.
        sizes = weights[0][1].shape[1], weights[0][0].shape[0] // 4
        count = 2 if call is torch.lstm else 1
        states = [x.new_zeros(len(weights), x.shape[0], size) for size in sizes[:count]]
    else:
        states = [hx] if isinstance(hx, Tensor) else list(hx)
    dropout = dropout if training else 0.0
    if lengths is not None and torch.compiler.is_compiling():
        # Compilers cannot pack sequences: the sizes of a packed sequence depend on values. NaN beyond an end
        # would stay NaN in the gradients.
        x = x.masked_fill(length_mask(lengths, x.shape[1]).unsqueeze(2), 0.0)
        run_one = functools.partial(_run_steps, cell)
        output, last = run_layers(run_one, x, weights, states, lengths, directions, dropout)
    else:
        if x.is_meta:  # no output's shape depends on the lengths
            lengths = None
        check_lengths("", x, lengths)
        flat = [weight for layer in weights for weight in layer]
        settings = len(weights[0]) >= 4, len(weights) // directions, dropout, training, bidirectional
        output, last = call_torch(call, x, states, lengths, flat, *settings)
    return output, tuple(last) if len(last) > 1 else last[0]


def _run_steps(
    cell: Any, x: Tensor, weights: Sequence[Tensor], states: Sequence[Tensor], lengths: Tensor, reverse: bool
) -> tuple[Tensor, ...]:
    """Run one layer in one direction over sequences of different lengths, step by step."""
    outputs: list[Tensor] = []
    for t in reversed(range(x.shape[1])) if reverse else range(x.shape[1]):
        is_active = (lengths > t).unsqueeze(1)
        after = cell(x[:, t], states, weights)
        states = [torch.where(is_active, new, old) for new, old in zip(after, states, strict=True)]
        outputs.append(torch.where(is_active, after[0], 0.0))
    return torch.stack(outputs[::-1] if reverse else outputs, 1), *states


class RnnCell(Module, torch.nn.RNNCell):
    r"""One step of an `Rnn`: :math:`h' = \tanh(x W_{ih}^\top + b_{ih} + h W_{hh}^\top + b_{hh})`.

    Args:
        input_size: number I of features.
        hidden_size: number H of hidden units.
        bias: whether there are the biases ``b``.
        nonlinearity: ``"tanh"`` or ``"relu"``.

    Shapes:
        input ``[B, I]`` or ``[I]``, state ``[B, H]`` or ``[H]``, zeros by default; output, which is the next
        state, ``[B, H]`` or ``[H]``. ``weight_ih`` is ``[H, I]``, ``weight_hh`` ``[H, H]``, ``bias_ih`` and
        ``bias_hh`` ``[H]``.

    Raises:
        InputValueError: the nonlinearity does not exist.

    As :class:`torch.nn.RNNCell`. `Rnn.step` runs one step of a layer that also takes whole sequences.

    >>> RnnCell(8, 6)(torch.zeros(3, 8)).shape
    torch.Size([3, 6])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: Literal["tanh", "relu"] = "tanh",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        _check_nonlinearity("RnnCell", nonlinearity)
        super().__init__(input_size, hidden_size, bias, nonlinearity, device, dtype)


class LstmCell(Module, torch.nn.LSTMCell, init=False):
    r"""One step of an `Lstm`: takes and returns the states h and c.

    Arguments are as in `RnnCell` without its nonlinearity.

    Shapes:
        input ``[B, I]`` or ``[I]``; states h and c, a pair, ``[B, H]`` or ``[H]``, zeros by default; returns
        the next pair, whose h is the output. Parameters are as in `RnnCell` with ``4 H`` rows; gates are
        i, f, g, o.

    As :class:`torch.nn.LSTMCell`. `Lstm.step` runs one step of a layer that also takes whole sequences.

    >>> h, c = LstmCell(8, 6)(torch.zeros(3, 8))
    >>> h.shape, c.shape
    (torch.Size([3, 6]), torch.Size([3, 6]))
    """


class GruCell(Module, torch.nn.GRUCell, init=False):
    r"""One step of a `Gru`: takes and returns the state.

    Arguments and shapes are as in `RnnCell` without its nonlinearity, with ``3 H`` rows in each parameter;
    gates are r, z, n. As :class:`torch.nn.GRUCell`. `Gru.step` runs one step of a layer that also takes whole
    sequences.

    >>> GruCell(8, 6)(torch.zeros(3, 8)).shape
    torch.Size([3, 6])
    """
