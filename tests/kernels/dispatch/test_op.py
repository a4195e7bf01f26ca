"""What an op is: the front, the candidates, what transforms and compilers see, errors."""

from __future__ import annotations

import functools
import inspect
import sys
import unittest.mock
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

import burnt
from burnt import kernels, nn
from burnt._torch import fake_results
from burnt.codegen.runtime.c_compiler import find_compiler
from burnt.errors import DefinitionError, InputError, InputRuntimeError, UnsupportedError
from burnt.kernels.dispatch.generated import Generated
from burnt.kernels.dispatch.selection import select_by_heuristic
from burnt.kernels.interface.candidate import OPS
from tests.processors import WIDE

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C compiler here: the library serves")


def is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def doubled_op(**settings: Any) -> kernels.Op[..., Tensor]:
    def doubled(x: Tensor, scale: float = 2.0) -> Tensor:
        return x * scale

    result: kernels.Op[..., Tensor] = kernels.op(doubled, **settings)
    return result


# --- calling ----------------------------------------------------------------------------------------------


def test_arguments_are_bound_as_by_python() -> None:
    x = torch.randn(3, 4)
    expected = torch.softmax(x, 0)
    for result in (kernels.softmax(x, 0), kernels.softmax(x, dim=0), kernels.softmax(dim=0, x=x)):
        torch.testing.assert_close(result, expected)
    assert inspect.signature(kernels.softmax) == inspect.signature(kernels.softmax.reference)
    for bad in ((), (x, 0, None, 1)):
        with pytest.raises(TypeError, match="argument"):
            kernels.softmax(*bad)
    with pytest.raises(TypeError, match=r"^softmax\(\) got an unexpected keyword argument 'axis'$"):
        kernels.softmax(x, axis=0)
    with pytest.raises(TypeError, match=r"^softmax\(\) got multiple values for argument 'x'$"):
        kernels.softmax(x, x=x)
    with pytest.raises(TypeError, match=r"^softmax\(\) missing a required argument: 'x'$"):
        kernels.softmax(dim=0)
    with pytest.raises(TypeError, match=r"^softmax\(\) takes at most 3 arguments but 4 were given$"):
        kernels.softmax(x, 0, None, 1)


def test_a_signature_is_chosen_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from burnt.kernels.dispatch import selection

    op, calls = doubled_op(), []
    chosen = selection.select_candidate
    monkeypatch.setattr(selection, "select_candidate", lambda *a: (calls.append(1), chosen(*a))[1])
    x = torch.randn(3, 4)
    for _ in range(3):
        op(x, 2.0)
        op(x, 3.0)  # a number is no part of it
    assert len(calls) == 1
    for other in (x.t(), x.double(), x[:2], x.clone().requires_grad_()):
        op(other)
    assert len(calls) == 5
    with torch.no_grad():
        op(x)
    assert len(calls) == 6


def test_entries_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["burnt.kernels.dispatch.op"], "_MAX_ENTRIES", 4)
    op = doubled_op()
    for size in range(1, 12):
        assert op(torch.ones(size)).sum() == 2 * size
    assert len(op._entries) <= 4


@needs_compiler
def test_small_calls_go_to_the_library_and_large_ones_are_generated(processor: str) -> None:
    small, large = torch.randn(8, 8), torch.randn(256, 1024)
    assert kernels.rms_norm.chosen(small).candidate.name == "library"
    assert kernels.rms_norm.chosen(large).candidate.name == "generated"
    # Where torch's own is known to be as fast it serves, whatever the size.
    assert kernels.softmax.chosen(large.clone().requires_grad_()).candidate.name == "library"
    assert kernels.layer_norm.chosen(large.clone().requires_grad_()).candidate.name == "library"
    assert kernels.layer_norm.chosen(large.half()).candidate.name == "library"
    alone = kernels.layer_norm.chosen(large, torch.ones(1024)).candidate.name
    assert alone == ("generated" if processor in WIDE else "library")
    assert kernels.layer_norm.chosen(large.bfloat16(), torch.ones(1024)).candidate.name == "library"
    assert kernels.layer_norm.chosen(large, residual=large).candidate.name == "generated"
    rows = torch.randn(1 << 13, 64)
    assert kernels.reduce_sum.chosen(rows, -1).candidate.name == "library"
    assert kernels.reduce_sum.chosen(rows, 0).candidate.name == "generated"
    assert kernels.reduce_max.chosen(rows.clone().requires_grad_(), -1).candidate.name == "generated"


def test_without_a_compiler_the_library_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    from burnt.codegen.runtime import c_compiler

    monkeypatch.setattr(c_compiler, "find_compiler", lambda: None)
    kernels.swiglu.forget()
    x = torch.randn(256, 1024)
    assert kernels.swiglu.chosen(x, x).candidate.name == "library"
    torch.testing.assert_close(kernels.swiglu(x, x), F.silu(x) * x)
    assert "no C compiler" in str(kernels.explain(kernels.swiglu, x, x))
    monkeypatch.undo()
    kernels.swiglu.forget()


