"""Addresses of all Triton kernels whose offsets pass 2^31, for tensors without memory: translated, never run.

`addresses.check` evaluates the integers of each kernel exactly and finds those that do not fit into 32 bits.
Every hand-written kernel has cases here, at sizes just below and just above the limit;
`test_every_hand_written_kernel_has_a_case` fails for one without. Below the limit, offsets must be 32 bits
wide if the kernel has a choice.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import math
import pkgutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("triton", reason="Triton exists for Linux alone")

from triton.runtime.jit import JITFunction

import burnt
from burnt.codegen.function import Function
from burnt.codegen.ir import Kernel
from burnt.codegen.render.triton import device_math
from burnt.codegen.render.triton import expr as triton_expr
from burnt.codegen.render.triton import layout as triton_layout
from burnt.codegen.render.triton import matmul as triton_matmul
from burnt.codegen.render.triton.kernel import print_kernel, structure_of
from burnt.codegen.render.triton.matmul_config import MatmulConfig
from burnt.codegen.render.triton.source import select_config
from burnt.codegen.runtime.target import BuiltKernels
from burnt.codegen.runtime.triton_backend import TRITON
from burnt.kernels.ops import grouped_triton
from burnt.kernels.ops.attention import flash_triton
from burnt.kernels.ops.attention.flash_config import FlashConfig
from burnt.kernels.ops.attention.flash_triton import Problem
from burnt.kernels.ops.attention.score_mod import CompiledScore
from burnt.kernels.ops.embedding import backward_triton
from burnt.kernels.ops.matmul_gpu import run_launches
from burnt.kernels.ops.quantized import scaled_triton, weight_only_triton
from burnt.kernels.ops.quantized.scaled import ConvCall, LinearCall
from burnt.kernels.ops.quantized.weight_only import LinearArguments
from burnt.kernels.ops.rnn import loop_triton
from burnt.kernels.ops.rnn.loop_c import Loop
from burnt.kernels.optim.foreach_triton import DevicePasses
from burnt.kernels.optim.request import Request
from tests.codegen.render.triton.addresses import Found, Launched, check, launches_of, recorded, translated
from tests.codegen.render.triton.test_ahead import ALL_OPTIONS, UPDATES
from tests.codegen.render.triton.test_ahead import CASES as KNOWN
from tests.codegen.render.triton.test_ahead import kernels as printed_of

END = 2**31
BF16 = torch.bfloat16

pytestmark = pytest.mark.filterwarnings("ignore")


def meta(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def strided(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype = BF16) -> Tensor:
    return torch.empty_strided(tuple(shape), tuple(strides), dtype=dtype, device="meta")


# --- hand-written kernels ---------------------------------------------------------------------------------


class Case(NamedTuple):
    """Launches at a size, and two sizes: the largest 32-bit offset is below 2^31, or not.

    Args:
        launch: launches kernels for a size.
        below, above: the sizes.
        farthest: the largest such offset at a size, from shapes and strides.
        chooses: the kernel uses 32 bits where they suffice; otherwise it always uses 64.
        ends: the ends of groups at a size; for these, some programs are evaluated one by one.
    """

    launch: Callable[[int], object]
    below: int
    above: int
    farthest: Callable[[int], int]
    chooses: bool = True
    ends: Callable[[int], list[int]] | None = None

    def check(self, launch: Launched, size: int) -> Found:
        """Evaluate one of the launches at a size."""
        if self.ends is None:
            return check(launch, loaded(size))
        # All of the tuple's tensors have this name; the ends are the only one of integers.
        return check(launch, {"args": self.ends(size)}, some_programs(launch))


BLOCKS = {
    "forward": FlashConfig(128, 64, 8, 3), "dots": FlashConfig(32, 16), "keys": FlashConfig(32, 128, 8, 2),
    "queries": FlashConfig(128, 64, 8, 2),
}  # fmt: skip
ONE_PASS = BLOCKS | {"both": FlashConfig(64, 128, 8, 2)}


def attention(
    q: Tensor, k: Tensor, v: Tensor, problem: Problem, pull: Tensor | None = None, blocks: Any = BLOCKS
) -> None:
    out, lse = flash_triton.forward(q, k, v, problem, blocks)
    flash_triton.backward(out if pull is None else pull, q, k, v, out, lse, problem, blocks)


def heads(rows: int, d: int = 128, number: int = 1) -> Tensor:
    """``[1, number, rows, d]``, each head contiguous."""
    return meta(1, number, rows, d)


def within(rows: int, row: int, column: int, columns: int) -> int:
    return (rows - 1) * row + (columns - 1) * column


def far_rows(stride: int, rows: int = 700) -> Tensor:
    return strided((1, 2, rows, 64), (0, 64, stride, 1))


@functools.cache
def bias_of(size: int) -> Any:
    bias = meta(64, size, dtype=torch.float32)
    return CompiledScore(lambda s, b, h, i, j: s + bias[i % 64, j])


def scored(size: int) -> None:
    """A score function that looks up a tensor of the user's own."""
    found = bias_of(size).triton_functions(torch.device("meta"), gradients=True)
    assert found is not None
    x = heads(1000, 64)
    attention(x, x, x, Problem(1.0, score=found[0], score_grad=found[1], args=found[2]))


