"""Generated Metal, compiled as C++ and run on the shim: loop structures, values, gradients, math, source."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from burnt.codegen.function import Function
from burnt.codegen.ir import Buffer, Expr, IndexExpr, Kernel, Store, Var, load
from burnt.codegen.render.metal import kernel as metal_kernel
from burnt.codegen.render.metal import prelude
from burnt.codegen.render.metal.kernel import print_kernel
from burnt.codegen.render.shape_params import with_constant_sizes
from burnt.codegen.runtime import targets
from burnt.codegen.schedule.scheduler import TorchCall
from burnt.errors import InputIndexError
from tests.codegen.compare import judge, judge_fresh, randn
from tests.codegen.lower.test_gather import GATHERS, ROWS, X
from tests.codegen.programs import Program, program
from tests.codegen.render.c.test_math_header import UNARY_ULP
from tests.codegen.render.metal import shim
from tests.codegen.render.metal.shim import METAL_SHIM
from tests.codegen.test_fusion import (
    ACTIVATIONS,
    BINARY,
    SPECIAL,
    UNARY,
    assert_same,
    layer_norm,
    rms_norm,
    rotary,
    swiglu,
)
from tests.codegen.test_random_programs import REGRESSIONS, regression

pytestmark = [
    pytest.mark.skipif(shim.COMPILER is None, reason="no C++ compiler here to run Metal with"),
    pytest.mark.filterwarnings("ignore"),  # torch's remarks on what programs do
]

GOLDEN = Path(__file__).with_name("golden")


def metal(fn: Callable[..., Any]) -> Function:
    return Function(fn, target=METAL_SHIM)


def same(ours: Any, theirs: Any, **tolerances: float) -> None:
    torch.testing.assert_close(ours, theirs, equal_nan=True, **tolerances)


def source_of(fn: Callable[..., Any], *args: Any) -> str:
    plan = metal(fn).plan(*args)
    assert plan is not None
    return "\n".join(plan.texts.values())


# --- what fuses, and its text -----------------------------------------------------------------------------


def custom_gelu(x):
    return 0.5 * x * (1 + torch.erf(x * 0.5**0.5))


def softmax(x):
    return torch.softmax(x, -1)


def column_sum(x):
    return x.sum(0)


ONE_KERNEL: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "gelu": (custom_gelu, (randn(37, 53),)),
    "softmax": (softmax, (randn(37, 53),)),
    "layer norm": (layer_norm, (randn(7, 530), randn(530), randn(530))),
    "rms norm and residual": (rms_norm, (randn(37, 53), randn(37, 53, seed=1), randn(53))),
    "swiglu": (swiglu, (randn(7, 64),)),
    "rotary": (rotary, (randn(2, 3, 5, 8), randn(5, 8), randn(5, 8, seed=1))),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ONE_KERNEL)
def test_one_kernel(name: str) -> None:
    fn, args = ONE_KERNEL[name]
    fused = metal(fn)
    plan = fused.plan(*args)
    assert plan is not None
    assert [len(plan.plan.steps), len(plan.kernels)] == [1, 1]
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        given = [a.to(dtype) for a in args]
        exact = fn(*(a.double() for a in given))
        for ours, truth in zip(_flat(fused(*given)), _flat(exact), strict=True):
            same(ours, truth.to(dtype))
    grads = []
    for run in (fused, fn):
        wanted = [a.clone().requires_grad_() for a in args]
        result = _flat(run(*wanted))
        torch.autograd.backward(result, [torch.cos(m.detach()) for m in result])
        grads.append([a.grad for a in wanted])
    same(*grads)


def _flat(made: Any) -> list[Tensor]:
    return list(made) if isinstance(made, tuple) else [made]


TEXTS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "gelu": ONE_KERNEL["gelu"],
    "softmax": ONE_KERNEL["softmax"],
    "layer_norm": ONE_KERNEL["layer norm"],
    "rotary": ONE_KERNEL["rotary"],
    "column_sum": (column_sum, (randn(500, 70),)),
    "sum": (torch.sum, (randn(70_000),)),
}


@pytest.mark.parametrize("name", TEXTS)
def test_text(name: str) -> None:
    """`BURNT_GOLDEN=1` rewrites the files."""
    fn, args = TEXTS[name]
    # Sizes as constants, as for the first shape: other tests may have used the same template.
    plan = metal(fn).plan(*args)
    assert plan is not None
    source = "\n".join(
        with_constant_sizes(d.text) for k in plan.kernels for d in print_kernel(k, plan.plan.number_positions)
    )
    path = GOLDEN / f"{name}.metal"
    if "BURNT_GOLDEN" in os.environ:
        path.write_text(source)
    assert source == path.read_text(), (
        f"the source has changed: see git diff with BURNT_GOLDEN=1 ({path.name})"
    )


# --- loop structures --------------------------------------------------------------------------------------


def reductions(x, axis):
    return (
        x.sum(axis), x.amax(axis), x.amin(axis), x.argmax(axis), x.argmin(axis), (x > 2).any(axis),
        (x > -3).all(axis), x.var(axis), torch.softmax(x, axis), (x * 0.01 + 1).prod(axis), (x > 0).sum(axis),
    )  # fmt: skip


# Shape, axis, whether transposed in memory, and what the source contains, and does not contain.
STRUCTURES: dict[str, tuple[tuple[int, ...], int, bool, tuple[str, ...], tuple[str, ...]]] = {
    "short rows": ((37, 53), 1, False, ("shuffle", "at.x / 32"), ("barrier", "_part0")),
    "long rows": ((35, 1029), 1, False, ("shuffle", "barrier", "at.x / 256"), ("_part0",)),
    "few columns": ((13, 37), 0, False, ("i0 = int(at.x)",), ("shuffle", "barrier")),
    "columns": ((530, 37), 0, False, ("lane = at.y", "barrier"), ("shuffle", "_part0")),
    "columns of several": ((3, 70, 41), 1, False, ("lane = at.y", "outer = "), ("shuffle", "_part0")),
    "rows in columns' memory": ((37, 530), 1, True, ("lane = at.y", "barrier"), ("shuffle",)),
    "long and few columns": ((4_011, 9), 0, False, ("_part0", "lane = at.y"), ("shuffle",)),
    "few rows of many": ((3, 4_009), 1, False, ("_part0", "shuffle"), ("lane = at.y",)),
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are split from sizes on that a test can afford."""
    monkeypatch.setattr(metal_kernel, "_SPLIT_ELEMENTS", 2000)
    monkeypatch.setattr(metal_kernel, "_NUM_CHUNKS", 5)


