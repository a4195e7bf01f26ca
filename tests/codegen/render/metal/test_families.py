"""The ops of `burnt.kernels` in Metal, run on the shim: values and gradients compared with float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from burnt import kernels
from burnt.codegen.frontend.trace import InlinedWhenTraced
from burnt.codegen.function import Function
from burnt.codegen.ir import Kernel
from burnt.codegen.runtime.target import Target
from burnt.kernels.dispatch.op import Op
from tests.codegen.compare import check_outcome, outcome, randn
from tests.codegen.render.metal import shim
from tests.codegen.render.metal.shim import METAL_SHIM

pytestmark = pytest.mark.skipif(shim.COMPILER is None, reason="no C++ compiler here to run Metal with")


def norm(*shape: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
    return randn(*shape), randn(size, seed=1), randn(size, seed=2)


RESIDUAL = randn(5, 53, seed=3)
TARGET = torch.tensor([3, -100, 0, 52, 7])
IMAGES = randn(2, 4, 7, 9)
ROPE = (randn(2, 3, 5, 8), randn(5, 4, seed=1), randn(5, 4, seed=2))
X = randn(5, 53)

# Each op with all of its arguments.
FAMILIES: dict[str, tuple[Op[..., Any], tuple[Any, ...]]] = {
    "softmax": (kernels.softmax, (X, -1, None)),
    "softmax of columns": (kernels.softmax, (randn(13, 11), 0, None)),
    "softmax of one": (kernels.softmax, (randn(5, 1), -1, None)),
    "log_softmax": (kernels.log_softmax, (randn(5, 300), -1, None)),
    "layer_norm": (kernels.layer_norm, (*norm(5, 53, size=53), 1e-5, None, None)),
    "layer_norm and residual": (kernels.layer_norm, (*norm(5, 53, size=53), 1e-5, RESIDUAL, "gelu")),
    "rms_norm": (kernels.rms_norm, (*norm(3, 7, 53, size=53)[:2], None, None, None)),
    "rms_norm and residual": (
        kernels.rms_norm,
        (*norm(5, 300, size=300)[:2], 1e-6, randn(5, 300, seed=3), None),
    ),
    "group_norm": (
        kernels.group_norm,
        (randn(2, 4, 3, 5), 2, randn(4, seed=1), randn(4, seed=2), 1e-5, None, "silu"),
    ),
    "batch_norm_training": (kernels.batch_norm_training, (*norm(5, 4, 3, 7, size=4), 1e-5, None, None)),
    "batch_norm_inference": (
        kernels.batch_norm_inference,
        (randn(5, 4, 7), randn(4), randn(4).exp(), randn(4, seed=3), randn(4, seed=4), 1e-5, None, None),
    ),
    "cross_entropy": (kernels.cross_entropy, (X, TARGET, None, -100, "mean", 0.0, 0.0)),
    "cross_entropy, smoothed": (
        kernels.cross_entropy,
        (X, TARGET, randn(53, seed=1).exp(), -100, "sum", 0.1, 0.01),
    ),
    "gelu": (kernels.gelu, (X, "none")),
    "gelu by tanh": (kernels.gelu, (X, "tanh")),
    "silu": (kernels.silu, (X,)),
    "relu2": (kernels.relu2, (X,)),
    "swiglu": (kernels.swiglu, (X, RESIDUAL)),
    "swiglu of halves": (kernels.swiglu, (randn(5, 26), None)),
    "geglu": (kernels.geglu, (X, RESIDUAL, "none")),
    "rope": (kernels.rope, (*ROPE, False)),
    "rope, interleaved": (kernels.rope, (*ROPE, True)),
    "max_pool": (kernels.max_pool, (IMAGES, 3, 2, 1, 1, False, False)),
    "max_pool and places": (kernels.max_pool, (IMAGES, (2, 3), 2, 0, 1, True, True)),
    "avg_pool": (kernels.avg_pool, (IMAGES, (2, 3), 2, 1, True, False, None)),
    "adaptive_avg_pool": (kernels.adaptive_avg_pool, (IMAGES, (3, 4))),
    "adaptive_max_pool": (kernels.adaptive_max_pool, (IMAGES, (3, 4), False)),
    "adaptive_max_pool and places": (kernels.adaptive_max_pool, (IMAGES, (3, 4), True)),
    "reduce_sum": (kernels.reduce_sum, (X, None, False, None)),
    "reduce_mean": (kernels.reduce_mean, (randn(5, 7, 11), (0, 2), False, None)),
    "reduce_max": (kernels.reduce_max, (X, 0, False)),
    "reduce_min": (kernels.reduce_min, (X, -1, True)),
    "reduce_prod": (kernels.reduce_prod, (randn(5, 13), 1, False, None)),
    "reduce_var": (kernels.reduce_var, (X, 1, 1, False)),
    "reduce_std": (kernels.reduce_std, (X, None, 0, False)),
    "reduce_logsumexp": (kernels.reduce_logsumexp, (X, 0, False)),
    "reduce_argmax": (kernels.reduce_argmax, (X, 1, False)),
    "reduce_argmin": (kernels.reduce_argmin, (X, None, False)),
    "reduce_any": (kernels.reduce_any, (X > 1, 1, False)),
    "reduce_all": (kernels.reduce_all, (X > -1, 0, False)),
    "cumsum": (kernels.cumsum, (X, 1, None)),
    "cumsum of columns": (kernels.cumsum, (randn(13, 53), 0, None)),
    "cumprod": (kernels.cumprod, (randn(5, 13), 1, None)),
    "embedding": (kernels.embedding, (torch.tensor([[0, 5, 5], [12, 3, 1]]), randn(13, 7), 3)),
}
SCATTERED = {"embedding"}  # ops whose gradients are index_add calls of torch
SAMPLE = ("layer_norm and residual", "cross_entropy, smoothed", "max_pool", "cumsum", "embedding")


class Reference(InlinedWhenTraced):
    """An op's reference implementation as a function of the tensors among its arguments."""

    __slots__ = ("__name__", "args", "op")

    def __init__(self, op: Op[..., Any], args: tuple[Any, ...]) -> None:
        self.op, self.args, self.__name__ = op, args, op.name

    def __call__(self, *tensors: Tensor) -> Any:
        left = iter(tensors)
        return self.op.reference(*[next(left) if isinstance(a, Tensor) else a for a in self.args])


