"""Flash attention, forward and backward, compared with attention per query in float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from burnt.kernels.interface.launch import run_all
from burnt.kernels.ops.attention import flash_triton
from burnt.kernels.ops.attention.flash import flash_attention
from burnt.kernels.ops.attention.flash_config import FlashConfig
from burnt.kernels.ops.attention.flash_triton import Problem, launches
from burnt.kernels.ops.attention.reference import dot_product_attention, eager_attention
from burnt.kernels.ops.attention.score_mod import CompiledScore, flash_with_score
from tests.codegen.compare import randn
from tests.kernels.ops.attention.by_hand import attention_by_hand

SMALL = {name: FlashConfig(16, 16, 4, 1) for name in ("dots", "keys", "queries")}
SMALL["forward"] = FlashConfig(16, 16, 4, 1, ahead=True)
UNEVEN = {
    "forward": FlashConfig(32, 16),
    "dots": FlashConfig(16, 16),
    "keys": FlashConfig(16, 32),
    "queries": FlashConfig(16, 32),
}
BOTH = {**UNEVEN, "both": FlashConfig(16, 32)}


def heads(batch: int, queries: int, keys: int, h: int, kv: int, d: int, e: int | None = None) -> list[Tensor]:
    e = d if e is None else e
    return [randn(batch, h, queries, d), randn(batch, kv, keys, d, seed=1), randn(batch, kv, keys, e, seed=2)]


def within(found: Tensor, exact: Tensor, like: torch.dtype, terms: float = 1.0) -> None:
    """As close as the rounding of the operands allows."""
    assert not found.isnan().any()
    eps = torch.finfo(like).eps
    bound = terms * 8 * eps * max(float(exact.abs().max()), 1.0)
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=bound)


STARTS = torch.tensor([0, 17, 17, 50, 60])
CASES: dict[str, tuple[list[Tensor], dict[str, Any]]] = {
    "plain": (heads(2, 37, 53, 2, 2, 16), {}),
    "one": (heads(1, 1, 1, 1, 1, 5), {}),
    "whole blocks": (heads(1, 32, 48, 1, 1, 16), {}),
    "causal": (heads(1, 50, 50, 2, 2, 20), {"after": 0}),
    "causal, more keys": (heads(1, 19, 41, 2, 1, 16), {"after": 0}),
    "causal, more queries": (heads(1, 41, 19, 2, 1, 16), {"after": 0}),
    "causal, bottom right": (heads(1, 19, 41, 2, 2, 16), {"after": 0, "bottom_right": True}),
    "causal, queries before all keys": (heads(1, 41, 19, 2, 2, 16), {"after": 0, "bottom_right": True}),
    "window": (heads(1, 67, 61, 2, 2, 16), {"before": 9, "after": 4}),
    "window, narrow": (heads(1, 50, 50, 1, 1, 16), {"before": 0, "after": 0}),
    "window, wide": (heads(1, 67, 67, 1, 1, 16), {"before": 40, "after": 0}),
    "window past the keys": (heads(1, 60, 20, 1, 1, 16), {"before": 3, "after": 2}),
    "grouped": (heads(2, 18, 23, 6, 2, 16), {"after": 0}),
    "values of another size": (heads(1, 21, 34, 2, 2, 24, 7), {}),
    "boolean mask": (heads(2, 20, 35, 2, 2, 16), {"mask": "bool"}),
    "floating mask": (heads(2, 20, 35, 2, 2, 16), {"mask": "float"}),
    "mask of keys, causal": (heads(2, 35, 35, 2, 2, 16), {"mask": "keys", "after": 0}),
    "softcap": (heads(1, 20, 35, 2, 1, 16), {"softcap": 0.7, "after": 0}),
    "slopes": (heads(1, 35, 35, 2, 2, 16), {"slopes": torch.tensor([0.3, 1.1]), "bottom_right": True}),
    "softcap and slopes": (heads(1, 20, 35, 2, 2, 16), {"softcap": 0.7, "slopes": torch.tensor([0.3, 1.1])}),
    "lengths": (heads(3, 20, 35, 2, 2, 16), {"lengths": torch.tensor([0, 17, 35])}),
    "lengths, bottom right, window": (
        heads(3, 20, 35, 2, 2, 16),
        {"lengths": torch.tensor([9, 17, 35]), "bottom_right": True, "before": 8, "after": 0},
    ),
    "packed": (
        heads(1, 61, 61, 2, 1, 16),
        {"q_starts": STARTS, "k_starts": STARTS, "after": 0},
    ),
    "packed, others": (
        heads(1, 40, 61, 2, 2, 16),
        {
            "q_starts": torch.tensor([2, 17, 37]),
            "k_starts": torch.tensor([5, 30, 61]),
            "bottom_right": True,
            "after": 0,
        },
    ),
    "dropout": (heads(2, 20, 35, 2, 1, 16), {"dropout": 0.3, "seed": torch.tensor(1 << 40)}),
    "scale": (heads(1, 20, 35, 2, 2, 16), {"scale": -0.4}),
}  # fmt: skip


def options_of(name: str) -> tuple[list[Tensor], dict[str, Any]]:
    tensors, options = CASES[name]
    options = dict(options)
    (batch, h, queries, _), keys = tensors[0].shape, tensors[1].shape[2]
    if options.get("mask") == "bool":
        options["mask"] = randn(batch, 1, queries, keys, seed=3) > 0
        options["mask"][:, :, 3] = False
        options["mask"][:, :, :, :17] &= randn(batch, 1, queries, 1, seed=4) > 0  # nothing in the first block
    if options.get("mask") == "float":
        options["mask"] = randn(h, queries, keys, seed=3)
        options["mask"][:, 3] = -torch.inf
        options["mask"][:, :, 5] = -torch.inf
    if options.get("mask") == "keys":
        options["mask"] = randn(batch, 1, 1, keys, seed=3) > 0
    return tensors, options


def results(fn: Any, tensors: list[Tensor], options: dict[str, Any], **more: Any) -> list[Tensor]:
    leaves = [t.detach().requires_grad_() for t in tensors]
    out = fn(*leaves, **options, **more)
    pull = randn(*out.shape, seed=9).to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, leaves, pull)]


def compare(name: str, dtype: torch.dtype, blocks: Any) -> None:
    tensors, options = options_of(name)
    tensors = [t.to(dtype) for t in tensors]
    wide = {
        k: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in options.items()
    }
    exact = results(attention_by_hand, [t.double() for t in tensors], wide)
    found = results(flash_attention, tensors, options, blocks=blocks)
    for ours, right in zip(found, exact, strict=True):
        assert ours.dtype == dtype
        within(ours, right, dtype, 2.0)


SAMPLE = {"boolean mask", "packed, others", "dropout"}


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "name", [n if n in SAMPLE else pytest.param(n, marks=pytest.mark.full) for n in CASES]
)
def test_compared_with_float64(name: str) -> None:
    compare(name, torch.float32, SMALL)


@pytest.mark.sample(0, full=17)
@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_in_16_bits_with_other_blocks(name: str, dtype: torch.dtype) -> None:
    compare(name, dtype, UNEVEN)


ONE_PASS = ("one", "causal", "window", "grouped", "values of another size", "packed", "scale")


@pytest.fixture
def _any_order() -> Iterator[None]:
    """Allow algorithms whose results differ from run to run."""
    torch.use_deterministic_algorithms(False)
    yield
    torch.use_deterministic_algorithms(True, warn_only=True)


@pytest.mark.sample(2)
@pytest.mark.usefixtures("_any_order")
@pytest.mark.parametrize("name", ONE_PASS)
def test_gradients_in_one_pass(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[Any] = []

    def run(steps: list[Any], tensor: Tensor) -> None:
        launched.extend(step.constants["C"].ADD_DQ for step in steps if "C" in step.constants)
        run_all(steps, tensor)

    monkeypatch.setattr(flash_triton.backward, "__defaults__", ((True, True), run))
    compare(name, torch.float32, BOTH)
    compare(name, torch.bfloat16, BOTH)
    assert launched == [True, True]


@pytest.mark.filterwarnings("ignore:overflow encountered in exp2")
@pytest.mark.usefixtures("_any_order")
@pytest.mark.parametrize("options", [{}, {"after": 0, "bottom_right": True}], ids=str)
def test_keys_past_the_last_one_add_nothing_in_one_pass(options: dict[str, Any]) -> None:
    """All scores are about -18: with scores of 0, weights in a float16 tile would be infinite."""
    q, k, v = (t.half() for t in heads(1, 32, 40, 1, 1, 16))
    q[..., 0], k = -18 * 4, k * 0.1
    k[..., 0] = 1
    exact = results(dot_product_attention.reference, [q.double(), k.double(), v.double()], options)
    for ours, expected in zip(results(flash_attention, [q, k, v], options, blocks=BOTH), exact, strict=True):
        within(ours, expected, torch.float16)


@pytest.mark.usefixtures("_any_order")
def test_gradients_take_one_pass_where_they_can() -> None:
    q, k, v = (t.to("meta") for t in heads(1, 20, 20, 2, 2, 16))
    seed = torch.tensor(1, device="meta")

    def names(problem: Problem, needs_grad: tuple[bool, bool] = (True, True)) -> list[str]:
        return [*launches(q, k, v, problem, BOTH, gradients=True, needs_grad=needs_grad)][2:]

    assert names(Problem(1.0, high=1)) == ["both"]
    assert names(Problem(1.0), (True, False)) == ["queries"]
    assert names(Problem(1.0), (False, True)) == ["keys"]
    assert names(Problem(1.0, mask=torch.ones(1, 2, 20, 20, device="meta"))) == ["keys", "queries"]
    assert names(Problem(1.0, dropout=0.1, seed=seed)) == ["keys", "queries"]
    torch.use_deterministic_algorithms(True)
    assert names(Problem(1.0, high=1)) == ["keys", "queries"]


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", [{}, {"after": 0}, {"softcap": 0.7}], ids=str)
def test_queries_whose_every_key_is_far_from_zero(dtype: torch.dtype, options: dict[str, Any]) -> None:
    tensors = [t.to(dtype) for t in heads(1, 19, 19, 2, 1, 16)]
    mask = randn(1, 1, 19, 19, seed=3)
    mask[..., 3, :], mask[..., 5, :], mask[..., 7, 2:] = torch.finfo(torch.float32).min, -1e9, -1e9
    # In float32, as the definition has it: there the scores of such a query are what rounding leaves.
    exact = results(dot_product_attention.reference, tensors, {"mask": mask, **options})
    found = results(flash_attention, tensors, {"mask": mask, **options}, blocks=SMALL)
    for ours, right in zip(found, exact, strict=True):
        within(ours, right.double(), dtype, 2.0)


def test_a_function_that_hides_by_a_number_far_from_zero() -> None:
    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return torch.where(i > 3, s, torch.finfo(torch.float32).min)

    tensors = heads(1, 12, 19, 2, 1, 16)
    rest = (None, None, None, False, None, None, None, None, None, None, 0.0, None)

    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        result = flash_with_score(CompiledScore(score), score, q, k, v, *rest, blocks=SMALL)
        assert result is not None, "it was not printed"
        return result

    exact = results(lambda q, k, v: eager_attention(q, k, v, *rest, score), tensors, {})
    for found, right in zip(results(ours, tensors, {}), exact, strict=True):
        within(found, right.double(), torch.float32, 2.0)


def test_views_are_read_as_they_lie_and_results_are_the_same_from_run_to_run() -> None:
    packed = randn(1, 20, 3, 2, 16).bfloat16()  # [B, L, 3, H, D]
    q, k, v = (packed[:, :, n].transpose(1, 2) for n in range(3))
    runs = [results(flash_attention, [q, k, v], {"after": 0}, blocks=UNEVEN) for _ in range(2)]
    dense = results(flash_attention, [t.contiguous() for t in (q, k, v)], {"after": 0}, blocks=UNEVEN)
    for one, two, three in zip(*runs, dense, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)
    assert runs[0][0].transpose(1, 2).is_contiguous()


def test_strides_that_32_bits_do_not_hold() -> None:
    given = torch.empty_strided((1, 1, 5, 16), (0, 0, 1 << 30, 1), dtype=torch.bfloat16, device="meta")
    near = torch.empty(1, 1, 5, 16, dtype=torch.bfloat16, device="meta")
    problem = Problem(1.0)
    assert launches(given, near, near, problem, SMALL)["forward"].constants["C"].WIDE
    assert not launches(near, near, near, problem, SMALL)["forward"].constants["C"].WIDE
    tensors, options = options_of("causal")
    exact = results(attention_by_hand, [t.double() for t in tensors], options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flash_triton, "_needs_int64", lambda *_: True)
        for ours, right in zip(results(flash_attention, tensors, options, blocks=SMALL), exact, strict=True):
            within(ours, right, torch.float32, 2.0)


BIAS = torch.randn(4, 80, generator=torch.Generator().manual_seed(7))
SCORES: dict[str, Any] = {
    "cap": lambda s, b, h, i, j: torch.tanh(s / 2.0) * 2.0,
    "identity": lambda s, b, h, i, j: s,
    "distance": lambda s, b, h, i, j: s - (h + 1) * 0.25 * (i - j).abs(),
    "relative": lambda s, b, h, i, j: s * s + BIAS[h, i - j + 40].to(s.dtype),
    "hides": lambda s, b, h, i, j: torch.where((i + b - j).abs() < 4, s.sin(), -torch.inf),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", SCORES)
def test_functions_of_the_scores(name: str) -> None:
    score = SCORES[name]
    tensors = heads(2, 12, 35, 2, 1, 16)
    options = {"after": 9}

    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rest = (None, None, 9, False, None, None, None, None, None, None, 0.0, None)
        result = flash_with_score(CompiledScore(score), score, q, k, v, *rest, blocks=UNEVEN)
        assert result is not None, "it was not printed"
        return result

    exact = results(attention_by_hand, [t.double() for t in tensors], options, score=score)
    for found, right in zip(results(ours, tensors, {}), exact, strict=True):
        within(found, right, torch.float32, 4.0)


def test_a_function_that_is_no_elementwise_kernel_is_not_printed() -> None:
    for score in (lambda s, b, h, i, j: s - s.mean(), lambda s, b, h, i, j: s.sort().values):
        assert CompiledScore(score).triton_functions(torch.device("cpu"), True) is None