def test_empty_tensors() -> None:
    for shape in ((0, 4), (4, 0), (0,)):
        x = torch.randn(shape, requires_grad=True)
        result = kernels.softmax(x)
        result.sum().backward()
        assert result.shape == x.shape
    assert kernels.reduce_sum(torch.ones(0, 3), 0).tolist() == [0, 0, 0]
    assert kernels.layer_norm(torch.ones(0, 3)).shape == (0, 3)


# --- candidates -------------------------------------------------------------------------------------------


def test_limits_of_candidates() -> None:
    op = doubled_op()
    limits: dict[str, Any] = {
        "devices": ["cuda"],
        "dtypes": [torch.float64],
        "when": lambda x, scale: "too few rows" if len(x) < 5 else None,
    }
    for name, value in limits.items():
        op.candidate("mine", **{name: value})(lambda x, scale: x * scale)
        x = torch.randn(3, 4)
        assert op.chosen(x).candidate.name != "mine"
        text = str(kernels.explain(op, x))
        assert {"devices": "it runs on cuda", "dtypes": "it takes torch.float64", "when": "too few rows"}[
            name
        ] in text
    assert op.chosen(torch.randn(5, 4)).candidate.name == "mine"


def test_a_candidate_of_ones_own_has_gradients() -> None:
    op = doubled_op()
    with_own, without = [], []

    @op.candidate("with a gradient")
    def first(x: Tensor, scale: float) -> Tensor:
        with_own.append(1)
        return x.detach() * scale

    @first.backward
    def _(grad_outs: Any, results: Any, x: Tensor, scale: float) -> Any:
        with_own.append(2)
        return (grad_outs[0] * scale,)

    x = torch.randn(3, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(op(x, 3.0).sum(), x)
    assert with_own == [1, 2]
    torch.testing.assert_close(gradient, torch.full_like(x, 3.0))

    @op.candidate("without")
    def second(x: Tensor, scale: float) -> Tensor:
        without.append(1)
        return x.detach() * scale

    (gradient,) = torch.autograd.grad(op(x, 5.0).sum(), x)
    assert without == [1]
    torch.testing.assert_close(gradient, torch.full_like(x, 5.0))
    # Second derivatives are the reference's.
    (gradient,) = torch.autograd.grad(op(x, 5.0).square().sum(), x, create_graph=True)
    (second_,) = torch.autograd.grad(gradient.sum(), x)
    torch.testing.assert_close(second_, torch.full_like(x, 50.0))


def test_under_autocast_only_those_run_that_follow_it() -> None:
    op = doubled_op()
    op.candidate("mine")(lambda x, scale: x * scale)
    x = torch.randn(3, 4)
    assert op.chosen(x).candidate.name == "mine"
    with torch.autocast("cpu", torch.bfloat16):
        assert op.chosen(x).candidate.name != "mine"
        op(x)
    op.candidate("mine", autocast=True)(lambda x, scale: x * scale)
    with torch.autocast("cpu", torch.bfloat16):
        assert op.chosen(x).candidate.name == "mine"


def test_a_name_is_taken_once_but_may_be_defined_again() -> None:
    first = doubled_op()
    second = doubled_op()
    assert OPS["doubled"] is second
    assert first is not second
    assert torch.ops.burnt.doubled(torch.ones(2)).tolist() == [2, 2]

    def softmax(x: Tensor) -> Tensor:
        return x

    with pytest.raises(DefinitionError, match="an op named 'softmax' exists already") as error:
        kernels.op(softmax)
    assert "a candidate of it" in str(error.value)


def test_a_new_definition_has_a_gradient_of_its_own() -> None:
    for factor in (2.0, 3.0):

        def scaled(x: Tensor, factor: float = factor) -> Tensor:
            return x * x * factor

        op, x = kernels.op(scaled), torch.ones(3, requires_grad=True)
        for call in (op, torch.ops.burnt.scaled):
            (gradient,) = torch.autograd.grad(call(x, factor).sum(), x)
            assert gradient.tolist() == [2 * factor] * 3

    def scaled(x: Tensor) -> Tensor:  # type: ignore[no-redef]
        return -x

    op, x = kernels.op(scaled), torch.ones(3, requires_grad=True)
    (gradient,) = torch.autograd.grad(torch.ops.burnt.scaled(x).sum(), x)
    assert gradient.tolist() == [-1] * 3


def test_definitions_that_torch_cannot_declare() -> None:
    def of_a_set(x: Tensor, y: set[int]) -> Tensor:
        return x

    def of_nothing(x: Tensor):  # type: ignore[no-untyped-def]
        return x

    with pytest.raises(DefinitionError, match="the argument y of the op of_a_set has no type"):
        kernels.op(of_a_set)
    with pytest.raises(DefinitionError, match="the result of the op of_nothing is not annotated"):
        kernels.op(of_nothing)
    assert not {"of_a_set", "of_nothing"} & set(OPS)


# --- what torch sees --------------------------------------------------------------------------------------


class Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_modes_see_one_op() -> None:
    x = torch.randn(300, 300, requires_grad=True)
    with Seen() as seen:
        kernels.swiglu(x, x).sum().backward()
    assert [n for n in seen.names if n.startswith("burnt")] == [
        "burnt.swiglu.default",
        "burnt.swiglu_backward.default",
    ]
    with Seen() as seen:
        kernels.rms_norm(x, residual=x)
    assert seen.names[0] == "burnt.rms_norm.residual"


CALLS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "softmax": (lambda x: kernels.softmax(x, 0), lambda x: torch.softmax(x, 0)),
    "layer_norm": (lambda x: kernels.layer_norm(x), lambda x: F.layer_norm(x, x.shape[-1:])),
    "residual": (lambda x: kernels.rms_norm(x, residual=x)[0], lambda x: F.rms_norm(2 * x, x.shape[-1:])),
    "swiglu": (lambda x: kernels.swiglu(x, x.cos()), lambda x: F.silu(x) * x.cos()),
    "reduce_sum": (lambda x: kernels.reduce_sum(x, 0), lambda x: x.sum(0)),
    "cumsum": (lambda x: kernels.cumsum(x, -1), lambda x: x.cumsum(-1)),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", CALLS)
def test_transforms(name: str) -> None:
    ours, theirs = CALLS[name]
    x = torch.randn(4, 5, dtype=torch.float64)
    batch = torch.randn(3, 4, 5, dtype=torch.float64)

    def same(way: Callable[..., Any], *args: Any) -> None:
        torch.testing.assert_close(way(ours)(*args), way(theirs)(*args))

    same(torch.vmap, batch)
    same(lambda f: torch.vmap(f, in_dims=2, out_dims=1), batch)
    same(torch.func.jacrev, x)
    same(torch.func.jacfwd, x)
    same(lambda f: torch.func.grad(lambda v: f(v).sin().sum()), x)
    same(lambda f: torch.vmap(torch.func.grad(lambda v: f(v).sin().sum())), batch)
    same(lambda f: torch.func.hessian(lambda v: f(v).sin().sum()), x)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", CALLS)
def test_autocast_does_what_torch_does(name: str) -> None:
    ours, theirs = CALLS[name]
    x = torch.randn(256, 256)
    with torch.autocast("cpu", torch.bfloat16):
        for given in (x, x.bfloat16()):
            a, b = ours(given), theirs(given)
            assert a.dtype == b.dtype
            torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["softmax", "residual", pytest.param("reduce_sum", marks=pytest.mark.full)])
