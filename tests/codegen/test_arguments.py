"""What a fused function takes and returns: containers, keyword arguments, methods, modules; its warnings."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import gc
import pickle
import re
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from burnt.codegen import Function, explain, fuse
from burnt.codegen.frontend.containers import flatten
from burnt.codegen.runtime.c_compiler import find_compiler
from burnt.codegen.stages import stages
from burnt.errors import FusionError, FusionWarning
from tests.codegen.compare import randn

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler here: eager functions run")


def run(fn: Callable[..., Any], args: Any, kwargs: Any, parameters: list[Tensor]) -> tuple[Any, list[Any]]:
    """Return the structure of a function's result, its leaves, and the gradients of what it is given."""
    given: list[Any] = []
    flatten((args, kwargs), given)
    wanted = [t for t in [*given, *parameters] if isinstance(t, Tensor) and t.requires_grad]
    leaves: list[Any] = []
    structure = flatten(fn(*args, **kwargs), leaves)
    roots = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
    gradients: Any = ()
    if roots and wanted and torch.is_grad_enabled():
        gradients = torch.autograd.grad(sum(r.sum() for r in roots), wanted, allow_unused=True)
    return structure, [*leaves, *gradients]


def check(fused: Any, eager: Callable[..., Any], *args: Any, parameters: Any = (), **kwargs: Any) -> None:
    """Check that a plan runs for these arguments, with the results and gradients of the eager function."""
    assert fused.fallback_reason(*args, **kwargs) is None
    parameters = list(parameters)
    expected_structure, expected = run(eager, args, kwargs, parameters)
    for _ in range(2):  # the second call is found by the inline cache
        structure, found = run(fused, args, kwargs, parameters)
        assert structure == expected_structure
        torch.testing.assert_close(found, expected)


class Pair(NamedTuple):
    first: Tensor
    second: Any


@dataclasses.dataclass
class Batch:
    inputs: Tensor
    scale: float = 2.0
    masks: list[Tensor] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    inputs: Tensor
    size: int = dataclasses.field(init=False, default=3)

    def __post_init__(self) -> None:
        if not isinstance(self.inputs, Tensor):
            raise TypeError


class Registered:
    def __init__(self, inputs: Tensor, name: str) -> None:
        self.inputs, self.name = inputs, name


pytree.register_pytree_node(Registered, lambda r: ([r.inputs], r.name), lambda c, name: Registered(*c, name))


CONTAINERS: dict[str, tuple[Callable[[Tensor, Tensor], Any], Callable[[Any], Any]]] = {
    "list": (lambda x, y: [x, y], lambda c: [c[1] * c[0], c[0] + len(c)]),
    "empty list": (lambda x, y: [x, []], lambda c: [c[0] * 2, c[1] or []]),
    "tuple": (lambda x, y: (x, (y, 2.0)), lambda c: (c[0] * c[1][0], c[1][1])),
    "named tuple": (lambda x, y: Pair(x, {"y": y}), lambda c: c._replace(second=c.second["y"] * c.first)),
    "dict": (lambda x, y: {"x": x, 3: [y, None]}, lambda c: {**c, "z": c["x"] * c[3][0]} | {3: (4, None)}),
    "ordered": (
        lambda x, y: collections.OrderedDict(y=y, x=x),
        lambda c: collections.OrderedDict((k, v * 2) for k, v in c.items()),
    ),
    "default": (
        lambda x, y: collections.defaultdict(float, x=x),
        lambda c: collections.defaultdict(int, z=c["x"] * c.get("w", 3.0)),
    ),
    "deque": (lambda x, y: collections.deque([x, y], maxlen=2), lambda c: collections.deque([c[0] * c[1]])),
    "dataclass": (
        lambda x, y: Batch(x, 3.0, [y]),
        lambda c: Batch(c.inputs * c.scale, masks=[c.masks[0] * c.inputs]),
    ),
    "frozen": (lambda x, y: [Frozen(x), y], lambda c: Frozen(c[0].inputs * c[1] + c[0].size)),
    "registered": (lambda x, y: Registered(x, "twice"), lambda c: Registered(c.inputs * 2, c.name)),
    "size": (lambda x, y: (x, x.shape), lambda c: (c[0].reshape(c[1][0] * c[1][1]) * 2, c[1])),
    "return type": (lambda x, y: [x, y], lambda c: torch.max(c[0] * 2 + c[1], dim=-1)),
}


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", CONTAINERS)
def test_containers_of_arguments_and_results(name: str) -> None:
    make, fn = CONTAINERS[name]
    x, y = randn(3, 4).requires_grad_(), randn(3, 4, seed=1)
    fused = fuse(fn)
    check(fused, fn, make(x, y))
    assert type(fused(make(x, y))) is type(fn(make(x, y)))


