"""`lstm` and `gru` and the ops of one layer: on every candidate, in every shape, next to torch in float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from burnt import kernels
from burnt.errors import (
    BurntError,
    InputError,
    InputRuntimeError,
    InputTypeError,
    InputUnsupportedError,
    InputValueError,
)
from burnt.kernels import gru_layer, lstm_layer
from burnt.kernels.ops.rnn import loop_c
from tests import processors
from tests.codegen.compare import Watched

OPS: dict[str, Any] = {"lstm": lstm_layer, "gru": gru_layer}
GATES = {"lstm": 4, "gru": 3}
# Batch, steps, features, hidden units.
SHAPES = [
    (3, 5, 7, 11),
    (1, 1, 1, 1),
    (2, 1, 3, 5),
    (1, 7, 2, 33),
    (13, 3, 5, 17),
    (26, 2, 3, 32),
    (7, 4, 40, 3),
    (5, 3, 1, 64),
]
kinds = pytest.mark.parametrize("kind", OPS)


def given(
    kind: str,
    shape: Sequence[int] = SHAPES[0],
    *,
    bias: bool = True,
    start: bool = True,
    lengths: bool = False,
    reverse: bool = False,
    dtype: torch.dtype = torch.float64,
) -> tuple[Any, ...]:
    """All arguments of an op, by position; numbers that 16 bits hold."""
    source = torch.Generator().manual_seed(1)
    batch, steps, features, width = shape

    def randn(*size: int, scale: float = 1.0) -> Tensor:
        result = torch.randn(size, generator=source, dtype=torch.float64) * scale
        return result.bfloat16().to(dtype)

    rows = GATES[kind] * width
    sizes = [(batch, steps, features), (rows, features), (rows, width)]
    result: list[Any] = [randn(*size, scale=1 if i == 0 else size[1] ** -0.5) for i, size in enumerate(sizes)]
    result += [randn(rows) if bias else None for _ in range(2)]
    result += [randn(batch, width) if start else None for _ in range(2 if kind == "lstm" else 1)]
    at = torch.randint(1, steps + 1, (batch,), generator=source) if lengths else None
    return (*result, at, reverse)


def by_torch(kind: str, args: Sequence[Any]) -> tuple[Tensor, ...]:
    """torch's layer; a reversed one is the second of two directions, so that nothing is turned around."""
    x, weight_ih, weight_hh, bias_ih, bias_hh, *states, lengths, reverse = args
    weights = [w for w in (weight_ih, weight_hh, bias_ih, bias_hh) if w is not None]
    directions = 2 if reverse else 1
    zeros = x.new_zeros(x.shape[0], weight_hh.shape[1])
    begin = [torch.stack([zeros if s is None else s] * directions) for s in states]
    hx = tuple(begin) if kind == "lstm" else begin[0]
    call: Any = torch.lstm if kind == "lstm" else torch.gru
    settings = (weights * directions, len(weights) == 4, 1, 0.0, True, reverse)
    if lengths is None:
        output, *last = call(x, hx, *settings, True)
    else:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        order, back = packed.sorted_indices, packed.unsorted_indices
        begin = [s[:, order] for s in begin]
        data, *last = call(
            packed.data, packed.batch_sizes, tuple(begin) if kind == "lstm" else begin[0], *settings
        )
        packed = packed._replace(data=data)
        output = pad_packed_sequence(packed, batch_first=True, total_length=x.shape[1])[0]
        last = [s[:, back] for s in last]
    return output[..., -weight_hh.shape[1] :], *(s[-1] for s in last)


def outcome(call: Callable[..., Any], args: Sequence[Any], grads: bool = True) -> list[Tensor]:
    """Results, and gradients for cotangents that are fixed."""
    args = [a.detach().requires_grad_() if is_float(a) and grads else a for a in args]
    results = call(*args)
    if not grads:
        return list(results)
    source = torch.Generator().manual_seed(2)
    pulls = [torch.randn(r.shape, generator=source, dtype=torch.float64).to(r.dtype) for r in results]
    wanted = [a for a in args if is_float(a)]
    return [r.detach() for r in results] + list(torch.autograd.grad(results, wanted, pulls))


