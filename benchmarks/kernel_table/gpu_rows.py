"""Rows of the GPU's table that move memory: every family of ops in bfloat16, at 64 MB and more."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Spec = tuple[int, ...] | tuple[str, int, tuple[int, ...]]

BACKWARD = " fwd+bwd"
"""At the end of the names of rows with gradients."""


@dataclasses.dataclass(frozen=True)
class Family:
    """An op, its inputs and its rivals.

    Args:
        op: the name in `burnt.kernels`.
        specs: the inputs' shapes; ``("classes", n, shape)`` for integers below n, ``("codes", n, shape)`` for
            bytes below n, ``("weights", n, shape)`` for what n inputs are weighed with.
        call: of an op and the inputs.
        unfused: the same in simpler ops of torch's.
        torch: torch's own op, if there is one.
        liger: the name in Liger-Kernel's functional module, and how it is called.
        backward: is timed, too, as a row of its own.
        share: whether its bytes say what it has to move.
        label: names its rows; without one, the op does.
        small: shapes for rehearsals and host time; without them, fewer rows.
        product: it multiplies matrices, which the means over what moves memory leave out.
        peak: memory is measured, too: what a call holds at its most, next to its inputs.
        beneath: where `op` is a function that calls an op, that op, and how it is called.
        inductor: `torch` is compiled by Inductor.
        aims: ratios, forward and with gradients, by rival; ``own`` is that of torch's time to that of our own
            candidate, whatever the op chooses, forward and of the backward alone.
    """

    op: str
    specs: Sequence[Spec]
    call: Callable[..., Any]
    unfused: Callable[..., Any]
    torch: Callable[..., Any] | None = None
    liger: tuple[str, Callable[..., Any]] | None = None
    backward: bool = True
    share: bool = True
    label: str = ""
    small: Sequence[Spec] | None = None
    product: bool = False
    peak: bool = False
    beneath: tuple[str, Callable[..., Any]] | None = None
    inductor: bool = False
    aims: Mapping[str, tuple[float | None, float | None]] = dataclasses.field(default_factory=dict)

    def name(self, gradients: bool) -> str:
        """Of its row."""
        return (self.label or self.op) + (BACKWARD if gradients else "")

    def aimed(self, gradients: bool) -> dict[str, float]:
        """What is aimed at in a row, by rival."""
        found = {rival: aims[gradients] for rival, aims in self.aims.items()}
        return {rival: aim for rival, aim in found.items() if aim is not None}

    def inputs(self, device: torch.device, gradients: bool, divisor: int) -> list[Tensor]:
        made = []
        specs, divisor = (self.small, 1) if self.small and divisor > 1 else (self.specs, divisor)
        for spec in specs:
            if spec[0] == "classes":
                _, classes, shape = spec
                made.append(torch.randint(classes, smaller(shape, divisor), device=device))
                continue
            if spec[0] == "codes":
                _, codes, shape = spec
                made.append(torch.randint(codes, shape, device=device, dtype=torch.uint8))
                continue
            scale = 1.0
            if spec[0] == "weights":
                _, weighed, spec = spec
                scale = weighed**-0.5
            x = torch.randn(smaller(spec, divisor), device=device, dtype=torch.bfloat16) * scale
            made.append(x.requires_grad_(gradients))
        return made


def smaller(shape: Any, divisor: int) -> tuple[int, ...]:
    """Fewer rows or images; parameters, angles of positions and tables stay."""
    if divisor == 1 or len(shape) == 1 or tuple(shape) in (ANGLES, TABLE):
        return tuple(shape)
    return (max(shape[0] // divisor, 1), *shape[1:])


# --- the same in simpler ops


def norm(x: Tensor, axes: Sequence[int]) -> Tensor:
    wide = x.float()
    centred = wide - wide.mean(axes, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(axes, keepdim=True) + 1e-5)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return (norm(x, [-1]) * weight.float() + bias.float()).to(x.dtype)


def rms_norm(x: Tensor, weight: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    total = x + residual
    wide = total.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
    return (wide * scale).to(x.dtype) * weight, total


def group_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    grouped = norm(x.unflatten(1, (GROUPS, -1)), [2, 3, 4]).flatten(1, 2)
    return (grouped * weight.float()[:, None, None] + bias.float()[:, None, None]).to(x.dtype)


def batch_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    scaled = norm(x, [0, 2, 3]) * weight.float()[:, None, None] + bias.float()[:, None, None]
    return torch.relu(scaled.to(x.dtype))


def softmax(x: Tensor) -> Tensor:
    raised = torch.exp(x.float() - x.float().amax(-1, keepdim=True))
    return (raised / raised.sum(-1, keepdim=True)).to(x.dtype)


def log_softmax(x: Tensor) -> Tensor:
    shifted = x.float() - x.float().amax(-1, keepdim=True)
    return (shifted - torch.exp(shifted).sum(-1, keepdim=True).log()).to(x.dtype)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return -log_softmax(logits.float()).gather(1, labels).mean()


def gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x * 0.7071067811865476))


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, -1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


def dropout(x: Tensor) -> Tensor:
    return x * (torch.rand_like(x) > 0.5) * 2.0


def windows(x: Tensor) -> Tensor:
    return x.unfold(2, 3, 2).unfold(3, 3, 2)


def variance(x: Tensor) -> Tensor:
    wide = x.float()
    return ((wide - wide.mean(-1, keepdim=True)).square().sum(-1) / (x.shape[-1] - 1)).to(x.dtype)


MATRIX, IMAGES, GROUPS = (8192, 4096), (64, 256, 48, 48), 32  # 67 and 75 MB
CHANNELS, WIDE = (256,), (4096,)
ANGLES, TABLE = (2048, 64), (4096, 4096)
FAMILIES: tuple[Family, ...] = (
    Family("layer_norm", [MATRIX, WIDE, WIDE], lambda op, x, w, b: op(x, w, b), layer_norm,
           lambda x, w, b: F.layer_norm(x, WIDE, w, b),
           ("liger_layer_norm", lambda f, x, w, b: f(x, w, b, 1e-5))),
    Family("rms_norm", [MATRIX, WIDE, MATRIX], lambda op, x, w, r: op(x, w, 1e-6, r), rms_norm,
           liger=("liger_fused_add_rms_norm", lambda f, x, w, r: f(x, r, w, 1e-6))),
    Family("group_norm", [IMAGES, CHANNELS, CHANNELS], lambda op, x, w, b: op(x, GROUPS, w, b), group_norm,
           lambda x, w, b: F.group_norm(x, GROUPS, w, b)),
    Family("batch_norm", [IMAGES, CHANNELS, CHANNELS],
           lambda op, x, w, b: op(x, None, None, w, b, training=True, activation="relu"), batch_norm),
    Family("softmax", [MATRIX], lambda op, x: op(x, -1), softmax, lambda x: torch.softmax(x, -1),
           ("liger_softmax", lambda f, x: f(x))),
    Family("log_softmax", [MATRIX], lambda op, x: op(x, -1), log_softmax, lambda x: torch.log_softmax(x, -1)),
    # Liger-Kernel's writes the gradient over the logits on its way forward.
    Family("cross_entropy", [(2048, 32_000), ("classes", 32_000, (2048, 1))],
           lambda op, x, t: op(x, t.flatten()), cross_entropy, lambda x, t: F.cross_entropy(x, t.flatten()),
           ("liger_cross_entropy", lambda f, x, t: f(x, t.flatten()))),
    Family("gelu", [MATRIX], lambda op, x: op(x), gelu, F.gelu),
    Family("silu", [MATRIX], lambda op, x: op(x), lambda x: x * torch.sigmoid(x), F.silu),
    Family("relu2", [MATRIX], lambda op, x: op(x), lambda x: torch.relu(x).square()),
    Family("swiglu", [MATRIX, MATRIX], lambda op, x, y: op(x, y), lambda x, y: F.silu(x) * y,
           liger=("liger_swiglu", lambda f, x, y: f(x, y))),
    Family("geglu", [MATRIX, MATRIX], lambda op, x, y: op(x, y, "tanh"),
           lambda x, y: F.gelu(x, approximate="tanh") * y, liger=("liger_geglu", lambda f, x, y: f(x, y))),
    Family("rope", [(4, 32, 2048, 128), ANGLES, ANGLES], lambda op, x, cos, sin: op(x, cos, sin), rope),
    Family("dropout", [MATRIX], lambda op, x: op(x, 0.5), dropout, lambda x: F.dropout(x, 0.5)),
    Family("max_pool", [IMAGES], lambda op, x: op(x, 3, 2), lambda x: windows(x).amax((-1, -2)),
           lambda x: F.max_pool2d(x, 3, 2)),
    Family("avg_pool", [IMAGES], lambda op, x: op(x, 3, 2), lambda x: windows(x).mean((-1, -2)),
           lambda x: F.avg_pool2d(x, 3, 2)),
    Family("adaptive_avg_pool", [IMAGES], lambda op, x: op(x, 6),
           lambda x: x.unflatten(3, (6, 8)).unflatten(2, (6, 8)).mean((3, 5)),
           lambda x: F.adaptive_avg_pool2d(x, 6)),
    Family("reduce_sum", [MATRIX], lambda op, x: op(x, -1), lambda x: x.float().sum(-1).to(x.dtype),
           lambda x: x.sum(-1), backward=False),
    Family("reduce_max", [MATRIX], lambda op, x: op(x, 0), lambda x: x.float().amax(0).to(x.dtype),
           lambda x: x.amax(0), backward=False),
    Family("reduce_var", [MATRIX], lambda op, x: op(x, -1), variance, lambda x: x.var(-1), backward=False),
    Family("reduce_argmax", [MATRIX], lambda op, x: op(x, -1), lambda x: x.max(-1).indices,
           lambda x: x.argmax(-1), backward=False),
    Family("cumsum", [MATRIX], lambda op, x: op(x, -1), lambda x: x.float().cumsum(-1).to(x.dtype),
           lambda x: x.cumsum(-1), backward=False),
    Family("cumprod", [MATRIX], lambda op, x: op(x, -1), lambda x: x.float().cumprod(-1).to(x.dtype),
           lambda x: x.cumprod(-1), backward=False),
    Family("embedding", [("classes", 4096, (32_768, 1)), TABLE], lambda op, i, w: op(i.flatten(), w),
           lambda i, w: w[i.flatten()], lambda i, w: F.embedding(i.flatten(), w), share=False),
)  # fmt: skip