def test_an_argument_that_is_returned_requires_its_gradient_without_gradients_too() -> None:
    x = randn(4).requires_grad_()
    with torch.no_grad():
        fused = fuse(lambda c: (c["x"] * 2, c["x"]))
        assert fused.fallback_reason({"x": x}) is None
        assert [t.requires_grad for t in fused({"x": x})] == [False, True]


def test_what_a_container_holds_besides_its_elements_comes_back() -> None:
    x = randn(4)
    assert fuse(lambda c: collections.defaultdict(list, x=c["x"] * 2))({"x": x})["new"] == []
    assert fuse(lambda c: collections.deque([c["x"] * 2], maxlen=3))({"x": x}).maxlen == 3


def test_a_structure_is_part_of_the_signature() -> None:
    def fn(c: Any) -> Tensor:
        keys = sum(3**i * (type(k) is bool) for i, k in enumerate(c)) if isinstance(c, dict) else -1
        values = list(c.values()) if isinstance(c, dict) else c
        result: Tensor = values[0] * 2 + len(values) + keys + 10 * isinstance(c, list)
        return result - values[-1]

    x, y = randn(4), randn(4, seed=1)
    fused = fuse(fn)
    for given in (
        [x], [x, y], (x, y), {"x": x, "y": y}, {"y": y, "x": x}, {1: x, 0: y}, {True: x, 0: y},
        {1.0: x, 0: y}, [x, 2], [x, 3], [x, 2.0], [x, 3.5], [y, x, y],
    ):  # fmt: skip
        check(fused, fn, given)
    several = fuse(lambda a, b: a[0] * b[0])
    check(several, several.fn, [x], [y])
    check(several, several.fn, [x, y], [x])


def test_one_tensor_in_two_places_has_both_gradients() -> None:
    x = randn(4).requires_grad_()
    fn = lambda c: c["a"] * c["b"].sin()  # noqa: E731
    check(fuse(fn), fn, {"a": x, "b": x})


def test_tensors_in_containers_are_changed_in_place() -> None:
    def fn(c: dict[str, Any]) -> Tensor:
        c["x"] += 1
        c["more"][0].mul_(2)
        result: Tensor = c["x"] * c["more"][0]
        return result

    fused = fuse(fn)
    ours = {"x": randn(4), "more": [randn(4, seed=1)]}
    theirs = copy.deepcopy(ours)
    assert fused.fallback_reason(ours) is None
    for _ in range(3):
        torch.testing.assert_close(fused(ours), fn(theirs))
        torch.testing.assert_close(ours, theirs)
    x = randn(8)
    ours, theirs = ({"x": t[1:5], "more": [t[2:6]]} for t in (x, x.clone()))  # they overlap
    torch.testing.assert_close(fused(ours), fn(theirs))
    torch.testing.assert_close(ours, theirs)


def set_field(batch: Batch) -> Tensor:
    object.__setattr__(batch, "scale", 5.0)
    return batch.inputs * batch.scale


