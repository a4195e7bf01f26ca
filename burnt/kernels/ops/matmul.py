"""Matrix products, with what comes after them: `linear`, `matmul` and `bmm`.

On a GPU the generated candidate is a kernel of our own with its tail inside
(`burnt.codegen.render.triton.matmul_template`). On a CPU it is torch's product and a generated kernel for the
tail; candidates by hand are oneDNN's product, which is far ahead of MKL's on AMD's processors with AVX-512,
also with weights that were put into its own layout once, and 16-bit products in float32 where the processor
has no instructions for them. float16 goes through bfloat16 where it has instructions for that, and the policy
``flex32`` is content with 8 bits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, MutableMapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.weak import WeakIdKeyDictionary

from burnt import _torch
from burnt.codegen import fuse
from burnt.codegen.precision import precision
from burnt.device import processor
from burnt.errors import InputRuntimeError
from burnt.kernels.dispatch.op import op
from burnt.kernels.interface.autocast import cast_all
from burnt.kernels.interface.checks import (
    check_floating,
    check_one_device,
    check_one_dtype,
    check_residual_dtype,
)
from burnt.kernels.interface.tuning_key import wants_gradient
from burnt.kernels.ops.activation import activated, check_activation

__all__ = ["bmm", "linear", "matmul"]

# Multiplications below which torch's call is as fast: it is reached sooner.
_LARGE = 1 << 20
_LARGE_TO_TURN = 1 << 16  # elements from which a kernel's copy of a transposed matrix is worth a call


def _check_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, activation: str | None
) -> None:
    check_activation("linear", activation)
    check_one_device("linear", x=x, weight=weight, bias=bias, residual=residual)
    check_floating("linear", x=x, weight=weight)
    check_one_dtype("linear", x=x, weight=weight, bias=bias)
    check_residual_dtype("linear", x, residual)
    if weight.dim() != 2 or x.dim() < 1 or x.shape[-1] != weight.shape[1]:
        raise InputRuntimeError(
            "x and weight of linear do not fit each other",
            where="burnt.kernels.linear",
            expected=f"x [*, {weight.shape[-1]}] for a weight [columns, {weight.shape[-1]}]",
            found=f"x {list(x.shape)}, weight {list(weight.shape)}",
            hint="weight is [out_features, in_features]: weight.t() if yours is the other way round"
            if weight.dim() == 2 and x.dim() and x.shape[-1] == weight.shape[0]
            else None,
        )
    made = [*x.shape[:-1], weight.shape[0]]
    for name, tensor, shape in (("bias", bias, made[-1:]), ("residual", residual, made)):
        if tensor is not None and list(tensor.shape) != shape:
            raise InputRuntimeError(
                f"{name} of linear has another shape",
                where="burnt.kernels.linear",
                expected=shape,
                found=list(tensor.shape),
            )


def _examples_of_linear(device: torch.device) -> list[tuple[object, ...]]:
    sizes = [(1024, 1024, 1024), (2048, 768, 3072), (64, 300, 129), (5, 7, 3)]
    made: list[tuple[object, ...]] = []
    for rows, terms, columns in sizes:
        x = torch.randn(rows, terms, device=device)
        weight = torch.randn(columns, terms, device=device) / terms**0.5
        bias, residual = torch.randn(columns, device=device), torch.randn(rows, columns, device=device)
        made += [(x, weight, bias, None, None), (x, weight, bias, residual, "gelu")]
    return made


def _library_best(x: Tensor, weight: Tensor, *rest: Any) -> bool:
    """Nothing is computed beside it: torch's libraries are hard to beat at that."""
    _, residual, activation = rest
    return residual is None and activation is None


def _autocast_linear(
    dtype: torch.dtype, x: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any
) -> tuple[Any, ...]:
    """The residual is added to what was computed, as it is."""
    return (*cast_all(dtype, x, weight, bias), *rest)


@op(check=_check_linear, examples=_examples_of_linear, library_best=_library_best, autocast=_autocast_linear)
def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    r"""A linear map, :math:`f(x W^\top + b) + r`.

    Args:
        x: ``[*, in_features]``, of a floating-point dtype.
        weight: ``[out_features, in_features]``, of the same dtype, as the others.
        bias: ``[out_features]``.
        residual: ``[*, out_features]``, added after the activation; of float32, too, where `x` has 16 bits.
        activation: a key of `burnt.kernels.ACTIVATIONS`.

    Returns:
        ``[*, out_features]``, as `x`, or as the residual where that is wider.

    Raises:
        InputRuntimeError: shapes, dtypes or devices do not fit each other.
        InputUnsupportedError: not of a floating-point dtype.
        InputValueError: an activation that is not known.

    As `torch.nn.functional.linear`, with what often follows in the same kernel.

    >>> linear(torch.tensor([[1.0, 2.0]]), torch.eye(2), torch.tensor([0.5, -3.0]), activation="relu")
    tensor([[1.5000, 0.0000]])
    """
    made = activated(F.linear(x, weight, bias), activation)
    return made if residual is None else made + residual