@pytest.mark.sample(1)
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", STRUCTURES)
def test_reductions(name: str) -> None:
    shape, axis, transposed, contained, absent = STRUCTURES[name]
    x = randn(*shape)
    x = x.t().contiguous().t() if transposed else x
    text = source_of(lambda x: x.sum(axis), x)
    assert all(part in text for part in contained), text
    assert not any(part in text for part in absent), text
    fused = metal(reductions)
    for ours, theirs in zip(fused(x, axis), reductions(x.double(), axis), strict=True):
        same(ours, theirs.to(ours.dtype), rtol=2e-5, atol=2e-6)
    # NaN and infinities at two indices, not at the start of a reduction.
    indices = [x.shape[axis] - 1, x.shape[axis] // 3]
    for value in (float("nan"), float("inf"), -float("inf"), -0.0):
        y = x.clone(memory_format=torch.preserve_format)
        for index in indices:
            y.select(axis, index)[..., 0] = value
        for ours, theirs in zip(fused(y, axis), reductions(y, axis), strict=True):
            same(ours, theirs, rtol=2e-5, atol=2e-6)


@pytest.mark.full
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", STRUCTURES)
def test_integers(name: str) -> None:
    def fn(x, axis):
        return x.sum(axis), x.amax(axis), x.amin(axis), x.argmax(axis), x.prod(axis), x.any(axis)

    shape, axis, *_ = STRUCTURES[name]
    for dtype in (torch.int8, torch.uint8, torch.int64):
        x = (randn(*shape) * 30).abs().to(dtype)
        if dtype == torch.int64:
            x *= 3_000_000_001
        fused = metal(fn)
        assert fused.fallback_reason(x, axis) is None
        same(fused(x, axis), fn(x, axis))
    flags = lambda x, axis: (x.all(axis), x.any(axis), x.sum(axis), x.amax(axis))  # noqa: E731
    x = randn(*shape) > -2
    same(metal(flags)(x, axis), flags(x, axis))


@pytest.mark.usefixtures("small")
def test_sums_are_compensated() -> None:
    """Equal numbers are all rounded in the same direction, so errors of plain summation accumulate."""
    for shape, axis, *_ in STRUCTURES.values():
        x = torch.full(shape, 0.2)
        ours = metal(lambda x, axis: x.sum(axis))(x, axis)
        exact = x.double().sum(axis)
        assert float(((ours - exact) / exact).abs().max()) <= 2**-22


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "shape", [(70_001,), (300, 257), (257, 1, 300), (3, 5, 7, 11, 13), (2, 3), (1,), ()], ids=str
)
def test_elementwise_shapes(shape: tuple[int, ...]) -> None:
    x = randn(*shape)
    fused = metal(lambda x, y: torch.tanh(x) * y)
    same(fused(x, x), torch.tanh(x) * x)
    transposed = x.permute(tuple(range(x.dim())[::-1]))
    y = randn(*transposed.shape, seed=1)
    same(fused(transposed, y), torch.tanh(transposed) * y)
    assert fused(transposed, y).stride() == (torch.tanh(transposed) * y).stride()


