"""Attention with the user's score function, like torch's flex_attention.

The function and its derivative are traced on a tile and printed as Triton functions, which the flash kernels
take as parameters. A function that cannot be printed (one that needs more than one elementwise kernel, say)
runs in the tiled candidate. If captured tensors require gradients, the eager reference runs instead.

The candidate ``tiled`` is matmuls over tiles of queries, with fused kernels between them. A tile holds some
queries and the keys they see, for as many heads as fit, so that memory grows with the length and not with its
square. One generated kernel turns a tile's scores into weights, whatever the options; the backward recomputes
them from each query's row maximum and the logarithm of its sum of exponentials. The two are stored apart:
added to a row maximum of finfo.min (from a mask), the logarithm would be lost. The matmuls are
`burnt.kernels.matmul` with whichever candidate it selects.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from burnt import _torch
from burnt.codegen import fuse
from burnt.codegen.function import Function
from burnt.codegen.ir import Buffer, Expr, Kernel, Store
from burnt.codegen.render.c import prelude
from burnt.codegen.render.triton.expr import NO_GUARD, TL_DTYPES, ExprPrinter, TileValue
from burnt.codegen.runtime import c_compiler, c_library
from burnt.codegen.runtime.c_compiler import find_compiler
from burnt.codegen.runtime.target import BuiltKernels, launcher_of
from burnt.codegen.runtime.targets import target_of
from burnt.codegen.runtime.triton_backend import TRITON
from burnt.device import processor
from burnt.errors import BurntError, InputTypeError, InputValueError
from burnt.kernels.dispatch.op import Op
from burnt.kernels.interface.tuning_key import wants_gradient
from burnt.kernels.ops.attention.flash import (
    candidate_configs,
    make_problem,
    parse_blocks,
    run_flash,
    unsupported_reason,
)
from burnt.kernels.ops.attention.flash_config import FlashConfig
from burnt.kernels.ops.attention.reference import (
    Options,
    ScoreMod,
    apply_score,
    dot_product_attention,
    dropout_mask,
    eager_attention,
    intervals,
    run_candidate,
)
from burnt.kernels.ops.matmul import matmul

# Scores per tile; 1 << 18 takes a fifth longer at 8 heads of 2048 x 64 (2 threads of a Zen 3).
_TILE_SCORES = 1 << 20
_MIN_QUERIES = 16  # per tile
_SIZE_MULTIPLE = 64  # tile sizes are multiples of it: every size has its own plan, so there should be few
_CAUSAL_TILES = (
    8  # tiles that causal queries are split into, so that early tiles skip the keys they do not see
)

# Number of scores from which tiles are faster than the eager reference: with dropout (forward and backward
# 1.3 to 1.5 times as fast as torch's at 8 and 12 heads of 512 to 2048 x 64, 2 threads of a Xeon) and with a
# softcap (1.6 at 8 causal heads of 2048; 0.8 at 2 x 12 of 512). Tiles multiply 16-bit inputs in float32:
# where torch has fast 16-bit matmuls, tiles with a softcap only pay off for their memory.
_MIN_SCORES_DROPOUT, _MIN_SCORES_SOFTCAP, _MIN_SCORES_SOFTCAP_16_BIT = 1 << 12, 1 << 24, 1 << 26
# Number of keys from which tiles beat a mask (which skips nothing) for a window of an eighth of the keys.
_MIN_KEYS_WINDOW, _MIN_KEYS_WINDOW_16_BIT = 1 << 11, 1 << 13


class _ScoreInputs(NamedTuple):
    """Everything a tile's scores depend on besides ``q @ k.T``: slices of the op's tensors, and numbers.

    `mask` and `keep` (dropout) are ``[batch, heads, queries, keys]``; `begin`, `end` (the visible keys; None
    for all) and `position` (among the keys) ``[batch, 1, queries, 1]``; `slopes` ``[heads, 1, 1]``; the
    indices b, h, i, j ``[batch, 1, 1, 1]``, ``[heads, 1, 1]``, ``[queries, 1]`` and ``[keys]``.
    """

    mask: Tensor | None
    begin: Tensor | None
    end: Tensor | None
    position: Tensor | None
    slopes: Tensor | None
    keep: Tensor | None
    b: Tensor
    h: Tensor
    i: Tensor
    j: Tensor
    scale: float
    softcap: float | None
    keep_scale: float


def _compute_scores(qk: Tensor, inputs: _ScoreInputs, score: ScoreMod | None) -> Tensor:
    s = qk * inputs.scale
    if inputs.softcap is not None:
        s = torch.tanh(s / inputs.softcap) * inputs.softcap
    if score is not None:
        s = score(s, inputs.b, inputs.h, inputs.i, inputs.j).to(s.dtype).expand_as(s)
    if inputs.slopes is not None and inputs.position is not None:
        s = s - inputs.slopes * (inputs.position - inputs.j).abs()
    if inputs.mask is not None:
        is_additive = inputs.mask.dtype != torch.bool
        s = s + inputs.mask.to(s.dtype) if is_additive else torch.where(inputs.mask, s, -torch.inf)
    if inputs.begin is not None and inputs.end is not None:
        s = torch.where((inputs.j >= inputs.begin) & (inputs.j < inputs.end), s, -torch.inf)
    return s


class TileKernels(NamedTuple):
    """The fused kernels of a tile: ``weights(qk, *inputs) -> (weights, row_max, log_sum)`` and
    ``gradients(qk, grad_weights, row_max, log_sum, delta, *inputs) -> (weights, grad_qk)``.
    """

    weights: Callable[..., tuple[Tensor, Tensor, Tensor]]
    gradients: Callable[..., tuple[Tensor, Tensor]]


def make_tile_kernels(score: ScoreMod | None) -> TileKernels:
    """Build the fused kernels of a tile for a score function."""

    @fuse
    def attention_weights(qk: Tensor, *score_inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        inputs = _ScoreInputs(*score_inputs)
        s = _compute_scores(qk, inputs, score)
        row_max = s.amax(-1, keepdim=True)
        row_max = torch.where(row_max == -torch.inf, 0.0, row_max)
        exp_scores = torch.exp(s - row_max)
        row_sum = exp_scores.sum(-1, keepdim=True)
        no_keys = row_sum == 0
        weights = exp_scores * torch.where(no_keys, 0.0, 1 / row_sum)
        if inputs.keep is not None:
            weights = torch.where(inputs.keep, weights * inputs.keep_scale, 0.0)
        return (
            weights,
            torch.where(no_keys, torch.inf, row_max),
            torch.where(no_keys, 0.0, torch.log(row_sum)),
        )

    @fuse
    def attention_gradients(
        qk: Tensor, grad_weights: Tensor, row_max: Tensor, log_sum: Tensor, delta: Tensor, *score_inputs: Any
    ) -> tuple[Tensor, Tensor]:
        inputs = _ScoreInputs(*score_inputs)
        s, scores_vjp = torch.func.vjp(lambda x: _compute_scores(x, inputs, score), qk)[:2]
        weights = torch.exp((s - row_max) - log_sum)
        dropped = weights
        if inputs.keep is not None:
            dropped = torch.where(inputs.keep, weights * inputs.keep_scale, 0.0)
            grad_weights = torch.where(inputs.keep, grad_weights * inputs.keep_scale, 0.0)
        return dropped, scores_vjp(weights * (grad_weights - delta))[0]

    return TileKernels(attention_weights, attention_gradients)


_DEFAULT_KERNELS = make_tile_kernels(None)


class _Tile(NamedTuple):
    """Some queries of some heads; `key_range` includes all keys that they see."""

    batch: slice
    heads: slice
    kv_heads: slice
    queries: slice
    key_range: slice
    inputs: _ScoreInputs


def _largest_divisor(count: int, limit: int) -> int:
    """Return the largest divisor of `count` up to `limit`, so that all tiles have one size."""
    return next(n for n in range(min(count, max(limit, 1)), 0, -1) if count % n == 0)


def _tile_sizes(q: Tensor, k: Tensor, options: Options) -> tuple[int, int, int]:
    """Return how many batches, key heads and queries a tile has."""
    batch, kv_heads, queries, keys = q.shape[0], k.shape[1], q.shape[2], k.shape[2]
    group = q.shape[1] // kv_heads
    query_step, visible_keys = queries, keys
    if options.before is not None and options.after is not None:
        window = options.before + options.after + 1
        query_step = min(_round_up(window), queries)
        visible_keys = min(_round_up(window + query_step) + _SIZE_MULTIPLE, keys)
    elif options.before is not None or options.after is not None:
        query_step = min(_round_up(-(-queries // _CAUSAL_TILES)), queries)
    query_step = min(query_step, max(_TILE_SCORES // (visible_keys * group), _MIN_QUERIES))
    heads = _TILE_SCORES // (visible_keys * group * query_step)
    kv_step = _largest_divisor(kv_heads, heads)
    return _largest_divisor(batch, heads // kv_heads), kv_step, query_step


def _round_up(count: int) -> int:
    return -(-count // _SIZE_MULTIPLE) * _SIZE_MULTIPLE


def _tiles(q: Tensor, k: Tensor, options: Options, compute_dtype: torch.dtype) -> Iterator[_Tile]:
    """Yield the tiles; those that share key heads are consecutive."""
    batch, num_heads, num_queries, size = q.shape
    num_kv_heads, num_keys = k.shape[1], k.shape[2]
    group = num_heads // num_kv_heads
    batch_step, kv_step, query_step = _tile_sizes(q, k, options)
    position = begin = end = None
    if options.has_key_limits or options.slopes is not None:
        limits = intervals(q, k, options)
        position, begin, end = (t.expand(batch, -1)[:, None, :, None] for t in limits)
    bounds = None
    # On other devices, reading the bounds would wait for the device.
    if options.has_key_limits and q.device.type == "cpu" and begin is not None and end is not None:
        bounds = begin[..., 0].squeeze(1).tolist(), end[..., 0].squeeze(1).tolist()
    mask, slopes = options.mask, options.slopes
    if mask is not None:
        mask = mask.detach().expand(batch, num_heads, num_queries, num_keys)
    if slopes is not None:
        slopes = slopes.detach().to(compute_dtype).view(-1, 1, 1)
    indices = [
        torch.arange(n, dtype=torch.int32, device=q.device) for n in (batch, num_heads, num_queries, num_keys)
    ]
    b_index, h_index, i_index = (t.view(-1, *(1,) * n) for t, n in zip(indices, (3, 2, 1), strict=False))
    scale = size**-0.5 if options.scale is None else float(options.scale)
    keep_scale = 1 / (1 - options.dropout) if options.dropout < 1 else 0.0
    for b, kv_head, start in itertools.product(
        range(0, batch, batch_step), range(0, num_kv_heads, kv_step), range(0, num_queries, query_step)
    ):
        batches, heads = slice(b, b + batch_step), slice(kv_head * group, (kv_head + kv_step) * group)
        queries = slice(start, min(start + query_step, num_queries))
        key_begin, key_end = 0, num_keys
        if bounds is not None:
            key_begin = min(begin[start] for begin in bounds[0][batches]) // _SIZE_MULTIPLE * _SIZE_MULTIPLE
            key_end = min(_round_up(max(end[queries.stop - 1] for end in bounds[1][batches])), num_keys)
            key_begin, key_end = min(key_begin, num_keys - 1), max(key_end, min(key_begin, num_keys - 1) + 1)
        keys = slice(key_begin, key_end)
        keep = None
        if options.seed is not None:
            shape = (batch_step * kv_step * group, queries.stop - start, key_end - key_begin)
            flat_keep = _tile_dropout_mask(options, b * num_heads + heads.start, start, key_begin, shape)
            keep = flat_keep.view(batch_step, -1, *shape[1:])
        inputs = _ScoreInputs(
            None if mask is None else mask[batches, heads, queries, keys],
            None if begin is None or not options.has_key_limits else begin[batches, :, queries],
            None if end is None or not options.has_key_limits else end[batches, :, queries],
            None if position is None or slopes is None else position[batches, :, queries],
            None if slopes is None else slopes[heads],
            keep,
            b_index[batches],
            h_index[heads],
            i_index[queries],
            indices[3][keys],
            scale,
            options.softcap,
            keep_scale,
        )
        yield _Tile(batches, heads, slice(kv_head, kv_head + kv_step), queries, keys, inputs)


# --- dropout ----------------------------------------------------------------------------------------------

# `reference.dropout_mask` in C: the words of a row come from consecutive counters.
_DROPOUT_SOURCE = r"""
void dropout_mask(const burnt_arg *a)
{
    uint8_t *restrict y = a[0].p;  /* [heads, rows, columns] */
    const int64_t seed = a[1].i, head = a[2].i, row = a[3].i, group = a[4].i;
    const int64_t heads = a[5].i, rows = a[6].i, columns = a[7].i;
    const uint32_t threshold = (uint32_t)a[8].i;  /* keep where the upper 24 bits are not below it */
    #pragma omp parallel for schedule(static)
    for (int64_t at = 0; at < heads * rows; at++) {
        uint32_t words[1024];
        uint8_t *restrict to = y + at * columns;
        for (int64_t from = 0; from < columns; from += 1024) {
            const int64_t count = columns - from < 1024 ? columns - from : 1024;
            const int64_t counter = ((row + at % rows) << 32) + group + from / 4;
            philox_fill(words, seed, counter, (count + 3) / 4, (uint32_t)(head + at / rows));
            for (int64_t k = 0; k < count; k++) to[from + k] = (words[k] >> 8) >= threshold;
        }
    }
}
"""


def _tile_dropout_mask(
    options: Options, first_head: int, first_query: int, first_key: int, shape: tuple[int, int, int]
) -> Tensor:
    """Return the dropout mask of a tile; `first_head` is ``batch * heads + head``."""
    assert options.seed is not None
    if options.seed.device.type != "cpu" or find_compiler() is None:
        heads = shape[0]
        keep = dropout_mask(
            options.seed, (1, first_head + heads, *shape[1:]), options.dropout, first_query, first_key
        )
        return keep[0, first_head:]
    keep_tile = torch.empty(shape, dtype=torch.bool)
    # The smallest 24-bit number that is kept, with the same result as the comparison in float32.
    probability = float(torch.tensor(options.dropout, dtype=torch.float32))
    threshold = -int(-probability * (1 << 24) // 1)
    numbers = (int(options.seed), first_head, first_query, first_key // 4, *shape, threshold)
    _load_dropout_kernel()(keep_tile.data_ptr(), *numbers)
    return keep_tile


@functools.cache
def _load_dropout_kernel() -> Callable[..., Any]:
    source = c_compiler.PREAMBLE + prelude.source() + _DROPOUT_SOURCE
    return c_library.launcher(c_library.load(source, ["dropout_mask"])["dropout_mask"], pointers=1, ints=8)


# --- forward and backward ---------------------------------------------------------------------------------


def _tile_rows(x: Tensor, tile: _Tile, dtype: torch.dtype) -> Tensor:
    """Return a tile's rows grouped by key head, ``[batch * kv_heads, group * queries, size]``."""
    part = x[tile.batch, tile.heads, tile.queries]
    count = (tile.batch.stop - tile.batch.start) * (tile.kv_heads.stop - tile.kv_heads.start)
    return part.reshape(count, -1, x.shape[-1]).to(dtype)


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    """Return ``[n, rows, terms] @ [n, terms, columns]``."""
    return matmul(a[0], b[0])[None] if len(a) == 1 else matmul(a, b)


