"""The table of a GPU: every family of ops in bfloat16, at 64 MB and more.

Beside each: torch's own op where there is one, the same unfused in simpler ops, torch.compile with
max-autotune, and Liger-Kernel where it has the op and is installed. Inputs are rotated through more memory
than the L2 cache holds; the calls on all of them are captured in a CUDA graph, whose replays are timed by
events, rivals in turns. What cannot be captured is timed launch by launch, and marked. The share is of the
bandwidth of a copy that is timed in the same way, each input and each output counted once; a backward has
the inputs and the results' gradients for inputs, and the inputs' gradients for outputs. Host time is that
of calls on a few elements.

With ``--tune`` an op is tuned for a row's inputs before the row is measured: some block sizes near those that
were picked, and what was best is what burnt runs. How much better than the picked ones it is, is a column.

On a CPU (``--table gpu --device cpu --quick``) the same is rehearsed with plain timing and small inputs.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib
import importlib.util
import json
import math
import re
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import burnt
from burnt.kernels.clock import NotCapturedError, captured
from burnt.kernels.store import Store
from kernel_table import clock
from kernel_table.cpu import quartiles, say
from kernel_table.report import mark, text_table

RIVALS = ("torch", "unfused", "compile", "liger")
TARGETS = {"torch": 1.5, "unfused": 3.0, "compile": 1.05, "liger": 1.1}
"""Of the geometric mean over the families."""
SHARE, HOST = 0.85, 15.0
RANDOM = ("dropout",)
SMALL = 1 << 12  # elements, about, of the inputs that host time is taken with
_LIGER = "liger_kernel.transformers.functional"
_REPLAYS = 5  # of a graph in a sample

Spec = tuple[int, ...] | tuple[str, int, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Family:
    """An op, its inputs and its rivals.

    Args:
        op: the name in `burnt.kernels`.
        specs: the inputs' shapes; ``("classes", n, shape)`` for integers below n.
        call: of an op and the inputs.
        unfused: the same in simpler ops of torch's.
        torch: torch's own op, if there is one.
        liger: the name in Liger-Kernel's functional module, and how it is called.
        backward: is timed, too, as a row of its own.
        share: whether its bytes say what it has to move.
        label: names its rows; without one, the op does.
        small: shapes for rehearsals and host time; without them, fewer rows.
        product: it multiplies matrices, which the means over what moves memory leave out.
        peak: memory is measured, too: what a call holds at its most, beside its inputs.
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

    def inputs(self, device: torch.device, gradients: bool, divisor: int) -> list[Tensor]:
        made = []
        specs, divisor = (self.small, 1) if self.small and divisor > 1 else (self.specs, divisor)
        for spec in specs:
            if spec[0] == "classes":
                _, classes, shape = spec
                made.append(torch.randint(classes, smaller(shape, divisor), device=device))
                continue
            x = torch.randn(smaller(spec, divisor), device=device, dtype=torch.bfloat16)
            made.append(x.requires_grad_(gradients))
        return made


def smaller(shape: Any, divisor: int) -> tuple[int, ...]:
    """Fewer rows, images or heads; parameters, angles of positions and tables stay."""
    if divisor == 1 or len(shape) == 1 or tuple(shape) in (ANGLES, TABLE):
        return tuple(shape)
    if tuple(shape) == HEADS:
        return (1, 1, 32, shape[3])
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


def attention(q: Tensor, k: Tensor, v: Tensor, score: Callable[..., Tensor] | None = None) -> Tensor:
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    if score is not None:
        b, h, i, j = (torch.arange(n, device=q.device) for n in scores.shape)
        scores = score(scores, b[:, None, None, None], h[:, None, None], i[:, None], j)
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


def own(op: Any, *args: Any) -> Tensor:
    """What our own kernel makes, also where the vendor's is faster."""
    made: Tensor = op.candidates["generated"](*args)
    return made


def channels_first(x: Tensor) -> Tensor:
    """``[batch, height, width, channels]`` as torch names the axes; in memory channels stay last."""
    return x.permute(0, 3, 1, 2)


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


def squares(size: int) -> Family:
    """A matrix product by our own kernel beside torch's library."""
    return Family("matmul", [(size, size)] * 2, own, lambda a, b: a @ b, torch.matmul, share=False,
                  product=True, label=f"matmul {size}, our own", small=[(64, 64)] * 2)  # fmt: skip


def block(size: int, channels: int) -> Family:
    """A convolution with folded batch norm, residual and relu, channels last."""

    def specs(batch: int, size: int) -> list[Spec]:
        images = (batch, size, size, channels)
        return [images, (channels, 3, 3, channels), (channels,), (channels,), images]

    return Family("conv", specs(32, size), conv_block, plain_block, plain_block, share=False, product=True,
                  label=f"conv {size}x{size}x{channels}", small=specs(2, 8))  # fmt: skip


