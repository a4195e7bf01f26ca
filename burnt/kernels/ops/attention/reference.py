"""The op beneath `burnt.kernels.attention`: `dot_product_attention`, its definition and torch's own call.

What a query sees of the keys by its place (causal, sliding window, lengths, packed sequences) is one interval
of keys for each query: `intervals`. Candidates ask for nothing else, and skip what lies outside.

Axes: B batch, H heads of the queries, K heads of keys and values (H is a multiple of K), L queries, S keys,
D and E sizes of a head in queries and keys, and in values; N sequences that are packed into one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt import _torch
from burnt.errors import InputRuntimeError, InputTypeError, InputValueError
from burnt.kernels.autotune.accuracy import Part
from burnt.kernels.dispatch.op import op
from burnt.kernels.interface.autocast import autocast_dtype, cast_all
from burnt.kernels.interface.checks import check_floating, check_one_device, check_one_dtype
from burnt.kernels.interface.tuning_key import wants_gradient

__all__ = [
    "Intervals",
    "Score",
    "check_numbers",
    "defined",
    "dot_product_attention",
    "intervals",
    "is_causal_alone",
    "kept",
    "recorded",
    "scored",
]

_NAME = "dot_product_attention"

Score = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""What becomes of scores: of them, and of the indices of batch, head, query and key, int32."""


class Intervals(NamedTuple):
    """Which keys each query sees: those from `first` to before `past`, both ``[B or 1, L]``, int64.

    `at`, of the same shape, is the query's own place among the keys, which windows and distances count from.
    """

    at: Tensor
    first: Tensor
    past: Tensor


def intervals(
    q: Tensor,
    k: Tensor,
    before: int | None,
    after: int | None,
    bottom_right: bool,
    lengths: Tensor | None,
    q_starts: Tensor | None,
    k_starts: Tensor | None,
) -> Intervals:
    """Which keys each query sees by its place; both ends grow with the query's index.

    Args:
        q: ``[B, H, L, D]``.
        k: ``[B, K, S, D]``.
        before: how many keys before its own place a query sees; None for all.
        after: how many after it; 0 is causal.
        bottom_right: the last query has the last key's place; otherwise the first has the first one's.
        lengths: ``[B]``, how many keys there are.
        q_starts: ``[N + 1]``, where packed sequences of queries begin, and where the last ends.
        k_starts: the same of their keys.

    >>> x = torch.zeros(1, 1, 3, 1)
    >>> intervals(x, x, 1, 0, False, None, None, None)[1:]
    (tensor([[0, 0, 1]]), tensor([[1, 2, 3]]))
    """
    queries, keys = q.shape[2], k.shape[2]
    place = torch.arange(queries, device=q.device)[None]
    if q_starts is not None and k_starts is not None:
        starts, of_keys = q_starts.to(torch.int64), k_starts.to(torch.int64).clamp(0, keys)
        which = (place[0, :, None] >= starts[None, 1:-1]).sum(1)
        q_first, q_past, first, past = (
            t[which][None] for t in (starts[:-1], starts[1:], of_keys[:-1], of_keys[1:])
        )
        at = place - q_first + first
        if bottom_right:
            at = at + (past - first) - (q_past - q_first)
        # What belongs to no sequence sees nothing.
        first = torch.where(place >= q_past, past, first)
        past = torch.where(place < q_first, first, past)
    else:
        first = torch.zeros_like(place)
        past = first + keys if lengths is None else lengths.to(torch.int64).clamp(0, keys)[:, None] + first
        first = first.expand_as(past)
        at = place + (past - queries) if bottom_right else place.expand_as(past)
    begin = first if before is None else torch.minimum(torch.maximum(at - before, first), past)
    end = past if after is None else torch.minimum(torch.maximum(at + after + 1, begin), past)
    return Intervals(at, begin, end)


