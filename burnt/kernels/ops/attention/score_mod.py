"""Attention with a function of the scores, of the user's own, in the manner of torch's flex_attention.

The function is traced on a tile and printed as a Triton function that the flash kernel takes, as its
derivative is. What cannot be (it comes out as more than one elementwise kernel, say) goes by tiles, and what
it captures gets gradients from the definition alone.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from burnt import _torch
from burnt.codegen.function import Function
from burnt.codegen.ir import Buffer, Expr, Kernel, Store
from burnt.codegen.render.triton.expr import NO_GUARD, TL_DTYPES, ExprPrinter, TileValue
from burnt.codegen.runtime.target import BuiltKernels
from burnt.codegen.runtime.targets import target_of
from burnt.codegen.runtime.triton_backend import TRITON
from burnt.errors import BurntError, InputTypeError, InputValueError
from burnt.kernels.interface.tuning_key import wants_gradient
from burnt.kernels.ops.attention.chunked import Kernels, kernels_of, tiled
from burnt.kernels.ops.attention.flash import Flash, configs_of, dense, problem_of, why_not_here
from burnt.kernels.ops.attention.flash_config import KERNELS, FlashConfig
from burnt.kernels.ops.attention.reference import Score, defined, dot_product_attention, scored

__all__ = ["Scored", "attention_with_score", "check_score", "flash_with_score"]

_ROWS, _COLUMNS = 32, 48  # of the tile that is traced: sizes that no index has by chance
_MOST_KNOWN = 64  # functions of the scores, and what was made of them
_GIVEN = 5  # arguments of a score function; buffers after them are what it captures


class _Text(ExprPrinter):
    """A Triton function of a tile's elements: ``name(s, b, h, i, j, args)``."""

    _ARGUMENTS = (
        TileValue("s", "RC"),
        TileValue("b"),
        TileValue("h"),
        TileValue("i", "R"),
        TileValue("j", "C"),
    )

    def __init__(self, name: str) -> None:
        super().__init__(None, name)  # type: ignore[arg-type]  # it has no loops of its own

    def load(self, expr: Expr, guard: TileValue) -> TileValue:
        """An argument, or what is looked up in a tensor that the function captures."""
        buffer: Buffer = expr.extra[0]  # type: ignore[assignment]
        if buffer.position < _GIVEN:
            return self._ARGUMENTS[buffer.position]
        self.buffers[buffer] = None
        place = self.index_text(expr.extra[1], guard)  # type: ignore[arg-type]
        axes = "".join(a for a in "RC" if a in place.axes or a in guard.axes)
        where, mask = f"{buffer.name} + ({place.text})", ""
        if guard.text:
            # Addresses have the shape of their tests.
            where += f" + ({guard.text}).to(tl.int32) * 0"
            mask = f", mask={guard.text}, other=0"
        return self.define(f"tl.load({where}{mask}){self.widening_cast(buffer)}", axes)

    def bounds_check(self, expr: Expr, guard: TileValue) -> TileValue:
        """A look-up outside of its tensor finds the first element: tiles reach beyond what there is."""
        test, value, otherwise, _ = (self.visit(a, guard) for a in expr.args)
        return self.select(test, value, otherwise, expr.dtype)

    def block_shape(self, axes: str) -> str:
        raise BurntError("a tile may lie either way round", where=self.name)

    def size_arg(self, value: int) -> str:
        return str(value)

    def index_as_dtype(self, place: TileValue, dtype: torch.dtype) -> str:
        number = place.text.removeprefix("-").isdecimal()
        return (
            f"tl.full([], {place.text}, {TL_DTYPES[dtype]})"
            if number
            else super().index_as_dtype(place, dtype)
        )

    def text(self, value: Expr) -> str:
        """The module of the function."""
        made = self.visit(value, NO_GUARD)
        helpers = (
            f"from burnt.codegen.render.triton.device_math import {', '.join(sorted(self.helpers))}\n"
            * bool(self.helpers)
        )
        captured = [f"    {b.name} = args[{n}]" for n, b in enumerate(self.buffers)]
        # Indices may be of 64 bits; what is made of them was traced with 32.
        narrow = [f"    {name} = {name}.to(tl.int32)" for name in "bhij"]
        lines = [f"def {self.name}(s, b, h, i, j, args):", *narrow, *captured, *self.lines]
        head = f"import triton\nimport triton.language as tl\n{helpers}\n\n@triton.jit\n"
        return head + "\n".join([*lines, f"    return {made.text}", ""])


