"""The table from aten ops to lowerings, and the helpers that they share, such as `pointwise`."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from burnt.codegen.ir import Expr, Index, IndexExpr, Value, cast, const
from burnt.errors import BurntError, DefinitionError, did_you_mean

aten = torch.ops.aten
Lowering = Callable[..., Any]
F = TypeVar("F", bound=Lowering)
LOWERINGS: dict[Any, Lowering] = {}

HALF_TO_FLOAT32 = {torch.bfloat16: torch.float32, torch.float16: torch.float32}
"""The 16-bit floats, with the dtype that they are computed in."""


class Unlowered(Exception):
    """Raised by a lowering that does not support this use of its op: the plan calls torch's op instead."""


class Scalar:
    """A Python number argument whose value is known only at run time, by its position among the numbers."""

    def __init__(self, position: int) -> None:
        self.position = position


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that an op on `dtype` computes in: float32 for the 16-bit floats."""
    return HALF_TO_FLOAT32.get(dtype, dtype)


def register_lowering(*ops: Any) -> Callable[[F], F]:
    """Decorator: register a function as the lowering of op overloads.

    Functions traced later use it; plans that already exist do not change.

    Args:
        ops: overloads, such as ``torch.ops.aten.relu.default``. The lowering is called with the node's meta
            tensor and the op's arguments, where tensors are `Value`s, and returns a `Value`.

    Raises:
        DefinitionError: an argument is not an op overload, or there is none.
    """
    checked_ops: Sequence[Any] = ops or [None]
    for op in checked_ops:
        is_packet = callable(getattr(op, "overloads", None))
        if not is_packet and not isinstance(op, torch._ops.OpOverload) and op is not operator.getitem:
            raise DefinitionError(
                "register_lowering() takes op overloads",
                where="burnt.codegen.lower.register_lowering",
                expected="@register_lowering(torch.ops.aten.relu.default)",
                found=f"@register_lowering({op!r})" if ops else "no argument",
            )
        if is_packet:
            raise DefinitionError(
                f"a lowering cannot be registered for {op}, which has several overloads",
                where="burnt.codegen.lower.register_lowering",
                expected="one overload, because traced functions call overloads",
                found=f"torch.ops.{op}",
                hint=" or ".join(f"torch.ops.{op}.{name}" for name in op.overloads()[:3]),
            )

    def register(fn: F) -> F:
        for op in ops:
            LOWERINGS[op] = _named_in_errors(fn, op)
        return fn

    return register


def _named_in_errors(fn: Lowering, op: Any) -> Lowering:
    """Wrap a lowering so that an exception in it becomes a `DefinitionError` that names it and its op."""

    @functools.wraps(fn)
    def call(meta: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return fn(meta, *args, **kwargs)
        except (Unlowered, BurntError, RecursionError):
            raise
        except Exception as error:
            inner = getattr(fn, "func", fn)  # of a partial
            raise DefinitionError(
                f"the lowering of {op} raises {type(error).__name__}",
                where=f"{inner.__module__}.{inner.__qualname__}",
                found=str(error),
            ) from error

    return call


def broadcast(value: Value, shape: Sequence[int]) -> Callable[[Index], Expr]:
    """Return a value's element as a function of an index into the shape that it is broadcast to."""
    skipped = len(shape) - len(value.shape)
    is_broadcast = [size == 1 for size in value.shape]

    def at(index: Index) -> Expr:
        pairs = zip(is_broadcast, index[skipped:], strict=True)
        return value.at(tuple(IndexExpr() if one else ix for one, ix in pairs))

    return at


def operand(value: Any, shape: Sequence[int], dtype: torch.dtype) -> Callable[[Index], Expr]:
    """Return an argument, broadcast to `shape` and cast to `dtype`, as a function of an index."""
    if isinstance(value, Value):
        at = broadcast(value, shape)
        return lambda index: cast(at(index), dtype)
    if isinstance(value, Scalar):
        number = Expr.make("number", (), torch.float64, value.position)
        return lambda index: cast(number, dtype)
    if isinstance(value, complex):
        raise Unlowered
    constant = const(value, dtype)
    return lambda index: constant


# The operations of `pointwise`, by their number of inputs.
UNARY = (
    "identity neg abs sign relu not reciprocal sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan "
    "sinh cosh tanh asin acos atan asinh acosh atanh erf erfc sigmoid floor ceil trunc round fast_exp2"
)
_BINARY = (
    "add sub mul maximum minimum fmax fmin eq ne lt le gt ge and or xor div pow atan2 copysign fmod "
    "remainder floor_div trunc_div"
)
_NUM_INPUTS = {**dict.fromkeys(UNARY.split(), 1), **dict.fromkeys(_BINARY.split(), 2)}


