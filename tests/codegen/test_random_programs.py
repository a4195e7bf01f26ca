"""Random programs, fused, do what eager torch does.

Here as C. `render/metal/test_kernel.py` and `render/triton/interpreted/test_random_programs.py` run them on
the other printers, and `test_large_offsets.py` schedules programs of tensors too large to run.
`BURNT_FUZZ_MINUTES=10` goes on with fresh seeds for as long. What was wrong with a seed that failed becomes
an entry of `REGRESSIONS`, as a program of its own: seeds mean other programs once the grammar changes.
"""

from __future__ import annotations

import os

import pytest

from burnt.codegen import fuse
from burnt.codegen.runtime.c_compiler import find_compiler
from tests.codegen.compare import Mismatch, judge, judge_fresh
from tests.codegen.programs import SET_ASIDE, Program, program

PER_TEST = 10
DEFAULT, FULL = 300, 3000
WIDER, WIDER_FULL = 50, 1000
# Which share of a program's elements may be close to a comparison, a rounding step or a tie, on average.
MOST_ASIDE = 0.1

# What went wrong once: the inputs, the body, the results, and whether with gradients.
REGRESSIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], bool]] = {
    "a maximum among products that two kernels compute": (
        ("tensor((40, 30), f32, 'plain', 1)",),
        ("v0 = x0 * 0.3", "v1 = v0 - v0.amax(0)", "v2 = (v1 == 0).sum(0)", "v3 = v1.all()"),
        ("v1", "v2", "v3"),
        False,
    ),
    "two folds of one element in one kernel": (
        ("tensor((), f32, 'plain', 1)",),
        ("v0 = torch.log_softmax(x0, 0)", "v1 = torch.softmax(1.2 - x0, 0)"),
        ("v0", "v1"),
        False,
    ),
    "a sum of floats that were integers": (
        ("tensor((11, 13), f32, 'plain', 13840)",),
        (
            "v0 = -1.6 - torch.where(x0 > 0, x0, 0.8).expand(3, 11, 13).reshape(-1).cummax(-1)[1]",
            "v1 = v0 * v0.var(0, keepdim=True, correction=0)",
        ),
        ("v1",),
        False,
    ),
    "constants that are compared": (
        ("tensor((3,), f16, 'plain', 1)",),
        (
            "v0 = torch.zeros_like(x0).nan_to_num(0, 0, 0).clamp(0, 99).to(u8)",
            "v1 = torch.full_like(x0, 5.5) < torch.full_like(x0, 5.9)",
        ),
        ("v0", "v1"),
        False,
    ),
    "flip without axes": (
        ("tensor((), f32, 'plain', 1)",),
        ("v0 = torch.softmax((x0 * 2).flip(0), 0)",),
        ("v0",),
        False,
    ),
    "an expanded result, with a gradient": (
        ("tensor((4, 2, 5), f32, 'plain', 1)",),
        ("v0 = x0.amax(-1, keepdim=True).expand_as(x0)", "v1 = x0 * 2"),
        ("v0", "v1"),
        True,
    ),
    "a result that depends on no input's values": (
        ("tensor((4, 5), f32, 'plain', 1)",),
        ("v0 = torch.ones_like(x0) * 3", "v1 = x0 * 2"),
        ("v0", "v1"),
        True,
    ),
    "a fold that is put into memory after its rows were chosen": (
        ("tensor((8, 16, 11), f16, 'plain', 1)",),
        ("v0 = x0.prod(-1, keepdim=True)", "v1 = v0 - v0.mean(0, keepdim=True) + v0 * x0", "v2 = v1 // 2"),
        ("v2",),
        False,
    ),
    "a constant of a dtype that does not hold it": (
        ("tensor((3, 5), flag, 'plain', 1)",),
        ("v0 = torch.full_like(x0, -2).clamp(max=-0.3)", "v1 = torch.full((3,), 0.1).to(f64)[:2]"),
        ("v0", "v1"),
        False,
    ),
    "the derivative of a deviation that is 0": (
        ("tensor((3, 5), f32, 'plain', 1)",),
        ("v0 = (x0 * 0).std(-1)", "v1 = torch.xlogy(-x0.abs(), -x0.abs()).clamp(max=9).nan_to_num(0)"),
        ("v0", "v1"),
        True,
    ),
    "a negative number made an integer 0 and a float again": (
        ("tensor((99,), f32, 'plain', 1)",),
        ("v0 = 1 / (x0 / 4).to(i8).to(f32)",),
        ("v0",),
        False,
    ),
    "a gradient of an expanded input": (
        ("tensor((4, 5), f32, 'expanded', 0)", "tensor((4, 5), f32, 'plain', 1)"),
        ("v0 = torch.sin(x0) * x1",),
        ("v0",),
        True,
    ),
    "a result whose elements overlap, with a gradient": (
        ("tensor((13, 16), f32, 'plain', 1)",),
        ("v0 = x0.unfold(1, 2, 1)", "v1 = x0 * 2"),
        ("v0", "v1"),
        True,
    ),
    "an index that is a comparison": (
        ("tensor((1, 4), f32, 'plain', 1)", "tensor((300,), f32, 'plain', 1)"),
        (
            "v0 = x0.flatten()[(x0>0).long()]",
            "v1 = v0/(v0.abs().sum(-1,keepdim=True)+1)",
            "v2 = x1[torch.where(x1>0,1,0)].abs().sum()",
            "v3 = x1.take((x1>0).int().long()-1)",
        ),
        ("v1", "v2", "v3"),
        False,
    ),
    "a tensor of many parts put together": (
        ("tensor((150,), f32, 'plain', 1)",),
        ("v0 = x0.unbind(0)[-1] * x0[0]",),
        ("v0",),
        True,
    ),
    "a factor without elements": (
        ("tensor((3, 0, 6), f32, 'plain', 1)",),
        ("v0 = torch.expm1(x0)", "v1 = v0.mT @ v0"),
        ("v1",),
        False,
    ),
    "a factor that is one row, again and again": (
        ("tensor((1, 13, 5), f32, 'expanded', 1)",),
        ("v0 = x0 @ x0.mT", "v1 = v0 - v0.mean(-1, keepdim=True)"),
        ("v1",),
        False,
    ),
    "a roll of what has no elements": (
        ("tensor((0,), f32, 'plain', 1)",),
        ("v0 = F.pad(x0.roll(1, 0) * 2, (0, 1))",),
        ("v0",),
        False,
    ),
    "a softmax of integers that are not there": (
        ("tensor((0,), i64, 'plain', 1)",),
        ("v0 = torch.softmax(x0, -1).repeat(2) // 3",),
        ("v0",),
        False,
    ),
    "a sum of many equal numbers": (
        ("tensor((12_090,), f32, 'plain', 1)",),
        ("v0 = (x0 * 0 + 0.2).sum()", "v1 = (x0 * 0 + 0.2).reshape(13, 930).sum(0)"),
        ("v0", "v1"),
        False,
    ),
    "a layer norm of equal numbers, next to them": (
        ("tensor((5, 11), f32, 'plain', 1)",),
        ("v0 = (x0[:, :1] + 9).expand(5, 11) * 1.3", "v1 = F.layer_norm(v0, (11,)) @ v0.mT"),
        ("v1",),
        False,
    ),
    "normal numbers close to 0, and a step": (
        ("tensor((70_000,), bf16, 'plain', 1)",),
        (
            "v0 = F.logsigmoid(x0).abs()",
            "v1 = -2 - torch.xlogy(v0, v0)",
            "v2 = torch.addcdiv(torch.randn_like(x0), v1, v0 + 0.5)",
            "v3 = torch.div(v2, -2, rounding_mode='floor').nan_to_num(0, 0, 0).clamp(0, 99).to(u8)",
        ),
        ("v3",),
        False,
    ),
    "what has no elements, changed in place": (
        ("tensor((8, 4, 0, 7), f32, 'channels_last', 1)",),
        ("v0 = x0[..., :1].zero_()", "v1 = v0.repeat_interleave(2, -2) != 1"),
        ("v1", "x0"),
        False,
    ),
    "places that are shifted far": (
        ("tensor((5, 3), f32, 'plain', 1)",),
        (
            "v0 = (x0.argmax(0) + 1) << 40",
            "v1 = x0.argmin(0) >> (x0.argmin(0) | 0)",
            "v2 = x0.argmax() << 33",
        ),
        ("v0", "v1", "v2"),
        False,
    ),
    "a sum of one term, which is -0": (
        ("tensor((6,), f32, 'plain', 1)",),
        ("v0 = (x0.abs() * -0.0).reshape(6, 1).sum(1)", "v1 = torch.copysign(x0, v0)"),
        ("v0", "v1"),
        False,
    ),
    "a mean of infinities, next to their variance": (
        ("tensor((9, 4), f32, 'plain', 1)",),
        ("v0 = torch.var_mean((x0 > 0).to(f32).log(), 0)[1]",),
        ("v0",),
        False,
    ),
    "a variance of many numbers": (
        ("tensor((70_001,), f64, 'plain', 2307509942787)",),
        ("v0 = torch.trunc(x0)", "v1 = v0 * v0.var(0, keepdim=True, correction=0)"),
        ("v1",),
        False,
    ),
    "an infinite gradient that nothing is drawn by": (
        ("tensor((3, 7), f32, 'plain', 1)",),
        ("v0 = torch.bernoulli(torch.sigmoid(x0))", "v1 = v0.sqrt()"),
        ("v1",),
        True,
    ),
    "a view of what was made of an expanded input": (
        ("tensor((13, 4, 8), f32, 'expanded', 7291464653193)",),
        ("v0 = x0.transpose(1, 2) * 2", "v1 = v0.view(2, 208)"),
        ("v1",),
        True,
    ),
}