def is_float(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def agree(kind: str, call: Callable[..., Any], args: tuple[Any, ...], dtype: torch.dtype) -> None:
    """The error is at most four times eager torch's, plus four ulp of the largest intermediate."""
    with Watched() as watched:
        exact = outcome(lambda *a: by_torch(kind, a), args)
    cast = [a.to(dtype) if is_float(a) else a for a in args]
    ours, theirs = outcome(call, cast), outcome(lambda *a: by_torch(kind, a), cast)
    slack = 4 * torch.finfo(dtype).eps * watched.largest
    for i, (found, eager, right) in enumerate(zip(ours, theirs, exact, strict=True)):
        assert found.shape == right.shape, i
        assert found.dtype == dtype, i
        error, allowed = (found - right).abs().max(), (eager - right).abs().max()
        assert error <= 4 * allowed + slack, (i, float(error), float(allowed))
    if args[0].shape[0] > 1 < args[0].shape[1]:
        assert (
            ours[0].stride() == cast[0].new_empty(args[0].shape[1], *exact[1].shape).transpose(0, 1).stride()
        )


def candidates(kind: str, args: tuple[Any, ...], dtype: torch.dtype) -> dict[str, Callable[..., Any]]:
    op = OPS[kind]
    cast = [a.to(dtype) if is_float(a) else a for a in args]
    found = {name: c for name, c in op.candidates.items() if c.why_not(cast) is None}
    return {"reference": op.reference, "registered": getattr(torch.ops.burnt, op.name).default, **found}


@pytest.mark.sample(4)
@kinds
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
def test_every_candidate_in_every_shape(kind: str, shape: tuple[int, ...]) -> None:
    args = given(kind, shape)
    for call in candidates(kind, args, torch.float32).values():
        agree(kind, call, args, torch.float32)


@pytest.mark.sample(4)
@kinds
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "bare"])
@pytest.mark.parametrize("start", [True, False], ids=["begun", "zeros"])
@pytest.mark.parametrize("lengths", [True, False], ids=["lengths", "all"])
@pytest.mark.parametrize("reverse", [True, False], ids=["back", "forth"])
def test_every_option(kind: str, bias: bool, start: bool, lengths: bool, reverse: bool) -> None:
    args = given(kind, bias=bias, start=start, lengths=lengths, reverse=reverse)
    for call in candidates(kind, args, torch.float32).values():
        agree(kind, call, args, torch.float32)
    agree(kind, OPS[kind], args, torch.float64)


@kinds
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_16_bits(kind: str, dtype: torch.dtype) -> None:
    args = given(kind, (5, 9, 7, 19), lengths=True, reverse=True)
    for name, call in candidates(kind, args, dtype).items():
        if name not in ("library", "reference"):
            agree(kind, call, args, dtype)


@kinds
def test_without_gradients_as_with_them(kind: str) -> None:
    args = given(kind, (13, 4, 5, 17), dtype=torch.float32, lengths=True)
    steps = OPS[kind].candidates["steps"]
    for one, two in zip(outcome(steps, args, grads=False), outcome(steps, args), strict=False):
        assert torch.equal(one, two)


@kinds
def test_threads_and_chunks_change_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    args = given(kind, (26, 3, 5, 17), dtype=torch.float32, reverse=True)
    steps = OPS[kind].candidates["steps"]
    usual = outcome(steps, args)
    for threads in (1, 2, 5, 26):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        rows, chunks = loop_c._chunks(26)
        assert rows * chunks >= 26 > rows * (chunks - 1)
        assert rows <= 12
        for one, two in zip(outcome(steps, args), usual, strict=True):
            assert torch.equal(one, two)


@kinds
def test_gradients_in_double(kind: str) -> None:
    args = given(kind, (2, 3, 3, 2), lengths=True, reverse=True)
    inputs = [a.requires_grad_() for a in args if is_float(a)]

    def call(*tensors: Tensor) -> Any:
        left = iter(tensors)
        return OPS[kind](*[next(left) if is_float(a) else a for a in args])

    assert torch.autograd.gradcheck(call, inputs)