def kept(seed: Tensor, shape: Sequence[int], dropout: float, rows: int = 0, columns: int = 0) -> Tensor:
    """Which attention weights dropout leaves: booleans that are a function of a seed and a weight's place.

    Philox4x32-10 (Salmon et al., 2011) under the seed. Four keys that are neighbours share the counter
    ``(key // 4, query, head of all of the batch, 0)``; a weight stays where the upper 24 bits of its word are
    ``dropout`` or more of their range.

    Args:
        seed: ``[]``, int64.
        shape: ``[B, H, queries, keys]`` of the part that is wanted.
        dropout: the probability of a zero.
        rows: the first query of the part.
        columns: its first key, a multiple of 4.
    """
    batch, heads, queries, keys = shape
    device, half = seed.device, 0xFFFFFFFF
    groups = (keys + 3) // 4
    head = torch.arange(batch * heads, device=device).view(batch, heads, 1, 1)
    query = torch.arange(rows, rows + queries, device=device).view(-1, 1)
    group = torch.arange(columns // 4, columns // 4 + groups, device=device)
    nothing = head * 0 + query * 0 + group * 0
    words = [nothing + group, nothing + query, nothing + head, nothing]
    low, high = seed & half, (seed >> 32) & half
    for turn in range(10):
        a, b = words[0] * 0xD2511F53, words[2] * 0xCD9E8D57  # 64 bits, whatever their sign says
        words = [
            ((b >> 32) & half) ^ words[1] ^ ((low + turn * 0x9E3779B9) & half),
            b & half,
            ((a >> 32) & half) ^ words[3] ^ ((high + turn * 0xBB67AE85) & half),
            a & half,
        ]
    drawn = torch.stack(words, -1).flatten(-2)[..., :keys] >> 8
    return drawn.to(torch.float32) * 2.0**-24 >= dropout


# --- what does not fit ------------------------------------------------------------------------------------


def _refuse(
    what: str, expected: object, found: object, hint: str | None = None, *, value: bool = False
) -> None:
    kind = InputValueError if value else InputRuntimeError
    raise kind(what, where="burnt.kernels.attention", expected=expected, found=found, hint=hint)


def _check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    before: int | None,
    after: int | None,
    bottom_right: bool,
    scale: float | None,
    softcap: float | None,
    slopes: Tensor | None,
    lengths: Tensor | None,
    q_starts: Tensor | None,
    k_starts: Tensor | None,
    dropout: float,
    seed: Tensor | None,
) -> None:
    more = {"mask": mask, "slopes": slopes, "lengths": lengths, "q_starts": q_starts, "k_starts": k_starts}
    check_one_device(_NAME, q=q, k=k, v=v, seed=seed, **more)
    check_floating(_NAME, q=q, k=k, v=v, slopes=slopes)
    check_one_dtype(_NAME, q=q, k=k, v=v)
    _check_shapes(q, k, v)
    batch, heads, queries, keys = q.shape[0], q.shape[1], q.shape[2], k.shape[2]
    if mask is not None:
        if mask.dtype != torch.bool and not mask.is_floating_point():
            hint = "mask != 0 lets a query see what an integer mask marks with 1"
            _refuse("a mask of attention is boolean or floating", "bool: True is seen; floats are added",
                    mask.dtype, hint)  # fmt: skip
        shape = (batch, heads, queries, keys)
        fits = mask.dim() <= 4 and all(
            m in (1, n) for m, n in zip(mask.shape[::-1], shape[::-1], strict=False)
        )
        if not fits:
            _refuse(
                "the mask does not fit queries and keys", f"what broadcasts to {shape}", tuple(mask.shape)
            )
    for name, many in ("before", before), ("after", after):
        if many is not None and many < 0:
            _refuse(f"{name} counts keys", "0 or more, or None", many, value=True)
    for name, tensor, wanted in (("slopes", slopes, heads), ("lengths", lengths, batch)):
        if tensor is not None and tuple(tensor.shape) != (wanted,):
            _refuse(f"{name} of attention have another shape", (wanted,), tuple(tensor.shape))
    for name, tensor in ("lengths", lengths), ("q_starts", q_starts), ("k_starts", k_starts):
        if tensor is not None and tensor.dtype not in (torch.int32, torch.int64):
            _refuse(f"{name} of attention are no indices", "int32 or int64", tensor.dtype, f"{name}.long()")
    _check_packed(batch, lengths, q_starts, k_starts)
    check_numbers(softcap, dropout)
    if seed is None and dropout > 0:
        hint = "attention(..., dropout=p) draws one"
        _refuse("dropout draws its numbers from a seed", "seed=", "none", hint, value=True)
    if seed is not None and (seed.dtype != torch.int64 or seed.dim()):
        _refuse("the seed of dropout is one integer", "int64 []", f"{seed.dtype} {list(seed.shape)}")