def masked(size: int, dtype: torch.dtype) -> None:
    x = heads(size, 64, 2)
    attention(x, x, x, Problem(1.0, mask=meta(1, 1, size, size, dtype=dtype).expand(1, 2, size, size)))


def tabled(rows: int) -> None:
    x, table = heads(rows, 16), meta(1, rows, dtype=torch.int32)
    attention(x, x, x, Problem(1.0, tables=(table,) * 4))


def sloped(rows: int) -> None:
    x = heads(rows, 64, 64)
    args = (30.0, meta(64, dtype=torch.float32), -5)
    kernels = flash_triton
    attention(
        x,
        x,
        x,
        Problem(
            1.0, high=1, score=kernels.softcap_alibi_score, score_grad=kernels.softcap_score_grad, args=args
        ),
    )


def functions(rows: int) -> None:
    """Attention with the other score functions, and with dropout, which counts elements."""
    x, kernels, seed = heads(rows, 64, 64), flash_triton, meta(dtype=torch.int64)
    attention(
        x,
        x,
        x,
        Problem(1.0, score=kernels.softcap_score, score_grad=kernels.softcap_score_grad, args=(30.0, x, 0)),
    )
    attention(
        x,
        x,
        x,
        Problem(1.0, score=kernels.alibi_score, score_grad=kernels.unit_score_grad, args=(1.0, meta(64), 0)),
    )
    attention(x, x, x, Problem(1.0, dropout=0.1, seed=seed, low=-2000, high=2000))


def result(row: int) -> Callable[[int], int]:
    """The farthest offset in results and gradients, whose rows of a head are `row` elements apart."""
    return lambda rows: within(rows, row, 1, 1)


ATTENTION = {
    # Heads are inside rows in the results, so their rows are all heads apart; those of the inputs only one.
    "results": Case(
        lambda n: attention(*[heads(n, 128, 64)] * 3, Problem(1.0, high=1)), 261_000, 262_400, result(8192)
    ),
    "one pass": Case(
        lambda n: attention(*[heads(n, 128, 64)] * 3, Problem(1.0, high=1), blocks=ONE_PASS),
        261_000, 262_400, result(8192),
    ),
    "gradients of keys": Case(
        lambda n: attention(heads(900, 64, 512), heads(n, 64, 512), heads(n, 64, 512), Problem(1.0, low=-9)),
        64_900, 65_600, result(512 * 64),
    ),
    "queries": Case(
        lambda n: attention(far_rows(n), heads(700, 64, 2), heads(700, 64, 2), Problem(1.0)),
        1_700_000, 3_080_000, lambda n: within(700, n, 1, 64),
    ),
    "keys": Case(
        lambda n: attention(heads(700, 64, 2), far_rows(n), heads(700, 64, 2), Problem(1.0)),
        1_700_000, 3_080_000, lambda n: within(700, n, 1, 64),
    ),
    "values": Case(
        lambda n: attention(heads(700, 64, 2), heads(700, 64, 2), far_rows(n), Problem(1.0)),
        1_700_000, 3_080_000, lambda n: within(700, n, 1, 64),
    ),
    "cotangent": Case(
        lambda n: attention(*[heads(700, 64, 2)] * 3, Problem(1.0), far_rows(n)),
        1_700_000, 3_080_000, lambda n: within(700, n, 1, 64),
    ),
    "mask": Case(lambda n: masked(n, torch.bool), 46_000, 46_400, lambda n: within(n, n, 1, n)),
    "mask, added": Case(lambda n: masked(n, torch.float32), 46_000, 46_400, lambda n: within(n, n, 1, n)),
    "tables": Case(tabled, 134_210_000, 134_218_000, result(16)),
    "slopes": Case(sloped, 520_000, 524_400, result(4096)),
    "functions": Case(functions, 520_000, 524_400, result(4096)),
    "scores": Case(scored, 2**25 - 600, 2**25 + 1, lambda n: 64 * n, chooses=False),
}  # fmt: skip


