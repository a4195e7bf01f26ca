"""`attention`: its options next to attention a query at a time; what it keeps, draws and refuses."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from burnt import kernels
from burnt.codegen import eager_policy
from burnt.codegen.runtime.c_compiler import find_compiler
from burnt.errors import InputError, InputRuntimeError, InputTypeError, InputUnsupportedError, InputValueError
from burnt.kernels import attention
from burnt.kernels.ops.attention import score_mod
from burnt.kernels.ops.attention.reference import dropout_mask, eager_attention, traceable_attention
from tests.kernels.ops.attention.by_hand import attention_by_hand, uniform

ROOT = Path(__file__).parents[4]
OP = kernels.dot_product_attention


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def heads(batch: int, queries: int, keys: int, h: int = 4, kv: int = 2, d: int = 5) -> list[Tensor]:
    shapes = (batch, h, queries, d), (batch, kv, keys, d), (batch, kv, keys, d + 1)
    return [randn(*shape, seed=n) for n, shape in enumerate(shapes)]


def heads_of_one_size(batch: int, queries: int, keys: int) -> list[Tensor]:
    """Heads that torch's fused calls take: as many of keys, of one size."""
    return [randn(batch, 4, length, 8, seed=n) for n, length in enumerate((queries, keys, keys))]


def with_gradients(fn: Callable[..., Tensor], tensors: list[Tensor], **options: Any) -> list[Tensor]:
    leaves = [t.detach().requires_grad_() for t in tensors]
    out = fn(*leaves, **options)
    return [out.detach(), *torch.autograd.grad(out, leaves, randn(*out.shape, seed=9).to(out.dtype))]


def close(found: list[Tensor], exact: list[Tensor]) -> None:
    for ours, right in zip(found, exact, strict=True):
        torch.testing.assert_close(ours, right, rtol=1e-9, atol=1e-11)


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_mod, "_TILE_SCORES", 1 << 9)
    monkeypatch.setattr(score_mod, "_MIN_QUERIES", 3)


STARTS = torch.tensor([0, 5, 5, 19, 23], dtype=torch.int32)
OPTIONS: dict[str, tuple[list[Tensor], dict[str, Any]]] = {
    "plain": (heads(2, 23, 17), {}),
    "one": (heads(1, 1, 1), {}),
    "causal": (heads(2, 23, 17), {"after": 0}),
    "causal, bottom right": (heads(2, 23, 17), {"after": 0, "bottom_right": True}),
    "window": (heads(1, 67, 80), {"before": 7, "after": 3}),
    "window past the keys": (heads(1, 60, 20), {"before": 3, "after": 0}),
    "mask": (heads(2, 23, 17), {"mask": randn(23, 17, seed=5) > 0.5, "after": 2}),
    "added": (heads(2, 23, 17), {"mask": randn(4, 1, 17, seed=5).masked_fill(randn(17) > 0, -torch.inf)}),
    "slopes": (heads(2, 23, 17), {"slopes": randn(4).abs(), "bottom_right": True, "softcap": 0.8}),
    "lengths": (heads(3, 23, 17), {"lengths": torch.tensor([0, 9, 17]), "bottom_right": True, "before": 6}),
    "packed": (heads(1, 23, 23), {"q_starts": STARTS, "k_starts": STARTS, "after": 0, "slopes": randn(4)}),
    "dropout": (heads(2, 23, 17), {"dropout": 0.4, "seed": torch.tensor(-7), "after": 5}),
}  # fmt: skip


@pytest.mark.sample(keep=("lengths",))
@pytest.mark.parametrize("name", OPTIONS)
def test_tiles_beside_a_query_at_a_time(name: str, small_tiles: None) -> None:
    tensors, options = OPTIONS[name]
    close(
        with_gradients(score_mod.tiled_attention, tensors, **options),
        with_gradients(attention_by_hand, tensors, **options),
    )


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", OPTIONS)
def test_the_definition_and_torchs_call_beside_a_query_at_a_time(name: str) -> None:
    tensors, options = OPTIONS[name]
    exact = with_gradients(attention_by_hand, tensors, **options)
    close(with_gradients(OP.reference, tensors, **options), exact)
    close(with_gradients(OP.candidates["library"], tensors, **options), exact)


