"""`linear_cross_entropy`: the loss of a language model's last layer, without all logits in memory.

The candidate ``chunked`` processes a chunk of rows at a time: it computes the chunk's logits, their loss and
its gradient, and multiplies that into the gradients of x and weight at once, so that only one chunk of logits
is in memory. On a GPU one kernel computes loss and gradient. On a CPU a chunk is split further by classes, so
that logits and their gradients are still in cache when they are read. With a mean or sum reduction, the
gradients are computed during the forward (as in Liger-Kernel; Hsu et al., 2024); with ``"none"``, the
backward recomputes the logits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt import _torch
from burnt.codegen.backward import grad_by_torch
from burnt.device import processor
from burnt.errors import InputRuntimeError
from burnt.kernels.dispatch.op import op
from burnt.kernels.interface.autocast import autocast_dtype, cast_all
from burnt.kernels.interface.checks import check_floating, check_one_device, check_one_dtype, check_shape
from burnt.kernels.interface.tuning_key import wants_gradient
from burnt.kernels.ops.loss.cross_entropy_rows import (
    Terms,
    loss_divisor,
    losses_and_gradient,
    partial_gradient,
    partial_statistics,
    row_losses,
)
from burnt.kernels.ops.loss.loss import (
    check_label_range,
    check_labels,
    check_reduction,
    cross_entropy,
    int64_labels,
)
from burnt.kernels.ops.matmul import matmul

# Bytes of a chunk's logits. On a CPU, larger is faster: each chunk adds to the whole gradient of the weight,
# and matmuls with few rows are slow. But a chunk must take less than 15 % of the 310 MiB that torch's calls
# take beyond inputs and gradients (1024 rows, 512 wide, 32000 classes): it takes 12 to 13 %. On a GPU: what
# keeps it busy, or as much as the weight, whose gradient each chunk reads and writes.
_CHUNK_BYTES = {"cpu": 33 << 20}
_MIN_CHUNK_BYTES, _MAX_CHUNK_BYTES = 64 << 20, 256 << 20
_MIN_ROWS = 64
# Bytes of the weight, and of logits, in one matmul on a CPU: the library may copy them.
_PART_BYTES = 4 << 20
_MIN_CLASSES = 1024  # per matmul, whatever the bytes of logits
# Number of logits below which torch's calls are as fast.
_MIN_LOGITS = 1 << 20


def _check(*args: Any) -> None:
    x, weight, target, bias, _, reduction, label_smoothing, _, _ = args
    name = "linear_cross_entropy"
    check_reduction(name, reduction, label_smoothing)
    check_floating(name, x=x, weight=weight, bias=bias)
    check_one_device(name, x=x, weight=weight, target=target, bias=bias)
    check_one_dtype(name, x=x, weight=weight, bias=bias)
    if weight.dim() != 2 or x.dim() < 1 or x.shape[-1] != weight.shape[1]:
        raise InputRuntimeError(
            "the shapes of x and weight do not match",
            where=f"burnt.kernels.{name}",
            expected="x [*, d] and weight [classes, d]",
            found=f"x {list(x.shape)}, weight {list(weight.shape)}",
        )
    check_shape(name, "bias", bias, weight.shape[:1])
    check_labels(name, target, tuple(x.shape[:-1]), flat=True)


def _check_label_range(
    x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, ignore_index: int, *_: Any
) -> None:
    check_label_range("linear_cross_entropy", target, weight.shape[0], ignore_index)


def _examples(device: torch.device) -> list[tuple[object, ...]]:
    examples: list[tuple[object, ...]] = []
    for rows, width, classes in [(1024, 512, 32000), (256, 64, 1000), (5, 7, 11)]:
        x = torch.randn(rows, width, device=device)
        weight = torch.randn(classes, width, device=device) / width**0.5
        target = torch.randint(classes, (rows,), device=device)
        examples.append((x, weight, target, None, -100, "mean", 0.0, 0.0, False))
    return examples


def _autocast(
    dtype: torch.dtype, x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, *rest: Any
) -> tuple[Any, ...]:
    """Cast like torch: the matmul in autocast's dtype, the loss in float32."""
    x, weight, bias = cast_all(dtype, x, weight, bias)
    return x, weight, target, bias, *rest[:-1], True


