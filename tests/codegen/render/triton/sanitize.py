"""Run generated kernels under triton-viz's sanitizer, which finds out-of-bounds accesses symbolically.

``TRITON_INTERPRET=1 python -m tests.codegen.render.triton.sanitize`` runs all of them; with ``--broken NAME``
one whose masks are removed, which the sanitizer must report.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
import triton_viz
from torch import Tensor
from triton_viz.clients import Sanitizer

from burnt.codegen.function import Function
from burnt.codegen.render.triton import device_math
from burnt.codegen.runtime import triton_launch
from burnt.codegen.runtime.target import Target
from burnt.codegen.runtime.triton_backend import TRITON
from burnt.kernels import lstm_layer
from burnt.kernels.ops.attention import flash_triton
from burnt.kernels.ops.attention.flash_config import FlashConfig
from burnt.kernels.ops.attention.flash_triton import Problem
from burnt.kernels.ops.embedding import backward_triton
from burnt.kernels.ops.rnn import layer, loop_triton
from burnt.kernels.optim import foreach, foreach_triton, steps


def products(target: Target) -> Target:
    """Return the target with a kernel for every matmul."""
    return dataclasses.replace(target, why_torch_matmul=lambda node: None)


def gelu_of_linear(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b))


def convolved(x: Tensor, w: Tensor) -> Tensor:
    return torch.relu(F.conv2d(x, w, padding=1))


# A function and the shapes of its arguments; run with gradients if the name contains "backward".
CASES: dict[str, tuple[Any, ...]] = {
    "gelu": (lambda x: 0.5 * x * (1 + torch.erf(x * 0.5**0.5)), (37, 13)),
    "softmax": (lambda x: torch.softmax(x, -1), (5, 70)),
    "layer_norm": (lambda x, w: F.layer_norm(x, (x.shape[-1],), w), (7, 50), (50,)),
    "transposed": (lambda x, y: x.t() + y, (33, 20), (20, 33)),
    "padded": (lambda x: F.pad(x, (1, 2)).relu(), (5, 7)),
    "columns": (lambda x: x.sum(0), (70, 20)),
    "few rows": (lambda x: x.var(-1), (2, 40_000)),
    "rope": (lambda x, c: torch.cat([x[..., :4] * c, x[..., 4:] * c], -1), (3, 5, 8), (5, 4)),
    "gelu, backward": (lambda x: F.gelu(x), (37, 13)),
    "softmax, backward": (lambda x: torch.softmax(x, -1), (5, 70)),
    "layer_norm, backward": (lambda x, w: F.layer_norm(x, (x.shape[-1],), w), (7, 50), (50,)),
    "max_pool, backward": (lambda x: F.max_pool2d(x, 3, 2, 1), (2, 3, 9, 7)),
    "linear and gelu": (gelu_of_linear, (37, 50), (33, 50), (33,)),
    "linear and gelu, backward": (gelu_of_linear, (37, 50), (33, 50), (33,)),
    "convolution": (convolved, (2, 16, 9, 7), (24, 16, 3, 3)),
}
# Cases in which the sanitizer misses a removed mask, so a pass proves nothing.
BLIND = {
    "linear and gelu": "it does not follow loads and stores in functions passed to a kernel",
    "convolution": "it does not follow loads and stores in functions passed to a kernel",
}


def attention() -> None:
    q, k, v = (torch.randn(1, 2, 19, 16) for _ in range(3))
    flash_triton.forward(q, k, v, Problem(0.25), {"forward": FlashConfig(16, 16, 4, 1)})


def recurrent() -> None:
    args = [torch.randn(s) for s in ((2, 3, 5), (4 * 7, 5), (4 * 7, 7))]
    lstm_layer.candidates["steps"](*args, None, None, None, None, None, False)


def optimized() -> None:
    p, g = [torch.randn(31, 17)], [torch.randn(31, 17)]
    steps.sgd_step(p, g, lr=0.1, max_norm=1.0, candidate="burnt")


def summed() -> None:
    keys, order = torch.sort(torch.randint(9, (61,)), stable=True)
    backward_triton.sum_rows_by_key(torch.randn(61, 5), keys, order, 9, -1)


# Hand-written kernels: their module, their names and what launches them.
WRITTEN: dict[str, tuple[Any, tuple[str, ...], Callable[[], None]]] = {
    "attention": (flash_triton, ("forward_kernel",), attention),
    "lstm": (loop_triton, ("forward_cell",), recurrent),
    "optimizer step": (foreach_triton, ("squares", "finish"), optimized),
    "embedding, backward": (backward_triton, ("add_runs",), summed),
}


def sanitized(kernel: Any) -> Any:
    return triton_viz.trace(client=Sanitizer(abort_on_error=True))(kernel)


def run_sanitized(name: str, run: Callable[[], Any]) -> None:
    """Run a case with sanitized kernels; the process ends if one accesses memory outside."""
    try:
        run()
    except Exception as error:  # the sanitizer raises arbitrary errors for what it does not support
        print(f"{name}: the sanitizer gives up: {type(error).__name__}: {str(error).splitlines()[0][:150]}")
    else:
        print(f"{name}: not checked: {BLIND[name]}" if name in BLIND else f"{name}: nothing outside")


def generated(fn: Callable[..., Tensor], shapes: Sequence[tuple[int, ...]], gradients: bool) -> None:
    args = [torch.randn(shape, requires_grad=gradients) for shape in shapes]
    result = Function(fn, target=products(TRITON))(*args)
    if gradients:
        torch.autograd.grad(result, args, torch.randn_like(result))


def main() -> None:
    original_load = triton_launch.load
    broken = sys.argv[2] if sys.argv[1:2] == ["--broken"] else None
    traced: dict[str, dict[str, object]] = {}

    def load(text: str) -> dict[str, object]:
        """Return the functions of a text, those to launch sanitized: they exit if an access is outside."""
        if broken is not None:
            text = re.sub(r", mask=in_\w+( & in_\w+)*(, other=0)?", "", text)
        text = re.sub(r"tl\.reduce\((.*), ([01]), \w+(, keep_dims=True)?\)", r"tl.max(\1, \2\3)", text)
        if text not in traced:
            space = original_load(text)
            # The sanitizer cannot trace functions that inspect a dtype, nor reductions with custom functions.
            # Addresses do not depend on their results.
            imported = {name for name in vars(device_math) if name in space and name[0] != "_"}
            space |= dict.fromkeys(imported - {"tl", "triton"}, lambda a, *_: a)
            # Functions that a matmul kernel calls are checked with it.
            for name in re.findall(r"^def (\w+(?<!_left)(?<!_right)(?<!_epilogue))\(", text, re.M):
                space[name] = sanitized(space[name])
            traced[text] = space
        return traced[text]

    triton_viz.config.enable_sanitizer = True
    triton_launch.load = load  # type: ignore[assignment]
    for name, (fn, *shapes) in CASES.items():
        if broken in (None, name):
            run_sanitized(name, functools.partial(generated, fn, shapes, "backward" in name))
    if broken is not None:
        return
    foreach.HostPasses = foreach_triton.DevicePasses  # type: ignore[assignment,misc]
    layer._loop_module = lambda x: loop_triton  # type: ignore[assignment]
    layer._compute_dtype = lambda x: x.dtype
    for name, (module, kernels, run) in WRITTEN.items():
        for kernel in kernels:
            setattr(module, kernel, sanitized(getattr(module, kernel)))
        with torch.no_grad():
            run_sanitized(name, run)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