def windows(x: Tensor) -> Tensor:
    return x.unfold(2, 3, 2).unfold(3, 3, 2)


def variance(x: Tensor) -> Tensor:
    wide = x.float()
    return ((wide - wide.mean(-1, keepdim=True)).square().sum(-1) / (x.shape[-1] - 1)).to(x.dtype)


MATRIX, IMAGES, GROUPS = (8192, 4096), (64, 256, 48, 48), 32  # 67 and 75 MB
CHANNELS, WIDE = (256,), (4096,)
ANGLES, TABLE = (2048, 64), (4096, 4096)
HEADS = (4, 32, 4096, 128)
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
    # torch's own is the best backend of its call; with functions of the scores, flex_attention.
    Family("attention", [HEADS] * 3, lambda op, q, k, v: op(q, k, v), attention,
           F.scaled_dot_product_attention, share=False, product=True),
    Family("attention", [HEADS] * 3, lambda op, q, k, v: op(q, k, v, causal=True),
           lambda q, k, v: attention(q, k, v, causal),
           lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), share=False,
           label="attention, causal", product=True),
    Family("attention", [HEADS] * 3, lambda op, q, k, v: op(q, k, v, score=soft_cap),
           lambda q, k, v: attention(q, k, v, soft_cap), lambda q, k, v: flex()(q, k, v, score_mod=soft_cap),
           share=False, label="attention, soft cap beside flex_attention", product=True),
    Family("attention", [HEADS] * 3, lambda op, q, k, v: op(q, k, v, score=relative),
           lambda q, k, v: attention(q, k, v, relative), lambda q, k, v: flex()(q, k, v, score_mod=relative),
           share=False, label="attention, distances beside flex_attention", product=True),
    *(squares(size) for size in (2048, 4096, 8192)),
    Family("linear", [(8192, 4096), (4096, 4096), WIDE], lambda op, x, w, b: op(x, w, b, None, "gelu"),
           lambda x, w, b: gelu(F.linear(x, w, b)), lambda x, w, b: F.gelu(F.linear(x, w, b)), share=False,
           label="linear, bias, gelu", small=[(64, 64), (64, 64), (64,)], product=True),
    *(block(*sizes) for sizes in ((56, 64), (28, 128), (14, 256))),
    # A last layer as Llama's of 1 B parameters has it.
    Family("linear_cross_entropy", [(8192, 2048), (128_256, 2048), ("classes", 128_256, (8192, 1))],
           lambda op, x, w, t: op(x, w, t.flatten()), last_layer, last_layer,
           ("liger_fused_linear_cross_entropy", lambda f, x, w, t: f(x, w, t.flatten())), share=False,
           small=[(64, 32), (256, 32), ("classes", 256, (64, 1))], product=True, peak=True),
)  # fmt: skip


def rivals_of(family: Family, names: Sequence[str]) -> dict[str, Callable[..., Any]]:
    """The rivals that there are, by name; burnt first."""
    kernels = getattr(burnt, "kernels", None)
    if kernels is None:
        ours = burnt.fuse(family.torch or family.unfused)
    else:
        op = getattr(kernels, family.op)
        ours = lambda *inputs: family.call(op, *inputs)  # noqa: E731
    found: dict[str, Callable[..., Any]] = {"burnt": ours}
    if "torch" in names and family.torch is not None:
        found["torch"] = family.torch
    if "unfused" in names:
        found["unfused"] = family.unfused
    if "compile" in names:
        found["compile"] = torch.compile(
            family.torch or family.unfused, mode="max-autotune-no-cudagraphs", dynamic=False
        )
    if "liger" in names and family.liger is not None and importlib.util.find_spec("liger_kernel"):
        name, call = family.liger
        function = getattr(importlib.import_module(_LIGER), name, None)  # not all versions have all of them
        if function is not None:
            found["liger"] = lambda *inputs: call(function, *inputs)
    return found


# --- taking time


Timer = Callable[[], float]


def timer(runs: Sequence[Callable[[], object]], device: torch.device) -> tuple[Timer, bool]:
    """Seconds of one of the calls, taken over all of them; and whether they were captured in a graph."""
    for run in runs:
        run()
    if device.type != "cuda":
        return lambda: clock.sample(lambda: [run() for run in runs], 1).seconds / len(runs), False
    torch.cuda.synchronize()
    replay, captured = captured_or_not(runs)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def take() -> float:
        begin.record()
        for _ in range(_REPLAYS):
            replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3 / _REPLAYS / len(runs)

    take()
    return take, captured