def test_a_query_that_sees_nothing_gives_zeros_and_gets_no_gradient(small_tiles: None) -> None:
    q, k, v = heads(1, 6, 9)
    mask = torch.ones(6, 9, dtype=torch.bool)
    mask[2] = False
    for given in (mask, torch.zeros(6, 9).masked_fill(~mask, -torch.inf)):
        for fn in (attention, score_mod.tiled_attention, OP.reference):
            out, of_q, of_k, of_v = with_gradients(fn, [q, k, v], mask=given)
            assert out[:, :, 2].eq(0).all()
            assert of_q[:, :, 2].eq(0).all()
            assert not any(t.isnan().any() for t in (out, of_q, of_k, of_v))
            assert of_q[:, :, 1].ne(0).any()


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("masked", [None, torch.float32], ids=["mask alike", "mask in float32"])
@pytest.mark.parametrize(
    "name", ["library", "tiled", "chosen", "recorded", pytest.param("generated", marks=pytest.mark.full)]
)
def test_queries_whose_every_key_is_far_from_zero(
    name: str, masked: torch.dtype | None, kind: torch.dtype, small_tiles: None
) -> None:
    tensors = [t.to(kind) for t in heads_of_one_size(2, 23, 17)]
    mask = randn(2, 1, 23, 17, seed=5, dtype=torch.float32).to(masked or kind)
    least = torch.finfo(mask.dtype).min
    mask[:, :, 3], mask[:, :, 5], mask[:, :, 6, 3:] = least, max(-1e9, least), least
    mask[:, :, 7], mask[:, :, 8, 1:] = -torch.inf, -torch.inf
    calls: dict[str, Any] = {"chosen": OP, "recorded": traceable_attention}

    def call(*args: Any, **options: Any) -> Tensor:
        return calls.get(name, OP.candidates.get(name))(*OP.bind(args, options))  # type: ignore[no-any-return]

    for options in {"mask": mask}, {"mask": mask, "after": 2, "scale": 0.4}:
        exact = with_gradients(OP.reference, tensors, **options)
        exact.append(OP.reference(*tensors, **options))
        found = with_gradients(call, tensors, **options)
        with torch.no_grad():
            found.append(call(*tensors, **options))
        bound = 8 * torch.finfo(kind).eps
        for ours, right in zip(found, exact, strict=True):
            torch.testing.assert_close(ours, right, rtol=bound, atol=bound * float(right.abs().max()))


