"""The gate's measure: a fused program next to eager torch and float64.

The error against float64 is at most four times that of eager torch in the same dtype, plus four ulp of the
largest intermediate. Elements that rounding alone can turn over, because they are close to a comparison, a
rounding step or a tie, are found by running the program in float64 with every result nudged by about one ulp:
what then moves by more than the tolerance is set aside and counted. Integers and booleans are equal.

Where float64 itself is judged the reference is rounded, too. The ulp are sixteen: sums of some hundred
numbers are that far from eager's, and nearer to the exact ones. For eager's own error, which cannot be seen,
stands how far nudges move an element: a layer norm of nearly equal numbers makes any rounding large.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from burnt import _torch
from burnt.codegen.function import Function
from burnt.codegen.runtime.compiled_plan import CompiledPlan
from tests.codegen.philox_reference import Drawn
from tests.codegen.programs import DTYPES, SET_ASIDE, Program, program

# Results of these are exact, or a choice among exact values: a nudge would invent an error.
_EXACT_OPS = """
    neg abs sign ceil floor round trunc relu clamp clamp_min clamp_max where maximum minimum fmax fmin
    copysign view _unsafe_view reshape expand permute transpose t slice select flip cat stack
    constant_pad_nd repeat unsqueeze squeeze split split_with_sizes unbind alias detach clone contiguous
    full full_like zeros_like ones_like zeros ones empty empty_like new_zeros scalar_tensor amax amin max
    min masked_fill masked_fill_ diagonal tril triu roll as_strided copy_ fill_ zero_ lift_fresh _to_copy
    _reshape_alias nan_to_num hardtanh threshold unfold index select_backward slice_backward
    value_selecting_reduction_backward set_ index_select gather new_empty new_empty_strided hardshrink
    diagonal_backward expand_copy permute_copy max_pool2d_with_indices max_pool3d_with_indices
    adaptive_max_pool2d adaptive_max_pool3d cummax cummin floor_divide
"""
_EXACT = frozenset(_EXACT_OPS.split())
# A result on the edge falls to either side: one in eight stays where it is for three nudges.
_NUDGES, _MORE_NUDGES = 3, 16


class Mismatch(AssertionError):
    """A fused program does not do what eager torch does."""


class Watched(TorchDispatchMode):
    """Notes the largest finite element of any result, and nudges each by up to `nudge` of itself."""

    def __init__(self, nudge: float = 0.0, seed: int = 0) -> None:
        super().__init__()
        self.largest = 0.0
        self.nudge = nudge
        self.source = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (steps := _STEPS.get(func)) is None:
            actual = func(*args, **(kwargs or {}))
        elif not self.nudge:
            actual = steps(*args, **(kwargs or {}))
        else:
            with self:  # a mean rounds, too, and moves all elements of a row by as much
                return steps(*args, **(kwargs or {}))
        rounded = bool(kwargs) and kwargs.get("rounding_mode") is not None
        exact = rounded or func._schema.name.removeprefix("aten::") in _EXACT
        for result in pytree.tree_leaves(actual):
            if isinstance(result, Tensor) and result.is_floating_point() and result.numel():
                if result._is_zerotensor():
                    continue  # zeros without memory, as the gradient of sgn has them
                if not exact and self.nudge and not func._schema.is_mutable:
                    noise = torch.rand(result.shape, generator=self.source, dtype=torch.float64) * 2 - 1
                    result.mul_((1 + noise * self.nudge).to(result.dtype))
                finite = float(result.abs().nan_to_num_(0, 0, 0).max())
                self.largest = max(self.largest, finite)
        return actual


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return normally distributed numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def source_of(plan: CompiledPlan) -> str:
    """Return the source of a plan's generated kernels."""
    return "\n".join(["", *plan.texts.values()])


def _moments(
    x: Tensor, axes: Sequence[int] | None, correction: float, keepdim: bool
) -> tuple[Tensor, Tensor]:
    """The variance and the mean, in two passes: torch's one pass rounds more, and makes NaN of infinities."""
    axes = tuple(axes or range(x.ndim))
    mean = x.mean(axes, keepdim=True)
    terms = x.numel() // max(mean.numel(), 1)
    var = (x - mean).square().sum(axes, keepdim=True) / max(terms - correction, 0)
    return (var, mean) if keepdim else (var.squeeze(axes), mean.squeeze(axes))


