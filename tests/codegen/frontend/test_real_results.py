"""Strides of results in a trace next to those that torch's kernels return, and what depends on them."""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

import burnt
from burnt.codegen.frontend.refusals import STRIDES, RealResults
from burnt.codegen.function import Function
from burnt.codegen.runtime.c_compiler import find_compiler

aten = torch.ops.aten
needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C compiler here: eager functions run")
Strides = list[tuple[int, ...] | None]


def layouts(*shape: int) -> dict[str, Tensor]:
    """A tensor of this shape in several layouts; its values are between 0.1 and 0.9."""
    x = torch.linspace(0.1, 0.9, torch.Size(shape).numel()).reshape(shape)
    rank = x.dim()
    last_first = [rank - 1, *range(rank - 1)]
    gaps = torch.empty(*shape[:-1], 2 * shape[-1])
    gaps[..., ::2] = x
    found = {
        "contiguous": x,
        "transposed": x.transpose(-2, -1).contiguous().transpose(-2, -1),
        "permuted": x.permute(last_first).contiguous().permute([*range(1, rank), 0]),
        "expanded": x[:, :1].expand(shape),
        "with gaps": gaps[..., ::2],
    }
    if rank == 4:
        found["channels-last"] = x.contiguous(memory_format=torch.channels_last)
    if rank == 5:
        found["channels-last"] = x.contiguous(memory_format=torch.channels_last_3d)
    return found


def strides(results: Any) -> Strides:
    """The strides of each tensor; 0 for an axis of size 1, whose stride does not matter."""
    return [
        tuple(step if size > 1 else 0 for size, step in zip(t.shape, t.stride(), strict=True))
        if isinstance(t, Tensor) and t.numel()
        else None
        for t in pytree.tree_leaves(results)
    ]


def traced_strides(op: Callable[..., Any], args: Any, kwargs: Any = None) -> Strides:
    """The strides of an op's results for fake arguments, as a trace has them."""

    def fake(t: Tensor) -> Tensor:
        return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype)

    with FakeTensorMode(allow_non_fake_inputs=True):
        args, kwargs = pytree.tree_map_only(Tensor, fake, (args, kwargs or {}))
        with RealResults():
            return strides(op(*args, **kwargs))


def calls(x: Tensor, y: Tensor) -> Iterator[tuple[Any, ...]]:
    """Calls of the ops in the table with ``[2, 4, 6, 6]`` tensors, each op with every layout."""
    w, one, mask = torch.rand(4), torch.tensor(1.0), [True] * 3
    for name in (
        "copysign.Tensor", "floor_divide.default", "heaviside.default", "logaddexp.default",
        "logaddexp2.default", "logical_and.default", "logical_or.default", "logical_xor.default",
        "special_xlog1py.default", "xlogy.Tensor", "ldexp.Tensor", "hardsigmoid_backward.default",
        "hardswish_backward.default", "logit_backward.default", "normal.Tensor_Tensor",
    ):  # fmt: skip
        yield operator.attrgetter(name)(aten), (x, y)
    yield aten.native_dropout_backward.default, (x, y > 0.5, 2.0)
    yield aten.hardtanh_backward.default, (x, y, 0.0, 0.5)
    yield aten.softplus_backward.default, (x, y, 1.0, 20.0)
    yield aten.elu_backward.default, (x, 1.0, 1.0, 1.0, False, y)
    yield aten.leaky_relu_backward.default, (x, y, 0.1, False)
    yield aten.threshold_backward.default, (x, y, 0.0)
    yield aten._log_softmax_backward_data.default, (x, y, 1, torch.float32)
    yield aten.binary_cross_entropy.default, (x, y, None, 0)
    yield aten.huber_loss.default, (x, y, 0)
    yield aten.binary_cross_entropy_backward.default, (x, y, x, None, 0)
    for grad, reduction in (x, 0), (one, 1):
        yield aten.mse_loss_backward.default, (grad, y, x, reduction)
        yield aten.smooth_l1_loss_backward.default, (grad, y, x, reduction, 1.0)
        yield aten.huber_loss_backward.default, (grad, y, x, reduction, 1.0)
    row, group = torch.rand(2, 4, 6, 1), torch.rand(2, 2)
    yield aten.native_layer_norm_backward.default, (y, x, [6], row, row, torch.rand(6), torch.rand(6), mask)
    yield aten.native_batch_norm_backward.default, (y, x, w, w, w, w, w, True, 1e-5, mask)
    reserve = torch.empty(0, dtype=torch.uint8)
    yield aten.batch_norm_backward.default, (y, x, w, w, w, w, w, True, 1e-5, mask, reserve)
    if x.is_contiguous() and 1 in (y.stride(1), y.stride(3)):  # others have no fake
        yield aten.native_group_norm_backward.default, (y, x, group, group, w, 2, 4, 36, 2, mask)
    for name in "reflection_pad2d_backward", "replication_pad2d_backward":
        yield getattr(aten, name).default, (torch.rand(2, 4, 8, 8), x, [1] * 4)
    yield aten.div.Tensor_mode, (x, y), {"rounding_mode": "floor"}
    yield aten.pow.Scalar, (2.0, x)
    yield aten.log_sigmoid_forward.default, (x,)
    yield aten.glu_backward.default, (y[:, :2], x, 1)
    yield aten.nll_loss2d_forward.default, (x, (y[:, 0] * 0).long(), None, 0, -100)
    yield aten.channel_shuffle.default, (x, 2)
    for shift, axis in ([1], [0]), ([-1], [3]), ([0], [0]), ([1], []), ([1, 2], [0, 2]), ([1, 6], [1, 3]):
        yield aten.roll.default, (x, shift, axis)
    yield aten.native_batch_norm.default, (x, w, w, w, w, True, 0.1, 1e-5)
    yield aten._native_batch_norm_legit_functional.default, (x, w, w, w, w, False, 0.1, 1e-5)
    yield aten._native_batch_norm_legit.no_stats, (x, w, w, True, 0.1, 1e-5)
    yield aten._native_batch_norm_legit_no_training.default, (x, w, w, w, w, 0.1, 1e-5)
    yield aten._batch_norm_with_update_functional.default, (x, w, w, w, w, 0.1, 1e-5)
    volume, inner = x[:, :, None].expand(2, 4, 3, 6, 6), torch.rand(2, 4, 5, 8, 8)
    channels_last = volume.contiguous(memory_format=torch.channels_last_3d)
    yield aten.max_unpool2d.default, (x, (x * 0).long(), [12, 12])
    for each, grad in (volume, inner), (channels_last, inner), (channels_last[0], inner[0]):
        yield aten.max_pool3d_with_indices.default, (each, [2, 2, 2])
        for name in "reflection_pad3d", "replication_pad3d":
            yield getattr(aten, name).default, (each, [1] * 6)
            yield getattr(aten, f"{name}_backward").default, (grad, each, [1] * 6)