@op(check=_check, look=_check_label_range, examples=_examples, autocast=_autocast)
def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    in_float32: bool = False,
) -> Tensor:
    r"""Compute the cross-entropy of the logits :math:`x W^\top + b`, without storing all of them at once.

    Args:
        x: ``[*, d]``, of a floating-point dtype.
        weight: ``[classes, d]``, of the same dtype.
        target: labels ``[*]``, int64 or uint8.
        bias: ``[classes]``, added to the logits.
        ignore_index, reduction, label_smoothing, z_loss: the same arguments as in `cross_entropy`.
        in_float32: whether to return the loss in float32 if `x` has 16 bits, like the loss of cast logits.

    Returns:
        ``[]``, or with ``"none"`` the labels' shape, in the dtype of `x`; in float32 with `in_float32` and
        under autocast.

    Errors are as in `cross_entropy`, which it equals after `torch.nn.functional.linear`.

    >>> linear_cross_entropy(torch.zeros(2, 4), torch.ones(10, 4), torch.tensor([3, 7]))
    tensor(2.3026)
    """
    rows = F.linear(x, weight, bias).reshape(-1, weight.shape[0])
    if in_float32 or autocast_dtype(x.device.type) is not None:
        rows = rows.to(torch.promote_types(rows.dtype, torch.float32))
    loss = cross_entropy.reference(
        rows, target.reshape(-1), None, ignore_index, reduction, label_smoothing, z_loss
    )
    return loss.reshape(target.shape) if reduction == "none" else loss


# --- chunks -----------------------------------------------------------------------------------------------


