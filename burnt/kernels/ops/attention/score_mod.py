"""Attention with the user's score function, like torch's flex_attention.

The function and its derivative are traced on a tile and printed as Triton functions, which the flash kernels
take as parameters. A function that cannot be printed (one that needs more than one elementwise kernel, say)
runs in the tiled candidate. If captured tensors require gradients, the eager reference runs instead.
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
from burnt.kernels.ops.attention.chunked import TileKernels, make_tile_kernels, tiled_attention
from burnt.kernels.ops.attention.flash import candidate_configs, make_problem, run_flash, unsupported_reason
from burnt.kernels.ops.attention.flash_config import KERNELS, FlashConfig
from burnt.kernels.ops.attention.reference import (
    ScoreMod,
    apply_score,
    dot_product_attention,
    eager_attention,
)

_TRACE_ROWS, _TRACE_COLUMNS = 32, 48  # size of the traced tile: no index has these sizes by chance
_CACHE_SIZE = 64  # score functions
_NUM_ARGUMENTS = 5  # of a score function; later buffers are captured tensors


class _ScorePrinter(ExprPrinter):
    """Prints the Triton function ``name(s, b, h, i, j, args)`` of a tile's elements."""

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
        """Return an argument, or load from a captured tensor."""
        buffer: Buffer = expr.extra[0]
        if buffer.position < _NUM_ARGUMENTS:
            return self._ARGUMENTS[buffer.position]
        self.buffers[buffer] = None
        index = self.index_text(expr.extra[1], guard)
        axes = "".join(a for a in "RC" if a in index.axes or a in guard.axes)
        pointer, mask = f"{buffer.name} + ({index.text})", ""
        if guard.text:
            # Pointers must have the shape of their mask.
            pointer += f" + ({guard.text}).to(tl.int32) * 0"
            mask = f", mask={guard.text}, other=0"
        return self.define(f"tl.load({pointer}{mask}){self.widening_cast(buffer)}", axes)

    def bounds_check(self, expr: Expr, guard: TileValue) -> TileValue:
        """Gather with a bounds check: out of range, as in a tile's padding, read the first element."""
        in_bounds, value, default, _ = (self.visit(a, guard) for a in expr.args)
        return self.select(in_bounds, value, default, expr.dtype)

    def block_shape(self, axes: str) -> str:
        raise BurntError("a score function must not depend on the tile's orientation", where=self.name)

    def size_arg(self, value: int) -> str:
        return str(value)

    def index_as_dtype(self, index: TileValue, dtype: torch.dtype) -> str:
        is_literal = index.text.removeprefix("-").isdecimal()
        if not is_literal:
            return super().index_as_dtype(index, dtype)
        return f"tl.full([], {index.text}, {TL_DTYPES[dtype]})"

    def text(self, value: Expr) -> str:
        """Return the source of a module with the function."""
        result = self.visit(value, NO_GUARD)
        helpers = (
            f"from burnt.codegen.render.triton.device_math import {', '.join(sorted(self.helpers))}\n"
            * bool(self.helpers)
        )
        captured = [f"    {b.name} = args[{n}]" for n, b in enumerate(self.buffers)]
        # The kernels' indices may have 64 bits, but the function was traced with 32.
        narrow = [f"    {name} = {name}.to(tl.int32)" for name in "bhij"]
        lines = [f"def {self.name}(s, b, h, i, j, args):", *narrow, *captured, *self.lines]
        header = f"import triton\nimport triton.language as tl\n{helpers}\n\n@triton.jit\n"
        return header + "\n".join([*lines, f"    return {result.text}", ""])


