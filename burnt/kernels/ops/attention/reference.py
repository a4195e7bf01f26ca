"""`dot_product_attention`, the op behind `burnt.kernels.attention`: checks, eager reference, torch's SDPA.

Causal masks, sliding windows, lengths and packed sequences all limit a query to one interval of keys, which
`intervals` computes. The candidates read only these intervals and skip the keys outside them.

Axes: B batch, H query heads, K key and value heads (H is a multiple of K), L queries, S keys, D head size of
queries and keys, E head size of values, N packed sequences.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from burnt import _torch
from burnt.codegen.backward import grad_by_torch
from burnt.errors import InputRuntimeError, InputTypeError, InputValueError
from burnt.kernels.dispatch.op import op
from burnt.kernels.interface.autocast import autocast_dtype, cast_all
from burnt.kernels.interface.checks import check_floating, check_one_device, check_one_dtype
from burnt.kernels.interface.tuning_key import wants_gradient

_OP_NAME = "dot_product_attention"

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""``score(s, b, h, i, j)``: maps scores and int32 batch, head, query and key indices to new scores."""


class Options(NamedTuple):
    """The arguments of `dot_product_attention` after q, k and v, and a score function."""

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
    score: ScoreMod | None = None

    @property
    def has_key_limits(self) -> bool:
        """Whether a query's position limits the keys it sees."""
        limits = (self.before, self.after, self.lengths, self.q_starts)
        return any(limit is not None for limit in limits)

    def is_plain_causal(self, q: Tensor, k: Tensor) -> bool:
        """Whether torch's ``is_causal=True`` covers all options but softcap and dropout."""
        aligned = not self.bottom_right or q.shape[2] == k.shape[2]
        others = (self.mask, self.before, self.slopes, self.lengths, self.q_starts, self.k_starts)
        return self.after == 0 and aligned and all(other is None for other in others)

    def is_torchs(self, q: Tensor, k: Tensor) -> bool:
        """Whether torch has kernels for these options, which need no mask for them."""
        if self.softcap is not None or self.seed is not None:
            return False
        is_unlimited = self.mask is None and self.slopes is None and not self.has_key_limits
        return is_unlimited or self.is_plain_causal(q, k)


class Intervals(NamedTuple):
    """The half-open interval of keys ``[begin, end)`` that each query sees; all ``[B or 1, L]``, int64.

    `position` is the query's own position among the keys: windows and distances are counted from it.
    """

    position: Tensor
    begin: Tensor
    end: Tensor


def intervals(q: Tensor, k: Tensor, options: Options) -> Intervals:
    """Return the keys each query sees by its position; both bounds are non-decreasing in the query index.

    >>> x = torch.zeros(1, 1, 3, 1)
    >>> intervals(x, x, Options(before=1, after=0))[1:]
    (tensor([[0, 0, 1]]), tensor([[1, 2, 3]]))
    """
    _, before, after, bottom_right, _, _, _, lengths, q_starts, k_starts, *_ = options
    queries, keys = q.shape[2], k.shape[2]
    index = torch.arange(queries, device=q.device)[None]
    if q_starts is not None and k_starts is not None:
        starts, key_starts = q_starts.to(torch.int64), k_starts.to(torch.int64).clamp(0, keys)
        sequence = (index[0, :, None] >= starts[None, 1:-1]).sum(1)
        q_begin, q_end, key_begin, key_end = (
            t[sequence][None] for t in (starts[:-1], starts[1:], key_starts[:-1], key_starts[1:])
        )
        position = index - q_begin + key_begin
        if bottom_right:
            position = position + (key_end - key_begin) - (q_end - q_begin)
        # Queries outside every sequence see no keys.
        key_begin = torch.where(index >= q_end, key_end, key_begin)
        key_end = torch.where(index < q_begin, key_begin, key_end)
    else:
        key_begin = torch.zeros_like(index)
        key_end = (
            key_begin + keys
            if lengths is None
            else lengths.to(torch.int64).clamp(0, keys)[:, None] + key_begin
        )
        key_begin = key_begin.expand_as(key_end)
        position = index + (key_end - queries) if bottom_right else index.expand_as(key_end)
    begin = (
        key_begin if before is None else torch.minimum(torch.maximum(position - before, key_begin), key_end)
    )
    end = key_end if after is None else torch.minimum(torch.maximum(position + after + 1, begin), key_end)
    return Intervals(position, begin, end)


