"""Generated Triton kernels compiled for GPUs that need not be present."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="Triton exists for Linux alone")

import triton.language as tl

from burnt.kernels.ops.embedding.backward_triton import add_runs
from burnt.kernels.ops.rnn import loop_triton
from burnt.kernels.optim import foreach_triton
from burnt.kernels.optim import formula as updates
from burnt.kernels.optim.formula import Trace, Update, trace
from tests.codegen.render.triton.ahead import SHARED, TARGETS, compiled, compiled_as_written, printed


def gelu(x):
    return 0.5 * x * (1 + torch.erf(x * 0.5**0.5))


def gelu_tanh(x):
    return F.gelu(x, approximate="tanh")


def softmax(x):
    return torch.softmax(x, -1)


def layer_norm(x, w, b):
    return F.layer_norm(x, (x.shape[-1],), w, b)


def rms_norm_residual(x, r, w):
    s = x + r
    return s * torch.rsqrt((s * s).mean(-1, keepdim=True) + 1e-6) * w, s


def cross_entropy(x, t):
    return F.cross_entropy(x, t)


def swiglu(a, b):
    return F.silu(a) * b


def rope(x, c, s):
    half = x.shape[-1] // 2
    return torch.cat([x[..., :half] * c - x[..., half:] * s, x[..., half:] * c + x[..., :half] * s], -1)


def sum_first(x):
    return x.sum(0)


def sum_last(x):
    return x.sum(-1)


def sum_all(x):
    return x.sum()


def argmax(x):
    return x.argmax(-1)


def transposed_sum(x, y):
    return x.t() + y


def _case(fn: Callable[..., Any], *shapes: Any, gradients: bool = True) -> tuple[Any, ...]:
    return fn, shapes, gradients


TARGET = "target"  # in place of a shape: class indices for the tensor before
CASES = {
    "gelu": _case(gelu, (4096, 512)),
    "gelu_tanh": _case(gelu_tanh, (4096, 512)),
    "softmax": _case(softmax, (4096, 1024)),
    "softmax, long rows": _case(softmax, (300, 40_000)),
    "softmax, 16384": _case(softmax, (256, 16_384)),
    "layer_norm": _case(layer_norm, (2048, 768), (768,), (768,)),
    "layer_norm, 8192": _case(layer_norm, (512, 8192), (8192,), (8192,)),
    "rms_norm_residual": _case(rms_norm_residual, (2048, 4096), (2048, 4096), (4096,)),
    "cross_entropy": _case(cross_entropy, (512, 32_000), TARGET),
    "var, long rows": _case(lambda x: x.var(-1), (64, 50_000)),
    "logsumexp, few long rows": _case(lambda x: torch.logsumexp(x, -1), (20, 1_000_000)),
    "swiglu": _case(swiglu, (1024, 1000), (1024, 1000)),
    "rope": _case(rope, (8, 16, 128, 64), (128, 32), (128, 32)),
    "sum of the first axis": _case(sum_first, (4096, 1024)),
    "sum of the last axis": _case(sum_last, (4096, 1024)),
    "sum of all": _case(sum_all, (4096, 1024)),
    "cumsum": _case(lambda x: x.cumsum(-1), (512, 1000)),
    "cumsum, long rows": _case(lambda x: x.cumsum(-1), (64, 50_000)),
    "cummax of the first axis": _case(lambda x: torch.cummax(x, 0), (512, 1000), gradients=False),
    "logcumsumexp": _case(lambda x: x.logcumsumexp(-1), (512, 1000), gradients=False),
    "dropout": _case(lambda x: F.dropout(x, 0.1), (512, 1000)),
    "max_pool": _case(lambda x: F.max_pool2d(x, 3, 2, 1).relu(), (8, 64, 56, 56)),
    "argmax": _case(argmax, (512, 1000), gradients=False),
    "transposed_sum": _case(transposed_sum, (1000, 2000), (2000, 1000)),
}  # fmt: skip
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
SAMPLE = [
    "gelu",
    "softmax",
    "layer_norm",
    "var, long rows",
    "logsumexp, few long rows",
    "sum of the first axis",
    "rope",
    "cumsum",
    "dropout",
]

pytestmark = pytest.mark.filterwarnings("ignore")


def kernels(case: str, dtype: str) -> list[Any]:
    fn, shapes, gradients = CASES[case]
    args: list[torch.Tensor] = []
    for shape in shapes:
        if shape == TARGET:
            args.append(torch.zeros(args[-1].shape[0], dtype=torch.int64))
        else:
            args.append(torch.zeros(shape, dtype=DTYPES[dtype]))
    return printed(fn, *args, gradients=gradients)


# ptxas may spill one or two addresses around the call that an exact division by a denormal needs, once per
# kernel and outside of its loops.
AROUND_A_CALL = 16


def check(case: str, dtype: str, target: str, folder: Any) -> None:
    found = compiled(kernels(case, dtype), target, folder)
    assert found
    for kernel in found:
        label = f"{case} {dtype} {target} {kernel.name}: {kernel.registers} registers"
        assert kernel.spilled <= AROUND_A_CALL, f"{label}, {kernel.spilled} bytes spilled"
        assert kernel.shared <= SHARED[target], label
        double = re.findall(r"\S*\.f64\S*|v_\S*_f64\S*", kernel.assembly)
        assert not double, f"{label}: {sorted(set(double))}"


@pytest.mark.sample(4)
@pytest.mark.parametrize("case", SAMPLE)
@pytest.mark.parametrize(("dtype", "target"), [("bf16", "sm_90"), ("f32", "gfx942")])
def test_a_sample(case, dtype, target, tmp_path):
    check(case, dtype, target, tmp_path)


@pytest.mark.sample(0, full=130)
@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_all_cases(case, dtype, target, tmp_path):
    """130 of them, which BURNT_SEED draws."""
    check(case, dtype, target, tmp_path)


@pytest.mark.parametrize(
    ("case", "count"),
    [("gelu", 1), ("softmax", 1), ("layer_norm", 1), ("rms_norm_residual", 1), ("swiglu", 1), ("rope", 1)],
)
def test_how_many_kernels(case, count):
    fn, shapes, _ = CASES[case]
    assert len(printed(fn, *[torch.zeros(shape) for shape in shapes])) == count


def test_loads_are_vectorized(tmp_path):
    """16 bytes at once, where alignment allows it."""
    (kernel,) = compiled(printed(gelu, torch.zeros(1 << 20)), "sm_90", tmp_path)
    assert "ld.global.v4.b32" in kernel.assembly
    (kernel,) = compiled(printed(softmax, torch.zeros(4096, 1024).bfloat16()), "sm_90", tmp_path)
    assert "ld.global.v4.b32" in kernel.assembly


def test_indices_beyond_int32():
    x = torch.empty(1, dtype=torch.int8).expand(3 << 30)
    large, *_ = printed(lambda x: x.sum(dtype=torch.int64), x)
    assert "tl.program_id(0).to(tl.int64)" in large.text
    assert "tl.arange(0, COLS).to(tl.int64)" in large.text
    (small,) = printed(lambda x: x + 1, torch.zeros(1000))
    assert "int64" not in small.text


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_embedding_backward_does_not_spill(target: str, tmp_path: Any) -> None:
    for dtype, inside in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
        arguments = [
            dtype,
            torch.int64,
            torch.int64,
            dtype,
            inside,
            torch.int64,
            4096,
            768,
            -1,
            True,
            32,
            512,
        ]
        result = compiled_as_written(add_runs, arguments, target, tmp_path)
        assert result.spilled == 0
        assert result.shared <= SHARED[target]
        assert dtype == torch.float64 or "f64" not in result.assembly


UPDATES = [update for update in vars(updates).values() if isinstance(update, Update)]


SWITCHES = "decoupled", "decoupled_weight_decay", "nesterov", "amsgrad", "centered", "no_prox"
NUMBERS = (
    "lr", "beta1", "beta2", "beta3", "eps", "weight_decay", "momentum", "dampening", "alpha", "rho",
    "lr_decay", "momentum_decay", "warmup_steps", "ema_weight",
)  # fmt: skip
ALL_OPTIONS = dict.fromkeys(NUMBERS, 0.5) | dict.fromkeys(SWITCHES, True)


def traced(update: Update) -> Trace:
    """An update with all that it may be asked for: every option is a number other than 0, or true."""

    elements = [*update.elements, "grad", *(["ema"] if "param" in update.elements else [])]
    return trace(update, elements, ALL_OPTIONS)


def optimizer_kernels(element: tl.dtype, selected: Sequence[Update]) -> dict[str, tuple[Any, list[Any]]]:
    """Each kernel with all that it may be asked for."""
    table, owners, outcome = torch.int64, torch.int32, torch.float32
    size, chunk = foreach_triton.BLOCK, foreach_triton.CHUNK
    nadam = foreach_triton.compile_update(traced(updates.NADAM))
    wide = [0.5] * 2 * len(nadam.wide)

    def kernel_of_update(update: Update) -> tuple[str, tuple[Any, list[Any]]]:
        kernels = foreach_triton.compile_update(traced(update))
        tables = [table] * len(traced(update).elements)
        numbers = [0.5] * len(kernels.narrow)
        arguments = [table, owners, *tables, outcome, outcome, *numbers, True, element, True, size]
        return update.name, (kernels.update, arguments)

    return {
        "squares": (
            foreach_triton.squares,
            [table, owners, table, outcome, outcome, 0, 1000, True, element, True, chunk, size],
        ),
        "finish": (
            foreach_triton.finish,
            [outcome, outcome, outcome, 1.5, 1000, True, True],
        ),
        **dict(map(kernel_of_update, selected)),
        "prepare": (nadam.prepare, [table, table, outcome, outcome, *wide, 300, True, 128]),
    }


def check_steps_of_optimizers(
    target: str, folder: Any, elements: Sequence[tl.dtype], selected: Sequence[Update]
) -> None:
    for element in elements:
        for name, (kernel, arguments) in optimizer_kernels(element, selected).items():
            result = compiled_as_written(kernel, arguments, target, folder)
            assert result.spilled == 0, (name, target, result.registers)
            assert result.shared <= SHARED[target]
            assert name == "prepare" or "f64" not in result.assembly, (name, target)
            # 16 bytes at once of what begins there.
            if name not in ("finish", "prepare") and target == "sm_90" and element == tl.float32:
                assert "ld.global.v4.b32" in result.assembly, name


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_steps_of_optimizers(target: str, tmp_path: Any) -> None:
    check_steps_of_optimizers(target, tmp_path, [tl.float32], [updates.SGD, updates.ADAM, updates.MUON])


@pytest.mark.full
@pytest.mark.parametrize("target", TARGETS)
def test_steps_of_optimizers_on_all_targets(target: str, tmp_path: Any) -> None:
    check_steps_of_optimizers(target, tmp_path, [tl.float32, tl.bfloat16, tl.float16], UPDATES)


def of_recurrent_layers(dtype: torch.dtype, lstm: bool) -> dict[str, list[Any]]:
    """Arguments of the kernels of a recurrent layer with all that it may have."""
    width = 12
    sizes = [128, 640, width]
    bias = None if lstm else dtype
    before = [torch.float32, torch.float32] if lstm else [torch.float32] * 2
    return {
        "forward_cell": [dtype, bias, dtype, dtype, torch.float32 if lstm else None, torch.int64, dtype,
                         dtype, 3, *sizes[1:], lstm, True, 256],
        "backward_cell": [dtype, *before, dtype, dtype, dtype, dtype, dtype, torch.int64, dtype, dtype, 3,
                          *sizes, 640 * width, width, lstm, True, 256],
    }  # fmt: skip


def check_recurrent(name: str, dtype: torch.dtype, lstm: bool, target: str, folder: Any) -> None:
    arguments = of_recurrent_layers(dtype, lstm)[name]
    result = compiled_as_written(getattr(loop_triton, name), arguments, target, folder)
    assert result.spilled <= AROUND_A_CALL, f"{result.registers} registers, {result.spilled} bytes spilled"
    assert result.shared <= SHARED[target]
    assert not re.findall(r"\S*\.f64\S*|v_\S*_f64\S*", result.assembly)


RECURRENT = ["forward_cell", "backward_cell"]


@pytest.mark.parametrize("name", RECURRENT)
@pytest.mark.parametrize(("dtype", "target"), [(torch.bfloat16, "sm_90"), (torch.float32, "gfx942")], ids=str)
def test_steps_of_recurrent_layers(name: str, dtype: torch.dtype, target: str, tmp_path: Any) -> None:
    check_recurrent(name, dtype, True, target, tmp_path)


@pytest.mark.sample(0, full=48)
@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", RECURRENT)
@pytest.mark.parametrize("lstm", [True, False], ids=["lstm", "gru"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_steps_of_recurrent_layers_everywhere(
    name: str, lstm: bool, dtype: torch.dtype, target: str, tmp_path: Any
) -> None:
    """48 of them, which BURNT_SEED draws."""
    check_recurrent(name, dtype, lstm, target, tmp_path)