def check_numbers(softcap: float | None, dropout: float) -> None:
    """What is looked at in each call: numbers are no part of what a call is known by.

    Raises:
        InputValueError: there is no such cap or probability.
    """
    if softcap is not None and not softcap > 0:
        _refuse("a cap of the scores is none", "a number above 0, or None", softcap, value=True)
    if not 0 <= dropout <= 1:
        _refuse("the probability of dropout is none", "a number from 0 to 1", dropout, value=True)


def _look(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> None:
    """Lengths and starts lie among queries and keys."""
    lengths, q_starts, k_starts = rest[7:10]
    if lengths is not None and lengths.numel():
        least, most = (int(n) for n in torch.aminmax(lengths))
        if least < 0 or most > k.shape[2]:
            _refuse("lengths of attention are not among the keys", f"0 to {k.shape[2]}",
                    least if least < 0 else most, value=True)  # fmt: skip
    for name, starts, count in ("q_starts", q_starts, q.shape[2]), ("k_starts", k_starts, k.shape[2]):
        if starts is None:
            continue
        ends = int(starts[0]), int(starts[-1])
        if ends[0] < 0 or ends[1] > count or bool((starts.diff() < 0).any()):
            expected = f"numbers from 0 to {count}, none less than the one before"
            _refuse(f"{name} of attention are not in order", expected, starts.tolist(), value=True)


def _check_shapes(q: Tensor, k: Tensor, v: Tensor) -> None:
    found = f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}"
    if not q.dim() == k.dim() == v.dim() == 4:
        _refuse("attention is of batches of heads", "q [B, H, L, D], k [B, K, S, D], v [B, K, S, E]", found,
                "x.unflatten(-1, (heads, -1)).transpose(1, 2) makes heads of [B, L, heads * D]")  # fmt: skip
    if q.shape[0] != k.shape[0] or k.shape[:3] != v.shape[:3] or q.shape[3] != k.shape[3]:
        _refuse(
            "queries, keys and values do not fit", "q [B, H, L, D], k [B, K, S, D], v [B, K, S, E]", found
        )
    if (k.shape[1] == 0 and q.shape[1]) or (k.shape[1] and q.shape[1] % k.shape[1]):
        _refuse("heads of the queries cannot share heads of the keys evenly", "H, a multiple of K",
                f"{q.shape[1]} and {k.shape[1]}")  # fmt: skip


def _check_packed(
    batch: int, lengths: Tensor | None, q_starts: Tensor | None, k_starts: Tensor | None
) -> None:
    if (q_starts is None) != (k_starts is None):
        given = "q_starts" if k_starts is None else "k_starts"
        _refuse("packed sequences have starts of queries and of keys", "both, or none", f"{given} alone",
                "k_starts=q_starts, where a sequence attends to itself")  # fmt: skip
    if q_starts is None or k_starts is None:
        return
    if q_starts.dim() != 1 or q_starts.shape != k_starts.shape or q_starts.shape[0] < 2:
        _refuse("starts of packed sequences have another shape", "[N + 1] both, N of at least 1",
                f"q_starts {list(q_starts.shape)}, k_starts {list(k_starts.shape)}")  # fmt: skip
    if batch != 1 or lengths is not None:
        found = f"a batch of {batch}" if batch != 1 else "lengths as well"
        _refuse("packed sequences lie in a batch of one", "q [1, H, L, D], and no lengths", found)


# --- the definition ---------------------------------------------------------------------------------------


def _examples(device: torch.device) -> list[tuple[object, ...]]:
    made: list[tuple[object, ...]] = []
    for batch, heads, kv, length, size, more in [
        (2, 12, 12, 512, 64, ()),
        (2, 12, 12, 512, 64, (None, None, 0)),
        (1, 8, 2, 1024, 128, (None, None, 0)),
        (2, 4, 2, 37, 20, (None, 8, 0, True, None, 30.0)),
    ]:
        q = torch.randn(batch, heads, length, size, device=device)
        k, v = (torch.randn(batch, kv, length, size, device=device) for _ in "kv")
        made.append((q, k, v, *more))
    return made


