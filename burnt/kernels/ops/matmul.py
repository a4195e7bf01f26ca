"""Matrix multiplication, with an optional fused epilogue: `linear`, `matmul` and `bmm`; `grouped_matmul`.

On a GPU the generated candidate is one Triton kernel that includes the epilogue (bias, activation, residual;
`burnt.codegen.render.triton.matmul_template`). On a CPU it is torch's matmul followed by a generated kernel
for the epilogue. Hand-written CPU candidates:

- ``onednn``: oneDNN's matmul, far faster than MKL's on AMD processors with AVX-512;
- ``onednn packed``: the same, with the weight converted to oneDNN's own layout once;
- ``float32``: 16-bit inputs multiplied in float32, for processors without 16-bit instructions;
- ``bfloat16``: float16 inputs multiplied in bfloat16, for processors with bfloat16 instructions, if the
  precision ``flex32`` allows 8 bits of significand.

`grouped_matmul` multiplies groups of rows with a matrix each, for mixtures of experts. Its reference
multiplies all rows with each matrix, so that no shape depends on values: compilers and exports see it, and it
serves where no candidate can run. ``loop`` is one product for each group; it reads the ends of the groups,
for which a GPU has to be waited for. ``torch`` is torch's own kernel, which reads them on the device; on a
GPU it is used for bfloat16. ``triton`` reads them on the device too; it takes all dtypes and sizes.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt import _torch
from burnt.codegen import fuse
from burnt.codegen.precision import precision
from burnt.codegen.render.triton.matmul_config import MatmulConfig
from burnt.device import processor
from burnt.errors import InputIndexError, InputRuntimeError
from burnt.kernels.dispatch.op import op
from burnt.kernels.interface.autocast import cast_all
from burnt.kernels.interface.checks import (
    check_floating,
    check_one_device,
    check_one_dtype,
    check_residual_dtype,
    check_shape,
)
from burnt.kernels.interface.derived import derive
from burnt.kernels.interface.tuning_key import wants_gradient
from burnt.kernels.ops.activation import apply_activation, check_activation
from burnt.kernels.ops.matmul_gpu import add_candidate, rows_structure

# With fewer multiplications torch's call is as fast, as it has less overhead.
_MIN_MULTIPLICATIONS = 1 << 20
# With fewer columns of the result, copying a column-major left operand takes longer than oneDNN saves: 12.8
# against 12.3 ms for 1024 x 2048 by 256, 11.7 against 11.9 for 256 x 2048 by 1024 (Zen 4, one thread).
_MIN_COLUMNS_OF_TRANSPOSED = 2048
# With fewer elements, transposing by a generated kernel is not faster than by torch.
_MIN_TRANSPOSE_ELEMENTS = 1 << 16


def _check_linear(*args: Any) -> None:
    x, weight, bias, residual, activation = args
    check_activation("linear", activation)
    check_one_device("linear", x=x, weight=weight, bias=bias, residual=residual)
    check_floating("linear", x=x, weight=weight)
    check_one_dtype("linear", x=x, weight=weight, bias=bias)
    check_residual_dtype("linear", x, residual)
    if weight.dim() != 2 or x.dim() < 1 or x.shape[-1] != weight.shape[1]:
        raise InputRuntimeError(
            "the shapes of x and weight of linear do not match",
            where="burnt.kernels.linear",
            expected=f"x [*, {weight.shape[-1]}] for a weight [out_features, {weight.shape[-1]}]",
            found=f"x {list(x.shape)}, weight {list(weight.shape)}",
            hint="weight is [out_features, in_features]: pass weight.t() if yours is transposed"
            if weight.dim() == 2 and x.dim() and x.shape[-1] == weight.shape[0]
            else None,
        )
    output_shape = [*x.shape[:-1], weight.shape[0]]
    check_shape("linear", "bias", bias, output_shape[-1:])
    check_shape("linear", "residual", residual, output_shape)


def _linear_examples(device: torch.device) -> list[tuple[object, ...]]:
    sizes = [(1024, 1024, 1024), (2048, 768, 3072), (64, 300, 129), (5, 7, 3)]
    examples: list[tuple[object, ...]] = []
    for m, k, n in sizes:
        x = torch.randn(m, k, device=device)
        weight = torch.randn(n, k, device=device) / k**0.5
        bias, residual = torch.randn(n, device=device), torch.randn(m, n, device=device)
        examples += [(x, weight, bias, None, None), (x, weight, bias, residual, "gelu")]
    return examples


def _autocast_linear(
    dtype: torch.dtype, x: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any
) -> tuple[Any, ...]:
    """Cast all but the residual, which is added in its own dtype."""
    return (*cast_all(dtype, x, weight, bias), *rest)


@op(
    check=_check_linear,
    examples=_linear_examples,
    small=lambda x, weight, *_: x.numel() * weight.shape[0] < 1 << 20,
    autocast=_autocast_linear,
)
def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    r"""Compute a linear map with an optional activation and residual: :math:`f(x W^\top + b) + r`.

    Args:
        x: ``[*, in_features]``, floating-point.
        weight: ``[out_features, in_features]``, in the dtype of `x`, like the arguments below.
        bias: ``[out_features]``, added to the product.
        residual: ``[*, out_features]``, added after the activation; may be float32 if `x` has 16 bits.
        activation: the activation applied last, a key of `burnt.kernels.ACTIVATIONS`.

    Returns:
        ``[*, out_features]``, in the dtype of `x`, or of the residual if that is wider.

    Like `torch.nn.functional.linear`, with activation and residual fused into the kernel.

    >>> linear(torch.tensor([[1.0, 2.0]]), torch.eye(2), torch.tensor([0.5, -3.0]), activation="relu")
    tensor([[1.5000, 0.0000]])
    """
    return _finish(F.linear(x, weight, bias), residual, activation)


def _finish(output: Tensor, residual: Tensor | None, activation: str | None) -> Tensor:
    output = apply_activation(output, activation)
    return output if residual is None else output + residual


def _check_matmul(a: Tensor, b: Tensor) -> None:
    check_one_device("matmul", a=a, b=b)
    check_one_dtype("matmul", a=a, b=b)
    is_matching = a.dim() and b.dim() and a.shape[-1] == b.shape[-2 if b.dim() > 1 else -1]
    if not is_matching:
        raise InputRuntimeError(
            "the shapes of a and b of matmul do not match",
            where="burnt.kernels.matmul",
            expected="a [*, m, k] and b [*, k, n]",
            found=f"a {list(a.shape)}, b {list(b.shape)}",
        )


def _matmul_examples(device: torch.device) -> list[tuple[object, ...]]:
    shapes: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
        ((1024, 1024), (1024, 1024)), ((12, 256, 64), (12, 64, 256)), ((5, 37, 50), (50, 70)), ((7,), (7, 3)),
    ]  # fmt: skip
    return [(torch.randn(a, device=device), torch.randn(b, device=device)) for a, b in shapes]


@op(check=_check_matmul, examples=_matmul_examples, autocast=cast_all)
def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Multiply two matrices, or batches of matrices.

    Args:
        a: ``[*, m, k]``, or a vector ``[k]``.
        b: ``[*, k, n]``, or a vector ``[k]``, in the dtype of `a`; leading axes are broadcast.

    Returns:
        ``[*, m, n]``, without ``m`` if `a` is a vector and without ``n`` if `b` is one.

    Like `torch.matmul`.

    >>> matmul(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0], [4.0]]))
    tensor([[11.]])
    """
    return torch.matmul(a, b)


