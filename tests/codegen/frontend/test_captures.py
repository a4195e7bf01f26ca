"""What a fused function reads besides its arguments: changes are noticed, what cannot be seen is refused."""

from __future__ import annotations

import functools
import os
import random
import time
import types

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch import manual_seed as set_seed
from torch import seed as new_seed
from torch.random import fork_rng
from torch.testing import assert_close as same

from burnt.codegen import Function, fuse
from burnt.codegen.runtime.c_compiler import find_compiler
from burnt.errors import FusionError
from tests.codegen.compare import randn

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler here: eager functions run")


def helped(x):
    return x * 2


@pytest.mark.full
def test_a_captured_tensor_that_is_read_in_several_places_is_one_input() -> None:
    targets, weight = torch.arange(7) % 5, randn(5, seed=1)

    def fn(x):
        loss = F.cross_entropy(x * weight, targets, label_smoothing=0.1)
        return loss, (x * weight).sum(0) * x.gather(1, targets[:, None]).sum()

    function, x = fuse(fn), randn(7, 5)
    for ours, theirs in zip(function(x), fn(x), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert [b.position for b in function.plan(x).plan.inputs] == [0, 1, 2]
    found = []
    for run in (function, fn):
        given = x.clone().requires_grad_()
        found += torch.autograd.grad(sum(result.sum() for result in run(given)), given)
    torch.testing.assert_close(*found)


def test_a_captured_counter_is_not_changed_by_tracing() -> None:
    for count in (torch.zeros(1), torch.zeros(()), torch.zeros(3)):

        def fn(x, count=count):
            count.add_(1)
            count[...] *= 2
            return x * count

        fused, x = fuse(lambda x, fn=fn: fn(x)), randn(3)
        assert "it modifies a captured tensor in place" in fused.fallback_reason(x)
        assert not count.any()
        same(fused(x), x * 2)
        same(fused(x), x * 6)


def scaling(by):
    def set_by(value):
        nonlocal by
        by = value

    return (lambda x: x * by), set_by


def test_what_helpers_of_one_definition_capture_is_noticed() -> None:
    (first, _), (second, set_second) = scaling(2.0), scaling(3.0)
    fused, x = fuse(lambda x: first(x) + second(x)), randn(3)
    same(fused(x), x * 5)
    set_second(5.0)
    assert fused.fallback_reason(x) is None
    same(fused(x), x * 7)


held = [2.0]
tanh = [3.0]  # a function that calls torch.tanh does not capture it
SCALES, NORMS = (2.0, (1, "two")), (F.layer_norm, F.rms_norm)


def test_attributes_are_no_captures() -> None:
    fused = fuse(lambda x: torch.tanh(x) * SCALES[0] + NORMS[0](x, (4,)))
    x = randn(3, 4)
    assert fused.fallback_reason(x) is None
    same(fused(x), fused.fn(x))
    assert "captures a list" in str(fuse(lambda x: tanh[0] * x).fallback_reason(x))
    assert "captures a tuple" in str(fuse(lambda x: LISTED[0][0] * x).fallback_reason(x))
    assert "captures a tuple" in str(fuse(lambda x: HELPED[0](x)).fallback_reason(x))


LISTED, HELPED = (held,), (helped,)


class Scale:
    by = 2.0

    @classmethod
    def scaled(cls, x):
        return x * cls.by

    def __call__(self, x):
        return x * self.by


class Held:
    __slots__ = ("by",)

    def __init__(self):
        self.by = [2.0]

    def __call__(self, x):
        return x * self.by[0]


def test_what_a_callable_object_holds_is_noticed(monkeypatch):
    scale, x = Scale(), randn(3)
    fused = fuse(scale)
    assert fused.fallback_reason(x) is None
    same(fused(x), x * 2)
    monkeypatch.setattr(Scale, "by", 3.0)
    same(fused(x), x * 3)
    scale.by = torch.tensor([1.0, 2.0, 3.0])
    same(fuse(scale)(x), x * scale.by)
    given = fuse(functools.partial(scale))
    same(given(x), x * scale.by)
    scale.by = 5.0
    same(given(x), x * 5)


def by_attribute(x):
    return x * by_attribute.scale


settings = types.ModuleType("settings")
settings.inner = types.ModuleType("settings.inner")


@pytest.mark.parametrize(
    ("fn", "holder", "name"),
    [
        (lambda x: x * Scale.by, Scale, "by"),
        (by_attribute, by_attribute, "scale"),
        (lambda x: x * settings.scale, settings, "scale"),
        (lambda x: x * settings.inner.scale, settings.inner, "scale"),
        (lambda x: settings.scaled(x), settings, "scale"),
    ],
    ids=["class", "function", "module", "module in it", "function in it"],
)
def test_attributes_that_are_read_where_their_name_is_are_noticed(fn, holder, name, monkeypatch):
    for each in (settings, settings.inner, by_attribute):
        each.scale = 3.0
    settings.scaled = lambda x: x * settings.scale
    fused, x = fuse(fn), randn(3)
    assert fused.fallback_reason(x) is None
    same(fused(x), fn(x))
    monkeypatch.setattr(holder, name, torch.tensor([2.0, 3.0, 4.0]))
    same(fused(x), fn(x))
    monkeypatch.setattr(holder, name, 7.0)
    assert fused.fallback_reason(x) is None
    same(fused(x), x * 7)


def with_default(x, by=[2.0]):  # noqa: B006
    return x * by[0]


def with_default_by_name(x, *, by={"a": 2.0}):  # noqa: B006
    return x * by["a"]


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (Scale, "it is the class Scale, not a function"),
        (lambda x: Scale.scaled(x), "it captures a method"),
        (with_default, "it captures a list"),
        (with_default_by_name, "it captures a dict"),
        (functools.partial(with_default, by=[3.0]), "it captures a list"),
        (Held(), "it captures a list, the attribute 'by' of a Held"),
    ],
)
def test_what_has_a_state_that_nobody_sees_runs_as_it_is(fn, reason):
    assert reason in fuse(fn).fallback_reason(randn(3))
    with pytest.raises(FusionError, match=reason):
        fuse(fn, single=True)(randn(3))