def _var_mean(
    x: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    return _moments(x, dim, 1 if correction is None else correction, keepdim)


def _layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    var, mean = _moments(x, range(-len(shape), 0), 0, True)
    rstd = (var + eps).rsqrt()
    result = (x - mean) * rstd
    result = result if weight is None else result * weight
    return result if bias is None else result + bias, mean, rstd


_STEPS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.native_layer_norm.default: _layer_norm,
    torch.ops.aten.var_mean.correction: _var_mean,
    torch.ops.aten.var.correction: lambda *args, **settings: _var_mean(*args, **settings)[0],
    torch.ops.aten.std.correction: lambda *args, **settings: _var_mean(*args, **settings)[0].sqrt(),
}


# Why a program may be run as the eager function that it is; what no kernel can be printed for is none.
_PLAIN = (
    "cannot be traced",
    "returns a view of an argument that it modifies in place",
    "modifies elements in place that share memory",
    "modifies a tensor in place that overlaps another argument of the same op",
    "results overlap in part",
    "tensors on cuda",  # and constants on the CPU, by which torch indexes them
)


@dataclasses.dataclass
class Verdict:
    """How many elements were compared, and how many of them were set aside."""

    elements: int = 0
    aside: int = 0


def judge(program: Program, fuse: Callable[..., Any], device: str | torch.device = "cpu") -> Verdict:
    """Compare a program with eager torch on a CPU: its results, and its gradients where it has them.

    Args:
        program: what is run.
        fuse: makes the function that is looked at of the program's.
        device: where that function runs.

    Raises:
        Mismatch: naming what differs, with the program's source.
    """
    if program.grammar == "plain" and program.seed in SET_ASIDE:
        return Verdict(1, 1)
    fn, args = program.built()
    wide, wide_args = program.built(wide=True)
    eps = max(torch.finfo(DTYPES[name]).eps for name in program.families) if program.families else 0.0
    torch.manual_seed(program.seed)
    noise = Drawn(int(torch.empty(1, dtype=torch.int64, device=device).random_()))
    with noise:
        eager = _run(fn, args, program.gradients)
    try:
        with default_dtype(torch.float64), noise.again(), Watched() as watched:
            truth = _run(wide, wide_args, program.gradients)
    except RuntimeError as error:
        if "refer to a single memory location" not in str(error):
            raise
        return Verdict(1, 1)  # a copy within itself, which torch refuses where it lies densely in memory
    there = [moved(a, device) if isinstance(a, Tensor) else a for a in args]
    function = fuse(fn)
    torch.manual_seed(program.seed)
    fused = [None if t is None else moved(t, "cpu") for t in _run(function, there, program.gradients)]
    why = function.fallback_reason(*there) if isinstance(function, Function) else None
    if why is not None and not any(reason in why for reason in _PLAIN):
        raise Mismatch(f"eager torch was compared with itself: {why}\n{program.source}")
    if why is not None and noise.dtypes:
        return Verdict(1, 1)  # torch drew numbers of its own
    # For a few ops torch describes other strides than it makes (logaddexp of an expanded tensor).
    try:
        described = _torch.fake_results(fn, args)
    except DataDependentOutputException:  # an index without axes: a shape that torch has to look for
        described = eager
    slack = (16 if eps == torch.finfo(torch.float64).eps else 4) * eps * watched.largest
    nudged: list[list[Tensor | None]] = []

    def compared(nudges: int) -> Verdict:
        for seed in range(len(nudged), nudges):
            # A nudge that turns 0 into something makes some other class of it, which there may not be.
            nudge = Watched(2 * eps, seed)
            with contextlib.suppress(IndexError), default_dtype(torch.float64), noise.again(), nudge:
                nudged.append(_run(wide, wide_args, program.gradients))
        verdict = Verdict()
        if len(fused) != len(eager):
            raise Mismatch(f"{len(fused)} results, expected {len(eager)}")
        for i, (ours, theirs, exact, *others) in enumerate(zip(fused, eager, truth, *nudged, strict=True)):
            compare(f"result {i}", ours, theirs, exact, others, slack, verdict)
            # Of a gradient torch promises no strides.
            if i < len(program.results) and strides(ours) not in (strides(theirs), strides(described[i])):
                raise Mismatch(f"result {i}: strides {strides(ours)}, expected {strides(theirs)}")
        return verdict

    try:
        try:
            return compared(_NUDGES)
        except Mismatch:
            return compared(_MORE_NUDGES)
    except Mismatch as error:
        raise Mismatch(f"{error}\n{program.source}") from None


