"""The candidate ``tiled`` of attention: matrix products, and kernels made for what is between them.

A tile is some queries and the keys that they see, of as many heads as fit, so that memory grows with the
length and not with its square. Its scores become weights in one generated kernel, whatever the options; the
backward makes them again from each query's maximum and the logarithm of its sum of exponentials. These are
kept apart: beside a mask's finfo.min as the maximum nothing would be left of the logarithm. The products are
`burnt.kernels.matmul`'s, whatever that chooses.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from burnt import _torch
from burnt.codegen import fuse
from burnt.codegen.render.c import prelude
from burnt.codegen.runtime import c_library
from burnt.codegen.runtime.c_compiler import find_compiler
from burnt.device import processor
from burnt.kernels.dispatch.op import Op
from burnt.kernels.interface.tuning_key import wants_gradient
from burnt.kernels.ops.attention.flash import why_not_here
from burnt.kernels.ops.attention.reference import Score, dot_product_attention, intervals, kept
from burnt.kernels.ops.matmul import matmul

__all__ = ["Kernels", "Tiled", "kernels_of", "tiled"]

# Elements of a tile's scores; 1 << 18 takes a fifth longer at 8 heads of 2048 x 64 (2 threads of a Zen 3).
_TILE = 1 << 20
_FEWEST = 16  # queries of a tile
_STEP = 64  # queries and keys of tiles are multiples of it: sizes are few, since each has a plan of its own
_STAIRS = 8  # tiles that causal queries are cut into, each of which sees less than the next

# Scores from which tiles are faster than the definition's plain calls, with dropout (forward and backward 1.3
# to 1.5 times as fast as torch's at 8 and 12 heads of 512 to 2048 x 64, 2 threads of a Xeon) and with a soft
# cap (1.6 at 8 causal heads of 2048; 0.8 at 2 x 12 of 512). The latter in 16 bits, which tiles multiply in
# float32, for their memory alone where torch has fast products of 16 bits.
_LARGE_WITH_DROPOUT, _LARGE, _LARGE_IN_16_BITS = 1 << 12, 1 << 24, 1 << 26
# Keys from which a window of an eighth of them is faster by tiles than with a mask, which skips nothing.
_LONG, _LONG_IN_16_BITS = 1 << 11, 1 << 13


class _Extra(NamedTuple):
    """What a tile's scores depend on beside the products: tensors that are cut to it, and numbers.

    Args:
        mask: ``[batch, heads, queries, keys]``.
        first, past: ``[batch, 1, queries, 1]``, or None where all is seen.
        at: ``[batch, 1, queries, 1]``, the queries' places among the keys.
        slopes: ``[heads, 1, 1]``.
        stays: ``[batch, heads, queries, keys]`` booleans, what dropout leaves.
        b, h, i, j: indices, ``[batch, 1, 1, 1]``, ``[heads, 1, 1]``, ``[queries, 1]`` and ``[keys]``.
        scale, softcap: numbers, as in the op.
        larger: what is left by dropout is multiplied by it.
    """

    mask: Tensor | None
    first: Tensor | None
    past: Tensor | None
    at: Tensor | None
    slopes: Tensor | None
    stays: Tensor | None
    b: Tensor
    h: Tensor
    i: Tensor
    j: Tensor
    scale: float
    softcap: float | None
    larger: float


def _scores(products: Tensor, extra: _Extra, score: Score | None) -> Tensor:
    s = products * extra.scale
    if extra.softcap is not None:
        s = torch.tanh(s / extra.softcap) * extra.softcap
    if score is not None:
        s = score(s, extra.b, extra.h, extra.i, extra.j).to(s.dtype).expand_as(s)
    if extra.slopes is not None and extra.at is not None:
        s = s - extra.slopes * (extra.at - extra.j).abs()
    if extra.mask is not None:
        added = extra.mask.dtype != torch.bool
        s = s + extra.mask.to(s.dtype) if added else torch.where(extra.mask, s, -torch.inf)
    if extra.first is not None and extra.past is not None:
        s = torch.where((extra.j >= extra.first) & (extra.j < extra.past), s, -torch.inf)
    return s


class Kernels(NamedTuple):
    """What is made of a tile's products, for one function of the scores.

    Args:
        weights: ``(products, *extra) -> (weights, top, log)``: maxima and logarithms of sums, both
            ``[batch, heads, queries, 1]``.
        gradients: ``(products, of_weights, top, log, dots, *extra) -> (weights, of_products)``.
    """

    weights: Callable[..., tuple[Tensor, Tensor, Tensor]]
    gradients: Callable[..., tuple[Tensor, Tensor]]


def kernels_of(score: Score | None) -> Kernels:
    """The kernels for a function of the scores."""

    @fuse
    def attention_weights(products: Tensor, *given: Any) -> tuple[Tensor, Tensor, Tensor]:
        extra = _Extra(*given)
        s = _scores(products, extra, score)
        top = s.amax(-1, keepdim=True)
        top = torch.where(top == -torch.inf, 0.0, top)
        raised = torch.exp(s - top)
        total = raised.sum(-1, keepdim=True)
        nothing = total == 0
        weights = raised * torch.where(nothing, 0.0, 1 / total)
        if extra.stays is not None:
            weights = torch.where(extra.stays, weights * extra.larger, 0.0)
        return weights, torch.where(nothing, torch.inf, top), torch.where(nothing, 0.0, torch.log(total))

    @fuse
    def attention_gradients(
        products: Tensor, of_weights: Tensor, top: Tensor, log: Tensor, dots: Tensor, *given: Any
    ) -> tuple[Tensor, Tensor]:
        extra = _Extra(*given)
        s, pulled = torch.func.vjp(lambda x: _scores(x, extra, score), products)[:2]
        weights = torch.exp((s - top) - log)
        dropped = weights
        if extra.stays is not None:
            dropped = torch.where(extra.stays, weights * extra.larger, 0.0)
            of_weights = torch.where(extra.stays, of_weights * extra.larger, 0.0)
        return dropped, pulled(weights * (of_weights - dots))[0]

    return Kernels(attention_weights, attention_gradients)


_plain = kernels_of(None)


class _Options(NamedTuple):
    """The op's options, and a function of the scores."""

    mask: Tensor | None = None
    before: int | None = None
    after: int | None = None
    bottom_right: bool = False
    scale: float | None = None
    softcap: float | None = None
    slopes: Tensor | None = None
    lengths: Tensor | None = None
    q_starts: Tensor | None = None
    k_starts: Tensor | None = None
    dropout: float = 0.0
    seed: Tensor | None = None
    score: Score | None = None

    @property
    def limited(self) -> bool:
        """Whether a query's place limits what it sees."""
        tables = (self.before, self.after, self.lengths, self.q_starts)
        return any(limit is not None for limit in tables)


