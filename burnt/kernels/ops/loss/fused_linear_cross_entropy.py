"""The loss of a language model's last layer without its logits: `linear_cross_entropy`.

The candidate ``chunked`` goes through the rows a few at a time: logits of a chunk, their loss and its
gradient, which is multiplied into the gradients at once. What lives at a time is one chunk of logits, not
all. On a GPU one kernel makes the loss and the gradient; on a CPU a chunk is gone through by some of the
classes after others, whose logits are in a cache when the loss looks at them, and whose gradient is when it
is multiplied. Where the mean or the sum is wanted, the gradients are there when the forward is done (as in
Liger-Kernel; Hsu et al., 2024); where each row's loss is, the backward makes the logits again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt import _torch
from burnt.device import processor
from burnt.errors import InputRuntimeError
from burnt.kernels.dispatch.op import op
from burnt.kernels.interface.autocast import autocast_dtype, cast_all
from burnt.kernels.interface.checks import check_floating, check_one_device, check_one_dtype
from burnt.kernels.interface.tuning_key import wants_gradient
from burnt.kernels.ops.loss.cross_entropy_rows import (
    figures_of_part,
    gradient_of_part,
    losses_and_gradient,
    losses_of,
    number_of,
)
from burnt.kernels.ops.loss.loss import check_labels, check_reduction, cross_entropy, look_at_labels
from burnt.kernels.ops.matmul import matmul

__all__ = ["linear_cross_entropy"]

# Bytes of a chunk's logits. On a CPU each chunk adds to all of the weight's gradient, and few rows are slow
# to multiply; but all of a chunk's memory is to be less than 15 % of the 310 MiB that torch's calls take
# beyond inputs and gradients (1024 rows, 512 wide, 32000 classes): 12 to 13 %. On a GPU, what keeps it busy,
# twice.
_CHUNK = {"cpu": 33 << 20}
_CHUNK_ELSEWHERE = 256 << 20
_LEAST_ROWS = 64
# Bytes of the weight, and of logits, that are multiplied at once on a CPU: a library may make a copy of them.
_PART = 4 << 20
_LEAST_CLASSES = 1024  # but of logits no fewer
# Logits below which torch's calls are as fast.
_LARGE = 1 << 20


def _check(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    z_loss: float,
    in_float32: bool,
) -> None:
    name = "linear_cross_entropy"
    check_reduction(name, reduction, label_smoothing)
    check_floating(name, x=x, weight=weight, bias=bias)
    check_one_device(name, x=x, weight=weight, target=target, bias=bias)
    check_one_dtype(name, x=x, weight=weight, bias=bias)
    if weight.dim() != 2 or x.dim() < 1 or x.shape[-1] != weight.shape[1]:
        raise InputRuntimeError(
            "x and weight do not fit each other",
            where=f"burnt.kernels.{name}",
            expected="x [*, d] and weight [classes, d]",
            found=f"x {list(x.shape)}, weight {list(weight.shape)}",
        )
    if bias is not None and list(bias.shape) != [weight.shape[0]]:
        raise InputRuntimeError(
            "the bias does not fit the classes",
            where=f"burnt.kernels.{name}",
            expected=[weight.shape[0]],
            found=list(bias.shape),
        )
    check_labels(name, target, tuple(x.shape[:-1]), flat=True)


def _look(x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, ignore_index: int, *_: Any) -> None:
    look_at_labels("linear_cross_entropy", target, weight.shape[0], ignore_index)


def _examples(device: torch.device) -> list[tuple[object, ...]]:
    made: list[tuple[object, ...]] = []
    for rows, width, classes in [(1024, 512, 32000), (256, 64, 1000), (5, 7, 11)]:
        x = torch.randn(rows, width, device=device)
        weight = torch.randn(classes, width, device=device) / width**0.5
        target = torch.randint(classes, (rows,), device=device)
        made.append((x, weight, target, None, -100, "mean", 0.0, 0.0, False))
    return made


def _autocast(
    dtype: torch.dtype, x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, *rest: Any
) -> tuple[Any, ...]:
    """As torch has it: a product in the dtype of autocast, and its loss in float32."""
    x, weight, bias = cast_all(dtype, x, weight, bias)
    return x, weight, target, bias, *rest[:-1], True


@op(check=_check, look=_look, examples=_examples, autocast=_autocast)
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
    r"""Cross entropy of the logits :math:`x W^\top + b`, which need not exist all at a time.

    Args:
        x: ``[*, d]``, of a floating-point dtype.
        weight: ``[classes, d]``, of the same dtype.
        target: labels ``[*]``, int64.
        bias: ``[classes]``.
        ignore_index: label whose rows count neither in the sum nor in the mean.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        label_smoothing: share of the target that is spread over all classes, 0 to 1.
        z_loss: weight of the squared logarithm of the partition function (`cross_entropy`).
        in_float32: give the loss in float32 where `x` has 16 bits, as that of logits that were cast.

    Returns:
        ``[]``, or with ``"none"`` the labels' shape, in the dtype of `x`, or in float32; under autocast in
        float32.

    Raises:
        InputIndexError: a label that is no class, on the CPU.
        InputRuntimeError: shapes, dtypes or devices do not fit each other.
        InputValueError: another reduction.

    As `cross_entropy` of `torch.nn.functional.linear`.

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