# torch's remarks on what programs do: degrees of freedom, strides of results, and the like.
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(find_compiler() is None, reason="no C compiler here: eager functions run"),
]


def run(seeds: range, grammar: str = "plain") -> None:
    judged = [seed for seed in seeds if grammar != "plain" or seed not in SET_ASIDE]
    verdicts = [judge(program(seed, grammar), fuse) for seed in judged]
    share = sum(v.aside / max(v.elements, 1) for v in verdicts) / len(verdicts)
    assert share <= MOST_ASIDE, f"{share:.0%} of what the programs make was set aside"


def regression(name: str) -> Program:
    """The program in which something went wrong once."""
    arguments, lines, results, gradients = REGRESSIONS[name]
    family = next((dtype for dtype in ("f64", "bf16", "f16") if f" {dtype}," in arguments[0]), "f32")
    return Program(0, arguments, lines, results, gradients, frozenset({family}))


@pytest.mark.sample(1)
@pytest.mark.parametrize("first", range(0, DEFAULT, PER_TEST))
def test_random_programs(first: int) -> None:
    run(range(first, first + PER_TEST))


@pytest.mark.sample(0, full=75)
@pytest.mark.full
@pytest.mark.parametrize("first", range(DEFAULT, FULL, PER_TEST))
def test_more_random_programs(first: int) -> None:
    """Of all of them 75, which BURNT_SEED draws; `--fuzz` draws fresh ones."""
    run(range(first, first + PER_TEST))