def test_a_thread_computes_four_adjacent_elements_where_memory_is_contiguous() -> None:
    def double(x):
        return x * 2

    assert "i0 < end" in source_of(double, randn(70_001))
    assert "i0 < end" not in source_of(double, randn(140_002)[::2])
    assert "i0 < end" not in source_of(double, randn(70))


def test_steps_that_nest_loops_in_different_orders() -> None:
    def fn(x):
        index = x.argmax()  # counts in axis order, while stores go in memory order
        return x * index, index

    x = randn(6, 11, 4, 1).contiguous(memory_format=torch.channels_last)
    same(metal(fn)(x), fn(x))


# --- programs ---------------------------------------------------------------------------------------------


def is_supported(made: Program) -> bool:
    return "f64" not in made.source


def run(seeds: range, grammar: str = "plain") -> None:
    for candidate in filter(is_supported, (program(seed, grammar) for seed in seeds)):
        judge(candidate, metal)


@pytest.mark.full
@pytest.mark.parametrize("first", range(0, 16, 8))
def test_random_programs(first: int) -> None:
    run(range(first, first + 8))


@pytest.mark.sample(0, full=24)
@pytest.mark.full
@pytest.mark.parametrize("first", range(16, 3000, 14))
def test_more_random_programs(first: int) -> None:
    """Of all of them 24, which BURNT_SEED draws; `--fuzz` draws fresh ones."""
    run(range(first, first + 14))


def test_programs_of_the_wider_grammar() -> None:
    run(range(4), "wider")


@pytest.mark.sample(0, full=12)
@pytest.mark.full
@pytest.mark.parametrize("first", range(4, 700, 14))
def test_more_programs_of_the_wider_grammar(first: int) -> None:
    """Of all of them 12, which BURNT_SEED draws; `--fuzz` draws fresh ones."""
    run(range(first, first + 14), "wider")


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", REGRESSIONS)
def test_regressions(name: str) -> None:
    failed_once = regression(name)
    if is_supported(failed_once):
        judge(failed_once, metal)


if "BURNT_FUZZ_MINUTES" in os.environ:

    @pytest.mark.timeout(0)
    def test_fresh_programs() -> None:
        judge_fresh(float(os.environ["BURNT_FUZZ_MINUTES"]), metal, is_supported)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", GATHERS)