@pytest.mark.parametrize("fn", [torch.tanh, torch.Tensor.tanh, torch.ops.aten.tanh.default, F.tanh])
def test_functions_of_torchs_own_are_fused(fn):
    assert Function(fn, always_generate=True).fallback_reason(randn(3)) is None


def test_modules_in_cells_are_no_state():
    import math as m

    fused = fuse(lambda x: x * m.pi)
    assert fused.fallback_reason(torch.ones(3)) is None


count, drawn = 0, random.Random(0).random


def _counting(x):
    global count
    count += 1
    return x * count


def _calling_what_counts(x):
    return _counting(x) + 1


def _counter():
    turns = 0

    def fn(x):
        nonlocal turns
        turns += 1
        return x * turns

    return fn


def _own_counter(x):
    turns = 1

    def more():
        nonlocal turns
        turns += 1

    more()
    return x * turns


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (_counting, "it assigns to 'count', a global"),
        (_calling_what_counts, "it assigns to 'count'"),
        (_counter(), "it assigns to 'turns'"),
        (lambda x: x * random.random(), "it uses random.random, which may differ at each call"),
        (lambda x: x * drawn(), "it uses random.random"),
        (lambda x: x + time.time(), "it uses time.time"),
        (lambda x: x * float(np.random.rand()), "it uses numpy.random.rand"),
        (lambda x: x * 2 if "NO_SUCH" in os.environ else x, "it uses os.environ"),
    ],
)
def test_what_happens_besides_computing_runs_as_it_is(fn, reason):
    assert reason in fuse(fn).fallback_reason(randn(3))


class Tables:
    positions: Tensor | None = None
    by_size: dict[int, Tensor] = {}

    @classmethod
    def get(cls, size):
        if cls.positions is None:
            cls.positions = torch.arange(size).float()
        return cls.positions


class Rope:
    def __init__(self, size):
        self.size = size
        if Tables.positions is None:
            Tables.positions = torch.arange(size).float()


class Config:
    def __init__(self, scale):
        self.scale = scale


class Lazy:
    table: Tensor | None = None

    def __call__(self, x):
        if self.table is None:
            self.table = torch.arange(3.0)
        return x * self.table


