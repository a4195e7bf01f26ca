"""PyTorch's own samples of its operators (`op_db`), as calls of the ops of `burnt.kernels` of one meaning.

Each sample goes through the op's front, through ``torch.ops.burnt`` and through every candidate that takes
it, forward and backward, and is held against torch's own operator by the gate's measure
(`tests.codegen.compare`). Samples that an op has no argument for are counted, with the reason.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from burnt import kernels
from burnt.codegen.runtime.c_compiler import find_compiler
from burnt.errors import InputUnsupportedError
from burnt.kernels.dispatch.op import Op
from tests.codegen.compare import Mismatch
from tests.conformance.test_op_db import HUNDREDS, OPS, Measure, Sample, run

pytestmark = [pytest.mark.filterwarnings("ignore")]


class Call(NamedTuple):
    """What a call of torch's is as one of ours: all of its arguments by position, and how many results."""

    op: Op[..., Any]
    args: tuple[Any, ...]
    results: int = 1


class NoWordError(Exception):
    """The op has no argument that says what the sample asks for."""


def call(op: Op[..., Any], *args: Any, results: int = 1) -> Call:
    return Call(op, op.bind(args, {}), results)


# --- torch's arguments as ours ----------------------------------------------------------------------------


def softmax(op: Op[..., Any], x: Tensor, dim: int, dtype: Any = None) -> Call:
    return call(op, x, dim, dtype)


