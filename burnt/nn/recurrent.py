"""Recurrent layers: LSTM and gated recurrent units.

Axes: B batch, T steps, I input_size, H hidden_size, D directions, N num_layers.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from burnt import kernels
from burnt.errors import InputRuntimeError, InputValueError, ShapeError, UnsupportedError
from burnt.module import Module

__all__ = ["Gru", "Lstm"]


class _Recurrent(Module):
    """Base of both layers: parameters with torch's names, and sequences of different lengths."""

    _GATES: ClassVar[int]
    _STATES: ClassVar[tuple[str, ...]]

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
    ) -> None:
        super().__init__()
        name = type(self).__name__
        for argument, size in (("hidden_size", hidden_size), ("num_layers", num_layers)):
            if size < 1:
                raise InputValueError(
                    f"{argument} of a recurrent layer must be positive",
                    where=name,
                    expected=f"{argument} of at least 1",
                    found=size,
                )
        if not 0 <= dropout <= 1:
            raise InputValueError(
                "dropout of a recurrent layer is a probability", where=name, expected="0 to 1", found=dropout
            )
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.dropout, self.bidirectional = bias, dropout, bidirectional
        rows = self._GATES * hidden_size
        for layer in range(num_layers):
            columns = input_size if layer == 0 else hidden_size * self.num_directions
            sizes: dict[str, tuple[int, ...]] = {
                "weight_ih": (rows, columns),
                "weight_hh": (rows, hidden_size),
            }
            sizes |= {"bias_ih": (rows,), "bias_hh": (rows,)} if bias else {}
            for suffix in self._suffixes(layer):
                for parameter, shape in sizes.items():
                    tensor = torch.empty(shape, device=device, dtype=dtype)
                    self.register_parameter(parameter + suffix, Parameter(tensor))
        self.reset_parameters()

    @property
    def num_directions(self) -> int:
        """The number D of directions."""
        return 2 if self.bidirectional else 1

    @property
    def all_weights(self) -> list[list[Parameter]]:
        """The parameters by layer and direction: weight_ih, weight_hh, and bias_ih, bias_hh."""
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")[: 4 if self.bias else 2]
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
        rest = {"num_layers": 1, "bias": True, "dropout": 0.0, "bidirectional": False}
        return text + "".join(
            f", {name}={getattr(self, name)}" for name, usual in rest.items() if getattr(self, name) != usual
        )

    @classmethod
    def _from_torch(cls, layer: torch.nn.RNNBase) -> Self:
        if layer.proj_size:
            raise UnsupportedError(
                f"{cls.__name__} has no projection of its states",
                expected="proj_size=0",
                found=f"a torch.nn.{type(layer).__name__} with proj_size={layer.proj_size}",
                hint="a Linear after the layer projects its outputs alone",
            )
        weight = layer.weight_ih_l0
        assert isinstance(weight, Tensor)
        arguments: dict[str, Any] = {
            name: getattr(layer, name) for name in ("num_layers", "bias", "dropout", "bidirectional")
        }
        copy = cls(layer.input_size, layer.hidden_size, **arguments, device=weight.device, dtype=weight.dtype)
        copy.load_state_dict(layer.state_dict())
        return copy.train(layer.training)

    def _suffixes(self, layer: int) -> list[str]:
        return [f"_l{layer}", f"_l{layer}_reverse"][: self.num_directions]

    def _run(
        self,
        op: Any,
        input: Tensor | PackedSequence,
        start: tuple[Tensor, ...] | None,
        lengths: Tensor | None,
    ) -> tuple[Any, tuple[Tensor, ...]]:
        """Return the output, batched or packed like the input, and the last states."""
        if isinstance(input, PackedSequence):
            if lengths is not None:
                raise InputValueError(
                    "a packed input has its lengths itself", where=self._name(), expected="lengths=None"
                )
            return self._run_packed(op, input, start)
        batched = input.dim() == 3
        self._check(input, start, lengths)
        x = input if batched else input.unsqueeze(0)
        if start is not None and not batched:
            start = tuple(state.unsqueeze(1) for state in start)
        hx = start if start is None or len(self._STATES) > 1 else start[0]
        output, end = op(
            x,
            self.all_weights,
            hx,
            lengths=None if lengths is None else lengths.to(x.device),
            bidirectional=self.bidirectional,
            dropout=self.dropout,
            training=self.training,
        )
        last = end if len(self._STATES) > 1 else (end,)
        return (output, last) if batched else (output[0], tuple(state[:, 0] for state in last))

    def _run_packed(
        self, op: Any, input: PackedSequence, start: tuple[Tensor, ...] | None
    ) -> tuple[PackedSequence, tuple[Tensor, ...]]:
        padded, lengths = pad_packed_sequence(input, batch_first=True)
        output, last = self._run(op, padded, start, lengths)
        if input.sorted_indices is not None:
            output = output.index_select(0, input.sorted_indices)
            lengths = lengths.index_select(0, input.sorted_indices.cpu())
        data = pack_padded_sequence(output, lengths, batch_first=True).data
        return PackedSequence(data, input.batch_sizes, input.sorted_indices, input.unsorted_indices), last

    def _check(self, input: Tensor, start: Any, lengths: Tensor | None) -> None:
        if input.dim() not in (2, 3):
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
                expected=(*("batch", "steps")[3 - input.dim() :], self.input_size),
                found=tuple(input.shape),
                hint=f"the layer before makes {input.shape[-1]} features",
            )
        if lengths is not None and (input.dim() == 2 or lengths.shape != input.shape[:1]):
            raise ShapeError(
                "lengths do not fit the batch",
                where=self._name(),
                expected=f"{tuple(input.shape[:1])}, a length for each sequence"
                if input.dim() == 3
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
        batch = tuple(input.shape[:1]) if input.dim() == 3 else ()
        expected = (self.num_layers * self.num_directions, *batch, self.hidden_size)
        for name, state in zip(self._STATES, start, strict=True):
            if tuple(state.shape) != expected:
                raise InputRuntimeError(
                    f"the state {name} does not fit a recurrent layer",
                    where=self._name(),
                    expected=expected,
                    found=tuple(state.shape),
                )

    def _name(self) -> str:
        return f"{type(self).__name__}({self.input_size}, {self.hidden_size})"


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
        device: where the parameters live.
        dtype: dtype of the parameters.

    Shapes:
        input ``[B, T, I]``, or ``[T, I]`` for one sequence, output ``[B, T, D * H]``; states
        ``[D * N, B, H]``, of layer after layer, both directions of each. For each layer k, ``weight_ih_lk``
        is ``[4 H, I]`` (``[4 H, D * H]`` from the second layer on), ``weight_hh_lk`` ``[4 H, H]``,
        ``bias_ih_lk`` and ``bias_hh_lk`` ``[4 H]``; gates are i, f, g, o. Names of the other
        direction end in ``_reverse``.

    Raises:
        InputValueError: no hidden unit or layer, or a dropout that is no probability.

    Parameters, their names and initial values are those of :class:`torch.nn.LSTM`, whose state loads
    unchanged; `from_torch` takes the whole layer. The batch always comes first. (Burn's Lstm has one layer,
    eight Linears, and one bias for each gate too many.) Hochreiter and Schmidhuber, 1997.

    >>> import torch
    >>> output, (h, c) = Lstm(8, 6, num_layers=2)(torch.zeros(3, 5, 8))
    >>> output.shape, h.shape
    (torch.Size([3, 5, 6]), torch.Size([2, 3, 6]))
    """

    _GATES = 4
    _STATES = ("h0", "c0")

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

    @classmethod
    def from_torch(cls, layer: torch.nn.LSTM) -> Self:
        """Build a copy of torch's layer; its input has the batch axis first.

        Raises:
            UnsupportedError: the layer has a `proj_size`.
        """
        return cls._from_torch(layer)

    def forward(
        self,
        input: Tensor | PackedSequence,
        hx: tuple[Tensor, Tensor] | None = None,
        lengths: Tensor | None = None,
    ) -> tuple[Any, tuple[Tensor, Tensor]]:
        """Run the layer over sequences.

        Args:
            input: ``[B, T, I]`` or ``[T, I]``, or a PackedSequence of ``[*, I]``.
            hx: states h and c to begin with, ``[D * N, B, H]`` or, for one sequence, ``[D * N, H]``; None is
                zeros.
            lengths: ``[B]``, int64: steps of each sequence, in any order; None is T. Outputs beyond are zero.

        Returns:
            The states after each step, ``[B, T, D * H]``, or ``[T, D * H]``, or a PackedSequence of
            ``[*, D * H]``; and the last states h and c of each sequence, as `hx`.

        Raises:
            InputRuntimeError: another number of features, states of another shape, or a length out of range.
            InputValueError: an input with one axis, or with more than three.
            ShapeError: `lengths` are not one for each sequence.
        """
        output, (h, c) = self._run(kernels.lstm, input, hx, lengths)
        return output, (h, c)


class Gru(_Recurrent):
    r"""Gated recurrent units: a state, carried through a sequence by two gates.

    .. math:: r, z &= \sigma(x_t W_{ih}^\top + b_{ih} + h_{t-1} W_{hh}^\top + b_{hh}) \\
              n &= \tanh(x_t W_{in}^\top + b_{in} + r (h_{t-1} W_{hn}^\top + b_{hn})) \\
              h_t &= (1 - z) n + z h_{t-1}

    Args:
        input_size: number I of features of a step.
        hidden_size: number H of hidden units.
        num_layers: number N of layers, each of which takes the outputs of the one before.
        bias: whether there are the biases ``b``.
        dropout: probability of dropping an output of a layer, but the last one, while training.
        bidirectional: each layer goes through the sequence in both directions (D = 2).
        device: where the parameters live.
        dtype: dtype of the parameters.

    Shapes:
        input ``[B, T, I]``, or ``[T, I]`` for one sequence, output ``[B, T, D * H]``; states
        ``[D * N, B, H]``, of layer after layer, both directions of each. For each layer k, ``weight_ih_lk``
        is ``[3 H, I]`` (``[3 H, D * H]`` from the second layer on), ``weight_hh_lk`` ``[3 H, H]``,
        ``bias_ih_lk`` and ``bias_hh_lk`` ``[3 H]``; gates are r, z, n. Names of the other
        direction end in ``_reverse``.

    Raises:
        InputValueError: no hidden unit or layer, or a dropout that is no probability.

    Parameters, their names and initial values are those of :class:`torch.nn.GRU`, whose state loads
    unchanged; `from_torch` takes the whole layer. The batch always comes first. (Burn's Gru has one layer;
    with ``reset_after=True``, its default, it computes the same.) Cho et al., 2014.

    >>> import torch
    >>> output, h = Gru(8, 6, bidirectional=True)(torch.zeros(3, 5, 8))
    >>> output.shape, h.shape
    (torch.Size([3, 5, 12]), torch.Size([2, 3, 6]))
    """

    _GATES = 3
    _STATES = ("h0",)

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

    @classmethod
    def from_torch(cls, layer: torch.nn.GRU) -> Self:
        """Build a copy of torch's layer; its input has the batch axis first."""
        return cls._from_torch(layer)

    def forward(
        self, input: Tensor | PackedSequence, hx: Tensor | None = None, lengths: Tensor | None = None
    ) -> tuple[Any, Tensor]:
        """Run the layer over sequences.

        Args:
            input: ``[B, T, I]`` or ``[T, I]``, or a PackedSequence of ``[*, I]``.
            hx: the state to begin with, ``[D * N, B, H]`` or, for one sequence, ``[D * N, H]``; None is
                zeros.
            lengths: ``[B]``, int64: steps of each sequence, in any order; None is T. Outputs beyond are zero.

        Returns:
            The states after each step, ``[B, T, D * H]``, or ``[T, D * H]``, or a PackedSequence of
            ``[*, D * H]``; and the last state of each sequence, as `hx`.

        Raises:
            InputRuntimeError: another number of features, a state of another shape, or a length out of range.
            InputValueError: an input with one axis, or with more than three.
            ShapeError: `lengths` are not one for each sequence.
        """
        output, (h,) = self._run(kernels.gru, input, None if hx is None else (hx,), lengths)
        return output, h
