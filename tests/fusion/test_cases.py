"""What models do besides training on one kind of input, through `burnt.compile`: as eager torch does it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves, tree_map_only

import burnt
from burnt import _torch
from burnt.errors import FusionWarning

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FusionWarning)  # a graph that torch runs
        yield


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
    assert_close(found, expected, equal_nan=True, **close)
    for ours, theirs in zip(found[0], expected[0], strict=True):
        if isinstance(theirs, Tensor):
            assert (ours.stride(), ours.requires_grad) == (theirs.stride(), theirs.requires_grad)


def numbers(*shape: int, **options: Any) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)), **options)


def imaginary() -> Tensor:
    return numbers(4, dtype=torch.complex64).conj()


# --- functions ---------------------------------------------------------------------------------------------

FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "an argument that is negated lazily": (lambda x: x.sin(), lambda: (imaginary().imag,)),
    "a part of a complex argument": (lambda z: z.conj().imag * 2, lambda: (imaginary().resolve_conj(),)),
    "an argument that is conjugated lazily": (lambda z: z.imag * 2, lambda: (imaginary(),)),
    "complex results of one call": (
        lambda x: torch.linalg.eigvals(x).abs(),
        lambda: (numbers(3, 3, requires_grad=True),),
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function(name: str) -> None:
    fn, args = FUNCTIONS[name]
    same(fn, *args(), fullgraph=True)


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