@kinds
def test_second_derivatives(kind: str) -> None:
    args = given(kind, (2, 3, 3, 2))

    def twice(call: Callable[..., Any], dtype: torch.dtype) -> list[Tensor]:
        leaves = [a.to(dtype).requires_grad_() if is_float(a) else a for a in args]
        wanted = [a for a in leaves if is_float(a)]
        total = sum((r * r).sum() for r in call(*leaves))
        first = torch.autograd.grad(total, wanted, create_graph=True)
        return list(torch.autograd.grad(sum((g * g).sum() for g in first), wanted))

    exact = twice(lambda *a: by_torch(kind, a), torch.float64)
    for found, right in zip(twice(OPS[kind].candidates["steps"], torch.float32), exact, strict=True):
        torch.testing.assert_close(found.double(), right, rtol=1e-4, atol=1e-4)


@kinds
def test_gradients_for_some_of_the_arguments(kind: str) -> None:
    args = given(kind, dtype=torch.float32)
    steps = OPS[kind].candidates["steps"]
    everything = outcome(steps, args)[len(steps(*args)) :]
    floats = [i for i, a in enumerate(args) if is_float(a)]
    for place, i in enumerate(floats):
        some = [a.detach().requires_grad_() if n == i else a for n, a in enumerate(args)]
        results = steps(*some)
        source = torch.Generator().manual_seed(2)
        pulls = [torch.randn(r.shape, generator=source, dtype=torch.float64).float() for r in results]
        (found,) = torch.autograd.grad(results, [some[i]], pulls)
        torch.testing.assert_close(found, everything[place])


@kinds
@pytest.mark.parametrize("which", [0, 1])
def test_only_one_of_the_results_is_used_and_twice(kind: str, which: int) -> None:
    args = given(kind, dtype=torch.float32, reverse=True, lengths=True)

    def gradients(call: Callable[..., Any]) -> list[Tensor]:
        leaves = [a.detach().requires_grad_() if is_float(a) else a for a in args]
        loss = call(*leaves)[which].square().sum()
        wanted = [a for a in leaves if is_float(a)]
        once = torch.autograd.grad(loss, wanted, retain_graph=True)
        again = torch.autograd.grad(loss, wanted)
        assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))
        return list(again)

    expected = gradients(lambda *a: by_torch(kind, a))
    for found, right in zip(gradients(OPS[kind].candidates["steps"]), expected, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-4)


@kinds
def test_strided_inputs_and_cotangents(kind: str) -> None:
    args = list(given(kind, (4, 6, 8, 10), dtype=torch.float32))
    plain = outcome(OPS[kind].candidates["steps"], args)
    strided = [a.t().contiguous().t() if is_float(a) and a.dim() == 2 else a for a in args]
    strided[0] = torch.stack([args[0], args[0]], 3)[..., 0]
    for found, right in zip(outcome(OPS[kind].candidates["steps"], strided), plain, strict=True):
        torch.testing.assert_close(found, right)
    x = args[0].detach().requires_grad_()
    output = OPS[kind].candidates["steps"](x, *args[1:])[0]
    for pull in (torch.ones(1).expand_as(output), torch.randn(10, 6, 4).permute(2, 1, 0)):
        (found,) = torch.autograd.grad(output, [x], pull, retain_graph=True)
        torch.testing.assert_close(
            found, torch.autograd.grad(output, [x], pull.contiguous(), retain_graph=True)[0]
        )


@kinds
def test_a_change_of_the_output_is_noticed(kind: str) -> None:
    args = given(kind, dtype=torch.float32)
    x = args[0].requires_grad_()
    output, *_ = OPS[kind].candidates["steps"](x, *args[1:])
    output.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


@kinds
def test_what_is_not_finite_stays_in_its_row(kind: str) -> None:
    args = given(kind, (5, 4, 3, 7), dtype=torch.float32, start=False)
    args[0][2, 1] = float("nan")
    output = OPS[kind].candidates["steps"](*args)[0]
    expected = by_torch(kind, args)[0]
    assert torch.equal(output.isnan(), expected.isnan())
    assert output[2, 1:].isnan().all()
    assert output[[0, 1, 3, 4]].isfinite().all()