@pytest.mark.full
def test_a_trace_has_the_strides_that_torchs_kernels_return() -> None:
    found = layouts(2, 4, 6, 6)
    seen = set()
    pairs = {pair for name in found for pair in ((name, "contiguous"), ("contiguous", name))}
    for one, other in pairs:
        x, y = found[one], found[other]
        for op, args, *kwargs in calls(x, y):
            expected = strides(op(*args, **(kwargs[0] if kwargs else {})))
            assert traced_strides(op, args, *kwargs) == expected, (op, one, other)
            seen.add(op)
    assert seen == STRIDES.keys()


@pytest.mark.sample(3)
@pytest.mark.parametrize("shape", [(1, 4, 6, 6), (2, 1, 6, 6), (2, 3, 5), (3, 4), (2, 3, 4, 2, 3)], ids=str)
def test_rolled_in_other_ranks(shape: tuple[int, ...]) -> None:
    for x in layouts(*shape).values():
        for axes in ([0], [1], [-1], [0, 1], []):
            args = x, [1] * max(len(axes), 1), axes
            assert traced_strides(aten.roll.default, args) == strides(aten.roll.default(*args))


def test_elementwise_ops_of_broadcast_arguments() -> None:
    ones, others = layouts(10, 1, 5), layouts(1, 10, 5)
    for x, y in itertools.product(ones.values(), (others["permuted"], others["contiguous"])):
        for op in aten.xlogy.Tensor, aten.ldexp.Tensor:
            for args in (x, y), (y, x):
                assert traced_strides(op, args) == strides(op(*args)), op


# Functions of a channels-last tensor whose result depends on the strides of an op's result.
FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "strides": lambda x: (x.roll(1, 0), 2.0**x),
    "of both": lambda x: torch.xlogy(x, x.contiguous()),
    "as_strided": lambda x: torch.as_strided(x.roll(-1, 0), (2, 4), (4, 1), 0),
    "asked for": lambda x: x.roll(1, 0).sin() if x.roll(1, 0).is_contiguous() else x.roll(1, 0).cos(),
    "reshape copies": lambda x: (y := x.roll(1, 0), y.reshape(-1).add_(1))[0],
    "reshape does not copy": lambda x: (y := 2.0**x, y.reshape(-1).add_(1))[0],
    "joined axes": lambda x: x.roll(1, 0).permute(0, 2, 3, 1).view(-1, 3),
}


@pytest.mark.sample(4)
@needs_compiler
@pytest.mark.parametrize("name", FUNCTIONS)
def test_fused_functions_of_channels_last_tensors(name: str) -> None:
    fn = FUNCTIONS[name]
    x = torch.rand(2, 3, 2, 2).contiguous(memory_format=torch.channels_last)
    fused = Function(fn, always_generate=True)
    assert fused.fallback_reason(x) is None
    torch.testing.assert_close(fused(x), fn(x))
    assert strides(fused(x)) == strides(fn(x))


