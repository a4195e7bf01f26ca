"""Activations (`gelu`, `silu`, `relu2`), gated units (`swiglu`, `geglu`), and activations by name."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt.errors import InputRuntimeError
from burnt.kernels.dispatch.op import op
from burnt.kernels.interface.checks import check_floating, check_one_device, check_one_dtype, check_one_of


def _relu2(x: Tensor) -> Tensor:
    return F.relu(x).square()


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = types.MappingProxyType(
    {
        "relu": F.relu,
        "gelu": F.gelu,
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "silu": F.silu,
        "relu2": _relu2,
        "relu6": F.relu6,
        "hardswish": F.hardswish,
    }
)
"""Activation functions by name: the values that the argument `activation` of other ops accepts."""


def apply_activation(x: Tensor, activation: str | None) -> Tensor:
    """Apply an activation by name; return `x` unchanged if it is None."""
    return x if activation is None else ACTIVATIONS[activation](x)


def _examples(device: torch.device) -> list[tuple[object, ...]]:
    return [(torch.randn(shape, device=device),) for shape in [(4096, 4096), (64, 1024), (37, 53)]]


def _check_approximate(name: str, approximate: str) -> None:
    if approximate not in ("none", "tanh"):
        # torch raises RuntimeError here, and ValueError for unknown names elsewhere.
        raise InputRuntimeError(
            f"{name} does not support the approximation {approximate!r}",
            where=f"burnt.kernels.{name}",
            expected="'none' (the error function) or 'tanh'",
            found=repr(approximate),
        )


def _check_gelu(x: Tensor, approximate: str) -> None:
    check_floating("gelu", x=x)
    _check_approximate("gelu", approximate)


@op(
    check=_check_gelu,
    examples=lambda device: [(*a, kind) for kind in ("none", "tanh") for a in _examples(device)],
)
def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    r"""Apply the Gaussian error linear unit, :math:`x\,\Phi(x)`.

    Args:
        x: ``[*]``, floating-point.
        approximate: ``"none"`` for the error function, ``"tanh"`` for the approximation
            :math:`\frac{x}{2}(1 + \tanh(\sqrt{2/\pi}\,(x + 0.044715\,x^3)))`.

    Returns:
        ``[*]``, the shape and dtype of `x`.

    Raises:
        InputRuntimeError: `approximate` is neither of the two.

    Like `torch.nn.functional.gelu`. Hendrycks and Gimpel, 2016.

    >>> gelu(torch.tensor([-1.0, 2.0]))
    tensor([-0.1587,  1.9545])
    """
    return F.gelu(x, approximate=approximate)


@op(check=lambda x: check_floating("silu", x=x), examples=_examples)
def silu(x: Tensor) -> Tensor:
    r"""Apply the sigmoid linear unit (swish), :math:`x\,\sigma(x)`, to `x` as in `gelu`.

    Like `torch.nn.functional.silu`. Elfwing et al., 2017.

    >>> silu(torch.tensor([-1.0, 2.0]))
    tensor([-0.2689,  1.7616])
    """
    return F.silu(x)


@op(check=lambda x: check_floating("relu2", x=x), examples=_examples)
def relu2(x: Tensor) -> Tensor:
    r"""Apply the squared ReLU, :math:`\max(x, 0)^2`, to `x` as in `gelu`. So et al., 2021.

    >>> relu2(torch.tensor([-1.0, 3.0]))
    tensor([0., 9.])
    """
    return _relu2(x)


def _check_gate(name: str, gate: Tensor, up: Tensor | None) -> None:
    check_floating(name, gate=gate)
    if up is not None:
        check_one_device(name, gate=gate, up=up)
        check_one_dtype(name, gate=gate, up=up)
    elif gate.dim() == 0 or gate.shape[-1] % 2:
        raise InputRuntimeError(
            f"{name} of one tensor needs a last axis of even length, to split it into halves",
            where=f"burnt.kernels.{name}",
            expected="[..., 2 d]",
            found=tuple(gate.shape),
            hint=f"{name}(gate, up) takes the halves as two tensors",
        )


def _gate_examples(device: torch.device) -> list[tuple[object, ...]]:
    shapes = [(4096, 1024), (2048, 11008), (37, 53)]
    pairs = [(torch.randn(s, device=device), torch.randn(s, device=device)) for s in shapes]
    return [*pairs, (torch.randn(64, 1024, device=device), None)]


@op(check=lambda gate, up: _check_gate("swiglu", gate, up), examples=_gate_examples)
def swiglu(gate: Tensor, up: Tensor | None = None) -> Tensor:
    r"""Multiply `up` by the SiLU of a gate: :math:`\mathrm{silu}(g)\,u`.

    Args:
        gate: ``[*]``; without `up` ``[*, 2 d]``, whose first half is the gate and whose second half is `up`.
        up: ``[*]``, in the dtype of `gate`.

    Returns:
        ``[*]``; without `up` ``[*, d]``.

    Raises:
        InputRuntimeError: shapes, dtypes or devices differ, or the axis to split has an odd length.

    Shazeer, 2020.

    >>> swiglu(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 10.0]))
    tensor([ 0.7311, 17.6159])
    """
    if up is None:
        gate, up = gate.chunk(2, -1)
    return F.silu(gate) * up


def _check_geglu(gate: Tensor, up: Tensor | None, approximate: str) -> None:
    _check_gate("geglu", gate, up)
    _check_approximate("geglu", approximate)


@op(check=_check_geglu, examples=lambda device: [(*a, "none") for a in _gate_examples(device)])
def geglu(gate: Tensor, up: Tensor | None = None, approximate: str = "none") -> Tensor:
    r"""Multiply `up` by the GELU of a gate: :math:`\mathrm{gelu}(g)\,u`.

    `gate`, `up`, result and errors are as in `swiglu`, `approximate` as in `gelu`. Shazeer, 2020.

    >>> geglu(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 10.0]))
    tensor([ 0.8413, 19.5450])
    """
    if up is None:
        gate, up = gate.chunk(2, -1)
    return F.gelu(gate, approximate=approximate) * up


def check_activation(name: str, activation: str | None) -> None:
    """Raise an `InputValueError` if an activation is neither None nor a key of `ACTIVATIONS`."""
    check_one_of(name, "activation", activation, list(ACTIVATIONS))
