"""Calls of ops and fused functions for which it must be known whether torch's own kernels are faster."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt import kernels

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def empty(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> Tensor:
    """A tensor whose memory is never touched."""
    return torch.empty(shape, dtype=dtype, requires_grad=grad)


def op_calls() -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """Yield a label, an op and all its arguments."""
    for name, op, args in _op_calls():
        tensors = [a for a in args if isinstance(a, Tensor)]
        shown = [
            f"{'grad ' if a.requires_grad else ''}{str(a.dtype)[6:]}{list(a.shape)}"
            f"{'' if a.is_contiguous() else a.stride()}"
            if isinstance(a, Tensor)
            else str(a)
            for a in args
        ]
        assert tensors
        yield f"{name}({', '.join(shown)})", op, tuple(op.bind(args, {}))


def _op_calls() -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    k = kernels
    both = (False, True)
    for grad, dtype, row in itertools.product(both, FLOATS, (8, 16, 511, 512)):
        x = empty(4096, row, dtype=dtype, grad=grad)
        for op in (k.reduce_sum, k.reduce_mean, k.reduce_max, k.reduce_min):
            for dim in (-1, [1], 0, [0, 1]):
                yield op.name, op, (x, dim)
    shapes = [(65536, n) for n in (8, 16, 127, 128, 255, 256, 1000, 1024)]
    shapes += [(100, 4000), (64, 100, 65), (8, 200, 64), (3, 300, 400), (1024,)]
    for grad, dtype, shape in itertools.product(both, FLOATS, shapes):
        x = empty(*shape, dtype=dtype, grad=grad)
        for op in (k.softmax, k.log_softmax):
            for dim in range(-1, len(shape) - 1):
                yield op.name, op, (x, dim, None)
            yield op.name, op, (x, -1, torch.float64)
            yield op.name, op, (x, -1, x.dtype)
            if len(shape) > 1:
                yield op.name, op, (x.transpose(0, 1), -1, None)
    for grad, dtype, shape in itertools.product(both, FLOATS, [(1024, 1024), (10, 10), (300, 400)]):
        x = empty(*shape, dtype=dtype, grad=grad)
        yield "cumprod", k.cumprod, (x, 0, None)
        yield "cumsum", k.cumsum, (x, 0, None)
        yield "silu", k.silu, (x,)
        yield "relu2", k.relu2, (x,)
        for kind in ("none", "tanh"):
            yield "gelu", k.gelu, (x, kind)
            yield "geglu", k.geglu, (x, None, kind)
            yield "geglu", k.geglu, (x, empty(*shape, dtype=dtype), kind)
            yield "geglu", k.geglu, (x, empty(*shape, dtype=dtype, grad=True), kind)
        yield "swiglu", k.swiglu, (x, None)
        yield "swiglu", k.swiglu, (x, empty(*shape, dtype=dtype, grad=True))
    yield from _norm_calls()
    yield from _matmul_calls()
    for probabilities, dtype, grad, size in itertools.product(both, FLOATS, both, (100, 1000)):
        logits = empty(512, size, dtype=dtype, grad=grad)
        target = empty(512, size, dtype=dtype) if probabilities else torch.zeros(512, dtype=torch.int64)
        for weight in (None, empty(size, dtype=dtype)):
            yield "cross_entropy", k.cross_entropy, (logits, target, weight)
    for dtype, grad, count in itertools.product(FLOATS, both, (100, 511, 512, 5000)):
        table = empty(1000, 256, dtype=dtype, grad=grad)
        yield "embedding", k.embedding, (torch.zeros(count, dtype=torch.int64), table, None)
    for dtype, grad, shape, size in itertools.product(
        FLOATS, both, [(2, 64, 56, 56), (64, 4096), (2, 3, 200)], (1, 7, 8, [7], [1], [7, 8], [1, 1])
    ):
        axes = len(shape) - 2 if len(shape) > 2 else 1
        if isinstance(size, int) or len(size) in (1, axes):
            yield "adaptive_avg_pool", k.adaptive_avg_pool, (empty(*shape, dtype=dtype, grad=grad), size)
            yield "adaptive_max_pool", k.adaptive_max_pool, (empty(*shape, dtype=dtype, grad=grad), size)


def _norm_calls() -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    k = kernels
    for dtype, grads, fused, shape in itertools.product(
        FLOATS, ("", "x", "w"), ("", "r", "a", "ra"), [(8, 64, 40, 40), (2048, 64), (2, 16, 300), (8, 4)]
    ):
        x = empty(*shape, dtype=dtype, grad=grads == "x")
        residual = empty(*shape, dtype=dtype) if "r" in fused else None
        activation = "silu" if "a" in fused else None
        for wide in (False, True):
            param = torch.float32 if wide and dtype.itemsize == 2 else dtype
            last = [empty(shape[-1], dtype=param, grad=grads == "w") for _ in range(2)]
            by_channel = [empty(shape[1], dtype=param, grad=grads == "w") for _ in range(2)]
            end = (1e-5, residual, activation)
            yield "layer_norm", k.layer_norm, (x, *last, *end)
            yield "layer_norm", k.layer_norm, (x, None, None, *end)
            yield "rms_norm", k.rms_norm, (x, last[0], *end)
            yield "group_norm", k.group_norm, (x, 2, *by_channel, *end)
            inputs = [x, x.to(memory_format=torch.channels_last)] if x.dim() == 4 else [x]
            inputs += [empty(shape[1], shape[0], dtype=dtype).t()] if x.dim() == 2 else []
            for y in inputs:
                yield "batch_norm_training", k.batch_norm_training, (y, *by_channel, *end)
                yield "batch_norm_inference", k.batch_norm_inference, (y, *by_channel, *by_channel, *end)


def _matmul_calls() -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    k = kernels
    for dtype, grad, fused in itertools.product(FLOATS, (False, True), ("", "r", "a", "s")):
        x, weight = empty(300, 400, dtype=dtype, grad=grad), empty(200, 400, dtype=dtype)
        residual = empty(300, 200, dtype=dtype) if fused == "r" else None
        activation = "gelu" if fused == "a" else None
        yield "linear", k.linear, (x, weight, None, residual, activation)
        yield "matmul", k.matmul, (x, weight.t())
        yield "bmm", k.bmm, (x[None], weight.t()[None])
        image, kernel = empty(2, 8, 100, 100, dtype=dtype), empty(8, 8, 3, 3, dtype=dtype, grad=grad)
        scale = empty(8, dtype=dtype) if fused == "s" else None
        residual = empty(2, 8, 98, 98, dtype=dtype) if fused == "r" else None
        yield "conv", k.conv, (image, kernel, None, scale, residual, activation)
        yield "conv_transpose", k.conv_transpose, (image, kernel, None, activation)
        q = empty(2, 4, 128, 64, dtype=dtype, grad=grad)
        mask = torch.ones(128, 128, dtype=torch.bool)
        seed = torch.zeros((), dtype=torch.int64)
        for options in ((), (mask,), (None, None, 0), (mask, 5, 5, True, 0.5, 3.0)):
            yield "dot_product_attention", k.dot_product_attention, (q, q, q, *options)
        dropped = (None,) * 3 + (False,) + (None,) * 6 + (0.5, seed)
        yield "dot_product_attention", k.dot_product_attention, (q, q, q, *dropped)


def fused_calls() -> Iterator[tuple[str, Callable[..., Any], tuple[Tensor, ...]]]:
    """Yield a label, a function that is one call of torch's, and its arguments."""
    functions: dict[str, Callable[[Tensor], Any]] = {
        "log_softmax": lambda x: F.log_softmax(x, -1),
        "softmax": lambda x: F.softmax(x, -1),
        "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
        "sum": lambda x: x.sum(-1),
        "sum of axis 0": lambda x: x.sum(0),
        "mean": lambda x: x.mean(-1),
        "cummax": lambda x: torch.cummax(x, -1)[0],
        "cummin of axis 0": lambda x: torch.cummin(x, 0)[0],
        "gelu": lambda x: F.gelu(x),
        "gelu, tanh": lambda x: F.gelu(x, approximate="tanh"),
    }
    for (name, fn), dtype, row in itertools.product(
        functions.items(), (torch.float32, torch.bfloat16, torch.float16), (15, 100, 600)
    ):
        x = empty(-(-70000 // row), row, dtype=dtype)
        yield f"{name} {str(dtype)[6:]} {row}", fn, (x,)
    yield "log_softmax, small", functions["log_softmax"], (empty(10, 100),)
    yield "log_softmax, strided", functions["log_softmax"], (empty(200, 1000).t(),)
    labels = torch.zeros(1000, dtype=torch.int64)
    for row in (10, 100, 1000):
        yield f"cross_entropy {row}", F.cross_entropy, (empty(1000, row), labels)


def pooling_calls() -> Iterator[tuple[str, Callable[..., Any], tuple[Tensor, ...]]]:
    """Yield a label, a function with one pooling node, and its arguments."""
    for row, size, stride, dilation in itertools.product((100, 191, 200, 500), (2, 3, 4), (1, 2, 3), (1, 2)):
        x, setting = empty(1, 2, 20, row, grad=True), (size, stride, 0, dilation)
        pool = functools.partial(_gradient, lambda x, setting=setting: F.max_pool2d(x, *setting))
        yield f"max_pool2d gradient {row} {setting}", pool, (x,)
    pools = {"max": F.adaptive_max_pool2d, "avg": F.adaptive_avg_pool2d, "indices": _pool_with_indices}
    for row, size, (name, fn) in itertools.product((20, 192, 240), (1, 2, 7, 10), pools.items()):
        x, pool = empty(1, 2, 240, row, grad=True), functools.partial(_second_argument, fn, size)
        yield f"adaptive {name} {row} to {size}", pool, (x.detach(),)
        if name != "indices":
            yield f"adaptive {name} gradient {row} to {size}", functools.partial(_gradient, pool), (x,)


def _second_argument(fn: Callable[..., Any], size: int, x: Tensor) -> Any:
    return fn(x, size)


def _pool_with_indices(x: Tensor, size: int) -> Any:
    return F.adaptive_max_pool2d(x, size, return_indices=True)


def _gradient(fn: Callable[[Tensor], Tensor], x: Tensor) -> Any:
    y = fn(x)
    return torch.autograd.grad(y, x, torch.ones_like(y))
