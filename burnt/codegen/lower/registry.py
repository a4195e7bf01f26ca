"""The table of lowerings, and what its rows are made of: constants, casts, operands, pointwise operations."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from burnt.codegen.ir import Expr, Index, IndexExpr, Value
from burnt.errors import BurntError, DefinitionError, nearest

aten = torch.ops.aten
Lowering = Callable[..., Any]
F = TypeVar("F", bound=Lowering)
LOWERINGS: dict[Any, Lowering] = {}

SHORT = {torch.bfloat16: torch.float32, torch.float16: torch.float32}


class Unlowered(Exception):
    """An op, or this use of it, is not lowered; torch's own call serves."""


class Scalar:
    """A Python number that is known at run time only."""

    def __init__(self, position: int) -> None:
        self.position = position


def const(value: Any, dtype: torch.dtype) -> Expr:
    """A constant of a dtype, which holds it as the dtype does: rounded, or wrapped around."""
    if isinstance(value, complex):
        raise Unlowered
    if dtype.is_floating_point:
        value = float(torch.tensor(value, dtype=torch.float64).to(dtype))
    elif dtype == torch.bool:
        value = bool(value)
    else:
        bits = torch.iinfo(dtype).bits
        # torch refuses what is not finite where there is an element (a softmax of integers has it for none).
        value = int(value) % (1 << bits) if math.isfinite(value) else 0
        value -= (value >> (bits - 1)) << bits if dtype.is_signed else 0
    return Expr.make("const", (), dtype, value)


