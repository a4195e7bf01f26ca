"""PyTorch's own samples of its operators (`op_db`), through `burnt.compile`, compared with eager torch.

One sample of each operator and dtype, sixteen to a graph: each by itself would be compiled by Dynamo and by a
C compiler of its own. Values, and gradients in float32, are held against float64 by the gate's measure
(`tests.codegen.compare`), sample by sample. What cannot be part of a graph, or differs, is listed in
`op_db_differences.txt`: it is compiled by itself, and fails once there is no difference.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.testing._internal import common_methods_invocations
from torch.utils import _pytree as pytree

import burnt
from burnt.codegen.runtime.c_compiler import find_compiler
from burnt.errors import FusionWarning
from tests.codegen.compare import Mismatch
from tests.conformance.test_op_db import LEFT_OUT, OPS, Measure, Sample, run

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(find_compiler() is None, reason="no C compiler here: torch runs the graphs"),
]

TOGETHER = 16
DTYPES = sorted({dtype for op in OPS.values() for dtype in op.dtypes}, key=str)
# No measure for these: the results are sparse, there must be a GPU, a nudged target is none.
UNMEASURED = {
    "sparse.sampled_addmm", "sparse.mm.reduce", "to_sparse", "nn.functional.multilabel_margin_loss",
    *(name for name in OPS if name.startswith("jiterator")),
}  # fmt: skip
WITHOUT_GRADIENT = {"linalg.eig"}  # torch refuses that of eigenvectors, which have any phase


def listed() -> dict[str, str]:
    lines = Path(__file__).with_name("op_db_differences.txt").read_text().splitlines()
    return dict(line.split(" | ")[0].split(": ") for line in lines if not line.startswith("#"))


LISTED = listed()


class Graph:
    """Several samples as one function that Dynamo traces."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.given = [[a for a in sample.args if isinstance(a, Tensor)] for sample in samples]
        numbers = itertools.count()
        space: dict[str, Any] = {}

        def text(value: Any) -> str:
            if isinstance(value, Tensor):
                return f"t{next(numbers)}"
            if type(value) in (tuple, list):
                return f"{type(value).__name__}(({''.join(f'{text(v)}, ' for v in value)}))"
            space[name := f"c{len(space)}"] = value
            return name

        calls = []
        for sample in samples:
            first, rest, keywords = sample.rebuilt(sample.args)
            given = [text(first), *map(text, rest), *(f"{k}={text(v)}" for k, v in keywords.items())]
            calls.append(f"{text(sample.op.op)}({', '.join(given)})")
        names = ", ".join(f"t{i}" for i in range(next(numbers)))
        exec(f"def fn({names}):\n    return [{', '.join(calls)}]", space)
        self.fn: Callable[..., Any] = space["fn"]

    def outcome(self, fn: Callable[..., Any]) -> list[list[Tensor | None]]:
        """The results of each sample, followed by the gradients of its arguments that want one."""
        given = [[a.detach().clone().requires_grad_(a.requires_grad) for a in each] for each in self.given]
        results = [list(filter(torch.is_tensor, pytree.tree_leaves(r))) for r in fn(*itertools.chain(*given))]
        roots = [[t for t in result if t.requires_grad] for result in results]
        wanted = [
            [a for a in each if a.requires_grad] if r else [] for each, r in zip(given, roots, strict=True)
        ]
        found: Iterator[Tensor | None] = iter(())
        if leaves := [*itertools.chain(*wanted)]:
            ends = [*itertools.chain(*roots)]
            # As in `tests.conformance.test_op_db.run`.
            pull = [(torch.arange(t.numel()) % 7 - 2.5).div(4).to(t.dtype).view(t.shape) for t in ends]
            found = iter(torch.autograd.grad(ends, leaves, pull, allow_unused=True))
        return [
            [None if t is None else t.detach() for t in (*result, *itertools.islice(found, len(leaves)))]
            for result, leaves in zip(results, wanted, strict=True)
        ]


def sample_of(name: str, dtype: torch.dtype) -> Sample:
    """The sample with the most elements of the first few; many begin with numbers, or without elements."""
    op = OPS[name]
    gradients = dtype == torch.float32 and op.supports_autograd and name not in WITHOUT_GRADIENT
    torch.manual_seed(0)
    raw = itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=gradients), 8)
    samples = [Sample(op, each) for each in raw]
    sizes = [sum(a.numel() for a in sample.args if isinstance(a, Tensor)) for sample in samples]
    return max(zip(sizes, samples, strict=True), key=lambda pair: pair[0] if pair[0] <= 20_000 else 0)[1]