def dropout_mask(
    seed: Tensor, shape: Sequence[int], dropout: float, first_query: int = 0, first_key: int = 0
) -> Tensor:
    """Return a mask ``[B, H, queries, keys]``, True for attention weights that dropout keeps.

    It depends only on the seed and a weight's indices: Philox4x32-10 (Salmon et al., 2011) keyed by the seed.
    Four adjacent keys share the counter ``(key // 4, query, batch * heads + head, 0)``; a weight is kept if
    the upper 24 bits of its word, as a fraction of their range, are ``dropout`` or more. The mask may be a
    part that starts at `first_query` and `first_key`, a multiple of 4.
    """
    batch, heads, queries, keys = shape
    device, low_32 = seed.device, 0xFFFFFFFF
    num_groups = (keys + 3) // 4
    head = torch.arange(batch * heads, device=device).view(batch, heads, 1, 1)
    query = torch.arange(first_query, first_query + queries, device=device).view(-1, 1)
    group = torch.arange(first_key // 4, first_key // 4 + num_groups, device=device)
    zero = head * 0 + query * 0 + group * 0
    words = [zero + group, zero + query, zero + head, zero]
    low, high = seed & low_32, (seed >> 32) & low_32
    for step in range(10):
        a, b = words[0] * 0xD2511F53, words[2] * 0xCD9E8D57  # 64 bits, whatever their sign says
        words = [
            ((b >> 32) & low_32) ^ words[1] ^ ((low + step * 0x9E3779B9) & low_32),
            b & low_32,
            ((a >> 32) & low_32) ^ words[3] ^ ((high + step * 0xBB67AE85) & low_32),
            a & low_32,
        ]
    random_bits = torch.stack(words, -1).flatten(-2)[..., :keys] >> 8
    return random_bits.to(torch.float32) * 2.0**-24 >= dropout


# --- input checks -----------------------------------------------------------------------------------------


def _raise_error(
    what: str, expected: object, found: object, hint: str | None = None, *, value: bool = False
) -> None:
    error = InputValueError if value else InputRuntimeError
    raise error(what, where="burnt.kernels.attention", expected=expected, found=found, hint=hint)


def _check(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> None:
    options = Options(*rest)
    mask, before, after, _, _, softcap, slopes, lengths, q_starts, k_starts, dropout, seed, _ = options
    optional = {
        "mask": mask,
        "slopes": slopes,
        "lengths": lengths,
        "q_starts": q_starts,
        "k_starts": k_starts,
    }
    check_one_device(_OP_NAME, q=q, k=k, v=v, seed=seed, **optional)
    check_floating(_OP_NAME, q=q, k=k, v=v, slopes=slopes)
    check_one_dtype(_OP_NAME, q=q, k=k, v=v)
    _check_shapes(q, k, v)
    batch, heads, queries, keys = q.shape[0], q.shape[1], q.shape[2], k.shape[2]
    if mask is not None:
        if mask.dtype != torch.bool and not mask.is_floating_point():
            hint = "for an integer mask with 1 for visible keys, pass mask != 0"
            _raise_error(
                "the attention mask must be boolean or floating point",
                "bool (True: visible) or float (added to the scores)",
                mask.dtype,
                hint,
            )
        shape = (batch, heads, queries, keys)
        fits = mask.dim() <= 4 and all(
            m in (1, n) for m, n in zip(mask.shape[::-1], shape[::-1], strict=False)
        )
        if not fits:
            _raise_error(
                "the mask does not broadcast to the scores",
                f"a shape that broadcasts to {shape}",
                tuple(mask.shape),
            )
    for name, count in ("before", before), ("after", after):
        if count is not None and count < 0:
            _raise_error(f"{name} must not be negative", "0 or more keys, or None", count, value=True)
    for name, tensor, length in (("slopes", slopes, heads), ("lengths", lengths, batch)):
        if tensor is not None and tuple(tensor.shape) != (length,):
            _raise_error(f"{name} of attention have the wrong shape", (length,), tuple(tensor.shape))
    for name, tensor in ("lengths", lengths), ("q_starts", q_starts), ("k_starts", k_starts):
        if tensor is not None and tensor.dtype not in (torch.int32, torch.int64):
            _raise_error(
                f"{name} of attention must be integers", "int32 or int64", tensor.dtype, f"{name}.long()"
            )
    _check_packed(batch, lengths, q_starts, k_starts)
    check_scalars(softcap, dropout)
    if seed is None and dropout > 0:
        hint = "burnt.kernels.attention(..., dropout=p) draws a seed itself"
        _raise_error("dropout needs a seed", "seed=", "none", hint, value=True)
    if seed is not None and (seed.dtype != torch.int64 or seed.dim()):
        _raise_error("the dropout seed must be one integer", "int64 []", f"{seed.dtype} {list(seed.shape)}")


def check_scalars(softcap: float | None, dropout: float) -> None:
    """Check softcap and dropout on every call: their values are not part of a call's signature."""
    if softcap is not None and not softcap > 0:
        _raise_error("softcap must be positive", "a number above 0, or None", softcap, value=True)
    if not 0 <= dropout <= 1:
        _raise_error("the dropout probability is out of range", "a number from 0 to 1", dropout, value=True)


def _check_values(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> None:
    """Check that lengths and sequence starts are within the queries and keys."""
    lengths, q_starts, k_starts = rest[7:10]
    if lengths is not None and lengths.numel():
        smallest, largest = (int(n) for n in torch.aminmax(lengths))
        if smallest < 0 or largest > k.shape[2]:
            _raise_error(
                "lengths of attention are out of range",
                f"0 to {k.shape[2]}",
                smallest if smallest < 0 else largest,
                value=True,
            )
    for name, starts, count in ("q_starts", q_starts, q.shape[2]), ("k_starts", k_starts, k.shape[2]):
        if starts is None:
            continue
        bounds = int(starts[0]), int(starts[-1])
        if bounds[0] < 0 or bounds[1] > count or bool((starts.diff() < 0).any()):
            expected = f"non-decreasing numbers from 0 to {count}"
            _raise_error(f"{name} of attention are invalid offsets", expected, starts.tolist(), value=True)


def _check_shapes(q: Tensor, k: Tensor, v: Tensor) -> None:
    found = f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}"
    if not q.dim() == k.dim() == v.dim() == 4:
        _raise_error(
            "q, k and v of attention must have 4 axes",
            "q [B, H, L, D], k [B, K, S, D], v [B, K, S, E]",
            found,
            "x.unflatten(-1, (heads, -1)).transpose(1, 2) splits [B, L, heads * D] into heads",
        )
    if q.shape[0] != k.shape[0] or k.shape[:3] != v.shape[:3] or q.shape[3] != k.shape[3]:
        _raise_error(
            "the shapes of q, k and v do not match", "q [B, H, L, D], k [B, K, S, D], v [B, K, S, E]", found
        )
    if (k.shape[1] == 0 and q.shape[1]) or (k.shape[1] and q.shape[1] % k.shape[1]):
        _raise_error(
            "the number of query heads is not a multiple of the number of key heads",
            "H, a multiple of K",
            f"{q.shape[1]} and {k.shape[1]}",
        )


def _check_packed(
    batch: int, lengths: Tensor | None, q_starts: Tensor | None, k_starts: Tensor | None
) -> None:
    if (q_starts is None) != (k_starts is None):
        given = "q_starts" if k_starts is None else "k_starts"
        _raise_error(
            "packed sequences need both q_starts and k_starts",
            "both or neither",
            f"only {given}",
            "for self-attention, pass k_starts=q_starts",
        )
    if q_starts is None or k_starts is None:
        return
    if q_starts.dim() != 1 or q_starts.shape != k_starts.shape or q_starts.shape[0] < 2:
        _raise_error(
            "q_starts and k_starts have the wrong shape",
            "[N + 1] for both, with N at least 1",
            f"q_starts {list(q_starts.shape)}, k_starts {list(k_starts.shape)}",
        )
    if batch != 1 or lengths is not None:
        found = f"a batch of {batch}" if batch != 1 else "lengths as well"
        _raise_error("packed sequences need a batch of one", "q [1, H, L, D], and no lengths", found)


# --- reference and torch's SDPA ---------------------------------------------------------------------------


def _examples(device: torch.device) -> list[tuple[object, ...]]:
    examples: list[tuple[object, ...]] = []
    for batch, heads, kv, length, size, more in [
        (2, 12, 12, 512, 64, ()),
        (2, 12, 12, 512, 64, (None, None, 0)),
        (1, 8, 2, 1024, 128, (None, None, 0)),
        (2, 4, 2, 37, 20, (None, 8, 0, True, None, 30.0)),
    ]:
        q = torch.randn(batch, heads, length, size, device=device)
        k, v = (torch.randn(batch, kv, length, size, device=device) for _ in "kv")
        examples.append((q, k, v, *more))
    return examples


def visible_mask(q: Tensor, k: Tensor, options: Options) -> Tensor | None:
    """Return `intervals` as a boolean mask, ``[B or 1, 1, L, S]``; None where every query sees every key."""
    if not options.has_key_limits:
        return None
    _, begin, end = intervals(q, k, options)
    key = torch.arange(k.shape[2], device=k.device)
    return ((key >= begin[..., None]) & (key < end[..., None]))[:, None]


def distances(q: Tensor, k: Tensor, options: Options) -> Tensor:
    """Return the distance between each query's position and each key, ``[B or 1, 1, L, S]``."""
    position = intervals(q, k, options).position
    return (position[..., None] - torch.arange(k.shape[2], device=k.device)).abs()[:, None]


def to_blhe_memory(out: Tensor) -> Tensor:
    """Store ``[B, H, L, E]`` in memory as ``[B, L, H, E]``, so that joining the heads is a view."""
    return out.transpose(1, 2).contiguous().transpose(1, 2)


# Row maxima beyond which gradients do not use torch's SDPA. Its fused backward stores a query's logsumexp
# (the row maximum plus the logarithm of the sum) as one float32: from here on that is off by 1e-4 or more,
# and so is the sum of the weights. For a query whose every key is masked by finfo.min, the logarithm is lost
# entirely. (On GPUs the forward may also be NaN for such queries: pytorch/pytorch#110213.)
_MAX_EXACT_SCORE = 1e3


def _can_read_values(*tensors: Tensor | None) -> bool:
    """Whether values can be read now, without waiting for a device."""
    return (
        not torch.compiler.is_compiling()
        and _torch.is_plain_call()
        and all(type(t) in (Tensor, torch.nn.Parameter) and t.is_cpu for t in tensors if t is not None)
    )


def _cast_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast an additive mask to the scores' dtype; finite values stay finite."""
    lowest = torch.finfo(dtype).min
    if lowest <= torch.finfo(mask.dtype).min:
        return mask.to(dtype)
    return torch.where(mask == -torch.inf, mask, mask.clamp(min=lowest)).to(dtype)


def _library(q: Tensor, k: Tensor, v: Tensor, *rest: Any, **keyword_options: Any) -> Tensor:
    """Call torch's SDPA, with one mask for all options that it does not have."""
    options = Options(*rest, **keyword_options)
    mask, slopes, scale = options.mask, options.slopes, options.scale
    _check_packed(q.shape[0], options.lengths, options.q_starts, options.k_starts)
    # Other devices would have to be waited for to read a mask: with gradients, use the reference instead.
    can_read = _can_read_values(q, k, v, mask)
    # What torch.jit.trace records may be differentiated later, whatever requires a gradient now.
    in_jit_trace = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    needs_exact = in_jit_trace or wants_gradient(q, k, v, mask, slopes)
    has_unknown_mask = needs_exact and mask is not None and not _is_bool_mask(mask) and not can_read
    needs_reference = has_unknown_mask or options.softcap is not None or options.seed is not None
    if needs_reference or 0 in (q.numel(), k.numel(), v.numel()):
        return dot_product_attention.reference(q, k, v, *options[:-1])
    grouped = bool(q.shape[1] != k.shape[1])  # sizes are tensors under torch.jit.trace
    if options.is_plain_causal(q, k):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=grouped)
        return to_blhe_memory(out)
    visible = visible_mask(q, k, options)
    if mask is not None and not _is_bool_mask(mask):
        needs_exact = needs_exact or mask.dtype.itemsize > q.dtype.itemsize
        mask = _cast_mask(mask, q.dtype)
    if slopes is not None:
        bias = (slopes.view(-1, 1, 1) * -distances(q, k, options)).to(q.dtype)
        mask = (
            bias
            if mask is None
            else torch.where(mask, bias, -torch.inf)
            if _is_bool_mask(mask)
            else mask + bias
        )
    if visible is not None:
        mask = (
            visible
            if mask is None
            else mask & visible
            if _is_bool_mask(mask)
            else torch.where(visible, mask, -torch.inf)
        )
    if mask is None:
        out = F.scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=grouped)
        return to_blhe_memory(out)
    # Let a query that sees no key see all of them, as torch may return NaN otherwise; zero its output later.
    if _is_bool_mask(mask):
        no_keys = ~mask.any(-1, keepdim=True)
        mask = mask | no_keys
    else:
        row_max = mask.detach().amax(-1, keepdim=True)
        no_keys = row_max == -torch.inf
        if needs_exact and can_read and bool(((row_max.abs() > _MAX_EXACT_SCORE) & ~no_keys).any()):
            return dot_product_attention.reference(q, k, v, *options[:-1])
        mask = mask.masked_fill(no_keys, 0.0)
    mask = mask.view((1,) * (4 - mask.dim()) + tuple(mask.shape))
    out = F.scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=grouped)
    return to_blhe_memory(torch.where(no_keys, 0.0, out))