def _class_slices(weight: Tensor, rows: int) -> list[slice]:
    """Split the classes into matmuls: one over all of them may take as much memory as the weight."""
    classes, width = weight.shape
    step = classes
    if weight.is_cpu:
        by_weight, by_logits = (_PART_BYTES // (n * weight.element_size()) for n in (width, rows))
        step = max(min(by_weight, max(by_logits, _MIN_CLASSES)), _MIN_ROWS)
    return [slice(first, first + step) for first in range(0, classes, step)]


def _writes_in_place(into: Tensor, operand: Tensor) -> bool:
    """Whether torch's matmul writes or adds to `into` itself, and as fast: no temporary, no second pass."""
    is_same = into.dtype == operand.dtype
    if into.is_cpu:
        return is_same and into.dtype.itemsize >= 4 and not processor().mkl_is_slow
    return is_same or (into.is_cuda and torch.version.hip is None)


def _matmul_into(into: Tensor, left: Tensor, right: Tensor, adds: bool) -> None:
    """Set `into` to ``left @ right``, or add that to it."""
    if not _writes_in_place(into, left):
        product = matmul(left, right)
        (into.add_ if adds else into.copy_)(product)
        return
    dtype: Any = {} if into.dtype == left.dtype else {"out_dtype": into.dtype}
    if adds:
        torch.addmm(into, left, right, **dtype, out=into)
    else:
        torch.mm(left, right, **dtype, out=into)


def _logits(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    logits: Tensor = matmul(x, weight.t())
    return logits if bias is None else logits.add_(bias)


class _GradientSums:
    """The gradients of x, weight and bias that are needed, accumulated over chunks."""

    def __init__(self, tensors: Sequence[Tensor | None], needs_grad: Sequence[bool]) -> None:
        x, weight, bias = tensors
        assert x is not None
        assert weight is not None
        # Accumulated in 16 bits, the sum over many chunks would lose its precision.
        sum_dtype = self.sum_dtype = torch.promote_types(x.dtype, torch.float32)
        self.x = torch.empty_like(x, dtype=_unscaled_dtype(x.dtype)) if needs_grad[0] else None
        self.weight = torch.empty_like(weight, dtype=sum_dtype) if needs_grad[1] else None
        self.bias = torch.zeros_like(bias, dtype=sum_dtype) if bias is not None and needs_grad[2] else None
        self.projection = weight

    def add(self, rows: slice, x: Tensor, gradients: Iterable[tuple[slice, Tensor]]) -> None:
        """Add a chunk's logit gradients, given one subset of the classes at a time."""
        grad_x = None
        if self.x is not None:
            is_sum = self.x.dtype == self.sum_dtype or not x.is_cpu  # all classes at once: one product
            grad_x = self.x[rows] if is_sum else self.x.new_empty(x.shape, dtype=self.sum_dtype)
        for i, (part, gradient) in enumerate(gradients):
            if grad_x is not None:
                _matmul_into(grad_x, gradient, self.projection[part], adds=i > 0)
            if self.weight is not None:
                _matmul_into(self.weight[part], gradient.t(), x, adds=rows.start > 0)
            if self.bias is not None:
                self.bias[part] += gradient.sum(0, dtype=self.bias.dtype)
            del gradient
        if self.x is not None and grad_x is not None and grad_x.dtype != self.x.dtype:
            self.x[rows] = grad_x

    def results(self) -> list[Tensor | None]:
        """Return the gradients in the inputs' dtype, or in float32 for float16, which is scaled later."""
        dtype = _unscaled_dtype(self.projection.dtype)
        return [None if t is None else t.to(dtype) for t in (self.x, self.weight, self.bias)]


class _ClassParts:
    """A chunk of logits on a CPU, split by classes so that each part is used while it is in cache."""

    def __init__(self, x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, terms: Terms) -> None:
        self.x, self.weight, self.bias, self.target, self.terms = x, weight, bias, target, terms
        self.parts = _class_slices(weight, len(x))
        self.logits: list[Tensor] = []

    def losses(self, save_logits: bool) -> Tensor:
        """Return the loss of each row; save the logits for the gradient if `save_logits`."""
        statistics = []
        for part in self.parts:
            logits = _logits(self.x, self.weight[part], None if self.bias is None else self.bias[part])
            statistics.append(partial_statistics(logits, self.target - part.start, self.terms.has_smoothing))
            if save_logits:
                self.logits.append(logits)
        part_max, part_sums, label_logits, logit_sums = (
            torch.stack(several) for several in zip(*statistics, strict=True)
        )
        self.row_max = part_max.amax(0)
        # A part that is all -inf adds nothing; a row that is all -inf is NaN, as in torch.
        part_sums = torch.where(part_max == -torch.inf, 0.0, part_sums * torch.exp(part_max - self.row_max))
        self.sums = torch.where(self.row_max == -torch.inf, torch.nan, part_sums.sum(0))
        self.lse = self.row_max + torch.log(self.sums)
        loss = self.lse - label_logits.sum(0)
        if self.terms.has_smoothing:
            mean_logit = logit_sums.sum(0) / len(self.weight)
            loss = (1 - self.terms.label_smoothing) * loss + self.terms.label_smoothing * (
                self.lse - mean_logit
            )
        if self.terms.has_z_loss:
            loss = loss + self.terms.z_loss * self.lse * self.lse
        return torch.where(self.target != self.terms.ignore_index, loss, 0.0)

    def gradients(self, scale: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield classes and the gradient of the losses' weighted sum for their logits; frees the logits."""
        softmax_scale = (
            (1 + 2 * self.terms.z_loss * self.lse) / self.sums if self.terms.has_z_loss else 1 / self.sums
        )
        base_probability = self.terms.label_smoothing / len(self.weight)
        is_counted = self.target != self.terms.ignore_index
        for i, part in enumerate(self.parts):
            logits, self.logits[i] = self.logits[i], self.row_max
            gradient = partial_gradient(
                logits, self.target - part.start, self.row_max, softmax_scale, scale, is_counted,
                1 - self.terms.label_smoothing, base_probability,
            )  # fmt: skip
            del logits  # free its memory for the matmuls
            yield part, gradient
            del gradient


def _unscaled_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of gradients before they are multiplied by grad_output: float16 would underflow."""
    return torch.float32 if dtype == torch.float16 else dtype


class _ChunkedLoss(torch.autograd.Function):
    """The autograd function; gradients are computed in the forward, or in the backward for ``"none"``."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, *settings: Any
    ) -> Tensor:
        *ctx.settings, ctx.in_float32 = settings
        ignore_index, reduction, _, _ = ctx.settings
        ctx.save_for_backward(x, weight, target, bias)
        needs_grad = [ctx.needs_input_grad[i] for i in (0, 1, 3)]
        count = loss_divisor(target, ignore_index, reduction, x.dtype)
        scale = None
        if any(needs_grad) and reduction != "none":
            # Divided by the number of rows, float16 gradients would underflow: divide in the backward.
            divide_later = x.dtype == torch.float16
            scale = (torch.ones_like(count) if divide_later else 1 / count).expand(target.shape)
        losses, ctx.unscaled_gradients = _run_chunks(
            (x, weight, bias), target, scale, needs_grad, ctx.settings
        )
        loss = losses if reduction == "none" else losses.sum() / count
        return loss if ctx.in_float32 else loss.to(x.dtype)

    @staticmethod
    @_torch.kernel_backward
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        x, weight, target, bias = ctx.saved_tensors
        ignore_index, reduction, *_ = ctx.settings
        needs_grad = [ctx.needs_input_grad[i] for i in (0, 1, 3)]
        if not _torch.is_plain_backward():
            args = (x, weight, target, bias, *ctx.settings, ctx.in_float32)
            reference = linear_cross_entropy.reference
            return tuple(grad_by_torch(reference, args, ctx.needs_input_grad, (grad_output,)))
        # The gradients are scaled in place: another backward through the same graph recomputes them.
        gradients, ctx.unscaled_gradients = ctx.unscaled_gradients, []
        if not gradients:
            scale = (grad_output.reshape(-1) / loss_divisor(target, ignore_index, reduction, x.dtype)).expand(
                target.shape
            )
            _, gradients = _run_chunks((x, weight, bias), target, scale, needs_grad, ctx.settings)
        else:
            factor = grad_output
            if x.dtype == torch.float16:
                factor = grad_output / loss_divisor(target, ignore_index, reduction, x.dtype)
                # If all labels are ignored, the factor is infinite or NaN, but gradients must stay zero.
                factor = torch.where((target != ignore_index).any(), factor, 0.0)
            if not (factor.is_cpu and factor == 1):
                gradients = [None if t is None else t.mul_(factor) for t in gradients]
        gradients = [None if t is None else t.to(x.dtype) for t in gradients]
        return gradients[0], gradients[1], None, gradients[2], *[None] * 5


def _run_chunks(
    tensors: Sequence[Tensor | None],
    target: Tensor,
    scale: Tensor | None,
    needs_grad: Sequence[bool],
    settings: tuple[int, str, float, float],
) -> tuple[Tensor, list[Tensor | None]]:
    """Return the loss of each row, and with `scale` the gradients of their weighted sum (else ``[]``)."""
    x, weight, bias = (None if t is None else t.detach() for t in tensors)
    assert x is not None
    assert weight is not None
    ignore_index, _, label_smoothing, z_loss = settings
    terms = Terms.of(ignore_index, label_smoothing, z_loss)
    by_weight = min(max(weight.numel() * x.dtype.itemsize, _MIN_CHUNK_BYTES), _MAX_CHUNK_BYTES)
    chunk_bytes = _CHUNK_BYTES.get(x.device.type, by_weight)
    chunk = max(chunk_bytes // (weight.shape[0] * x.dtype.itemsize), _MIN_ROWS)
    chunk = -(-len(x) // -(-len(x) // chunk))  # make the chunks even
    sums = None if scale is None else _GradientSums((x, weight, bias), needs_grad)
    losses: list[Tensor] = []
    with torch.no_grad():
        for first in range(0, len(x), chunk):
            rows = slice(first, first + chunk)
            weights = None if scale is None else scale[rows].contiguous()
            gradients: Iterable[tuple[slice, Tensor]]
            if x.is_cpu:
                parts = _ClassParts(x[rows], weight, bias, target[rows], terms)
                losses.append(parts.losses(save_logits=weights is not None))
                gradients = parts.gradients(weights) if weights is not None else ()
            elif weights is None:
                losses.append(row_losses(_logits(x[rows], weight, bias), target[rows], *terms))
            else:
                logits = _logits(x[rows], weight, bias)
                loss, gradient = losses_and_gradient(logits, target[rows], weights, *terms)
                losses.append(loss)
                gradients = [(slice(None), gradient)]
                del logits, gradient
            if sums is not None:
                sums.add(rows, x[rows], gradients)
            gradients = ()  # free them before the next chunk's logits are computed
    return torch.cat(losses), [] if sums is None else sums.results()


def _unsupported_reason(x: Tensor, weight: Tensor, *rest: Any) -> str | None:
    return "an empty tensor" if not (x.numel() and weight.numel()) else None


@linear_cross_entropy.candidate(
    "chunked",
    when=_unsupported_reason,
    best=lambda x, weight, *_: x.numel() // x.shape[-1] * weight.shape[0] >= _MIN_LOGITS,
    differentiable=True,
)
def _chunked(*args: Any) -> Tensor:
    x, weight, target, bias, *settings = args
    if not wants_gradient(x, weight, bias):
        # Inside an autograd function, needs_input_grad ignores `torch.no_grad`.
        x, weight, bias = x.detach(), weight.detach(), None if bias is None else bias.detach()
    rows, labels = x.reshape(-1, x.shape[-1]), int64_labels(target).reshape(-1)
    loss: Tensor = _ChunkedLoss.apply(rows, weight, labels, bias, *settings)  # type: ignore[no-untyped-call]
    return loss.reshape(target.shape) if settings[1] == "none" else loss