def _check_matmul(a: Tensor, b: Tensor) -> None:
    check_one_device("matmul", a=a, b=b)
    check_one_dtype("matmul", a=a, b=b)
    fits = a.dim() and b.dim() and a.shape[-1] == b.shape[-2 if b.dim() > 1 else -1]
    if not fits:
        raise InputRuntimeError(
            "a and b of matmul do not fit each other",
            where="burnt.kernels.matmul",
            expected="a [*, rows, terms] and b [*, terms, columns]",
            found=f"a {list(a.shape)}, b {list(b.shape)}",
        )


def _examples_of_matmul(device: torch.device) -> list[tuple[object, ...]]:
    made: list[tuple[object, ...]] = []
    for a, b in [
        ((1024, 1024), (1024, 1024)),
        ((12, 256, 64), (12, 64, 256)),
        ((5, 37, 50), (50, 70)),
        ((7,), (7, 3)),
    ]:
        made.append((torch.randn(a, device=device), torch.randn(b, device=device)))
    return made


@op(check=_check_matmul, examples=_examples_of_matmul, library_best=lambda a, b: True, autocast=cast_all)
def matmul(a: Tensor, b: Tensor) -> Tensor:
    """The matrix product, of batches too.

    Args:
        a: ``[*, rows, terms]``, or ``[terms]``.
        b: ``[*, terms, columns]`` of the same dtype, or ``[terms]``; leading axes are broadcast.

    Returns:
        ``[*, rows, columns]``, without the axes that a vector has not.

    Raises:
        InputRuntimeError: shapes, dtypes or devices do not fit each other.

    As `torch.matmul`.

    >>> matmul(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0], [4.0]]))
    tensor([[11.]])
    """
    return torch.matmul(a, b)


def _check_bmm(a: Tensor, b: Tensor) -> None:
    check_one_device("bmm", a=a, b=b)
    check_one_dtype("bmm", a=a, b=b)
    fits = a.dim() == b.dim() == 3 and a.shape[0] == b.shape[0] and a.shape[2] == b.shape[1]
    if not fits:
        raise InputRuntimeError(
            "a and b of bmm do not fit each other",
            where="burnt.kernels.bmm",
            expected="a [batch, rows, terms] and b [batch, terms, columns]",
            found=f"a {list(a.shape)}, b {list(b.shape)}",
            hint=None if a.dim() == b.dim() == 3 else "matmul broadcasts, and takes vectors and matrices",
        )


def _examples_of_bmm(device: torch.device) -> list[tuple[object, ...]]:
    shapes = [(12, 256, 64, 256), (96, 128, 64, 128), (3, 5, 7, 2)]
    return [
        (torch.randn(n, rows, terms, device=device), torch.randn(n, terms, columns, device=device))
        for n, rows, terms, columns in shapes
    ]


@op(check=_check_bmm, examples=_examples_of_bmm, library_best=lambda a, b: True, autocast=cast_all)
def bmm(a: Tensor, b: Tensor) -> Tensor:
    """The matrix products of a batch.

    Args:
        a: ``[batch, rows, terms]``.
        b: ``[batch, terms, columns]``, of the same dtype; nothing is broadcast (`matmul` does).

    Returns:
        ``[batch, rows, columns]``.

    Raises:
        InputRuntimeError: shapes, dtypes or devices do not fit each other.

    As `torch.bmm`.

    >>> bmm(torch.tensor([[[1.0, 2.0]]]), torch.tensor([[[3.0], [4.0]]]))
    tensor([[[11.]]])
    """
    return torch.bmm(a, b)


# --- candidates on a CPU ----------------------------------------------------------------------------------


# relu is none of them: oneDNN makes 0 of NaN.
_TAILS = {
    None: ("none", "none"),
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "silu": ("swish", "none"),
}


@fuse
def _turned(a: Tensor) -> Tensor:
    return a.t().contiguous()


