"""The inline cache: a call whose guard matches reuses a plan without a signature lookup; others do not."""

import contextlib
import functools
import gc
import inspect
import operator
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import burnt
from burnt import kernels
from burnt.codegen.frontend.guards import Guard, build_guard
from burnt.codegen.precision import multiplying
from burnt.codegen.runtime.c_compiler import find_compiler
from burnt.kernels.dispatch.op import Op, op
from tests.codegen.compare import default_dtype


def anything(
    x: Tensor,
    y: Tensor,
    real: float,
    number: int,
    flag: bool,
    nothing: Tensor | None,
    several: list[int],
    some: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    text: str = "mean",
) -> None:
    """Arguments of all kinds that an op takes."""


def guard_for(args: tuple[Any, ...], function: Callable[..., Any] = anything) -> Guard:
    """Build the guard of a call of a function with these arguments."""
    parameters = {p.name: p.default for p in inspect.signature(function).parameters.values()}
    guard = build_guard(parameters, args)
    assert guard is not None
    return guard


def holds_for(args: tuple[Any, ...], function: Callable[..., Any] = anything) -> Callable[..., bool]:
    """Return whether the guard for these arguments holds for a call, and check the arguments it returns."""
    guard = guard_for(args, function)

    def holds(*given: Any, **named: Any) -> bool:
        full = guard(*given, **named)
        bound = inspect.signature(function).bind(*given, **named)
        bound.apply_defaults()
        assert full is None or all(map(operator.is_, full, bound.args))
        return full is not None

    return holds


FIRST = (torch.randn(3, 4), torch.randn(4), 1e-5, 7, True, None, [4], (2, 3), torch.float32, "mean")


def with_argument(at: int, value: Any) -> tuple[Any, ...]:
    return (*FIRST[:at], value, *FIRST[at + 1 :])


def test_guard_holds_for_other_tensors_and_floats() -> None:
    holds = holds_for(FIRST)
    assert holds(*FIRST)
    again = (torch.ones(3, 4), torch.zeros(8)[:4], 0.5, 7, True, None, [4], (2, 3), torch.float32, "mean")
    assert holds(*again)
    assert holds(*again[:8])
    assert holds(*again[:7], text="mean", some=(2, 3))
    assert not holds(*again[:7], text="sum", some=(2, 3))