def check(name: str, dtype: torch.dtype, target: Target = METAL_SHIM) -> None:
    op, args = FAMILIES[name]
    fn = Reference(op, args)
    given = [a.to(dtype) if a.is_floating_point() else a for a in args if isinstance(a, Tensor)]
    fused = Function(fn, target=target)
    check_outcome(fused, given)
    plan = fused.plan(*[a.clone().requires_grad_() if a.is_floating_point() else a for a in given])
    assert plan is not None, fused.fallback_reason(*given)
    steps = [
        *plan.plan.steps,
        *(step for result in plan.backward_plans.values() for step in result.plan.plan.steps),
    ]
    assert all(isinstance(step, Kernel) for step in steps) == (name not in SCATTERED)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", SAMPLE)
def test_families(name: str) -> None:
    check(name, torch.float32)


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in SAMPLE])
def test_more_families(name: str) -> None:
    check(name, torch.float32)


@pytest.mark.full
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["softmax", "rms_norm and residual", "geglu", "max_pool", "cumsum", "rope"])
def test_families_in_16_bits(name: str, dtype: torch.dtype) -> None:
    check(name, dtype)


def test_dropout() -> None:
    fused = Function(lambda x: kernels.dropout.reference(x, 0.25, True), target=METAL_SHIM)
    result, gradient = outcome(fused, (torch.ones(64, 53),))
    assert result.unique().tolist() == [0.0, float(torch.tensor(1 / 0.75))]
    assert 0.2 < float((result == 0).float().mean()) < 0.3
    assert torch.equal(gradient == 0, (result == 0))