def cast(expr: Expr, dtype: torch.dtype) -> Expr:
    """An expression in another dtype, as torch converts."""
    if expr.dtype == dtype:
        return expr
    if expr.op == "const":
        value = expr.extra[0]
        assert isinstance(value, int | float)
        if dtype == torch.bool:
            return const(bool(value), dtype)
        if dtype.is_floating_point or not isinstance(value, float):
            return const(value, dtype)
    return Expr.make("cast", (expr,), dtype)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype that an op on `dtype` computes in: float32 for the 16-bit floats."""
    return SHORT.get(dtype, dtype)


def lowered(*ops: Any) -> Callable[[F], F]:
    """Register a lowering: a decorator.

    Functions that are traced from then on use it; those that have their plan keep it.

    Args:
        ops: overloads, such as ``torch.ops.aten.relu.default``. The function is called with the node's meta
            tensor and the op's arguments, tensors as Values.

    Raises:
        DefinitionError: what is given is no op, or stands for several overloads.
    """
    given: Sequence[Any] = ops or [None]
    for op in given:
        packet = callable(getattr(op, "overloads", None))
        if not packet and not isinstance(op, torch._ops.OpOverload) and op is not operator.getitem:
            raise DefinitionError(
                "a lowering is registered for overloads of ops",
                where="burnt.codegen.lower.lowered",
                expected="@lowered(torch.ops.aten.relu.default)",
                found=f"@lowered({op!r})" if ops else "no op",
            )
        if packet:
            raise DefinitionError(
                f"a lowering cannot be registered for {op}, which has several overloads",
                where="burnt.codegen.lower.lowered",
                expected="an overload, of which a traced function is made",
                found=f"torch.ops.{op}",
                hint=" or ".join(f"torch.ops.{op}.{name}" for name in op.overloads()[:3]),
            )

    def register(fn: F) -> F:
        for op in ops:
            LOWERINGS[op] = _named(fn, op)
        return fn

    return register


def _named(fn: Lowering, op: Any) -> Lowering:
    """A lowering whose own faults are told with its name."""

    @functools.wraps(fn)
    def call(meta: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return fn(meta, *args, **kwargs)
        except (Unlowered, BurntError, RecursionError):
            raise
        except Exception as error:
            raise DefinitionError(
                f"the lowering of {op} raises {type(error).__name__}",
                where=f"{fn.__module__}.{fn.__qualname__}",
                found=str(error),
            ) from error

    return call


def broadcast(value: Value, shape: Sequence[int]) -> Callable[[Index], Expr]:
    """The value as a function of an index of a larger shape."""
    skip = len(shape) - len(value.shape)
    ones = [size == 1 for size in value.shape]

    def at(index: Index) -> Expr:
        return value.at(
            tuple(IndexExpr() if one else ix for one, ix in zip(ones, index[skip:], strict=True))
        )  # fmt: skip

    return at


def operand(value: Any, shape: Sequence[int], dtype: torch.dtype) -> Callable[[Index], Expr]:
    """A tensor or number as a function of an index, computed in a dtype."""
    if isinstance(value, Value):
        at = broadcast(value, shape)
        return lambda index: cast(at(index), dtype)
    if isinstance(value, Scalar):
        number = Expr.make("number", (), torch.float64, value.position)
        return lambda index: cast(number, dtype)
    fixed = const(value, dtype)
    return lambda index: fixed


# The words of `pointwise`, by how many inputs they have.
_ONE = (
    "identity neg abs sign relu not reciprocal sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan "
    "sinh cosh tanh asin acos atan asinh acosh atanh erf erfc sigmoid floor ceil trunc round"
)
_TWO = (
    "add sub mul maximum minimum fmax fmin eq ne lt le gt ge and or xor div pow atan2 copysign fmod "
    "remainder floor_div trunc_div"
)
_WORDS = {**dict.fromkeys(_ONE.split(), 1), **dict.fromkeys(_TWO.split(), 2)}


def pointwise(name: str, meta: torch.Tensor, inputs: Sequence[Any], dtype: torch.dtype) -> Value:
    """An operation on inputs in one dtype, element by element.

    Args:
        name: a word that every printer knows. Of any numbers: ``identity add sub mul neg abs sign relu
            maximum minimum fmax fmin``, and with a bool as the result ``eq ne lt le gt ge``. Of integers:
            ``and or xor not``. Of floats: ``div reciprocal sqrt rsqrt pow exp exp2 expm1 log log2 log10
            log1p sin cos tan sinh cosh tanh asin acos atan asinh acosh atanh atan2 erf erfc sigmoid floor
            ceil trunc round copysign fmod``.
        meta: a tensor of the result's shape and dtype.
        inputs: values, which are broadcast, and numbers.
        dtype: that the inputs are converted to.

    Raises:
        DefinitionError: there is no such word, or it has another number of inputs.
    """
    if name not in _WORDS:
        guess = nearest(name, _WORDS)
        raise DefinitionError(
            f"pointwise knows no word {name!r}",
            where="burnt.codegen.lower.pointwise",
            expected=" ".join(_WORDS),
            hint=guess and f"did you mean {guess!r}?",
        )
    if len(inputs) != _WORDS[name]:
        raise DefinitionError(
            f"pointwise's {name!r} has another number of inputs",
            where="burnt.codegen.lower.pointwise",
            expected=f"{_WORDS[name]}",
            found=f"{len(inputs)}",
        )
    if meta.dtype.is_complex or dtype.is_complex:
        raise Unlowered
    shape = tuple(meta.shape)
    inside = compute_dtype(dtype)
    functions = [operand(value, shape, inside) for value in inputs]
    outside = meta.dtype if meta.dtype not in SHORT else torch.float32

    def at(index: Index) -> Expr:
        made = Expr.make(name, [fn(index) for fn in functions], outside)
        return made if meta.dtype == outside else Expr.make("as", (made,), meta.dtype)

    return Value(shape, meta.dtype, at)


def meta_of(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A meta tensor, as `pointwise` wants one for its result."""
    return torch.empty(tuple(shape), dtype=dtype, device="meta")


def as_result(value: Value, meta: torch.Tensor) -> Value:
    """A value in the dtype that torch describes. 16-bit floats are rounded when they are stored."""
    if value.dtype == meta.dtype:
        return value
    op = "as" if value.dtype == compute_dtype(meta.dtype) else "cast"
    return Value(value.shape, meta.dtype, lambda index: Expr.make(op, (value.at(index),), meta.dtype))


def filled(shape: Sequence[int], value: Any, dtype: torch.dtype) -> Value:
    """A number everywhere."""
    fixed = const(value, dtype)
    return Value(tuple(shape), dtype, lambda index: fixed)


def common_dtype(*inputs: Any) -> torch.dtype:
    """What torch promotes tensors and numbers to."""
    state = [
        torch.empty((1,) * len(v.shape), dtype=v.dtype, device="meta")
        if isinstance(v, Value)
        else 1.0
        if isinstance(v, Scalar)
        else v
        for v in inputs
    ]
    result = torch.result_type(state[0], state[-1])
    for other in state[1:-1]:
        result = torch.promote_types(result, torch.result_type(state[0], other))
    return result


def overloads(name: str, *which: str) -> list[Any]:
    """The overloads of an aten op that this torch has, of some names."""
    packet = getattr(aten, name)
    return [getattr(packet, o) for o in which if o in packet.overloads()]