def stepped(count: int) -> None:
    """Run every kernel of the optimizers, with all options."""
    p = [meta(count), meta(7)]
    request = Request("step", grad_scale=64.0, max_norm=1.0, ema=None, ema_decay=0.9, candidate=None)
    passes = DevicePasses(request, p, {})
    for update in UPDATES:
        names = [*update.elements, "grad", *(["ema"] if "param" in update.elements else [])]
        scalars = {name: [meta(1, dtype=torch.float32)] * 2 for name in update.scalars}
        scalars |= {name: [0.5, 0.5] for name in update.values}
        passes.apply_update(update, dict.fromkeys(names, p), ALL_OPTIONS, scalars)


def recurrent(batch: int, steps: int, width: int) -> None:
    """Run LSTM and GRU, forward and backward, in both directions and with lengths."""
    for kind, gates, states in (("lstm", 4, 2), ("gru", 3, 1)):
        given, weight = meta(steps, batch, gates * width), meta(gates * width, width)
        bias = meta(width) if kind == "gru" else None
        lengths, start = meta(batch, dtype=torch.int64), [meta(batch, width)] * states
        for reverse in (False, True):
            loop = Loop(kind, given, weight, bias, start, lengths, reverse)
            output, kept, last = loop_triton.forward_steps(loop, True)
            assert kept is not None
            turned = output.transpose(0, 1)
            loop_triton.backward_steps(loop, kept, turned, turned, last)


def embedded(rows: int) -> None:
    indices = meta(rows, dtype=torch.int64)
    backward_triton.sum_rows_by_key(meta(rows, 1024), indices, indices, rows, -1)


OTHERS = {
    "optimizers": Case(stepped, END - 4096, END + 4096, lambda n: n, chooses=False),
    "recurrent, a step, states": Case(
        lambda n: recurrent(n, 2, 4096), 2**19 - 1, 2**19 + 1, lambda n: n * 4096, chooses=False
    ),
    "recurrent, a step, gates": Case(
        lambda n: recurrent(n, 4, 512), 2**18 - 1, 2**18 + 1, lambda n: 4 * n * 4 * 512, chooses=False
    ),
    "recurrent, all steps": Case(
        lambda n: recurrent(n, 64, 32), 2**18 - 1, 2**18 + 1, lambda n: 64 * n * 128, chooses=False
    ),
    "embedding": Case(embedded, 2**21 - 1, 2**21 + 1, lambda n: n * 1024, chooses=False),
}


TILES = "128x128x64 w8 s3"