class _TritonScore:
    """A function of a tile as a Triton function; traced once, and again when captured tensors change."""

    def __init__(self, fn: ScoreMod, name: str) -> None:
        self.name = name
        self.text: str | None = None
        self.captured: tuple[Tensor, ...] = ()
        self._launched = False
        self.traced = Function(
            fn, target=dataclasses.replace(TRITON, build=self._build, why_unavailable=lambda: None)
        )

    def load_function(self, device: torch.device) -> tuple[Any, tuple[Tensor, ...]] | None:
        """Return the Triton function and its captured tensors; None if it cannot be printed."""
        s = torch.empty(_TRACE_ROWS, _TRACE_COLUMNS, device=device)
        shapes = (1, 1), (1, 1), (_TRACE_ROWS, 1), (1, _TRACE_COLUMNS)
        self.captured, previous_text = (), self.text
        self._launched = False
        with torch.no_grad():
            self.traced(s, *[torch.zeros(shape, dtype=torch.int32, device=device) for shape in shapes])
        if not self._launched or self.text is None:
            self.text = previous_text
            return None
        from burnt.codegen.runtime.triton_launch import load

        return load(self.text)[self.name], self.captured

    def _build(
        self, kernels: Sequence[Kernel], buffers: Sequence[Buffer], numbers: Sequence[int]
    ) -> BuiltKernels:
        """Print the kernel instead of building it; its launch records the captured tensors."""
        text, used = self._print_kernels(kernels)
        used_positions = [n for n, buffer in enumerate(buffers) if buffer in used]

        def launch(memory: Sequence[Tensor | None], values: Sequence[float]) -> None:
            by_buffer = {buffers[n]: memory[n] for n in used_positions}
            self.captured = tuple(by_buffer[b] for b in used)  # type: ignore[misc]
            self.text, self._launched = text, not numbers

        return BuiltKernels(dict.fromkeys(kernels, ""), dict.fromkeys(kernels, launch))

    def _print_kernels(self, kernels: Sequence[Kernel]) -> tuple[str | None, list[Buffer]]:
        steps = [step for kernel in kernels for step in kernel.steps]
        if len(steps) != 1 or type(steps[0]) is not Store or steps[0].inner:
            return None, []
        printer = _ScorePrinter(self.name)
        try:
            return printer.text(steps[0].body), list(printer.buffers)
        except (BurntError, KeyError):  # it reads the tile's own index, or an op has no Triton code
            return None, []