class _KeyValueCache:
    """Keys and values of the current key heads, cast once for all tiles that share them."""

    def __init__(self, k: Tensor, v: Tensor, dtype: torch.dtype) -> None:
        self.k, self.v, self.compute_dtype = k, v, dtype
        self.cached_for: tuple[int, int] | None = None
        self.keys, self.values = k, v

    def tile_slices(self, tile: _Tile) -> tuple[Tensor, Tensor]:
        """Return the keys and values that a tile sees, ``[batch * kv_heads, keys, size]``."""
        position = tile.batch.start, tile.kv_heads.start
        if self.cached_for != position:
            self.cached_for = position
            self.keys, self.values = (
                t[tile.batch, tile.kv_heads].to(self.compute_dtype).flatten(0, 1).contiguous()
                for t in (self.k, self.v)
            )
        return self.keys[:, tile.key_range], self.values[:, tile.key_range]


def _forward(
    q: Tensor, k: Tensor, v: Tensor, options: Options, kernels: TileKernels
) -> tuple[Tensor, Tensor]:
    """Return the output, and each query's row maximum and logarithm of its sum, ``[2, B, H, L]``."""
    compute_dtype = torch.promote_types(q.dtype, torch.float32)
    out = q.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[3]).transpose(1, 2)
    stats = q.new_empty(2, *q.shape[:3], dtype=compute_dtype)
    cache = _KeyValueCache(k, v, compute_dtype)
    for tile in _tiles(q, k, options, compute_dtype):
        keys, values = cache.tile_slices(tile)
        out_tile = out[tile.batch, tile.heads, tile.queries]
        qk = _matmul(_tile_rows(q, tile, compute_dtype), keys.mT).view(*out_tile.shape[:3], -1)
        weights, *tile_stats = kernels.weights(qk, *tile.inputs)
        out_tile.copy_(_matmul(_group_by_kv_head(weights, values), values).view(out_tile.shape))
        for full, part in zip(stats, tile_stats, strict=True):
            full[tile.batch, tile.heads, tile.queries] = part.squeeze(-1)
    return out, stats