def test_compiles_whole(name: str) -> None:
    ours, theirs = CALLS[name]
    compiled = torch.compile(lambda x: ours(x) * 2, fullgraph=True, backend="aot_eager", dynamic=True)
    for shape in ((4, 5), (7, 9)):
        x = torch.randn(shape, requires_grad=True)
        result = compiled(x)
        torch.testing.assert_close(result, theirs(x) * 2)
        (a,), (b,) = (torch.autograd.grad(r.sin().sum(), x) for r in (result, theirs(x) * 2))
        torch.testing.assert_close(a, b)


@pytest.mark.full
@pytest.mark.skipif(" " in torch.__file__, reason="Inductor cannot link with a torch below such a folder")
def test_inductor_compiles_whole() -> None:
    x, w = torch.randn(8, 16, requires_grad=True), torch.randn(16, requires_grad=True)
    compiled = torch.compile(lambda x, w: kernels.layer_norm(x * 2, w, activation="gelu"), fullgraph=True)
    result, right = compiled(x, w), F.gelu(F.layer_norm(x * 2, (16,), w))
    torch.testing.assert_close(result, right)
    for a, b in zip(*(torch.autograd.grad(r.sin().sum(), (x, w)) for r in (result, right)), strict=True):
        torch.testing.assert_close(a, b)


