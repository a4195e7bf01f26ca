"""The rows of the CPU table: functions of plain torch, their inputs, and the ratios that are aimed at.

Nothing of burnt is imported here: a rival's process has none of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

SAME, SHIPPED = "same allocator", "as shipped"
QUICK = 32  # by how much `--quick` divides a size


@dataclasses.dataclass(frozen=True)
class Labels:
    """An input of classes, int64."""

    shape: tuple[int, ...]
    classes: int


@dataclasses.dataclass(frozen=True)
class Weights:
    """A parameter, whose sums over the last axis stay as large as what they weigh."""

    shape: tuple[int, ...]


Spec = tuple[int, ...] | Labels | Weights


@dataclasses.dataclass(frozen=True)
class Row:
    """A function, its inputs, and what is aimed at.

    Args:
        name: with the shape.
        fn: in plain torch.
        specs: of a divisor (1, or `QUICK`); the inputs' shapes.
        op: burnt's op of this meaning, and how it is called; `burnt.fuse` of `fn` where there is none.
        beneath: where `op` is a function that calls an op, that op, and how it is called.
        plain: burnt runs `fn` as it is: what is compared is the allocator.
        backward: gradients are taken as well, from cotangents that are there.
        targets: ratios by column and rival; what is missing has none.
        share: of the copy bandwidth, aimed at.
        random: results differ from call to call.
        dtype: of the inputs.
    """

    name: str
    fn: Callable[..., Any]
    specs: Callable[[int], Sequence[Spec]]
    op: tuple[str, Callable[..., Any]] | None = None
    beneath: tuple[str, Callable[..., Any]] | None = None
    backward: bool = False
    targets: Mapping[tuple[str, str], float] = dataclasses.field(default_factory=dict)
    share: float | None = None
    random: bool = False
    plain: bool = False
    dtype: torch.dtype = torch.float32

    def inputs(self, divisor: int) -> list[Tensor]:
        """The same in every process."""
        generator = torch.Generator().manual_seed(0)
        made = []
        for spec in self.specs(divisor):
            if isinstance(spec, Labels):
                made.append(torch.randint(spec.classes, spec.shape, generator=generator))
                continue
            shape = spec.shape if isinstance(spec, Weights) else spec
            scale = shape[-1] ** -0.5 if isinstance(spec, Weights) else 1.0
            values = (torch.randn(shape, generator=generator) * scale).to(self.dtype)
            if isinstance(spec, Weights):
                values = torch.nn.Parameter(values)
            made.append(values.requires_grad_(self.backward))
        return made


def targets(eager: float | None, inductor: float | None, *shipped: float) -> dict[tuple[str, str], float]:
    """Targets in the order of the table: eager and inductor with the same allocator, then as shipped."""
    named = {(SAME, "eager"): eager, (SAME, "inductor"): inductor}
    named |= {(SHIPPED, rival): ratio for rival, ratio in zip(("eager", "inductor"), shipped, strict=False)}
    return {place: ratio for place, ratio in named.items() if ratio is not None}


def gelu_by_hand(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


def rms_norm_residual(x: Tensor, weight: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    total = x + residual
    return F.rms_norm(total, weight.shape, weight, 1e-6), total


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def batch_norm_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.relu(F.batch_norm(x, None, None, weight, bias, training=True))


def max_pool(shape: tuple[int, ...], kernel: int, stride: int, padding: int, dilation: int) -> Row:
    setting = f"k{kernel}s{stride}" + (f"p{padding}" if padding else "") + ("d2" if dilation == 2 else "")
    return Row(
        f"max_pool2d {setting} {'x'.join(map(str, shape))}",
        lambda x: F.max_pool2d(x, kernel, stride, padding, dilation),
        lambda d: [(shape[0], max(shape[1] // d, 1), *shape[2:])],
        op=("max_pool", lambda op, x: op(x, kernel, stride, padding, dilation)),
        targets=targets(10, 1, 10, 2) if (kernel, stride) == (2, 2) else targets(20, 3, 10, 2),
        share=0.6,
    )


def cross_entropy(rows: int, classes: int) -> Row:
    return Row(
        f"cross_entropy fwd+bwd {rows}x{classes}",
        F.cross_entropy,
        lambda d: [(rows // d, classes), Labels((rows // d,), classes)],
        op=("cross_entropy", lambda op, logits, labels: op(logits, labels)),
        backward=True,
        targets=targets(2.2, 1.6, 8, 4),
    )


def recurrent(kind: str, batch: int, steps: int, width: int) -> Row:
    """A layer as wide as its input, against one call of torch's."""
    rows = (4 if kind == "lstm" else 3) * width

    def layer(x: Tensor, *weights: Tensor) -> Tensor:
        zeros = x.new_zeros(1, x.shape[0], width)
        settings = (list(weights), True, 1, 0.0, True, False, True)
        output: Tensor = (
            torch.lstm(x, (zeros, zeros), *settings) if kind == "lstm" else torch.gru(x, zeros, *settings)
        )[0]
        return output

    return Row(
        f"{kind} fwd+bwd {batch}x{steps}x{width}",
        layer,
        lambda d: [
            (batch, max(steps // d, 1), width),
            *(Weights((rows, width)) for _ in range(2)),
            *(Weights((rows,)) for _ in range(2)),
        ],
        op=(kind, lambda op, x, *weights: op(x, [weights])[0]),
        beneath=(f"{kind}_layer", lambda op, x, *weights: op(x, *weights)[0]),
        backward=True,
        targets=targets(1.3, 1.3),
    )


def linear(rows: int, width: int, made: int) -> Row:
    return Row(
        f"linear fwd+bwd {rows}x{width}x{made}",
        F.linear,
        lambda d: [(rows // d, width), Weights((made, width)), Weights((made,))],
        op=("linear", lambda op, x, weight, bias: op(x, weight, bias)),
        backward=True,
        targets=targets(1.8, 1.8),
    )


def last_layer(x: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(x, weight), labels)


def conv_block(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
    """A block of a residual network in evaluation, channels last: the statistics are 0 and 1."""
    made = F.conv2d(x.permute(0, 3, 1, 2), weight, padding=1)
    normed = F.batch_norm(made, torch.zeros_like(bias), torch.ones_like(bias), scale, bias, eps=0.0)
    return F.relu(normed + residual.permute(0, 3, 1, 2))


def fused_block(op: Any, x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
    x, residual = x.permute(0, 3, 1, 2), residual.permute(0, 3, 1, 2)
    made: Tensor = op(x, weight, bias, scale, residual, "relu", padding=1)
    return made


MATRIX = (4096, 1024)


def matrix(*others: tuple[int, ...]) -> Callable[[int], Sequence[Spec]]:
    """A matrix of 4,096 x 1,024, and other inputs: None for another such matrix."""
    return lambda d: [(s[0] // d, *s[1:]) if len(s) > 1 else s for s in (MATRIX, *others)]


def joined(made: Tensor) -> Tensor:
    """Heads side by side, as every layer has them next: a view where they lie so in memory."""
    return made.transpose(1, 2).flatten(2)


def attending(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return joined(F.scaled_dot_product_attention(q, k, v))


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return joined(F.scaled_dot_product_attention(q, k, v, is_causal=True))


def windowed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A query sees itself and the 127 keys before it."""
    place = torch.arange(q.shape[2], device=q.device)
    behind = place[:, None] - place
    return joined(F.scaled_dot_product_attention(q, k, v, (behind >= 0) & (behind < 128)))


def soft_capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    return joined(torch.softmax(torch.tanh(scores / 30) * 30, -1) @ v)


def heads(batch: int, count: int, length: int) -> Callable[[int], Sequence[Spec]]:
    """Queries, keys and values of heads of 64."""
    return lambda d: [(max(batch // d, 1), max(count // d, 1), length, 64)] * 3


ATTENTION = "dot_product_attention"  # the op beneath `attention`
ROWS: tuple[Row, ...] = (
    *(
        max_pool(shape, *setting)
        for shape in ((2, 32, 512, 512), (2, 128, 512, 512))
        for setting in ((3, 1, 1, 1), (3, 2, 1, 1), (2, 2, 0, 1), (5, 2, 2, 2))
    ),
    Row("avg_pool2d k3s2 8x64x112x112", lambda x: F.avg_pool2d(x, 3, 2),
        lambda d: [(8, max(64 // d, 1), 112, 112)],
        ("avg_pool", lambda op, x: op(x, 3, 2)), targets=targets(4, 1), share=0.6),
    Row("gelu by hand, 16 M", gelu_by_hand, lambda d: [(4096 // d, 4096)],
        targets=targets(6, 1.05, 20, 4), share=0.6),
    cross_entropy(512, 32_000),
    cross_entropy(4096, 4096),
    Row("var, last axis, 4096x1024", lambda x: x.var(-1), matrix(),
        ("reduce_var", lambda op, x: op(x, -1)), targets=targets(10, 0.97)),
    Row("cumsum, first axis, 4096x1024", lambda x: x.cumsum(0), matrix(),
        ("cumsum", lambda op, x: op(x, 0)), targets=targets(5, 0.97)),
    Row("rms_norm + residual fwd+bwd 4096x1024", rms_norm_residual, matrix((1024,), MATRIX),
        ("rms_norm", lambda op, x, weight, residual: op(x, weight, 1e-6, residual)),
        backward=True, targets=targets(2, 1.1)),
    Row("swiglu 4096x1024", swiglu, matrix(MATRIX), ("swiglu", lambda op, gate, up: op(gate, up)),
        targets=targets(2, 1.1), share=0.6),
    Row("swiglu fwd+bwd 4096x1024", swiglu, matrix(MATRIX), ("swiglu", lambda op, gate, up: op(gate, up)),
        backward=True, targets=targets(2, 1.1)),
    Row("batch_norm + relu fwd+bwd 16x64x56x56", batch_norm_relu,
        lambda d: [(max(16 // d, 2), 64, 56, 56), (64,), (64,)],
        ("batch_norm", lambda op, x, w, b: op(x, None, None, w, b, training=True, activation="relu")),
        backward=True, targets=targets(2, 1.1)),
    Row("softmax fwd+bwd 4096x1024", lambda x: torch.softmax(x, -1), matrix(),
        ("softmax", lambda op, x: op(x, -1)), backward=True, targets=targets(0.97, 0.97)),
    *(
        Row(f"softmax, first axis, {str(dtype).removeprefix('torch.')}, 4096x1024",
            lambda x: torch.softmax(x, 0), matrix(), ("softmax", lambda op, x: op(x, 0)),
            targets=targets(0.97, None), dtype=dtype)
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
    ),
    Row("layer_norm fwd+bwd 4096x1024", lambda x, w, b: F.layer_norm(x, (1024,), w, b),
        matrix((1024,), (1024,)), ("layer_norm", lambda op, x, w, b: op(x, w, b)),
        backward=True, targets=targets(0.97, 0.97)),
    Row("attention 2x12x512x64", attending, heads(2, 12, 512),
        ("attention", lambda op, q, k, v: joined(op(q, k, v))),
        (ATTENTION, lambda op, q, k, v: joined(op(q, k, v))), targets=targets(0.97, 0.97)),
    Row("attention, causal fwd+bwd 2x12x512x64", causal, heads(2, 12, 512),
        ("attention", lambda op, q, k, v: joined(op(q, k, v, causal=True))),
        (ATTENTION, lambda op, q, k, v: joined(op(q, k, v, after=0))),
        backward=True, targets=targets(0.97, 0.97)),
    Row("attention, window of 128 fwd+bwd 1x8x2048x64", windowed, heads(1, 8, 2048),
        ("attention", lambda op, q, k, v: joined(op(q, k, v, causal=True, window=(127, 0)))),
        (ATTENTION, lambda op, q, k, v: joined(op(q, k, v, before=127, after=0))),
        backward=True, targets=targets(1, 1)),
    Row("attention, soft cap fwd+bwd 1x8x2048x64", soft_capped, heads(1, 8, 2048),
        ("attention", lambda op, q, k, v: joined(op(q, k, v, softcap=30.0))),
        (ATTENTION, lambda op, q, k, v: joined(op(q, k, v, softcap=30.0))),
        backward=True, targets=targets(1, 1)),
    Row("dropout, 4 M", lambda x: F.dropout(x, 0.5), matrix(), ("dropout", lambda op, x: op(x, 0.5)),
        targets=targets(3, 1), share=0.6, random=True),
    # The aims of linear are those where oneDNN beats the default BLAS, on AMD's processors.
    linear(1024, 1024, 1024),
    linear(2048, 768, 3072),
    Row("matmul, float16, 1024x1024x1024", lambda a, b: a @ b, lambda d: [(1024 // d, 1024), (1024, 1024)],
        ("matmul", lambda op, a, b: op(a, b)), targets=targets(50, None), dtype=torch.float16),
    Row("linear_cross_entropy fwd+bwd 1024x512x32000", last_layer,
        lambda d: [(1024 // d, 512), Weights((32_000, 512)), Labels((1024 // d,), 32_000)],
        ("linear_cross_entropy", lambda op, x, weight, labels: op(x, weight, labels)),
        backward=True, targets=targets(2, 1.7)),
    Row("conv3x3 + batch_norm + residual + relu 8x64x56x56", conv_block,
        lambda d: [(max(8 // d, 1), 56, 56, 64), Weights((64, 64, 3, 3)), Weights((64,)), Weights((64,)),
                   (max(8 // d, 1), 56, 56, 64)],
        ("conv", fused_block), targets=targets(1.1, 0.97)),
    recurrent("lstm", 16, 128, 256),
    recurrent("gru", 16, 128, 256),
    Row("relu(a * w + b) + r, 16 M", lambda a, w, b, r: F.relu(a * w + b) + r,
        lambda d: [(4096 // d, 4096), (4096,), (4096,), (4096 // d, 4096)], share=0.6),
    Row("sum, first axis, 4096x1024", lambda x: x.sum(0), matrix(), ("reduce_sum", lambda op, x: op(x, 0))),
    Row("logsumexp 4096x1024", lambda x: torch.logsumexp(x, -1), matrix(),
        ("reduce_logsumexp", lambda op, x: op(x, -1))),
    Row("clone, 64 MB", lambda x: x.clone(), lambda d: [(4096 // d, 4096)], plain=True),
)  # fmt: skip


def find(name: str) -> Row:
    return next(row for row in ROWS if row.name == name)