MUTATIONS: dict[str, tuple[Callable[[Any], Any], Callable[[Tensor], Any]]] = {
    "append": (lambda c: c.append(c[0] * 2) or c[0] + 1, lambda x: [x]),
    "pop": (lambda c: c.pop() * 2, lambda x: [x, x + 1]),
    "reorder": (lambda c: c.reverse() or c[0] * 2, lambda x: [x, x + 1]),
    "set an item": (lambda c: c.__setitem__(0, 4.0) or c[1] * c[0], lambda x: [3.0, x]),
    "set the equal": (lambda c: c.update(n=2.0) or c["x"] * c["n"], lambda x: {"x": x, "n": 2.0 + 0.0}),
    "new key": (lambda c: c.setdefault("y", c["x"] * 2) + 1, lambda x: {"x": x}),
    "removed key": (lambda c: c.pop("n") * c["x"], lambda x: {"x": x, "n": 3}),
    "missing key": (lambda c: c["y"] + c["x"], lambda x: collections.defaultdict(float, x=x)),
    "in a container": (lambda c: c["of"][0].clear() or c["x"] * 2, lambda x: {"x": x, "of": [[1]]}),
    "deque": (lambda c: c.append(c[0] * 2) or c[0] + 1, lambda x: collections.deque([x, x], maxlen=2)),
    "field": (set_field, lambda x: Batch(x)),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", MUTATIONS)
def test_changes_of_containers_are_not_lost(name: str) -> None:
    fn, make = MUTATIONS[name]
    ours, theirs = make(randn(4)), make(randn(4))
    fused = fuse(fn)
    assert "it changes a list, dict or other container that it is given" in fused.fallback_reason(
        make(randn(4))
    )
    torch.testing.assert_close(fused(ours), fn(theirs))
    assert run(lambda c: c, [ours], {}, [])[0] == run(lambda c: c, [theirs], {}, [])[0]
    found, expected = [], []
    flatten(ours, found)
    flatten(theirs, expected)
    torch.testing.assert_close(found, expected)
    with pytest.raises(FusionError, match="it changes a list, dict"):
        fuse(fn, single=True)(make(randn(4)))


def test_a_container_that_is_returned_is_the_given_one() -> None:
    for fn in (lambda c: c, lambda c: {"y": c["x"] * 2, "c": c}, lambda c: (c["x"] * 2, c["l"])):
        given = {"x": randn(3), "l": [1]}
        fused = fuse(fn)
        found = fused(given)
        assert any(part is given or part is given["l"] for part in (found, *found) if part is not None) or (
            found["c"] is given
        )
        assert re.search("it returns a (dict|list) that it is given", fused.fallback_reason(given))


def test_containers_without_a_structure_run_the_eager_function() -> None:
    itself: list[Any] = [randn(3)]
    itself.append(itself)
    fused = fuse(lambda c: c[0] * 2)
    assert "argument 0 is a list" in fused.fallback_reason(itself)
    torch.testing.assert_close(fused(itself), itself[0] * 2)
    fused = fuse(lambda c, x: c["f"](x))
    assert "argument 0 holds a function" in fused.fallback_reason({"f": lambda x: x * 2}, randn(3))
    torch.testing.assert_close(fused({"f": lambda x: x * 2}, randn(3)), randn(3) * 2)


# --- keyword arguments ------------------------------------------------------------------------------------


@pytest.mark.full
def test_keyword_arguments() -> None:
    def fn(x, /, y=2.0, *more, k, other=None, **named):
        result = x * y + k + sum(more)
        return {"r": result if other is None else result * other, **{n: v * 2 for n, v in named.items()}}

    x, z = randn(4).requires_grad_(), randn(4, seed=1)
    fused = fuse(fn)
    check(fused, fn, x, k=z)
    check(fused, fn, x, k=2.0)
    check(fused, fn, x, y=z, k=3.0, x=x)
    check(fused, fn, x, 2.0, z, 1, k=z, args=z, self=x)
    check(fused, fn, x, 2.0, z, 1, k=z, self=x, args=z)
    check(fused, fn, x, k=[1.0, 2.0][0], other=z)
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'k'"):
        fused(x)  # as the eager function
    with pytest.raises(TypeError, match="required"):
        fused(k=x)


def test_a_function_of_c_takes_keyword_arguments() -> None:
    x = randn(3, 4)
    check(fuse(torch.sum), torch.sum, x, dim=1)


def test_defaults_that_are_not_given() -> None:
    fn = lambda x, *, by=(2.0, 3), to=1.5: x * by[0] + by[1] * to  # noqa: E731
    check(fuse(fn), fn, randn(3))
    check(fuse(fn), fn, randn(3), by=(1.0, 4))
    check(fuse(fn), fn, randn(3), to=2.5)


@pytest.mark.full
def test_reports_take_what_a_call_takes() -> None:
    fn = lambda c, *, by: [c["x"] * by]  # noqa: E731
    x = randn(3).requires_grad_()
    fused = fuse(fn)
    assert fused.fallback_reason({"x": x}, by=2.0) is None
    assert fused.plan({"x": x}, by=2.0) is not None
    explained = explain(fn, {"x": x}, by=2.0, timed=False)
    assert [s.ops for s in explained.steps] == [("cast", "mul")]
    assert explained.backward is not None
    assert explain(fused, {"x": x}, by=2.0, target="triton").source("_lambda__0")
    assert "mul(x0[i0], number" not in stages(fn, {"x": x}, by=2).kernels
    assert "return mul" in stages(fn, {"x": x}, by=2.0).graph
    batch = explain(lambda b: Batch(b.inputs * 2), Batch(x), timed=False)
    assert batch.backward is not None


# --- methods and modules ----------------------------------------------------------------------------------


class Scaled:
    factor = 2.0

    def __init__(self, by: Any, calls: int = 0) -> None:
        self.by = by
        self.calls = calls
        self.history: list[Tensor] = []

    def eager(self, x: Tensor, shift: float = 1.0) -> Tensor:
        result: Tensor = x * self.by * self.factor + shift
        return result

    method = fuse(eager)

    def helped(self, x: Tensor) -> Tensor:
        return self.eager(x) * self.doubled

    @property
    def doubled(self) -> Any:
        return self.by * 2

    def record(self, x: Tensor) -> None:
        self.history.append(x)


def test_two_instances_share_no_values() -> None:
    x = randn(4).requires_grad_()
    first, second = Scaled(3.0), Scaled(randn(4, seed=1).requires_grad_())
    for _ in range(2):
        for each in (first, second):
            check(each.method, each.eager, x, parameters=[t for t in (each.by,) if isinstance(t, Tensor)])
    assert first.method is first.method
    first.by, second.by = 5.0, second.by * 2
    for each in (first, second, first):
        torch.testing.assert_close(each.method(x, shift=2.0), each.eager(x, 2.0))
        torch.testing.assert_close(Scaled.method(each, x), each.eager(x))


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
def test_copies_of_an_instance_have_plans_of_their_own(make: Callable[[Scaled], Scaled]) -> None:
    x, first = randn(4), Scaled(3.0)
    first.method(x)
    second = make(first)
    second.by = 4.0
    for each in (second, first, second):
        torch.testing.assert_close(each.method(x), each.eager(x))


def test_attributes_that_change_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    x, scaled = randn(4), Scaled(3.0)

    def same() -> None:
        check(scaled.method, scaled.eager, x)
        check(fuse(scaled.helped), scaled.helped, x)

    same()
    scaled.by = 4.0
    same()
    monkeypatch.setattr(Scaled, "factor", 5.0)
    same()
    scaled.factor = 6.0
    same()
    del scaled.factor
    same()
    scaled.by = torch.tensor(2.0)
    same()
    scaled.by.mul_(3)
    same()
    scaled.by.data = torch.ones(4)
    same()
    helped = fuse(scaled.helped)
    check(helped, scaled.helped, x)
    monkeypatch.setattr(Scaled, "doubled", property(lambda self: self.by * 7))
    same()
    monkeypatch.setattr(Scaled, "eager", lambda self, x, shift=1.0: x * self.by)
    check(helped, scaled.helped, x)


def test_attributes_that_a_method_does_not_read_are_no_captures() -> None:
    x, scaled = randn(4), Scaled(3.0)
    scaled.method(x)
    for calls in range(3):
        scaled.calls = calls
        scaled.record(x)
        check(scaled.method, scaled.eager, x)
    assert len(scaled.method.cache_entries()) == 1


def test_an_instance_with_fused_methods_is_freed() -> None:
    scaled = Scaled(3.0)
    scaled.method(randn(4))
    alive = weakref.ref(scaled)
    del scaled
    gc.collect()
    assert alive() is None


class Slots:
    __slots__ = ("__weakref__", "by")

    def __init__(self, by: float) -> None:
        self.by = by

    def eager(self, x: Tensor) -> Tensor:
        return x * self.by

    method = fuse(eager)


class Sequence(list):  # type: ignore[type-arg]
    def total(self, x: Tensor) -> Tensor:
        return x * sum(self)


class Counting(Scaled):
    @functools.cached_property
    def table(self) -> Tensor:
        return torch.arange(4.0)

    def looked_up(self, x: Tensor) -> Tensor:
        return x * self.table

    def counted(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.calls

    def recorded(self, x: Tensor) -> Tensor:
        self.history.append(x)
        return x * 2

    def by_name(self, x: Tensor) -> Tensor:
        setattr(self, "by", x)  # noqa: B010
        return x * 2

    def in_dict(self, x: Tensor) -> Tensor:
        self.__dict__["by"] = x * 2
        return x * 3


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("looked_up", "assigns to the attribute 'table' of a Counting"),
        ("counted", "assigns to the attribute 'calls'"),
        ("recorded", "captures a list, the attribute 'history' of a Counting"),
        ("by_name", "uses setattr"),
        ("in_dict", "the attribute"),
    ],
)
def test_methods_that_change_their_object_run_as_they_are(method: str, reason: str) -> None:
    ours, theirs = Counting(2.0), Counting(2.0)
    assert reason in fuse(getattr(ours, method)).fallback_reason(randn(4))
    fused = fuse(getattr(ours, method))
    for _ in range(2):
        torch.testing.assert_close(fused(randn(4)), getattr(theirs, method)(randn(4)))
        mine, other = vars(ours), vars(theirs)
        assert mine.keys() == other.keys()
        torch.testing.assert_close(list(mine.values()), list(other.values()))
    with pytest.raises(FusionError, match=reason):
        fuse(getattr(Counting(2.0), method), single=True)(randn(4))