class Net(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return kernels.swiglu(x, kernels.softmax(x))


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # of torch's export, about itself
def test_export_keeps_ops_and_can_take_them_apart() -> None:
    x = torch.randn(4, 5)
    program = torch.export.export(Net(), (x,))
    names = [str(n.target) for n in program.graph.nodes if n.op == "call_function"]
    assert names == ["burnt.softmax.default", "burnt.swiglu.default"]
    plain = program.run_decompositions(kernels.decompositions())
    names = [str(n.target) for n in plain.graph.nodes if n.op == "call_function"]
    assert names
    assert not any("burnt" in name for name in names)
    torch.testing.assert_close(plain.module()(x), Net()(x))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # a trace is for the shapes it was made with
@pytest.mark.parametrize(
    "call",
    [
        lambda x: (kernels.softmax(kernels.gelu(x)),),
        lambda x: kernels.layer_norm(x, X[0, :6], residual=x.sin()),
        lambda x: kernels.rms_norm(x, X[0, :6], residual=x.sin()),
        lambda x: kernels.max_pool(x, (2, 3), return_indices=True),
        lambda x: kernels.adaptive_max_pool(x, (2, 4), return_indices=True),
    ],
)
def test_torch_jit_traces_operations_of_torch_alone(
    call: Callable[[Tensor], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels.Op, "run", lambda op, args, _=None: op.reference(*args))
    x = torch.randn(3, 4, 6, requires_grad=True)
    traced = torch.jit.trace(call, (x,))
    assert "burnt::" not in str(traced.inlined_graph)
    found, expected = traced(x), call(x)
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(pair[0].cos().sum(), x) for pair in (found, expected)]
    torch.testing.assert_close(*gradients)


# --- what fuses -------------------------------------------------------------------------------------------

X, W = torch.randn(37, 53), torch.randn(53)
IMAGES, CHANNELS = torch.randn(2, 6, 5, 3), torch.randn(6)
LABELLED = torch.randn(37, 53), torch.randint(53, (37,))
# An op, its arguments, the kinds of its kernels, and how many its gradients take at most.
KERNELS: dict[str, tuple[kernels.Op[..., Any], tuple[Any, ...], list[str], int]] = {
    "gelu": (kernels.gelu, (X,), ["elementwise"], 1),
    "silu": (kernels.silu, (X,), ["elementwise"], 1),
    "softmax": (kernels.softmax, (X,), ["reduction"], 1),
    "log_softmax": (kernels.log_softmax, (X,), ["reduction"], 1),
    "layer_norm": (kernels.layer_norm, (X, W, W), ["reduction"], 2),
    "rms_norm and residual": (kernels.rms_norm, (X, W, 1e-6, X.cos()), ["reduction"], 2),
    "group_norm": (kernels.group_norm, (IMAGES, 3, CHANNELS, CHANNELS), ["reduction"], 2),
    "group_norm, residual and silu": (
        kernels.group_norm,
        (IMAGES, 3, CHANNELS, CHANNELS, 1e-5, IMAGES.cos(), "silu"),
        ["reduction"],
        3,
    ),
    "cross_entropy of each": (kernels.cross_entropy, (*LABELLED, None, -100, "none"), ["reduction"], 1),
    "cross_entropy and its mean": (kernels.cross_entropy, LABELLED, ["reduction", "reduction"], 2),
    "swiglu": (kernels.swiglu, (X, X.cos()), ["elementwise"], 1),
    "rope": (kernels.rope, (X[:, :52], X[:, :26], X[:, 26:52]), ["elementwise"], 2),
    "batch_norm": (
        kernels.batch_norm_training,
        (torch.randn(8, 3, 5), None, None, 1e-5, None, "relu"),
        ["reduction"],
        1,
    ),
    "dropout": (kernels.dropout, (X,), ["elementwise"], 1),
    "max_pool": (kernels.max_pool, (IMAGES, 3, 2, 1), ["pooling"], 2),
    "embedding": (kernels.embedding, (LABELLED[1], X.t().contiguous()), ["elementwise"], 0),
}


@pytest.mark.sample(2)
@needs_compiler
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_by_count_and_class(name: str) -> None:
    op, args, forward, backward = KERNELS[name]
    generated = op.candidates["generated"]
    for wanted in (False, True):
        given = op.bind([a.detach().requires_grad_(wanted) if is_float(a) else a for a in args], {})
        function, kept = generated.function_for(given)  # type: ignore[attr-defined]
        found = burnt.explain(function, *[given[i] for i in kept], timed=False)
        # A forward whose places are kept compares the elements of a window, and goes through no rows.
        kinds = ["elementwise"] if wanted and name == "max_pool" else forward
        assert [step.kind for step in found.steps] == kinds, found
        if wanted:
            assert found.backward is not None
            kinds = [step.kind for step in found.backward.steps]
            assert len([kind for kind in kinds if kind != "library"]) <= backward, found.backward
            # A sort, and a scatter: the pool's rows are short.
            assert ("library" in kinds) == (name in ("embedding", "max_pool"))


@needs_compiler
def test_a_reference_is_a_function_to_fuse() -> None:
    for op, args in ((kernels.gelu, (X,)), (kernels.swiglu, (X, X)), (kernels.max_pool, (IMAGES, 3))):
        for fn in (op, op.reference):
            fused = burnt.fuse(fn)
            assert fused.fallback_reason(*args) is None
            torch.testing.assert_close(fused(*args), op.reference(*args))  # type: ignore[operator]


# --- errors -----------------------------------------------------------------------------------------------

LOGITS, LABELS = torch.randn(4, 10), torch.tensor([1, 2, 3, 4])


def both(ours: Callable[..., Any], theirs: Callable[..., Any], *args: Any, **options: Any) -> tuple[Any, Any]:
    """Return a call of ours, and torch's with the same arguments."""
    return functools.partial(ours, *args, **options), functools.partial(theirs, *args, **options)


entropy = functools.partial(both, kernels.cross_entropy, F.cross_entropy)
# A call, torch's own of the same meaning, and what our message says.
BAD: dict[str, tuple[Callable[[], Any], Callable[[], Any], str]] = {
    "no such axis": (*both(kernels.softmax, torch.softmax, X, 7), "softmax cannot take"),
    "integers": (
        *both(kernels.softmax, torch.softmax, X.long(), -1),
        "softmax is not defined for int64",
    ),
    "approximation": (
        lambda: kernels.gelu(X, "sigmoid"),
        lambda: F.gelu(X, approximate="sigmoid"),
        "gelu does not support the approximation 'sigmoid'",
    ),
    "weight of another size": (
        lambda: kernels.layer_norm(X, W[:5]),
        lambda: F.layer_norm(X, (5,), W[:5]),
        "the weight of layer_norm does not match the last axes of x",
    ),
    "mixed dtypes": (
        lambda: kernels.layer_norm(X, W.half()),
        lambda: F.layer_norm(X, (53,), W.half()),
        "the arguments of layer_norm have different dtypes",
    ),
    "another device": (
        lambda: kernels.layer_norm(X, W.to("meta")),
        lambda: F.layer_norm(X, (53,), W.to("meta")),
        "the arguments of layer_norm are on different devices",
    ),
    "halves of different shapes": (
        lambda: kernels.swiglu(X, X[:, :7]),
        lambda: F.silu(X) * X[:, :7],
        "swiglu cannot take",
    ),
    "groups": (*both(kernels.group_norm, F.group_norm, X, 7), "cannot be split into equal groups"),
    "one value to train on": (
        *both(kernels.batch_norm, F.batch_norm, X[:1], None, None, training=True),
        "in training needs more than 1 value",
    ),
    "averages of another size": (
        *both(kernels.batch_norm, F.batch_norm, X, W[:5], W[:5]),
        "the running_mean of batch_norm does not match the channels",
    ),
    "label too large": (*entropy(LOGITS, LABELS + 6), "a label is not a class"),
    "label below 0": (*entropy(LOGITS, LABELS - 2), "a label is not a class"),
    "batch of another size": (*entropy(LOGITS, LABELS[:3]), "the target does not match the logits"),
    "labels as floats": (
        *entropy(LOGITS, LABELS.float()),
        rf"labels of shape \({len(LABELS)},\), or probabilities of shape \({len(LOGITS)}, ",
    ),
    "labels of another dtype": (*entropy(LOGITS, LABELS.int()), "the labels have the wrong dtype"),
    "reduction": (*entropy(LOGITS, LABELS, reduction="max"), "has no reduction 'max'"),
    "smoothing": (*entropy(LOGITS, LABELS, label_smoothing=2.0), "the label smoothing is out of range"),
    "class weights": (*entropy(LOGITS, LABELS, W[:3]), "weight of cross_entropy has the wrong shape"),
    "probability": (
        *both(kernels.dropout, F.dropout, X, 1.5),
        "the probability of dropout is out of range",
    ),
    "window": (
        *both(kernels.max_pool, F.max_pool2d, torch.ones(1, 1, 2, 2), 5),
        "max_pool cannot take",
    ),
    "axis of a sum": (*both(kernels.reduce_sum, torch.sum, X, 3), "reduce_sum cannot take"),
    "axis twice": (*both(kernels.reduce_sum, torch.sum, X, [0, 0]), "reduce_sum cannot take"),
    "index": (
        *both(kernels.embedding, F.embedding, LABELS, W[:8].view(4, 2)),
        "an index is outside the embedding table",
    ),
    "indices that are none": (
        *both(kernels.embedding, F.embedding, X, X),
        "the indices of an embedding have the wrong dtype",
    ),
}


@pytest.mark.sample
@pytest.mark.parametrize("candidate", ["library", "generated", "mine"])
@pytest.mark.parametrize("name", BAD)
def test_bad_input_on_every_candidate(name: str, candidate: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call, torchs, message = BAD[name]
    for op in OPS.values():
        op.forget()
        if candidate == "mine":
            monkeypatch.setitem(op.candidates, "mine", kernels.Candidate("mine", op.reference))
        else:
            kept = {candidate: op.candidates[candidate]} if candidate in op.candidates else {}
            monkeypatch.setattr(op, "candidates", kept)
    try:
        torchs()
    except Exception as error:
        expected: type[Exception] = type(error)
    else:
        pytest.fail("torch takes it")
    with pytest.raises(InputError, match=message) as raised:
        call()
    kind = next(
        c
        for c in (NotImplementedError, IndexError, ValueError, TypeError, RuntimeError)
        if issubclass(expected, c)
    )
    assert isinstance(raised.value, kind), (type(raised.value), expected)
    assert raised.value.where is not None
    assert raised.value.where.startswith("burnt.kernels.")
    for op in OPS.values():
        op.forget()


def test_a_label_that_is_left_out_may_be_any_number() -> None:
    labels = torch.tensor([1, -100, 3, 255])
    for target, ignored in ((torch.tensor([1, -100, 3, -100]), -100), (labels.clamp(min=0), 255)):
        result = kernels.cross_entropy(LOGITS, target, ignore_index=ignored)
        torch.testing.assert_close(result, F.cross_entropy(LOGITS, target, ignore_index=ignored))


def test_errors_that_are_not_about_arguments_pass() -> None:
    op = doubled_op()
    op.candidate("mine")(lambda x, scale: (_ for _ in ()).throw(torch.OutOfMemoryError("out of memory")))
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        op(torch.ones(3))


# --- saved-tensor hooks -----------------------------------------------------------------------------------


def few_numbers(*shape: int) -> Tensor:
    return torch.linspace(-1, 1, torch.Size(shape).numel()).view(*shape)


TARGETS = torch.tensor([2, 0, 4])
# Candidates that save tensors in their own ways; a call of each, with the input and weights of the op.
CHECKPOINTED: dict[str, tuple[str, str, Callable[[Tensor, Tensor], Tensor]]] = {
    "linear by torch": ("linear", "library", kernels.linear),
    "linear generated": ("linear", "generated", kernels.linear),
    "linear by oneDNN": ("linear", "onednn", kernels.linear),
    "loss with gradient": ("cross_entropy", "with gradient", lambda x, w: kernels.cross_entropy(x, TARGETS)),
    "loss of chunks": (
        "linear_cross_entropy",
        "chunked",
        lambda x, w: kernels.linear_cross_entropy(x, w, TARGETS),
    ),
    "attention of tiles": (
        "dot_product_attention",
        "tiled",
        lambda x, w: kernels.attention(x[None, None], w[None, None], w[None, None]),
    ),
    "recurrent steps": ("gru_layer", "steps", lambda x, w: GRU(x[None] @ w)[0]),
}
GRU = nn.Gru(5, 2)


@pytest.mark.sample(2)
@needs_compiler
@pytest.mark.parametrize("case", CHECKPOINTED)
def test_checkpointing_stops_a_recomputation_inside_any_candidate(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, candidate, call = CHECKPOINTED[case]
    op = OPS[name]
    monkeypatch.setattr(op, "candidates", {candidate: op.candidates[candidate]})
    op.forget()
    x, w = few_numbers(3, 5).requires_grad_(), few_numbers(5, 5).requires_grad_()

    def gradients(result: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(result.sum(), [x, w], materialize_grads=True))

    wanted = gradients(call(x, w))
    for again in (False, True):  # in the first call of a signature, and in a later one
        if not again:
            op.forget()
        for actual, expected in zip(
            gradients(checkpoint(call, x, w, use_reentrant=False)), wanted, strict=True
        ):
            torch.testing.assert_close(actual, expected)
    op.forget()


class StopEarly(Exception):
    pass


class Hook:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def __call__(self, tensor: Tensor) -> Tensor:
        return self.method(tensor)

    def method(self, tensor: Tensor) -> Tensor:
        raise self.error


@pytest.mark.sample
@pytest.mark.parametrize("kind", [StopEarly, RuntimeError, IndexError, KeyError, NotImplementedError])
@pytest.mark.parametrize("way", ["object", "method", "partial", "wrapped"])
def test_an_error_of_a_saved_tensor_hook_passes_unchanged(kind: type[Exception], way: str) -> None:
    op, x = doubled_op(), torch.ones(3, requires_grad=True)
    fast = op.candidate("fast")(lambda x, scale: x * x * 2)

    @fast.backward
    def _(grad_outs: Any, results: Any, x: Tensor, scale: float) -> Any:
        return (grad_outs[0] * 2,)

    error = kind("from the hook")
    hook = Hook(error)
    pack = {
        "object": hook,
        "method": hook.method,
        "partial": functools.partial(lambda hook, tensor: hook(tensor), hook),
        "wrapped": functools.wraps(hook.method)(lambda tensor: hook.method(tensor)),
    }[way]
    torch.autograd.grad(op(x).sum(), x)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        for _ in range(2):
            with pytest.raises(kind) as raised:
                op(x)
            assert raised.value is error
            op.forget()  # then in the first call of a signature
    op.candidate("broken")(lambda x, scale: {}["missing"])
    identity_hooks = torch.autograd.graph.saved_tensors_hooks(Tensor.detach, lambda saved: saved)
    with identity_hooks, pytest.raises(InputRuntimeError, match="the candidate 'broken'"):
        op(x)


def test_explaining_what_is_no_op() -> None:
    with pytest.raises(UnsupportedError, match="batch_norm is not an op"):
        kernels.explain(kernels.batch_norm, torch.ones(2, 3))  # type: ignore[arg-type]
    x = torch.ones(1, 1, 2, 2)
    with pytest.raises(UnsupportedError, match="attention is not an op") as error:
        kernels.explain(kernels.attention, x, x, x)  # type: ignore[arg-type]
    assert "kernels.dot_product_attention" in str(error.value)
    assert kernels.explain(kernels.dot_product_attention, x, x, x).winner == "library"
    with pytest.raises(UnsupportedError, match="explain each op that the function calls"):
        kernels.explain(lambda x: x, x)  # type: ignore[arg-type]


def test_an_explanation_is_text_and_json() -> None:
    import json

    found = kernels.explain(kernels.silu, torch.randn(256, 256))
    assert found.winner in str(found)
    assert json.loads(json.dumps(found.as_dict()))["op"] == "silu"


# --- batch normalisation, which also keeps averages ---------------------------------------------------------


def test_batch_norm_keeps_averages_as_torch_does() -> None:
    x, w, b = torch.randn(4, 3, 5), torch.randn(3), torch.randn(3)
    ours, theirs = [torch.zeros(3), torch.ones(3)], [torch.zeros(3), torch.ones(3)]
    for training in (True, True, False):
        result = kernels.batch_norm(x, *ours, w, b, training=training, momentum=0.3)
        torch.testing.assert_close(result, F.batch_norm(x, *theirs, w, b, training=training, momentum=0.3))
        torch.testing.assert_close(ours, theirs)
    with pytest.raises(RuntimeError, match="needs running averages"):
        kernels.batch_norm(x)


def test_batch_norm_of_nothing_leaves_the_averages_alone() -> None:
    mean, var = torch.zeros(3), torch.ones(3)
    assert kernels.batch_norm(torch.ones(0, 3), mean, var, training=True).shape == (0, 3)
    assert mean.tolist() == [0, 0, 0]
    assert var.tolist() == [1, 1, 1]


def test_declared_ops_return_memory_of_their_own() -> None:
    x = torch.ones(3)
    assert kernels.dropout(x, 0.5, False).data_ptr() == x.data_ptr()  # as torch's
    assert torch.ops.burnt.dropout(x, 0.5, False).data_ptr() != x.data_ptr()


LAYOUTS = {
    "transposed": lambda: torch.randn(8, 6, 10).transpose(0, 2),
    "transposed images": lambda: torch.randn(4, 6, 5, 2).transpose(0, 3),
    "channels last": lambda: torch.randn(2, 6, 5, 4).to(memory_format=torch.channels_last),
    "expanded": lambda: torch.randn(3, 1, 8).expand(3, 6, 8),
    "strided": lambda: torch.randn(6, 12, 16)[::2, ::2, ::2],
}
LAID_OUT: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        ("layer_norm", "rms_norm", "softmax", "gelu", "silu", "relu2", "batch_norm_training"), ()
    ),
    **dict.fromkeys(("cumsum", "log_softmax", "reduce_sum", "reduce_argmax", "reduce_var"), (0,)),
    **dict.fromkeys(("cumprod", "reduce_max", "reduce_logsumexp"), (1,)),
    "group_norm": (2,),
    "dropout": (0.0,),
    "max_pool": (2,),
    "avg_pool": (2,),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_declared_ops_lay_results_out_as_their_fakes(layout: str) -> None:
    x = LAYOUTS[layout]()
    for name, rest in LAID_OUT.items():
        if name.endswith("pool") and x.dim() != 4:
            continue
        op = OPS[name]
        args = op.bind((x, *rest), {})
        result = op.call_torch_op(args)
        fake = fake_results(lambda *given, op=op: op.call_torch_op(given), args)
        found = list(result) if isinstance(result, tuple) else [result]
        assert [t.stride() for t in found] == [t.stride() for t in fake], name
        right = op.reference(*args)
        torch.testing.assert_close(found[0], right[0] if isinstance(right, tuple) else right)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
def test_opcheck_of_other_layouts(name: str) -> None:
    op = OPS[name]
    torch.library.opcheck(op.overloads[0], op.bind((LAYOUTS["transposed images"](),), {}))


@pytest.mark.parametrize("candidate", ["library", "generated"])
def test_dropout(candidate: str, monkeypatch: pytest.MonkeyPatch) -> None:
    op = kernels.dropout
    x = torch.ones(200, 300, requires_grad=True)
    if op.candidates[candidate].why_not((x, 0.3, True)) is not None:
        pytest.skip("no C compiler here: the library serves")
    monkeypatch.setattr(op, "candidates", {candidate: op.candidates[candidate]})
    op.forget()
    torch.manual_seed(3)
    first, second = op(x, 0.3), op(x, 0.3)
    torch.manual_seed(3)
    assert torch.equal(first, op(x, 0.3))
    assert not torch.equal(first, second)
    assert first.unique().tolist() == pytest.approx([0.0, 1 / 0.7], rel=1e-6)
    assert abs(float((first == 0).float().mean()) - 0.3) < 0.01
    # Zeros come without regard to what was zeroed before, in the same place or next to it.
    for other in (second, first.roll(1), first.roll(1, 0)):
        both = float(((first == 0) & (other == 0)).float().mean())
        assert abs(both - 0.09) < 0.01
    # No mask is kept, and the gradient has the same zeros.
    (gradient,) = torch.autograd.grad(first.sum(), x)
    assert torch.equal(gradient, first.detach())
    assert torch.equal(op(x, 0.3, False), x)
    assert op(x, 1.0).count_nonzero() == 0
    op.forget()


def _under_a_mode(x: Tensor) -> Tensor:
    with FlopCounterMode(display=False):
        return kernels.dropout(x, 0.3)


def _checkpointed(x: Tensor) -> Tensor:
    policy = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
    result: Tensor = checkpoint(nn.Dropout(0.3), x, use_reentrant=False, context_fn=policy)
    return result


@pytest.mark.parametrize(
    "run",
    [
        lambda x: torch.ops.burnt.dropout(x, 0.3),
        _under_a_mode,
        torch.compile(lambda x: kernels.dropout(x, 0.3), backend="aot_eager"),
        _checkpointed,
    ],
    ids=["declared", "mode", "compiled", "checkpointed"],
)
def test_the_gradient_of_dropout_has_the_zeros_of_its_result(run: Callable[[Tensor], Tensor]) -> None:
    x = torch.ones(200, 300, requires_grad=True)
    found = run(x)
    assert 0 < found.count_nonzero() < found.numel()
    found.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, found.detach())


def test_opcheck_of_dropout() -> None:
    torch.library.opcheck(torch.ops.burnt.dropout.default, (torch.ones(3, 5, requires_grad=True), 0.0, True))
    torch.library.opcheck(torch.ops.burnt.dropout.default, (torch.ones(3, 5, requires_grad=True), 0.5, True))


def test_examples_are_a_function() -> None:
    def with_listed_examples(x: Tensor) -> Tensor:
        return x * 3

    with pytest.raises(DefinitionError, match=r"examples= of the op with_listed_examples(.|\n)*found +list"):
        kernels.op(with_listed_examples, examples=[(torch.ones(2),)])
    assert "with_listed_examples" not in OPS


@needs_compiler
def test_ops_are_fused_with_what_is_around_them() -> None:
    x = torch.randn(64, 33, requires_grad=True)
    weight = torch.randn(33, requires_grad=True)
    norm = kernels.rms_norm

    def plain(x: Tensor, weight: Tensor) -> Tensor:
        return kernels.gelu(norm(x * 2, weight, eps=1e-5)) + 1

    fused = burnt.fuse(plain)
    result = fused.plan(x, weight)
    assert [step.kind for step in result.plan.steps] == ["reduction"]
    wide = [t.detach().double().requires_grad_() for t in (x, weight)]
    normed = F.rms_norm(wide[0] * 2, (33,), wide[1], eps=1e-5)
    expected = F.gelu(normed) + 1
    found = fused(x, weight)
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)
    exact = torch.autograd.grad(expected.square().sum(), wide)
    for ours, theirs in zip(torch.autograd.grad(found.square().sum(), (x, weight)), exact, strict=True):
        torch.testing.assert_close(ours.double(), theirs, atol=1e-3, rtol=1e-4)