def _check_bmm(a: Tensor, b: Tensor) -> None:
    check_one_device("bmm", a=a, b=b)
    check_one_dtype("bmm", a=a, b=b)
    is_matching = a.dim() == b.dim() == 3 and a.shape[0] == b.shape[0] and a.shape[2] == b.shape[1]
    if not is_matching:
        raise InputRuntimeError(
            "the shapes of a and b of bmm do not match",
            where="burnt.kernels.bmm",
            expected="a [batch, m, k] and b [batch, k, n]",
            found=f"a {list(a.shape)}, b {list(b.shape)}",
            hint=None if a.dim() == b.dim() == 3 else "use matmul, which broadcasts and takes vectors",
        )


def _bmm_examples(device: torch.device) -> list[tuple[object, ...]]:
    shapes = [(12, 256, 64, 256), (96, 128, 64, 128), (3, 5, 7, 2)]
    return [
        (torch.randn(batch, m, k, device=device), torch.randn(batch, k, n, device=device))
        for batch, m, k, n in shapes
    ]


@op(check=_check_bmm, examples=_bmm_examples, autocast=cast_all)
def bmm(a: Tensor, b: Tensor) -> Tensor:
    """Multiply batches of matrices ``[batch, m, k]`` and ``[batch, k, n]``, like `torch.bmm`.

    Unlike in `matmul`, nothing is broadcast; dtypes and errors are as there.

    >>> bmm(torch.tensor([[[1.0, 2.0]]]), torch.tensor([[[3.0], [4.0]]]))
    tensor([[[11.]]])
    """
    return torch.bmm(a, b)