def _is_bool_mask(mask: Tensor) -> bool:
    return mask.dtype == torch.bool


def _autocast(dtype: torch.dtype, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Any, ...]:
    """Cast only q, k and v: masks and slopes are added to the scores, which are float32 anyway."""
    return (*cast_all(dtype, q, k, v), *rest)


_MAX_PART_SCORES = 1 << 25
"""Scores computed at once: the reference holds five times as many in float64 at once, 1.3 GB."""


def _in_parts(call: Callable[..., Tensor], *args: Any) -> Tensor:
    """Compute `call` one head of one sample at a time if there are many scores, for the accuracy check."""
    q, k, v, *rest = args
    options = Options(*rest)
    (batch, heads, queries, _), (_, kv_heads, keys, _) = q.shape, k.shape
    # The dropout mask depends on the head's index.
    if options.seed is not None or batch * heads * queries * keys <= _MAX_PART_SCORES:
        return call(*args)
    mask, slopes, lengths = options.mask, options.slopes, options.lengths
    if mask is not None:
        mask = mask.expand(batch, heads, queries, keys)
    outputs = []
    for i, j in itertools.product(range(batch), range(heads)):
        b, h, kv = (slice(n, n + 1) for n in (i, j, j * kv_heads // heads))
        part = options._replace(
            mask=None if mask is None else mask[b, h],
            slopes=None if slopes is None else slopes[h],
            lengths=None if lengths is None else lengths[b],
        )
        part_args = q[b, h], k[b, kv], v[b, kv], *part[: len(rest)]
        outputs.append(checkpoint(call, *part_args, use_reentrant=False, preserve_rng_state=False))
    return torch.cat(outputs).view(batch, heads, queries, v.shape[3])


@op(
    check=_check,
    look=_check_values,
    always_looks=True,
    examples=_examples,
    library=_library,
    autocast=_autocast,
    in_parts=_in_parts,
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
    """Compute scaled dot-product attention: the op behind `attention`, with its options in canonical form.

    Args:
        q, k, v, mask, bottom_right, scale, softcap, slopes, lengths, q_starts, k_starts, dropout: the
            arguments of `attention`.
        before: number of keys before its own position that a query sees; None for all.
        after: number of keys after it; 0 is causal.
        seed: ``[]``, int64, seed of the dropout mask (`dropout_mask`).

    Returns:
        ``[B, H, L, E]`` in the dtype of `q`, stored as ``[B, L, H, E]``.
    """
    return eager_attention(
        q, k, v, mask, before, after, bottom_right, scale, softcap, slopes, lengths, q_starts, k_starts,
        dropout, seed,
    )  # fmt: skip


def eager_attention(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
    """Compute `dot_product_attention` in eager torch, with an optional score function after the softcap."""
    options = Options(*rest)
    mask, _, _, _, scale, softcap, slopes, _, _, _, dropout, seed, score = options
    if (autocast_to := autocast_dtype(q.device.type)) is not None:
        q, k, v = cast_all(autocast_to, q, k, v)
    compute_dtype = torch.promote_types(q.dtype, torch.float32)
    groups = q.shape[1] // max(k.shape[1], 1)
    keys, values = (t.repeat_interleave(groups, 1) if groups > 1 else t for t in (k, v))
    # Under torch.jit.trace a size is a tensor, and its square root would be rounded to float32.
    scale = int(q.shape[-1]) ** -0.5 if scale is None else scale
    scores = q.to(compute_dtype) @ keys.to(compute_dtype).transpose(-2, -1) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if score is not None:
        indices = [torch.arange(n, dtype=torch.int32, device=q.device) for n in scores.shape]
        scores = apply_score(score, scores, indices)
    if slopes is not None:
        scores = scores - slopes.to(compute_dtype).view(-1, 1, 1) * distances(q, k, options)
    if mask is not None:
        scores = (
            torch.where(mask, scores, -torch.inf) if _is_bool_mask(mask) else scores + mask.to(compute_dtype)
        )
    visible = visible_mask(q, k, options)
    if visible is not None:
        scores = torch.where(visible, scores, -torch.inf)
    # A softmax over no keys is NaN, and so is its gradient; return zeros instead.
    no_keys = (scores == -torch.inf).all(-1, keepdim=True)
    weights = torch.where(no_keys, 0.0, torch.where(no_keys, 0.0, scores).softmax(-1))
    if seed is not None:
        keep = dropout_mask(seed, (*q.shape[:3], k.shape[2]), dropout)
        weights = torch.where(keep, weights * (1 / (1 - dropout) if dropout < 1 else 0.0), 0.0)
    return to_blhe_memory((weights @ values.to(compute_dtype)).to(q.dtype))


def apply_score(score: ScoreMod, s: Tensor, indices: Sequence[Tensor]) -> Tensor:
    """Apply a score function to scores ``[B, H, L, S]``, given the indices along each axis."""
    b, h, i, j = indices
    result: object = score(s, b[:, None, None, None], h[:, None, None], i[:, None], j)
    if not isinstance(result, Tensor):
        raise InputTypeError(
            "the score function of attention does not return a tensor",
            where="burnt.kernels.attention",
            expected="scores of the same shape as its first argument",
            found=f"{type(result).__name__}: {result!r:.60}",
        )
    shape = (1,) * (s.dim() - result.dim()) + tuple(result.shape)
    if len(shape) != s.dim() or any(n not in (1, m) for n, m in zip(shape, s.shape, strict=True)):
        _raise_error(
            "the score function of attention returns the wrong shape",
            f"{list(s.shape)}, the shape of its first argument",
            list(result.shape),
            "a score function is elementwise: it must not reduce over an axis",
            value=True,
        )
    return result.to(s.dtype).expand_as(s)


class _AttentionFunction(torch.autograd.Function):
    """Attention by a candidate's forward and backward; see `run_candidate`."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, forward: Any, backward: Any, eager: Any) -> Tensor:
        out, stats = forward(q, k, v)
        ctx.save_for_backward(q, k, v, out, stats)
        ctx.run_backward, ctx.eager = backward, eager
        return out  # type: ignore[no-any-return]

    @staticmethod
    @_torch.kernel_backward
    def backward(ctx: Any, grad_out: Tensor) -> Any:
        q, k, v, out, stats = ctx.saved_tensors
        needs_grad = ctx.needs_input_grad[:3]
        if not _torch.is_plain_backward():
            return (*grad_by_torch(ctx.eager, (q, k, v), needs_grad, (grad_out,)), None, None, None)
        grads = ctx.run_backward(grad_out, q, k, v, out, stats, needs_grad)
        return *(g if needed else None for g, needed in zip(grads, needs_grad, strict=True)), *[None] * 3


def run_candidate(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    forward: Callable[..., tuple[Tensor, Tensor]],
    backward: Callable[..., Sequence[Tensor | None]],
    eager: Callable[..., Tensor],
) -> Tensor:
    """Compute attention by a candidate, with autograd where a gradient is required.

    `forward` takes q, k and v, and returns the output and statistics of the rows; `backward` takes the
    output's gradient, these five and whether q, k and v need a gradient. `eager` is the same function of q, k
    and v in eager torch, for second derivatives.
    """
    if wants_gradient(q, k, v):
        return _AttentionFunction.apply(  # type: ignore[no-any-return, no-untyped-call]
            q, k, v, forward, backward, eager
        )
    with torch.no_grad():
        return forward(q, k, v)[0]


def traceable_attention(*args: Any) -> Tensor:
    """Compute attention under tracing: by torch's SDPA where it has the options, else by the op."""
    softcap, seed = args[8], args[14]
    return (_library if softcap is None and seed is None else dot_product_attention)(*args)