def test_instances_whose_state_cannot_be_compared_run_as_they_are() -> None:
    x, held, numbers = randn(4), Slots(2.0), Sequence([1.0, 2.0])
    torch.testing.assert_close(held.method(x), x * 2)
    held.by = 3.0
    torch.testing.assert_close(held.method(x), x * 3)
    fused = fuse(numbers.total)
    assert "captures a Sequence, whose changes as a list would go unnoticed" in fused.fallback_reason(x)
    torch.testing.assert_close(fused(x), x * 3)
    numbers.append(4.0)
    torch.testing.assert_close(fused(x), x * 7)
    bound = fuse(held.eager)  # its slots are read like attributes
    check(bound, held.eager, x)
    held.by = 5.0
    check(bound, held.eager, x)


class Kinds:
    by = 2.0

    @staticmethod
    @fuse
    def static_outside(x: Tensor) -> Tensor:
        return x * 3

    @fuse
    @staticmethod
    def static_inside(x: Tensor) -> Tensor:
        return x * 4

    @classmethod
    @fuse
    def class_outside(cls, x: Tensor) -> Tensor:
        return x * cls.by

    @fuse
    @classmethod
    def class_inside(cls, x: Tensor) -> Tensor:
        return x * cls.by + 1

    @fuse(single=True)
    def method(self, x: Tensor, *, shift: float) -> Tensor:
        return x * self.by + shift