def test_gathers(name: str) -> None:
    fn, args, _ = GATHERS[name]
    fused = metal(fn)
    results = []
    for call in (fn, fused):
        wanted = [a.clone().requires_grad_() if a.is_floating_point() else a for a in args]
        result = call(*wanted)
        result.backward(torch.arange(result.numel()).reshape(result.shape) / 4)
        results.append((result, [a.grad for a in wanted]))
    same(results[1], results[0])
    plan = fused.plan(*args)
    assert plan is not None
    assert not any(isinstance(step, TorchCall) for step in plan.plan.steps)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: F.max_pool2d(x, 3, 2, 1),
        lambda x: F.max_pool2d(x, (2, 3), return_indices=True),
        lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        lambda x: F.adaptive_avg_pool2d(x, (3, 5)),
        lambda x: F.avg_pool1d(x[0], 4, 3) * 2,
    ],
)
def test_windows(fn: Callable[..., Any]) -> None:
    grads = []
    for call in (fn, metal(fn)):
        x = randn(2, 3, 13, 17).requires_grad_()
        result, *others = _flat(call(x))
        result.backward(torch.cos(result.detach()))
        grads.append([result, *others, x.grad])
    same(*grads)


def test_an_index_out_of_range() -> None:
    fused = metal(lambda x, i, j: x[i] * x.index_select(0, j))
    same(fused(X, ROWS, ROWS), X[ROWS] * X[ROWS])
    bad = ROWS.clone()
    bad[3] = -51
    with pytest.raises(InputIndexError, match="index: index -51 is out of range"):
        fused(X, bad, ROWS)
    with pytest.raises(InputIndexError, match="index_select: index -51 is out of range"):
        fused(X, ROWS, bad)
    same(fused(X, ROWS, ROWS), X[ROWS] * X[ROWS])


# --- numbers, sizes, limits -------------------------------------------------------------------------------


def test_numbers_are_given_at_run_time() -> None:
    fused, x = metal(lambda x, s, t: torch.softmax(x * s, -1) + t), randn(5, 33)
    for s, t in ((0.5, 1.0), (-2.0, 0.25)):
        same(fused(x, s, t), torch.softmax(x * s, -1) + t)
    assert len(fused._entries) == 1


def test_the_third_shape_needs_no_compiler() -> None:
    fn = lambda x, s: (F.layer_norm(x[:, 1:], (x.shape[1] - 1,)) * s, x.flip(0).sum(0))  # noqa: E731
    fused = metal(fn)
    for rows, columns in ((41, 400), (42, 401)):
        fused(randn(rows, columns), 2.0)
    before = shim.shader.cache_info().misses
    for rows, columns in ((43, 402), (57, 399), (91, 1111)):
        x = randn(rows, columns)
        same(fused(x, 3.0), fn(x, 3.0), rtol=1e-5, atol=1e-5)
    assert shim.shader.cache_info().misses == before


def test_unsupported_kernels() -> None:
    wide = metal(lambda x: x.double() + 1)
    assert str(wide.fallback_reason(randn(3))).startswith("Metal has no float64")
    same(wide(randn(3)), randn(3).double() + 1)
    many = metal(lambda *x: sum(x))
    x = [randn(3, seed=i) for i in range(40)]
    reason = str(many.fallback_reason(*x))
    assert reason.startswith("the kernel has more tensors than Metal can bind")
    assert "found     41" in reason
    same(many(*x), sum(x))