class LazyProperty:
    @functools.cached_property
    def table(self):
        return torch.arange(3.0)

    def __call__(self, x):
        return x * self.table


def on_a_class(x):
    if Tables.positions is None:
        Tables.positions = torch.arange(3.0)
    return x * Tables.positions


def on_a_class_by_another_name(x):
    tables = Tables
    if tables.positions is None:
        tables.positions = torch.arange(3.0)
    return x * tables.positions


def on_a_class_by_setattr(x):
    if Tables.positions is None:
        setattr(Tables, "positions", torch.arange(3.0))  # noqa: B010
    return x * Tables.positions


def on_a_module(x):
    if not hasattr(settings, "positions"):
        settings.positions = torch.arange(3.0)
    return x * settings.positions


def on_itself(x):
    if not hasattr(on_itself, "positions"):
        on_itself.positions = torch.arange(3.0)
    return x * on_itself.positions


@fuse
def on_a_fused_function(x):
    if not hasattr(on_a_fused_function, "positions"):
        on_a_fused_function.positions = torch.arange(3.0)
    return x * on_a_fused_function.positions


def by_an_object(x):
    return x * Rope(3).size * Tables.positions


def in_a_dict_of_a_class(x):
    return x * Tables.by_size.setdefault(3, torch.arange(3.0))


@pytest.fixture
def no_tables(monkeypatch):
    monkeypatch.setattr(Tables, "positions", None)
    monkeypatch.setattr(Tables, "by_size", {})
    yield
    for holder in (settings, on_itself, on_a_fused_function):
        vars(holder).pop("positions", None)


@pytest.mark.usefixtures("no_tables")
@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (on_a_class, "assigns to the attribute 'positions'"),
        (on_a_class_by_another_name, "assigns to the attribute 'positions'"),
        (on_a_class_by_setattr, "uses setattr"),
        (on_a_module, "assigns to the attribute 'positions'"),
        (on_itself, "assigns to the attribute 'positions'"),
        (on_a_fused_function, "assigns to the attribute 'positions'"),
        (by_an_object, "assigns to the attribute 'positions'"),
        (in_a_dict_of_a_class, "captures a dict"),
        (lambda x: x * Tables.get(3), "captures a method"),
        (lambda x: x * [Tables][0].get(3), "assigns to the attribute 'positions'"),
        (Lazy(), "assigns to the attribute 'table'"),
        (LazyProperty(), "assigns to the attribute 'table' of a LazyProperty"),
    ],
)
def test_what_is_set_lazily_is_no_tensor_of_a_trace(fn, reason):
    fused, x = fn if isinstance(fn, Function) else fuse(fn), randn(3)
    assert reason in fused.fallback_reason(x)
    for run in (fused, fused, fused.fn):
        assert torch.equal(run(x), x * torch.arange(3.0) * (3 if fn is by_an_object else 1))


def test_an_object_that_a_function_makes_for_itself_is_fused():
    fused, x = fuse(lambda x: x * Config(2.0).scale), randn(3)
    assert fused.fallback_reason(x) is None
    same(fused(x), x * 2)


def test_an_attribute_of_a_fused_function_is_noticed():
    @fuse
    def scaled(x):
        return x * scaled.scale

    x = randn(3)
    for scale in (2.0, 3.0):
        scaled.scale = scale
        assert scaled.fallback_reason(x) is None
        same(scaled(x), x * scale)


def test_names_of_a_functions_own_may_change():
    fused, x = fuse(_own_counter), randn(3)
    assert fused.fallback_reason(x) is None
    for _ in range(2):
        same(fused(x), x * 2)


@pytest.mark.parametrize(
    "name", ["requires_grad", "grad", "is_leaf", "grad_fn", "_version", "storage_offset"]
)
def test_what_a_trace_does_not_know_of_a_tensor_is_not_asked_in_vain(name):
    def fn(x):
        asked = getattr(x, name)
        return x * 2 if (asked() if callable(asked) else asked) else x * 3

    fused, x = fuse(fn), randn(3).requires_grad_()
    same(fused(x), fused.fn(x))
    assert f"it reads a tensor's {name}" in fused.fallback_reason(x)


