"""Rows of the GPU's table that multiply matrices: products, convolutions, attention, recurrent layers.

Next to torch's call, and what follows it in eager torch, stands our own candidate, also where the op takes
the library's; what is aimed at is in each row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.weak import WeakIdKeyDictionary

import burnt
from kernel_table.gpu_rows import WIDE, Family, Spec, gelu

HEADS = (4, 32, 4096, 128)
ATTENTION = "dot_product_attention"  # the op beneath `attention`


def attention(q: Tensor, k: Tensor, v: Tensor, score: Callable[..., Tensor] | None = None) -> Tensor:
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    if score is not None:
        b, h, i, j = (torch.arange(n, device=q.device) for n in scores.shape)
        scores = score(scores, b[:, None, None, None], h[:, None, None], i[:, None], j).to(v.dtype)
    return torch.softmax(scores, -1) @ v


def causal(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return torch.where(j <= i, s, -torch.inf)


def soft_cap(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return torch.tanh(s / 20.0) * 20.0


def relative(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return s - (h + 1) * 0.01 * (i - j).abs()


@functools.cache
def flex() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


def channels_first(x: Tensor) -> Tensor:
    """``[batch, *axes, channels]`` as torch names the axes; in memory channels stay last."""
    return x.movedim(-1, 1)


def conv_block(op: Any, x: Tensor, w: Tensor, scale: Tensor, bias: Tensor, r: Tensor) -> Tensor:
    x, w, r = map(channels_first, (x, w, r))
    made: Tensor = op(x, w, bias, scale, r, "relu", padding=1)
    return made


def plain_block(x: Tensor, w: Tensor, scale: Tensor, bias: Tensor, r: Tensor) -> Tensor:
    x, w, r = map(channels_first, (x, w, r))
    made = F.conv2d(x, w, padding=1) * scale.view(-1, 1, 1) + bias.view(-1, 1, 1)
    return torch.relu(made + r)


def last_layer(x: Tensor, w: Tensor, t: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(x, w), t.flatten())


def attending(
    label: str, calls: tuple[Callable[..., Any], Callable[..., Any]], plain: Any, torchs: Any, **more: Any
) -> Family:
    """Attention of 4 x 32 heads; `calls` are of `attention`, and of the op beneath it where it has one."""
    call, beneath = calls
    return Family("attention", [HEADS] * 3, call, plain, torchs, share=False, product=True, label=label,
                  small=[(1, 2, 32, 16)] * 3, beneath=beneath and (ATTENTION, beneath), **more)  # fmt: skip


def squares(size: int) -> Family:
    """A matrix product."""
    return Family("matmul", [(size, size)] * 2, lambda op, a, b: op(a, b), lambda a, b: a @ b, torch.matmul,
                  share=False, product=True, label=f"matmul {size}", small=[(64, 64)] * 2,
                  aims={"own": (0.9, None)})  # fmt: skip


def block(size: int, channels: int) -> Family:
    """A convolution with folded batch norm, residual and relu, channels last."""

    def specs(batch: int, size: int, channels: int) -> list[Spec]:
        images = (batch, size, size, channels)
        return [images, (channels, 3, 3, channels), (channels,), (channels,), images]

    return Family("conv", specs(32, size, channels), conv_block, plain_block, plain_block, share=False,
                  product=True, label=f"conv {size}x{size}x{channels}", small=specs(2, 8, 16),
                  aims={"torch": (1.3, None)})  # fmt: skip


def convolution(
    label: str, op: str, torchs: Any, specs: Sequence[Spec], small: Any, **options: Any
) -> Family:
    """A convolution alone, channels last, and its weights, which are ``[out, *kernel, in]``."""

    def call(fn: Any, x: Tensor, w: Tensor) -> Tensor:
        groups = x.shape[-1] if w.shape[-1] == 1 else 1
        made: Tensor = fn(channels_first(x), channels_first(w), groups=groups, **options)
        return made

    plain = functools.partial(call, torchs)
    return Family(op, specs, call, plain, plain, share=False, product=True, label=label, small=small)


def recurrent(kind: str, gates: int, width: int = 512) -> Family:
    """A layer as wide as its input, 64 sequences of 256 steps."""

    def specs(batch: int, steps: int, width: int) -> list[Spec]:
        rows = gates * width
        weights: list[Spec] = [("weights", width, (rows, width))] * 2
        return [(batch, steps, width), *weights, *[("weights", width, (rows,))] * 2]

    def layer(x: Tensor, *weights: Tensor) -> Tensor:
        zeros = x.new_zeros(1, x.shape[0], weights[0].shape[1])
        start = (zeros, zeros) if kind == "lstm" else zeros
        made: Tensor = getattr(torch, kind)(x, start, list(weights), True, 1, 0.0, True, False, True)[0]
        return made

    return Family(kind, specs(64, 256, width), lambda op, x, *w: op(x, [w])[0], layer, layer, share=False,
                  product=True, label=f"{kind} 64x256x{width}", small=specs(2, 3, 16),
                  beneath=(f"{kind}_layer", lambda op, x, *w: op(x, *w)[0]))  # fmt: skip


def once(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Compute what a rival reads once for each first argument, as long as that lives."""
    made: Any = WeakIdKeyDictionary()

    def cached(first: Tensor, *rest: Any) -> Tensor:
        if first not in made:
            made[first] = make(first, *rest)
        found: Tensor = made[first]
        return found

    return cached


@once
def dequantized(values: Tensor, scale: Tensor) -> Tensor:
    """An int4 weight in bfloat16."""
    return burnt.kernels.dequantize(values, scale, None, "int4", 32, None, torch.bfloat16)


@once
def decoded(values: Tensor) -> Tensor:
    """float8 values in bfloat16, which holds them."""
    return values.view(torch.float8_e4m3fn).to(torch.bfloat16)