def seen(
    q: Tensor,
    k: Tensor,
    before: int | None,
    after: int | None,
    bottom_right: bool,
    lengths: Tensor | None,
    q_starts: Tensor | None,
    k_starts: Tensor | None,
) -> Tensor | None:
    """Which keys each query sees by its place as booleans, ``[B or 1, 1, L, S]``; None where it is all."""
    if before is None and after is None and lengths is None and q_starts is None:
        return None
    _, first, past = intervals(q, k, before, after, bottom_right, lengths, q_starts, k_starts)
    key = torch.arange(k.shape[2], device=k.device)
    return ((key >= first[..., None]) & (key < past[..., None]))[:, None]


def distances(
    q: Tensor,
    k: Tensor,
    bottom_right: bool,
    lengths: Tensor | None,
    q_starts: Tensor | None,
    k_starts: Tensor | None,
) -> Tensor:
    """How far apart queries and keys are, ``[B or 1, 1, L, S]``."""
    at = intervals(q, k, None, None, bottom_right, lengths, q_starts, k_starts).at
    return (at[..., None] - torch.arange(k.shape[2], device=k.device)).abs()[:, None]


def heads_inside(made: Tensor) -> Tensor:
    """``[B, H, L, E]`` that lies in memory as ``[B, L, H, E]``: joining the heads is a view."""
    return made.transpose(1, 2).contiguous().transpose(1, 2)


# Maxima of a query's scores beyond which torch's own call is not taken for gradients. Its fused backward has
# of a query the maximum plus the logarithm of the sum as one float32: from here on that is off by 1e-4 or
# more, and with it what the weights sum to. Beside finfo.min, with which masks hide a query's every key, the
# logarithm is lost. (On GPUs the forward, too, may be NaN for such queries: pytorch/pytorch#110213.)
_FAR = 1e3


def _can_look(*tensors: Tensor | None) -> bool:
    """Whether values are there to be looked at, without waiting for a device."""
    return (
        not torch.compiler.is_compiling()
        and _torch.is_plain_call()
        and all(type(t) in (Tensor, torch.nn.Parameter) and t.is_cpu for t in tensors if t is not None)
    )


def _narrowed(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to scores, in their dtype: what is no infinity stays none."""
    least = torch.finfo(dtype).min
    if least <= torch.finfo(mask.dtype).min:
        return mask.to(dtype)
    return torch.where(mask == -torch.inf, mask, mask.clamp(min=least)).to(dtype)


def _library(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    before: int | None = None,
    after: int | None = None,
    bottom_right: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    slopes: Tensor | None = None,
    lengths: Tensor | None = None,
    q_starts: Tensor | None = None,
    k_starts: Tensor | None = None,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> Tensor:
    """torch's own call, with one mask for all that it has no arguments for."""
    place = bottom_right, lengths, q_starts, k_starts
    _check_packed(q.shape[0], lengths, q_starts, k_starts)
    # Elsewhere a mask may hold anything, and to look would be to wait: with gradients the definition serves.
    can_look = _can_look(q, k, v, mask)
    exact = wants_gradient(q, k, v, mask, slopes)
    unknown = exact and mask is not None and not _is_bool(mask) and not can_look
    if unknown or softcap is not None or seed is not None or 0 in (q.numel(), k.numel(), v.numel()):
        return dot_product_attention.reference(
            q, k, v, mask, before, after, bottom_right, scale, softcap, slopes, *place[1:], dropout, seed
        )  # fmt: skip
    grouped = q.shape[1] != k.shape[1]
    if is_causal_alone(q, k, mask, before, after, slopes, *place):
        made = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=grouped)
        return heads_inside(made)
    given = mask
    visible = seen(q, k, before, after, *place)
    if mask is not None and not _is_bool(mask):
        exact = exact or mask.dtype.itemsize > q.dtype.itemsize
        mask = _narrowed(mask, q.dtype)
    if slopes is not None:
        bias = (slopes.view(-1, 1, 1) * -distances(q, k, *place)).to(q.dtype)
        mask = (
            bias if mask is None else torch.where(mask, bias, -torch.inf) if _is_bool(mask) else mask + bias
        )
    if visible is not None:
        mask = (
            visible
            if mask is None
            else mask & visible
            if _is_bool(mask)
            else torch.where(visible, mask, -torch.inf)
        )
    if mask is None:
        made = F.scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=grouped)
        return heads_inside(made)
    # A query that sees nothing is let see all, so that no path of torch's makes NaN of it; then it is zero.
    if _is_bool(mask):
        nothing = ~mask.any(-1, keepdim=True)
        mask = mask | nothing
    else:
        top = mask.detach().amax(-1, keepdim=True)
        nothing = top == -torch.inf
        if exact and can_look and bool(((top.abs() > _FAR) & ~nothing).any()):
            return dot_product_attention.reference(
                q, k, v, given, before, after, bottom_right, scale, softcap, slopes, *place[1:], dropout, seed
            )  # fmt: skip
        mask = mask.masked_fill(nothing, 0.0)
    mask = mask.view((1,) * (4 - mask.dim()) + tuple(mask.shape))
    made = F.scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=grouped)
    return heads_inside(torch.where(nothing, 0.0, made))


