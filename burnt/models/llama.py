"""Llama, and its layout with other sizes: Qwen2 and Mistral.

Axes: B batch, L tokens, E the size of a vector, V the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from burnt import nn
from burnt.models.pretrained import Pretrained, PretrainedConfig, build
from burnt.module import Module
from burnt.nn import rope_scaling
from burnt.record import Join, Layout, Step

__all__ = ["Llama", "LlamaConfig"]


class LlamaConfig(PretrainedConfig):
    """What a `Llama` consists of.

    Args:
        vocab_size: number V of tokens.
        d_model: size E of the vectors.
        d_ff: size between the Linears of a feed-forward.
        num_layers: number of layers.
        num_heads: heads of the queries.
        num_kv_heads: heads of keys and values.
        head_dim: size of a head.
        max_len: the longest sequence of the training.
        eps: added to the mean square in the norms.
        rope_base: base of the rotary encoding.
        rope: scaling of the rotary encoding.
        qkv_bias: whether the projections of queries, keys and values have biases, as in Qwen2.
        tied: whether the head's weight is that of the embedding.
        head: ``"lm"`` for logits over the vocabulary, None for the last vectors.
        kind: model type in ``config.json``.
    """

    vocab_size: int = 32000
    d_model: int = 4096
    d_ff: int = 11008
    num_layers: int = 32
    num_heads: int = 32
    num_kv_heads: int = 32
    head_dim: int = 128
    max_len: int = 2048
    eps: float = 1e-6
    rope_base: float = 10000.0
    rope: rope_scaling.Scaling | None = None
    qkv_bias: bool = False
    tied: bool = False
    head: Literal["lm"] | None = "lm"
    kind: Literal["llama", "qwen2", "mistral"] = "llama"

    _MODEL_TYPES: ClassVar[tuple[str, ...]] = ("llama", "qwen2", "mistral")
    _KEYS: ClassVar[Mapping[str, str]] = {
        "vocab_size": "vocab_size",
        "d_model": "hidden_size",
        "d_ff": "intermediate_size",
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "num_kv_heads": "num_key_value_heads",
        "head_dim": "head_dim",
        "max_len": "max_position_embeddings",
        "eps": "rms_norm_eps",
        "tied": "tie_word_embeddings",
        "kind": "model_type",
    }
    _FIXED: ClassVar[Mapping[str, Any]] = {"hidden_act": "silu", "mlp_bias": False, "attention_bias": False}

    def init(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Llama:
        """Build the model, with new weights."""
        return build(Llama, self, device, dtype)


class LlamaLayer(Module):
    """Attention and feed-forward, each of normalised vectors and added to them."""

    norm1: nn.RmsNorm
    attention: nn.MultiHeadAttention
    norm2: nn.RmsNorm
    feed_forward: nn.GatedFeedForward

    def forward(self, x: Tensor, padding: Tensor | None, cache: nn.KeyValueCache | None) -> Tensor:
        """Map ``[B, L, E]`` to the same shape."""
        x = x + self.attention(self.norm1(x), key_padding_mask=padding, is_causal=True, cache=cache)
        out: Tensor = x + self.feed_forward(self.norm2(x))
        return out


class Llama(Pretrained[LlamaConfig]):
    """A decoder of rotary attention with grouped queries, RMS norms and gated feed-forwards."""

    config_class = LlamaConfig
    HEADS = ("head",)

    embedding: nn.Embedding
    layers: list[LlamaLayer]
    norm: nn.RmsNorm
    head: nn.Linear | None

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        c = config
        rotary = nn.RotaryEncoding(c.head_dim, c.rope_base, scaling=c.rope)
        self.embedding = nn.Embedding(c.vocab_size, c.d_model)
        self.layers = [
            LlamaLayer(
                norm1=nn.RmsNorm(c.d_model, c.eps),
                attention=nn.MultiHeadAttention(
                    c.d_model,
                    c.num_heads,
                    num_kv_heads=c.num_kv_heads,
                    head_dim=c.head_dim,
                    bias=c.qkv_bias,
                    out_bias=False,
                    rotary=rotary,
                ),
                norm2=nn.RmsNorm(c.d_model, c.eps),
                feed_forward=nn.GatedFeedForward(c.d_model, c.d_ff),
            )
            for _ in range(c.num_layers)
        ]
        self.norm = nn.RmsNorm(c.d_model, c.eps)
        self.head = None if c.head is None else nn.Linear(c.d_model, c.vocab_size, bias=False)
        if self.head is not None and c.tied:
            self.head.weight = self.embedding.weight

    def forward(
        self,
        tokens: Tensor,
        *,
        padding: Tensor | None = None,
        cache: Sequence[nn.KeyValueCache] | None = None,
    ) -> Tensor:
        """Compute the logits of the token after each.

        Args:
            tokens: integers ``[B, L]``.
            padding: booleans ``[B, S]``, True at tokens to ignore; S counts those in `cache`, too.
            cache: a `burnt.nn.KeyValueCache` for each layer, of the tokens before these.

        Returns:
            ``[B, L, V]``, or the normalised vectors ``[B, L, E]`` without a head.
        """
        x = self.embedding(tokens)
        for index, layer in enumerate(self.layers):
            x = layer(x, padding, None if cache is None else cache[index])
        x = self.norm(x)
        logits: Tensor = x if self.head is None else self.head(x)
        return logits

    def new_cache(self, max_len: int | None = None) -> list[nn.KeyValueCache]:
        """Return empty caches, one for each layer, for `forward`.

        Args:
            max_len: number of tokens to allocate memory for; None grows with each step, and lets gradients
                through.
        """
        return [nn.KeyValueCache(max_len) for _ in self.layers]

    @property
    def layouts(self) -> Mapping[str, Layout]:
        """``"hugging_face"``: that of transformers' Llama, Qwen2 and Mistral."""
        sizes = tuple(
            heads * self.config.head_dim
            for heads in (self.config.num_heads, self.config.num_kv_heads, self.config.num_kv_heads)
        )

        def qkv(kind: str) -> Join:
            parts = tuple(f"layers.*.self_attn.{x}_proj.{kind}" for x in "qkv")
            return Join(parts, f"layers.*.attention.in_proj_{kind}", sizes)

        steps: list[Step] = [
            ("embed_tokens", "embedding"),
            qkv("weight"),
            qkv("bias"),
            ("layers.*.self_attn.o_proj", "layers.*.attention.out_proj"),
            ("layers.*.mlp", "layers.*.feed_forward"),
            ("layers.*.input_layernorm", "layers.*.norm1"),
            ("layers.*.post_attention_layernorm", "layers.*.norm2"),
            ("lm_head", "head"),
        ]
        prefixed = self.head is not None
        return {"hugging_face": Layout(steps, prefix="model", heads=("lm_head",), prefixed=prefixed)}

    @property
    def architecture(self) -> str:
        """The name of transformers' class of the same model."""
        family = {"llama": "Llama", "qwen2": "Qwen2", "mistral": "Mistral"}[self.config.kind]
        return f"{family}Model" if self.head is None else f"{family}ForCausalLM"