class OtherKinds(Kinds):
    by = 5.0


@pytest.mark.full
def test_static_methods_class_methods_and_methods() -> None:
    x = randn(4)
    for _ in range(2):
        for kind in (Kinds, OtherKinds):
            for receiver in (kind, kind()):
                torch.testing.assert_close(receiver.static_outside(x), x * 3)
                torch.testing.assert_close(receiver.static_inside(x), x * 4)
                torch.testing.assert_close(receiver.class_outside(x), x * kind.by)
                torch.testing.assert_close(receiver.class_inside(x), x * kind.by + 1)
            torch.testing.assert_close(kind().method(x, shift=2.0), x * kind.by + 2)
        OtherKinds.by += 1
    for name in ("class_outside", "class_inside"):
        assert getattr(OtherKinds, name).fallback_reason(x) is None
    assert OtherKinds().method.fallback_reason(x, shift=1.0) is None


class Multiply(nn.Module):
    def __init__(self, by: int = 1) -> None:
        super().__init__()
        self.weight, self.by = nn.Parameter(randn(4, seed=2)), by

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight * self.by


class Block(nn.Module):
    def __init__(self, scale: int = 2) -> None:
        super().__init__()
        self.multiply = Multiply()
        self.weight = nn.Parameter(randn(4, seed=3))
        self.register_buffer("shift", torch.ones(4))
        self.scale = scale
        self.layers = nn.ModuleList([nn.ReLU(), nn.Dropout(0.5)])

    def eager(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.multiply(x) * self.weight * self.scale + self.shift

    forward = fuse(eager)


class Deeper(Block):
    def eager(self, x: Tensor) -> Tensor:
        return super().eager(x) * 2

    forward = fuse(eager)


def test_a_module_whose_forward_is_fused() -> None:
    x = randn(3, 4).requires_grad_()
    blocks = [Block().eval(), Block(3).eval(), Deeper().eval()]
    nn.init.normal_(blocks[1].weight)
    for block in blocks:
        check(block.forward, block.eager, x, parameters=block.parameters())
    for block in blocks:
        torch.testing.assert_close(block(x), block.eager(x))


def changes() -> Iterator[tuple[str, Callable[[Block], object]]]:
    yield "attribute", lambda b: setattr(b, "scale", 5)
    yield "parameter", lambda b: setattr(b, "weight", nn.Parameter(torch.ones(4) * 3))
    yield "parameter in place", lambda b: b.weight.data.mul_(2)
    yield "another layout", lambda b: b.double()
    yield "frozen", lambda b: b.requires_grad_(False)
    yield "frozen in part", lambda b: b.multiply.weight.requires_grad_(False)
    yield "buffer", lambda b: setattr(b, "shift", torch.zeros(4))
    yield "no buffer", lambda b: (delattr(b, "shift"), setattr(b, "shift", 2.5))
    yield "module", lambda b: setattr(b, "multiply", Multiply(4))
    yield "module's attribute", lambda b: setattr(b.multiply, "by", 4)
    yield "module's parameter", lambda b: setattr(b.multiply, "weight", nn.Parameter(torch.ones(4) * 3))
    yield "another module", lambda b: b.layers.append(nn.Tanh())
    yield "one module less", lambda b: b.layers.pop(0)
    yield "a module's class", lambda b: setattr(b.layers[0], "__class__", nn.Identity)
    yield "shared parameter", lambda b: setattr(b.multiply, "weight", b.weight)
    yield "a method of one module", lambda b: setattr(b, "multiply", torch.sin)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("name", "change"), list(changes()))