@kinds
@pytest.mark.parametrize("reverse", [True, False], ids=["back", "forth"])
def test_what_is_beyond_a_sequence_counts_nowhere(kind: str, reverse: bool) -> None:
    args = list(given(kind, (4, 6, 3, 7), lengths=True, reverse=reverse, dtype=torch.float32))
    args[-2] = torch.tensor([2, 6, 1, 5])
    exact = outcome(OPS[kind].reference, args)
    args[0] = args[0].masked_fill(torch.arange(6)[:, None] >= args[-2][:, None, None], float("nan"))
    for name, call in candidates(kind, tuple(args), torch.float32).items():
        for found, right in zip(outcome(call, args), exact, strict=True):
            torch.testing.assert_close(found, right, msg=name)


@kinds
def test_saturated_gates(kind: str) -> None:
    args = list(given(kind, dtype=torch.float32))
    args[0] = args[0] * 1e4
    for found, right in zip(
        outcome(OPS[kind].candidates["steps"], args), outcome(lambda *a: by_torch(kind, a), args), strict=True
    ):
        torch.testing.assert_close(found, right, rtol=1e-3, atol=1e-3)


@kinds
@pytest.mark.parametrize("batch", [0, 3])
def test_an_empty_batch(kind: str, batch: int) -> None:
    args = given(kind, (batch, 4, 3, 5), dtype=torch.float32)
    for found, right in zip(
        outcome(OPS[kind], args), outcome(lambda *a: by_torch(kind, a), args), strict=True
    ):
        torch.testing.assert_close(found, right)


@pytest.mark.full
@kinds
@pytest.mark.parametrize("lengths", [True, False])
def test_opcheck(kind: str, lengths: bool) -> None:
    args = given(kind, (2, 2, 3, 4), dtype=torch.float32, lengths=lengths, reverse=True)
    args = tuple(a.requires_grad_() if is_float(a) else a for a in args)
    torch.library.opcheck(getattr(torch.ops.burnt, f"{kind}_layer").default, args)


@kinds
def test_batches_of_weights(kind: str) -> None:
    """vmap goes through the definition."""
    args = given(kind, (2, 3, 3, 4), dtype=torch.float32, start=False)
    several = torch.stack([args[1], args[1] + 1])
    found = torch.func.vmap(lambda w: OPS[kind](args[0], w, *args[2:])[0])(several)
    for result, weight in zip(found, several, strict=True):
        torch.testing.assert_close(result, OPS[kind](args[0], weight, *args[2:])[0])


# --- several layers ---------------------------------------------------------------------------------------


