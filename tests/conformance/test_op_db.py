"""PyTorch's own samples of its operators (`op_db`), fused and compared with eager torch.

An operator's samples of a dtype are fused together, a few to a function, which takes their tensors and
floats: compilers take long for more, and each by itself would be a library of its own. What takes a call of
torch's own is left out: it would compare torch with itself. Where an operator has hundreds of samples (all
combinations of what a pool may be given), each is checked in one dtype, and each dtype checks its share.
Values and gradients are held against float64 by the gate's measure (`tests.codegen.compare`).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils import _pytree as pytree

from burnt.codegen.frontend.trace import InlinedWhenTraced, trace, why_unsupported
from burnt.codegen.function import Function
from burnt.codegen.ir import Kernel
from burnt.codegen.runtime.c_compiler import find_compiler
from burnt.codegen.schedule.capabilities import Capabilities
from burnt.codegen.schedule.scheduler import schedule
from tests.codegen.compare import Mismatch, Verdict, Watched, compare, default_dtype

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(find_compiler() is None, reason="no C compiler here: eager functions run"),
]

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool)
OPS: dict[str, OpInfo] = {
    f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name: op for op in op_db
}
# Operators of which no two calls agree, or that ask what a fused function does not promise.
LEFT_OUT = {
    "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided",  # any values
    "resize_", "resize_as_",  # what is new in memory may be anything
}  # fmt: skip
# Operators, by dtype or all of them, that differ from eager torch; each fails until it does not.
EXPECTED: dict[tuple[str, torch.dtype | None], str] = {
    ("nn.functional.hardsigmoid", torch.float64): "torch's gradient is 1/6 in float32 there; ours is exact"
}
PER_OP, ALL = 3, 1000
TOGETHER = 16
HUNDREDS = 200


class Sample:
    """One call of an operator: a function of its tensors and floats, everything else in place."""

    def __init__(self, op: OpInfo, sample: Any) -> None:
        self.op = op
        self.leaves, self.spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        self.given = [
            i for i, leaf in enumerate(self.leaves) if isinstance(leaf, Tensor) or type(leaf) is float
        ]
        self.args = [self.leaves[i] for i in self.given]

    def __call__(self, *args: Any, wide: bool = False) -> list[Any]:
        first, rest, keywords = self.rebuilt(args, wide)
        result = self.op(first, *rest, **keywords)
        return [t for t in pytree.tree_leaves(result) if isinstance(t, Tensor)]

    def rebuilt(self, args: Sequence[Any], wide: bool = False) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """What the operator is called with, with other tensors and floats: the first, the rest, by name."""
        leaves = list(self.leaves)
        if wide:
            leaves = [_wide(v) for v in leaves]
        for i, arg in zip(self.given, args, strict=True):
            leaves[i] = arg
        result: tuple[Any, tuple[Any, ...], dict[str, Any]] = pytree.tree_unflatten(leaves, self.spec)
        return result

    def wants_gradient(self) -> list[bool]:
        return [isinstance(a, Tensor) and a.requires_grad for a in self.args]


def _wide(leaf: Any) -> Any:
    """A dtype to compute in, on its own or among an operator's options, as float64."""
    if isinstance(leaf, torch.dtype) and leaf.is_floating_point:
        return torch.float64
    if hasattr(leaf, "acc_dtype") and dataclasses.is_dataclass(leaf):
        return dataclasses.replace(leaf, acc_dtype=torch.float64)  # type: ignore[type-var]
    return leaf