def test_changes_of_a_module_are_noticed(name: str, change: Callable[[Block], object]) -> None:
    block = Block().eval()
    if name == "a method of one module":
        del block.multiply
        block.multiply = torch.neg
    captured = fuse(lambda x: block.eager(x))
    for _ in range(2):
        x = randn(3, 4).to(block.weight.dtype).requires_grad_("frozen" in name)
        for fused in (block.forward, captured) if "frozen" not in name else (block.forward,):
            check(fused, block.eager, x, parameters=block.parameters() if "frozen" in name else ())
        change(block)


def test_dropout_of_a_module_draws_and_stops() -> None:
    block, x = Block(), torch.ones(100, 4)
    assert block.forward.fallback_reason(x) is None
    assert not torch.equal(block(x), block(x))
    block.eval()
    torch.testing.assert_close(block(x), block.eager(x))
    block.layers[1].train()
    assert not torch.equal(block(x), block(x))


def test_hooks_run() -> None:
    block, x = Block().eval(), randn(3, 4)
    fused = fuse(block)
    block(x), fused(x)
    seen: list[Any] = []
    for module in (block.multiply, block):
        handle = module.register_forward_hook(lambda module, args, result: seen.append(result))
        assert "calls a" in fused.fallback_reason(x)
        assert "that has hooks" in fused.fallback_reason(x)
        torch.testing.assert_close(fused(x), block.eager(x))
        block(x)
        handle.remove()
        assert len(seen) >= 2
        assert all(type(result) is Tensor for result in seen)
        seen.clear()
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, result: seen.append(result))
    fused(x)
    handle.remove()
    assert len(seen) == 4
    assert fused.fallback_reason(x) is None