class CompiledScore:
    """A score function with its tile kernels, its Triton function and its Triton derivative."""

    def __init__(self, score: ScoreMod) -> None:
        def value(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score(s, b, h, i, j).to(s.dtype).expand_as(s) + 0.0

        def derivative(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            result, vjp = torch.func.vjp(lambda x: score(x, b, h, i, j).to(x.dtype).expand_as(x), s)[:2]
            return vjp(torch.ones_like(result))[0] + s * 0.0  # type: ignore[no-any-return]

        self.kernels: TileKernels = make_tile_kernels(score)
        self.value, self.derivative = _TritonScore(value, "score"), _TritonScore(derivative, "score_grad")

    def triton_functions(
        self, device: torch.device, gradients: bool
    ) -> tuple[Any, Any, tuple[Any, ...]] | None:
        """Return the function, its derivative and their arguments; None if one cannot be printed."""
        value = self.value.load_function(device)
        if value is None:
            return None
        if not gradients:
            return value[0], None, value[1] or (0,)
        derivative = self.derivative.load_function(device)
        if derivative is None:
            return None
        # Both get the same tuple, so the derivative may capture only the function's first tensors, in order.
        if [t.data_ptr() for t in derivative[1]] == [t.data_ptr() for t in value[1][: len(derivative[1])]]:
            return value[0], derivative[0], value[1] or (0,)
        return None


@functools.lru_cache(maxsize=_CACHE_SIZE)
def _compiled_score(score: ScoreMod) -> CompiledScore:
    return CompiledScore(score)


def attention_with_score(score: ScoreMod, *args: Any) -> Tensor:
    """Compute `dot_product_attention` with a score function: by flash, tiled or eager attention."""
    q, k, v, *rest = args
    op: Any = dot_product_attention
    op.check(*args)
    if q.is_cpu:
        op.look(*args)
    softcap, slopes = rest[5:7]
    check_score(score, (*q.shape[:3], k.shape[2]), q.device)
    is_empty = 0 in (q.numel(), k.numel(), v.numel())
    if is_empty or wants_gradient(rest[0], slopes, *_captured_tensors(score)) or not _torch.is_plain_call():
        return _eager_function(score, rest)(q, k, v)
    compiled = _compiled_score(score)
    can_use_flash = q.is_cuda and q.dtype != torch.float64 and not isinstance(target_of(q.device), str)
    if can_use_flash and softcap is None and slopes is None and unsupported_reason(*args) is None:
        config = candidate_configs(q, k, v, rest[0], has_score=True)[0]
        out = flash_with_score(compiled, score, *args, blocks={n: FlashConfig.of(config[n]) for n in KERNELS})
        if out is not None:
            return out
    return tiled_attention(*args, kernels=compiled.kernels, eager=_eager_function(score, rest))


def flash_with_score(
    compiled: CompiledScore,
    score: ScoreMod,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *rest: Any,
    blocks: dict[str, FlashConfig],
) -> Tensor | None:
    """Compute attention with the flash kernels; None if the score function cannot be printed for them."""
    functions = compiled.triton_functions(q.device, wants_gradient(q, k, v))
    if functions is None:
        return None
    value, derivative, score_args = functions
    problem = make_problem(q, k, *rest)._replace(score=value, score_grad=derivative, args=score_args)
    return run_flash(q, k, v, problem, blocks, _eager_function(score, rest))


# --- checks of score functions ----------------------------------------------------------------------------

_PROBE_SIZE = 3  # indices per axis that a function is tested on
_PROBE_SCALES = (1.0, 30.0, 1e4)  # several magnitudes of scores, since a function may have a threshold
_PROBE_TOLERANCE = 1e-4


def check_score(score: ScoreMod, shape: Sequence[int], device: torch.device) -> None:
    """Check that a score function is elementwise: each part of the scores must give the same result alone.

    It is called with up to three indices per axis, once per such shape, unless the device cannot be waited
    for.
    """
    if not callable(score):
        raise InputTypeError(
            "the score of attention must be a function",
            where="burnt.kernels.attention",
            expected=_SIGNATURE,
            found=f"{type(score).__name__}: {score!r:.60}",
        )
    if device.type != "meta" and not (device.type == "cuda" and torch.cuda.is_current_stream_capturing()):
        _probe(score, tuple(min(size, _PROBE_SIZE) for size in shape), device)


_SIGNATURE = "score(s, b, h, i, j), given scores and the indices of batch, head, query and key"


@functools.lru_cache(maxsize=_CACHE_SIZE)
def _probe(score: ScoreMod, shape: tuple[int, ...], device: torch.device) -> None:
    try:
        inspect.signature(score).bind(*range(_NUM_ARGUMENTS))
    except TypeError as error:
        found = f"{getattr(score, '__name__', score)}{inspect.signature(score)}: {error}"
        what = "the score function of attention must take five arguments"
        raise InputTypeError(
            what, where="burnt.kernels.attention", expected=_SIGNATURE, found=found
        ) from None
    except ValueError:  # no signature available: the call will show whether it takes them
        pass
    if 0 in shape:
        return
    with torch.no_grad():
        checks = [_is_elementwise(score, shape, device, spread) for spread in _PROBE_SCALES]
        if not torch.stack(checks).all():
            raise InputValueError(
                "the score function of attention depends on other scores",
                where="burnt.kernels.attention",
                expected="an elementwise function of a score, its indices and captured tensors",
                found=f"{getattr(score, '__name__', score)}, whose result for a part of the scores changes "
                "when it is called with that part alone (it reduces, sorts, shifts or draws random numbers)",
                hint="for masks, slopes and windows, use the arguments of attention",
            )


def _is_elementwise(score: ScoreMod, shape: tuple[int, ...], device: torch.device, spread: float) -> Tensor:
    """Return whether the first and last index of each axis give the same result alone, ``[]``."""
    generator = torch.Generator().manual_seed(0)
    s = (torch.randn(shape, generator=generator) * spread).to(device)
    indices = [torch.arange(n, dtype=torch.int32, device=device) for n in shape]
    full = apply_score(score, s, indices)
    checks = []
    for axis, size in enumerate(shape):
        for position in {0, size - 1}:
            part_indices = [p[position : position + 1] if n == axis else p for n, p in enumerate(indices)]
            part = apply_score(score, s.narrow(axis, position, 1), part_indices)
            same = torch.isclose(
                part, full.narrow(axis, position, 1), _PROBE_TOLERANCE, _PROBE_TOLERANCE, equal_nan=True
            )
            checks.append(same.all())
    return torch.stack(checks).all()


# --- the eager reference ----------------------------------------------------------------------------------


def _eager_function(score: ScoreMod, rest: Sequence[Any]) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return the eager reference as a function of q, k and v."""
    reference: Any = eager_attention
    return lambda q, k, v: reference(q, k, v, *rest, score)


def _captured_tensors(score: ScoreMod) -> list[Tensor]:
    """Return the tensors that a function captures directly."""
    if not inspect.isfunction(score):
        return []
    captured = inspect.getclosurevars(score)
    return [t for t in (*captured.nonlocals.values(), *captured.globals.values()) if isinstance(t, Tensor)]