def layer_norm(x: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Call:
    if weight is None and len(shape) > 1:
        raise NoWordError("several axes without a weight, whose shape says which")
    return call(kernels.layer_norm, x, weight, bias, eps)


def rms_norm(x: Tensor, shape: Any, weight: Any = None, eps: Any = None) -> Call:
    if weight is None and len(shape) > 1:
        raise NoWordError("several axes without a weight, whose shape says which")
    return call(kernels.rms_norm, x, weight, eps)


def group_norm(x: Tensor, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Call:
    return call(kernels.group_norm, x, groups, weight, bias, eps)


def batch_norm(
    x: Tensor,
    mean: Any,
    var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Call:
    if x.dim() < 2:
        raise NoWordError("a tensor without an axis of channels")
    if training:
        return call(kernels.batch_norm_training, x, weight, bias, eps)
    return call(kernels.batch_norm_inference, x, mean, var, weight, bias, eps)


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Call:
    return call(kernels.cross_entropy, logits, target, weight, ignore_index, reduction, label_smoothing)


def linear_cross_entropy(
    x: Tensor,
    matrix: Tensor,
    target: Tensor,
    *,
    linear_bias: Any = None,
    weight: Any = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    options: Any = None,
) -> Call:
    if weight is not None:
        raise NoWordError("weights of classes")
    if target.is_floating_point():
        raise NoWordError("probabilities of classes")
    if matrix.dim() != 2:
        raise NoWordError("a weight of more than classes and features")
    return call(kernels.linear_cross_entropy, x, matrix, target, linear_bias, ignore_index, reduction)


def of_axes(axes: int, x: Tensor, size: Any) -> Any:
    """A window's size; without batch the ops tell by it how many axes there are."""
    return (size,) * axes if isinstance(size, int) and x.dim() == axes + 1 else size


def max_pool(axes: int, x: Tensor, kernel_size: Any, **rest: Any) -> Call:
    kernel_size = of_axes(axes, x, kernel_size)
    paired = rest.get("return_indices", False)
    return Call(kernels.max_pool, kernels.max_pool.bind((x, kernel_size), rest), 1 + paired)


def avg_pool(axes: int, x: Tensor, kernel_size: Any, *args: Any, **rest: Any) -> Call:
    kernel_size = of_axes(axes, x, kernel_size)
    return Call(kernels.avg_pool, kernels.avg_pool.bind((x, kernel_size, *args), rest))


def filled(axes: int, x: Tensor, size: Any) -> Any:
    """The size of an output, of which torch leaves axes as they are where it is given None."""
    if not isinstance(size, tuple):
        return of_axes(axes, x, size)
    size = size * axes if len(size) == 1 else size
    return tuple(x.shape[i - len(size)] if n is None else n for i, n in enumerate(size))


def adaptive_avg_pool(axes: int, x: Tensor, size: Any) -> Call:
    return call(kernels.adaptive_avg_pool, x, filled(axes, x, size))


def adaptive_max_pool(axes: int, x: Tensor, size: Any, return_indices: bool = False) -> Call:
    pooled = (x, filled(axes, x, size), return_indices)
    return call(kernels.adaptive_max_pool, *pooled, results=1 + return_indices)


def embedding(
    weight: Tensor,
    indices: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Call:
    if max_norm is not None or scale_grad_by_freq or sparse:
        raise NoWordError("a table that is changed by looking, or gradients that are scaled or sparse")
    return call(kernels.embedding, indices, weight, padding_idx)


def conv(
    x: Tensor,
    weight: Tensor,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Call:
    return call(kernels.conv, x, weight, bias, None, None, None, stride, padding, dilation, groups)


def conv_transpose(
    x: Tensor,
    weight: Tensor,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Call:
    sizes = (stride, padding, output_padding, groups, dilation)
    return call(kernels.conv_transpose, x, weight, bias, None, *sizes)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    enable_gqa: bool = False,
) -> Call:
    if dropout_p:
        raise NoWordError("dropout, which draws other numbers than torch's")
    if q.dim() != 4:
        raise NoWordError("tensors without heads, or with more axes")
    after = 0 if is_causal else None
    return call(kernels.dot_product_attention, q, k, v, attn_mask, None, after)


def dropout(x: Tensor, p: float = 0.5, training: bool = True) -> Call:
    if training and 0 < p < 1:
        raise NoWordError("dropout, which draws other numbers than torch's")
    return call(kernels.dropout, x, p, training)


def plainly(op: Op[..., Any]) -> Callable[..., Call]:
    """Arguments of one meaning, order and name, the tensor first."""

    def mapped(x: Tensor, *args: Any, **rest: Any) -> Call:
        return Call(op, op.bind((x, *args), rest))

    return mapped


def spread(op: Op[..., Any]) -> Callable[..., Call]:
    def mapped(x: Tensor, *args: Any, correction: Any = 1, unbiased: bool = True, **rest: Any) -> Call:
        dim = rest.get("dim")
        for arg in args:  # of `x.var(unbiased)`, or of `x.var(dim, ...)`
            dim, unbiased = (dim, arg) if isinstance(arg, bool) else (arg, unbiased)
        correction = correction if unbiased else 0
        if correction is None:
            correction = 1
        if type(correction) is not int:
            raise NoWordError("a correction that is no whole number")
        return call(op, x, dim, correction, rest.get("keepdim", False))

    return mapped


F = "nn.functional."
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
DTYPES = (*FLOATS, torch.int64, torch.int32, torch.uint8, torch.bool)
NAMESAKES: dict[str, Callable[..., Call]] = {
    "softmax": functools.partial(softmax, kernels.softmax),
    "softmax.with_dtype": functools.partial(softmax, kernels.softmax),
    "log_softmax": functools.partial(softmax, kernels.log_softmax),
    "log_softmax.with_dtype": functools.partial(softmax, kernels.log_softmax),
    F + "layer_norm": layer_norm,
    F + "rms_norm": rms_norm,
    F + "group_norm": group_norm,
    F + "batch_norm": batch_norm,
    F + "batch_norm.without_cudnn": batch_norm,
    F + "cross_entropy": cross_entropy,
    F + "linear_cross_entropy": linear_cross_entropy,
    F + "linear_cross_entropy.chunked": linear_cross_entropy,
    F + "linear_cross_entropy.chunked_none": linear_cross_entropy,
    F + "gelu": plainly(kernels.gelu),
    F + "silu": plainly(kernels.silu),
    **{f"{F}max_pool{n}d": functools.partial(max_pool, n) for n in (1, 2, 3)},
    **{f"{F}avg_pool{n}d": functools.partial(avg_pool, n) for n in (1, 2, 3)},
    **{f"{F}adaptive_avg_pool{n}d": functools.partial(adaptive_avg_pool, n) for n in (1, 2, 3)},
    **{f"{F}adaptive_max_pool{n}d": functools.partial(adaptive_max_pool, n) for n in (1, 2, 3)},
    F + "embedding": embedding,
    F + "linear": plainly(kernels.linear),
    **{f"{F}conv{n}d": conv for n in (1, 2, 3)},
    **{f"{F}conv_transpose{n}d": conv_transpose for n in (1, 2, 3)},
    F + "scaled_dot_product_attention": attention,
    F + "dropout": dropout,
    "matmul": plainly(kernels.matmul),
    "bmm": plainly(kernels.matmul),
    "mm": plainly(kernels.matmul),
    "cumsum": plainly(kernels.cumsum),
    "cumprod": plainly(kernels.cumprod),
    "sum": plainly(kernels.reduce_sum),
    "mean": plainly(kernels.reduce_mean),
    "prod": plainly(kernels.reduce_prod),
    "amax": plainly(kernels.reduce_max),
    "amin": plainly(kernels.reduce_min),
    "max.reduction_no_dim": plainly(kernels.reduce_max),
    "min.reduction_no_dim": plainly(kernels.reduce_min),
    "var": spread(kernels.reduce_var),
    "var.unbiased": spread(kernels.reduce_var),
    "std": spread(kernels.reduce_std),
    "std.unbiased": spread(kernels.reduce_std),
    "logsumexp": plainly(kernels.reduce_logsumexp),
    "any": plainly(kernels.reduce_any),
    "all": plainly(kernels.reduce_all),
    "argmax": plainly(kernels.reduce_argmax),
    "argmin": plainly(kernels.reduce_argmin),
}
# --- the tests --------------------------------------------------------------------------------------------

# Operators that torch has for integers on a CPU, and whose ops say that they are of floating-point numbers.
REFUSED = {F + "linear", *(f"{F}{kind}{n}d" for kind in ("conv", "conv_transpose") for n in (1, 2, 3))}
# Samples, of float32, that say something for which the op has no argument.
WITHOUT_WORD: dict[str, dict[str, int]] = {
    F + "batch_norm": {"a tensor without an axis of channels": 2},
    F + "batch_norm.without_cudnn": {"a tensor without an axis of channels": 2},
    F + "linear_cross_entropy": {
        "weights of classes": 56,
        "probabilities of classes": 28,
        "a weight of more than classes and features": 15,
    },
    F + "linear_cross_entropy.chunked": {
        "weights of classes": 49,
        "probabilities of classes": 35,
        "a weight of more than classes and features": 21,
    },
    F + "linear_cross_entropy.chunked_none": {
        "weights of classes": 28,
        "probabilities of classes": 21,
        "a weight of more than classes and features": 12,
    },
    F + "scaled_dot_product_attention": {
        "tensors without heads, or with more axes": 8,
        "dropout, which draws other numbers than torch's": 12,
    },
    F + "dropout": {"dropout, which draws other numbers than torch's": 4},
    "var": {"a correction that is no whole number": 2},
    "std": {"a correction that is no whole number": 2},
}
# Operators, by dtype or all of them, of which a sample differs from torch's; each fails until none does.
EXPECTED: dict[tuple[str, torch.dtype | None], str] = {}
PER_OP, ALL = 2, 1000
# Samples that come in hundreds are all combinations of a few arguments: one in so many is looked at.
SHARES = 23


class Ours:
    """A sample as a call of our op, by one way of computing it."""

    def __init__(self, sample: Sample, mapped: Callable[..., Call], route: str) -> None:
        self.sample, self.mapped, self.route = sample, mapped, route

    def __call__(self, *args: Any) -> list[Any]:
        result = self.given(args)
        results = way(result, self.route)(*result.args)
        flat = list(results) if isinstance(results, tuple) else [results]
        return flat[: result.results]

    def given(self, args: Sequence[Any]) -> Call:
        first, rest, keywords = self.sample.rebuilt(args)
        return self.mapped(first, *rest, **keywords)


def way(made: Call, route: str) -> Callable[..., Any]:
    if route == "front":
        return made.op
    if route == "torch.ops":
        return lambda *args: made.op.call_torch_op(args)
    if route == "generated":
        bound: Callable[..., Any] = made.op.candidates[route].bind_config(made.args)  # type: ignore[attr-defined]
        return bound
    return made.op.candidates[route]


def routes(made: Call) -> list[str]:
    """The ways that take these arguments."""
    candidates = [name for name, candidate in made.op.candidates.items() if not candidate.why_not(made.args)]
    if find_compiler() is None:
        candidates.remove("generated")
    return ["front", "torch.ops", *candidates]


def samples_of(name: str, dtype: torch.dtype) -> Iterator[Sample]:
    """The samples of a dtype; its share of them, where they are hundreds."""
    op = OPS[name]
    torch.manual_seed(0)
    differentiable = dtype in op.supported_backward_dtypes("cpu")
    raw = iter(op.sample_inputs("cpu", dtype, requires_grad=differentiable))
    first = list(itertools.islice(raw, HUNDREDS))
    taken = itertools.chain(first, raw)
    if len(first) == HUNDREDS:
        taken = itertools.islice(taken, DTYPES.index(dtype), None, SHARES)
    return (Sample(op, sample) for sample in taken)


def check(name: str, dtype: torch.dtype, most: int) -> None:
    """Compare what an op makes of a dtype's samples with what torch does.

    Raises:
        Mismatch: naming each sample, way and result that differs.
    """
    wrong, looked = [], 0
    for index, sample in enumerate(samples_of(name, dtype)):
        if looked == most:
            break
        plain = [a.detach() if isinstance(a, Tensor) else a for a in sample.args]
        wanted = sample.wants_gradient()
        try:
            Ours(sample, NAMESAKES[name], "front").given(plain)
        except NoWordError:
            continue
        looked += 1
        for gradients in [False] + [True] * any(wanted):
            asked = [want and gradients for want in wanted]
            given = sample.args if gradients else plain
            # The reference of float64 is rounded, too.
            measure = Measure(sample, dtype, asked, 16 if dtype == torch.float64 else 4)
            for route in routes(Ours(sample, NAMESAKES[name], "front").given(given)):
                try:
                    measure(run(Ours(sample, NAMESAKES[name], route), sample.args, asked))
                except Exception as error:
                    found = error if isinstance(error, Mismatch) else f"{type(error).__name__}: {error}"
                    text = f"sample {index} {described(sample)}, {route}{', gradients' * gradients}"
                    wrong.append(f"{text}: {found}")
    if wrong:
        raise Mismatch("\n".join(wrong))


def described(sample: Sample) -> str:
    leaves = [list(leaf.shape) if isinstance(leaf, Tensor) else leaf for leaf in sample.leaves]
    return str(pytree.tree_unflatten(leaves, sample.spec))


def cases(dtypes: Sequence[torch.dtype]) -> list[Any]:
    found = []
    for name in NAMESAKES:
        for dtype in dtypes:
            if name in OPS and dtype in OPS[name].dtypes and (dtype in FLOATS or name not in REFUSED):
                reason = EXPECTED.get((name, dtype)) or EXPECTED.get((name, None))
                marks = [pytest.mark.xfail(strict=True, reason=reason, raises=Mismatch)] if reason else []
                found.append(
                    pytest.param(name, dtype, id=f"{name}-{str(dtype).removeprefix('torch.')}", marks=marks)
                )
    return found


@pytest.mark.full
def test_what_the_ops_have_no_word_for() -> None:
    found: dict[str, Counter[str]] = {}
    for name, mapped in NAMESAKES.items():
        for sample in samples_of(name, torch.float32) if name in OPS else ():
            try:
                Ours(sample, mapped, "front").given(sample.args)
            except NoWordError as reason:
                found.setdefault(name, Counter())[str(reason)] += 1
    assert {name: dict(reasons) for name, reasons in found.items()} == {
        name: reasons for name, reasons in WITHOUT_WORD.items() if name in OPS
    }


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", sorted(REFUSED))
def test_integers_are_refused(name: str) -> None:
    sample = next(samples_of(name, torch.int64))
    with pytest.raises(InputUnsupportedError, match="floating-point"):
        Ours(sample, NAMESAKES[name], "front")(*sample.args)


# Each dtype's share of the operators, another for each.
EVERY = 30


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("name", "dtype"), [case for i, dtype in enumerate(DTYPES) for case in cases([dtype])[i::EVERY]]
)
def test_some_samples(name: str, dtype: torch.dtype) -> None:
    check(name, dtype, PER_OP)


@pytest.mark.sample(0, full=80)
@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("name", "dtype"), cases(DTYPES))
def test_all_samples(name: str, dtype: torch.dtype) -> None:
    """Of all of them 80, which BURNT_SEED draws."""
    check(name, dtype, ALL)