class _Printed:
    """A function of a tile as a Triton function; traced once, or again where what it captures has changed.

    Args:
        fn: of scores and indices.
        name: of the Triton function.
    """

    def __init__(self, fn: Score, name: str) -> None:
        self.name = name
        self.text: str | None = None
        self.captured: tuple[Tensor, ...] = ()
        self._launched = False
        self.traced = Function(
            fn, target=dataclasses.replace(TRITON, build=self._build, why_unavailable=lambda: None)
        )

    def at(self, device: torch.device) -> tuple[Any, tuple[Tensor, ...]] | None:
        """The Triton function, and the tensors that it is given; None where it cannot be printed."""
        s = torch.empty(_ROWS, _COLUMNS, device=device)
        shapes = (1, 1), (1, 1), (_ROWS, 1), (1, _COLUMNS)
        self.captured, before = (), self.text
        self._launched = False
        with torch.no_grad():
            self.traced(s, *[torch.zeros(shape, dtype=torch.int32, device=device) for shape in shapes])
        if not self._launched or self.text is None:
            self.text = before
            return None
        from burnt.codegen.runtime.triton_launch import load

        return load(self.text)[self.name], self.captured

    def _build(
        self, kernels: Sequence[Kernel], buffers: Sequence[Buffer], numbers: Sequence[int]
    ) -> BuiltKernels:
        """Print instead of building; a launch notes which tensors there are."""
        text, used = self._text(kernels)
        places = [n for n, buffer in enumerate(buffers) if buffer in used]

        def launch(memory: Sequence[Tensor | None], values: Sequence[float]) -> None:
            by_buffer = {buffers[n]: memory[n] for n in places}
            self.captured = tuple(by_buffer[b] for b in used)  # type: ignore[misc]
            self.text, self._launched = text, not numbers

        return BuiltKernels("", dict.fromkeys(kernels, ""), dict.fromkeys(kernels, launch))

    def _text(self, kernels: Sequence[Kernel]) -> tuple[str | None, list[Buffer]]:
        steps = [step for kernel in kernels for step in kernel.steps]
        if len(steps) != 1 or type(steps[0]) is not Store or steps[0].inner:
            return None, []
        printer = _Text(self.name)
        try:
            return printer.text(steps[0].value), list(printer.buffers)
        except (BurntError, KeyError):  # an index of the tile's own, or what Triton has no text for
            return None, []


