"""Every op with every candidate against a definition in float64: results, gradients, dtypes, odd shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from burnt import kernels
from burnt.codegen.runtime.c_compiler import find_compiler
from burnt.kernels.dispatch.op import Op
from burnt.kernels.interface.candidate import OPS
from tests.codegen.compare import Watched
from tests.kernels.ops.attention.by_hand import attention_by_hand

CPU = torch.device("cpu")


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def ints(high: int, *shape: int) -> Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(3))


def rope_by_hand(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Rotate by multiplying complex numbers."""
    half = cos.shape[-1]
    result = x.clone()
    for i in range(half):
        at = (2 * i, 2 * i + 1) if interleaved else (i, i + half)
        rotated = torch.complex(x[..., at[0]], x[..., at[1]]) * torch.complex(cos[..., i], sin[..., i])
        columns = [result[..., j] for j in range(x.shape[-1])]
        columns[at[0]], columns[at[1]] = rotated.real, rotated.imag
        result = torch.stack(columns, -1)
    return result


def z_loss_by_hand(logits: Tensor, target: Tensor, *rest: Any) -> Tensor:
    weight, ignored, reduction, smoothing, z = rest
    loss = F.cross_entropy(
        logits, target, weight, ignore_index=ignored, reduction=reduction, label_smoothing=smoothing
    )
    flat = logits.movedim(1, -1).reshape(-1, logits.shape[1])[target.flatten() != ignored]
    squares = flat.exp().sum(-1).log().square()
    return loss + z * (squares.mean() if reduction == "mean" else squares.sum())


def torch_conv(x: Tensor, weight: Tensor, *sizes: int) -> Tensor:
    """Convolve by torch's function for the number of axes."""
    return (F.conv1d, F.conv2d, F.conv3d)[weight.dim() - 3](x, weight, None, *sizes)


def torch_conv_transpose(x: Tensor, weight: Tensor, *sizes: int) -> Tensor:
    calls = F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d
    return calls[weight.dim() - 3](x, weight, None, *sizes)