def _group_by_kv_head(per_head: Tensor, kv: Tensor) -> Tensor:
    """View ``[batch, heads, queries, keys]`` as ``[batch * kv_heads, group * queries, keys]``."""
    return per_head.view(len(kv), -1, per_head.shape[-1])


def _backward(
    grad_out: Tensor,
    out: Tensor,
    stats: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    options: Options,
    kernels: TileKernels,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v."""
    compute_dtype = stats.dtype
    dq = torch.empty_like(q)
    dk, dv = (torch.zeros(t.shape, dtype=compute_dtype, device=t.device) for t in (k, v))
    cache = _KeyValueCache(k, v, compute_dtype)
    for tile in _tiles(q, k, options, compute_dtype):
        keys, values = cache.tile_slices(tile)
        q_rows, grad_rows = _tile_rows(q, tile, compute_dtype), _tile_rows(grad_out, tile, compute_dtype)
        row_max, log_sum = stats[:, tile.batch, tile.heads, tile.queries].unsqueeze(-1)
        qk = _matmul(q_rows, keys.mT).view(*row_max.shape[:3], -1)
        grad_weights = _matmul(grad_rows, values.mT).view(*row_max.shape[:3], -1)
        delta = (grad_rows * _tile_rows(out, tile, compute_dtype)).sum(-1).view(row_max.shape)
        gradients = kernels.gradients(qk, grad_weights, row_max, log_sum, delta, *tile.inputs)
        weights, grad_qk = (_group_by_kv_head(t, keys) for t in gradients)
        dq_tile = dq[tile.batch, tile.heads, tile.queries]
        dq_tile.copy_(_matmul(grad_qk, keys).view(dq_tile.shape))
        for full, left, right in ((dk, grad_qk, q_rows), (dv, weights, grad_rows)):
            part = full[tile.batch, tile.kv_heads, tile.key_range]
            part += _matmul(left.mT, right).view(part.shape)
    return dq, dk.to(k.dtype), dv.to(v.dtype)


def tiled_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *rest: Any,
    kernels: TileKernels = _DEFAULT_KERNELS,
    eager: Callable[..., Tensor] | None = None,
    **keyword_options: Any,
) -> Tensor:
    """Compute `dot_product_attention` one tile at a time; none of the tensors may be empty.

    `eager` is the same function of q, k and v in eager torch, for second derivatives.
    """
    options = Options(*rest, **keyword_options)
    op: Op[..., Any] = dot_product_attention

    def forward(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return _forward(q, k, v, options, kernels)

    def backward(grad_out: Tensor, *saved: Any) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v, out, stats, _ = saved
        # torch.func.vjp of a score function that is not compiled fails where saved tensors have hooks.
        with _torch.without_saved_tensor_hooks():
            return _backward(grad_out, out, stats, q, k, v, options, kernels)

    def reference(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return op.reference(q, k, v, *options[:-1])  # type: ignore[no-any-return]

    return run_candidate(q, k, v, forward, backward, eager or reference)


def _unsupported_reason(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> str | None:
    if 0 in (q.numel(), k.numel(), v.numel()):
        return "an empty tensor"
    options = Options(*rest)
    if wants_gradient(options.mask, options.slopes):
        return "mask or slopes require a gradient"
    return None


def _is_best(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> bool:
    options = Options(*rest)
    keys = k.shape[2]
    scores = q.shape[0] * q.shape[1] * q.shape[2] * keys
    is_fast_16_bit = q.dtype.itemsize == 2 and q.device.type == "cpu" and q.dtype in processor().onednn
    if q.is_cuda and q.dtype != torch.float64 and unsupported_reason(q, k, v, *rest) is None:
        return False  # flash is available
    # torch's SDPA has neither option; without tiles all scores would be in memory at once.
    if options.seed is not None:
        return scores >= _MIN_SCORES_DROPOUT
    if options.softcap is not None:
        return scores >= (_MIN_SCORES_SOFTCAP_16_BIT if is_fast_16_bit else _MIN_SCORES_SOFTCAP)
    if options.before is None or options.after is None or q.device.type != "cpu":
        return False
    visible_keys = options.before + options.after + 1
    return 8 * visible_keys <= keys and keys >= (
        _MIN_KEYS_WINDOW_16_BIT if is_fast_16_bit else _MIN_KEYS_WINDOW
    )


dot_product_attention.candidate("tiled", when=_unsupported_reason, best=_is_best, differentiable=True)(
    tiled_attention
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

    def size_arg(self, value: int, *, is_argument: bool = False) -> str:
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

        return BuiltKernels(dict.fromkeys(kernels, ""), dict.fromkeys(kernels, launcher_of(launch)))

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
        config = candidate_configs(q, k, v, Options(*rest)._replace(score=score))[0]
        out = flash_with_score(compiled, score, *args, blocks=parse_blocks(config))
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