def seeds_by_helper(x):
    torch.manual_seed(7)
    return torch.rand(6) * x


class Seeds(torch.nn.Module):
    def forward(self, x):
        torch.manual_seed(2)
        return x * torch.rand(6)


def forks(x):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return x * torch.rand(6)


def forks_alone(x):
    with fork_rng():
        return x * torch.rand(6)


@torch.random.fork_rng()
def decorated(x):
    return x * torch.rand(6)


def restores(x):
    state = torch.get_rng_state()
    result = x * torch.rand(6)
    torch.set_rng_state(state)
    return result


def imports(x):
    import torch as other

    other.manual_seed(4)
    return x * other.rand(6)


def makes_generator(x):
    generator = torch.Generator()
    generator.manual_seed(3)
    return x * torch.rand(6, generator=generator)


generator = torch.Generator().manual_seed(0)
SEEDED = {
    "manual_seed": lambda x: (torch.manual_seed(1), x * torch.rand(6))[1],
    "without drawing": lambda x: (torch.manual_seed(1), x * 2)[1],
    "of another name": lambda x: (set_seed(1), F.dropout(x, 0.5))[1],
    "of a device": lambda x: (torch.cuda.manual_seed(1), x * 2)[1],
    "by getattr": lambda x: (getattr(torch, "manual_seed")(1), x * torch.rand(6))[1],  # noqa: B009
    "the default generator": lambda x: (torch.default_generator.manual_seed(1), x * torch.rand(6))[1],
    "a seed that is read": lambda x: x * float(torch.initial_seed() % 7),
    "a generator of its own": lambda x: x * torch.rand(6, generator=torch.Generator()),
    "an op in place": lambda x: x * torch.empty(6).uniform_(generator=torch.Generator()),
    "in a helper": lambda x: seeds_by_helper(x) + 1,
    "in a module": Seeds(),
} | {fn.__name__: fn for fn in (forks, forks_alone, decorated, restores, imports, makes_generator)}


@pytest.mark.parametrize("name", SEEDED)
def test_what_is_done_to_a_random_generator_is_left_to_torch(name):
    def series(fn):
        torch.manual_seed(5)
        return [part for _ in range(3) for part in (fn(torch.ones(6)), torch.get_rng_state())]

    fn = SEEDED[name]
    fused = fuse(fn)
    torch.manual_seed(11)
    before = torch.get_rng_state()
    reason = fused.fallback_reason(torch.ones(6))
    assert torch.get_rng_state().equal(before)  # as tracing calls the function
    for found, expected in zip(series(fused), series(fn), strict=True):
        assert found.equal(expected)
    assert any(words in reason for words in ("random", "_GeneratorContextManager"))


def test_other_generators_are_left_to_torch():
    assert "torch.random.seed" in fuse(lambda x: (new_seed(), x * 2)[1]).fallback_reason(torch.ones(6))
    assert "torch.seed" in fuse(lambda x: (torch.seed(), x * 2)[1]).fallback_reason(torch.ones(6))
    reason = fuse(lambda x: x * torch.rand(6, generator=generator)).fallback_reason(torch.ones(6))
    assert reason == "it captures a Generator, whose changes would go unnoticed"


def test_gradients_that_are_turned_on_inside():
    def fn(x):
        with torch.enable_grad():
            return x * 2

    with torch.no_grad():
        result = fuse(fn)(randn(3).requires_grad_())
    assert result.requires_grad


@pytest.mark.parametrize(
    "change",
    [
        lambda w: setattr(w, "data", torch.ones(1)),
        lambda w: setattr(w, "data", torch.ones(3).double()),
        lambda w: setattr(w, "data", torch.arange(6.0)[::2]),
        lambda w: setattr(w, "data", torch._neg_view(torch.ones(3))),
        lambda w: w.resize_(1),
        lambda w: w.mul_(3),
    ],
    ids=["shape", "dtype", "strides", "sign", "resized", "values"],
)
def test_a_captured_tensor_that_changes_is_noticed(change):
    weight, x = randn(3), randn(3)
    fused = fuse(lambda x: x * weight)
    same(fused(x), x * weight)
    change(weight)
    same(fused(x), x * weight)