@pytest.mark.sample(1)
@pytest.mark.parametrize("first", range(0, WIDER, PER_TEST))
def test_programs_of_the_wider_grammar(first: int) -> None:
    """Without elements, with products, random numbers and gradients in 16 bits."""
    run(range(first, first + PER_TEST), "wider")


@pytest.mark.sample(0, full=35)
@pytest.mark.full
@pytest.mark.parametrize("first", range(WIDER, WIDER_FULL, PER_TEST))
def test_more_programs_of_the_wider_grammar(first: int) -> None:
    """Of all of them 35, which BURNT_SEED draws; `--fuzz` draws fresh ones."""
    run(range(first, first + PER_TEST), "wider")


@pytest.mark.sample(14)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.full) if name == "a tensor of many parts put together" else name
        for name in REGRESSIONS  # that one has a kernel of 150 inputs
    ],
)
def test_what_went_wrong_once(name: str) -> None:
    judge(regression(name), fuse)


if "BURNT_FUZZ_MINUTES" in os.environ:

    @pytest.mark.timeout(0)
    def test_fresh_programs() -> None:
        judge_fresh(float(os.environ["BURNT_FUZZ_MINUTES"]), fuse)


def test_a_seed_means_one_program() -> None:
    for grammar in ("plain", "wider", "far"):
        assert program(5, grammar) == program(5, grammar)
        assert program(5, grammar).source != program(6, grammar).source


def test_what_the_grammars_have() -> None:
    """Each thing that the wider grammar is for turns up in as many programs as a change is tested with."""
    programs = [program(seed, "wider") for seed in range(WIDER)]
    texts = [p.source for p in programs]
    assert any(p.gradients and p.families & {"bf16", "f16"} for p in programs)
    for part in ("@", "F.linear", "F.dropout", "torch.rand", "(0,"):
        assert any(part in text for text in texts), part


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "wrong",
    [
        lambda fn: lambda *a: fn(*a) + 1e-4,
        lambda fn: lambda *a: fn(*a).double(),
        lambda fn: lambda *a: fn(*a).t(),
        lambda fn: lambda *a: fn(*a).t().contiguous().t(),
        lambda fn: lambda *a: fn(*a).where(a[0] > -3, float("nan")),
        lambda fn: lambda *a: fn(*a).detach(),
        lambda fn: lambda *a: fn(*a) + (a[0] - a[0].detach()) * 1e-3,
    ],
    ids=["value", "dtype", "shape", "strides", "nan", "no gradient", "gradient"],
)
def test_the_gate_notices(wrong) -> None:  # type: ignore[no-untyped-def]
    arguments = ("tensor((7, 60), f32, 'plain', 1)",)
    small = Program(0, arguments, ("v0 = torch.exp(x0)",), ("v0",), True, frozenset({"f32"}))
    judge(small, fuse)
    with pytest.raises(Mismatch, match="def program"):
        judge(small, wrong)


def test_the_gate_sets_aside_what_rounding_turns_over() -> None:
    """At 0.3 the comparison depends on the last bit; elsewhere a flag that differs is wrong."""
    arguments = ("tensor((1000,), f32, 'plain', 1)",)
    lines = ("v0 = (x0 * 0 + 0.1) * 3 > 0.3",)
    close = Program(0, arguments, lines, ("v0",), False, frozenset({"f32"}))
    assert judge(close, lambda fn: lambda *a: ~fn(*a)).aside == 1000
    far = Program(0, arguments, ("v0 = x0 * 3 > 0.3",), ("v0",), False, frozenset({"f32"}))
    with pytest.raises(Mismatch):
        judge(far, lambda fn: lambda *a: ~fn(*a))
