"""Activations, and gated units."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt.device import processor
from burnt.kernels.dispatch.op import op
from burnt.kernels.interface.checks import check_floating, check_one_device, check_one_dtype, check_one_of
from burnt.kernels.interface.eager_rules import is_double
from burnt.kernels.interface.tuning_key import wants_gradient

__all__ = ["ACTIVATIONS", "activated", "geglu", "gelu", "relu2", "silu", "swiglu"]


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
"""What other ops can end in, by the word for their `activation`."""


def activated(x: Tensor, activation: str | None) -> Tensor:
    """`x`, or its activation."""
    return x if activation is None else ACTIVATIONS[activation](x)


def _examples(device: torch.device) -> list[tuple[object, ...]]:
    return [(torch.randn(shape, device=device),) for shape in [(4096, 4096), (64, 1024), (37, 53)]]


def _check_gelu(x: Tensor, approximate: str) -> None:
    check_floating("gelu", x=x)
    if approximate not in ("none", "tanh"):
        # torch's class for it, which is not that of a wrong word elsewhere.
        raise _unknown_approximation("gelu", approximate)


def _unknown_approximation(name: str, approximate: str) -> Exception:
    from burnt.errors import InputRuntimeError

    return InputRuntimeError(
        f"{name} knows no approximation {approximate!r}",
        where=f"burnt.kernels.{name}",
        expected="'none' (the error function) or 'tanh'",
        found=repr(approximate),
    )


def _gelu_library_best(x: Tensor, approximate: str) -> bool:
    """torch's takes 0.6 to 0.85 of the time of ours on a Xeon, whose memory keeps up with both.

    On a Zen 5 0.6 in bfloat16, and by vectors of 256 bits 0.8 in float32.
    """
    if approximate == "tanh":
        return is_double(x)
    cpu = processor()
    narrow = x.dtype == torch.float32 and not cpu.has_wide_vectors
    return cpu.vendor == "Intel" or x.dtype in (torch.bfloat16, torch.float64) or narrow


def _geglu_library_best(gate: Tensor, up: Tensor | None, approximate: str) -> bool:
    """As for `gelu`: in 16 bits torch's two kernels take 0.35 to 0.9 of the time of ours."""
    of_16_bits = gate.element_size() == 2 and approximate == "none"
    return is_double(gate) or (of_16_bits and not (processor().has_wide_vectors and wants_gradient(gate, up)))


@op(
    check=_check_gelu,
    examples=lambda device: [(*a, kind) for kind in ("none", "tanh") for a in _examples(device)],
    library_best=_gelu_library_best,
)
def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    r"""The Gaussian error linear unit, :math:`x\,\Phi(x)`.

    Args:
        x: ``[*]``, of a floating-point dtype.
        approximate: ``"none"`` for the error function, ``"tanh"`` for the approximation
            :math:`\frac{x}{2}(1 + \tanh(\sqrt{2/\pi}\,(x + 0.044715\,x^3)))`.

    Returns:
        ``[*]``, as `x`.

    Raises:
        InputRuntimeError: another approximation.
        InputUnsupportedError: `x` is not of a floating-point dtype.

    As `torch.nn.functional.gelu`. Hendrycks and Gimpel, 2016.

    >>> gelu(torch.tensor([-1.0, 2.0]))
    tensor([-0.1587,  1.9545])
    """
    return F.gelu(x, approximate=approximate)


@op(check=lambda x: check_floating("silu", x=x), examples=_examples, library_best=is_double)
def silu(x: Tensor) -> Tensor:
    r"""The sigmoid linear unit, or swish: :math:`x\,\sigma(x)`.

    Args:
        x: ``[*]``, of a floating-point dtype.

    Returns:
        ``[*]``, as `x`.

    Raises:
        InputUnsupportedError: `x` is not of a floating-point dtype.

    As `torch.nn.functional.silu`. Elfwing et al., 2017.

    >>> silu(torch.tensor([-1.0, 2.0]))
    tensor([-0.2689,  1.7616])
    """
    return F.silu(x)