def test_running_statistics_are_kept() -> None:
    ours, theirs, x = nn.BatchNorm1d(4), nn.BatchNorm1d(4), randn(3, 4)
    fused = fuse(ours)
    assert "it modifies a captured tensor in place" in fused.fallback_reason(x)
    torch.testing.assert_close(fused(x), theirs(x))
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())
    ours.eval(), theirs.eval()
    check(fused, theirs, x)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.LayerNorm(4), nn.GELU()),
        nn.Linear(4, 4),
        nn.Softmax(-1),
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
    ],
    ids=lambda m: type(m).__name__,
)
def test_modules_are_fused(module: nn.Module) -> None:
    x = randn(3, 4).requires_grad_()
    check(fuse(module), module, x, parameters=module.parameters())
    check(fuse(functools.partial(module)), module, x, parameters=module.parameters())


@pytest.mark.full
def test_a_module_is_the_first_argument() -> None:
    fn = lambda module, x, *, by: module.multiply(x) * module.weight * by  # noqa: E731
    fused, x = fuse(fn), randn(3, 4).requires_grad_()
    for block in (Block(), Block(3)):
        check(fused, fn, block, x, by=2.0, parameters=block.parameters())


def test_parameters_that_are_replaced_for_one_call() -> None:
    block, x = Block().eval(), randn(3, 4)
    doubled = {name: p.detach() * 2 for name, p in block.named_parameters()}
    block(x)
    found = torch.func.functional_call(block, doubled, (x,))
    torch.testing.assert_close(block(x), block.eager(x))
    for parameter, value in zip(block.parameters(), doubled.values(), strict=True):
        parameter.data = value
    torch.testing.assert_close(found, block.eager(x))


def test_a_fused_method_in_a_fused_function_and_in_a_transform() -> None:
    block, x = Block().eval(), randn(3, 4)
    both = fuse(lambda x: block.forward(x) * 2)
    check(both, both.fn, x)
    block.scale = 7
    check(both, both.fn, x)
    torch.testing.assert_close(torch.vmap(block)(x), torch.vmap(block.eager)(x))


@pytest.mark.full
def test_fused_methods_and_functions_that_fall_back_are_compiled_by_torch() -> None:
    block, x = Block().eval(), randn(3, 4)
    always_eager = fuse(lambda x: x[x > 0])
    with warnings.catch_warnings():
        warnings.simplefilter("error", FusionWarning)
        torch.testing.assert_close(torch.compile(block, backend="eager")(x), block.eager(x))
        torch.compile(lambda x: always_eager(x), backend="eager")(x)