def _mapped(x: Tensor, weight: Tensor, bias: Tensor | None, *tail: str) -> Tensor:
    """A linear map of rows by oneDNN.

    It wants the rows one after another. Where the columns are, as in a weight's gradient, torch would copy
    them in three to four times the time that a kernel takes: 4.4 ms for 2048 x 3072, of 30 for the product.
    """
    if x.numel() >= _LARGE_TO_TURN and x.t().is_contiguous() and not x.is_contiguous():
        x = _turned(x.t())
    return _torch.onednn_linear(x, weight, bias, *tail)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """``[rows, terms] @ [terms, columns]`` by oneDNN."""
    return _mapped(a, b.t(), None)


class _OneDnn(torch.autograd.Function):
    """A linear map of rows, and its gradients, by oneDNN."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _mapped(x, weight, bias)

    @staticmethod
    @_torch.without_autocast()
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        # A second derivative is wanted where gradients are recorded: torch's product has one.
        multiply: Callable[[Tensor, Tensor], Tensor] = torch.mm if torch.is_grad_enabled() else _product
        of_x, of_weight, of_bias = ctx.needs_input_grad
        return (
            multiply(cotangent, weight) if of_x else None,
            multiply(cotangent.t(), x) if of_weight else None,
            cotangent.sum(0) if of_bias else None,
        )


def _why_not_onednn(x: Tensor, weight: Tensor, *rest: Any) -> str | None:
    if x.dtype not in processor().onednn:
        return f"no oneDNN here for {str(x.dtype).removeprefix('torch.')}"
    return "an empty tensor" if not (x.numel() and weight.numel()) else None


def _onednn_best(x: Tensor, weight: Tensor, *rest: Any) -> bool:
    return x.dtype == torch.float32 and processor().mkl_is_slow and x.numel() * weight.shape[0] >= _LARGE


@linear.candidate("onednn", devices=["cpu"], when=_why_not_onednn, best=_onednn_best, differentiable=True)
def _by_onednn(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, activation: str | None
) -> Tensor:
    rows = x.reshape(-1, x.shape[-1])
    if wants_gradient(x, weight, bias):
        made = activated(_OneDnn.apply(rows, weight, bias), activation)  # type: ignore[no-untyped-call]
    elif activation in _TAILS:
        made = _mapped(rows, weight, bias, *_TAILS[activation])
    else:
        made = activated(_mapped(rows, weight, bias), activation)
    made = made.view(*x.shape[:-1], weight.shape[0])
    return made if residual is None else made + residual


_packed: MutableMapping[Tensor, Any] = WeakIdKeyDictionary()
_packed_turned: MutableMapping[Tensor, Any] = WeakIdKeyDictionary()


def _packed_weight(weight: Tensor, rows: int, turned: bool = False) -> Tensor:
    """A weight in oneDNN's layout, best for as many rows as came first; kept until it changes or goes.

    `turned` says that it is ``[terms, columns]``.
    """
    state, kept = _torch.state_of(weight, rows), _packed_turned if turned else _packed
    known = kept.get(weight)
    if known is None or known[0] != state:
        plain = weight.detach()
        known = kept[weight] = state, _torch.onednn_packed(plain.t() if turned else plain, rows)
    made: Tensor = known[1]
    return made


def _why_not_packed(x: Tensor, weight: Tensor, *rest: Any) -> str | None:
    bias, residual, _ = rest
    if wants_gradient(x, weight, bias, residual):
        return "a gradient is wanted: the weight changes with each step"
    if weight.is_inference() or not weight.is_contiguous():
        return "a weight whose changes cannot be told, or that is a view"
    return _why_not_onednn(x, weight)


def _packed_best(x: Tensor, weight: Tensor, *rest: Any) -> bool:
    return isinstance(weight, torch.nn.Parameter) and _onednn_best(x, weight)


@linear.candidate(
    "onednn packed", devices=["cpu"], when=_why_not_packed, best=_packed_best, differentiable=True
)
def _by_packed(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, activation: str | None
) -> Tensor:
    rows = x.reshape(-1, x.shape[-1])
    tail = _TAILS.get(activation, _TAILS[None])
    made = _mapped(rows, _packed_weight(weight, rows.shape[0]), bias, *tail)
    made = made if activation in _TAILS else activated(made, activation)
    made = made.view(*x.shape[:-1], weight.shape[0])
    return made if residual is None else made + residual


def _why_not_wide(x: Tensor, *rest: Any) -> str | None:
    return None if x.dtype.itemsize == 2 and x.is_floating_point() else f"{x.dtype}, which is as wide"


def _wide_best(x: Tensor, other: Tensor, *rest: Any) -> bool:
    large = x.numel() * other.numel() // max(x.shape[-1], 1) >= _LARGE
    return _why_not_wide(x) is None and x.dtype not in processor().onednn and large


@linear.candidate("float32", devices=["cpu"], when=_why_not_wide, best=_wide_best, differentiable=True)
def _in_float32(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, activation: str | None
) -> Tensor:
    wide = [None if t is None else t.float() for t in (x, weight, bias)]
    made = linear(*wide).to(x.dtype)  # type: ignore[arg-type]
    made = activated(made, activation)
    return made if residual is None else made + residual


def _why_not_bfloat16(x: Tensor, *rest: Any) -> str | None:
    if x.dtype != torch.float16:
        return f"{str(x.dtype).removeprefix('torch.')} is multiplied otherwise"
    if precision() != "flex32":
        return "bfloat16 has 8 bits where float16 has 11: the precision 'flex32' allows it"
    return None if torch.bfloat16 in processor().onednn else "no instructions for bfloat16 here"


@linear.candidate(
    "bfloat16", devices=["cpu"], when=_why_not_bfloat16, best=lambda *_: False, differentiable=True
)
def _in_bfloat16(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, activation: str | None
) -> Tensor:
    narrow = [None if t is None else t.bfloat16() for t in (x, weight, bias)]
    made = activated(F.linear(*narrow).to(x.dtype), activation)  # type: ignore[arg-type]
    return made if residual is None else made + residual


def _why_not_matmul_by_onednn(a: Tensor, b: Tensor) -> str | None:
    if a.dim() < 2 or b.dim() < 2:
        return "a or b is a vector"
    return _why_not_onednn(a, b)


def _products(a: Tensor, b: Tensor) -> Tensor:
    """As `torch.matmul` of batches, a call of oneDNN for each product."""
    batch: torch.Size = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])  # type: ignore[no-untyped-call]
    left, right = a.expand(*batch, -1, -1), b.expand(*batch, -1, -1)
    made = [_product(left[at], right[at]) for at in itertools.product(*map(range, batch))]
    return torch.stack(made).view(*batch, a.shape[-2], b.shape[-1])


class _OneDnnBatches(torch.autograd.Function):
    """Products of batches, and their gradients, by oneDNN."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return _products(a, b)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        a, b = ctx.saved_tensors
        multiply: Callable[[Tensor, Tensor], Tensor] = torch.matmul if torch.is_grad_enabled() else _products
        of_a, of_b = ctx.needs_input_grad
        return (
            multiply(cotangent, b.mT).sum_to_size(a.shape) if of_a else None,
            multiply(a.mT, cotangent).sum_to_size(b.shape) if of_b else None,
        )


