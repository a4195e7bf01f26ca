"""What has never run on a GPU, first: hand-written kernels and templates, each case in a process of its own.

    python -m tests.gpu.first --device cuda                # next to float64; 20 s a case, 8 at once
    python -m tests.gpu.first --device null -k "flash|adam"  # launched through the null driver alone

A case that crashes, hangs or leaves the device in an error state costs only itself. Results are printed as
they come, and appended to `--json` as one line each. The exit code is 0 if no case failed.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import importlib
import json
import multiprocessing
import re
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from burnt import kernels
from burnt.kernels.ops.matmul_gpu import run_launches
from burnt.scheme import VALUES
from tests.null import driver

__all__ = ["CASES", "Case", "NotApplicableError", "Result", "check", "run"]


class NotApplicableError(Exception):
    """A configuration that a kernel does not have; the message says why."""


class Case(NamedTuple):
    """One computation, three times: by the kernel, by eager torch, and in float64. None of them is given."""

    ours: Callable[[], Sequence[Tensor]]
    theirs: Callable[[], Sequence[Tensor]]
    exact: Callable[[], Sequence[Tensor]]


@dataclasses.dataclass(frozen=True)
class Result:
    """What came of a case: ``"passed"``, ``"failed"``, ``"not applicable"`` or ``"not begun"``, and why.

    `digest` is that of the machine code of its kernels, where they are NVIDIA's.
    """

    name: str
    outcome: str
    seconds: float
    detail: str = ""
    digest: str | None = None


def drawn(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers in float64, the same on every device."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- matrix products: the template with generated prologues and epilogues -------------------------------

CONFIGS = {
    "picked": {},
    "persistent": {"programs": 132},
    "descriptors": {"descriptors": True},
    "persistent, descriptors": {"programs": 132, "descriptors": True},
    "split": {"split": 2},
}


def product(name: str, changes: dict[str, Any], device: torch.device, *, offset: int = 0) -> Case:
    """A matmul of `tests/codegen/render/triton/test_products.py`; its first argument begins at `offset`."""
    from burnt.codegen.function import Function
    from burnt.codegen.render.triton.matmul_config import HOPPER, MatmulStructure
    from burnt.codegen.render.triton.source import select_config
    from burnt.codegen.runtime.triton_backend import TRITON
    from burnt.codegen.runtime.triton_launch import build
    from tests.codegen.render.triton.test_products import CASES as PRODUCTS

    fn, args = PRODUCTS[name]
    given = [a.to(device) for a in args]
    if offset:
        first = given[0]
        given[0] = first.new_empty(first.numel() + offset)[offset:].view(first.shape).copy_(first)

    refused: list[str] = []  # an exception would make the function run as plain torch

    def choose(form: Any) -> Any:
        config = select_config(form, HOPPER)
        if not isinstance(form, MatmulStructure):
            return config
        if changes.get("descriptors") and form.num_tma_operands < 2:
            refused.append("an operand does not lie in memory as a tensor descriptor can describe")
        return dataclasses.replace(config, **changes)

    target = dataclasses.replace(
        TRITON, why_torch_matmul=lambda node: None, build=lambda *a, **k: build(*a, choose=choose, **k)
    )

    def listed(result: Any) -> Sequence[Tensor]:
        return result if isinstance(result, tuple) else (result,)

    def ours() -> Sequence[Tensor]:
        function = Function(fn, target=target)
        result = listed(function(*given))
        if refused:
            raise NotApplicableError(refused[0])
        why = function.fallback_reason(*given)
        if why is not None:
            raise AssertionError(f"it ran as eager torch, which would be compared with itself: {why}")
        return result

    return Case(ours, lambda: listed(fn(*given)), lambda: listed(fn(*[a.double() for a in given])))


# --- attention ------------------------------------------------------------------------------------------


def flash(size: int, options: dict[str, Any], dtype: torch.dtype, device: torch.device) -> Case:
    """Flash attention and its gradients; 517 queries and keys are not a multiple of a block."""
    from burnt.codegen.render.triton.matmul_config import HOPPER
    from burnt.kernels.ops.attention import flash_triton
    from burnt.kernels.ops.attention.flash import make_problem
    from burnt.kernels.ops.attention.flash_config import select_config

    definition = kernels.dot_product_attention.reference
    shapes = (2, 8, 517, size), (2, 2, 517, size), (2, 2, 517, size), (2, 8, 517, size)
    q, k, v, grad_out = (drawn(*s, seed=i).to(device, dtype) for i, s in enumerate(shapes))
    options = dict(options)
    in_order = options.pop("in_order", False)
    if "mask" in options:
        options["mask"] = (drawn(*options["mask"], seed=5) > -1).to(device)
    if "lengths" in options:
        options["lengths"] = torch.tensor(options["lengths"], device=device)

    def ours() -> Sequence[Tensor]:
        torch.use_deterministic_algorithms(in_order, warn_only=True)  # otherwise dq is added to in any order
        problem = make_problem(q, k, **options)
        blocks = select_config(size, dtype.itemsize, HOPPER, has_score=problem.score is not None)
        out, lse = flash_triton.forward(q, k, v, problem, blocks)
        found = flash_triton.backward(grad_out, q, k, v, out, lse, problem, blocks)
        return [out, *(t for t in found if t is not None)]

    def by_definition(dtype: torch.dtype) -> Sequence[Tensor]:
        leaves = [t.to(dtype).requires_grad_() for t in (q, k, v)]
        out = definition(*leaves, **options)
        return [out.detach(), *torch.autograd.grad(out, leaves, grad_out.to(dtype))]

    return Case(ours, lambda: by_definition(dtype), lambda: by_definition(torch.float64))


# --- optimizer steps, embedding, recurrent layers -------------------------------------------------------


RATE, MAX_NORM = 0.01, 1.0
STEPS: dict[str, tuple[Callable[..., Any], Callable[..., torch.optim.Optimizer]]] = {
    "adamw": (
        lambda p, g, state: kernels.adamw_step(
            p, g, state[0], state[1], state[2], lr=RATE, max_norm=MAX_NORM, candidate="burnt"
        ),
        lambda p: torch.optim.AdamW(p, lr=RATE),
    ),
    "sgd": (
        lambda p, g, state: kernels.sgd_step(
            p, g, [None] * len(p), lr=RATE, max_norm=MAX_NORM, candidate="burnt"
        ),
        lambda p: torch.optim.SGD(p, lr=RATE),
    ),
    "sgd, momentum": (
        lambda p, g, state: kernels.sgd_step(
            p, g, state[0], lr=RATE, momentum=0.9, max_norm=MAX_NORM, candidate="burnt"
        ),
        lambda p: torch.optim.SGD(p, lr=RATE, momentum=0.9),
    ),
    "muon": (
        lambda p, g, state: kernels.muon_step(p, g, state[0], lr=RATE, max_norm=MAX_NORM, candidate="burnt"),
        lambda p: torch.optim.Muon(p, lr=RATE),
    ),
}


def optimizer(kind: str, dtype: torch.dtype, device: torch.device) -> Case:
    """Two steps with clipping: tensors that are read 16 bytes at once, and one that does not begin there."""
    step, torchs_own = STEPS[kind]
    if kind == "muon":
        begin = [drawn(*s, seed=i).to(device, dtype) for i, s in enumerate([(256, 384), (33, 7)])]
        return optimizer_case(step, torchs_own, begin)
    shapes = (1024, 1024), (1 << 20,), (1027,), (3, 5)
    begin = [drawn(*s, seed=i).to(device, dtype) for i, s in enumerate(shapes)]
    begin.append(drawn(4099, seed=9).to(device, dtype)[3:])
    return optimizer_case(step, torchs_own, begin)


def optimizer_case(step: Any, torchs_own: Any, begin: list[Tensor]) -> Case:
    """Two steps from these parameters; a view keeps its place within its storage."""
    grads = [[drawn(*p.shape, seed=20 + 10 * t + i).to(p) for i, p in enumerate(begin)] for t in range(2)]

    def ours() -> Sequence[Tensor]:
        params = []
        for p in begin:
            storage = p.new_empty(p.storage_offset() + p.numel())
            params.append(storage[p.storage_offset() :].view(p.shape).copy_(p))
        state: list[Any] = [[torch.zeros_like(p) for p in params] for _ in range(2)]
        state.append([torch.zeros((), device=p.device) for p in params])
        for given in grads:
            done = step(params, given, state)
            if not done.by.startswith("burnt"):
                raise AssertionError(f"the step was torch's: {done.by}")
        return params

    def torchs(dtype: torch.dtype) -> Sequence[Tensor]:
        params = [torch.nn.Parameter(p.to(dtype)) for p in begin]
        optimizer = torchs_own(params)
        for given in grads:
            for p, g in zip(params, given, strict=True):
                p.grad = g.to(dtype)
            torch.nn.utils.clip_grad_norm_(params, MAX_NORM)
            optimizer.step()
        return [p.detach() for p in params]

    return Case(ours, lambda: torchs(begin[0].dtype), lambda: torchs(torch.float64))


def embedding(dtype: torch.dtype, device: torch.device) -> Case:
    """The gradient of a table of which one row is asked for by half of the indices."""
    from burnt.kernels.ops.embedding.backward_triton import sum_rows_by_key

    count, rows, columns = 5000, 997, 770
    indices = torch.arange(count) * 7919 % rows
    indices[::2] = rows // 2
    indices = indices.to(device)
    grad_out = drawn(count, columns).to(device, dtype)

    def ours() -> Sequence[Tensor]:
        keys, order = torch.sort(indices, stable=True)
        return [sum_rows_by_key(grad_out, keys, order, rows, -1)]

    def theirs() -> Sequence[Tensor]:
        return [torch.ops.aten.embedding_dense_backward(grad_out, indices, rows, -1, False)]

    def exact() -> Sequence[Tensor]:
        zeros = torch.zeros(rows, columns, dtype=torch.float64, device=device)
        return [zeros.index_add_(0, indices, grad_out.double())]

    return Case(ours, theirs, exact)


def recurrent(kind: str, width: int, dtype: torch.dtype, device: torch.device) -> Case:
    """A layer and its gradients: few hidden units take all steps in one program, many a kernel a step."""
    op: Any = kernels.lstm_layer if kind == "lstm" else kernels.gru_layer
    batch, steps, features, gates = 19, 7, 24, 4 if kind == "lstm" else 3
    rows = gates * width
    tensors: list[Any] = [drawn(batch, steps, features), drawn(rows, features, seed=1) * features**-0.5]
    tensors += [drawn(rows, width, seed=2) * width**-0.5, drawn(rows, seed=3), drawn(rows, seed=4)]
    tensors += [drawn(batch, width, seed=5 + i) for i in range(2 if kind == "lstm" else 1)]
    tensors = [t.to(device, dtype) for t in tensors]

    def outcome(call: Any, dtype: torch.dtype) -> Sequence[Tensor]:
        leaves = [t.to(dtype).requires_grad_() for t in tensors]
        results = call(*leaves, None, False)
        results = [r for r in results if r.requires_grad]
        grads = [drawn(*r.shape, seed=30 + i).to(r) for i, r in enumerate(results)]
        return [*(r.detach() for r in results), *torch.autograd.grad(results, leaves, grads)]

    return Case(
        lambda: outcome(op.candidates["steps"], dtype),
        lambda: outcome(op.reference, dtype),
        lambda: outcome(op.reference, torch.float64),
    )


# --- quantized ops --------------------------------------------------------------------------------------


def quantized_linear(
    rows: int, value: str, block: int, zero: bool, dtype: torch.dtype, device: torch.device
) -> Case:
    """A quantized weight of 1,000 rows of 1,056 columns, with the block sizes that the heuristic selects."""
    from burnt.kernels.ops.quantized.quantize import quantized_example
    from burnt.kernels.ops.quantized.weight_only import LinearArguments
    from burnt.kernels.ops.quantized.weight_only_config import select_config, structure_of
    from burnt.kernels.ops.quantized.weight_only_triton import launches

    torch.manual_seed(0)
    values, scale, zero_point = quantized_example(device, 1000, 1056, value, block, zero)
    x, bias = drawn(rows, 1056).to(device, dtype), drawn(1000, seed=1).to(device, dtype)
    arguments = LinearArguments(x, values, scale, zero_point, bias, "silu", value, block)
    structure = structure_of(rows, 1000, 1056, VALUES[value].per_byte, dtype.itemsize)
    config = select_config(structure, block)

    def by_definition(dtype: torch.dtype) -> Sequence[Tensor]:
        wide = scale.double() if dtype == torch.float64 else scale
        return [
            kernels.quantized_linear.reference(
                x.to(dtype), values, wide, zero_point, bias.to(dtype), "silu", value, block
            )
        ]

    return Case(
        lambda: [run_launches(*launches(arguments, config))],
        lambda: by_definition(dtype),
        lambda: by_definition(torch.float64),
    )


def scaled_linear(rows: int, value: str, out: str, device: torch.device) -> Case:
    """Quantized inputs and weights; requantized results are compared as numbers, and are equal."""
    from burnt.codegen.render.triton.matmul_config import select_config
    from burnt.device import device_info
    from burnt.kernels.ops.quantized.quantize import quantized_example
    from burnt.kernels.ops.quantized.scaled import LinearCall
    from burnt.kernels.ops.quantized.scaled_gpu import multiplies_float8, structure_of
    from burnt.kernels.ops.quantized.scaled_triton import linear_launches

    torch.manual_seed(0)
    values, scale, _ = quantized_example(device, 520, 1040, value)
    x, x_scale, _ = quantized_example(device, rows, 1040, value)
    is_int8, has_units = value == "int8", out == "float8 units"
    if has_units and device.type == "cuda" and not multiplies_float8(device_info(device).architecture):
        raise NotApplicableError("the device multiplies no float8 numbers")
    zero = torch.tensor(3, dtype=torch.int8, device=device) if is_int8 else None
    out_scale = torch.tensor(0.3, device=device) if out == "quantized" else None
    dtype = BF16 if has_units else F32
    arguments = (x, values, x_scale, scale, zero, drawn(520).to(device, F32), "relu", out_scale, None, value)
    use = "int8" if is_int8 else "float8" if has_units else "float16"
    config = select_config(structure_of(rows, 520, 1040, use))  # type: ignore[arg-type]

    def exact() -> Sequence[Tensor]:
        if is_int8:  # float32 scales exact sums, as the kernel does
            return [t.double() for t in by_definition()]
        wide = [a.double() if isinstance(a, Tensor) and a.is_floating_point() else a for a in arguments]
        return [kernels.scaled_linear.reference(*wide, torch.float64)]

    def by_definition() -> Sequence[Tensor]:
        result = kernels.scaled_linear.reference(*arguments, dtype)
        return [result.float() if out == "quantized" else result]

    def ours() -> Sequence[Tensor]:
        result = run_launches(*linear_launches(LinearCall(*arguments, dtype), config, float8=has_units))
        return [result.float() if out == "quantized" else result]

    return Case(ours, by_definition, exact)


def scaled_conv(groups: int, device: torch.device) -> Case:
    """A convolution of int8 in channels-last memory, with padding that stands for a zero point."""
    from burnt.codegen.render.triton.matmul_config import select_config
    from burnt.kernels.ops.quantized.scaled import ConvCall
    from burnt.kernels.ops.quantized.scaled_gpu import structure_of
    from burnt.kernels.ops.quantized.scaled_triton import conv_launches

    source = torch.Generator().manual_seed(0)
    shapes = (3, 64, 29, 27), (40, 64 // groups, 3, 3)
    x, values = (torch.randint(-128, 128, s, generator=source, dtype=torch.int8).to(device) for s in shapes)
    x = x.to(memory_format=torch.channels_last)
    scale, x_scale = drawn(40, 1).abs().to(device, F32) * 0.01, torch.tensor(0.02, device=device)
    zero, bias = torch.tensor(-5, dtype=torch.int8, device=device), drawn(40, seed=1).to(device, F32)
    arguments = (
        x,
        values,
        x_scale,
        scale,
        zero,
        bias,
        "relu",
        [2, 1],
        [1, 1],
        [1, 2],
        groups,
        None,
        None,
        F32,
    )
    config = select_config(structure_of(3 * 15 * 25, 40 // groups, 64 // groups, "windows"))

    def by_definition() -> Sequence[Tensor]:
        return [kernels.scaled_conv.reference(*arguments)]

    return Case(
        lambda: [run_launches(*conv_launches(ConvCall(*arguments), config))],
        by_definition,
        lambda: [t.double() for t in by_definition()],
    )


def grouped(columns: int, device: torch.device) -> Case:
    """Groups of rows, one of them empty, and rows after the last group; forward and both gradients."""
    from burnt.codegen.render.triton.matmul_config import HOPPER, select_config
    from burnt.kernels.ops.grouped_triton import gradients, rows_launches
    from burnt.kernels.ops.matmul_gpu import rows_structure

    a, b = drawn(700, 320).to(device, BF16), drawn(5, 320, columns, seed=1).to(device, BF16)
    a, b, grad_out = a.requires_grad_(), b.requires_grad_(), drawn(700, columns, seed=2).to(device, BF16)
    ends = torch.tensor([1, 300, 300, 520, 680], device=device)

    def ours() -> Sequence[Tensor]:
        launches = rows_launches(a, b, ends, select_config(rows_structure(a, b)))
        found = gradients(grad_out, a, b, ends, HOPPER)
        return [run_launches(*launches), *(t for t in found if t is not None)]

    def by_definition(dtype: torch.dtype) -> Sequence[Tensor]:
        wide = [t.detach().to(dtype).requires_grad_() for t in (a, b)]
        out = kernels.grouped_matmul.reference(*wide, ends)
        return [out.detach(), *torch.autograd.grad(out, wide, grad_out.to(dtype))]

    return Case(ours, lambda: by_definition(BF16), lambda: by_definition(torch.float64))


# --- the list -------------------------------------------------------------------------------------------

BF16, F32 = torch.bfloat16, torch.float32
PRODUCTS = (
    "gelu", "norm", "residual", "few rows", "batches", "convolution", "statistics", "maxima", "means",
    "convolution by phases", "convolution's weight",
)  # fmt: skip
QUANTIZED = (
    (1, "int8", 0, True), (1, "int4", 32, True), (1, "int2", 32, False), (1, "float8_e4m3", 0, False),
    (1, "float4_e2m1", 32, False), (40, "int8", 0, True), (40, "int4", 32, True), (40, "int2", 16, True),
    (300, "int4", 32, False), (40, "float8_e5m2", 0, False),
)  # fmt: skip
SCALED = (
    ("int8", "float32"), ("int8", "quantized"), ("float8_e4m3", "float32"), ("float8_e4m3", "float8 units"),
    ("float8_e5m2", "float8 units"),
)  # fmt: skip
ATTENTION: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"after": 0},
    "causal, in order": {"after": 0, "in_order": True},
    "window": {"before": 100, "after": 0},
    "soft cap": {"softcap": 2.0, "after": 0},
    "mask": {"mask": (517, 517)},
    "lengths": {"lengths": (517, 61)},
}


def _cases() -> Iterator[tuple[str, Callable[[torch.device], Case]]]:
    """Every kernel once before the configurations: whoever has to stop early has seen most."""
    for size in (64, 128):
        for kind, options in ATTENTION.items():
            yield f"flash d{size}, {kind}", lambda d, s=size, o=options: flash(s, o, BF16, d)
    yield "flash d64, float32", lambda d: flash(64, {"after": 0}, F32, d)
    for dtype in (BF16, F32):
        word = str(dtype).removeprefix("torch.")
        for kind in STEPS:
            yield f"{kind}, {word}", lambda d, k=kind, t=dtype: optimizer(k, t, d)
        yield f"embedding, {word}", lambda d, t=dtype: embedding(t, d)
        for kind in ("lstm", "gru"):
            for way, width in (("all steps", 16), ("a step", 96)):
                name = f"{kind} {way}, {word}"
                yield name, lambda d, k=kind, w=width, t=dtype: recurrent(k, w, t, d)
    for rows, value, block, zero in QUANTIZED:
        name = f"quantized linear {rows}, {value}" + f" block {block}" * bool(block)
        for dtype in (BF16, F32):
            word = str(dtype).removeprefix("torch.")
            yield (
                f"{name}, {word}",
                lambda d, r=rows, v=value, b=block, z=zero, t=dtype: quantized_linear(r, v, b, z, t, d),
            )
    for rows in (3, 300):
        for value, out in SCALED:
            yield (
                f"scaled linear {rows}, {value}, {out}",
                lambda d, r=rows, v=value, o=out: scaled_linear(r, v, o, d),
            )
    for groups in (1, 4):
        yield f"scaled conv, {groups} groups", lambda d, g=groups: scaled_conv(g, d)
    for columns in (256, 250):
        yield f"grouped matmul, {columns} columns", lambda d, c=columns: grouped(c, d)
    for config, changes in CONFIGS.items():
        for name in PRODUCTS:
            yield f"product {name}, {config}", lambda d, n=name, c=changes: product(n, c, d)
    copied = CONFIGS["descriptors"]
    yield "product gelu, not aligned", lambda d: product("gelu", copied, d, offset=1)


CASES: dict[str, Callable[[torch.device], Case]] = dict(_cases())


# --- running --------------------------------------------------------------------------------------------


def check(name: str, device: torch.device, *, compared: bool = True) -> None:
    """Run a case in this process.

    Args:
        name: of `CASES`.
        device: where its tensors are.
        compared: whether its results are looked at; without, the kernels are only launched.

    Raises:
        AssertionError: the error is more than 4 times that of eager torch plus 4 ulp of the largest value.
        NotApplicableError: the kernel has no such configuration.
    """
    case = CASES[name](device)
    ours = case.ours()
    if not compared:
        return
    if device.type == "cuda":
        torch.cuda.synchronize()
    for i, (found, theirs, exact) in enumerate(zip(ours, case.theirs(), case.exact(), strict=True)):
        eps = torch.finfo(found.dtype).eps
        largest = float(exact.abs().max())
        error, eager = (float((t.double() - exact).abs().max()) for t in (found, theirs))
        limit = 4 * eager + 4 * eps * largest
        # Written such that NaN fails.
        if not error <= limit:
            bad = int((~((found.double() - exact).abs() <= limit)).sum())
            raise AssertionError(
                f"result {i} {tuple(found.shape)}: error {error:.3g}, limit {limit:.3g} "
                f"(eager {eager:.3g}, largest {largest:.3g}); {bad} of {found.numel()} elements"
            )


def digest() -> str | None:
    """The digest of the instructions of all kernels that this process has asked for."""
    from tests.codegen.render.triton.machine_code import disassembled

    cubins = {kernel.cubin for kernel in driver.compiled()} - {None}
    codes = sorted(repr(disassembled(cubin.read_bytes()).instructions) for cubin in cubins if cubin)
    return hashlib.sha256("\n".join(codes).encode()).hexdigest()[:16] if codes else None


def _child(name: str, device: str, sender: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # burnt warns, and runs plain torch, where no kernel can be made: that would be compared with itself.
    warnings.filterwarnings("error", message="burnt", category=RuntimeWarning)
    try:
        torch.use_deterministic_algorithms(True, warn_only=True)  # memory that is not written holds NaN
        if device == "null":
            driver.install()
            check(name, torch.device("cpu"), compared=False)
            hits = [k.hit for k in driver.compiled()]
            launches = driver.last_launch().launches
            if not launches:
                raise AssertionError("no kernel was launched")
            found = f"{launches} launches, {sum(hits)} of {len(hits)} kernels from the cache"
            sender.send(("passed", found, digest()))
        else:
            driver.record_compiled() if torch.device(device).type == "cuda" else None
            check(name, torch.device(device))
            sender.send(("passed", "", digest()))
    except NotApplicableError as error:
        sender.send(("not applicable", str(error), None))
    except BaseException as error:  # whatever it is, it is this case's result
        text = "".join(traceback.format_exception_only(error)).strip()
        place = traceback.extract_tb(error.__traceback__)[-1]
        sender.send(("failed", f"{text[:1500]} ({Path(place.filename).name}:{place.lineno})", None))


def run(
    names: Sequence[str], device: str, *, jobs: int = 8, seconds: float = 20.0, until: float | None = None
) -> Iterator[Result]:
    """Run cases, each in a forked process, and give their results as they end.

    Args:
        names: of `CASES`.
        device: ``"cuda"``, or ``"null"`` for the null driver. This process must not have used it.
        jobs: cases at once.
        seconds: limit of each.
        until: the time of `time.monotonic` after which no case is begun.
    """
    context = multiprocessing.get_context("fork")
    waiting = list(names)
    running: dict[Connection, tuple[str, BaseProcess, float]] = {}
    while waiting or running:
        if until is not None and time.monotonic() > until:
            for name in waiting:
                yield Result(name, "not begun", 0.0, "no time was left")
            waiting.clear()
        while waiting and len(running) < jobs:
            name = waiting.pop(0)
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_child, args=(name, device, sender))
            process.start()
            sender.close()
            running[receiver] = name, process, time.monotonic()
        for receiver in wait(list(running), timeout=0.2):
            assert isinstance(receiver, Connection)
            name, process, began = running.pop(receiver)
            try:
                outcome, detail, code = receiver.recv()
            except EOFError:
                process.join()
                outcome, detail, code = "failed", f"the process ended with exit code {process.exitcode}", None
            process.join(5)
            if process.is_alive():
                process.kill()  # a device that hangs lets no process go by itself
            yield Result(name, outcome, round(time.monotonic() - began, 2), detail, code)
        for receiver, (name, process, began) in list(running.items()):
            if time.monotonic() - began > seconds:
                process.kill()
                process.join(5)
                del running[receiver]
                yield Result(name, "failed", round(time.monotonic() - began, 2), f"longer than {seconds:g} s")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--device", default="cuda", help="cuda, or null: Triton on a driver without a device")
    parser.add_argument("-k", dest="pattern", default="", help="a regular expression of cases to run")
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=20.0, help="limit of a case")
    parser.add_argument("--limit", type=float, help="seconds after which no case is begun")
    parser.add_argument("--json", type=Path, help="a file that gets one line of JSON for each case")
    options = parser.parse_args()
    _import_all()
    if options.device == "null":
        driver.install()  # built once, for all processes
    until = None if options.limit is None else time.monotonic() + options.limit
    names = [name for name in CASES if re.search(options.pattern, name)]
    counts = {"passed": 0, "failed": 0, "not applicable": 0, "not begun": 0}
    for result in run(names, options.device, jobs=options.jobs, seconds=options.seconds, until=until):
        counts[result.outcome] += 1
        if result.outcome != "not begun":
            print(f"{result.outcome:14}  {result.seconds:6.2f} s  {result.name}  {result.detail}", flush=True)
        if options.json is not None:
            with options.json.open("a") as file:
                file.write(json.dumps(dataclasses.asdict(result)) + "\n")
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    return 1 if counts["failed"] or not names else 0


def _import_all() -> None:
    """Import once, before processes are forked, what all of them need; no device is touched.

    One thread each: OpenMP's threads do not survive a fork, and whoever waits for them waits forever.
    """
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)  # imports much of torch the first time
    for name in (
        "ops.attention.flash_triton",
        "ops.embedding.backward_triton",
        "optim.foreach_triton",
        "ops.rnn.loop_triton",
        "ops.grouped_triton",
        "ops.quantized.scaled_triton",
    ):
        importlib.import_module(f"burnt.kernels.{name}")
    importlib.import_module("tests.codegen.render.triton.test_products")


if __name__ == "__main__":
    sys.exit(main())