def test_attributes_of_a_callable_object_are_not_those_of_the_function() -> None:
    class Callable:
        def __init__(self) -> None:
            self.fn, self.name, self.single = torch.tanh, "other", True

        def __call__(self, x: Tensor) -> Tensor:
            return self.fn(x) * 2

    called = Callable()
    fused = fuse(called)
    check(fused, called, randn(4))
    assert (fused.fn, fused.single) == (called, False)
    called.fn = torch.sigmoid
    check(fused, called, randn(4))


# --- warnings ---------------------------------------------------------------------------------------------


def test_a_fallback_is_said_once_for_each_reason() -> None:
    fused = fuse(lambda x: x[x > 0] * 2)
    with pytest.warns(FusionWarning) as seen:
        [fused(randn(size)) for size in (3, 4, 3)]
    assert str(seen[0].message) == (
        "burnt.fuse: _lambda_ runs as the eager function, without generated kernels: it cannot be traced: "
        "a shape in it depends on a tensor's values (aten.nonzero.default).\n"
        "Change what is named there, or fuse a part of the function. burnt.fuse(single=True) makes this an "
        "error. To hide it: warnings.filterwarnings('ignore', category=burnt.errors.FusionWarning)"
    )
    assert len(seen) == 1
    assert seen[0].filename == __file__
    with pytest.warns(FusionWarning, match="a tensor of layout torch.strided and dtype torch.complex64"):
        fuse(lambda x: x * 2)(torch.ones(3, dtype=torch.complex64))
    with pytest.warns(FusionWarning, match="argument 1 is a set"):
        fuse(lambda x, s: x * len(s))(randn(3), {1})
    with pytest.warns(FusionWarning, match="argument options holds a set"):
        fuse(lambda x, *, options: x * len(options[0]))(randn(3), options=[{1}])
    blocks = [Counting(1.0), Counting(2.0)]
    Counting.fused = fuse(Counting.counted)
    with pytest.warns(FusionWarning, match="counted runs as the eager function(.|\n)*'calls'") as seen:
        [block.fused(randn(4)) for block in blocks]
    assert len(seen) == 1, "a method's reason is one for all instances"


def test_what_nobody_can_change_is_not_said() -> None:
    x = torch.randn(512, 1024)
    always_eager = fuse(lambda x: x[x > 0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fuse(lambda x: F.log_softmax(x[:, :100].contiguous(), -1))(x)
        fuse(lambda x: torch.cummax(x, -1))(x)  # torch's kernel is faster
        torch.vmap(fuse(torch.sin))(x)
        torch.func.grad(lambda x: fuse(torch.sin)(x).sum())(x)
        fuse(lambda x: x * 2)(x.to("meta"))
        Function(lambda x: x[x > 0])(x)  # as burnt's own ops
        always_eager.fallback_reason(x)
        explain(always_eager, x)


def test_single_refuses_every_fallback() -> None:
    x = randn(4)
    with pytest.raises(FusionError) as error:
        fuse(lambda c: c.pop() * 2, single=True)([x, x])
    assert str(error.value) == (
        "_lambda_ cannot be compiled to a single kernel\n"
        "  in        burnt.fuse(single=True)\n"
        "  expected  1 kernel\n"
        "  found     the eager function: it changes a list, dict or other container that it is given, which "
        "a plan would not do: return new values instead\n"
        "  hint      change what is named there, or fuse without single=True, which runs the eager function"
    )
    with pytest.raises(FusionError, match="argument 0 is a set"):
        fuse(lambda c: 2, single=True)({1})
    with pytest.raises(FusionError, match="captures a list"):
        fuse(Counting(2.0).recorded, single=True)(x)
    with pytest.raises(FusionError, match="shares memory with another tensor"):
        fuse(lambda a, b: a.mul_(b), single=True)(x[1:], x[:-1])
    check(fuse(lambda c, *, by: [c[0] * by], single=True), lambda c, *, by: [c[0] * by], [x], by=2.0)