def _parts(weight: Tensor, rows: int) -> list[slice]:
    """Classes that are multiplied together: a product with all may take as much memory as the weight."""
    classes, width = weight.shape
    step = classes
    if weight.is_cpu:
        of_weight, of_logits = (_PART // (n * weight.element_size()) for n in (width, rows))
        step = max(min(of_weight, max(of_logits, _LEAST_CLASSES)), _LEAST_ROWS)
    return [slice(first, first + step) for first in range(0, classes, step)]


def _by_torch(into: Tensor, factor: Tensor) -> bool:
    """Whether torch's library puts a product where it belongs, and is the better one on this CPU."""
    wide = into.dtype in (torch.float32, torch.float64)
    return into.is_cpu and into.dtype == factor.dtype and wide and not processor().mkl_is_slow


def _put(into: Tensor, left: Tensor, right: Tensor) -> None:
    """Make `into` a product."""
    if _by_torch(into, left):
        torch.mm(left, right, out=into)
    else:
        into.copy_(matmul(left, right))


def _add(into: Tensor, left: Tensor, right: Tensor) -> None:
    """Add a product."""
    if _by_torch(into, left) or (into.dtype == left.dtype and not into.is_cpu):
        torch.addmm(into, left, right, out=into)
    else:
        into += matmul(left, right)


def _logits(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    made: Tensor = matmul(x, weight.t())
    return made if bias is None else made.add_(bias)


class _Sums:
    """The gradients of what logits are made of, while chunks add to them; those that are wanted."""

    def __init__(self, tensors: Sequence[Tensor | None], wanted: Sequence[bool]) -> None:
        x, weight, bias = tensors
        assert x is not None
        assert weight is not None
        # Many 16-bit sums, each rounded, would be none.
        inside = self.inside = torch.promote_types(x.dtype, torch.float32)
        self.x = torch.empty_like(x, dtype=_kept(x.dtype)) if wanted[0] else None
        self.weight = torch.empty_like(weight, dtype=inside) if wanted[1] else None
        self.bias = torch.zeros_like(bias, dtype=inside) if bias is not None and wanted[2] else None
        self.of = weight

    def add(self, rows: slice, x: Tensor, gradients: Iterable[tuple[slice, Tensor]]) -> None:
        """Add what a chunk's gradient makes, which comes by some of the classes after others."""
        of_x = None
        if self.x is not None:
            whole = self.x.dtype == self.inside
            of_x = self.x[rows] if whole else self.x.new_empty(x.shape, dtype=self.inside)
        for i, (part, gradient) in enumerate(gradients):
            if of_x is not None:
                (_add if i else _put)(of_x, gradient, self.of[part])
            if self.weight is not None:
                (_add if rows.start else _put)(self.weight[part], gradient.t(), x)
            if self.bias is not None:
                self.bias[part] += gradient.sum(0, dtype=self.bias.dtype)
            del gradient
        if self.x is not None and of_x is not None and of_x.dtype != self.x.dtype:
            self.x[rows] = of_x

    def results(self) -> list[Tensor | None]:
        """The gradients, in their tensors' dtypes; those in float16, scaled later, in float32."""
        dtype = _kept(self.of.dtype)
        return [None if t is None else t.to(dtype) for t in (self.x, self.weight, self.bias)]


class _Parts:
    """A chunk of logits on a CPU, by some of the classes after others: each is used while in a cache."""

    def __init__(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        settings: tuple[int, bool, float, bool, float],
    ):
        self.x, self.weight, self.bias, self.target = x, weight, bias, target
        self.ignored, self.smoothed, self.smoothing, self.squared, self.z = settings
        self.parts = _parts(weight, len(x))
        self.logits: list[Tensor] = []

    def losses(self, keep: bool) -> Tensor:
        """The loss of each row; the logits are kept for the gradient, or not."""
        found = []
        for part in self.parts:
            logits = _logits(self.x, self.weight[part], None if self.bias is None else self.bias[part])
            found.append(figures_of_part(logits, self.target - part.start, self.smoothed))
            if keep:
                self.logits.append(logits)
        tops, sums, at_label, totals = (torch.stack(several) for several in zip(*found, strict=True))
        self.top = tops.amax(0)
        # Where all of a part is -inf it adds nothing, unless all of the row is: then it is NaN, as torch's.
        sums = torch.where(tops == -torch.inf, 0.0, sums * torch.exp(tops - self.top))
        self.sums = torch.where(self.top == -torch.inf, torch.nan, sums.sum(0))
        self.total = self.top + torch.log(self.sums)
        loss = self.total - at_label.sum(0)
        if self.smoothed:
            mean = totals.sum(0) / len(self.weight)
            loss = (1 - self.smoothing) * loss + self.smoothing * (self.total - mean)
        if self.squared:
            loss = loss + self.z * self.total * self.total
        return torch.where(self.target != self.ignored, loss, 0.0)

    def gradients(self, scale: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Classes, and the gradient of the weighted sum of the losses for their logits, which go."""
        factor = (1 + 2 * self.z * self.total) / self.sums if self.squared else 1 / self.sums
        at_label, elsewhere = 1 - self.smoothing, self.smoothing / len(self.weight)
        counts = self.target != self.ignored
        for i, part in enumerate(self.parts):
            logits, self.logits[i] = self.logits[i], self.top
            rows = self.top, factor, scale, counts
            made = gradient_of_part(logits, self.target - part.start, *rows, at_label, elsewhere)
            del logits  # its memory is for the products
            yield part, made
            del made


def _kept(dtype: torch.dtype) -> torch.dtype:
    """What gradients are of until the loss' own is known: float16 has too few small numbers."""
    return torch.float32 if dtype == torch.float16 else dtype


class _Chunked(torch.autograd.Function):
    """The loss, and gradients that are made with it, or made when they are asked for."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        target: Tensor,
        bias: Tensor | None,
        ignored: int,
        reduction: str,
        smoothing: float,
        z: float,
        in_float32: bool,
    ) -> Tensor:
        ctx.save_for_backward(x, weight, target, bias)
        ctx.settings = ignored, reduction, smoothing, z
        ctx.in_float32 = in_float32
        wanted = [ctx.needs_input_grad[i] for i in (0, 1, 3)]
        count = number_of(target, ignored, reduction, x.dtype)
        scale = None
        if any(wanted) and reduction != "none":
            # What is divided by the number of rows would be nothing in float16: it is divided at the end.
            late = x.dtype == torch.float16
            scale = (torch.ones_like(count) if late else 1 / count).expand(target.shape)
        losses, ctx.made = _through((x, weight, bias), target, scale, wanted, ctx.settings)
        made = losses if reduction == "none" else losses.sum() / count
        return made if in_float32 else made.to(x.dtype)

    @staticmethod
    @_torch.without_autocast()
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        x, weight, target, bias = ctx.saved_tensors
        ignored, reduction, smoothing, z = ctx.settings
        wanted = [ctx.needs_input_grad[i] for i in (0, 1, 3)]
        if torch.is_grad_enabled():  # a second derivative is wanted: that of the definition
            inputs = [t for t, asked in zip((x, weight, bias), wanted, strict=True) if asked]
            settings = ignored, reduction, smoothing, z, ctx.in_float32
            loss = linear_cross_entropy.reference(x, weight, target, bias, *settings)
            found = iter(torch.autograd.grad(loss, inputs, cotangent, create_graph=True))
            made = [next(found) if asked else None for asked in wanted]
            return made[0], made[1], None, made[2], *[None] * 5
        # They are given away: another backward through the same graph makes them again.
        made, ctx.made = ctx.made, []
        if not made:
            scale = (cotangent.reshape(-1) / number_of(target, ignored, reduction, x.dtype)).expand(
                target.shape
            )
            _, made = _through((x, weight, bias), target, scale, wanted, ctx.settings)
        else:
            factor = cotangent
            if x.dtype == torch.float16:
                factor = cotangent / number_of(target, ignored, reduction, x.dtype)
                # Where no row counts gradients stay zeros, though the factor is a number by 0, or infinite.
                factor = torch.where((target != ignored).any(), factor, 0.0)
            if not (factor.is_cpu and factor == 1):
                made = [None if t is None else t.mul_(factor) for t in made]
        made = [None if t is None else t.to(x.dtype) for t in made]
        return made[0], made[1], None, made[2], *[None] * 5


def _through(
    tensors: Sequence[Tensor | None],
    target: Tensor,
    scale: Tensor | None,
    wanted: Sequence[bool],
    settings: tuple[int, str, float, float],
) -> tuple[Tensor, list[Tensor | None]]:
    """The loss of each row, and where rows have weights, the gradients of the weighted sum; else none."""
    x, weight, bias = (None if t is None else t.detach() for t in tensors)
    assert x is not None
    assert weight is not None
    ignored, _, smoothing, z = settings
    rest = ignored, bool(smoothing), float(smoothing), bool(z), float(z)
    chunk = max(
        _CHUNK.get(x.device.type, _CHUNK_ELSEWHERE) // (weight.shape[0] * x.dtype.itemsize), _LEAST_ROWS
    )
    chunk = -(-len(x) // -(-len(x) // chunk))  # as even as can be
    sums = None if scale is None else _Sums((x, weight, bias), wanted)
    losses: list[Tensor] = []
    with torch.no_grad():
        for first in range(0, len(x), chunk):
            rows = slice(first, first + chunk)
            weights = None if scale is None else scale[rows].contiguous()
            gradients: Iterable[tuple[slice, Tensor]]
            if x.is_cpu:
                parts = _Parts(x[rows], weight, bias, target[rows], rest)
                losses.append(parts.losses(keep=weights is not None))
                gradients = parts.gradients(weights) if weights is not None else ()
            elif weights is None:
                losses.append(losses_of(_logits(x[rows], weight, bias), target[rows], *rest))
            else:
                logits = _logits(x[rows], weight, bias)
                loss, gradient = losses_and_gradient(logits, target[rows], weights, *rest)
                losses.append(loss)
                gradients = [(slice(None), gradient)]
                del logits, gradient
            if sums is not None:
                sums.add(rows, x[rows], gradients)
            gradients = ()  # before the next chunk's logits are made
    return torch.cat(losses), [] if sums is None else sums.results()


def _why_not_chunked(x: Tensor, weight: Tensor, *rest: Any) -> str | None:
    return "an empty tensor" if not (x.numel() and weight.numel()) else None


@linear_cross_entropy.candidate(
    "chunked",
    when=_why_not_chunked,
    best=lambda x, weight, *_: x.numel() // x.shape[-1] * weight.shape[0] >= _LARGE,
    differentiable=True,
)
def _chunked(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    z_loss: float,
    in_float32: bool,
) -> Tensor:
    if not wants_gradient(x, weight, bias):
        # A function of autograd's is told of parameters, not of `torch.no_grad`.
        x, weight, bias = x.detach(), weight.detach(), None if bias is None else bias.detach()
    made: Tensor = _Chunked.apply(  # type: ignore[no-untyped-call]
        x.reshape(-1, x.shape[-1]),
        weight,
        target.reshape(-1),
        bias,
        ignore_index,
        reduction,
        label_smoothing,
        z_loss,
        in_float32,
    )
    return made.reshape(target.shape) if reduction == "none" else made