def launch(program: Program, fuse: Callable[..., Any]) -> None:
    """Run a program's kernels, forward and backward, and compare nothing.

    With the null driver an index that a kernel should have computed is whatever lay there: torch refuses it.
    """
    if program.grammar == "plain" and program.seed in SET_ASIDE:
        return
    fn, args = program.built()
    torch.manual_seed(program.seed)
    try:
        _run(fuse(fn), args, program.gradients)
    except (IndexError, RuntimeError) as error:
        if "out of bounds" not in str(error):
            raise


def judge_fresh(
    minutes: float, fuse: Callable[..., Any], suits: Callable[[Program], bool] = lambda made: True
) -> None:
    """Judge programs that nobody has seen, for as long; what fails tells its seed and grammar.

    Args:
        minutes: how long.
        fuse: as for `judge`.
        suits: which programs are judged.
    """
    end = time.monotonic() + 60 * minutes
    while time.monotonic() < end:
        made = program(random.randrange(1 << 20, 1 << 40), random.choice(["plain", "wider"]))
        if not suits(made):
            continue
        try:
            judge(made, fuse)
        except Mismatch:
            raise
        except Exception as error:
            raise Mismatch(f"{type(error).__name__}: {error}\n{made.source}") from error


def moved(tensor: Tensor, device: str | torch.device) -> Tensor:
    """A tensor on another device, laid out in memory as it was."""
    if tensor.device == torch.device(device):
        return tensor
    storage = tensor.untyped_storage()
    whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    whole.set_(storage, 0, (len(storage) // tensor.itemsize,))
    return whole.to(device).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _run(fn: Callable[..., Any], args: Sequence[Any], gradients: bool) -> list[Tensor | None]:
    """The results of a function, and, after them, its gradients for fixed cotangents."""
    args = [fresh(a) if isinstance(a, Tensor) else a for a in args]
    wanted = []
    if gradients:
        wanted = [a for a in args if isinstance(a, Tensor) and a.is_floating_point()]
        for tensor in wanted:
            tensor.requires_grad_()
    result = fn(*args)
    results = list(result) if isinstance(result, tuple) else [result]
    roots = [r for r in results if r.requires_grad]
    found: tuple[Tensor | None, ...] = ()
    if wanted and roots:
        # Exact in every dtype, different for each element, and the same however the result lies in memory.
        places = [torch.arange(r.numel(), device=r.device) for r in roots]
        pull = [(p % 7 - 2.5).div(4).to(r.dtype).reshape(r.shape) for p, r in zip(places, roots, strict=True)]
        found = torch.autograd.grad(roots, wanted, pull, allow_unused=True)
    results += [torch.tensor(r.requires_grad) for r in results] if gradients else []
    return [None if t is None else t.detach() for t in (*results, *found)]


def outcome(fn: Callable[..., Any], args: Sequence[Any], gradient: bool = True) -> list[Tensor]:
    """The results of a function that changes no argument, and its gradients for fixed cotangents."""
    args = [
        a.detach().requires_grad_(gradient) if isinstance(a, Tensor) and a.is_floating_point() else a
        for a in args
    ]
    result = fn(*args)
    results = list(result) if isinstance(result, tuple) else [result]
    roots = [r for r in results if r.requires_grad]
    wanted = [a for a in args if isinstance(a, Tensor) and a.requires_grad]
    # Exact in every dtype, and different from element to element.
    pull = [(torch.arange(r.numel()) % 7 - 2.5).div(4).to(r.dtype).reshape(r.shape) for r in roots]
    unused = {"allow_unused": True, "materialize_grads": True}
    grads = torch.autograd.grad(roots, wanted, pull, **unused) if roots else ()
    return [t.detach() for t in (*results, *grads)]


def check_outcome(
    function: Function, args: Sequence[Any], *, gradient: bool = True, least: float = 0.0, ulps: float = 4.0
) -> None:
    """Check that a function is as exact as eager torch, against float64.

    Args:
        function: its error may be four times that of eager torch.
        args: for the function; floats are given as float64 once more.
        gradient: whether gradients are compared as well as results.
        least: rounding is relative to the largest element of a result, or to this if it is larger.
        ulps: how many rounding steps of that are allowed besides.
    """
    wide = [a.double() if isinstance(a, Tensor) and a.is_floating_point() else a for a in args]
    calls = (function, args), (function.fn, args), (function.fn, wide)
    for ours, eager, truth in zip(*(outcome(fn, given, gradient) for fn, given in calls), strict=True):
        assert ours.dtype == eager.dtype
        if not ours.is_floating_point():
            assert torch.equal(ours, truth)
            continue
        error = float((eager.double() - truth).abs().max())
        slack = ulps * torch.finfo(ours.dtype).eps * max(float(truth.abs().max()), least)
        assert float((ours.double() - truth).abs().max()) <= 4 * error + slack


def fresh(tensor: Tensor) -> Tensor:
    """The same in memory of its own, in the same layout: a run may change it in place."""
    memory = tensor.detach().untyped_storage().clone()
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
        memory, tensor.storage_offset(), tensor.shape, tensor.stride()
    )


def compare(
    name: str,
    ours: Tensor | None,
    theirs: Tensor | None,
    truth: Tensor | None,
    nudged: Sequence[Tensor | None],
    slack: float,
    verdict: Verdict,
) -> None:
    if theirs is None or ours is None or truth is None:
        # A gradient that is not there and one of zeros mean the same.
        if any(t is not None and bool(t.ne(0).any()) for t in (ours, theirs)):
            raise Mismatch(f"{name}: a gradient that is there on one side alone")
        return
    for what, found, expected in ("dtype", ours.dtype, theirs.dtype), ("shape", ours.shape, theirs.shape):
        if found != expected:
            raise Mismatch(f"{name}: {what} {found}, expected {expected}")
    verdict.elements += ours.numel()
    if not ours.numel():
        return
    a, e, t = ours.double(), theirs.double(), truth.double()
    others = [n.double() for n in nudged if n is not None]
    if not ours.is_floating_point():
        aside = e.ne(t)
        for other in others:
            aside |= other.ne(t)
        wrong = ours.ne(theirs) & ~aside
        tolerance = 0.0
    else:
        finite = e.isfinite() & t.isfinite()
        error = float((e - t).abs()[finite].max()) if bool(finite.any()) else 0.0
        ulp = torch.finfo(ours.dtype).smallest_normal * torch.finfo(ours.dtype).eps
        tolerance = 4 * error + slack + 4 * ulp
        # Eager and float64 disagree on what is not finite: an overflow of the dtype, or an exact zero below.
        aside = e.isfinite().ne(t.isfinite()) | (~e.isfinite() & _differ(e, t))
        moved_by = torch.zeros_like(t)
        for other in others:
            aside |= other.isfinite().ne(t.isfinite()) | (~t.isfinite() & _differ(other, t))
            aside |= (other - t).abs() > tolerance
            moved_by = moved_by.maximum((other - t).abs())
        allowed = tolerance + (4 * moved_by if ours.dtype == torch.float64 else 0)
        wrong = torch.where(finite, ~((a - t).abs() <= allowed), _differ(a, e)) & ~aside
    verdict.aside += int(aside.sum())
    if bool(wrong.any()):
        at = tuple(wrong.nonzero()[0].tolist())
        raise Mismatch(
            f"{name}{list(at)}: {a[at]:.9g}, eager {e[at]:.9g}, float64 {t[at]:.9g}, "
            f"tolerance {tolerance:.3g}; {int(wrong.sum())} of {ours.numel()} wrong "
            f"({ours.dtype}, {list(ours.shape)})"
        )


def _differ(a: Tensor, b: Tensor) -> Tensor:
    """Where values that need not be finite are not the same."""
    return a.ne(b) & ~(a.isnan() & b.isnan())


def strides(tensor: Tensor | None) -> list[int]:
    """Strides where they matter: those of axes that have a second element."""
    if tensor is None:
        return []
    return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]