@op(check=lambda x: check_floating("relu2", x=x), examples=_examples)
def relu2(x: Tensor) -> Tensor:
    """The squared positive part, :math:`\\max(x, 0)^2`.

    Args:
        x: ``[*]``, of a floating-point dtype.

    Returns:
        ``[*]``, as `x`.

    Raises:
        InputUnsupportedError: `x` is not of a floating-point dtype.

    So et al., 2021.

    >>> relu2(torch.tensor([-1.0, 3.0]))
    tensor([0., 9.])
    """
    return _relu2(x)


def _check_gate(name: str, gate: Tensor, up: Tensor | None) -> None:
    from burnt.errors import InputRuntimeError

    check_floating(name, gate=gate)
    if up is not None:
        check_one_device(name, gate=gate, up=up)
        check_one_dtype(name, gate=gate, up=up)
    elif gate.dim() == 0 or gate.shape[-1] % 2:
        raise InputRuntimeError(
            f"{name} of one tensor splits its last axis in halves",
            where=f"burnt.kernels.{name}",
            expected="[..., 2 d]",
            found=tuple(gate.shape),
            hint=f"{name}(gate, up) takes the halves apart",
        )


def _gate_examples(device: torch.device) -> list[tuple[object, ...]]:
    shapes = [(4096, 1024), (2048, 11008), (37, 53)]
    pairs = [(torch.randn(s, device=device), torch.randn(s, device=device)) for s in shapes]
    return [*pairs, (torch.randn(64, 1024, device=device), None)]


@op(check=lambda gate, up: _check_gate("swiglu", gate, up), examples=_gate_examples, library_best=is_double)
def swiglu(gate: Tensor, up: Tensor | None = None) -> Tensor:
    r"""A linear unit gated by a sigmoid linear one: :math:`\mathrm{silu}(g)\,u`.

    Args:
        gate: ``[*]``; without `up` ``[*, 2 d]``, the gate's half first.
        up: ``[*]``, of the gate's dtype.

    Returns:
        ``[*]``; without `up` ``[*, d]``.

    Raises:
        InputRuntimeError: shapes, dtypes or devices differ, or an odd axis is to be split.

    Shazeer, 2020.

    >>> swiglu(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 10.0]))
    tensor([ 0.7311, 17.6159])
    """
    if up is None:
        gate, up = gate.chunk(2, -1)
    return F.silu(gate) * up


def _check_geglu(gate: Tensor, up: Tensor | None, approximate: str) -> None:
    _check_gate("geglu", gate, up)
    if approximate not in ("none", "tanh"):
        raise _unknown_approximation("geglu", approximate)


@op(
    check=_check_geglu,
    examples=lambda device: [(*a, "none") for a in _gate_examples(device)],
    library_best=_geglu_library_best,
)
def geglu(gate: Tensor, up: Tensor | None = None, approximate: str = "none") -> Tensor:
    r"""A linear unit gated by a Gaussian error linear one: :math:`\mathrm{gelu}(g)\,u`.

    Args:
        gate: ``[*]``; without `up` ``[*, 2 d]``, the gate's half first.
        up: ``[*]``, of the gate's dtype.
        approximate: as for `gelu`.

    Returns:
        ``[*]``; without `up` ``[*, d]``.

    Raises:
        InputRuntimeError: shapes, dtypes or devices differ, an odd axis is to be split, or another
            approximation is asked for.

    Shazeer, 2020.

    >>> geglu(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 10.0]))
    tensor([ 0.8413, 19.5450])
    """
    if up is None:
        gate, up = gate.chunk(2, -1)
    return F.gelu(gate, approximate=approximate) * up


def check_activation(name: str, activation: str | None) -> None:
    """The word for an activation is known."""
    check_one_of(name, "activation", activation, list(ACTIVATIONS))