class Scored:
    """A function of the scores, and what was made of it."""

    def __init__(self, score: Score) -> None:
        def value(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score(s, b, h, i, j).to(s.dtype).expand_as(s) + 0.0

        def derivative(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            made, pull = torch.func.vjp(lambda x: score(x, b, h, i, j).to(x.dtype).expand_as(x), s)[:2]
            return pull(torch.ones_like(made))[0] + s * 0.0  # type: ignore[no-any-return]

        self.kernels: Kernels = kernels_of(score)
        self.value, self.derivative = _Printed(value, "score"), _Printed(derivative, "slope")

    def printed(self, device: torch.device, gradients: bool) -> tuple[Any, Any, tuple[Any, ...]] | None:
        """Both as Triton functions, and what they are given; None where one cannot be."""
        value = self.value.at(device)
        if value is None:
            return None
        if not gradients:
            return value[0], None, value[1] or (0,)
        derivative = self.derivative.at(device)
        if derivative is None:
            return None
        # Both are given one tuple: that of the derivative begins with what the function itself captures.
        if [t.data_ptr() for t in derivative[1]] == [t.data_ptr() for t in value[1][: len(derivative[1])]]:
            return value[0], derivative[0], value[1] or (0,)
        return None


@functools.lru_cache(maxsize=_MOST_KNOWN)
def _known(score: Score) -> Scored:
    return Scored(score)


def attention_with_score(score: Score, *args: Any) -> Tensor:
    """`dot_product_attention` with a function of the scores: by Triton, by tiles, or by the definition.

    Args:
        score: of scores and the indices of batch, head, query and key; as in `attention`.
        args: the op's arguments.
    """
    q, k, v, *rest = args
    op: Any = dot_product_attention
    op.check(*args)
    if q.is_cpu:
        op.look(*args)
    softcap, slopes = rest[5:7]
    check_score(score, (*q.shape[:3], k.shape[2]), q.device)
    empty = 0 in (q.numel(), k.numel(), v.numel())
    if empty or wants_gradient(rest[0], slopes, *_captured(score)) or not _torch.is_plain_call():
        return _plain(score, rest)(q, k, v)
    scored = _known(score)
    able = q.is_cuda and q.dtype != torch.float64 and not isinstance(target_of(q.device), str)
    if able and softcap is None and slopes is None and why_not_here(*args) is None:
        sizes = configs_of(q, k, v, rest[0], scored=True)[0]
        made = flash_with_score(scored, score, *args, blocks={n: FlashConfig.of(sizes[n]) for n in KERNELS})
        if made is not None:
            return made
    return tiled(*args, kernels=scored.kernels, plain=_plain(score, rest))


def flash_with_score(
    scored: Scored, score: Score, q: Tensor, k: Tensor, v: Tensor, *rest: Any, blocks: dict[str, FlashConfig]
) -> Tensor | None:
    """By Triton's kernels; None where the function cannot be printed for them."""
    from burnt.kernels.ops.attention import flash_triton

    printed = scored.printed(q.device, wants_gradient(q, k, v))
    if printed is None:
        return None
    value, derivative, given = printed
    problem = problem_of(q, k, *rest)._replace(score=value, slope=derivative, args=given)
    q, k, v = dense(q), dense(k), dense(v)
    if not wants_gradient(q, k, v):
        return flash_triton.forward(q, k, v, problem, blocks)[0]
    return Flash.apply(q, k, v, problem, blocks, _plain(score, rest))  # type: ignore[no-any-return, no-untyped-call]


# --- what a function of the scores must be ----------------------------------------------------------------

_PROBED = 3  # indices of each axis that a function is tried on
_SPREADS = (1.0, 30.0, 1e4)  # of the scores that it is tried on: a threshold may lie anywhere
_CLOSE = 1e-4


def check_score(score: Score, shape: Sequence[int], device: torch.device) -> None:
    """A function of the scores is one, and elementwise: what a part of the scores becomes is the same alone.

    It is tried on a few scores, once for as many axes as have several, where that can be waited for.

    Args:
        score: the function.
        shape: of the scores, ``[B, H, L, S]``.
        device: where they are.

    Raises:
        InputTypeError: it cannot be called with five tensors, or does not return one.
        InputValueError: it returns something that is not of the scores' shape, or a score that depends on
            others.
    """
    if not callable(score):
        raise InputTypeError(
            "a score of attention is a function",
            where="burnt.kernels.attention",
            expected=_SIGNATURE,
            found=f"{type(score).__name__}: {score!r:.60}",
        )
    if device.type != "meta" and not (device.type == "cuda" and torch.cuda.is_current_stream_capturing()):
        _probe(score, tuple(min(size, _PROBED) for size in shape), device)


_SIGNATURE = "score(s, b, h, i, j): of scores, and of the indices of batch, head, query and key"


@functools.lru_cache(maxsize=_MOST_KNOWN)
def _probe(score: Score, shape: tuple[int, ...], device: torch.device) -> None:
    try:
        inspect.signature(score).bind(*range(_GIVEN))
    except TypeError as error:
        found = f"{getattr(score, '__name__', score)}{inspect.signature(score)}: {error}"
        what = "a score of attention takes five arguments"
        raise InputTypeError(
            what, where="burnt.kernels.attention", expected=_SIGNATURE, found=found
        ) from None
    except ValueError:  # no signature is known: the call shows whether it takes them
        pass
    if 0 in shape:
        return
    with torch.no_grad():
        alike = [_is_elementwise(score, shape, device, spread) for spread in _SPREADS]
        if not torch.stack(alike).all():
            raise InputValueError(
                "a score of attention depends on other scores",
                where="burnt.kernels.attention",
                expected="an elementwise function: of a score, of its indices, and of what it captures",
                found=f"{getattr(score, '__name__', score)}, which gives a part of the scores something else "
                "when it is given that part alone (a sum, a sort, a shift, or random numbers)",
                hint="masks, slopes and windows are arguments of attention",
            )


def _is_elementwise(score: Score, shape: tuple[int, ...], device: torch.device, spread: float) -> Tensor:
    """Whether each end of each axis becomes the same alone, ``[]``."""
    generator = torch.Generator().manual_seed(0)
    s = (torch.randn(shape, generator=generator) * spread).to(device)
    places = [torch.arange(n, dtype=torch.int32, device=device) for n in shape]
    whole = scored(score, s, places)
    alike = []
    for axis, size in enumerate(shape):
        for at in {0, size - 1}:
            part = [p[at : at + 1] if n == axis else p for n, p in enumerate(places)]
            alone = scored(score, s.narrow(axis, at, 1), part)
            same = torch.isclose(alone, whole.narrow(axis, at, 1), _CLOSE, _CLOSE, equal_nan=True)
            alike.append(same.all())
    return torch.stack(alike).all()


# --- the definition ---------------------------------------------------------------------------------------


def _plain(score: Score, rest: Sequence[Any]) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The definition as a function of queries, keys and values."""
    definition: Any = defined
    return lambda q, k, v: definition(q, k, v, *rest, score)


def _captured(score: Score) -> list[Tensor]:
    """The tensors that a function captures by itself."""
    if not inspect.isfunction(score):
        return []
    found = inspect.getclosurevars(score)
    return [t for t in (*found.nonlocals.values(), *found.globals.values()) if isinstance(t, Tensor)]