@pytest.mark.skipif(find_compiler() is None, reason="no C compiler here: eager functions run")
def test_the_generated_candidate_runs_its_kernels() -> None:
    """By itself, too, and not the reference."""
    generated = kernels.softmax.candidates["generated"]
    x = torch.randn(7, 301)
    assert isinstance(generated, Generated)
    close = torch.testing.assert_close
    close(generated(x, -1, None), torch.softmax(x, -1))
    assert [kernel.kind for kernel in generated.kernels((x, -1, None))] == ["reduction"]
    with unittest.mock.patch.object(generated, "call", side_effect=AssertionError("the reference was run")):
        close(generated(x, -1, None), torch.softmax(x, -1))


def test_a_negated_view_after_a_plain_tensor_of_its_layout() -> None:
    z = torch.randn(64, 64, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    turned = z.conj().imag
    pairs: list[tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = [
        (kernels.gelu, F.gelu),
        (lambda x: kernels.cumsum(x, -1), lambda x: x.cumsum(-1)),
    ]
    for run, plain in pairs:
        run(torch.randn(64, 128)[:, 1::2])
        torch.testing.assert_close(run(turned), plain(turned))
        grads = []
        for each in (run, plain):
            leaf = turned.detach().requires_grad_()
            grads.append(torch.autograd.grad(each(leaf).square().sum(), leaf)[0])
        torch.testing.assert_close(*grads)


@needs_compiler
def test_compiling_ahead_draws_no_random_numbers() -> None:
    """On a GPU the backward's kernels are compiled at the first call, by running it."""
    generated = kernels.dropout.candidates["generated"]
    assert isinstance(generated, Generated)
    before = torch.get_rng_state()
    assert generated.kernels((torch.ones(11, 64, requires_grad=True), 0.3, True))
    assert torch.equal(torch.get_rng_state(), before)
    assert generated.kernels((torch.ones((), requires_grad=True), 0.3, True))  # a result without axes


def test_products_on_a_gpu_are_the_librarys_until_they_are_tuned() -> None:
    """Tensors of the device `meta` stand for those of a GPU."""

    def chosen(op: kernels.Op[..., Tensor], *args: Any) -> str:
        full = list(op.bind(args, {}))
        both = [op.candidates[name] for name in ("library", "generated")]
        return select_by_heuristic(op, full, both)[0].name

    x, y = torch.empty(2, 64, 64, device="meta"), torch.empty(3, 2, 3, 3, device="meta", requires_grad=True)
    image = torch.empty(1, 2, 9, 9, device="meta")
    assert chosen(kernels.bmm, x, x) == chosen(kernels.linear, x, x[0], None, None, "gelu") == "library"
    assert chosen(kernels.conv, image, y, None, None, None, "relu") == "library"
    assert chosen(kernels.conv, image, y.detach(), None, None, None, "relu") == "generated"
    assert chosen(kernels.softmax, x) == "generated"