class _Tripled(torch.autograd.Function):
    """A square whose gradient is not its derivative, to detect whether its forward ops were traced."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 3 * gradient * ctx.saved_tensors[0]


def test_an_autograd_function_runs_eagerly() -> None:
    fused, x = metal(lambda x: _Tripled.apply(x).sin()), randn(7, 5).requires_grad_()
    for _ in range(2):
        (gradient,) = torch.autograd.grad(fused(x).sum(), x)
        same(gradient, 3 * x * torch.cos(x * x))
    assert "autograd.Function" in str(fused.fallback_reason(x))


def test_an_unsupported_gradient_runs_eagerly() -> None:
    def fn(*x):
        return torch.stack(x).prod(0)

    grads = []
    for run in (fn, metal(fn)):
        x = [randn(5, seed=i).requires_grad_() for i in range(16)]
        run(*x).sum().backward()
        grads.append([t.grad for t in x])
    same(*grads)


def test_indices_beyond_32_bits() -> None:
    def kernel(extent: int, stride: int) -> Kernel:
        i = Var(extent)
        x = Buffer("x0", "input", 0, (extent,), (stride,), torch.float32)
        y = Buffer("y0", "output", 0, (extent,), (1,), torch.float32)
        value = Expr.make("exp", (load(x, x.at((IndexExpr.of(i),))),), torch.float32)
        return Kernel("big", (i,), [Store(y, (), y.at((IndexExpr.of(i),)), value, (i,))])

    (near,) = print_kernel(kernel(1 << 20, 1 << 10), ())
    (far,) = print_kernel(kernel(1 << 20, 1 << 12), ())
    assert "const int i0" in near.text
    assert "long" not in near.text
    assert "const long i0 = long(at.x)" in far.text
    assert far.wide
    assert not near.wide


def test_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.backends.mps.is_available():
        assert targets.target_of(torch.device("mps")) == "torch has no Metal device here"
    monkeypatch.setattr(torch.mps, "compile_shader", shim.Library)
    same(Function(softmax, target=targets.METAL)(randn(7, 35)), softmax(randn(7, 35)))


# --- math -------------------------------------------------------------------------------------------------


@functools.cache
def loops_over_functions() -> ctypes.CDLL:
    """A library with a loop for each function of one or two numbers."""
    loops = ""
    for name in (*UNARY_ULP, "atan2", "pow", "fmod", "remainder"):
        inputs = ["x0"] if name in UNARY_ULP else ["x0", "x1"]
        pointers = ", ".join(f"const float *{x}" for x in inputs)
        values = ", ".join(f"{x}[i]" for x in inputs)
        loops += (
            f'extern "C" void loop_{name}({pointers}, float *y, long n)\n'
            f"{{ for (long i = 0; i < n; i++) y[i] = {name}_f32({values}); }}\n"
        )
    return shim.compile_cpp(f'#include "shim.h"\nnamespace metal {{\n{prelude.source(loops)}\n{loops}\n}}\n')


def applied(name: str, *inputs: Tensor) -> Tensor:
    result = torch.empty_like(inputs[0])
    loop = getattr(loops_over_functions(), f"loop_{name}")
    loop(*(ctypes.c_void_p(t.data_ptr()) for t in (*inputs, result)), ctypes.c_long(result.numel()))
    return result


def floats(count: int, seed: int) -> Tensor:
    """Floats of all magnitudes: half of any bits, half between 1/16 and 16."""
    source = torch.Generator().manual_seed(seed)
    bits = torch.randint(-(2**31), 2**31, (count,), generator=source).to(torch.int32).view(torch.float32)
    near = torch.exp2(torch.rand(count, generator=source) * 8 - 4)
    near *= torch.where(torch.rand(count, generator=source) < 0.5, 1.0, -1.0)
    return torch.cat([bits[~bits.isnan()], near])


def ulps(ours: Tensor, exact: Tensor) -> float:
    rounded = exact.float().double()
    finite = rounded.isfinite() & ours.isfinite()
    same(ours[~finite].double(), rounded[~finite])
    _, exponent = torch.frexp(rounded[finite])
    unit = torch.exp2((exponent - 24).clamp(min=-149).double())
    return float(((ours[finite].double() - exact[finite]).abs() / unit).max())


@pytest.mark.parametrize("name", UNARY_ULP)
def test_math_of_one_number(name: str) -> None:
    x = floats(100_000, 0)
    if name == "acosh":
        x = x.abs() + 1
    elif name in ("asin", "acos", "atanh"):
        x = torch.cat([x[x.abs() <= 1], torch.linspace(-1, 1, 10_000)])
    # Functions that use double in C have a different implementation here.
    bound = {"sin": 2.1, "cos": 2.1, "tan": 4.0}.get(name, UNARY_ULP[name] + 0.01)
    assert ulps(applied(name, x), getattr(torch, name)(x.double())) <= bound


def test_math_of_two_numbers() -> None:
    x, y = floats(200_000, 1), floats(200_000, 2)
    count = min(len(x), len(y))
    x, y = x[:count], y[:count]
    assert ulps(applied("atan2", x, y), torch.atan2(x.double(), y.double())) <= 2.5
    assert ulps(applied("pow", x, y), torch.pow(x.double(), y.double())) <= 2
    # Powers that are neither 0 nor infinity, where the exponent needs the most bits.
    y = (torch.rand(count) * 250 - 125) / torch.log2(x.abs()).clamp(-1e30, 1e30)
    assert ulps(applied("pow", x.abs(), y), torch.pow(x.abs().double(), y.double())) <= 2
    x, y = floats(200_000, 1)[:count], floats(200_000, 2)[:count]
    for name in ("fmod", "remainder"):
        for divisor in (y, y / 2**20 + x / 3):
            # torch's vectorised code gives NaN where a quotient is large.
            exact = getattr(torch, name)(x.double(), divisor.double()).float()
            same(applied(name, x, divisor), exact, rtol=0, atol=0)


# A kernel takes some 30 tensors.
PARTS = 24


@pytest.mark.parametrize("first", range(0, len(UNARY + ACTIVATIONS), PARTS))
def test_special_values_of_unary_operations(first: int) -> None:
    x, names = torch.tensor(SPECIAL), (UNARY + ACTIVATIONS)[first : first + PARTS]
    functions = [getattr(torch, n, None) if n in UNARY else getattr(F, n) for n in names]

    def all_of(x):
        return [fn(x) for fn in functions]

    for name, ours, theirs in zip(names, metal(all_of)(x), all_of(x), strict=True):
        assert_same(ours, theirs, name)


def test_special_values_of_binary_operations() -> None:
    x = torch.tensor(SPECIAL)

    def all_of(a, b):
        return [getattr(torch, n)(a, b) for n in BINARY]

    a, b = x[:, None], x[None, :]
    for name, ours, theirs in zip(BINARY, metal(all_of)(a, b), all_of(a, b), strict=True):
        assert_same(ours, theirs, name)


# --- the shim itself --------------------------------------------------------------------------------------

_HEAD = """#include <metal_stdlib>
using namespace metal;
kernel void k(
    device float *y0 [[buffer(0)]],
    uint3 at [[thread_position_in_grid]])