@matmul.candidate(
    "onednn",
    devices=["cpu"],
    when=_why_not_matmul_by_onednn,
    # Of batches torch makes one call that shares them among threads: that this is faster has to be measured.
    best=lambda a, b: b.dim() == 2 and _onednn_best(a, b.t()),
    differentiable=True,
)
def _matmul_by_onednn(a: Tensor, b: Tensor) -> Tensor:
    if b.dim() == 2:
        return _by_onednn(a, b.t(), None, None, None)  # type: ignore[no-any-return]
    return _OneDnnBatches.apply(a, b)  # type: ignore[no-any-return, no-untyped-call]


def _why_not_matmul_packed(a: Tensor, b: Tensor) -> str | None:
    if b.dim() != 2 or a.dim() < 2:
        return "b is a batch or a vector"
    return _why_not_packed(a, b, None, None, None)


@matmul.candidate(
    "onednn packed",
    devices=["cpu"],
    when=_why_not_matmul_packed,
    best=lambda a, b: isinstance(b, torch.nn.Parameter) and _onednn_best(a, b.t()),
    differentiable=True,
)
def _matmul_packed(a: Tensor, b: Tensor) -> Tensor:
    rows = a.reshape(-1, a.shape[-1])
    made = _mapped(rows, _packed_weight(b, rows.shape[0], turned=True), None)
    return made.view(*a.shape[:-1], b.shape[1])


@matmul.candidate("float32", devices=["cpu"], when=_why_not_wide, best=_wide_best, differentiable=True)
def _matmul_in_float32(a: Tensor, b: Tensor) -> Tensor:
    return matmul(a.float(), b.float()).to(a.dtype)


@bmm.candidate("float32", devices=["cpu"], when=_why_not_wide, best=_wide_best, differentiable=True)
def _bmm_in_float32(a: Tensor, b: Tensor) -> Tensor:
    return torch.bmm(a.float(), b.float()).to(a.dtype)


@matmul.candidate(
    "bfloat16", devices=["cpu"], when=_why_not_bfloat16, best=lambda *_: False, differentiable=True
)
def _matmul_in_bfloat16(a: Tensor, b: Tensor) -> Tensor:
    return torch.matmul(a.bfloat16(), b.bfloat16()).to(a.dtype)
