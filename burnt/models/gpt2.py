"""GPT-2: a decoder with learned positions.

Axes: B batch, L tokens, S tokens with those in a cache, E the size of a vector, V the vocabulary, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from burnt import nn
from burnt.errors import ShapeError
from burnt.models.generation import Decoder
from burnt.models.layer import PreNormLayer
from burnt.models.pretrained import (
    Activation,
    PretrainedConfig,
    build,
    check_heads,
    check_length,
    check_tokens,
)
from burnt.record import Drop, Layout, Rename, Step

_ALIASES = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}
"""Other names of keys, which transformers reads too."""


class Gpt2Config(PretrainedConfig):
    """What a `Gpt2` consists of.

    Args:
        vocab_size: number V of tokens.
        max_len: number of learned positions, which is the longest sequence.
        d_model: size E of the vectors.
        d_ff: size between the Linears of a feed-forward; None is ``4 * d_model``.
        num_layers: number of layers.
        num_heads: heads of the attention.
        activation: between the Linears of a feed-forward.
        dropout: probability, after attention and feed-forward.
        embedding_dropout: probability, after the sum of embedding and position.
        attention_dropout: probability, of an attention weight.
        eps: added to the variance in the norms.
        scale_scores: whether the scores of the attention are divided by the root of the size of a head.
        scale_scores_by_layer: whether the scores of layer i are divided by i, counted from 1.
        init_std: standard deviation of the initial weights, before the scaling of residual layers.
        tied: whether the head shares the embedding's weight; for the head ``"lm"``.
        head: ``"lm"`` for logits over the vocabulary, ``"classification"`` for logits over the
            classes from the last token, None for the vectors of all tokens.
        num_classes: number C of classes of the head ``"classification"``.

    Raises:
        ConfigError: `d_model` is not a multiple of `num_heads`, or a value is not of its field's type.
    """

    vocab_size: int = 50257
    max_len: int = 1024
    d_model: int = 768
    d_ff: int | None = None
    num_layers: int = 12
    num_heads: int = 12
    activation: Activation = "gelu_tanh"
    dropout: float = 0.1
    embedding_dropout: float = 0.1
    attention_dropout: float = 0.1
    eps: float = 1e-5
    scale_scores: bool = True
    scale_scores_by_layer: bool = False
    init_std: float = 0.02
    tied: bool = True
    head: Literal["lm", "classification"] | None = "lm"
    num_classes: int = 2

    _MODEL_TYPES: ClassVar[Mapping[str, str]] = {"gpt2": "GPT2"}
    _HEADS: ClassVar[Mapping[str, str | None]] = {
        "LMHeadModel": "lm",
        "DoubleHeadsModel": "lm",
        "ForSequenceClassification": "classification",
        "Model": None,
    }
    _KEYS: ClassVar[Mapping[str, str]] = {
        "vocab_size": "vocab_size",
        "max_len": "n_positions",
        "d_model": "n_embd",
        "d_ff": "n_inner",
        "num_layers": "n_layer",
        "num_heads": "n_head",
        "activation": "activation_function",
        "dropout": "resid_pdrop",
        "embedding_dropout": "embd_pdrop",
        "attention_dropout": "attn_pdrop",
        "eps": "layer_norm_epsilon",
        "scale_scores": "scale_attn_weights",
        "scale_scores_by_layer": "scale_attn_by_inverse_layer_idx",
        "init_std": "initializer_range",
        "tied": "tie_word_embeddings",
    }
    _FIXED: ClassVar[Mapping[str, Any]] = {"add_cross_attention": False}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_heads(self.d_model, self.num_heads)

    @classmethod
    def _fields_of(cls, document: dict[str, Any], where: str) -> tuple[dict[str, Any], dict[str, Any]]:
        for alias, key in _ALIASES.items():
            if alias in document:
                document[key] = document.pop(alias)
        return super()._fields_of(document, where)

    def init(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Gpt2:
        """Build the model, with new weights as in the paper."""
        return build(Gpt2, self, device, dtype)


class Gpt2(Decoder[Gpt2Config]):
    """A decoder with learned positions and norms before attention and feed-forward.

    Radford et al., 2019, "Language Models are Unsupervised Multitask Learners".

    >>> config = Gpt2Config(vocab_size=50, max_len=16, d_model=8, num_layers=2, num_heads=2)
    >>> config.init()(torch.tensor([[3, 14, 15, 9]])).shape
    torch.Size([1, 4, 50])
    """

    config_class = Gpt2Config

    positions: nn.Embedding
    dropout: nn.Dropout

    def __init__(self, config: Gpt2Config) -> None:
        super().__init__(config)
        c = config
        self.embedding = nn.Embedding(c.vocab_size, c.d_model)
        self.positions = nn.Embedding(c.max_len, c.d_model)
        self.dropout = nn.Dropout(c.embedding_dropout)
        self.layers = [
            PreNormLayer(
                norm1=nn.LayerNorm(c.d_model, c.eps),
                attention=nn.MultiHeadAttention(
                    c.d_model, c.num_heads, dropout=c.attention_dropout, scale=_scale(c, index)
                ),
                norm2=nn.LayerNorm(c.d_model, c.eps),
                feed_forward=nn.PositionWiseFeedForward(
                    c.d_model,
                    4 * c.d_model if c.d_ff is None else c.d_ff,
                    dropout=0.0,
                    activation=c.activation,
                ),
                dropout=nn.Dropout(c.dropout),
            )
            for index in range(c.num_layers)
        ]
        self.norm = nn.LayerNorm(c.d_model, c.eps)
        self._add_head()

    def _initialize(self, std: float) -> None:
        """Fill the weights as in the paper: those that add to the residuals are smaller in deeper models."""
        super()._initialize(std)
        for path, parameter in self.named_parameters():
            if path.endswith(("out_proj.weight", "linear2.weight")):
                torch.nn.init.normal_(parameter, std=std / math.sqrt(2 * self.config.num_layers))

    def forward(
        self,
        tokens: Tensor,
        *,
        padding: Tensor | None = None,
        cache: Sequence[nn.KeyValueCache] | None = None,
        last: bool = False,
    ) -> Tensor:
        """Compute the logits of the token after each, or of the classes.

        Args:
            tokens: integers ``[B, L]``.
            padding: booleans ``[B, S]``, True at tokens to ignore, on any side; positions count only the
                others. S counts the tokens in `cache`, too.
            cache: what `new_cache` returned, with the tokens before these; theirs are added.
            last: compute only the logits of the last token, ``[B, 1, V]``.

        Returns:
            ``[B, L, V]``; ``[B, C]`` of the last token that is not padding, with the head
            ``"classification"``; the normalised vectors ``[B, L, E]`` without a head.

        Raises:
            ShapeError: a sequence longer than the positions, or padding of another shape.
            InputTypeError: `tokens` is not a tensor, or `padding` is not boolean.
        """
        check_tokens(tokens, padding, type(self).__name__)
        positions = self._positions(tokens, padding, cache)
        x = self.dropout(self.embedding(tokens) + self.positions(positions))
        for index, layer in enumerate(self.layers):
            own_cache = None if cache is None else cache[index]
            x = layer(x, key_padding_mask=padding, is_causal=True, cache=own_cache)
        return self._output(x, padding, last)

    def _positions(
        self, tokens: Tensor, padding: Tensor | None, cache: Sequence[nn.KeyValueCache] | None
    ) -> Tensor:
        """Return how many tokens are before each, ``[B, L]``, or ``[L]`` where nothing is padding."""
        batch, new = tokens.shape
        length = new + (cache[0].length if cache else 0)
        check_length(length, self.config.max_len, "Gpt2")
        if padding is None:
            return torch.arange(length - new, length, device=tokens.device)
        if padding.shape != (batch, length):
            raise ShapeError(
                "padding does not fit the tokens",
                where="Gpt2",
                expected=f"{(batch, length)}, a value for each token",
                found=tuple(padding.shape),
            )
        return (torch.cumsum(~padding, 1)[:, -new:] - 1).clamp(min=0)

    @property
    def layouts(self) -> Mapping[str, Layout]:
        """``"hugging_face"``: the layout of transformers' GPT-2, whose Linears are transposed."""
        steps: list[Step] = [
            Drop("h.*.attn.bias"),  # the causal mask in files of early versions
            Drop("h.*.attn.masked_bias"),
            ("wte", "embedding"),
            ("wpe", "positions"),
            ("h.*.ln_1", "layers.*.norm1"),
            Rename("h.*.attn.c_attn.weight", "layers.*.attention.in_proj_weight", transpose=True),
            ("h.*.attn.c_attn.bias", "layers.*.attention.in_proj_bias"),
            Rename("h.*.attn.c_proj", "layers.*.attention.out_proj", transpose=True),
            ("h.*.ln_2", "layers.*.norm2"),
            Rename("h.*.mlp.c_fc", "layers.*.feed_forward.linear1", transpose=True),
            Rename("h.*.mlp.c_proj", "layers.*.feed_forward.linear2", transpose=True),
            ("ln_f", "norm"),
        ]
        heads = {"lm": "lm_head", "classification": "score"}
        if self.config.head is not None:
            steps.append((heads[self.config.head], "head"))
        prefixed = self.head is not None
        layout = Layout(steps, prefix="transformer", heads=tuple(heads.values()), prefixed=prefixed)
        return {"hugging_face": layout}


def _scale(config: Gpt2Config, index: int) -> float | None:
    """Return the factor of the attention's scores in a layer; None is the usual one."""
    if config.scale_scores and not config.scale_scores_by_layer:
        return None
    root = math.sqrt(config.d_model // config.num_heads) if config.scale_scores else 1.0
    return 1.0 / (root * (index + 1 if config.scale_scores_by_layer else 1))