def pointwise(name: str, meta: torch.Tensor, inputs: Sequence[Any], dtype: torch.dtype) -> Value:
    """Apply an elementwise operation to broadcast inputs.

    Args:
        name: an operation that every target has. For all dtypes: ``identity add sub mul neg abs sign relu
            maximum minimum fmax fmin``, and with a bool result ``eq ne lt le gt ge``. For integers:
            ``and or xor not``. For floats: ``div reciprocal sqrt rsqrt pow exp exp2 expm1 log log2 log10
            log1p sin cos tan sinh cosh tanh asin acos atan asinh acosh atanh atan2 erf erfc sigmoid floor
            ceil trunc round copysign fmod fast_exp2``. The last one is the exponential of a GPU, whose
            results may be 0 where they are no normal float32.
        meta: a tensor of the result's shape and dtype.
        inputs: values, which are broadcast to that shape, and numbers.
        dtype: the dtype that the inputs are converted to; 16-bit floats are computed in float32.

    Raises:
        DefinitionError: the operation is unknown, or takes another number of inputs.
    """
    if name not in _NUM_INPUTS:
        raise DefinitionError(
            f"pointwise: unknown operation {name!r}",
            where="burnt.codegen.lower.pointwise",
            expected=" ".join(_NUM_INPUTS),
            hint=did_you_mean(name, _NUM_INPUTS),
        )
    if len(inputs) != _NUM_INPUTS[name]:
        raise DefinitionError(
            f"pointwise: wrong number of inputs for {name!r}",
            where="burnt.codegen.lower.pointwise",
            expected=f"{_NUM_INPUTS[name]}",
            found=f"{len(inputs)}",
        )
    if meta.dtype.is_complex or dtype.is_complex:
        raise Unlowered
    shape = tuple(meta.shape)
    operands = [operand(value, shape, compute_dtype(dtype)) for value in inputs]
    expr_dtype = compute_dtype(meta.dtype)

    def at(index: Index) -> Expr:
        return rounded(Expr.make(name, [fn(index) for fn in operands], expr_dtype), meta.dtype)

    return Value(shape, meta.dtype, at)


def meta_tensor(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return a meta tensor, which describes a result to `pointwise`."""
    return torch.empty(tuple(shape), dtype=dtype, device="meta")


def elementwise(meta: torch.Tensor, inputs: Sequence[Any], fn: Callable[..., Expr]) -> Value:
    """Return a value of `meta`'s shape and dtype whose elements are a function of the inputs' elements.

    The inputs are values, which are broadcast, and numbers; `fn` gets their elements in the compute dtype.
    """
    operands = [operand(value, meta.shape, compute_dtype(meta.dtype)) for value in inputs]
    return Value(
        tuple(meta.shape), meta.dtype, lambda index: rounded(fn(*[at(index) for at in operands]), meta.dtype)
    )


def rounded(element: Expr, dtype: torch.dtype) -> Expr:
    """Convert a result to its dtype. 16-bit floats stay in float32 and are rounded when stored."""
    if element.dtype == dtype:
        return element
    return Expr.make("as" if element.dtype == compute_dtype(dtype) else "cast", (element,), dtype)


def to_result_dtype(value: Value, meta: torch.Tensor) -> Value:
    """Convert a value to `meta`'s dtype, each element by `rounded`."""
    if value.dtype == meta.dtype:
        return value
    return Value(value.shape, meta.dtype, lambda index: rounded(value.at(index), meta.dtype))


def full(shape: Sequence[int], value: Any, dtype: torch.dtype) -> Value:
    """Return a value whose elements are all the same number."""
    constant = const(value, dtype)
    return Value(tuple(shape), dtype, lambda index: constant)


def common_dtype(a: Any, b: Any) -> torch.dtype:
    """Return the dtype that torch promotes two tensors or numbers to."""
    return torch.result_type(*(_sample(value) for value in (a, b)))


def _sample(value: Any) -> Any:
    if isinstance(value, Value):
        return meta_tensor((1,) * len(value.shape), value.dtype)
    return 1.0 if isinstance(value, Scalar) else value


def overloads(op_name: str, *names: str) -> list[Any]:
    """Return the named overloads of an aten op, without those that this version of torch lacks."""
    packet = getattr(aten, op_name)
    return [getattr(packet, name) for name in names if name in packet.overloads()]