# --- candidates on a CPU ----------------------------------------------------------------------------------


ONEDNN_EPILOGUES = {  # activations fused by oneDNN. relu is not among them: oneDNN's returns 0 for NaN.
    None: ("none", "none"),
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "silu": ("swish", "none"),
}


@fuse
def _transposed_copy(a: Tensor) -> Tensor:
    return a.t().contiguous()


def _onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None, *epilogue: str) -> Tensor:
    """Compute the linear map of a matrix by oneDNN, which needs `x` in row-major order.

    If `x` is column-major, as when a weight's gradient is computed, it is copied by a generated kernel:
    torch's copy takes three to four times as long (4.4 ms for 2048 x 3072, next to 30 ms for the matmul).
    """
    if x.numel() >= _MIN_TRANSPOSE_ELEMENTS and x.t().is_contiguous() and not x.is_contiguous():
        x = _transposed_copy(x.t())
    return _torch.onednn_linear(x, weight, bias, *epilogue)


def onednn_mm(a: Tensor, b: Tensor) -> Tensor:
    """Multiply ``[m, k]`` and ``[k, n]`` by oneDNN, without gradients."""
    return _onednn_linear(a, b.t(), None)


def onednn_addmm(bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """As `onednn_mm`, and add a bias ``[n]``."""
    return _onednn_linear(a, b.t(), bias)


class _OneDnnLinear(torch.autograd.Function):
    """Linear map of a matrix by oneDNN, with gradients by oneDNN."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _onednn_linear(x, weight, bias)

    @staticmethod
    @_torch.kernel_backward
    def backward(ctx: Any, grad_out: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        is_plain = _torch.is_plain_backward()  # torch's matmul can be differentiated again, and batched

        def multiply(a: Tensor, b: Tensor) -> Tensor:
            return onednn_mm(a, b) if is_plain and is_onednn_best(a, b.t()) else torch.mm(a, b)

        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            multiply(grad_out, weight) if needs_x else None,
            multiply(grad_out.t(), x) if needs_weight else None,
            grad_out.sum(0) if needs_bias else None,
        )


def _differentiable_onednn_mm(a: Tensor, b: Tensor) -> Tensor:
    return _OneDnnLinear.apply(a, b.t(), None)  # type: ignore[no-any-return, no-untyped-call]


def _onednn_unsupported_reason(x: Tensor, weight: Tensor, *rest: Any) -> str | None:
    if x.dtype not in processor().onednn:
        return f"oneDNN does not support {str(x.dtype).removeprefix('torch.')} on this machine"
    return "an empty tensor" if not (x.numel() and weight.numel()) else None


def is_onednn_best(x: Tensor, weight: Tensor, *rest: Any) -> bool:
    """Whether oneDNN multiplies ``x [*, k]`` by ``weight [n, k]`` faster than torch's call does.

    Of the tensors only shapes, strides, dtypes and the device matter.
    """
    if x.dtype != torch.float32 or x.device.type != "cpu" or not processor().mkl_is_slow:
        return False
    is_transposed = x.dim() == 2 and not x.is_contiguous() and x.t().is_contiguous()
    return x.numel() * weight.shape[0] >= _MIN_MULTIPLICATIONS and (
        not is_transposed or weight.shape[0] >= _MIN_COLUMNS_OF_TRANSPOSED
    )


@linear.candidate(
    "onednn", devices=["cpu"], when=_onednn_unsupported_reason, best=is_onednn_best, differentiable=True
)
def _linear_onednn(x: Tensor, weight: Tensor, bias: Tensor | None, *end: Any) -> Tensor:
    residual, activation = end
    rows, shape = x.reshape(-1, x.shape[-1]), (*x.shape[:-1], weight.shape[0])
    if wants_gradient(x, weight, bias):
        return _finish(_OneDnnLinear.apply(rows, weight, bias).view(shape), *end)  # type: ignore[no-untyped-call]
    epilogue = ONEDNN_EPILOGUES.get(activation, ONEDNN_EPILOGUES[None])
    output = _onednn_linear(rows, weight, bias, *epilogue).view(shape)
    return _finish(output, residual, None if activation in ONEDNN_EPILOGUES else activation)


def _packed_weight(weight: Tensor, rows: int, is_transposed: bool = False) -> Tensor:
    """Return a weight in oneDNN's layout for inputs of `rows` rows, cached until it changes or is freed.

    `is_transposed`: the weight is ``[k, n]``, as `matmul` has it.
    """

    def pack() -> Tensor:
        plain = weight.detach()
        return _torch.onednn_packed(plain.t() if is_transposed else plain, rows)

    return derive(weight, "matmul" if is_transposed else "linear", _torch.state_of(weight, rows), pack)


def _packed_unsupported_reason(x: Tensor, weight: Tensor, *rest: Any) -> str | None:
    bias, residual, _ = rest
    if wants_gradient(x, weight, bias, residual):
        return "a gradient is required: the weight changes with every step"
    if weight.is_inference() or not weight.is_contiguous():
        return "changes of the weight cannot be detected (inference tensor), or it is not contiguous"
    return _onednn_unsupported_reason(x, weight)


def _is_packed_best(x: Tensor, weight: Tensor, *rest: Any) -> bool:
    return isinstance(weight, torch.nn.Parameter) and is_onednn_best(x, weight)


@linear.candidate(
    "onednn packed",
    devices=["cpu"],
    when=_packed_unsupported_reason,
    best=_is_packed_best,
    differentiable=True,
)
def _linear_onednn_packed(x: Tensor, weight: Tensor, bias: Tensor | None, *end: Any) -> Tensor:
    residual, activation = end
    rows = x.reshape(-1, x.shape[-1])
    epilogue = ONEDNN_EPILOGUES.get(activation, ONEDNN_EPILOGUES[None])
    output = _onednn_linear(rows, _packed_weight(weight, rows.shape[0]), bias, *epilogue)
    output = output.view(*x.shape[:-1], weight.shape[0])
    return _finish(output, residual, None if activation in ONEDNN_EPILOGUES else activation)


def _float32_unsupported_reason(x: Tensor, *rest: Any) -> str | None:
    return (
        None if x.dtype.itemsize == 2 and x.is_floating_point() else f"only for 16-bit dtypes, not {x.dtype}"
    )


def _is_float32_best(x: Tensor, other: Tensor, *rest: Any) -> bool:
    is_large = x.numel() * other.numel() // max(x.shape[-1], 1) >= _MIN_MULTIPLICATIONS
    return _float32_unsupported_reason(x) is None and x.dtype not in processor().onednn and is_large


@linear.candidate(
    "float32", devices=["cpu"], when=_float32_unsupported_reason, best=_is_float32_best, differentiable=True
)
def _linear_float32(x: Tensor, weight: Tensor, bias: Tensor | None, *end: Any) -> Tensor:
    wide = [None if t is None else t.float() for t in (x, weight, bias)]
    return _finish(linear(*wide).to(x.dtype), *end)  # type: ignore[arg-type]


def _bfloat16_unsupported_reason(x: Tensor, *rest: Any) -> str | None:
    if x.dtype != torch.float16:
        return f"only for float16, not {str(x.dtype).removeprefix('torch.')}"
    if precision() != "flex32":
        return "bfloat16 has a significand of 8 bits, float16 of 11: only the precision 'flex32' allows it"
    return None if torch.bfloat16 in processor().onednn else "this processor has no bfloat16 instructions"


@linear.candidate(
    "bfloat16", devices=["cpu"], when=_bfloat16_unsupported_reason, best=lambda *_: False, differentiable=True
)
def _linear_bfloat16(x: Tensor, weight: Tensor, bias: Tensor | None, *end: Any) -> Tensor:
    narrow = [None if t is None else t.bfloat16() for t in (x, weight, bias)]
    return _finish(F.linear(*narrow).to(x.dtype), *end)  # type: ignore[arg-type]


def _is_batch_or_vector(a: Tensor, b: Tensor) -> str | None:
    # For batches torch makes one call, parallel over the batch.
    return "b is a batch or a vector" if b.dim() != 2 or a.dim() < 2 else None


@matmul.candidate(
    "onednn",
    devices=["cpu"],
    when=lambda a, b: _is_batch_or_vector(a, b) or _onednn_unsupported_reason(a, b),
    best=lambda a, b: is_onednn_best(a, b.t()),
    differentiable=True,
)
def _matmul_onednn(a: Tensor, b: Tensor) -> Tensor:
    return _linear_onednn(a, b.t(), None, None, None)  # type: ignore[no-any-return]


@matmul.candidate(
    "onednn packed",
    devices=["cpu"],
    when=lambda a, b: _is_batch_or_vector(a, b) or _packed_unsupported_reason(a, b, None, None, None),
    best=lambda a, b: isinstance(b, torch.nn.Parameter) and is_onednn_best(a, b.t()),
    differentiable=True,
)
def _matmul_onednn_packed(a: Tensor, b: Tensor) -> Tensor:
    rows = a.reshape(-1, a.shape[-1])
    output = _onednn_linear(rows, _packed_weight(b, rows.shape[0], is_transposed=True), None)
    return output.view(*a.shape[:-1], b.shape[1])


@matmul.candidate(
    "float32", devices=["cpu"], when=_float32_unsupported_reason, best=_is_float32_best, differentiable=True
)
def _matmul_float32(a: Tensor, b: Tensor) -> Tensor:
    return matmul(a.float(), b.float()).to(a.dtype)


@bmm.candidate(
    "float32", devices=["cpu"], when=_float32_unsupported_reason, best=_is_float32_best, differentiable=True
)
def _bmm_float32(a: Tensor, b: Tensor) -> Tensor:
    return torch.bmm(a.float(), b.float()).to(a.dtype)


@matmul.candidate(
    "bfloat16", devices=["cpu"], when=_bfloat16_unsupported_reason, best=lambda *_: False, differentiable=True
)
def _matmul_bfloat16(a: Tensor, b: Tensor) -> Tensor:
    return torch.matmul(a.bfloat16(), b.bfloat16()).to(a.dtype)


def _check_grouped(a: Tensor, b: Tensor, ends: Tensor) -> None:
    check_one_device("grouped_matmul", a=a, b=b, ends=ends)
    check_floating("grouped_matmul", a=a, b=b)
    check_one_dtype("grouped_matmul", a=a, b=b)
    is_matching = a.dim() == 2 and b.dim() == 3 and a.shape[1] == b.shape[1] and ends.shape == b.shape[:1]
    if not (is_matching and b.shape[0]) or ends.dtype not in (torch.int64, torch.int32):
        raise InputRuntimeError(
            "the shapes or dtypes of a, b and ends of grouped_matmul do not match",
            where="burnt.kernels.grouped_matmul",
            expected="a [rows, k], b [groups, k, n] and ends [groups], int64 or int32; at least one group",
            found=f"a {list(a.shape)}, b {list(b.shape)} and ends {list(ends.shape)}, {ends.dtype}",
            hint="weights [groups, n, k] of Linears are passed as weight.mT"
            if a.dim() == 2 and b.dim() == 3 and a.shape[1] == b.shape[2]
            else None,
        )


def _check_ends(a: Tensor, b: Tensor, ends: Tensor) -> None:
    bounds = [0, *ends.tolist(), a.shape[0]]
    if any(start > end for start, end in itertools.pairwise(bounds)):
        raise InputIndexError(
            "the ends of the groups are not in order",
            where="burnt.kernels.grouped_matmul",
            expected=f"ends that do not fall, from 0 to {a.shape[0]}, the number of rows",
            found=ends.tolist(),
            hint="the ends are the cumulative sums of the sizes",
        )


def _grouped_examples(device: torch.device) -> list[tuple[object, ...]]:
    examples: list[tuple[object, ...]] = []
    for rows, groups, k, n in [(2048, 8, 512, 1024), (256, 64, 128, 64), (13, 4, 7, 5)]:
        ends = torch.randint(rows + 1, (groups,), device=device).sort().values
        a, b = torch.randn(rows, k, device=device), torch.randn(groups, k, n, device=device) / k**0.5
        examples += [(a, b, ends), (a, torch.randn(groups, n, k, device=device).mT / k**0.5, ends)]
    return examples


@op(check=_check_grouped, look=_check_ends, always_looks=True, examples=_grouped_examples, autocast=cast_all)
def grouped_matmul(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    """Multiply consecutive groups of rows, each with a matrix of its own.

    Args:
        a: ``[rows, k]``, floating-point, sorted by group.
        b: ``[groups, k, n]``, in the dtype of `a`; any strides, such as ``weight.mT`` has.
        ends: ``[groups]``, int64 or int32: the row after the last one of each group. Groups may be empty.

    Returns:
        ``[rows, n]``: row ``i`` of group ``g`` is ``a[i] @ b[g]``; rows after the last group are zero.

    Raises:
        InputIndexError: the ends fall, or exceed the rows (checked on the CPU).

    As `torch.nn.functional.grouped_mm`, for all floating-point dtypes and sizes.

    >>> b = torch.stack([torch.eye(2), 2 * torch.eye(2)])
    >>> grouped_matmul(torch.ones(3, 2), b, torch.tensor([2, 3]))
    tensor([[1., 1.],
            [1., 1.],
            [2., 2.]])
    """
    row = torch.arange(a.shape[0], device=a.device)[:, None]
    output: Tensor | float = 0.0
    start = ends.new_zeros(())
    for matrix, end in zip(b.unbind(0), ends.unbind(0), strict=False):  # of equal lengths
        output = torch.where((row >= start) & (row < end), a @ matrix, output)
        start = end
    return output  # type: ignore[return-value]


# --- candidates -------------------------------------------------------------------------------------------


def _loop_unsupported_reason(a: Tensor, b: Tensor, ends: Tensor) -> str | None:
    if a.is_cuda and torch.cuda.is_current_stream_capturing():
        return "the ends cannot be read while a CUDA graph is captured"
    return None


@grouped_matmul.candidate(
    "loop", devices=["cpu", "cuda", "mps", "xpu"], when=_loop_unsupported_reason, differentiable=True
)
def _(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    bounds = [0, *ends.tolist(), a.shape[0]]
    sizes = [end - start for start, end in itertools.pairwise(bounds)]
    *groups, rest = torch.split_with_sizes(a, sizes)
    parts = [
        _differentiable_onednn_mm(rows, matrix) if is_onednn_best(rows, matrix.t()) else rows @ matrix
        for rows, matrix in zip(groups, b.unbind(0), strict=True)
    ]
    return torch.cat([*parts, rest.new_zeros(rest.shape[0], b.shape[2])])


def _torch_unsupported_reason(a: Tensor, b: Tensor, ends: Tensor) -> str | None:
    if not hasattr(F, "grouped_mm"):
        return "this torch has no grouped_mm"
    if a.is_cuda and (a.dtype != torch.bfloat16 or torch.cuda.get_device_capability(a.device) < (8, 0)):
        return "on a GPU it is for bfloat16, from compute capability 8.0 on"
    if a.dtype == torch.float64:
        return "it does not support float64"
    lines = [a.shape[1], b.shape[1], b.shape[2], *a.stride(), *b.stride()]
    if any(line * a.element_size() % 16 for line in lines if line != 1) or not (a.numel() and b.numel()):
        return "rows that are not a multiple of 16 bytes, or an empty tensor"
    return None


@grouped_matmul.candidate(
    "torch",
    devices=["cpu", "cuda"],
    when=_torch_unsupported_reason,
    best=lambda a, b, ends: a.is_cuda,
    differentiable=True,
)
def _(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    # Rows after the last group are written neither in the output nor in the gradient of `a`.
    is_in_group = torch.arange(a.shape[0], device=a.device)[:, None] < ends[-1]
    a = torch.where(is_in_group, a, 0) if a.requires_grad else a
    return torch.where(is_in_group, F.grouped_mm(a, b, offs=ends.to(torch.int32)), 0)


def _triton_launches(config: dict[str, str], device: torch.device, *args: Tensor) -> Any:
    from burnt.kernels.ops.grouped_triton import rows_launches

    a, b, ends = args
    return rows_launches(a, b, ends, MatmulConfig.of(config["tiles"]))


_triton = add_candidate(
    grouped_matmul,
    _triton_launches,
    lambda limits, a, b, ends: rows_structure(a, b),
    when=lambda a, b, ends: None if a.numel() and b.numel() else "an empty tensor",
    best=lambda *args: _torch_unsupported_reason(*args) is not None,
)


@_triton.backward  # type: ignore[untyped-decorator]
def _(grad_outs: Any, results: Any, a: Tensor, b: Tensor, ends: Tensor) -> tuple[Tensor | None, ...]:
    from burnt.codegen.runtime.triton_compile_pool import limits_of
    from burnt.kernels.ops.grouped_triton import gradients

    return gradients(grad_outs[0], a, b, ends, limits_of(a.device))
