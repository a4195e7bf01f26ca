"""What plans with library calls store, and how often: counts of stores and bytes, and values in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import Node, symbolic_trace
from torch.nn import functional as F

from burnt.codegen import fuse
from burnt.codegen.frontend.trace import trace
from burnt.codegen.ir import Kernel, walk
from burnt.codegen.runtime.c_backend import C
from burnt.codegen.runtime.c_compiler import find_compiler
from burnt.codegen.schedule import placement
from burnt.codegen.schedule.placement import Segments, is_dense, stored_nodes
from burnt.codegen.schedule.scheduler import Plan, TorchCall
from tests.codegen.compare import check_outcome, randn

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler here: eager functions run")
N, D, H = 64, 96, 128


def plan_of(fn: Callable[..., Any], *args: Any) -> Plan:
    """Return the plan of a function without gradients, after comparing results with float64."""
    with torch.no_grad():
        check_outcome(fuse(fn), args, gradient=False, ulps=64)
        return C.schedule(trace(fn, args)[0], [])


def kernels(plan: Plan) -> list[Kernel]:
    return [step for step in plan.steps if isinstance(step, Kernel)]


def calls(plan: Plan) -> list[str]:
    return [str(step.node.target) for step in plan.steps if isinstance(step, TorchCall)]


def stored_bytes(plan: Plan) -> int:
    """Return the bytes that kernels write, in memory of full size."""
    buffers = [b for k in kernels(plan) for b in k.buffers_written if b.role != "local"]
    return sum(math.prod(b.shape) * b.dtype.itemsize for b in buffers)


def gradients_of_a_layer(g: Tensor, x: Tensor, h: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    """Of an activation, and of the linear map before it."""
    g = g * (1 - torch.tanh(h).square())
    return g @ weight, g.t() @ x, g.sum(0)


def test_an_operand_of_several_calls_is_stored_once_and_viewed() -> None:
    plan = plan_of(gradients_of_a_layer, randn(N, H), randn(N, D), randn(N, H), randn(H, D))
    assert calls(plan) == ["aten.mm.default", "aten.t.default", "aten.mm.default"]
    assert stored_bytes(plan) == 4 * (N * H + H)  # the operand, and the gradient of the bias
    column_sum = kernels(plan)[-1]
    assert [b.shape for b in column_sum.buffers_read] == [(N, H)]  # not what the operand is computed from


def test_a_rule_names_nodes_to_store(monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(x: Tensor, matrix: Tensor) -> Tensor:
        return torch.sigmoid(x) @ matrix + torch.exp(x)

    def exponentials(segments: Segments) -> Iterator[Node]:
        yield from (n for n in segments.nodes if n.target is torch.ops.aten.exp.default)

    args = randn(N, D), randn(D, D)
    before = stored_bytes(plan_of(fn, *args))
    monkeypatch.setattr(placement, "RULES", (*placement.RULES, exponentials))
    plan = plan_of(fn, *args)
    assert stored_bytes(plan) == before  # it is computed after the last call, by the kernel that reads it
    monkeypatch.setattr(placement, "RULES", (exponentials,))
    plan = plan_of(lambda x, m: (torch.exp(x) + 1) @ m, *args)
    assert stored_bytes(plan) == 2 * 4 * N * D


def test_a_norm_in_another_shape_than_its_product_is_one_kernel() -> None:
    def fn(x: Tensor, weight: Tensor, matrix: Tensor) -> Tensor:
        return F.layer_norm(x, (D,), weight, weight) @ matrix

    (kernel,) = kernels(plan_of(fn, randn(4, 16, D), randn(D), randn(D, H)))
    assert [b.shape for b in kernel.buffers_written if b.role != "local"] == [(4, 16, D)]


def test_a_residual_is_stored_in_the_kernel_that_reads_it_first() -> None:
    def fn(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        for matrix in (first, second):
            x = x + F.layer_norm(x, (D,)) @ matrix
        return F.layer_norm(x, (D,))

    plan = plan_of(fn, randn(N, D), randn(D, D), randn(D, D))
    first, second, third = kernels(plan)
    assert [len(k.buffers_written) for k in (first, second, third)] == [1, 2, 1]
    assert [len(k.buffers_read) for k in (first, second, third)] == [1, 2, 2]


def test_a_value_of_one_tensor_is_computed_again() -> None:
    def fn(x: Tensor, matrix: Tensor) -> Tensor:
        y = x * 2 + 1
        return (y + 3) @ matrix + y

    plan = plan_of(fn, randn(N, D), randn(D, D))
    assert [len(k.buffers_written) for k in kernels(plan)] == [1, 1]


def test_a_result_is_stored_where_its_input_was_just_written() -> None:
    plan = plan_of(gradients_of_a_layer, randn(N, H), randn(N, D), randn(N, H), randn(H, D))
    kinds = [s.kind if isinstance(s, Kernel) else str(s.node.target) for s in plan.steps]
    assert kinds.index("elementwise") < kinds.index("aten.mm.default")

    def fn(x: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.exp(x)
        return y @ matrix, y.sum(0)

    kinds = [type(s).__name__ for s in plan_of(fn, randn(N, D), randn(D, D)).steps]
    assert kinds[-1] == "Kernel"  # nothing is read after the last call but its own result

    def early(x: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
        total = torch.exp(x).sum(0)
        return x @ matrix @ matrix, total

    kinds = [type(s).__name__ for s in plan_of(early, randn(N, D), randn(D, D)).steps]
    assert kinds == ["Kernel", "TorchCall", "TorchCall"]


def test_part_of_a_value_is_not_a_reason_to_store_all_of_it() -> None:
    def fn(x: Tensor, matrix: Tensor) -> Tensor:
        return (x * 3)[:4] @ matrix

    (kernel,) = kernels(plan_of(fn, randn(N, D), randn(D, D)))
    assert [b.shape for b in kernel.buffers_written] == [(4, D)]


def test_parts_that_make_up_a_value_are_views_of_it() -> None:
    def fn(x: Tensor) -> Tensor:
        q, k, v = (x + 1).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4).contiguous()
        return F.scaled_dot_product_attention(q, k, v)

    plan = plan_of(fn, randn(2, 8, 3 * 32))
    (kernel,) = kernels(plan)
    assert [b.shape for b in kernel.buffers_written] == [(3, 2, 2, 8, 16)]
    assert calls(plan).count("aten.slice.Tensor") == 3


def test_results_that_are_views_of_an_operand_are_not_copied() -> None:
    def fn(x: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
        flat = torch.tanh(x).view(-1, D)
        return flat @ matrix, flat

    plan = plan_of(fn, randn(4, 16, D), randn(D, D))
    assert stored_bytes(plan) == 4 * 64 * D


def test_sines_that_many_elements_read_are_computed_once() -> None:
    def fn(x: Tensor, angles: Tensor, matrix: Tensor) -> Tensor:
        return (x @ matrix) * torch.cos(angles)[:, None] @ matrix

    first, second = kernels(plan_of(fn, randn(16, 32, D), randn(16, D), randn(D, D)))
    assert [b.shape for b in first.buffers_written] == [(16, D)]
    assert "cos" not in {e.op for e in walk(second.exprs)}
    # A norm's statistics are small, too, and stay in the kernel of their rows.
    (kernel,) = kernels(plan_of(lambda x, m: torch.log_softmax(x, -1) @ m, randn(512, D), randn(D, D)))
    assert [b.shape for b in kernel.buffers_written if b.role != "local"] == [(512, D)]


def test_offsets_of_reshaped_views_are_strides() -> None:
    def fn(x: Tensor) -> Tensor:
        return x.permute(2, 0, 1, 3).reshape(16, 2, 64).contiguous()

    (kernel,) = kernels(plan_of(fn, randn(2, 16, 4, 16).transpose(1, 2)))
    assert not any(offset.terms.keys() - offset.variables() for offset in kernel.indices)


def test_gradients_with_library_calls() -> None:
    def fn(x: Tensor, w: Tensor, b: Tensor, out: Tensor) -> Tensor:
        for _ in range(2):
            x = x + F.gelu(F.linear(F.layer_norm(x, (D,)), w, b)) @ out
        return x.square().mean(-1)

    check_outcome(fuse(fn), (randn(3, 20, D), randn(H, D), randn(H), randn(H, D)), gradient=True, ulps=64)


def test_without_a_call_nothing_is_placed() -> None:
    graph = symbolic_trace(lambda x: x + 1).graph
    assert stored_nodes(graph, lambda node: False) == set()


@pytest.mark.parametrize(
    ("strides", "dense"), [((6, 3, 1), True), ((1, 2, 4), True), ((0, 3, 1), False), ((12, 3, 1), False)]
)
def test_dense_tensors(strides: tuple[int, ...], dense: bool) -> None:
    assert is_dense(torch.empty_strided((2, 2, 3), strides)) == dense