class _Tile(NamedTuple):
    """Some queries of some heads.

    Args:
        batch: of it.
        heads: of the queries.
        shared: their heads of keys and values.
        rows: queries.
        columns: keys, all that the queries see.
        extra: what else the scores depend on.
    """

    batch: slice
    heads: slice
    shared: slice
    rows: slice
    columns: slice
    extra: _Extra


def _divisor(count: int, most: int) -> int:
    """The largest divisor of a count that is not above another: all tiles are of one size."""
    return next(n for n in range(min(count, max(most, 1)), 0, -1) if count % n == 0)


def _sizes(q: Tensor, k: Tensor, options: _Options) -> tuple[int, int, int]:
    """Of the batch, of the heads of keys and of the queries: how many a tile has."""
    batch, shared, queries, keys = q.shape[0], k.shape[1], q.shape[2], k.shape[2]
    group = q.shape[1] // shared
    height, seen = queries, keys
    if options.before is not None and options.after is not None:
        width = options.before + options.after + 1
        height = min(_stepped(width), queries)
        seen = min(_stepped(width + height) + _STEP, keys)
    elif options.before is not None or options.after is not None:
        height = min(_stepped(-(-queries // _STAIRS)), queries)
    height = min(height, max(_TILE // (seen * group), _FEWEST))
    heads = _TILE // (seen * group * height)
    of_shared = _divisor(shared, heads)
    return _divisor(batch, heads // shared), of_shared, height


def _stepped(count: int) -> int:
    return -(-count // _STEP) * _STEP


def _tiles(q: Tensor, k: Tensor, options: _Options, inside: torch.dtype) -> Iterator[_Tile]:
    """The tiles, those of the same heads of keys one after the other."""
    batch, all_heads, queries, size = q.shape
    shared, keys = k.shape[1], k.shape[2]
    group = all_heads // shared
    of_batch, of_shared, height = _sizes(q, k, options)
    places = (options.bottom_right, options.lengths, options.q_starts, options.k_starts)
    at = first = past = None
    if options.limited or options.slopes is not None:
        found = intervals(q, k, options.before, options.after, *places)
        at, first, past = (t.expand(batch, -1)[:, None, :, None] for t in found)
    ends = None
    # Where tensors lie elsewhere, asking where intervals end would wait for the device.
    if options.limited and q.device.type == "cpu" and first is not None and past is not None:
        ends = first[..., 0].squeeze(1).tolist(), past[..., 0].squeeze(1).tolist()
    mask, slopes = options.mask, options.slopes
    if mask is not None:
        mask = mask.detach().expand(batch, all_heads, queries, keys)
    if slopes is not None:
        slopes = slopes.detach().to(inside).view(-1, 1, 1)
    indices = [torch.arange(n, dtype=torch.int32, device=q.device) for n in (batch, all_heads, queries, keys)]
    of_b, of_h, of_i = (t.view(-1, *(1,) * n) for t, n in zip(indices, (3, 2, 1), strict=False))
    scale = size**-0.5 if options.scale is None else float(options.scale)
    larger = 1 / (1 - options.dropout) if options.dropout < 1 else 0.0
    for b, head, start in itertools.product(
        range(0, batch, of_batch), range(0, shared, of_shared), range(0, queries, height)
    ):
        bs, heads = slice(b, b + of_batch), slice(head * group, (head + of_shared) * group)
        rows = slice(start, min(start + height, queries))
        begin, end = 0, keys
        if ends is not None:
            begin = min(first[start] for first in ends[0][bs]) // _STEP * _STEP
            end = min(_stepped(max(past[rows.stop - 1] for past in ends[1][bs])), keys)
            begin, end = min(begin, keys - 1), max(end, min(begin, keys - 1) + 1)
        columns = slice(begin, end)
        stays = None
        if options.seed is not None:
            shape = (of_batch * of_shared * group, rows.stop - start, end - begin)
            made = _stays(options, b * all_heads + heads.start, start, begin, shape)
            stays = made.view(of_batch, -1, *shape[1:])
        extra = _Extra(
            None if mask is None else mask[bs, heads, rows, columns],
            None if first is None or not options.limited else first[bs, :, rows],
            None if past is None or not options.limited else past[bs, :, rows],
            None if at is None or slopes is None else at[bs, :, rows],
            None if slopes is None else slopes[heads],
            stays,
            of_b[bs],
            of_h[heads],
            of_i[rows],
            indices[3][columns],
            scale,
            options.softcap,
            larger,
        )
        yield _Tile(bs, heads, slice(head, head + of_shared), rows, columns, extra)


# --- dropout ----------------------------------------------------------------------------------------------

# As `burnt.kernels.ops.attention.reference.kept`: a row's words are those of counters that follow each other.
_SOURCE = r"""
void stays(const burnt_arg *a)
{
    uint8_t *restrict y = a[0].p;  /* [heads, rows, columns] */
    const int64_t seed = a[1].i, head = a[2].i, row = a[3].i, group = a[4].i;
    const int64_t heads = a[5].i, rows = a[6].i, columns = a[7].i;
    const uint32_t least = (uint32_t)a[8].i;  /* of the upper 24 bits */
    #pragma omp parallel for schedule(static)
    for (int64_t at = 0; at < heads * rows; at++) {
        uint32_t words[1024];
        uint8_t *restrict to = y + at * columns;
        for (int64_t from = 0; from < columns; from += 1024) {
            const int64_t count = columns - from < 1024 ? columns - from : 1024;
            const int64_t counter = ((row + at % rows) << 32) + group + from / 4;
            philox_fill(words, seed, counter, (count + 3) / 4, (uint32_t)(head + at / rows));
            for (int64_t k = 0; k < count; k++) to[from + k] = (words[k] >> 8) >= least;
        }
    }
}
"""


def _stays(options: _Options, head: int, row: int, column: int, shape: tuple[int, int, int]) -> Tensor:
    """Which weights of a tile dropout leaves, booleans; `head` is counted over the batch."""
    assert options.seed is not None
    if options.seed.device.type != "cpu" or find_compiler() is None:
        group = shape[0]
        whole = kept(options.seed, (1, head + group, *shape[1:]), options.dropout, row, column)
        return whole[0, head:]
    made = torch.empty(shape, dtype=torch.bool)
    # The least of the 24 bits that is not below, as a comparison in float32 has it.
    probability = float(torch.tensor(options.dropout, dtype=torch.float32))
    least = -int(-probability * (1 << 24) // 1)
    numbers = (int(options.seed), head, row, column // 4, *shape, least)
    _launcher()(made.data_ptr(), *numbers)
    return made


@functools.cache
def _launcher() -> Callable[..., Any]:
    source = c_library.PREAMBLE + prelude.source() + _SOURCE
    return c_library.launcher(c_library.load(source, ["stays"])["stays"], pointers=1, ints=8)


# --- forward and backward ---------------------------------------------------------------------------------


def _rows(x: Tensor, tile: _Tile, inside: torch.dtype) -> Tensor:
    """A tile's queries, those that share a head of keys together: ``[shared, group * queries, size]``."""
    part = x[tile.batch, tile.heads, tile.rows]
    many = (tile.batch.stop - tile.batch.start) * (tile.shared.stop - tile.shared.start)
    return part.reshape(many, -1, x.shape[-1]).to(inside)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """``[shared, rows, terms] @ [shared, terms, columns]``."""
    return matmul(a[0], b[0])[None] if len(a) == 1 else matmul(a, b)


class _Shared:
    """Keys and values that tiles share, in the dtype that is computed in; kept until the next."""

    def __init__(self, k: Tensor, v: Tensor, inside: torch.dtype) -> None:
        self.k, self.v, self.inside = k, v, inside
        self.of: tuple[int, int] | None = None
        self.keys, self.values = k, v

    def at(self, tile: _Tile) -> tuple[Tensor, Tensor]:
        """Keys and values that the tile sees, ``[shared, keys, size]``."""
        of = tile.batch.start, tile.shared.start
        if self.of != of:
            self.of = of
            self.keys, self.values = (
                t[tile.batch, tile.shared].to(self.inside).flatten(0, 1).contiguous()
                for t in (self.k, self.v)
            )
        return self.keys[:, tile.columns], self.values[:, tile.columns]


def _forward(q: Tensor, k: Tensor, v: Tensor, options: _Options, kernels: Kernels) -> tuple[Tensor, Tensor]:
    """The results, and each query's maximum and logarithm of its sum of exponentials, ``[2, B, H, L]``."""
    inside = torch.promote_types(q.dtype, torch.float32)
    out = q.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[3]).transpose(1, 2)
    stats = q.new_empty(2, *q.shape[:3], dtype=inside)
    shared = _Shared(k, v, inside)
    for tile in _tiles(q, k, options, inside):
        keys, values = shared.at(tile)
        there = out[tile.batch, tile.heads, tile.rows]
        products = _product(_rows(q, tile, inside), keys.mT).view(*there.shape[:3], -1)
        weights, *found = kernels.weights(products, *tile.extra)
        there.copy_(_product(_joined(weights, values), values).view(there.shape))
        for whole, part in zip(stats, found, strict=True):
            whole[tile.batch, tile.heads, tile.rows] = part.squeeze(-1)
    return out, stats


def _joined(of_heads: Tensor, shared: Tensor) -> Tensor:
    """``[batch, heads, queries, keys]`` with what shares keys together."""
    return of_heads.view(len(shared), -1, of_heads.shape[-1])


def _backward(
    pull: Tensor,
    out: Tensor,
    stats: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    options: _Options,
    kernels: Kernels,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of queries, keys and values."""
    inside = stats.dtype
    of_q = torch.empty_like(q)
    of_k, of_v = (torch.zeros(t.shape, dtype=inside, device=t.device) for t in (k, v))
    shared = _Shared(k, v, inside)
    for tile in _tiles(q, k, options, inside):
        keys, values = shared.at(tile)
        rows, pulls = _rows(q, tile, inside), _rows(pull, tile, inside)
        top, log = stats[:, tile.batch, tile.heads, tile.rows].unsqueeze(-1)
        products = _product(rows, keys.mT).view(*top.shape[:3], -1)
        of_weights = _product(pulls, values.mT).view(*top.shape[:3], -1)
        dots = (pulls * _rows(out, tile, inside)).sum(-1).view(top.shape)
        made = kernels.gradients(products, of_weights, top, log, dots, *tile.extra)
        weights, of_products = (_joined(t, keys) for t in made)
        there = of_q[tile.batch, tile.heads, tile.rows]
        there.copy_(_product(of_products, keys).view(there.shape))
        for whole, left, right in ((of_k, of_products, rows), (of_v, weights, pulls)):
            part = whole[tile.batch, tile.shared, tile.columns]
            part += _product(left.mT, right).view(part.shape)
    return of_q, of_k.to(k.dtype), of_v.to(v.dtype)


class Tiled(torch.autograd.Function):
    """Attention by tiles in the autograd graph."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, options: _Options, kernels: Kernels, plain: Any
    ) -> Tensor:
        """Go through the tiles. `plain` is the same of queries, keys and values in plain torch."""
        out, stats = _forward(q, k, v, options, kernels)
        ctx.save_for_backward(q, k, v, out, stats)
        ctx.options, ctx.kernels, ctx.plain = options, kernels, plain
        return out

    @staticmethod
    @_torch.without_autocast()
    def backward(ctx: Any, pull: Tensor) -> Any:
        """Go through them again; for second derivatives, those of the definition."""
        q, k, v, out, stats = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():
            inputs = [t for t, w in zip((q, k, v), wanted, strict=True) if w]
            found = iter(torch.autograd.grad(ctx.plain(q, k, v), inputs, pull, create_graph=True))
            return (*(next(found) if w else None for w in wanted), None, None, None)
        # Derivatives of functions of the scores, where these are not compiled, cannot be taken beside hooks.
        with _torch.without_saved_tensor_hooks():
            made = _backward(pull, out, stats, q, k, v, ctx.options, ctx.kernels)
        return (*(g if w else None for g, w in zip(made, wanted, strict=True)), None, None, None)


def tiled(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *rest: Any,
    kernels: Kernels = _plain,
    plain: Callable[..., Tensor] | None = None,
    **given: Any,
) -> Tensor:
    """`dot_product_attention` by tiles; none of the tensors is empty.

    Args:
        q: ``[B, H, L, D]``.
        k: ``[B, K, S, D]``.
        v: ``[B, K, S, E]``.
        rest: the op's other arguments.
        kernels: what is made of products.
        plain: the same of q, k and v in plain torch, for second derivatives.
        given: the op's other arguments, by name.
    """
    options = _Options(*rest, **given)
    if not wants_gradient(q, k, v):
        with torch.no_grad():
            return _forward(q, k, v, options, kernels)[0]
    if plain is None:
        op: Op[..., Any] = dot_product_attention

        def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return op.reference(q, k, v, *options[:-1])  # type: ignore[no-any-return]

    return Tiled.apply(q, k, v, options, kernels, plain)  # type: ignore[no-any-return, no-untyped-call]


def _why_not(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> str | None:
    if 0 in (q.numel(), k.numel(), v.numel()):
        return "an empty tensor"
    options = _Options(*rest)
    if wants_gradient(options.mask, options.slopes):
        return "a gradient of mask or slopes is wanted"
    return None


def _best(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> bool:
    options = _Options(*rest)
    keys = k.shape[2]
    scores = q.shape[0] * q.shape[1] * q.shape[2] * keys
    narrow = q.dtype.itemsize == 2 and q.device.type == "cpu" and q.dtype in processor().onednn
    if q.is_cuda and q.dtype != torch.float64 and why_not_here(q, k, v, *rest) is None:
        return False  # there is flash
    # torch's own call has neither; without tiles all scores would be there at a time.
    if options.seed is not None:
        return scores >= _LARGE_WITH_DROPOUT
    if options.softcap is not None:
        return scores >= (_LARGE_IN_16_BITS if narrow else _LARGE)
    if options.before is None or options.after is None or q.device.type != "cpu":
        return False
    seen = options.before + options.after + 1
    return 8 * seen <= keys and keys >= (_LONG_IN_16_BITS if narrow else _LONG)


dot_product_attention.candidate("tiled", when=_why_not, best=_best, differentiable=True)(tiled)