@needs_compiler
def test_an_empty_tensor_rolled_by_shifts_without_axes() -> None:
    x = torch.empty(0, 4, 5)
    for shifts, axes in ((), ()), ((1, 2), ()), ((1,), (0, 1)):
        fused = Function(lambda x, s=shifts, a=axes: x.roll(s, a) + 1, always_generate=True)
        assert fused.fallback_reason(x) is None
        assert fused(x).shape == x.shape


def test_a_view_that_torch_refuses_is_refused() -> None:
    x = torch.randn(2, 3, 2, 2).contiguous(memory_format=torch.channels_last)
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        burnt.fuse(lambda x: x.roll(1, 0).view(-1))(x)


@pytest.mark.sample(2)
@needs_compiler
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.roll(1, 0),
        lambda x: F.log_softmax(x, 1),
        lambda x: F.mse_loss(x, x.detach() + 1),
        lambda x: F.softplus(x),
    ],
)
def test_gradients_have_the_layout_of_torchs(fn: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last).requires_grad_()
    results = Function(fn, always_generate=True)(x), fn(x)
    grad_out = torch.randn_like(results[1])
    found, expected = (torch.autograd.grad(result, x, grad_out) for result in results)
    torch.testing.assert_close(found, expected)
    assert strides(found) == strides(expected)


class _Compared(TorchDispatchMode):
    """Compares the strides of every op's results with those of a trace; keeps where they differ."""

    def __init__(self) -> None:
        super().__init__()
        self.different: dict[str, str] = {}
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [t for t in pytree.tree_leaves((args, kwargs, result)) if isinstance(t, Tensor)]
        call = f"{func} of {[(tuple(t.shape), t.stride(), t.dtype) for t in tensors]}"
        is_comparable = isinstance(func, torch._ops.OpOverload) and not func._schema.is_mutable
        if not is_comparable or call in self.seen or any(t.layout != torch.strided for t in tensors):
            return result
        self.seen.add(call)
        with _disable_current_modes():
            try:
                found = traced_strides(func, args, kwargs)
            except Exception:  # such as a shape that depends on values, which no trace has
                return result
        if found != strides(result):
            self.different[str(func)] = f"{call}: {found}"
        return result


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted({op.name for op in op_db}))
def test_every_op_of_pytorchs_samples(name: str) -> None:
    compared = _Compared()
    for op in (op for op in op_db if op.name == name and torch.float32 in op.supported_dtypes("cpu")):
        samples = op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd)
        for sample in itertools.islice(samples, 6):
            leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
            for layout in "permuted", "channels-last", "transposed":
                first, args, kwargs = pytree.tree_unflatten([_in_layout(v, layout) for v in leaves], spec)
                with contextlib.suppress(Exception), compared:  # some ops refuse a layout
                    results = pytree.tree_leaves(op(first, *args, **kwargs))
                    results = [t for t in results if isinstance(t, Tensor) and t.requires_grad]
                    torch.autograd.backward(results, [torch.ones_like(t) for t in results])
    assert not compared.different


def _in_layout(value: Any, layout: str) -> Any:
    if not isinstance(value, Tensor) or value.layout != torch.strided or value.dim() < 2 or not value.numel():
        return value
    other = torch.empty_like(layouts(*value.shape).get(layout, value), dtype=value.dtype)
    return other.copy_(value.detach()).requires_grad_(value.requires_grad)


@needs_compiler
def test_ops_with_numbers_and_gradients_that_are_not_asked_for_are_traced() -> None:
    x = torch.randint(-9, 9, (2, 3, 4, 5)).to(memory_format=torch.channels_last)
    divide = Function(lambda x: x // 3)
    assert divide.fallback_reason(x) is None
    torch.testing.assert_close(divide(x), x // 3)
    assert divide(x).stride() == (x // 3).stride()
    norm = Function(lambda x, w: torch.nn.functional.layer_norm(x, (5,), w))
    rows, weight = torch.randn(4, 5, requires_grad=True), torch.randn(5)
    plan = norm.plan(rows, weight)
    assert plan is not None
    assert plan.backward_traces  # the weight takes no gradient


def test_a_loss_that_is_reduced_to_a_number() -> None:
    x, target = torch.full((3, 4), 0.5).t(), torch.full((4, 3), 0.25)
    for loss in (F.huber_loss, F.binary_cross_entropy):
        for reduction in ("mean", "sum"):
            fused = Function(
                lambda x, target, loss=loss, reduction=reduction: loss(x, target, reduction=reduction),
                always_generate=True,
            )
            assert fused.fallback_reason(x, target) is None
            torch.testing.assert_close(fused(x, target), loss(x, target, reduction=reduction))
