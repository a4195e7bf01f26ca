"""Kinds for the sequence layers of `torch.nn`: LSTM, GRU, multi-head attention, transformer encoder layer.

Calls with options that burnt's ops lack run torch's method; `call_fallback_reason` names the option.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from burnt import _torch, kernels
from burnt.kernels.interface.tuning_key import wants_gradient
from burnt.nn.recurrent import run_packed
from burnt.swapping.kind import Kind, original_class
from burnt.swapping.patterns.hf_layers import has_hooks
from burnt.swapping.patterns.torch_layers import computing_as

# --- recurrent layers -------------------------------------------------------------------------------------


def _projection_reason(module: nn.Module) -> str | None:
    return "proj_size= projects its states" if getattr(module, "proj_size", 0) else None


def _call_reason(self: Any, input: Any, hx: Any = None) -> str | None:
    if not isinstance(input, PackedSequence) and input.dim() not in (2, 3):
        return "its input has neither 2 nor 3 axes"
    if not _torch.is_plain_call():
        return "is called under a function transform or while tracing"
    num_states = 2 if isinstance(self, nn.LSTM) else 1
    states = hx if isinstance(hx, tuple | list) else (hx,)
    return None if hx is None or len(states) == num_states else "its hx has the wrong number of states"


def _run(self: Any, op: Any, input: Any, hx: Any) -> Any:
    """Run burnt's op on a batch, a single sequence or a packed sequence; states are in torch's layout."""
    settings = {"bidirectional": self.bidirectional, "dropout": self.dropout, "training": self.training}
    if isinstance(input, PackedSequence):

        def run(padded: Tensor, lengths: Tensor) -> Any:
            return op(padded, self.all_weights, hx, lengths=lengths.to(padded.device), **settings)

        return run_packed(input, run)
    if input.dim() == 2:
        output, last = op(input[None], self.all_weights, _each_state(Tensor.unsqueeze, hx), **settings)
        return output[0], _each_state(Tensor.squeeze, last)
    output, last = op(input if self.batch_first else input.transpose(0, 1), self.all_weights, hx, **settings)
    return output if self.batch_first else output.transpose(0, 1), last


def _each_state(change: Any, states: Any) -> Any:
    """Add or remove the batch axis of the states of a single sequence."""
    if states is None or isinstance(states, Tensor):
        return None if states is None else change(states, 1)
    return tuple(change(state, 1) for state in states)


def _recurrent(name: str, layer: type[nn.Module], op: Any) -> None:
    def forward(self: Any, input: Any, hx: Any = None) -> Any:
        return _run(self, op, input, hx)

    reasons: dict[str, Any] = {"fallback_reason": _projection_reason, "call_fallback_reason": _call_reason}
    Kind(name, f"kernels.{name}", computing_as(layer), lambda cls: forward, **reasons)


_recurrent("lstm", nn.LSTM, kernels.lstm)
_recurrent("gru", nn.GRU, kernels.gru)


# --- attention --------------------------------------------------------------------------------------------


def _attention_reason(module: Any) -> str | None:
    if module.bias_k is not None or module.bias_v is not None:
        return "add_bias_kv= adds a key and a value"
    return "add_zero_attn= adds a key of zeros" if module.add_zero_attn else None


def _attention_call_reason(
    self: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> str | None:
    reason = _attention_reason(self)
    if reason is not None:
        return reason
    if need_weights:
        return "need_weights=True needs the attention weights, which burnt does not return"
    if query.is_nested or key.is_nested or value.is_nested:
        return "its inputs are nested tensors"
    if not query.dim() == key.dim() == value.dim() or query.dim() not in (2, 3):
        return "its inputs do not all have 2 axes or all 3"
    if is_causal and attn_mask is None:
        return "is_causal=True is given without attn_mask"
    masks = [mask for mask in (attn_mask, key_padding_mask) if mask is not None]
    if len({mask.dtype for mask in masks}) > 1 or any(
        mask.dtype != torch.bool and not mask.is_floating_point() for mask in masks
    ):
        return "its masks have different dtypes or integer dtypes"
    fit = _masks_fit(self, query, key, attn_mask, key_padding_mask)
    return None if fit else "its masks do not fit the inputs"


def _masks_fit(
    self: nn.MultiheadAttention, query: Tensor, key: Tensor, attn: Tensor | None, padding: Tensor | None
) -> bool:
    """Whether the masks have the shapes that torch accepts."""
    batch = query.shape[1 - self.batch_first] if query.dim() == 3 else 1
    axis = 1 if query.dim() == 3 and self.batch_first else 0
    length, keys = query.shape[axis], key.shape[axis]
    of_keys = (batch, keys) if query.dim() == 3 else (keys,)
    of_pairs = (length, keys), (batch * self.num_heads, length, keys)
    fits = attn is None or tuple(attn.shape) in of_pairs
    return fits and (padding is None or tuple(padding.shape) == of_keys)


def _attention(
    self: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, None]:
    batched, first = query.dim() == 3, self.batch_first or query.dim() == 2
    to_bhtd, back = ((0, 2, 1, 3), (0, 2, 1, 3)) if first else ((1, 2, 0, 3), (2, 0, 1, 3))
    q, k, v = (
        t.view(*(t.shape[:-1] if batched else (1, len(t))), self.num_heads, self.head_dim).permute(to_bhtd)
        for t in _projected(self, query, key, value)
    )
    # torch trusts is_causal= without reading attn_mask, unless there is a padding mask too.
    causal = is_causal and key_padding_mask is None
    mask = None if causal else _mask(q, attn_mask, key_padding_mask)
    dropout = self.dropout if self.training else 0.0
    heads = kernels.attention(q, k, v, mask, causal=causal, dropout=dropout)
    out = kernels.linear(heads.permute(back).flatten(2), self.out_proj.weight, self.out_proj.bias)
    return out if batched else out[0], None


def _projected(self: Any, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    """Project to queries, keys and values; inputs that are the same tensor share one matmul."""
    weight, bias = self.in_proj_weight, self.in_proj_bias
    if weight is not None and query is key is value:
        return kernels.linear(query, weight, bias).chunk(3, -1)
    each = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight) if weight is None else weight.chunk(3)
    biases = (None, None, None) if bias is None else bias.chunk(3)
    if weight is not None and key is value:
        size = self.embed_dim
        joined = kernels.linear(key, weight[size:], None if bias is None else bias[size:])
        return kernels.linear(query, each[0], biases[0]), *joined.chunk(2, -1)
    inputs = zip((query, key, value), each, biases, strict=True)
    return tuple(kernels.linear(x, w, b) for x, w, b in inputs)


def _mask(q: Tensor, attn: Tensor | None, padding: Tensor | None) -> Tensor | None:
    """Combine both masks into one that broadcasts to ``[batch, heads, queries, keys]``; True is visible."""
    masks = []
    if attn is not None:
        masks.append(attn if attn.dim() == 2 else attn.view(*q.shape[:2], *attn.shape[1:]))
    if padding is not None:
        masks.append(padding.reshape(q.shape[0], 1, 1, -1))
    if not masks:
        return None
    if masks[0].dtype == torch.bool:
        return ~(masks[0] | masks[-1])
    return masks[0] if len(masks) == 1 else masks[0] + masks[1]


def _out_proj(module: Any) -> Iterator[tuple[str, nn.Module]]:
    yield "out_proj", module.out_proj


Kind(
    "multihead_attention",
    "kernels.linear, attention",
    computing_as(nn.MultiheadAttention),
    lambda cls: _attention,
    _attention_reason,
    random_in_training=True,  # burnt's dropout draws other random numbers than torch's
    absorbed=_out_proj,
    call_fallback_reason=_attention_call_reason,
)


# --- a whole layer of an encoder --------------------------------------------------------------------------

# Without gradients torch's layer is one fused call, so no submodule's forward or hook runs there either.


def _all_submodules(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    return (pair for pair in module.named_modules() if pair[0])


def _encoder_reason(module: Any) -> str | None:
    if original_class(module.self_attn).forward is not nn.MultiheadAttention.forward:
        return "its self_attn is a subclass with its own forward"
    if module.activation_relu_or_gelu not in _ACTS:
        return "its activation is neither relu nor gelu"
    return _attention_reason(module.self_attn)


def _encoder_call_reason(
    self: Any,
    src: Tensor,
    src_mask: Tensor | None = None,
    src_key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
) -> str | None:
    reason = _encoder_reason(self)
    if reason is not None:
        return reason
    if self.training or wants_gradient(src, *self.parameters()) or _torch.is_autocast():
        return "in training, with gradients and under autocast its submodules are called instead"
    if any(map(has_hooks, self.modules())):
        return "a layer in it has hooks, which would not be called"
    return _attention_call_reason(
        self.self_attn, src, src, src, src_key_padding_mask, False, src_mask, True, is_causal
    )


_ACTS = {1: "relu", 2: "gelu"}


def _encode(
    self: Any,
    src: Tensor,
    src_mask: Tensor | None = None,
    src_key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    def normalize(norm: Any, x: Tensor) -> Tensor:
        return kernels.layer_norm(x, norm.weight, norm.bias, norm.eps)  # type: ignore[return-value]

    def attend(x: Tensor) -> Tensor:
        return _attention(self.self_attn, x, x, x, src_key_padding_mask, False, src_mask, True, is_causal)[0]

    def feed_forward(x: Tensor, residual: Tensor) -> Tensor:
        act = _ACTS[self.activation_relu_or_gelu]
        hidden = kernels.linear(x, self.linear1.weight, self.linear1.bias, activation=act)
        return kernels.linear(hidden, self.linear2.weight, self.linear2.bias, residual=residual)

    if self.norm_first:
        x = src + attend(normalize(self.norm1, src))
        return feed_forward(normalize(self.norm2, x), x)
    x = normalize(self.norm1, src + attend(src))
    return normalize(self.norm2, feed_forward(x, x))


Kind(
    "encoder_layer",
    "kernels.attention, linear, layer_norm",
    computing_as(nn.TransformerEncoderLayer),
    lambda cls: _encode,
    _encoder_reason,
    inference_only=True,
    absorbed=_all_submodules,
    call_fallback_reason=_encoder_call_reason,
)