def compare(sample: Sample, dtype: torch.dtype, ours: Sequence[Tensor | None]) -> None:
    """Hold results against float64; those of complex dtypes, which torch computes, against eager torch."""
    if dtype.is_complex:
        assert_close(ours, run(sample, sample.args, sample.wants_gradient()), equal_nan=True)
        return
    measure = Measure(sample, dtype, sample.wants_gradient())
    if any(t is not None and t.is_complex() for t in measure.eager):
        ours, measure.eager, measure.truth = map(real, (ours, measure.eager, measure.truth))
        measure.nudged = [real(values) for values in measure.nudged]
    measure(ours)


def real(values: Sequence[Tensor | None]) -> list[Tensor | None]:
    return [torch.view_as_real(t.resolve_conj()) if t is not None and t.is_complex() else t for t in values]


def check(names: Sequence[str], dtype: torch.dtype, *, fullgraph: bool = True) -> None:
    """Compare one sample of each operator, compiled together, with eager torch."""
    torch._dynamo.reset()
    samples = [sample_of(name, dtype) for name in names]
    graph = Graph(samples)
    with warnings.catch_warnings():
        warnings.simplefilter("error" if fullgraph else "ignore", FusionWarning)  # a graph that torch runs
        try:
            found = graph.outcome(burnt.compile(graph.fn, fullgraph=fullgraph))
        except Exception as error:
            error.add_note(f"of {', '.join(names)} in {dtype}")
            if len(names) > 1:  # which of them is it?
                for name in names:
                    check([name], dtype, fullgraph=fullgraph)
            raise
    for name, sample, ours in zip(names, samples, found, strict=True):
        try:
            compare(sample, dtype, ours)
        except AssertionError as error:
            raise Mismatch(f"{name}: {error}") from None


@pytest.fixture(autouse=True)
def unseeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators that draw random numbers are called without a seed, which Dynamo would not trace.

    What differs from run to run of eager torch, the measure sets aside: there it compares shape and dtype.
    """
    monkeypatch.setattr(
        common_methods_invocations, "wrapper_set_seed", lambda op, *args, **kwargs: op(*args, **kwargs)
    )


def names_of(dtype: torch.dtype) -> list[str]:
    return [
        name
        for name, op in OPS.items()
        if dtype in op.dtypes and op.name not in LEFT_OUT and name not in UNMEASURED
    ]


def why_listed(name: str, dtype: torch.dtype) -> str | None:
    return LISTED.get(f"{name} {str(dtype).removeprefix('torch.')}") or LISTED.get(name)


def groups(names: Sequence[str], dtype: torch.dtype) -> list[Any]:
    plain = [name for name in names if why_listed(name, dtype) is None]
    size = -(-len(plain) // max(1, round(len(plain) / TOGETHER))) if plain else 1
    return [
        pytest.param(plain[i : i + size], dtype, id=f"{str(dtype).removeprefix('torch.')}-{plain[i]}")
        for i in range(0, len(plain), size)
    ]


def chosen(dtype: torch.dtype, place: int, every: int) -> list[str]:
    """Of each family (as ``linalg``) one operator in so many, and one at least."""
    families: dict[str, list[str]] = {}
    for name in names_of(dtype):
        families.setdefault(OPS[name].name.rpartition(".")[0], []).append(name)
    return [name for all_of in families.values() for name in all_of[place % len(all_of) :: every]]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("names", "dtype"),
    [
        *groups(chosen(torch.float32, 0, 12), torch.float32),
        *(
            group
            for place, dtype in enumerate((torch.bfloat16, torch.int64, torch.bool, torch.complex64), 1)
            for group in groups(chosen(dtype, place, 40), dtype)
        ),
    ],
)
def test_some_operators(names: list[str], dtype: torch.dtype) -> None:
    check(names, dtype)


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("names", "dtype"), [group for dtype in DTYPES for group in groups(names_of(dtype), dtype)]
)
def test_all_operators(names: list[str], dtype: torch.dtype) -> None:
    check(names, dtype)


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", sorted({entry.split()[0] for entry in LISTED}))
def test_what_differs(name: str) -> None:
    """It fails under fullgraph as the list says; without, a result differs, or Dynamo breaks the graph."""
    for dtype in DTYPES:
        if dtype in OPS[name].dtypes and (reason := why_listed(name, dtype)) is not None:
            with pytest.raises(Exception, match=reason.replace(" ", r"\s+")):  # of torch's many kinds
                check([name], dtype)
            if "wrong" not in reason:
                check([name], dtype, fullgraph=False)