@pytest.mark.parametrize(
    ("at", "make"),
    [
        pytest.param(0, lambda: torch.randn(4, 4), id="shape"),
        pytest.param(0, lambda: torch.randn(3, 4, 1), id="rank"),
        pytest.param(0, lambda: torch.randn(4, 3).t(), id="strides"),
        pytest.param(0, lambda: torch.randn(3, 4).double(), id="dtype"),
        pytest.param(0, lambda: torch.randn(3, 4, device="meta"), id="device"),
        pytest.param(0, lambda: torch.randn(3, 4).requires_grad_(), id="wants gradients"),
        pytest.param(0, lambda: torch.nn.Parameter(torch.randn(3, 4), requires_grad=False), id="class"),
        pytest.param(0, lambda: torch._neg_view(torch.randn(3, 4)), id="negative"),
        pytest.param(0, lambda: torch.randn(3, 4).to_sparse(), id="sparse"),
        pytest.param(0, lambda: torch.randn(3, 4).to_sparse_csr(), id="sparse rows"),
        pytest.param(0, lambda: torch.randn(3, 4).to_mkldnn(), id="oneDNN's"),
        pytest.param(0, lambda: None, id="no tensor"),
        pytest.param(0, lambda: Tensor, id="the class of tensors"),
        pytest.param(2, lambda: 1, id="whole number for a float"),
        pytest.param(2, lambda: None, id="None for a float"),
        pytest.param(3, lambda: 8, id="whole number"),
        pytest.param(3, lambda: 7.0, id="float for a whole number"),
        pytest.param(3, lambda: torch.tensor(7), id="tensor for a whole number"),
        pytest.param(4, lambda: False, id="bool"),
        pytest.param(4, lambda: 1, id="whole number for a bool"),
        pytest.param(5, lambda: torch.randn(3), id="tensor for None"),
        pytest.param(6, lambda: [5], id="list"),
        pytest.param(6, lambda: [4, 4], id="length of a list"),
        pytest.param(6, lambda: [torch.ones(2)], id="list of a tensor"),
        pytest.param(6, lambda: (4,), id="tuple for a list"),
        pytest.param(7, lambda: (2, 4), id="tuple"),
        pytest.param(7, lambda: (2.0, 3), id="tuple of a float"),
        pytest.param(8, lambda: torch.float64, id="dtype as a value"),
        pytest.param(9, lambda: "sum", id="text"),
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse")
def test_guard_fails_for_another_argument(at: int, make: Callable[[], Any]) -> None:
    assert guard_for(FIRST)(*with_argument(at, make())) is None


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_guard_raises_for_a_tensor_without_a_shape() -> None:
    with pytest.raises(RuntimeError, match="sizes"):
        guard_for(FIRST)(*with_argument(0, torch.nested.nested_tensor([torch.ones(2, 4)] * 3)))


def test_guard_copies_lists() -> None:
    axes = [0, 1]
    holds = holds_for((torch.ones(2, 2), axes), lambda x, axes: None)
    axes[0] = 1
    assert not holds(torch.ones(2, 2), axes)
    assert holds(torch.ones(2, 2), [0, 1])


def test_guard_raises_type_error_for_arguments_that_do_not_fit() -> None:
    holds = guard_for(FIRST)
    with pytest.raises(TypeError, match="missing 1 required"):
        holds(*FIRST[:7])
    with pytest.raises(TypeError, match="unexpected keyword"):
        holds(*FIRST, more=1)


def test_guard_keeps_no_tensor_alive() -> None:
    x = torch.ones(3)
    alive = weakref.ref(x)
    guard = guard_for((x,), lambda x: None)
    del x
    gc.collect()
    assert alive() is None
    assert guard(torch.ones(3)) is not None


class Watching(TorchFunctionMode):
    """Sees calls of torch's functions."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(getattr(function, "__name__", str(function)))
        return function(*args, **(kwargs or {}))


class Dispatching(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees torch's ops."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "context",
    [
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu"),
        Dispatching,
        lambda: FakeTensorMode(allow_non_fake_inputs=True),
        FunctionalTensorMode,
        lambda: FlopCounterMode(display=False),
        torch.autograd.forward_ad.dual_level,
        lambda: multiplying("tf32"),
        lambda: multiplying("tf32x3"),
    ],
    ids=[
        "no_grad",
        "inference",
        "autocast",
        "dispatch mode",
        "fake",
        "functional",
        "counting",
        "forward ad",
        "tf32",
        "tf32x3",
    ],
)
def test_guard_fails_in_another_torch_state(
    context: Callable[[], contextlib.AbstractContextManager[Any]],
) -> None:
    holds = holds_for(FIRST)
    with context():
        assert not holds(*FIRST)
    assert holds(*FIRST)


def test_a_function_mode_sees_calls_of_ops_and_nothing_else(scaled: Op[..., Any]) -> None:
    x = torch.ones(3)
    for _ in range(3):
        scaled(x, 2.0)
    with Watching() as watching:
        result = scaled(x, 2.0)
    assert watching.seen == ["scaled_of.default"]
    assert result.tolist() == [2.0] * 3


@pytest.mark.parametrize(
    "transform",
    [torch.func.vmap, torch.func.functionalize, lambda look: torch.func.grad(lambda x: look(x).sum())],
)
def test_guard_fails_in_a_transform(transform: Callable[..., Any]) -> None:
    x = torch.ones(3, 4)
    holds, found = holds_for((x,), lambda x: None), list[bool]()

    def look(mapped: Tensor) -> Tensor:
        found.extend([holds(mapped), holds(x)])
        return mapped

    transform(look)(x)
    assert found == [False, False]


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_guard_fails_while_tracing() -> None:
    x = torch.ones(3, 4)
    holds, found = holds_for((x,), lambda x: None), list[bool]()

    def look(traced: Tensor) -> Tensor:
        found.append(holds(traced))
        return traced + 1

    torch.jit.trace(look, (x,), check_trace=False)  # type: ignore[no-untyped-call]
    assert found == [False]


class Untouched(dict[Any, Any]):
    """Entries that nobody may look up."""

    def get(self, key: Any, default: Any = None) -> Any:
        raise AssertionError("a signature was looked up")


@pytest.fixture
def scaled() -> Iterator[Op[..., Any]]:
    @op
    def scaled_of(x: Tensor, factor: float, dim: int = 0, offset: float = 0.0) -> Tensor:
        return x * factor + offset + dim

    yield scaled_of
    scaled_of.forget()


def test_third_call_is_found_by_its_guard(scaled: Op[..., Any]) -> None:
    x = torch.arange(4.0)
    for _ in range(2):
        scaled(x, 2.0)
        scaled(x, factor=2.0)
    scaled._entries = Untouched()
    assert scaled(x, 3.0, offset=1.0).tolist() == [1.0, 4.0, 7.0, 10.0]
    assert scaled(x + 1, factor=2.0).tolist() == [2.0, 4.0, 6.0, 8.0]
    with pytest.raises(AssertionError, match="was looked up"):
        scaled(x, 2.0, 1)


def test_alternating_signatures_are_found_by_their_guards(scaled: Op[..., Any]) -> None:
    given = [torch.ones(n) for n in range(1, 5)]
    for x in [*given, *given]:
        scaled(x, 2.0)
    scaled._entries = Untouched()
    for x in [*given, *reversed(given)]:
        assert torch.equal(scaled(x, 3.0), x * 3)


def test_too_many_guards_of_one_call_shape_fall_back_to_signatures(scaled: Op[..., Any]) -> None:
    x = torch.arange(3.0)
    for dim in list(range(12)) * 4:
        assert torch.equal(scaled(x, 3.0, dim), x * 3 + dim)
    assert scaled._recent.entries == {}, "too many different calls go by their signatures"


def test_oldest_guard_of_a_call_shape_is_dropped(scaled: Op[..., Any]) -> None:
    x = torch.arange(3.0)
    for dim in range(6):
        for _ in range(3):
            assert torch.equal(scaled(x, 3.0, dim), x * 3 + dim)
    scaled._entries = Untouched()
    for dim in (2, 3, 4, 5):
        assert torch.equal(scaled(x, 3.0, dim), x * 3 + dim)
    with pytest.raises(AssertionError, match="was looked up"):
        scaled(x, 3.0, 1)


def test_number_of_call_shapes_is_bounded(scaled: Op[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["burnt.codegen.frontend.guards"], "_MAX_CALL_SHAPES", 8)
    for n in [*range(1, 30)] * 2:
        for _ in range(2):
            assert scaled(torch.ones(n), 3.0).tolist() == [3.0] * n
        assert len(scaled._recent.entries) <= 8


def test_states_that_share_a_signature_have_guards_each(scaled: Op[..., Any]) -> None:
    x = torch.ones(3)
    for _ in range(3):
        with torch.inference_mode():
            scaled(x, 2.0)
        with torch.no_grad():
            scaled(x, 2.0)
            scaled(torch.nn.Parameter(x, requires_grad=False), 2.0)
    scaled._entries = Untouched()
    with torch.no_grad():
        assert scaled(x, 2.0).tolist() == scaled(torch.nn.Parameter(x, requires_grad=False), 2.0).tolist()
    with torch.inference_mode():
        assert scaled(x, 2.0).is_inference()


def test_a_tensor_passed_twice_has_no_guard() -> None:
    x, y = torch.ones(3), torch.zeros(3)
    for _ in range(4):
        assert kernels.swiglu(x, x).shape == (3,)
    assert build_guard(dict.fromkeys("ab", inspect.Parameter.empty), (x, x)) is None
    assert not holds_for((x, y), lambda a, b: None)(x, x)


def test_a_call_that_has_no_guard_binds_no_candidate(
    scaled: Op[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    bound: list[Any] = []
    monkeypatch.setattr(
        sys.modules["burnt.kernels.dispatch.op"], "bind_guarded", lambda *args: bound.append(args)
    )
    for _ in range(4):
        assert kernels.swiglu(*[torch.ones(5)] * 2).shape == (5,)
    assert bound == []
    for _ in range(4):
        scaled(torch.ones(5), 2.0)
    assert len(bound) == 1


def test_what_is_forgotten_is_chosen_anew(scaled: Op[..., Any]) -> None:
    x = torch.ones(3)
    for _ in range(3):
        scaled(x, 2.0)

    @scaled.candidate("doubled", best=lambda *_: True)
    def doubled(x: Tensor, factor: float, dim: int, offset: float) -> Tensor:
        return x * factor * 2

    for _ in range(3):
        assert scaled(x, 2.0).tolist() == [4.0] * 3
    scaled.discard("doubled")
    for _ in range(3):
        assert scaled(x, 2.0).tolist() == [2.0] * 3


def test_a_call_during_which_others_forget_does_not_bring_an_old_choice_back(scaled: Op[..., Any]) -> None:
    x = torch.ones(3)
    scaled(x, 2.0)

    class Forgetting(dict[Any, Any]):
        def get(self, key: Any, default: Any = None) -> Any:
            scaled.forget()
            return super().get(key, default)

    scaled._entries = Forgetting(scaled._entries)
    scaled(x, 2.0)
    assert scaled._recent.entries == {}


def test_a_call_through_torchs_ops_adds_no_guard(scaled: Op[..., Any]) -> None:
    x = torch.ones(3)
    for _ in range(3):
        scaled.call_torch_op((x, 2.0, 0, 0.0))
    assert scaled._recent.entries == {}
    for _ in range(2):
        scaled(x, 2.0)
    scaled._entries = Untouched()
    scaled(x, 2.0)


def test_states_are_distinguished_in_turn() -> None:
    x = torch.randn(4, 8, requires_grad=True)
    for _ in range(4):
        assert kernels.softmax(x, 0).requires_grad
        with torch.no_grad():
            assert not kernels.softmax(x, 0).requires_grad
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert kernels.linear(x, x).dtype == torch.bfloat16
        assert kernels.linear(x, x).dtype == torch.float32
        assert torch.func.vmap(lambda row: kernels.softmax(row, 0))(x).shape == x.shape
        found = torch.func.jvp(lambda v: kernels.softmax(v, 0), (x,), (torch.ones_like(x),))
        torch.testing.assert_close(found[0], torch.softmax(x, 0))
        torch.testing.assert_close(found[1], torch.zeros_like(x), atol=1e-6, rtol=0)


def test_threads_do_not_disturb_each_other(scaled: Op[..., Any]) -> None:
    wrong: list[Any] = []

    def work(size: int) -> None:
        for i in range(300):
            n = 1 + (i + size) % 7
            if scaled(torch.ones(n), float(size)).tolist() != [float(size)] * n:
                wrong.append((size, i))
            if i % 50 == 0:
                scaled.forget()

    threads = [threading.Thread(target=work, args=(size,)) for size in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


SCALE = 2.0
SHIFT = torch.ones(3)


def test_second_call_of_a_fused_function_is_found_by_its_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = burnt.fuse(lambda x, factor, power=1: x * factor + power)
    x = torch.arange(3.0)
    fused(x, 2.0, 3)
    monkeypatch.setattr(fused, "_entries", Untouched())
    assert fused(x, 3.0, 3).tolist() == [3.0, 6.0, 9.0]
    assert fused(x + 1, 0.0, 3).tolist() == [3.0, 3.0, 3.0]
    with pytest.raises(AssertionError, match="was looked up"):
        fused(x, 2.0, 4)


def test_a_fused_function_sees_what_it_captures_change(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = burnt.fuse(lambda x: x * SCALE + SHIFT)
    x = torch.arange(3.0)
    for _ in range(3):
        assert fused(x).tolist() == [1.0, 3.0, 5.0]
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    for _ in range(3):
        assert fused(x).tolist() == [1.0, 4.0, 7.0]
    monkeypatch.setitem(globals(), "SHIFT", torch.zeros(3))
    for _ in range(3):
        assert fused(x).tolist() == [0.0, 3.0, 6.0]
    monkeypatch.undo()
    assert fused(x).tolist() == [1.0, 3.0, 5.0]


class Branching(torch.nn.Module):
    """Has a method whose plan depends on the value of a float."""

    def __init__(self) -> None:
        super().__init__()
        self.offset, self.weight = 3.0, torch.nn.Parameter(torch.ones(3))

    @burnt.fuse
    def forward(self, x: Tensor, p: float) -> Tensor:
        return (x * self.weight + SHIFT if p > 0.5 else x + self.offset).exp() * p


def test_a_plan_for_some_floats_sees_what_it_captures_change(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = Branching(), torch.arange(3.0)

    def check() -> None:
        for p in (0.1, 0.9, 0.7, 0.9):
            torch.testing.assert_close(module(x, p), Branching.forward.fn(module, x, p))

    for _ in range(2):
        check()
    module.offset = 2.0
    check()
    module.weight = torch.nn.Parameter(torch.zeros(3))
    check()
    monkeypatch.setitem(globals(), "SHIFT", torch.zeros(3))
    check()


def test_guards_stay_when_more_floats_than_guards_alternate(monkeypatch: pytest.MonkeyPatch) -> None:
    fused, x = burnt.fuse(lambda x, p: (x * 2 if p > 0.5 else x + 1).exp() * p), torch.arange(3.0)
    values = (0.1, 0.2, 0.3, 0.6, 0.7, 0.8)
    for p in values * 7:
        torch.testing.assert_close(fused(x, p), fused.fn(x, p))
    found = [p for p in values if fused._inline_cache.find((x, p), {}) is not None]
    assert len(found) >= 4
    monkeypatch.setattr(fused, "_entries", Untouched())
    for p in found:
        torch.testing.assert_close(fused(x, p), fused.fn(x, p))


@pytest.mark.skipif(find_compiler() is None, reason="no C compiler here: eager functions run")
def test_a_bound_plan_for_some_floats_sees_what_it_captures_change(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = burnt.fuse(lambda x, p: (x * SHIFT if p > 0.5 else x - SHIFT).exp() * p)
    bound = [fused.bind((torch.arange(3.0), p), ["x", "p"], ["x", "p"]) for p in (0.1, 0.9)]
    for expected in (True, False):
        for call in bound:
            assert call is not None
            assert all(test() == value for test, value in call.conditions) == expected
        monkeypatch.setitem(globals(), "SHIFT", torch.zeros(3))


def scaled_by(x: Tensor) -> Tensor:
    return x * SCALE


def shifted_by(x: Tensor) -> Tensor:
    return x + SHIFT


def test_a_fused_function_sees_another_helper_and_what_that_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = burnt.fuse(lambda x: scaled_by(x) * 2)
    x = torch.arange(3.0)
    for _ in range(3):
        assert fused(x).tolist() == [0.0, 4.0, 8.0]
    monkeypatch.setitem(globals(), "scaled_by", shifted_by)
    for _ in range(3):
        assert fused(x).tolist() == [2.0, 4.0, 6.0]
    monkeypatch.setitem(globals(), "SHIFT", torch.zeros(3))
    for _ in range(3):
        assert fused(x).tolist() == [0.0, 2.0, 4.0]


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "capture",
    [
        pytest.param(lambda weight: lambda x: x * weight, id="cell"),
        pytest.param(lambda weight: (lambda held: lambda x: x * held[0][1])(((0, weight),)), id="tuple"),
        pytest.param(
            lambda weight: (lambda held: lambda x: x * held["w"])(types.MappingProxyType({"w": weight})),
            id="mapping",
        ),
        pytest.param(lambda weight: functools.partial(lambda x, w: x * w, w=weight), id="partial, by name"),
        pytest.param(lambda weight: functools.partial(lambda w, x: x * w, weight), id="partial"),
    ],
)
def test_a_captured_tensor_may_become_another_inside(capture: Callable[..., Any]) -> None:
    weight, x = torch.ones(3), torch.arange(3.0)
    fused = burnt.fuse(capture(weight))
    for wants in (False, True, False, True):
        weight.requires_grad_(wants)
        for _ in range(2):
            assert fused(x).requires_grad == wants
    torch.testing.assert_close(torch.autograd.grad(fused(x).sum(), weight)[0], x)
    weight.data = torch.full((3,), 2.0, dtype=torch.float64)
    for _ in range(2):
        torch.testing.assert_close(fused(x).detach(), x.double() * 2)
    assert fused.fallback_reason(x) is None


def test_what_is_captured_anew_does_not_hide_what_was_before(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = burnt.fuse(lambda x: x * SCALE)
    x = torch.ones(2)
    for scale in (2.0, 3.0, 2.0, 3.0):
        monkeypatch.setitem(globals(), "SCALE", scale)
        assert fused(x).tolist() == [scale] * 2
    monkeypatch.setattr(fused, "_entries", Untouched())
    for scale in (2.0, 3.0):
        monkeypatch.setitem(globals(), "SCALE", scale)
        assert fused(x).tolist() == [scale] * 2


def test_a_fused_function_that_calls_another_of_what_it_captures_is_traced() -> None:
    weight = torch.randn(3, 4)
    inner = burnt.fuse(lambda v: v * 2)
    for _ in range(3):
        inner(weight)
    outer = burnt.fuse(lambda x: x + inner(weight).sum(1))
    x = torch.arange(3.0)
    torch.testing.assert_close(outer(x), x + (weight * 2).sum(1))


def test_a_fused_function_with_a_default_is_known_with_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = burnt.fuse(lambda x, power=1: x + power)
    x = torch.ones(2)
    for _ in range(3):
        assert fused(x, 3).tolist() == [4.0, 4.0]
        assert fused(x).tolist() == [2.0, 2.0]
    monkeypatch.setattr(fused, "_entries", Untouched())
    assert fused(x, 3).tolist() == [4.0, 4.0]
    assert fused(x).tolist() == [2.0, 2.0]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_a_mapped_nested_tensor_is_no_end_of_the_process(scaled: Op[..., Any]) -> None:
    x = torch.randn(3, 4)
    fused = burnt.fuse(lambda x: torch.tanh(x) * 2)
    for _ in range(3):
        fused(x), scaled(x, 2.0)
    nested = torch.nested.nested_tensor([x, x])
    for found, expected in zip(torch.func.vmap(fused)(nested).unbind(), [torch.tanh(x) * 2] * 2, strict=True):
        torch.testing.assert_close(found, expected)
    mapped = torch.func.vmap(lambda part: scaled(part, 2.0))(nested)
    torch.testing.assert_close(mapped.unbind()[0], x * 2)


def test_a_fused_function_that_changes_its_argument_sees_shared_memory() -> None:
    def add(x: Tensor, y: Tensor) -> Tensor:
        x.add_(y)
        return x + y

    fused = burnt.fuse(add)
    for _ in range(3):
        x, y = torch.ones(4), torch.ones(4)
        assert fused(x, y).tolist() == [3.0] * 4
        assert x.tolist() == [2.0] * 4
        assert fused(y, y).tolist() == [4.0] * 4


def test_a_fused_function_follows_the_default_dtype() -> None:
    fused = burnt.fuse(lambda x: x * torch.full((2,), 0.1))
    x = torch.ones(2)
    for dtype in (torch.float32, torch.float64, torch.float32):
        with default_dtype(dtype):
            assert fused(x).dtype == fused(x).dtype == dtype


def test_a_fused_function_tells_states_apart_in_turn() -> None:
    fused = burnt.fuse(lambda x: torch.tanh(x) * 2)
    x = torch.randn(3, requires_grad=True)
    expected = 2 * (1 - torch.tanh(x.detach()) ** 2)
    for _ in range(3):
        torch.testing.assert_close(torch.autograd.grad(fused(x).sum(), x)[0], expected)
        with torch.no_grad():
            assert not fused(x).requires_grad
        torch.testing.assert_close(torch.func.vmap(fused)(x), torch.tanh(x) * 2)
        torch.testing.assert_close(torch.func.jvp(fused, (x,), (torch.ones(3),))[1], expected)