def _is_bool(mask: Tensor) -> bool:
    return mask.dtype == torch.bool


def is_causal_alone(
    q: Tensor,
    k: Tensor,
    mask: Tensor | None,
    before: int | None,
    after: int | None,
    slopes: Tensor | None,
    bottom_right: bool,
    lengths: Tensor | None,
    q_starts: Tensor | None,
    k_starts: Tensor | None,
) -> bool:
    """Whether torch's own causal attention is all that is asked for."""
    aligned = not bottom_right or q.shape[2] == k.shape[2]
    others = (mask, before, slopes, lengths, q_starts, k_starts)
    return after == 0 and aligned and all(other is None for other in others)


def _library_best(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> bool:
    softcap, seed = rest[5], rest[11]
    return softcap is None and seed is None


def _autocast(dtype: torch.dtype, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Any, ...]:
    """Masks and slopes are added to scores, which are float32 anyway."""
    return (*cast_all(dtype, q, k, v), *rest)


_MOST_SCORES = 1 << 25
"""Scores of a part: the reference holds five times as many in float64 at once, 1.3 GB."""


def _parts(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *rest: Any) -> list[Part] | None:
    """Some heads, of some batches, at a time; one head at the least."""
    slopes, lengths, seed = rest[5], rest[6], rest[10]
    batch, heads, queries, _ = q.shape
    most = max(_MOST_SCORES // max(queries * k.shape[2], 1), 1)
    # Dropout's weights depend on the number of a head.
    if seed is not None or most >= batch * heads or not heads:
        return None
    group = heads // k.shape[1]
    # All heads, or all that share some keys, or some of those.
    step = heads if most >= heads else most // group * group or most
    batches = max(most // heads, 1)
    found = []
    for b in range(0, batch, batches):
        begin = 0
        while begin < heads:
            end = min(begin + step, heads if step >= group else (begin // group + 1) * group)
            of_b, of_h = slice(b, min(b + batches, batch)), slice(begin, end)
            of_k = slice(begin // group, (end - 1) // group + 1)
            of_mask = None if mask is None else _of_broadcast(mask, (of_b, of_h))
            of_rest = (
                *(None,) * 5, None if slopes is None else (of_h,), None if lengths is None else (of_b,),
                *(None,) * (len(rest) - 7),
            )  # fmt: skip
            found.append(Part(((of_b, of_h), (of_b, of_k), (of_b, of_k), of_mask, *of_rest), ((of_b, of_h),)))
            begin = end
    return found


def _of_broadcast(mask: Tensor, index: tuple[slice, slice]) -> tuple[slice, ...]:
    """The part of a mask that broadcasts to a part of ``[B, H, L, S]``."""
    axes = range(max(mask.dim() - 4, 0), mask.dim() - 2)
    return tuple(slice(None) if mask.shape[axis] == 1 else index[axis + 4 - mask.dim()] for axis in axes)


@op(
    check=_check,
    look=_look,
    always_looks=True,
    examples=_examples,
    library=_library,
    library_best=_library_best,
    autocast=_autocast,
    parts=_parts,
)
def dot_product_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    before: int | None = None,
    after: int | None = None,
    bottom_right: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    slopes: Tensor | None = None,
    lengths: Tensor | None = None,
    q_starts: Tensor | None = None,
    k_starts: Tensor | None = None,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> Tensor:
    """The op beneath `attention`, whose options it has in canonical form.

    Args:
        q: ``[B, H, L, D]``, float16, bfloat16, float32 or float64.
        k: ``[B, K, S, D]``.
        v: ``[B, K, S, E]``.
        mask: broadcasts to ``[B, H, L, S]``; boolean, True where a key is seen, or added to the scores.
        before: how many keys before its own place a query sees; None for all.
        after: how many after it; 0 is causal.
        bottom_right: places are counted from the last query and the last key.
        scale: of the scores; None is ``1 / sqrt(D)``.
        softcap: scores `s` become ``softcap * tanh(s / softcap)``.
        slopes: ``[H]``, ALiBi: the distance of query and key, times a slope, is taken from the scores.
        lengths: ``[B]``, how many keys there are.
        q_starts: ``[N + 1]``, where packed sequences of queries begin, and where the last ends.
        k_starts: the same of their keys.
        dropout: the probability of dropping a weight.
        seed: ``[]``, int64, of dropout (`kept`).

    Returns:
        ``[B, H, L, E]``, as `q`, in memory ``[B, L, H, E]``.
    """
    return defined(
        q, k, v, mask, before, after, bottom_right, scale, softcap, slopes, lengths, q_starts, k_starts,
        dropout, seed,
    )  # fmt: skip


def defined(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    before: int | None,
    after: int | None,
    bottom_right: bool,
    scale: float | None,
    softcap: float | None,
    slopes: Tensor | None,
    lengths: Tensor | None,
    q_starts: Tensor | None,
    k_starts: Tensor | None,
    dropout: float,
    seed: Tensor | None,
    score: Score | None = None,
) -> Tensor:
    """`dot_product_attention` in plain torch, with a function of the scores between softcap and slopes."""
    if (narrow := autocast_dtype(q.device.type)) is not None:
        q, k, v = cast_all(narrow, q, k, v)
    inside = torch.promote_types(q.dtype, torch.float32)
    place = bottom_right, lengths, q_starts, k_starts
    groups = q.shape[1] // max(k.shape[1], 1)
    keys, values = (t.repeat_interleave(groups, 1) if groups > 1 else t for t in (k, v))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = q.to(inside) @ keys.to(inside).transpose(-2, -1) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if score is not None:
        places = [torch.arange(n, dtype=torch.int32, device=q.device) for n in scores.shape]
        scores = scored(score, scores, places)
    if slopes is not None:
        scores = scores - slopes.to(inside).view(-1, 1, 1) * distances(q, k, *place)
    if mask is not None:
        scores = torch.where(mask, scores, -torch.inf) if _is_bool(mask) else scores + mask.to(inside)
    visible = seen(q, k, before, after, *place)
    if visible is not None:
        scores = torch.where(visible, scores, -torch.inf)
    # A softmax over nothing is NaN, and so is its gradient; here it is zeros.
    nothing = (scores == -torch.inf).all(-1, keepdim=True)
    weights = torch.where(nothing, 0.0, torch.where(nothing, 0.0, scores).softmax(-1))
    if seed is not None:
        stays = kept(seed, (*q.shape[:3], k.shape[2]), dropout)
        weights = torch.where(stays, weights * (1 / (1 - dropout) if dropout < 1 else 0.0), 0.0)
    return heads_inside((weights @ values.to(inside)).to(q.dtype))


def scored(score: Score, s: Tensor, places: Sequence[Tensor]) -> Tensor:
    """What becomes of scores ``[B, H, L, S]``, for the indices along each axis.

    Raises:
        InputTypeError: the function returns something else than a tensor.
        InputValueError: it is of another shape.
    """
    b, h, i, j = places
    made: object = score(s, b[:, None, None, None], h[:, None, None], i[:, None], j)
    if not isinstance(made, Tensor):
        raise InputTypeError(
            "a score of attention returns no tensor",
            where="burnt.kernels.attention",
            expected="the scores, of the shape of its first argument",
            found=f"{type(made).__name__}: {made!r:.60}",
        )
    shape = (1,) * (s.dim() - made.dim()) + tuple(made.shape)
    if len(shape) != s.dim() or any(n not in (1, m) for n, m in zip(shape, s.shape, strict=True)):
        _refuse("a score of attention returns another shape", f"{list(s.shape)}, that of its first argument",
                list(made.shape), "a score is elementwise: it sums over no axis", value=True)  # fmt: skip
    return made.to(s.dtype).expand_as(s)


def recorded(*args: Any) -> Tensor:
    """The op where calls are recorded: torch's own call, which compilers know, where it has the options."""
    softcap, seed = args[8], args[14]
    return (_library if softcap is None and seed is None else dot_product_attention)(*args)