@once
def one(values: Tensor) -> Tensor:
    return torch.ones(1, 1, device=values.device)


def int4_linear(op: Any, x: Tensor, values: Tensor, scale: Tensor) -> Tensor:
    made: Tensor = op(x, values, scale, None, None, None, "int4", 32)
    return made


def bfloat16_linear(x: Tensor, values: Tensor, scale: Tensor) -> Tensor:
    return F.linear(x, dequantized(values, scale))


def float8_linear(op: Any, x: Tensor, values: Tensor) -> Tensor:
    made: Tensor = op(x, values, one(x), one(x), value="float8_e4m3", dtype=torch.bfloat16)
    return made


def bfloat16_product(x: Tensor, values: Tensor) -> Tensor:
    return F.linear(decoded(x), decoded(values))


def int4_decode(size: int) -> Family:
    """A linear layer of a language model that generates one token, next to a weight of bfloat16."""

    def specs(size: int) -> list[Spec]:
        return [(1, size), ("codes", 256, (size, size // 2)), ("weights", size, (size, size // 32))]

    return Family("quantized_linear", specs(size), int4_linear, bfloat16_linear, bfloat16_linear,
                  backward=False, share=False, product=True, label=f"quantized_linear int4 1x{size}",
                  small=specs(64), aims={"torch": (2.8, None)})  # fmt: skip


def float8_squares(size: int) -> Family:
    """A product of float8 matrices next to one of bfloat16; their codes are positive, and none is NaN."""

    def specs(size: int) -> list[Spec]:
        return [("codes", 127, (size, size))] * 2

    return Family("scaled_linear", specs(size), float8_linear, bfloat16_product, bfloat16_product,
                  backward=False, share=False, product=True, label=f"scaled_linear float8 {size}",
                  small=specs(64), aims={"torch": (1.5, None)})  # fmt: skip


# torch's own is the best backend of its call; with functions of the scores, flex_attention.
_OF_SDPA = {"own": (0.9, 0.8)}
_OF_FLEX = {"torch": (1.2, 1.2)}
_SDPA = F.scaled_dot_product_attention
PRODUCTS: tuple[Family, ...] = (
    *(squares(size) for size in (2048, 4096, 8192)),
    Family("linear", [(8192, 4096), (4096, 4096), WIDE], lambda op, x, w, b: op(x, w, b, None, "gelu"),
           lambda x, w, b: gelu(F.linear(x, w, b)), lambda x, w, b: F.gelu(F.linear(x, w, b)), share=False,
           label="linear, bias, gelu", small=[(64, 64), (64, 64), (64,)], product=True,
           aims={"torch": (1.1, None)}),
    int4_decode(4096),
    float8_squares(4096),
    attending("attention", (lambda op, q, k, v: op(q, k, v),) * 2, attention, _SDPA, aims=_OF_SDPA),
    attending("attention, causal",
              (lambda op, q, k, v: op(q, k, v, causal=True), lambda op, q, k, v: op(q, k, v, after=0)),
              lambda q, k, v: attention(q, k, v, causal),
              lambda q, k, v: _SDPA(q, k, v, is_causal=True), aims=_OF_SDPA),
    attending("attention, soft cap next to flex_attention",
              (lambda op, q, k, v: op(q, k, v, score=soft_cap), None),
              lambda q, k, v: attention(q, k, v, soft_cap),
              lambda q, k, v: flex()(q, k, v, score_mod=soft_cap), inductor=True, aims=_OF_FLEX),
    attending("attention, distances next to flex_attention",
              (lambda op, q, k, v: op(q, k, v, score=relative), None),
              lambda q, k, v: attention(q, k, v, relative),
              lambda q, k, v: flex()(q, k, v, score_mod=relative), inductor=True, aims=_OF_FLEX),
    *(block(*sizes) for sizes in ((56, 64), (28, 128), (14, 256))),
    # A last layer as Llama's of 1 B parameters has it.
    Family("linear_cross_entropy", [(8192, 2048), (128_256, 2048), ("classes", 128_256, (8192, 1))],
           lambda op, x, w, t: op(x, w, t.flatten()), last_layer, last_layer,
           ("liger_fused_linear_cross_entropy", lambda f, x, w, t: f(x, w, t.flatten())), share=False,
           small=[(64, 32), (256, 32), ("classes", 256, (64, 1))], product=True, peak=True,
           aims={"liger": (1.0, 1.0)}),
    Family("matmul", [(64, 1024, 1024)] * 2, lambda op, a, b: op(a, b), torch.bmm, torch.bmm, share=False,
           product=True, label="bmm 64x1024", small=[(2, 16, 16)] * 2),
    convolution("conv1d 4096x256", "conv", F.conv1d, [(32, 4096, 256), (256, 3, 256)],
                [(2, 9, 16), (16, 3, 16)], padding=1),
    convolution("conv3d 16x56x56x64", "conv", F.conv3d, [(4, 16, 56, 56, 64), (64, 3, 3, 3, 64)],
                [(1, 4, 5, 6, 16), (16, 3, 3, 3, 16)], padding=1),
    convolution("depthwise conv 7x7 56x56x256", "conv", F.conv2d, [(32, 56, 56, 256), (256, 7, 7, 1)],
                [(2, 9, 9, 16), (16, 7, 7, 1)], padding=3),
    convolution("conv_transpose 2x2 28x28x256", "conv_transpose", F.conv_transpose2d,
                [(32, 28, 28, 256), (256, 2, 2, 128)], [(2, 5, 5, 16), (16, 2, 2, 8)], stride=2),
    recurrent("lstm", 4),
    recurrent("gru", 3),
)  # fmt: skip