@pytest.mark.sample(12)
@pytest.mark.parametrize(
    ("batch", "grads", "of_amd_with_avx_512"),
    [(16, False, "library"), (16, True, "library"), (64, True, "steps"), (64, False, "library")],
)
def test_steps_of_our_own_where_they_are_faster(
    batch: int, grads: bool, of_amd_with_avx_512: str, processor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    x, *rest = given("lstm", (batch, 64, 256, 256), dtype=torch.float32)
    name = of_amd_with_avx_512 if processor == "AMD AVX-512" else "steps"
    assert lstm_layer.chosen(x.requires_grad_(grads), *rest).candidate.name == name


@pytest.mark.parametrize(
    ("dtype", "vendors"),
    [(torch.bfloat16, {"Intel AVX-512", "Intel AMX", "AMD AVX-512"}), (torch.float16, {"Intel AMX"})],
    ids=["bfloat16", "float16"],
)
def test_steps_of_16_bits_are_ours_where_there_are_no_instructions(
    dtype: torch.dtype, vendors: set[str], processor: str
) -> None:
    args = given("lstm", (16, 4, 32, 32), dtype=dtype)
    assert lstm_layer.chosen(*args).candidate.name == ("library" if processor in vendors else "steps")


def stack_of(kind: str, layers: int, bidirectional: bool, bias: bool, dropout: float = 0.0) -> Any:
    torch.manual_seed(3)
    layer: Any = torch.nn.LSTM if kind == "lstm" else torch.nn.GRU
    return layer(7, 5, layers, bias, True, dropout, bidirectional)


@pytest.mark.sample(12)
@kinds
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("bidirectional", [True, False], ids=["both", "forth"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "bare"])
@pytest.mark.parametrize("start", [True, False], ids=["begun", "zeros"])
@pytest.mark.parametrize("lengths", [None, [2, 6, 1, 6]], ids=["all", "lengths"])
def test_layers(
    kind: str, layers: int, bidirectional: bool, bias: bool, start: bool, lengths: list[int] | None
) -> None:
    theirs = stack_of(kind, layers, bidirectional, bias)
    x = torch.randn(4, 6, 7, requires_grad=True)
    states = [torch.randn(layers * (1 + bidirectional), 4, 5, requires_grad=True) for _ in range(2)]
    hx: Any = None if not start else tuple(states) if kind == "lstm" else states[0]
    wanted = [x, *theirs.parameters(), *(states[: 2 if kind == "lstm" else 1] if start else ())]

    def both(output: Tensor, last: Any) -> list[Tensor]:
        results = [output, *(last if isinstance(last, tuple) else (last,))]
        loss = sum((r * torch.linspace(-1, 1, r.numel()).view(r.shape)).sum() for r in results)
        return [*results, *torch.autograd.grad(loss, wanted)]

    at = None if lengths is None else torch.tensor(lengths)
    ours = both(*getattr(kernels, kind)(x, theirs.all_weights, hx, lengths=at, bidirectional=bidirectional))
    if at is None:
        expected = both(*theirs(x, hx))
    else:
        packed, last = theirs(pack_padded_sequence(x, at, batch_first=True, enforce_sorted=False), hx)
        expected = both(pad_packed_sequence(packed, batch_first=True)[0], last)
    for found, right in zip(ours, expected, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-5)


@kinds
def test_dropout_between_layers(kind: str) -> None:
    theirs = stack_of(kind, 3, False, True, 0.5)
    x = torch.randn(4, 6, 7)

    def run(call: Callable[[], Any]) -> Tensor:
        torch.manual_seed(8)
        result: Tensor = call()[0]
        return result

    def ours(**more: Any) -> Any:
        return getattr(kernels, kind)(x, theirs.all_weights, dropout=0.5, **more)

    once = run(lambda: ours(training=True))
    assert torch.equal(once, run(lambda: ours(training=True)))
    torch.testing.assert_close(once, run(lambda: theirs(x)))
    assert not torch.equal(once, ours(training=True)[0])
    torch.testing.assert_close(ours()[0], theirs.eval()(x)[0])
    everything = getattr(kernels, kind)(x, theirs.all_weights[:1], dropout=1.0, training=True)[0]
    torch.testing.assert_close(everything, getattr(kernels, kind)(x, theirs.all_weights[:1])[0])


@pytest.mark.full
@kinds
@pytest.mark.parametrize("lengths", [None, [2, 6, 1, 6]], ids=["all", "lengths"])
def test_under_torch_compile(kind: str, lengths: list[int] | None) -> None:
    torch._dynamo.reset()
    weights = stack_of(kind, 2, True, True).all_weights
    x, at = torch.randn(4, 6, 7), None if lengths is None else torch.tensor(lengths)

    def call(x: Tensor) -> Any:
        return getattr(kernels, kind)(x, weights, lengths=at, bidirectional=True)

    found, right = torch.compile(call, backend="eager", fullgraph=True)(x), call(x)
    torch.testing.assert_close(found, right)


# --- what does not fit ------------------------------------------------------------------------------------


def spoilt(position: int, change: Callable[[Tensor], Any]) -> Callable[[Sequence[Any]], list[Any]]:
    return lambda args: [change(a) if i == position % len(args) else a for i, a in enumerate(args)]


WRONG: dict[str, tuple[Callable[[Sequence[Any]], list[Any]], type[InputError], str]] = {
    "one sequence": (spoilt(0, lambda x: x[0]), InputRuntimeError, r"unsqueeze\(0\)"),
    "no steps": (spoilt(0, lambda x: x[:, :0]), InputRuntimeError, "at least one step"),
    "features": (spoilt(0, lambda x: x[..., :-1]), InputRuntimeError, "weight_ih of"),
    "weight_ih": (spoilt(1, lambda w: w[:-1]), InputRuntimeError, "weight_ih of"),
    "weight_hh": (spoilt(2, lambda w: w[:, :-1]), InputRuntimeError, "weight_ih of"),
    "weight_hh, flat": (spoilt(2, lambda w: w[:-1]), InputRuntimeError, "weight_hh of"),
    "bias": (spoilt(4, lambda b: b[1:]), InputRuntimeError, "bias_hh of"),
    "one bias": (spoilt(4, lambda b: None), InputRuntimeError, "only bias_ih"),
    "state": (spoilt(5, lambda h: h[:1]), InputRuntimeError, "h0 of"),
    "dtype": (spoilt(1, lambda w: w.double()), InputRuntimeError, "different dtypes"),
    "device": (spoilt(2, lambda w: w.to("meta")), InputRuntimeError, "different devices"),
    "integers": (spoilt(0, lambda x: x.long()), InputUnsupportedError, "not defined for int64"),
    "too long": (spoilt(-2, lambda n: n + 7), InputRuntimeError, "lengths from 1 to 5"),
    "no step of one": (spoilt(-2, lambda n: n * 0), InputRuntimeError, "found     0"),
    "lengths": (spoilt(-2, lambda n: n[:2]), InputRuntimeError, "lengths of"),
    "lengths, floats": (spoilt(-2, lambda n: n.float()), InputRuntimeError, "hint      lengths.long"),
}


@kinds
@pytest.mark.parametrize("case", WRONG)
def test_bad_input(kind: str, case: str) -> None:
    spoil, error, match = WRONG[case]
    with pytest.raises(error, match=match):
        OPS[kind](*spoil(given(kind, dtype=torch.float32, lengths=True)))


@kinds
def test_bad_stacks(kind: str) -> None:
    call, weights = getattr(kernels, kind), stack_of(kind, 3, False, True).all_weights
    x = torch.randn(4, 6, 7)
    with pytest.raises(InputValueError, match="does not match the directions"):
        call(x, [])
    with pytest.raises(InputValueError, match="2 tuples of weights for each layer"):
        call(x, weights, bidirectional=True)
    state = torch.zeros(2, 4, 5)
    with pytest.raises(InputRuntimeError, match=r"\[3, 4, 5\]"):
        call(x, weights, (state, state) if kind == "lstm" else state)
    several = (state, state) if kind == "gru" else state
    for start in (several, 3):
        with pytest.raises(InputTypeError, match=f"{kind} takes"):
            call(x, weights, start)
    if kind == "lstm":
        with pytest.raises(InputRuntimeError, match="lstm takes two initial states"):
            call(x, weights, (state, state, state))
    assert issubclass(InputRuntimeError, BurntError)
    assert list(itertools.chain(OPS[kind].candidates)) == ["library", "steps"]


@pytest.mark.parametrize("name", processors.NAMES)
@pytest.mark.parametrize("lengths", [None, torch.tensor([3, 5])], ids=["all", "lengths"])
def test_autocast_without_instructions_for_16_bits(lengths: Tensor | None, name: str) -> None:
    """torch's own LSTM raises there: oneDNN was picked for float32 before autocast makes bfloat16 of it.

    It does not pick oneDNN for sequences of several lengths, which autocast leaves as they are.
    """
    dtype = torch.bfloat16 if lengths is None else torch.float32
    with processors.as_if(processors.within_reach(processors.named(name))):
        check_autocast(lengths, dtype)


def check_autocast(lengths: Tensor | None, dtype: torch.dtype) -> None:
    library, source = kernels.lstm_layer.candidates["library"], torch.Generator().manual_seed(0)
    sizes = (2, 5, 12), (20, 12), (20, 5), (20,), (20,)
    x, *weights = (torch.randn(s, generator=source) / 4 for s in sizes)
    weights = [w.requires_grad_() for w in weights]
    args = (x, *weights, None, None, lengths, False)
    with torch.autocast("cpu", torch.bfloat16):
        result = library(*args)
    assert {t.dtype for t in result} == {dtype}
    for ours, exact in zip(result, library(*args), strict=True):
        torch.testing.assert_close(ours.float(), exact, rtol=0.02, atol=0.02)
    found = torch.autograd.grad(result[0].float().sum(), weights)
    assert all(torch.isfinite(g).all() for g in found)