"""


def kernel(body: str) -> Any:
    return shim.Library(f"{_HEAD}{{\n{body}\n}}\n").k


def test_the_shim_runs_groups_in_step() -> None:
    y = torch.empty(64)
    kernel(
        "    threadgroup float all[64];\n    all[at.x] = at.x;\n"
        "    threadgroup_barrier(mem_flags::mem_threadgroup);\n    y0[at.x] = all[63 - at.x];"
    )(y, threads=(64, 1, 1), group_size=(64, 1, 1))
    same(y, torch.arange(64.0).flip(0))
    kernel("    y0[at.x] = simd_shuffle_xor(float(at.x), 5);")(y, threads=(64, 1, 1), group_size=(64, 1, 1))
    same(y, (torch.arange(64) ^ 5).float())


@pytest.mark.parametrize(
    ("body", "threads", "message"),
    [
        ("    y0[at.x + 1] = 0;", 64, "an index out of bounds: 64, expected 64"),
        ("    y0[at.x] = simd_shuffle_xor(1.0f, 1);", 40, "without all lanes"),
        ("    if (at.x < 9) threadgroup_barrier(mem_flags::mem_threadgroup);", 64, "wait for others"),
        ("    if (at.x < 9) y0[at.x] = simd_shuffle_xor(1.0f, 1);", 64, "wait for others"),
    ],
)
def test_the_shim_notices(body: str, threads: int, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        kernel(body)(torch.empty(64), threads=(threads, 1, 1), group_size=(64, 1, 1))


def test_the_shim_exposes_a_missing_barrier() -> None:
    y = torch.empty(64)
    kernel(
        "    threadgroup float all[64];\n    all[at.x] = at.x;\n    y0[at.x] = all[63 - at.x]; // barrier"
    )(y, threads=(64, 1, 1), group_size=(64, 1, 1))
    assert not y.equal(torch.arange(64.0).flip(0))
