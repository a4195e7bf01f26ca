"""Kinds for the attention modules of Hugging Face's models: rotary embeddings and the attention interface.

Both are functions that a module's ``forward`` reads from the globals of its file. They are replaced in a copy
of that ``forward``, so that nothing outside the swapped module changes. A model's own attention function
(``eager``) is probed once with a few numbers, and replaced if it computes plain attention. Attention weights
are not computed unless they are requested. Nothing here imports transformers.
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
from burnt.swapping.patterns.hf_layers import isolated_eval, resolve_global, with_global

Interface = Callable[..., tuple[Tensor, Tensor | None]]

_ROTARY = "apply_rotary_pos_emb"
_INTERFACES = "ALL_ATTENTION_FUNCTIONS"
_EAGER = "eager_attention_forward"
_SDPA = "transformers.integrations.sdpa_attention"
_BIAS = "position_bias"
# Arguments that change the result and that burnt's kernel lacks: if one is given, their function runs.
_MORE = (_BIAS, "cache", "s_aux", "sinks", "head_mask", "output_attentions")
_KNOWN = {
    "module", "query", "key", "value", "attention_mask", "dropout", "scaling", "is_causal", "softcap",
    "sliding_window", "kwargs",
}  # fmt: skip


def _computes_rotary(forward: Any) -> bool:
    return isinstance(resolve_global(forward, _ROTARY), types.FunctionType)


@functools.cache
def _fused(function: Callable[..., Any]) -> Callable[..., Any]:
    fused: Callable[..., Any] = fuse(function)
    return fused


def _with_rotary(forward: types.FunctionType) -> types.FunctionType:
    return with_global(forward, _ROTARY, _fused(resolve_global(forward, _ROTARY)))


# --- the interface ----------------------------------------------------------------------------------------


class _Interfaces:
    """Their table of attention functions; known ones are returned as burnt's."""

    def __init__(self, theirs: Any) -> None:
        self._theirs = theirs

    def get_interface(self, name: str, default: Interface) -> Interface:
        return _replace_interface(self._theirs.get_interface(name, default))

    def __getitem__(self, name: str) -> Interface:
        return _replace_interface(self._theirs[name])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._theirs, name)


def _replace_interface(theirs: Interface) -> Interface:
    # Users may register any callable, including instances that are not hashable.
    return _burnt_interface(theirs) if isinstance(theirs, types.FunctionType) else theirs


@functools.cache
def _burnt_interface(theirs: Interface) -> Interface:
    """Return burnt's attention in place of a function that computes the same; else that function."""
    by_sdpa = getattr(theirs, "__module__", None) == _SDPA
    caps = False if by_sdpa else _probe_softcap(theirs)
    if caps is None:
        return theirs
    # A bias added to the scores can be burnt's mask; what each model's own function does with it differs.
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
            plain = plain and softcap is None  # theirs raises for a softcap
            causal = attention_mask is None and query.shape[2] > 1 and _is_causal(module, kwargs)
            if causal:  # a cache may have room for more keys than there are
                k, v = key[:, :, : query.shape[2]], value[:, :, : query.shape[2]]
                bias = None if bias is None else bias[..., : query.shape[2]]
            mask = mask if bias is None else _add_bias(bias, mask)
        else:
            plain = plain and scaling is not None and not _may_return_weights(module)
        if plain:
            try:
                out = kernels.attention(
                    query, k, v, mask, causal=causal, scale=scaling,
                    softcap=softcap if caps else None, dropout=dropout,
                )  # fmt: skip
                return out.transpose(1, 2).contiguous(), None
            except InputError:
                pass  # theirs computes, or raises its own error
        return theirs(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )  # fmt: skip

    return interface


def _add_bias(bias: Tensor, mask: Tensor | None) -> Tensor:
    """Combine a bias and a mask as transformers does, also for queries that see no key."""
    if mask is None:
        return bias
    return torch.where(mask, bias, torch.finfo(bias.dtype).min) if mask.dtype == torch.bool else bias + mask


def _is_causal(module: nn.Module, kwargs: dict[str, Any]) -> bool:
    given = kwargs.get("is_causal")
    return bool(getattr(module, "is_causal", True) if given is None else given)


def _may_return_weights(module: Any) -> bool:
    """Whether the attention weights that a module returns next to its result may be read."""
    config = getattr(module, "config", None)
    return bool(module._forward_hooks) or bool(getattr(config, "output_attentions", False))


def _probe_softcap(theirs: Any) -> bool | None:
    """Probe a model's own attention function: whether it supports a softcap; None if it is another one."""
    if getattr(theirs, "__name__", None) != _EAGER or not isinstance(theirs, types.FunctionType):
        return None
    module: Any = nn.Module().eval()
    module.num_key_value_groups, module.head_dim = 1, 5
    generator = torch.Generator().manual_seed(0)
    with isolated_eval():
        q, k, v, r, mask = (torch.randn(2, 4, 5, 5, generator=generator) for _ in range(5))

    def attend(k: Tensor, **options: Any) -> Tensor:
        out = theirs(module, q, k, v[:, : k.shape[1]], mask, scaling=0.3, dropout=0.0, **options)[0]
        return out.transpose(1, 2)  # type: ignore[no-any-return]

    def is_correct(actual: Tensor, k: Tensor, softcap: float | None = None) -> bool:
        expected = kernels.attention(q, k, v[:, : k.shape[1]], mask, scale=0.3, softcap=softcap)
        return actual.shape == expected.shape and torch.allclose(actual, expected, 1e-5, 1e-6)

    with isolated_eval():
        try:
            if not is_correct(attend(k), k) or not is_correct(attend(r), r):
                return None
            if "num_key_value_groups" in theirs.__code__.co_names:
                module.num_key_value_groups = 2
                if not is_correct(attend(k[:, :2]), k[:, :2]):
                    return None
                module.num_key_value_groups = 1
            capped = attend(k, softcap=0.5)
            return is_correct(capped, k, 0.5) if not is_correct(capped, k) else False
        except Exception:  # third-party code, called outside its model, may raise any exception
            return None


def _uses_attention_table(module: nn.Module) -> bool:
    """Whether a module looks its attention function up in Hugging Face's table."""
    table = resolve_global(type(module).forward, _INTERFACES)
    return hasattr(table, "get_interface") or hasattr(table, "__getitem__")


def _attention(cls: type) -> Callable[..., Any]:
    forward: types.FunctionType = cls.forward  # type: ignore[attr-defined]
    new = with_global(forward, _INTERFACES, _Interfaces(resolve_global(forward, _INTERFACES)))
    return _with_rotary(new) if _computes_rotary(new) else new


Kind(
    "attention",
    "kernels.attention",
    _uses_attention_table,
    _attention,
    random_in_training=True,
    select_output=lambda output: output[0] if isinstance(output, tuple) else output,
)

# In a model with its own attention code, only the rotary embedding can be swapped.
Kind(
    "rotary",
    "burnt.fuse of the model's own",
    lambda module: _computes_rotary(type(module).forward),
    lambda cls: _with_rotary(cls.forward),  # type: ignore[attr-defined]
)