def captured_or_not(runs: Sequence[Callable[[], object]]) -> tuple[Callable[[], object], bool]:
    try:
        return captured(runs).replay, True
    except NotCapturedError as error:
        say(f"    not captured: {error}")
        return lambda: [run() for run in runs], False


def copies(nbytes: int, device: torch.device) -> int:
    """How many sets of inputs are rotated, so that none is found in the cache."""
    if device.type != "cuda":
        return 2
    cache = torch.cuda.get_device_properties(device).L2_cache_size
    return 2 + 2 * cache // nbytes


def copy_bandwidth(device: torch.device, divisor: int, rounds: int) -> float:
    """Bytes per second, read and written."""
    pairs = [torch.randn((2, (1 << 27) // divisor), device=device, dtype=torch.bfloat16) for _ in range(2)]
    take, _ = timer([lambda p=p: p[0].copy_(p[1]) for p in pairs], device)  # type: ignore[misc]
    return pairs[0].nbytes / statistics.median(take() for _ in range(rounds))


def host_microseconds(fn: Callable[..., Any], inputs: Sequence[Tensor]) -> float:
    """Of a call that leaves the device little to do; the device is not waited for."""
    number, taken = 100, []
    for _ in range(7):
        if inputs[0].is_cuda:
            torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(number):
            fn(*inputs)
        taken.append((time.perf_counter() - began) / number * 1e6)
    return statistics.median(taken)


# --- rows


def measure(
    family: Family,
    gradients: bool,
    names: Sequence[str],
    device: torch.device,
    divisor: int,
    rounds: int,
    tune: bool = False,
) -> dict[str, Any]:
    """A row: seconds by rival, ratios, the bytes that have to be moved, host time."""
    first = family.inputs(device, gradients, divisor)
    sets = [first]
    while len(sets) < copies(sum(t.nbytes for t in first), device):
        sets.append(family.inputs(device, gradients, divisor))
    functions = rivals_of(family, names)
    gain = tuned(functions["burnt"], first) if tune else None
    timers: dict[str, Timer] = {}
    made: dict[str, list[Tensor]] = {}
    result: dict[str, Any] = {"rivals": {}, "launched": [], "errors": {}}
    if gain is not None:
        result["tuned"] = gain
    for name, fn in functions.items():
        try:
            made[name] = [t.detach().float() for t in clock.flat(fn(*first)) if t.is_floating_point()]
            if family.op not in RANDOM and not alike(made[name], made.get("burnt", made[name])):
                raise ValueError("its results are not those of burnt")
            runs = [clock.runner(fn, inputs, gradients) for inputs in sets]
            timers[name], captured = timer(runs, device)
        except Exception as error:  # of any kind: one that fails is a row's news, and no end of the table
            say(f"    {name}: {type(error).__name__}: {error}")
            result["errors"][name] = f"{type(error).__name__}: {str(error)[:300]}"
            continue
        if not captured:
            result["launched"].append(name)
    samples: dict[str, list[float]] = {name: [] for name in timers}
    for _ in range(rounds):
        for name, take in timers.items():
            samples[name].append(take())
    seconds = {name: statistics.median(taken) for name, taken in samples.items()}
    if "burnt" in seconds:
        results = clock.flat(functions["burnt"](*first))
        once = sum(t.nbytes for t in first) + sum(t.nbytes for t in results)
        wanted = sum(t.nbytes for t in first if t.requires_grad)
        result["bytes"] = 2 * once + wanted if gradients else once
        result["seconds"] = seconds["burnt"]
        result["quartiles"] = quartiles(samples["burnt"])
        result["rivals"] = {n: s / seconds["burnt"] for n, s in seconds.items() if n != "burnt"}
        small = family.inputs(device, gradients, max(divisor, first[0].numel() // SMALL, 2))
        if family.peak and device.type == "cuda":
            ways = {n: clock.runner(fn, first, gradients) for n, fn in functions.items() if n in seconds}
            result["peak_mb"] = {name: peak(run) for name, run in ways.items()}
        result["host_us"] = host_microseconds(functions["burnt"], small)
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    return result


def peak(run: Callable[[], object]) -> float:
    """Megabytes that a call holds at its most, beside what is there before it."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 1e6


def tuned(fn: Callable[..., Any], inputs: Sequence[Tensor]) -> dict[str, Any] | None:
    """Tune the ops that a call makes: milliseconds of the picked sizes and of the best, what failed."""
    before = set(burnt.kernels.choices())
    with burnt.kernels.tuning("quick"):
        try:
            fn(*inputs)
        except Exception as error:  # of any kind: the row is measured all the same, and says more
            say(f"    not tuned: {type(error).__name__}: {error}")
            return None
    keys = [key for key in burnt.kernels.choices() if key not in before]
    rows = [row for key in keys for row in Store().rows(key)]
    picked = [row.ms for row in rows if row.config == "generated" and row.ms is not None]
    if not picked:
        return None
    best = min((row for row in rows if row.ms is not None), key=lambda row: row.ms or 0)
    bad = [f"{row.config}: {row.status}: {row.note}" for row in rows if row.status != "ok"]
    return {"picked_ms": picked[0], "best_ms": best.ms, "best": best.config, "tried": len(rows), "bad": bad}


def alike(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Within some roundings of bfloat16: that both compute the same, no more."""
    pairs = zip(found, expected, strict=True)
    return all(a.shape == b.shape and (a - b).abs().max() <= 0.05 * b.abs().max() for a, b in pairs)


def line(name: str, row: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    if "seconds" not in row:
        return [name, "failed", "", *["" for _ in names], "", ""]
    ratios = [
        f"{row['rivals'][n]:.2f}" if n in row["rivals"] else row["errors"].get(n, "-")[:20] for n in names
    ]
    launched = "*" if "burnt" in row["launched"] else ""
    share = f"{row['share']:.0%} {mark(row['share'] >= SHARE)}" if "share" in row else "-"
    host = f"{row['host_us']:.1f} {mark(row['host_us'] <= HOST)}"
    gain = row.get("tuned")
    better = "-" if gain is None else f"{gain['picked_ms'] / gain['best_ms']:.2f}"
    return [name, f"{row['seconds'] * 1e3:.3f}{launched}", share, *ratios, host, better]


def means(rows: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> dict[str, float]:
    """Geometric means of the ratios, over the rows of what moves memory that have a rival."""
    found = {}
    for name in names:
        ratios = [r["rivals"][name] for r in rows.values() if name in r["rivals"] and not r["product"]]
        if ratios:
            found[name] = math.exp(statistics.fmean(map(math.log, ratios)))
    return found


def run(options: argparse.Namespace) -> None:
    """Measure all rows that are asked for; results are written after each, in case time runs out.

    Raises:
        SystemExit: an op of burnt's failed.
    """
    device, names = options.device, options.rivals
    divisor, rounds = (1024, 2) if options.quick else (1, 15)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    began = time.monotonic()
    copy = copy_bandwidth(device, divisor, 3 * rounds)
    results: dict[str, Any] = {
        "device": burnt.device_info(device).name,
        "torch": torch.__version__,
        "quick": options.quick,
        "copy_gb_s": copy / 1e9,
        "targets": {**TARGETS, "share": SHARE, "host_us": HOST},
        "rows": {},
    }
    rows = [
        (family, gradients) for family in FAMILIES for gradients in ((False, True)[: 1 + family.backward])
    ]
    for family, gradients in rows:
        name = (family.label or family.op) + (" fwd+bwd" if gradients else "")
        if not re.search(options.rows, name):
            continue
        if time.monotonic() - began > options.seconds:
            results["left_out"] = [*results.get("left_out", []), name]
            continue
        say(f"  {name}")
        row = measure(family, gradients, names, device, divisor, rounds, options.tune)
        if "seconds" in row and family.share:
            row["share"] = row["bytes"] / row["seconds"] / copy
        row["product"] = family.product
        results["rows"][name] = row
        results["means"] = means(results["rows"], names)
        if options.json:
            options.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    report(results, names)
    if any("burnt" in row["errors"] for row in results["rows"].values()):
        raise SystemExit("an op of burnt's failed; see above")


def report(results: Mapping[str, Any], names: Sequence[str]) -> None:
    print(f"{results['device']}, torch {results['torch']}, copy {results['copy_gb_s']:.0f} GB/s, bfloat16")
    head = ["", "burnt ms", "of copy", *(f"x {name}" for name in names), "host us", "x picked"]
    found = results.get("means", {})
    mean = [
        f"{found[n]:.2f} / {TARGETS[n]:g} {mark(found[n] >= TARGETS[n])}" if n in found else "-"
        for n in names
    ]
    lines = [line(name, row, names) for name, row in results["rows"].items()]
    print(text_table([head, *lines, ["geometric mean", "", "", *mean, "", ""]]))
    print("* not captured in a graph; the mean is over what moves memory, without products of matrices")
    for name, row in results["rows"].items():
        if "peak_mb" in row:
            used = ", ".join(f"{rival} {megabytes:.0f} MB" for rival, megabytes in row["peak_mb"].items())
            print(f"memory of {name}: {used}")
    if results.get("left_out"):
        print(f"left out for want of time: {', '.join(results['left_out'])}")
