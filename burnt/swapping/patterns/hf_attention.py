"""What attention modules of Hugging Face's call: rotary embeddings, and the attention interface.

Both are functions that a module's ``forward`` finds among the globals of its file. They are exchanged in a
copy of that ``forward``, so that nothing outside of the swapped module changes. A function for attention that
is a model's own (``eager``) is tried on a few numbers, once, and swapped where it computes plain attention.
Weights that nobody asks for are not made. Nothing here imports transformers.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from burnt import kernels
from burnt.codegen import fuse
from burnt.errors import InputError
from burnt.swapping.kind import Kind
from burnt.swapping.patterns.rebind_globals import isolated_eval, names_of, with_global

__all__: list[str] = []

Interface = Callable[..., tuple[Tensor, Tensor | None]]

_ROTARY = "apply_rotary_pos_emb"
_INTERFACES = "ALL_ATTENTION_FUNCTIONS"
_EAGER = "eager_attention_forward"
_SDPA = "transformers.integrations.sdpa_attention"
_BIAS = "position_bias"
# What changes the result beyond what every attention takes: where one is given, their function serves.
_MORE = (_BIAS, "cache", "s_aux", "sinks", "head_mask", "output_attentions")
_KNOWN = {
    "module", "query", "key", "value", "attention_mask", "dropout", "scaling", "is_causal", "softcap",
    "sliding_window", "kwargs",
}  # fmt: skip


def _computes_rotary(forward: Any) -> bool:
    return isinstance(names_of(forward, _ROTARY), types.FunctionType)


@functools.cache
def _fused(function: Callable[..., Any]) -> Callable[..., Any]:
    made: Callable[..., Any] = fuse(function)
    return made


def _with_rotary(forward: types.FunctionType) -> types.FunctionType:
    return with_global(forward, _ROTARY, _fused(names_of(forward, _ROTARY)))


# --- the interface ----------------------------------------------------------------------------------------


class _Interfaces:
    """Their table of functions for attention, of which those that are known become burnt's."""

    def __init__(self, theirs: Any) -> None:
        self._theirs = theirs

    def get_interface(self, name: str, default: Interface) -> Interface:
        return _swapped(self._theirs.get_interface(name, default))

    def __getitem__(self, name: str) -> Interface:
        return _swapped(self._theirs[name])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._theirs, name)


def _swapped(theirs: Interface) -> Interface:
    # Others register what they like, by instances that have no hash, too.
    return _ours(theirs) if isinstance(theirs, types.FunctionType) else theirs


@functools.cache
def _ours(theirs: Interface) -> Interface:
    """Attention by burnt's kernels in the place of a function that computes the same; else that function."""
    by_sdpa = getattr(theirs, "__module__", None) == _SDPA
    caps = False if by_sdpa else _capping(theirs)
    if caps is None:
        return theirs
    # What is added to the scores is a mask to us; each model's own function has its way with it.
    more = {*_MORE, *inspect.signature(theirs).parameters} - _KNOWN - ({_BIAS} if by_sdpa else set())

    @functools.wraps(theirs)
    def interface(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        softcap = kwargs.get("softcap")
        plain = all(kwargs.get(name) is None or kwargs[name] is False for name in more)
        k, v, causal = key, value, False
        mask, bias = attention_mask, kwargs.get(_BIAS)
        if by_sdpa:
            plain = plain and softcap is None  # which theirs refuses
            causal = attention_mask is None and query.shape[2] > 1 and _is_causal(module, kwargs)
            if causal:  # a cache may have room for more keys than there are
                k, v = key[:, :, : query.shape[2]], value[:, :, : query.shape[2]]
                bias = None if bias is None else bias[..., : query.shape[2]]
            mask = mask if bias is None else _biased(bias, mask)
        else:
            plain = plain and scaling is not None and not _wants_weights(module)
        if plain:
            try:
                made = kernels.attention(
                    query, k, v, mask, causal=causal, scale=scaling,
                    softcap=softcap if caps else None, dropout=dropout,
                )  # fmt: skip
                return made.transpose(1, 2).contiguous(), None
            except InputError:
                pass  # what burnt's op refuses is theirs to compute, or to refuse
        return theirs(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )  # fmt: skip

    return interface


def _biased(bias: Tensor, mask: Tensor | None) -> Tensor:
    """What is added to the scores, with a mask: as the library has it, where a query sees nothing, too."""
    if mask is None:
        return bias
    return torch.where(mask, bias, torch.finfo(bias.dtype).min) if mask.dtype == torch.bool else bias + mask


def _is_causal(module: nn.Module, kwargs: dict[str, Any]) -> bool:
    given = kwargs.get("is_causal")
    return bool(getattr(module, "is_causal", True) if given is None else given)


def _wants_weights(module: Any) -> bool:
    """Whether somebody may look at the weights that a module returns beside its result."""
    config = getattr(module, "config", None)
    return bool(module._forward_hooks) or bool(getattr(config, "output_attentions", False))


def _capping(theirs: Any) -> bool | None:
    """Whether a model's own function for attention caps scores that it is told to; None if it is none.

    It is tried on a few numbers.
    """
    if getattr(theirs, "__name__", None) != _EAGER or not isinstance(theirs, types.FunctionType):
        return None
    module: Any = nn.Module().eval()
    module.num_key_value_groups, module.head_dim = 1, 5
    generator = torch.Generator().manual_seed(0)
    with isolated_eval():
        q, k, v, r, mask = (torch.randn(2, 4, 5, 5, generator=generator) for _ in range(5))

    def tried(k: Tensor, **options: Any) -> Tensor:
        made = theirs(module, q, k, v[:, : k.shape[1]], mask, scaling=0.3, dropout=0.0, **options)[0]
        return made.transpose(1, 2)  # type: ignore[no-any-return]

    def same(made: Tensor, k: Tensor, softcap: float | None = None) -> bool:
        wanted = kernels.attention(q, k, v[:, : k.shape[1]], mask, scale=0.3, softcap=softcap)
        return made.shape == wanted.shape and torch.allclose(made, wanted, 1e-5, 1e-6)

    with isolated_eval():
        try:
            if not same(tried(k), k) or not same(tried(r), r):
                return None
            if "num_key_value_groups" in theirs.__code__.co_names:
                module.num_key_value_groups = 2
                if not same(tried(k[:, :2]), k[:, :2]):
                    return None
                module.num_key_value_groups = 1
            capped = tried(k, softcap=0.5)
            return same(capped, k, 0.5) if not same(capped, k) else False
        except Exception:  # of any kind: it is somebody's own code, called out of its turn
            return None


def _attends(module: nn.Module) -> bool:
    """Whether a module looks its function for attention up in Hugging Face's table."""
    table = names_of(type(module).forward, _INTERFACES)
    return hasattr(table, "get_interface") or hasattr(table, "__getitem__")


def _attention(cls: type) -> Callable[..., Any]:
    forward: types.FunctionType = cls.forward  # type: ignore[attr-defined]
    made = with_global(forward, _INTERFACES, _Interfaces(names_of(forward, _INTERFACES)))
    return _with_rotary(made) if _computes_rotary(made) else made


Kind(
    "attention",
    "kernels.attention",
    _attends,
    _attention,
    draws=True,
    part=lambda made: made[0] if isinstance(made, tuple) else made,
)

# Where a model has attention of its own, the rotary embedding is what is left to swap.
Kind(
    "rotary",
    "burnt.fuse of the model's own",
    lambda module: _computes_rotary(type(module).forward),
    lambda cls: _with_rotary(cls.forward),  # type: ignore[attr-defined]
)