class Together(InlinedWhenTraced):
    """Several samples as one function."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.samples = samples
        self.args = [arg for sample in samples for arg in sample.args]

    def __call__(self, *args: Any, wide: bool = False) -> tuple[Tensor, ...]:
        given, result = iter(args), []
        for sample in self.samples:
            result += sample(*itertools.islice(given, len(sample.args)), wide=wide)
        return tuple(result)


def shared(op: OpInfo, dtype: torch.dtype, samples: Iterator[Any]) -> Iterator[Any]:
    """A dtype's share of an operator's samples, if these are hundreds; else all of them."""
    first = list(itertools.islice(samples, HUNDREDS))
    if len(first) < HUNDREDS:
        return iter(first)
    dtypes = [d for d in DTYPES if d in op.dtypes]
    return itertools.islice(itertools.chain(first, samples), dtypes.index(dtype), None, len(dtypes))


def lowered(samples: Iterator[Any], op: OpInfo, most: int) -> list[Sample]:
    """The first samples that come out as kernels alone, and that torch computes the same way twice."""
    found: list[Sample] = []
    for raw in itertools.islice(samples, 4 * most):
        sample = Sample(op, raw)
        if len(found) == most:
            break
        tensors = [a for a in sample.args if isinstance(a, Tensor)]
        if sum(t.numel() for t in tensors) > 20_000:
            continue
        with torch.no_grad():
            # Planned, not compiled: that is done once for all of them.
            planned = _planned(Function(sample), [_fresh(a) for a in sample.args])
        if planned:
            found.append(sample)
    return found


def _fresh(arg: Any) -> Any:
    return arg.detach().clone() if isinstance(arg, Tensor) else arg


def _planned(function: Function, args: list[Any]) -> bool:
    if function._why_unsupported_tensors([a for a in args if isinstance(a, Tensor)]) is not None:
        return False

    def of_tensors(*given: Tensor) -> Any:
        tensors = iter(given)
        return function.fn(*(next(tensors) if isinstance(a, Tensor) else a for a in args))

    try:
        # Traced once: numbers that are inputs are looked for when the samples are fused.
        traced, _ = trace(of_tensors, [a for a in args if isinstance(a, Tensor)])
    except Exception:  # of any kind: the eager function runs
        return False
    if why_unsupported(traced, torch.device("cpu")) is not None:
        return False
    nodes = [node.target for node in traced.graph.graph.nodes if node.op == "call_function"]
    if any(torch.Tag.nondeterministic_seeded in getattr(target, "tags", ()) for target in nodes):
        return False
    captured = [getattr(traced.graph, name) for name in traced.captured]
    plan = schedule(traced, captured, Capabilities())
    return all(isinstance(step, Kernel) for step in plan.steps)


def run(fn: Callable[..., tuple[Tensor, ...]], args: Sequence[Any], wanted: Sequence[bool]) -> list[Any]:
    """The results, and the gradients of the arguments that want one."""
    given = [_fresh(a) for a in args]
    chosen = [a.requires_grad_() for a, want in zip(given, wanted, strict=True) if want]
    result = fn(*given)
    roots = [t for t in result if t.requires_grad]
    found: tuple[Any, ...] = ()
    if roots and chosen:
        pull = [(torch.arange(t.numel()) % 7 - 2.5).div(4).to(t.dtype).reshape(t.shape) for t in roots]
        found = torch.autograd.grad(roots, chosen, pull, allow_unused=True)
    return [None if t is None else t.detach() for t in (*result, *found)]


class Measure:
    """What eager torch gives, beside float64, and how far something else may be from it.

    Args:
        fn: what is run.
        dtype: of its floating-point arguments.
        wanted: for each argument, whether its gradient is.
        ulp: how many of the largest intermediate are tolerated.
    """

    def __init__(
        self, fn: Sample | Together, dtype: torch.dtype, wanted: Sequence[bool], ulp: float = 4
    ) -> None:
        eps = torch.finfo(dtype).eps if dtype.is_floating_point else torch.finfo(torch.float32).eps
        wide_args = [
            a.double() if isinstance(a, Tensor) and a.is_floating_point() else a for a in map(_fresh, fn.args)
        ]
        wide = functools.partial(fn, wide=True)
        self.eager = run(fn, fn.args, wanted)
        with default_dtype(torch.float64), Watched() as watched:
            self.truth = run(wide, wide_args, wanted)
        self.nudged = []
        for seed in range(3):
            with default_dtype(torch.float64), Watched(2 * eps, seed):
                self.nudged.append(run(wide, wide_args, wanted))
        self.slack = ulp * eps * watched.largest

    def __call__(self, ours: Sequence[Any]) -> Verdict:
        """Compare results and gradients.

        Raises:
            Mismatch: naming the result that differs.
        """
        verdict = Verdict()
        if len(ours) != len(self.eager):
            raise Mismatch(f"{len(ours)} results, expected {len(self.eager)}")
        for i, (mine, theirs, exact, *others) in enumerate(
            zip(ours, self.eager, self.truth, *self.nudged, strict=True)
        ):
            compare(f"result {i}", mine, theirs, exact, others, self.slack, verdict)
        return verdict


def check(name: str, dtype: torch.dtype, most: int) -> None:
    op = OPS[name]
    differentiable = dtype in (torch.float32, torch.float64) and op.supports_autograd
    torch.manual_seed(0)
    samples = lowered(
        shared(op, dtype, op.sample_inputs("cpu", dtype, requires_grad=differentiable)), op, most
    )
    if not samples:
        pytest.skip("takes torch's own call")
    for start in range(0, len(samples), TOGETHER):
        some = samples[start : start + TOGETHER]
        together = Together(some)
        fused = Function(together)
        wanted = [want for sample in some for want in sample.wants_gradient()]
        with torch.no_grad():
            none = [False] * len(wanted)
            Measure(together, dtype, none)(run(fused, together.args, none))
            assert fused.fallback_reason(*map(_fresh, together.args)) is None
        if any(wanted):
            Measure(together, dtype, wanted)(run(fused, together.args, wanted))


def cases(dtypes: Sequence[torch.dtype]) -> list[Any]:
    found = []
    for name, op in OPS.items():
        if op.name in LEFT_OUT:
            continue
        for dtype in dtypes:
            if dtype in op.dtypes:
                reason = EXPECTED.get((name, dtype)) or EXPECTED.get((name, None))
                marks = [pytest.mark.xfail(strict=True, reason=reason, raises=Mismatch)] if reason else []
                found.append(
                    pytest.param(name, dtype, id=f"{name}-{str(dtype).removeprefix('torch.')}", marks=marks)
                )
    return found


# Each dtype's share of the operators, another for each.
EVERY = 40


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    ("name", "dtype"), [case for i, dtype in enumerate(DTYPES) for case in cases([dtype])[i::EVERY]]
)
def test_some_samples(name: str, dtype: torch.dtype) -> None:
    check(name, dtype, PER_OP)


@pytest.mark.full
@pytest.mark.timeout(1800)  # of a pool that has hundreds of samples, on a machine that is busy
@pytest.mark.sample(0, full=160)
@pytest.mark.parametrize(("name", "dtype"), cases(DTYPES))
def test_all_samples(name: str, dtype: torch.dtype) -> None:
    """Of all operators in each dtype 160, which BURNT_SEED draws."""
    check(name, dtype, ALL)


# Shares of the operators by a hash of their names; the fast run takes one of them, for one dtype.
SHARES = 30


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("share", range(SHARES))
def test_dtypes_that_torch_refuses_are_refused(dtype: torch.dtype, share: int) -> None:
    """Of whole numbers torch computes less than its tracing says: there is no kernel in its place."""
    answered = [
        f"{name}: torch says {output}"
        for name, op in OPS.items()
        if zlib.crc32(name.encode()) % SHARES == share
        if name not in LEFT_OUT and dtype not in op.dtypes and torch.float32 in op.dtypes
        for output in _answered(op, dtype)
    ]
    # max_pool1d without gradients has a loop of its own, max_pool2d takes whole numbers.
    assert [line.split(":")[0] for line in answered] == ["nn.functional.max_pool1d"] * len(answered), answered


def _answered(op: OpInfo, dtype: torch.dtype) -> Iterator[str]:
    """What torch says of samples that it refuses, and that come out as kernels all the same."""
    for raw in itertools.islice(op.sample_inputs("cpu", torch.float32), 2):
        sample = Sample(op, raw)
        if sum(a.numel() for a in sample.args if isinstance(a, Tensor)) > 20_000:
            continue
        args = [
            a.detach().to(dtype) if isinstance(a, Tensor) and a.is_floating_point() else _fresh(a)
            for a in sample.args
        ]
        with torch.no_grad():
            try:
                sample(*args)
            except Exception as error:  # of whatever kind an operator's samples raise
                if _planned(Function(sample), args):
                    yield f"{type(error).__name__}: {error}"