@pytest.mark.full
def test_masks_whose_values_cannot_be_read() -> None:
    tensors, mask = heads_of_one_size(1, 6, 6), torch.zeros(6, 6, dtype=torch.float64)
    mask[2] = torch.finfo(torch.float64).min

    def library(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return OP.candidates["library"](*OP.bind((q, k, v, mask), {}))  # type: ignore[no-any-return]

    exact = with_gradients(lambda *t: OP.reference(*t, mask), tensors)
    close(with_gradients(torch.compile(library, backend="aot_eager", fullgraph=True), tensors), exact)
    pull = randn(*exact[0].shape, seed=9)
    found = torch.func.grad(lambda given: (library(*given) * pull).sum())(tuple(tensors))
    close([exact[0], *found], exact)


@pytest.mark.parametrize("shape", [(0, 3, 3), (2, 0, 3), (2, 3, 0)], ids=str)
def test_empty_inputs(shape: tuple[int, int, int]) -> None:
    tensors = heads(*shape)
    out, *gradients = with_gradients(attention, tensors, causal=True)
    assert out.shape == (shape[0], 4, shape[1], 6)
    assert out.eq(0).all()
    assert all(g.eq(0).all() and g.shape == t.shape for g, t in zip(gradients, tensors, strict=True))


def test_heads_are_inside_in_memory_whoever_computes_it() -> None:
    x = randn(2, 300, 3, 8, dtype=torch.float32).transpose(1, 2)
    for result in (
        attention(x, x, x),
        attention(x, x, x, causal=True, softcap=2.0),
        attention(x, x, x, score=capped),
    ):
        assert result.transpose(1, 2).is_contiguous()
    assert result.transpose(1, 2).flatten(2).data_ptr() == result.data_ptr()


@pytest.mark.parametrize("window", [(3, 2), (None, 2), (3, None), None])
def test_causal_is_a_window_without_what_comes_after(window: Any) -> None:
    q, k, v = heads(1, 12, 12)
    before = None if window is None else window[0]
    exact = attention_by_hand(q, k, v, before=before, after=0)
    torch.testing.assert_close(attention(q, k, v, causal=True, window=window), exact)


def test_gradients_of_masks_slopes_and_second_ones() -> None:
    q, k, v = (t[:, :2, :3, :2].clone().requires_grad_() for t in heads(1, 3, 3, 2, 2, 2))
    mask, slopes = randn(3, 3, seed=3).requires_grad_(), randn(2, seed=4).requires_grad_()

    def call(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, slopes: Tensor) -> Tensor:
        return attention(q, k, v, mask, causal=True, softcap=1.1, slopes=slopes)

    assert torch.autograd.gradcheck(call, (q, k, v, mask, slopes))

    def by_tiles(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return score_mod.tiled_attention(q, k, v, after=0, softcap=1.1)

    assert torch.autograd.gradcheck(by_tiles, (q, k, v))
    assert torch.autograd.gradgradcheck(by_tiles, (q, k, v))


# --- score functions --------------------------------------------------------------------------------------


def capped(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return torch.tanh(s / 2.0) * 2.0


def test_a_function_of_the_scores(small_tiles: None) -> None:
    bias = randn(4, 60, seed=3)

    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return torch.where(j % 5 == b, -torch.inf, s * (h + 1) + bias[h, i - j + 30])

    tensors = heads(2, 23, 17)
    for _ in range(2):
        exact = with_gradients(attention_by_hand, tensors, after=4, score=score)
        close(with_gradients(attention, tensors, window=(None, 4), score=score), exact)
        bias.mul_(-2.0)  # what it captures may change
    learned = bias.clone().requires_grad_()
    result = attention(*tensors, score=lambda s, b, h, i, j: s + learned[h, i - j + 30])
    (found,) = torch.autograd.grad(result.square().sum(), learned)
    right = attention_by_hand(*tensors, score=lambda s, b, h, i, j: s + learned[h, i - j + 30])
    torch.testing.assert_close(found, torch.autograd.grad(right.square().sum(), learned)[0])


TABLE = randn(4, 60, seed=5)
ELEMENTWISE: dict[str, Any] = {
    "of its indices alone": lambda s, b, h, i, j: (j - i) * 0.1,
    "a table's": lambda s, b, h, i, j: s + TABLE[h, i - j + 30],
    "never seen": lambda s, b, h, i, j: torch.where(i >= j, s, -torch.inf),
    "of two, stacked": lambda s, b, h, i, j: torch.logsumexp(torch.stack([s, s * 0.5]), 0),
    "with a default": lambda s, b, h, i, j, slope=0.5: s * slope,
}


@pytest.mark.full
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_what_is_elementwise_is_taken(name: str, small_tiles: None) -> None:
    score, (q, k, v) = ELEMENTWISE[name], heads(2, 23, 17)
    none: Any = (None, None, None, False, None, None, None, None, None, None, 0.0, None)
    close(
        with_gradients(lambda v: attention(q, k, v, score=score), [v]),
        with_gradients(lambda v: eager_attention(q, k, v, *none, score), [v]),
    )


OF_OTHERS: dict[str, Any] = {
    "a mean of keys": lambda s, b, h, i, j: s * s.abs().mean(-1, keepdim=True),
    "a mean of queries": lambda s, b, h, i, j: s - s.mean(2, keepdim=True),
    "a mean of heads": lambda s, b, h, i, j: s - s.mean(1, keepdim=True),
    "a mean of the batch": lambda s, b, h, i, j: s - s.mean(0),
    "a mean alone": lambda s, b, h, i, j: s.mean(-1, keepdim=True),
    "those near the largest": lambda s, b, h, i, j: torch.where(
        s > s.amax(-1, keepdim=True) - 10, s, -torch.inf
    ),
    "a softmax": lambda s, b, h, i, j: s.softmax(-1),
    "a running sum": lambda s, b, h, i, j: s.cumsum(-1),
    "a shift": lambda s, b, h, i, j: s.roll(1, -1),
    "a flip": lambda s, b, h, i, j: s.flip(2),
    "random numbers": lambda s, b, h, i, j: s * torch.rand_like(s),
}


@pytest.mark.parametrize("name", OF_OTHERS)
def test_a_score_of_other_scores_is_refused(name: str) -> None:
    for tensors in (heads(2, 23, 17), [t.requires_grad_() for t in heads(2, 5, 4)]):
        with pytest.raises(InputValueError, match="depends on other scores") as caught:
            attention(*tensors, score=OF_OTHERS[name])
        assert "elementwise" in str(caught.value)
    with torch.no_grad(), pytest.raises(InputValueError, match="depends on other scores"):
        attention(*[t.float() for t in heads(2, 23, 17)], score=OF_OTHERS[name])


# --- dropout ----------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "plain"])
def test_gradients_where_saved_tensors_have_hooks(
    compiled: bool, small_tiles: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eager_policy, "_MIN_ELEMENTS", 1)  # ask the policy for all sizes
    tensors, tiles = heads(2, 23, 17), score_mod.make_tile_kernels(None)
    if not compiled:
        tiles = score_mod.TileKernels(*(fused.fn for fused in tiles))
    wanted = with_gradients(attention_by_hand, tensors, after=0, softcap=1.1)
    with torch.autograd.graph.saved_tensors_hooks(Tensor.clone, Tensor.detach):
        close(with_gradients(score_mod.tiled_attention, tensors, after=0, softcap=1.1, kernels=tiles), wanted)


def test_what_dropout_leaves_is_a_function_of_seed_and_place() -> None:
    whole = dropout_mask(torch.tensor(1 << 50), (2, 3, 5, 10), 0.3)
    by_hand = [uniform(1 << 50, 3 + 2, 4, j) >= 0.3 for j in range(10)]
    assert whole[1, 2, 4].tolist() == by_hand
    assert torch.equal(
        dropout_mask(torch.tensor(1 << 50), (2, 3, 2, 6), 0.3, first_query=3, first_key=4),
        whole[:, :, 3:, 4:],
    )
    assert abs(dropout_mask(torch.tensor(3), (2, 8, 128, 128), 0.3).double().mean() - 0.7) < 0.003


@pytest.mark.skipif(find_compiler() is None, reason="no C compiler")
@pytest.mark.parametrize("dropout", [0.1, 0.5, 1 / 3, 1.0, 1e-9])
def test_the_same_weights_are_dropped_in_c(dropout: float) -> None:
    seed = torch.tensor(987654321987)
    options = score_mod.Options(dropout=dropout, seed=seed)
    found = score_mod._tile_dropout_mask(options, 5, 7, 8, (2, 3, 1100))
    assert torch.equal(found, dropout_mask(seed, (1, 7, 3, 1100), dropout, 7, 8)[0, 5:])


def test_dropout_is_drawn_from_torchs_generator() -> None:
    q, k, v = heads(1, 20, 20)
    torch.manual_seed(5)
    first, other = attention(q, k, v, dropout=0.5), attention(q, k, v, dropout=0.5)
    torch.manual_seed(5)
    assert torch.equal(attention(q, k, v, dropout=0.5), first)
    assert not torch.equal(first, other)
    assert torch.equal(attention(q, k, v, dropout=0.0), attention(q, k, v))
    assert attention(q, k, v, dropout=1.0).eq(0).all()
    ones = torch.ones_like(v)
    large = attention(q[..., :1].expand(1, 4, 20, 5) * 0, k, ones, dropout=0.25, seed=torch.tensor(1))
    assert abs(float(large.mean()) - 1) < 0.1, "what is left is scaled up"


# --- other ways to call it --------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("options", [{}, {"causal": True, "window": (3, None)}, {"softcap": 2.0}], ids=str)
def test_compiled_as_a_whole(options: dict[str, Any]) -> None:
    torch.compiler.reset()
    x = randn(1, 2, 9, 4, dtype=torch.float32).requires_grad_()
    call = torch.compile(lambda x: attention(x, x, x, **options) * 2, fullgraph=True, backend="aot_eager")
    exact = with_gradients(lambda x: attention(x, x, x, **options) * 2, [x])
    for ours, right in zip(with_gradients(call, [x]), exact, strict=True):
        torch.testing.assert_close(ours, right)


@pytest.mark.sample(6)
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # a trace is for the shapes it was made with
@pytest.mark.parametrize("name", [name for name in OPTIONS if name != "dropout"])
def test_torch_jit_traces(name: str) -> None:
    qkv, options = OPTIONS[name]
    options = {**options, "softcap": None}  # which would make it the op's call, as dropout would
    tensors = {key: value for key, value in options.items() if isinstance(value, Tensor)}

    def call(*args: Tensor) -> Tensor:
        given = {**options, **dict(zip(tensors, args[3:], strict=True))}
        return traceable_attention(*OP.bind(args[:3], given))

    # The trace is checked against another one, without gradients: both must have the same ops.
    leaves = tuple(t.detach().requires_grad_(t.is_floating_point()) for t in (*qkv, *tensors.values()))
    traced = torch.jit.trace(call, leaves)
    found = with_gradients(lambda *args: traced(*args, *leaves[3:]), qkv)
    close(found, with_gradients(attention_by_hand, qkv, **options))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_torch_jit_traces_a_function_of_the_scores() -> None:
    q, k, v = heads(2, 5, 7)
    traced = torch.jit.trace(
        lambda q, k, v: attention(q, k, v, score=lambda s, b, h, i, j: s + (i - j)), (q, k, v)
    )
    added = torch.arange(5.0, dtype=q.dtype).view(-1, 1) - torch.arange(7.0)
    close([traced(q, k, v)], [attention_by_hand(q, k, v, mask=added)])


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_under_vmap_and_autocast() -> None:
    x = randn(3, 1, 2, 9, 4, dtype=torch.float32)
    found = torch.vmap(lambda x: attention(x, x, x, causal=True))(x)
    torch.testing.assert_close(found, torch.stack([attention(y, y, y, causal=True) for y in x]))
    with torch.autocast("cpu", torch.bfloat16):
        for options in ({}, {"softcap": 3.0}, {"score": capped}):
            assert attention(x[0], x[0], x[0], **options).dtype == torch.bfloat16


def test_what_is_chosen_on_a_cpu() -> None:
    def chosen(length: int, **options: Any) -> str:
        x = randn(1, 4, length, 8, dtype=torch.float32)
        return OP.chosen(x, x, x, **options).candidate.name

    assert chosen(2048) == chosen(2048, after=0) == chosen(256, before=16, after=0) == "library"
    assert chosen(256, softcap=2.0) != "tiled"
    tiles = {
        chosen(2048, before=255, after=0),
        chosen(2048, softcap=2.0),
        chosen(64, dropout=0.5, seed=torch.tensor(1)),
    }
    assert tiles == {"tiled"}
    assert chosen(2048, before=256, after=0) == "library"


@pytest.mark.parametrize(
    ("dtype", "vendors"),
    [(torch.bfloat16, {"Intel AVX-512", "Intel AMX", "AMD AVX-512"}), (torch.float16, {"Intel AMX"})],
    ids=["bfloat16", "float16"],
)
def test_16_bits_are_tiled_sooner_where_there_are_no_instructions(
    dtype: torch.dtype, vendors: set[str], processor: str
) -> None:
    """What tiles gain is a part of what torch's own call takes, which is less where there are."""

    def is_tiled(length: int, **options: Any) -> bool:
        x = torch.zeros(1, 4, length, 8, dtype=dtype)
        return OP.chosen(x, x, x, **options).candidate.name == "tiled"

    sooner = processor not in vendors
    assert is_tiled(2048, softcap=2.0) is is_tiled(2048, before=100, after=0) is sooner
    assert is_tiled(4096, softcap=2.0)
    assert is_tiled(8192, before=100, after=0)


PEAK = """
import sys, torch
from pathlib import Path
import burnt
from burnt.kernels import attention, dot_product_attention as op
burnt.memory.disable()
torch.set_num_threads(1)
def memory(what):
    text = Path("/proc/self/status").read_text()
    return int(text.split(what + ":")[1].split()[0])
def run(length):
    q, k, v = (torch.randn(1, 2, length, 16, requires_grad=True) for _ in "qkv")
    way = op.candidates[sys.argv[1]]
    way(q, k, v, *op.defaults[3:8], 2.0, *op.defaults[9:]).sum().backward()
run(256)
Path("/proc/self/clear_refs").write_text("5")  # the peak counts from now on
before = memory("VmRSS")
run(6144)
print(memory("VmHWM") - before)
"""


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells the peak of a process's memory")
def test_the_scores_are_never_there_as_a_whole() -> None:
    peaks = {}
    for name in ("library", "tiled"):
        command = [sys.executable, "-c", PEAK, name]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=240)
        assert done.returncode == 0, done.stderr
        peaks[name] = int(done.stdout) << 10
    assert peaks["library"] > 2 * 6144**2 * 4
    assert peaks["tiled"] < 6144**2 * 4  # of one head; a tile is of 1 M scores


SAME, TWO, ENDS = [randn(1, 1, 2, 2)] * 3, [randn(2, 1, 2, 2)] * 3, torch.tensor([0, 2])
WIDER, UNSHARED = ([randn(1, h, 3, 4), *[randn(1, 2, 3, d)] * 2] for h, d in ((2, 5), (3, 4)))
BAD: dict[str, tuple[type[InputError], Callable[[], Any], str]] = {
    "rank": (InputRuntimeError, lambda: attention(*[randn(2, 3, 4)] * 3), "must have 4 axes"),
    "sizes": (InputRuntimeError, lambda: attention(*WIDER), "do not match"),
    "heads": (InputRuntimeError, lambda: attention(*UNSHARED), "not a multiple"),
    "integers": (InputUnsupportedError, lambda: attention(*[randn(1, 1, 2, 2).long()] * 3), "not defined"),
    "dtypes": (InputRuntimeError, lambda: attention(SAME[0].float(), *SAME[1:]), "different dtypes"),
    "mask": (InputRuntimeError, lambda: attention(*SAME, randn(3, 2)), "does not broadcast"),
    "integer mask": (
        InputRuntimeError,
        lambda: attention(*SAME, torch.ones(2, 2, dtype=torch.int64)),
        "boolean or floating point",
    ),
    "window": (InputValueError, lambda: attention(*SAME, window=(-1, 0)), "must not be negative"),
    "half a window": (InputTypeError, lambda: attention(*SAME, window=3), r"window=\(3, 3\)"),
    "a window of fractions": (InputTypeError, lambda: attention(*SAME, window=(0.5, 0)), "must be a pair"),
    "no cap": (InputValueError, lambda: attention(*SAME, softcap=0.0), "above 0"),
    "another cap": (
        InputValueError,
        lambda: [attention(*SAME, softcap=cap) for cap in (5.0, -5.0)],
        "above 0",
    ),
    "negative lengths": (
        InputValueError,
        lambda: attention(*SAME, lengths=torch.tensor([-1])),
        "out of range",
    ),
    "lengths beyond the keys": (
        InputValueError,
        lambda: attention(*SAME, lengths=torch.tensor([3]), score=capped),
        "out of range",
    ),
    "unordered starts": (
        InputValueError,
        lambda: attention(*SAME, q_starts=torch.tensor([0, 2, 1]), k_starts=torch.tensor([0, 1, 2])),
        "q_starts of attention are invalid",
    ),
    "starts beyond the keys": (
        InputValueError,
        lambda: attention(*SAME, q_starts=ENDS, k_starts=ENDS + 1),
        "k_starts of attention are invalid",
    ),
    "no function": (InputTypeError, lambda: attention(*SAME, score=2.0), "must be a function"),
    "a function of scores alone": (
        InputTypeError,
        lambda: attention(*SAME, score=lambda s: s),
        "must take five arguments",
    ),
    "a function that sums": (
        InputValueError,
        lambda: attention(*SAME, score=lambda s, b, h, i, j: s.sum(-1)),
        "wrong shape",
    ),
    "a function to a number": (
        InputTypeError,
        lambda: attention(*SAME, score=lambda s, b, h, i, j: 1.0),
        "does not return a tensor",
    ),
    "dropout": (InputValueError, lambda: attention(*SAME, dropout=1.5), "probability"),
    "seed": (InputValueError, lambda: OP(*SAME, dropout=0.5), "needs a seed"),
    "slopes": (InputRuntimeError, lambda: attention(*SAME, slopes=randn(2)), "wrong shape"),
    "lengths": (InputRuntimeError, lambda: attention(*SAME, lengths=torch.ones(1)), "must be integers"),
    "one kind of starts": (
        InputRuntimeError,
        lambda: attention(*SAME, q_starts=ENDS),
        "both q_starts and k_starts",
    ),
    "packed batches": (
        InputRuntimeError,
        lambda: attention(*TWO, q_starts=ENDS, k_starts=ENDS),
        "batch of one",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_is_refused_and_how(name: str) -> None:
    kind, call, text = BAD[name]
    with pytest.raises(kind, match=text) as caught:
        call()
    assert str(caught.value.where).startswith("burnt.kernels.")
    assert caught.value.found is not None


def test_layers_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from burnt import nn

    layer = nn.MultiHeadAttention(8, 2)
    called = []
    real = kernels.attention
    monkeypatch.setattr(kernels, "attention", lambda *a, **k: called.append(k) or real(*a, **k))
    layer(randn(1, 3, 8, dtype=torch.float32), is_causal=True)
    assert called == [{"window": (None, 0), "bottom_right": False, "scale": None, "dropout": 0.0}]
