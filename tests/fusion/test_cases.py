"""What models do besides training on one kind of input, through `burnt.compile`: as eager torch does it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import burnt
from burnt import _torch
from burnt.errors import FusionWarning
from tests.codegen.compare import strides

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("afresh"),
    pytest.mark.filterwarnings("ignore"),
]


def outcome(fn: Callable[..., Any], args: Any) -> tuple[list[Any], list[Any], list[Any]]:
    """Results, gradients and the arguments afterwards, of arguments that lie in memory as those given."""

    def fresh(tensor: Tensor) -> Tensor:
        if _torch.is_lazy(tensor):
            return tensor  # a copy is not
        other = tensor.detach().clone()
        if other.stride() != tensor.stride():  # expanded, or every other element
            memory = tensor.detach().untyped_storage().clone()
            other = torch.empty(0, dtype=tensor.dtype).set_(
                memory, tensor.storage_offset(), tensor.shape, tensor.stride()
            )
        return other.requires_grad_(tensor.requires_grad)

    given = tree_map_only(Tensor, fresh, args)
    results = tree_leaves(fn(*given))
    roots = [r for r in results if isinstance(r, Tensor) and r.requires_grad]
    leaves = [t for t in tree_leaves(given) if isinstance(t, Tensor) and t.requires_grad and t.is_leaf]
    pull = [torch.linspace(-1, 1, r.numel()).to(r.dtype).view(r.shape) for r in roots]
    gradients = torch.autograd.grad(roots, leaves, pull, materialize_grads=True) if roots and leaves else ()
    return results, list(gradients), [t.detach() for t in tree_leaves(given) if isinstance(t, Tensor)]


def same(fn: Callable[..., Any], *args: Any, **options: Any) -> None:
    """Compare a compiled function with the eager one: values, strides, gradients, arguments afterwards."""
    found, expected = outcome(burnt.compile(fn, **options), args), outcome(fn, args)
    close = {"rtol": 0.02, "atol": 0.02} if any(
        isinstance(r, Tensor) and r.dtype in (torch.bfloat16, torch.float16) for r in expected[0]
    ) else {"rtol": 1e-5, "atol": 1e-6}  # fmt: skip
    assert_close(found[1:], expected[1:], equal_nan=True, **close)
    for ours, theirs in zip(found[0], expected[0], strict=True):
        if not isinstance(theirs, Tensor):
            assert ours == theirs
            continue
        assert_close(ours, theirs, equal_nan=True, **close)
        assert (strides(ours), ours.requires_grad) == (strides(theirs), theirs.requires_grad)


def numbers(*shape: int, **options: Any) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)), **options)


def imaginary() -> Tensor:
    return numbers(4, dtype=torch.complex64).conj()


# --- functions ---------------------------------------------------------------------------------------------


def shifted(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    return x * y


def overlapping() -> tuple[Any, ...]:
    memory = numbers(6)
    return memory[:4], memory[2:]


def changed_through_a_view(x: Tensor) -> tuple[Tensor, Tensor]:
    part = x[1:]
    part.mul_(2)
    return part, x.view(2, 2)


def hooked(x: Tensor) -> Tensor:
    y = x.sin()
    y.register_hook(lambda gradient: gradient * 2)
    return y.exp()


def broken(x: Tensor) -> Tensor:
    y = x.sin()
    torch._dynamo.graph_break()
    return y.cos()


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * angles).flatten(-2).sin()


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradients[0] * (x > 0) * 2


@torch.compiler.disable
def left_alone(x: Tensor) -> Tensor:
    return x.cos()


def selective(x: Tensor, w: Tensor) -> Any:
    contexts = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
    return checkpoint(lambda x: (x @ w).sigmoid() @ w, x, use_reentrant=False, context_fn=contexts)


def one(*shape: int) -> Callable[[], tuple[Tensor]]:
    return lambda: (numbers(*shape, requires_grad=True),)


def two(*shape: int) -> Callable[[], tuple[Tensor, Tensor]]:
    return lambda: (numbers(*shape, requires_grad=True), numbers(*shape) + 1)


# By what is special: a function, its arguments, and whether Dynamo makes one graph of it.
FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]], bool]] = {
    "an argument that is negated lazily": (lambda x: x.sin(), lambda: (imaginary().imag,), True),
    "a part of a complex argument": (
        lambda z: z.conj().imag * 2,
        lambda: (imaginary().resolve_conj(),),
        True,
    ),
    "an argument that is conjugated lazily": (lambda z: z.imag * 2, lambda: (imaginary(),), True),
    "complex results of one call": (lambda x: torch.linalg.eigvals(x).abs(), one(3, 3), True),
    "complex numbers between real ones": (
        rotated,
        lambda: (numbers(2, 3, 8, requires_grad=True), torch.polar(torch.ones(3, 4), numbers(3, 4))),
        True,
    ),
    "a spectrum": (lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2).cos(), one(8), True),
    "arguments that overlap": (shifted, overlapping, False),
    "an argument given twice": (lambda x, y: x * y.exp(), lambda: one(3)() * 2, True),
    "an argument changed through a view": (changed_through_a_view, lambda: (numbers(4),), True),
    "arguments returned": (lambda x: (x, x * 2, x), one(3), True),
    "a detached result": (lambda x, y: (x * y, x.detach(), (x.detach() * y).sum()), two(3), True),
    "results of Python": (lambda x: (x * 2, 3, None, "a", x.shape[0]), one(3), True),
    "no tensor": (lambda: torch.arange(5) * 2.0 + 1, lambda: (), True),
    "a transposed argument": (
        lambda x, y: (x * y).softmax(-1),
        lambda: (numbers(5, 4).t(), numbers(4, 5)),
        True,
    ),
    "an expanded argument": (
        lambda x, y: ((x * y).softmax(-1), x * 2, x.t().sin()),
        lambda: (numbers(4, 1).expand(4, 5).requires_grad_(), numbers(4, 5)),
        True,
    ),
    "every other element": (
        lambda x: (x * 2, x.t().sin(), x.sum(0)),
        lambda: (numbers(8, 10)[::2, ::2].requires_grad_(),),
        True,
    ),
    "no elements": (lambda x: (x.softmax(-1), x.sum(0), x @ x.t()), one(0, 3), True),
    "a number in a tensor": (lambda x: x.sin() * 2, one(), True),
    "float8": (lambda x: x.to(torch.float8_e4m3fn).float() * 2, lambda: (numbers(16),), True),
    "a result in float8": (
        lambda x: (x * 2).to(torch.float8_e5m2).view(torch.uint8), lambda: (numbers(16),), True
    ),
    "integers": (
        lambda *all_of: [(x + x, x.sum(), x > 0) for x in all_of],
        lambda: tuple(
            torch.arange(7).to(getattr(torch, name))
            for name in ("uint8", "int8", "int16", "int32", "int64", "bool")
        ),
        True,
    ),
    "unsigned integers": (
        lambda *all_of: [x.to(torch.int64) + 1 for x in all_of],
        lambda: tuple(torch.arange(7).to(getattr(torch, f"uint{bits}")) for bits in (16, 32, 64)),
        True,
    ),
    "16 bits": (
        lambda x, y: (x.exp().softmax(-1), y.tanh() * 2),
        lambda: (numbers(3, 5, dtype=torch.bfloat16, requires_grad=True), numbers(3, 5, dtype=torch.float16)),
        True,
    ),
    "sizes of the data": (
        lambda x: (x.nonzero() * 2, x[x > 0] + 1, x.unique()), lambda: (numbers(9).round(),), False
    ),
    "a number of the data": (lambda x: x * x.sum().item(), one(4), False),
    "a graph break": (broken, one(3), False),
    "a function that is disabled": (lambda x: left_alone(x.sin()) * 2, one(3), False),
    "a hook on a tensor inside": (hooked, one(3), True),
    "a gradient by hand": (lambda x: Doubled.apply(x) * 3, one(5), True),
    "a selective checkpoint": (selective, lambda: (numbers(4, 4, requires_grad=True), numbers(4, 4)), True),
    "torch.func.grad inside": (lambda x: torch.func.grad(lambda x: (x.sin() ** 2).sum())(x), one(4), True),
    "torch.func.vmap inside": (torch.func.vmap(lambda x: x.softmax(-1) * 2), one(3, 4), True),
    "torch.func.hessian inside": (
        torch.func.hessian(lambda x: (x.sin() ** 2).sum()), lambda: (numbers(4),), True
    ),
    "a compiled function inside": (lambda x: inner(x).exp() + inner(x + 1), one(3), True),
    "a fused function inside": (lambda x: fused(x).exp(), one(3), True),
    "classes that are checked": (lambda i: F.one_hot(i, 3) * 2.5, lambda: (torch.arange(3),), True),
    "a softmax of no flags": (lambda x: (x > 0).softmax(0) * 2, one(0), True),
    "a sparse argument": (
        lambda a, b: torch.sparse.mm(a, b) * 2,
        lambda: (numbers(3, 3).to_sparse(), numbers(3, 3)),
        False,
    ),
}  # fmt: skip
inner = burnt.compile(lambda x: x.sin() * 2)
fused = burnt.fuse(lambda x: x.sin() * 2)
KEPT = (
    "an argument that is negated lazily", "arguments that overlap",
    "an argument changed through a view", "classes that are checked", "an expanded argument",
    "no elements", "a selective checkpoint",
)  # fmt: skip


@pytest.mark.sample(keep=KEPT)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function(name: str) -> None:
    fn, args, is_graph = FUNCTIONS[name]
    same(fn, *args(), fullgraph=is_graph)


def test_torch_runs_a_graph_whose_sizes_depend_on_data() -> None:
    x = torch.tensor([0.0, 1, 2])
    with (
        torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True),
        pytest.warns(
            FusionWarning, match=r"generated for it: sizes depend on data: those of nonzero, of aten"
        ),
    ):
        assert_close(burnt.compile(lambda x: x.nonzero() * 2)(x), torch.tensor([[2], [4]]))


def test_an_argument_that_is_lazy_and_changed_in_place() -> None:
    z = imaginary()
    with pytest.warns(
        FusionWarning, match="changes an argument in place that is conjugated or negated lazily"
    ):
        burnt.compile(lambda x: x.mul_(2))(z.imag)
    assert_close(z, 2 * imaginary().imag * 1j + imaginary().real)


def test_a_check_in_a_graph_raises_its_error() -> None:
    with pytest.raises(RuntimeError, match="Class values must be smaller than num_classes"):
        burnt.compile(lambda i: F.one_hot(i, 3) + 1, fullgraph=True)(torch.tensor([0, 7]))


def test_a_failed_check_leaves_arguments_as_they_were() -> None:
    def count(x: Tensor, i: Tensor) -> Tensor:
        classes = F.one_hot(i, 3)
        x.add_(1)
        return classes * 2

    compiled, x = burnt.compile(count, fullgraph=True), torch.zeros(3)
    compiled(x, torch.tensor([0, 2]))
    with pytest.raises(RuntimeError, match="Class values must be smaller"):
        compiled(x, torch.tensor([0, 7]))
    assert_close(x, torch.ones(3))