def rows_by_hand(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    """Multiply each row by the matrix of its group, or by zero after the last one."""
    groups = [sum(i >= end for end in ends.tolist()) for i in range(a.shape[0])]
    return torch.stack([a[i] @ b[g] if g < len(b) else a[i] @ b[0] * 0 for i, g in enumerate(groups)])


def norm_then(norm: Callable[..., Tensor], *rest: Any) -> Callable[..., Any]:
    def run(x: Tensor, *args: Any) -> Any:
        *parameters, residual, activation = args
        total = x if residual is None else x + residual
        result = norm(total, *parameters)
        result = {None: lambda t: t, "relu": F.relu, "silu": F.silu, "relu2": lambda t: F.relu(t) ** 2}[
            activation
        ](result)
        return result if residual is None else (result, total)

    return run


def layer(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    shape = x.shape[-1:] if weight is None else weight.shape
    return F.layer_norm(x, shape, weight, bias, eps)


def rms(x: Tensor, weight: Tensor | None, eps: float | None) -> Tensor:
    return F.rms_norm(x, x.shape[-1:] if weight is None else weight.shape, weight, eps)


def after(norm: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(x: Tensor, *args: Any) -> Tensor:
        *parameters, residual, activation = args
        result = norm(x, *parameters)
        result = result if residual is None else result + residual
        return {None: lambda t: t, "relu": F.relu, "silu": F.silu}[activation](result)

    return run


def recurrent_by_hand(kind: str, x: Tensor, weights: tuple[Tensor, ...], h: Tensor) -> tuple[Tensor, ...]:
    """torch's recurrent layer, with the steps as first axis."""
    settings = (weights, True, 1, 0.0, True, False, False)
    if kind == "gru":
        output, last = torch.gru(x.transpose(0, 1), h[None], *settings)
        return output.transpose(0, 1), last[0]
    output, last, cells = torch.lstm(x.transpose(0, 1), (h[None], torch.zeros_like(h)[None]), *settings)
    return output.transpose(0, 1), last[0], cells[0]


def codes_by_hand(values: Tensor, value: str, columns: int) -> Tensor:
    """Read integers of 2 to 8 bits, one column after the other."""
    bits = int(value.removeprefix("int"))
    codes = [(values[:, c * bits // 8].long() & 255) >> c * bits % 8 for c in range(columns)]
    codes = [code % 2**bits for code in codes]
    return torch.stack([code - 2**bits * (code >= 2 ** (bits - 1)) for code in codes], 1)


def matrix_by_hand(
    values: Tensor, scale: Tensor, zero: Tensor | None, value: str, block: int, columns: int
) -> Tensor:
    codes = codes_by_hand(values, value, columns).to(scale.dtype)
    at = [c // block if block else 0 for c in range(columns)]
    return (codes - (0 if zero is None else zero[:, at])) * scale[:, at]


def quantized_by_hand(
    x: Tensor, scale: Tensor, zero: Tensor | None, value: str, block: int, narrow: bool
) -> Tensor:
    bits, columns = int(value.removeprefix("int")), x.shape[1]
    at = [c // block if block else 0 for c in range(columns)]
    codes = (x / scale[:, at]).round() + (0 if zero is None else zero[:, at])
    codes = codes.clamp(-(2 ** (bits - 1)) + narrow, 2 ** (bits - 1) - 1).long() % 2**bits
    per_byte = 8 // bits
    packed = [sum(codes[:, c + i] << i * bits for i in range(per_byte)) for c in range(0, columns, per_byte)]
    return torch.stack(packed, 1).to(torch.int8 if bits == 8 else torch.uint8)  # type: ignore[arg-type]


def whole_tensor_by_hand(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    low, high = x.min().clamp(max=0), x.max().clamp(min=0)
    scale = (high - low) / 255
    zero = (-low / scale).round() - 128
    values = ((x / scale).round() + zero).clamp(-128, 127).to(torch.int8)
    return values, scale.view(1, 1), zero.to(torch.int8).view(1, 1)


def scaled_by_hand(total: Tensor, *rest: Any) -> Tensor:
    """Scale the sums ``[m, n]``; the result is float or int8."""
    x_scale, scale, bias, activation, out_scale, out_zero = rest
    out = total * x_scale * scale.reshape(-1) + (0 if bias is None else bias)
    out = F.relu(out) if activation == "relu" else out
    if out_scale is None:
        return out
    return ((out / out_scale).round() + out_zero.to(out.dtype)).clamp(-128, 127).to(torch.int8)


def plain(**options: Any) -> tuple[Any, ...]:
    """Return all options of an attention in order: those passed, and the defaults of the others."""
    op = kernels.dot_product_attention
    return tuple(options.get(n, d) for n, d in zip(list(op.positions)[3:], op.defaults[3:], strict=True))


def packed(rows: int, columns: int, value: str, block: int = 0, zero: bool = False) -> tuple[Any, ...]:
    """Return values, scales and zero points of a matrix."""
    per_byte = 8 // int(value.removeprefix("int"))
    values = ints(256, rows, columns // per_byte).to(torch.uint8)
    values = values.to(torch.int8) // 16 if per_byte == 1 else values  # small, for the gradient of the scale
    shape = (rows, columns // block if block else 1)
    return values, randn(*shape, seed=5).abs() / 8, ints(7, *shape).to(torch.int8) - 3 if zero else None


# The op, and which case of it -> its arguments, and an independent definition of the op.
_CASES: dict[str, tuple[tuple[Any, ...], Callable[..., Any]]] = {
    "softmax": ((randn(7, 53), -1, None), lambda x, d, _: torch.softmax(x, d)),
    "softmax, first axis": ((randn(7, 5, 3), 0, None), lambda x, d, _: torch.softmax(x, d)),
    "softmax, transposed": ((randn(7, 53).t(), -1, None), lambda x, d, _: torch.softmax(x, d)),
    "softmax, one": ((randn(1), 0, None), lambda x, d, _: torch.softmax(x, d)),
    "log_softmax": ((randn(7, 53), 1, None), lambda x, d, _: torch.log_softmax(x, d)),
    "gelu": ((randn(37, 11), "none"), lambda x, a: F.gelu(x, approximate=a)),
    "gelu, tanh": ((randn(37, 11).t(), "tanh"), lambda x, a: F.gelu(x, approximate=a)),
    "silu": ((randn(37),), lambda x: x * x.sigmoid()),
    "relu2": ((randn(5, 37),), lambda x: x.clamp(min=0) ** 2),
    "swiglu": ((randn(5, 37), randn(5, 37, seed=1)), lambda g, u: g * g.sigmoid() * u),
    "swiglu, packed": ((randn(5, 38), None), lambda g, _: F.silu(g[:, :19]) * g[:, 19:]),
    "geglu": ((randn(5, 37), randn(5, 37, seed=1), "none"), lambda g, u, _: F.gelu(g) * u),
    "layer_norm": ((randn(5, 37), randn(37), randn(37), 1e-5, None, None), norm_then(layer)),
    "layer_norm, bare": ((randn(2, 5, 37), None, None, 1e-3, None, None), norm_then(layer)),
    "layer_norm, two axes": (
        (randn(3, 5, 7), randn(5, 7), None, 1e-5, randn(3, 5, 7, seed=4), "silu"),
        norm_then(layer),
    ),
    "rms_norm": ((randn(5, 37), randn(37), 1e-6, None, None), norm_then(rms)),
    "rms_norm, default eps": ((randn(5, 37) * 1e-4, None, None, None, None), norm_then(rms)),
    "rms_norm, residual": ((randn(5, 37), randn(37), 1e-6, randn(5, 37, seed=1), "relu2"), norm_then(rms)),
    "group_norm": ((randn(2, 6, 5, 3), 3, randn(6), randn(6, seed=1), 1e-5, None, None), after(F.group_norm)),
    "group_norm, residual": (
        (randn(2, 6, 7), 2, randn(6), None, 1e-5, randn(2, 6, 7, seed=1), "silu"),
        after(F.group_norm),
    ),
    "batch_norm_training": (
        (randn(4, 3, 5, 2), randn(3), randn(3, seed=1), 1e-5, randn(4, 3, 5, 2, seed=2), "relu"),
        lambda x, w, b, eps, r, _: (
            F.relu(F.batch_norm(x, None, None, w, b, True, 0.0, eps) + r),
            x.detach().mean((0, 2, 3)),
            x.detach().var((0, 2, 3)),
        ),
    ),
    "batch_norm_inference": (
        (randn(4, 3), randn(3), randn(3).abs() + 0.5, randn(3, seed=2), randn(3, seed=1), 1e-5, None, None),
        lambda x, m, v, w, b, eps, *_: (x - m.detach()) / (v.detach() + eps).sqrt() * w + b,
    ),
    "cross_entropy": (
        (randn(7, 53), ints(53, 7), None, -100, "mean", 0.0, 0.0),
        lambda x, t, *_: F.cross_entropy(x, t),
    ),
    "cross_entropy, all of it": (
        (randn(3, 11, 5), ints(11, 3, 5), randn(11).abs(), 3, "mean", 0.1, 1e-2),
        lambda x, t, w, *rest: z_loss_by_hand(x, t, w.detach(), *rest),
    ),
    "cross_entropy, summed": ((randn(13, 11), ints(11, 13), None, 4, "sum", 0.2, 1e-2), z_loss_by_hand),
    "cross_entropy, of each": (
        (randn(13, 11), ints(11, 13), randn(11).abs(), 4, "none", 0.2, 0.0),
        lambda x, t, w, *_: F.cross_entropy(
            x, t, w.detach(), ignore_index=4, reduction="none", label_smoothing=0.2
        ),
    ),
    "cross_entropy, one sample": (
        (randn(11), torch.tensor(3), None, -100, "mean", 0.0, 0.0),
        lambda x, t, *_: -x.log_softmax(0)[3],
    ),
    "cross_entropy, probabilities": (
        (randn(5, 11), torch.softmax(randn(5, 11, seed=1), 1), None, -100, "mean", 0.1, 1e-3),
        lambda x, t, *_: F.cross_entropy(x, t, label_smoothing=0.1) + 1e-3 * x.logsumexp(1).square().mean(),
    ),
    "rope": ((randn(2, 7, 10), randn(7, 5), randn(7, 5, seed=1), False), rope_by_hand),
    "rope, interleaved": ((randn(2, 7, 10), randn(7, 5), randn(7, 5, seed=1), True), rope_by_hand),
    "rope, partial": ((randn(2, 3, 7, 10), randn(7, 2), randn(7, 2, seed=1), False), rope_by_hand),
    "max_pool": ((randn(2, 3, 11, 7), 3, 2, 1, 1, False, False), lambda x, *_: F.max_pool2d(x, 3, 2, 1)),
    "max_pool, one axis, dilated": (
        (randn(2, 3, 17), [3], [2], [1], [2], True, False),
        lambda x, *_: F.max_pool1d(x, 3, 2, 1, 2, True),
    ),
    "max_pool, with positions": (
        (randn(2, 3, 5, 7, 6), (2, 3, 2), None, 0, 1, False, True),
        lambda x, *_: F.max_pool3d(x, (2, 3, 2), return_indices=True),
    ),
    "avg_pool": (
        (randn(2, 3, 11, 7), 3, 2, 1, True, False, None),
        lambda x, *_: F.avg_pool2d(x, 3, 2, 1, True, False),
    ),
    "avg_pool, divisor": (
        (randn(3, 11, 7), (3, 2), None, 0, False, True, 5),
        lambda x, *_: F.avg_pool2d(x, (3, 2), divisor_override=5),
    ),
    "adaptive_avg_pool": ((randn(2, 3, 11, 7), (3, 5)), lambda x, s: F.adaptive_avg_pool2d(x, s)),
    "adaptive_max_pool": ((randn(2, 3, 11), 4, False), lambda x, s, _: F.adaptive_max_pool1d(x, s)),
    "adaptive_max_pool, positions": (
        (randn(2, 3, 11, 7), (4, 3), True),
        lambda x, s, _: F.adaptive_max_pool2d(x, s, return_indices=True),
    ),
    "reduce_sum": ((randn(7, 5, 3), [0, -1], True, None), lambda x, *_: x.sum((0, 2), True)),
    "reduce_mean": ((randn(7, 5), None, False, None), lambda x, *_: x.mean()),
    "reduce_max": ((randn(7, 5), 0, False), lambda x, *_: x.amax(0)),
    "reduce_min": ((randn(7, 5), [0, 1], False), lambda x, *_: x.amin((0, 1))),
    "reduce_prod": ((randn(7, 5), 1, True, None), lambda x, *_: x.prod(1, True)),
    "reduce_prod, whole": ((randn(3, 5), None, True, None), lambda x, *_: x.prod().view(1, 1)),
    "reduce_var": ((randn(7, 37), -1, 1, False), lambda x, *_: x.var(-1)),
    "reduce_std": ((randn(7, 37), 0, 0, True), lambda x, *_: x.std(0, False, True)),
    "reduce_logsumexp": ((randn(7, 37), 1, False), lambda x, *_: x.exp().sum(1).log()),
    "reduce_argmax": ((randn(7, 37), 1, False), lambda x, *_: x.max(1).indices),
    "reduce_argmin": ((randn(7, 37), None, False), lambda x, *_: x.argmin()),
    "reduce_any": ((randn(7, 3) > 1, 1, False), lambda x, *_: x.sum(1) > 0),
    "reduce_all": ((randn(7, 3) > -1, None, False), lambda x, *_: x.sum() == 21),
    "cumsum": ((randn(7, 37), 0, None), lambda x, *_: torch.stack([x[: i + 1].sum(0) for i in range(7)])),
    "cumprod": ((randn(7, 5), -1, None), lambda x, *_: x.cumprod(-1)),
    "linear": (
        (randn(5, 7), randn(3, 7), randn(3), None, None),
        lambda x, w, b, *_: torch.einsum("mk,nk->mn", x, w) + b,
    ),
    "linear, bare": (
        (randn(37), randn(19, 37), None, None, "relu2"),
        lambda x, w, *_: (w * x).sum(-1).clamp(min=0) ** 2,
    ),
    "linear, tail": (
        (randn(2, 5, 37), randn(19, 37), randn(19), randn(2, 5, 19, seed=1), "gelu"),
        lambda x, w, b, r, _: F.gelu(torch.einsum("abk,nk->abn", x, w) + b) + r,
    ),
    "linear, other tail": (
        (randn(5, 37), randn(37, 19).t(), randn(19), None, "gelu_tanh"),
        lambda x, w, b, *_: F.gelu(torch.einsum("mk,nk->mn", x, w) + b, approximate="tanh"),
    ),
    "linear_cross_entropy": (
        (randn(7, 5), randn(11, 5), ints(11, 7), None, -100, "mean", 0.0, 0.0, False),
        lambda x, w, t, *_: F.cross_entropy(x @ w.t(), t),
    ),
    "linear_cross_entropy, all of it": (
        (randn(2, 9, 5), randn(11, 5), ints(11, 2, 9), randn(11), 3, "mean", 0.1, 1e-2, False),
        lambda x, w, t, b, i, *rest: z_loss_by_hand(
            (x @ w.t() + b).flatten(0, 1), t.flatten(), None, i, *rest[:-1]
        ),
    ),
    "linear_cross_entropy, summed": (
        (randn(13, 5), randn(11, 5), ints(11, 13), randn(11), 4, "sum", 0.0, 1e-2, True),
        lambda x, w, t, b, i, *rest: z_loss_by_hand(
            (x @ w.t() + b).to(torch.promote_types(x.dtype, torch.float32)), t, None, i, *rest[:-1]
        ),
    ),
    "linear_cross_entropy, of each": (
        (randn(13, 5), randn(11, 5), ints(11, 13), None, 4, "none", 0.2, 0.0, False),
        lambda x, w, t, *_: F.cross_entropy(
            x @ w.t(), t, ignore_index=4, reduction="none", label_smoothing=0.2
        ),
    ),
    "matmul": ((randn(37, 5).t(), randn(37, 11)), lambda a, b: torch.einsum("mk,kn->mn", a, b)),
    "bmm": (
        (randn(3, 7, 10), randn(3, 10, 9, seed=1)),
        lambda a, b: (a.unsqueeze(-1) * b.unsqueeze(1)).sum(2),
    ),
    "matmul, batches": (
        (randn(3, 1, 5, 37), randn(4, 37, 11)),
        lambda a, b: torch.einsum("abmk,bkn->abmn", a.expand(3, 4, 5, 37), b),
    ),
    "dot_product_attention": (
        (randn(2, 4, 5, 8), randn(2, 2, 7, 8, seed=1), randn(2, 2, 7, 8, seed=2), *plain(after=0)),
        attention_by_hand,
    ),
    "dot_product_attention, biased": (
        (
            randn(2, 2, 7, 5),
            randn(2, 2, 5, 5, seed=1),
            randn(2, 2, 5, 3, seed=2),
            *plain(mask=randn(2, 1, 7, 5, seed=3), before=2, slopes=randn(2).abs(), lengths=ints(6, 2)),
        ),
        attention_by_hand,
    ),
    "dot_product_attention, masked": (
        (
            randn(5, 2, 3, 4).transpose(0, 2),
            randn(3, 2, 11, 4, seed=1),
            randn(3, 2, 11, 4, seed=2),
            *plain(mask=ints(2, 5, 11) > 0, bottom_right=True, scale=0.3, softcap=1.5, after=1),
        ),
        attention_by_hand,
    ),
    "dot_product_attention, packed": (
        (
            randn(1, 2, 11, 4),
            randn(1, 1, 13, 4, seed=1),
            randn(1, 1, 13, 4, seed=2),
            *plain(
                after=0,
                bottom_right=True,
                q_starts=torch.tensor([0, 3, 3, 10]),
                k_starts=torch.tensor([1, 6, 8, 13]),
                dropout=0.25,
                seed=torch.tensor(12345678901),
            ),
        ),
        attention_by_hand,
    ),
    "conv": (
        (randn(2, 3, 9, 7), randn(5, 3, 3, 2), randn(5), None, None, None, 2, 1, 1, 1),
        lambda x, w, b, s, r, a, *sizes: torch_conv(x, w, *sizes) + b.view(-1, 1, 1),
    ),
    "conv, all of it": (
        (
            randn(2, 4, 9, 7).to(memory_format=torch.channels_last),
            torch.nn.Parameter(randn(6, 2, 3, 3), requires_grad=False),
            randn(6),
            randn(6, seed=1),
            randn(2, 6, 7, 5).to(memory_format=torch.channels_last),
            "relu",
            1,
            1,
            2,
            2,
        ),
        lambda x, w, b, s, r, a, *sizes: F.relu(
            torch_conv(x, w, *sizes) * s.view(-1, 1, 1) + b.view(-1, 1, 1) + r
        ),
    ),
    "conv, one axis": (
        (randn(2, 3, 17), randn(4, 3, 5), None, None, None, "gelu", 3, 2, 1, 1),
        lambda x, w, b, s, r, a, *sizes: F.gelu(torch_conv(x, w, *sizes)),
    ),
    "conv, volumes": (
        (
            randn(2, 3, 5, 4, 6).to(memory_format=torch.channels_last_3d),
            randn(2, 3, 2, 2, 2),
            randn(2),
            None,
            None,
            "silu",
            1,
            0,
            1,
            1,
        ),
        lambda x, w, b, s, r, a, *sizes: F.silu(torch_conv(x, w, *sizes) + b.view(-1, 1, 1, 1)),
    ),
    "conv_transpose": (
        (randn(2, 4, 5, 3), randn(4, 3, 3, 2), randn(6), "relu", 2, 1, 1, 2, 1),
        lambda x, w, b, a, *sizes: F.relu(torch_conv_transpose(x, w, *sizes) + b.view(-1, 1, 1)),
    ),
    "conv_transpose, one axis": (
        (randn(2, 4, 5), randn(4, 3, 3), None, None, 1, 0, 0, 1, 2),
        lambda x, w, b, a, *sizes: torch_conv_transpose(x, w, *sizes),
    ),
    "lstm_layer": (
        (
            randn(3, 4, 5),
            randn(28, 5),
            randn(28, 7),
            randn(28),
            randn(28, seed=1),
            randn(3, 7),
            None,
            None,
            False,
        ),
        lambda x, w, u, a, b, h, *_: recurrent_by_hand("lstm", x, (w, u, a, b), h),
    ),
    "gru_layer": (
        (randn(3, 4, 5), randn(21, 5), randn(21, 7), randn(21), randn(21, seed=1), randn(3, 7), None, False),
        lambda x, w, u, a, b, h, *_: recurrent_by_hand("gru", x, (w, u, a, b), h),
    ),
    "grouped_matmul": ((randn(11, 6), randn(4, 6, 5), torch.tensor([3, 3, 10, 10])), rows_by_hand),
    "grouped_matmul, transposed": (
        (randn(8, 16), randn(3, 8, 16).mT, torch.tensor([0, 8, 8], dtype=torch.int32)),
        rows_by_hand,
    ),
    "quantize": (
        (randn(5, 12) * 4, torch.full((5, 3), 0.5), ints(3, 5, 3).to(torch.int8) - 1, "int4", 4, True),
        quantized_by_hand,
    ),
    "quantize, bytes": (
        (randn(7, 5).t() * 30, torch.full((5, 1), 0.25), None, "int8", 0, False),
        quantized_by_hand,
    ),
    "dequantize": (
        (*packed(5, 12, "int4", 4, zero=True), "int4", 4, 11, None),
        lambda v, s, z, kind, block, columns, _: matrix_by_hand(v, s, z, kind, block, columns),
    ),
    "quantize_rows": (
        (randn(3, 5, 17), "int8"),
        lambda x, _: (
            (x / (x.abs().amax(-1, True) / 127)).round().to(torch.int8),
            x.abs().amax(-1, True) / 127,
        ),
    ),
    "quantize_tensor": ((randn(3, 17) * 3,), whole_tensor_by_hand),
    "quantized_linear": (
        (randn(3, 37), *packed(11, 37, "int8"), randn(11), "relu", "int8", 0),
        lambda x, v, s, z, b, _, kind, block: F.relu(x @ matrix_by_hand(v, s, z, kind, block, 37).t() + b),
    ),
    "quantized_linear, blocks": (
        (randn(2, 3, 27), *packed(5, 32, "int4", 8, zero=True), None, None, "int4", 8),
        lambda x, v, s, z, b, _, kind, block: x @ matrix_by_hand(v, s, z, kind, block, 27).t(),
    ),
    "quantized_embedding": (
        (ints(11, 3, 5), *packed(11, 16, "int4", 8), "int4", 8, 15, None),
        lambda i, v, s, z, kind, block, columns, _: matrix_by_hand(v, s, z, kind, block, columns)[i],
    ),
    "scaled_linear": (
        (
            ints(256, 3, 37).to(torch.int8),
            ints(256, 11, 37).to(torch.int8),
            randn(3, 1).abs() / 64,
            randn(11, 1).abs() / 64,
            torch.tensor(-7, dtype=torch.int8),
            randn(11),
            None,
            None,
            None,
            "int8",
            None,
            ints(256, 11, 1).to(torch.int8),
        ),
        lambda x, v, xs, s, z, *rest: scaled_by_hand(
            (x.double() - z) @ (v.double() - rest[-1]).t(), xs, s, *rest[:-3]
        ),
    ),
    "scaled_linear, quantized again": (
        (
            ints(256, 3, 37).to(torch.int8),
            ints(256, 11, 37).to(torch.int8),
            torch.tensor(0.25),
            torch.tensor([[2.0]]),
            None,
            None,
            "relu",
            torch.tensor(1024.0),
            torch.tensor(-7, dtype=torch.int8),
            "int8",
            None,
            None,
        ),
        lambda x, v, xs, s, z, *rest: scaled_by_hand(x.double() @ v.double().t(), xs, s, *rest[:-3]),
    ),
    "scaled_conv": (
        (
            ints(256, 2, 4, 9, 7).to(torch.int8),
            ints(256, 6, 2, 3, 2).to(torch.int8),
            torch.tensor(0.25),
            randn(6, 1).abs() / 64,
            torch.tensor(5, dtype=torch.int8),
            randn(6),
            "relu",
            2,
            1,
            1,
            2,
            None,
            None,
            None,
            ints(256, 6, 1).to(torch.int8),
        ),
        lambda x, v, xs, s, z, b, a, *rest: scaled_by_hand(
            torch_conv(x.double() - z, v.double() - rest[-1].view(-1, 1, 1, 1), *rest[:-4]).movedim(1, -1),
            *(xs, s, b, a, None, None),
        ).movedim(-1, 1),
    ),
    "embedding": ((ints(11, 3, 5), randn(11, 4), 1), lambda i, w, p: F.embedding(i, w, p)),
}
CASES = {name: (getattr(kernels, name.partition(",")[0]), *case) for name, case in _CASES.items()}


def test_every_op_is_here() -> None:
    shipped = {
        name for name, op in OPS.items() if vars(kernels).get(name) is op
    }  # tests register further ops
    assert {case[0].name for case in CASES.values()} == shipped - {"dropout"}


def flat(results: Any) -> list[Tensor]:
    return list(results) if isinstance(results, tuple) else [results]


def with_gradients(fn: Callable[..., Any], args: tuple[Any, ...]) -> list[Tensor]:
    """Return the results and the gradients of all floating-point arguments, for fixed output gradients."""
    inputs = [a.detach().requires_grad_() if is_float(a) else a for a in args]
    results = flat(fn(*inputs))
    leaves = [a for a in inputs if is_float(a)]
    roots = [r for r in results if r.requires_grad]
    if not roots:
        return [r.detach() for r in results]
    grad_outs = [((torch.arange(r.numel()) % 7 - 2.5) / 4).view(r.shape).to(r.dtype) for r in roots]
    grads = torch.autograd.grad(roots, leaves, grad_outs, allow_unused=True)
    filled = [torch.zeros_like(a) if g is None else g for a, g in zip(leaves, grads, strict=True)]
    return [*(r.detach() for r in results), *filled]


def requiring_grad(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(a.detach().requires_grad_() if is_float(a) else a for a in args)


def is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def to_dtype(args: tuple[Any, ...], dtype: torch.dtype) -> tuple[Any, ...]:
    return tuple(a.to(dtype) if is_float(a) else a for a in args)


def call_as_torch_op(op: Op[..., Any]) -> Callable[..., Any]:
    return lambda *args: op.call_torch_op(args)


def implementations(op: Op[..., Any], args: tuple[Any, ...]) -> Iterator[tuple[str, Callable[..., Any]]]:
    yield "library", op.candidates["library"]
    if find_compiler() is not None and "generated" in op.candidates:
        yield "generated", op.candidates["generated"].bind_config(args)  # type: ignore[attr-defined]
    for name, candidate in op.candidates.items():
        if name not in ("library", "generated") and candidate.why_not(args) is None:
            yield name, candidate
    yield "torch.ops", call_as_torch_op(op)
    yield "front", op


# These run at every change; the others take a minute each.
SAMPLE = {"softmax", "layer_norm, two axes", "cross_entropy", "rope, partial", "swiglu, packed", "max_pool"}
# Ops without second derivatives; torch's attention has none on a CPU.
NO_SECOND = {"max_pool", "adaptive_max_pool", "reduce_max", "reduce_min", "dot_product_attention"}


ONE_OF_EACH = {case[0].name: name for name, case in reversed(CASES.items())}.values()


def mark_full_except_sample(names: Any, others: Any = ()) -> list[Any]:
    return [n if n in SAMPLE or n in others else pytest.param(n, marks=pytest.mark.full) for n in names]


# Every change compares their candidates in tests of their own (attention, quantized, grouped_matmul).
COMPARED_ELSEWHERE = {
    *("dot_product_attention", "grouped_matmul", "scaled_conv", "scaled_linear"),
    *("quantize_rows", "quantized_linear"),
}


@pytest.mark.sample(24)
@pytest.mark.parametrize("name", mark_full_except_sample(CASES, set(ONE_OF_EACH) - COMPARED_ELSEWHERE))
def test_each_candidate_in_float32(name: str) -> None:
    check_against_float64(name, torch.float32)


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", mark_full_except_sample(CASES))
def test_each_candidate_in_other_dtypes(name: str, dtype: torch.dtype) -> None:
    check_against_float64(name, dtype)


_NORMS = [name for name, case in CASES.items() if case[0].name in ("layer_norm", "rms_norm", "group_norm")]


@pytest.mark.full
@pytest.mark.parametrize("name", mark_full_except_sample(_NORMS, ONE_OF_EACH))
def test_norms_with_16_bit_input_and_float32_parameters(name: str) -> None:
    op, args, _ = CASES[name]
    mixed_args = [
        arg.float() if parameter in ("weight", "bias") and is_float(arg) else arg
        for parameter, arg in zip(op.positions, to_dtype(args, torch.bfloat16), strict=True)
    ]
    result = op(*mixed_args)
    assert flat(result)[0].dtype == torch.bfloat16
    check_against_float64(name, torch.bfloat16, tuple(mixed_args))


def check_against_float64(name: str, dtype: torch.dtype, call_args: tuple[Any, ...] | None = None) -> None:
    op, args, definition = CASES[name]
    call_args = to_dtype(args, dtype) if call_args is None else call_args
    with Watched() as watched:
        unrounded = with_gradients(definition, to_dtype(args, torch.float64))
    expected = with_gradients(definition, to_dtype(call_args, torch.float64))
    torch_results = with_gradients(op.candidates["library"], call_args)
    eps = torch.finfo(dtype).eps
    for implementation, fn in implementations(op, requiring_grad(call_args)):
        results = with_gradients(fn, call_args)
        assert len(results) == len(expected) == len(unrounded), implementation
        for i, (result, torch_result, expected_result) in enumerate(
            zip(results, torch_results, expected, strict=True)
        ):
            assert result.shape == expected_result.shape, (implementation, i)
            assert result.dtype == torch_result.dtype, (implementation, i)
            if not expected_result.is_floating_point():
                assert torch.equal(result, expected_result), (implementation, i)
                continue
            tolerance = (
                4 * float((torch_result.double() - expected_result).abs().max()) + 4 * eps * watched.largest
            )
            torch.testing.assert_close(
                result.double(),
                expected_result,
                rtol=0,
                atol=tolerance,
                msg=lambda m, r=implementation, i=i: f"{r}, result {i}: {m}",
            )


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", mark_full_except_sample(CASES, ONE_OF_EACH))
def test_torchs_own_checks_of_a_declared_op(name: str) -> None:
    op, args, _ = CASES[name]
    paired = op.pair is not None and args[op.pair] is not None and args[op.pair] is not False
    given = [a.detach().clone().requires_grad_() if is_float(a) else a for a in args]
    overload = op.overloads[paired]
    # torch adds up the sums of all results, of which it cannot add a float to an integer.
    integer_first = op in (kernels.quantize_rows, kernels.quantize_tensor)
    checks = {"test_utils": ("test_schema", "test_faketensor")} if integer_first else {}
    torch.library.opcheck(overload, tuple(op.as_schema_args(given)), **checks)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "name", mark_full_except_sample(n for n in CASES if CASES[n][0].name not in NO_SECOND)
)
def test_second_derivatives(name: str) -> None:
    op, args, definition = CASES[name]
    double_args = to_dtype(args, torch.float64)
    float_args = [a for a in double_args if is_float(a)]

    def second(fn: Callable[..., Any]) -> list[Tensor]:
        inputs = [a.detach().requires_grad_() if is_float(a) else a for a in double_args]
        leaves = [a for a in inputs if is_float(a)]
        roots = [r for r in flat(fn(*inputs)) if r.requires_grad]
        if not roots:
            return []
        first = torch.autograd.grad(
            [r.square().sum() for r in roots], leaves, create_graph=True, allow_unused=True
        )
        total = sum((g.sin().sum() for g in first if g is not None), torch.zeros(()))
        if not total.requires_grad:
            return []
        grads = torch.autograd.grad(total, leaves, allow_unused=True)
        return [torch.zeros_like(a) if g is None else g for a, g in zip(leaves, grads, strict=True)]

    expected = second(definition)
    assert len(expected) in (0, len(float_args))
    for implementation, fn in implementations(op, requiring_grad(double_args)):
        for second_grad, expected_grad in zip(second(fn), expected, strict=True):
            torch.testing.assert_close(
                second_grad, expected_grad, rtol=1e-6, atol=1e-8, msg=lambda m, r=implementation: f"{r}: {m}"
            )


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's vmap of its own ops
@pytest.mark.sample(2)
@pytest.mark.parametrize("name", CASES)
def test_batched_gradients(name: str) -> None:
    """Under either of torch's vmaps, gradients are those of a loop."""
    op, args, _ = CASES[name]
    inputs = requiring_grad(args)
    leaves = [a for a in inputs if is_float(a)]
    for implementation, fn in implementations(op, inputs):
        roots = [r for r in flat(fn(*inputs)) if r.requires_grad]
        if not roots:
            continue
        batches = [randn(3, *r.shape) for r in roots]

        def gradients(*grad_outs: Tensor, roots: list[Tensor] = roots, **options: bool) -> list[Tensor]:
            found = torch.autograd.grad(
                roots,
                leaves,
                grad_outs,
                retain_graph=True,
                allow_unused=True,
                materialize_grads=True,
                **options,
            )
            return list(found)

        rows = [gradients(*(b[i] for b in batches)) for i in range(3)]
        expected = [torch.stack(gradient) for gradient in zip(*rows, strict=True)]
        for found in (gradients(*batches, is_grads_batched=True), torch.vmap(gradients)(*batches)):
            for leaf, result, rest in zip(leaves, found, expected, strict=True):
                # torch makes the zeros of an unused argument without a batch.
                torch.testing.assert_close(
                    result.expand(3, *leaf.shape),
                    rest,
                    rtol=1e-4,
                    atol=2e-5,
                    msg=lambda m, r=implementation: f"{r}: {m}",
                )
                assert not result.requires_grad