def weight_only(rows: int, columns: int, terms: int, config: dict[str, str], block: int = 0) -> None:
    """A linear map with a weight of int4, with zero points and without."""
    scale = meta(columns, terms // block if block else 1)
    zeros = meta(*scale.shape, dtype=torch.int8)
    for zero, bias in ((zeros, meta(columns)), (None, None)):
        values = meta(columns, terms // 2, dtype=torch.uint8)
        call = LinearArguments(meta(rows, terms), values, scale, zero, bias, "silu", "int4", block)
        run_launches(*weight_only_triton.launches(call, config))


def scaled(rows: int, columns: int, terms: int, config: str = TILES) -> None:
    """Linear maps of int8 and of float8, with tensor cores for it and without; results are quantized."""
    number = meta(1, dtype=torch.float32)
    for value, dtype, float8 in (
        ("int8", torch.int8, False), ("float8_e4m3", torch.uint8, True), ("float8_e5m2", torch.uint8, False)
    ):  # fmt: skip
        x, values = meta(rows, terms, dtype=dtype), meta(columns, terms, dtype=dtype)
        scales, bias = (meta(size, dtype=torch.float32) for size in (rows, columns)), meta(columns)
        zero = meta(1, dtype=torch.int8) if value == "int8" else None
        call = LinearCall(x, values, *scales, zero, bias, "relu", number, zero, value)
        run_launches(*scaled_triton.linear_launches(call, MatmulConfig.of(config), float8=float8))


def windows(n: int, channels: int, columns: int, image: tuple[int, ...], **options: Any) -> None:
    """A convolution of int8, of images with channels last and first."""
    format = torch.channels_last if len(image) == 2 else torch.channels_last_3d
    for layout in (format, torch.contiguous_format):
        x = meta(n, channels, *image, dtype=torch.int8).to(memory_format=layout)
        values = meta(columns, channels // options.get("groups", 1), *[3] * len(image), dtype=torch.int8)
        number, zero = meta(1, dtype=torch.float32), meta(1, dtype=torch.int8)
        scale = meta(columns, dtype=torch.float32)
        call = ConvCall(x, values, number, scale, zero, meta(columns), out_scale=number, **options)
        run_launches(*scaled_triton.conv_launches(call, MatmulConfig.of("128x64x64 w4 s3")))


def grouped(rows: int, terms: int, columns: int, groups: int, config: str = TILES) -> None:
    """Products of groups of rows: with matrices, with transposed ones, and with further rows."""
    a, b, ends = meta(rows, terms), meta(groups, terms, columns), meta(groups, dtype=torch.int64)
    transposed = meta(groups, columns, terms).mT
    for matrices in (b, transposed):
        run_launches(*grouped_triton.rows_launches(a, matrices, ends, MatmulConfig.of(config)))
    run_launches(*grouped_triton.terms_launches(a, meta(rows, columns), ends, MatmulConfig.of(config)))


QUANTIZED = {
    # The weight's rows always have 64 bits: it is read once, so that these kernels are memory-bound anyway.
    "int4, one row": Case(
        lambda n: [
            weight_only(1, n, 4096, {"vector": sizes}, block)
            for sizes in ("4x128 w4", "4x128 w4 c4") for block in (0, 32)
        ],
        2**20 - 1, 2**20 + 1, lambda n: n * 2048 - 1, chooses=False,
    ),
    "int4, weight": Case(
        lambda n: [
            weight_only(64, n, 4096, {"tiles": sizes}, block)
            for sizes in (TILES, TILES + " k4") for block in (0, 32)
        ],
        2**20 - 1, 2**20 + 1, lambda n: n * 2048 - 1, chooses=False,
    ),
    "int4, x": Case(
        lambda n: weight_only(n, 256, 4096, {"tiles": TILES}),
        2**19 - 1, 2**19 + 1, lambda n: n * 4096 - 1, chooses=False,
    ),
    "int4, result": Case(
        lambda n: [weight_only(n, 8192, 256, {"tiles": tiles}) for tiles in (TILES, TILES + " k4")],
        2**18 - 256, 2**18 + 1, lambda n: n * 8192 - 1, chooses=False,
    ),
    "8-bit values, x": Case(
        lambda n: scaled(n, 256, 2048), 2**20 - 2048, 2**20 + 1, lambda n: n * 2048 - 1
    ),
    "8-bit values, weight": Case(
        lambda n: scaled(64, n, 2048), 2**20 - 2048, 2**20 + 1, lambda n: n * 2048 - 1
    ),
    "8-bit values, result": Case(
        lambda n: scaled(n, 8192, 256), 2**18 - 2048, 2**18 + 1, lambda n: n * 8192 - 1
    ),
    # Partial sums always have 64-bit offsets.
    "8-bit values, parts": Case(
        lambda n: scaled(n, 8192, 256, TILES + " k4"), 2**18 - 2048, 2**18 + 1, lambda n: n * 8192 - 1, False
    ),
    "windows": Case(
        lambda n: windows(n, 128, 64, (224, 224), padding=1), 330, 337, lambda n: n * 128 * 224 * 224 - 1
    ),
    "windows, result": Case(
        lambda n: windows(n, 32, 256, (128, 128), padding=1, groups=2),
        508, 513, lambda n: n * 256 * 128**2 - 1,
    ),
    "windows, three axes": Case(
        lambda n: windows(n, 32, 8, (64, 64, 64), stride=2, padding=2, dilation=2),
        250, 257, lambda n: n * 32 * 64**3 - 1,
    ),
}  # fmt: skip


def some_ends(rows: int) -> list[int]:
    """Ends of 4 groups, one of them empty, and further rows."""
    return [rows // 3, rows // 3, rows - 300, rows - 3]


GROUPED = {
    f"groups, {name}{config}": Case(
        functools.partial(launch, config=TILES + config), below, above, farthest, ends=ends
    )
    for config in ("", " p132", " p132 d")
    for name, launch, below, above, farthest, ends in [
        (
            "rows", lambda n, config: grouped(n, 2048, 256, 4, config),
            2**20 - 2048, 2**20 + 8, lambda n: n * 2048 - 1, some_ends,
        ),
        (
            "result", lambda n, config: grouped(n, 256, 8192, 4, config),
            2**18 - 2048, 2**18 + 8, lambda n: n * 8192 - 1, some_ends,
        ),
        (
            "matrices", lambda n, config: grouped(4096, n, 8192, 4, config),
            2**16 - 2048, 2**16 + 8, lambda n: n * 4 * 8192 - 1, lambda n: some_ends(4096),
        ),
    ]
}  # fmt: skip
CASES = ATTENTION | OTHERS | QUANTIZED | GROUPED


def loaded(size: int) -> dict[str, tuple[int, int]]:
    """What tables hold: keys or queries of attention, tensors of an optimizer."""
    return {"begin_table": (0, size), "end_table": (0, size), "owners": (0, 1)}


@functools.cache
def launched(name: str, size: int) -> list[Launched]:
    with recorded() as found:
        CASES[name].launch(size)
    assert found
    return list({(e.kernel, repr(e.options), repr(e.args)): e for e in found}.values())


# Always has 64-bit addresses: it reads two tensors once, so it is memory-bound anyway.
ALWAYS_WIDE = {"burnt.kernels.ops.attention.flash_triton.backward_dots"}


@pytest.mark.sample(keep=("optimizers", "groups, matrices p132 d"))
@pytest.mark.parametrize("name", CASES)
def test_offsets_around_the_end_of_32_bits(name: str) -> None:
    case = CASES[name]
    assert case.farthest(case.below) < END <= case.farthest(case.above)
    for size in (case.below, case.above):
        for launch in launched(name, size):
            found = case.check(launch, size)
            assert not found.overflows, f"{launch.name} at {size:,}: {found.overflows}"
            if case.chooses and launch.name not in ALWAYS_WIDE and size == case.below:
                assert found.widest == 32, f"{launch.name} at {size:,} pays for 64 bits"
    if case.chooses:
        assert any(case.check(e, case.above).widest == 64 for e in launched(name, case.above))


@pytest.mark.full
def test_a_window_without_an_end_does_not_overflow() -> None:
    x = heads(900, 64, 2)
    for low, high in ((-(2**31) + 1, 1), (None, 2**31 - 1), (-(2**40), 2**40)):
        with recorded() as found:
            attention(x, x, x, Problem(1.0, low=low, high=high))
        for launch in found:
            assert not check(launch).overflows, (launch.name, low, high)


def hand_written_functions() -> dict[str, JITFunction[Any]]:
    """All Triton functions of the package, by module and name."""
    found = {}
    for module in pkgutil.walk_packages(burnt.__path__, "burnt."):
        path = Path(importlib.util.find_spec(module.name).origin or "")  # type: ignore[union-attr]
        if "import triton" in path.read_text():
            for value in vars(importlib.import_module(module.name)).values():
                if isinstance(value, JITFunction) and value.fn.__module__.startswith("burnt."):
                    found[f"{value.fn.__module__}.{value.fn.__name__}"] = value
    return found


@pytest.mark.full
def test_every_hand_written_kernel_has_a_case() -> None:
    """A new kernel needs a case in `CASES` or, for a template, in `PRODUCTS`."""
    covered: set[str] = set()
    for name, case in CASES.items():
        for launch in launched(name, case.above):
            covered |= {launch.name, *translated(launch).functions}
    for name in PRODUCTS:
        for config in configs_of(name, True):
            for launch in product_launches(name, True, config):
                covered |= translated(launch).functions
    elementwise = {n for n, f in hand_written_functions().items() if f.fn.__module__ == device_math.__name__}
    missing = set(hand_written_functions()) - covered - elementwise
    assert not missing, f"without a case: {sorted(missing)}"


def test_functions_of_elements_have_no_addresses() -> None:
    """They need no cases."""
    text = inspect.getsource(device_math)
    assert "tl.load" not in text
    assert "tl.store" not in text
    assert "tl.program_id" not in text


# --- generated kernels ------------------------------------------------------------------------------------


def planned(fn: Callable[..., Any], args: Sequence[Tensor]) -> list[Kernel]:
    """The kernels of a function of tensors without memory, with a kernel for every matmul."""
    found: list[Kernel] = []

    def build(kernels: Sequence[Kernel], *_: object) -> BuiltKernels:
        found.extend(kernels)
        return BuiltKernels(dict.fromkeys(kernels, ""), dict.fromkeys(kernels, lambda *_: None))

    target = dataclasses.replace(
        TRITON, build=build, why_unavailable=lambda: None, why_torch_matmul=lambda node: None
    )
    # Not by a call: there is no signature for the meta device.
    result = Function(fn, target=target)._build_entry(args, list(args), [])
    assert result.fallback_reason is None, result.fallback_reason
    return found


def last(*shape: int) -> Tensor:
    return meta(*shape).to(memory_format=torch.channels_last)


def linear(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b))


def scores(q: Tensor, k: Tensor) -> Tensor:
    return torch.tanh(q @ k.transpose(1, 2))


def convolved(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.relu(F.conv2d(x, w, b, padding=1))


def pooled(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.max_pool2d(convolved(x, w, b), 2)


def normalised(x: Tensor, w: Tensor, g: Tensor, b: Tensor) -> Tensor:
    return torch.relu(F.batch_norm(F.conv2d(x, w, padding=1), None, None, g, b, training=True))


def larger(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.relu(F.conv_transpose2d(x, w, b, stride=2, padding=1))


def images(n: int, channels: int, kernel: int = 3) -> list[Tensor]:
    return [last(n, channels, 224, 224), last(64, channels, kernel, kernel), meta(64)]


# A function, and its arguments with the largest offset below and above 2^31.
PRODUCTS: dict[str, tuple[Callable[..., Any], list[Tensor], list[Tensor]]] = {
    "left operand": (
        linear, [meta(2**20 - 4096, 2048), meta(64, 2048), meta(64)],
        [meta(2**20 + 1, 2048), meta(64, 2048), meta(64)],
    ),
    "right operand": (
        linear, [meta(64, 2048), meta(2**20 - 4096, 2048), meta(2**20 - 4096)],
        [meta(64, 2048), meta(2**20 + 1, 2048), meta(2**20 + 1)],
    ),
    "result": (
        linear, [meta(2**15, 512), meta(65_280, 512), meta(65_280)],
        [meta(2**15, 512), meta(65_600, 512), meta(65_600)],
    ),
    "rows far apart": (
        linear, [strided((33, 64), (2**25 - 2**20, 1)), meta(64, 64), meta(64)],
        [strided((33, 64), (2**26 + 8, 1)), meta(64, 64), meta(64)],
    ),
    "terms far apart": (
        linear, [strided((64, 33), (1, 2**25 - 2**20)), meta(64, 33), meta(64)],
        [strided((64, 33), (1, 2**26 + 8)), meta(64, 33), meta(64)],
    ),
    "batches": (
        scores, [meta(2040, 1024, 64), meta(2040, 1024, 64)], [meta(2049, 1024, 64), meta(2049, 1024, 64)]
    ),
    "convolution": (convolved, images(334, 128), images(335, 128)),
    "convolution by phases": (
        larger, [last(166, 64, 224, 224), last(64, 64, 4, 4), meta(64)],
        [last(168, 64, 224, 224), last(64, 64, 4, 4), meta(64)],
    ),
    "maxima": (pooled, images(334, 128), images(335, 128)),
    "statistics": (normalised, [*images(334, 128), meta(64)], [*images(335, 128), meta(64)]),
}  # fmt: skip


def farthest(tensors: Sequence[Tensor]) -> int:
    """The largest offset of an element in any of the tensors."""
    return max(sum((n - 1) * abs(s) for n, s in zip(t.shape, t.stride(), strict=True)) for t in tensors)


@functools.cache
def product_of(name: str, above: bool) -> Kernel:
    fn, *args = PRODUCTS[name]
    return next(k for k in planned(fn, args[above]) if k.matmul is not None)


def configs_of(name: str, above: bool) -> list[MatmulConfig]:
    """The selected config, and others: persistent programs, tensor descriptors, split-K."""
    picked = select_config(structure_of(product_of(name, above)))
    assert isinstance(picked, MatmulConfig)
    changes: list[dict[str, Any]] = [
        {}, {"programs": 132}, {"descriptors": True}, {"descriptors": True, "programs": 132}, {"split": 4}
    ]  # fmt: skip
    return [dataclasses.replace(picked, **change) for change in changes]


@functools.cache
def product_launches(name: str, above: bool, config: MatmulConfig) -> list[Launched]:
    return launches_of(print_kernel(product_of(name, above), config))


def some_programs(launch: Launched) -> list[int]:
    """Program ids at both ends and in between."""
    last = launch.grid[0] - 1
    return sorted({0, min(1, last), min(7, last), last // 3, last // 2, max(last - 1, 0), last})


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", PRODUCTS)
def test_offsets_of_matmuls_around_the_end_of_32_bits(name: str) -> None:
    fn, below, above = PRODUCTS[name]
    results = [fn(*args) for args in (below, above)]
    assert farthest([*below, results[0]]) < END <= farthest([*above, results[1]])
    for far in (False, True):
        for config in configs_of(name, far)[:: 1 if far else 4]:
            for launch in product_launches(name, far, config):
                found = check(launch, programs=some_programs(launch))
                assert not found.overflows, f"{name} {far} {config} {launch.name}: {found.overflows}"
                # Split-K parts are larger than the result and always have 64-bit offsets.
                if config.split == 1 and not (far and config.descriptors):
                    assert found.widest == (64 if far else 32), f"{name} {config} {launch.name}"


@pytest.mark.sample(1)
@pytest.mark.parametrize("strides", [(2**26 - 2**20, 1), (1, 2**26 - 2**20)], ids=["rows", "terms"])
def test_lanes_beyond_the_end_of_a_matmul_do_not_overflow(strides: tuple[int, int]) -> None:
    """33 rows or terms fit into 32 bits; the 64 of a tile do not."""
    shape = (33, 64) if strides[1] == 1 else (64, 33)
    x, w = strided(shape, strides), meta(64, shape[1])
    assert farthest([x]) < END < 63 * max(strides)
    (kernel,) = (k for k in planned(linear, [x, w, meta(64)]) if k.matmul is not None)
    for launch in launches_of(print_kernel(kernel, select_config(structure_of(kernel)))):
        assert not check(launch).overflows


NEAR = END - 100
ELEMENTS: dict[str, tuple[Callable[..., Any], list[Tensor]]] = {
    "an elementwise kernel": (lambda x: x + 1, [meta(NEAR)]),
    "both axes in tiles": (lambda x, y: x + y, [meta(70, 2**25), meta(2**25, 70).t()]),
    "a sum in parts": (lambda x: x.sum(dtype=torch.int64), [meta(NEAR, dtype=torch.int8)]),
    "a sum in one loop": (lambda x: x.sum(-1), [strided((512, NEAR), (0, 1))]),
    "many sums": (lambda x: x.sum(-1), [meta(NEAR, 2)]),
    "long rows": (lambda x: torch.softmax(x, -1), [meta(3, 2**30 - 50)]),
    "columns": (lambda x: x.sum(0), [meta(2**25, 65)]),
    "a scan": (lambda x: x.cumsum(-1), [meta(2**12, 2**19 + 100)]),
    "rows far apart": (lambda x: x.exp(), [strided((9, 100), (2**27 + 2**25, 1))]),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", ELEMENTS)
def test_offsets_of_other_generated_kernels(name: str) -> None:
    fn, args = ELEMENTS[name]
    for kernel in planned(fn, args):
        for launch in launches_of(print_kernel(kernel, select_config(structure_of(kernel)))):
            assert launch.grid[0] < END
            found = check(launch, programs=some_programs(launch))
            assert not found.overflows, f"{launch.name}: {found.overflows}"


@pytest.mark.sample(2)
@pytest.mark.parametrize("case", KNOWN)
def test_generated_kernels_translate_with_64_bits(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For every kind of kernel: values carried by a loop keep their type."""
    for module in (triton_layout, triton_expr, triton_matmul):
        monkeypatch.setattr(module, "INT32_INDEX_LIMIT", -1)
    texts = [
        translated(launch).text
        for triton_functions in printed_of(case, "bf16")
        for launch in launches_of(triton_functions)
    ]
    assert any("xi64>" in text for text in texts)


# --- the evaluation itself --------------------------------------------------------------------------------


def test_an_overflow_is_found_exactly(tmp_path: Path) -> None:
    """For a kernel with known offsets: row * stride of up to 2^31 - 1, and one more."""
    import sys

    (tmp_path / "offsets_for_a_test.py").write_text(
        "import triton\nimport triton.language as tl\n\n@triton.jit\n"
        "def copied(x, y, rows, stride, N: tl.constexpr):\n"
        "    for start in range(0, rows, N):\n"
        "        row = start + tl.arange(0, N)\n"
        "        value = tl.load(x + row * stride + tl.program_id(0), mask=row < rows)\n"
        "        tl.store(y + row, value)\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        copied = importlib.import_module("offsets_for_a_test").copied
    finally:
        sys.path.remove(str(tmp_path))
    for rows, stride, programs, fits in (
        (2**16, 2**15, 1, True), (2**16, 2**15 + 1, 1, False), (2**16 - 20, 2**15 + 1, 1, False),
        (2**31 - 64, 1, 1, True), (2**31 - 63, 1, 1, False),
    ):  # fmt: skip
        launch = Launched(copied, (meta(1), meta(1), rows, stride, 64), {}, (programs,))
        assert (not check(launch).overflows) == fits, (rows, stride)
    assert math.prod((2**16 - 1, 2**15)) < END


def test_small_tensors_are_evaluated_element_by_element(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last row of a group, from the sizes of all groups: up to 2^31 - 1, and more."""
    (tmp_path / "groups_for_a_test.py").write_text(
        "import triton\nimport triton.language as tl\n\n@triton.jit\n"
        "def last_rows(x, sizes, stride, N: tl.constexpr):\n"
        "    group = tl.arange(0, N)\n"
        "    end = tl.cumsum(tl.load(sizes + group).to(tl.int32), 0)\n"
        "    last = tl.sum(tl.where(group == tl.program_id(0), end - 1, 0), 0)\n"
        "    tl.store(x + last * stride + group, 0.0)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    last_rows = importlib.import_module("groups_for_a_test").last_rows
    sizes = [5, 0, 2**15, 2**15 - 5]
    for stride, program, fits in ((2**15, 3, True), (2**15 + 1, 3, False), (2**15 + 1, 2, True)):
        launch = Launched(last_rows, (meta(1), meta(4, dtype=torch.int64), stride, 4), {}, (4,))
        found = check(launch, {"sizes": sizes}, [program])
        assert (not found.overflows) == fits, (stride, program)
        assert check(launch, {"sizes": (0, 2**15)}).overflows  # of ranges, sums are not known
