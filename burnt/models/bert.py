"""BERT, and its layout with other positions and heads: RoBERTa and XLM-RoBERTa.

Axes: B batch, L tokens, E the size of a vector, V the vocabulary, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from burnt import nn
from burnt.errors import ConfigError
from burnt.models.pretrained import (
    LAYER_KEYS,
    Activation,
    Pretrained,
    PretrainedConfig,
    build,
    check_length,
    check_tokens,
    join_qkv,
)
from burnt.module import Module
from burnt.record import Drop, Layout, Step


class BertConfig(PretrainedConfig):
    """What a `Bert` consists of.

    Args:
        vocab_size: number V of tokens.
        d_model: size E of the vectors.
        d_ff: size between the Linears of a feed-forward.
        num_layers: number of layers.
        num_heads: heads of the attention.
        max_len: number of learned positions; RoBERTa's longest sequence has ``pad_token + 1`` tokens fewer.
        num_segments: number of segments, such as a question and a text.
        activation: between the Linears of a feed-forward, and in BERT's head ``"mlm"``.
        dropout: probability, after the embeddings, attention and feed-forward.
        attention_dropout: probability, of an attention weight.
        classifier_dropout: probability, before the Linears of the heads ``"classification"`` and
            ``"tokens"``; None is `dropout`.
        eps: added to the variance in the norms.
        pad_token: token whose embedding stays zero; 1 is usual for RoBERTa, which also counts its
            positions from there.
        init_std: standard deviation of the initial weights.
        tied: whether the Linear of the head ``"mlm"`` has the weight of the embedding.
        head: ``"mlm"`` for logits over the vocabulary, ``"classification"`` over the classes of a sequence,
            ``"tokens"`` over the classes of each token, ``"answer"`` for the logits that an answer starts and
            ends at each token; None for the last vectors.
        num_classes: number C of classes.
        pooler: whether a model without a head has a `BertPooler`.
        kind: model type in ``config.json``.
    """

    vocab_size: int = 30522
    d_model: int = 768
    d_ff: int = 3072
    num_layers: int = 12
    num_heads: int = 12
    max_len: int = 512
    num_segments: int = 2
    activation: Activation = "gelu"
    dropout: float = 0.1
    attention_dropout: float = 0.1
    classifier_dropout: float | None = None
    eps: float = 1e-12
    pad_token: int | None = 0
    init_std: float = 0.02
    tied: bool = True
    head: Literal["mlm", "classification", "tokens", "answer"] | None = None
    num_classes: int = 2
    pooler: bool = True
    kind: Literal["bert", "roberta", "xlm-roberta"] = "bert"

    _MODEL_TYPES: ClassVar[Mapping[str, str]] = {
        "bert": "Bert",
        "roberta": "Roberta",
        "xlm-roberta": "XLMRoberta",
    }
    _KEYS: ClassVar[Mapping[str, str]] = {
        "vocab_size": "vocab_size",
        **LAYER_KEYS,
        "max_len": "max_position_embeddings",
        "num_segments": "type_vocab_size",
        "dropout": "hidden_dropout_prob",
        "attention_dropout": "attention_probs_dropout_prob",
        "classifier_dropout": "classifier_dropout",
        "eps": "layer_norm_eps",
        "pad_token": "pad_token_id",
        "tied": "tie_word_embeddings",
        "kind": "model_type",
    }
    _FIXED: ClassVar[Mapping[str, Any]] = {
        "is_decoder": False,
        "add_cross_attention": False,
        "position_embedding_type": "absolute",
        "pruned_heads": {},
        "per_layer_config": None,
    }
    _HEADS: ClassVar[Mapping[str, str | None]] = {
        "ForMaskedLM": "mlm",
        "ForPreTraining": "mlm",
        "ForSequenceClassification": "classification",
        "ForTokenClassification": "tokens",
        "ForQuestionAnswering": "answer",
        "Model": None,
    }

    def init(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Bert:
        """Build the model, with new weights.

        Raises:
            ConfigError: RoBERTa without a `pad_token`, or with too few positions.
            ShapeError: `d_model` is not a multiple of `num_heads`.
        """
        return build(Bert, self, device, dtype)

    @property
    def longest(self) -> int:
        """Number of tokens of the longest sequence.

        Raises:
            ConfigError: RoBERTa without a `pad_token`, or with too few positions.
        """
        if self.kind == "bert":
            return self.max_len
        if self.pad_token is None or not 0 <= self.pad_token < self.max_len - 1:
            raise ConfigError(
                "RoBERTa counts positions from its pad_token on",
                where="BertConfig.pad_token",
                expected=f"0 to {self.max_len - 2}, for max_len={self.max_len}",
                found=repr(self.pad_token),
            )
        return self.max_len - self.pad_token - 1

    @classmethod
    def _fields_of(cls, document: dict[str, Any], where: str) -> tuple[dict[str, Any], dict[str, Any]]:
        if document["model_type"] != "bert":  # the defaults of transformers' other classes
            document.setdefault("pad_token_id", 1)
        if document["model_type"] == "roberta":
            document.setdefault("vocab_size", 50265)
        return super()._fields_of(document, where)


class BertLayer(Module):
    """Attention and feed-forward, each added to its input, and the sums normalised."""

    attention: nn.MultiHeadAttention
    norm1: nn.LayerNorm
    feed_forward: nn.PositionWiseFeedForward
    norm2: nn.LayerNorm
    dropout: nn.Dropout

    def forward(self, x: Tensor, padding: Tensor | None) -> Tensor:
        """Map ``[B, L, E]`` to the same shape."""
        x = self.norm1(x + self.dropout(self.attention(x, key_padding_mask=padding)))
        out: Tensor = self.norm2(x + self.dropout(self.feed_forward(x)))
        return out


class BertPooler(Module):
    """A vector for the whole sequence, from its first token's."""

    dense: nn.Linear

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, L, E]`` to ``[B, E]``."""
        return torch.tanh(self.dense(x[..., 0, :]))


class MaskedHead(Module):
    """Logits over the vocabulary for each token."""

    dense: nn.Linear
    activation: torch.nn.Module
    norm: nn.LayerNorm
    decoder: nn.Linear

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, L, E]`` to ``[B, L, V]``."""
        logits: Tensor = self.decoder(self.norm(self.activation(self.dense(x))))
        return logits


class LinearHead(Module):
    """Logits from vectors: of the tokens, or of the pooler."""

    dropout: nn.Dropout
    linear: nn.Linear

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[*, E]`` to ``[*, C]``."""
        logits: Tensor = self.linear(self.dropout(x))
        return logits


class RobertaHead(Module):
    """Logits of the classes of a sequence in RoBERTa: a pooler of its own, and a Linear."""

    pooler: BertPooler
    dropout: nn.Dropout
    linear: nn.Linear

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, L, E]`` to ``[B, C]``."""
        first = self.dropout(x[..., :1, :])
        logits: Tensor = self.linear(self.dropout(self.pooler(first)))
        return logits


class Bert(Pretrained[BertConfig]):
    """An encoder with learned positions and segments, and norms after attention and feed-forward.

    Without a head, it returns a vector for each token; ``model.pooler`` maps these to one for the sequence.

    Devlin et al., 2018, "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding";
    Liu et al., 2019, "RoBERTa: A Robustly Optimized BERT Pretraining Approach".

    >>> config = BertConfig(vocab_size=50, d_model=8, d_ff=16, num_layers=2, num_heads=2, head="tokens")
    >>> config.init()(torch.tensor([[3, 14, 15, 9]])).shape
    torch.Size([1, 4, 2])
    """

    config_class = BertConfig
    HEADS = ("head", "pooler")

    embedding: nn.Embedding
    positions: nn.Embedding
    segments: nn.Embedding
    norm: nn.LayerNorm
    dropout: nn.Dropout
    layers: list[BertLayer]
    pooler: BertPooler | None
    head: MaskedHead | LinearHead | RobertaHead | None

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        c = config
        self._longest = c.longest
        self._counts_tokens = c.kind != "bert"  # RoBERTa's positions count the tokens that are not padding
        self._pools = c.kind == "bert" and c.head == "classification"
        self.embedding = nn.Embedding(c.vocab_size, c.d_model, c.pad_token)
        self.positions = nn.Embedding(c.max_len, c.d_model, c.pad_token if self._counts_tokens else None)
        self.segments = nn.Embedding(c.num_segments, c.d_model)
        self.norm = nn.LayerNorm(c.d_model, c.eps)
        self.dropout = nn.Dropout(c.dropout)
        self.layers = [
            BertLayer(
                attention=nn.MultiHeadAttention(c.d_model, c.num_heads, dropout=c.attention_dropout),
                norm1=nn.LayerNorm(c.d_model, c.eps),
                feed_forward=nn.PositionWiseFeedForward(
                    c.d_model, c.d_ff, dropout=0.0, activation=c.activation
                ),
                norm2=nn.LayerNorm(c.d_model, c.eps),
                dropout=nn.Dropout(c.dropout),
            )
            for _ in range(c.num_layers)
        ]
        has_pooler = self._pools or (c.head is None and c.pooler)
        self.pooler = BertPooler(nn.Linear(c.d_model, c.d_model)) if has_pooler else None
        self.head = self._build_head()
        self._initialize(c.init_std)
        if isinstance(self.head, MaskedHead) and c.tied:
            self.head.decoder.weight = self.embedding.weight

    def _build_head(self) -> MaskedHead | LinearHead | RobertaHead | None:
        c = self.config
        dropout = c.dropout if c.classifier_dropout is None else c.classifier_dropout
        match c.head:
            case None:
                return None
            case "mlm":
                return MaskedHead(
                    dense=nn.Linear(c.d_model, c.d_model),
                    activation=nn.build_activation(c.activation if c.kind == "bert" else "gelu"),
                    norm=nn.LayerNorm(c.d_model, c.eps),
                    decoder=nn.Linear(c.d_model, c.vocab_size),
                )
            case "answer":
                return LinearHead(nn.Dropout(0.0), nn.Linear(c.d_model, 2))
            case "classification" if c.kind != "bert":
                return RobertaHead(
                    pooler=BertPooler(nn.Linear(c.d_model, c.d_model)),
                    dropout=nn.Dropout(dropout),
                    linear=nn.Linear(c.d_model, c.num_classes),
                )
            case _:
                return LinearHead(nn.Dropout(dropout), nn.Linear(c.d_model, c.num_classes))

    def forward(
        self, tokens: Tensor, *, segments: Tensor | None = None, padding: Tensor | None = None
    ) -> Tensor:
        """Encode sequences.

        Args:
            tokens: integers ``[B, L]``.
            segments: the segment of each token, ``[B, L]``; None is 0 for all (transformers'
                ``token_type_ids``).
            padding: booleans ``[B, L]``, True at tokens to ignore (transformers' ``attention_mask == 0``).

        Returns:
            logits, ``[B, L, V]`` with the head ``"mlm"``, ``[B, C]`` with ``"classification"``,
            ``[B, L, C]`` with ``"tokens"``, ``[B, L, 2]`` with ``"answer"``; the last vectors
            ``[B, L, E]`` without a head.

        Raises:
            ShapeError: a sequence longer than the positions, or padding of another shape.
            InputIndexError: a token or segment that the model does not have.
            InputTypeError: `tokens` is not a tensor, or `padding` is not boolean.
        """
        check_tokens(tokens, padding, type(self).__name__, single=True)
        segments = torch.zeros_like(tokens) if segments is None else segments
        x = self.embedding(tokens) + self.segments(segments) + self.positions(self._positions(tokens))
        x = self.dropout(self.norm(x))
        for layer in self.layers:
            x = layer(x, padding)
        if self.pooler is not None and self._pools:
            x = self.pooler(x)
        out: Tensor = x if self.head is None else self.head(x)
        return out

    def _positions(self, tokens: Tensor) -> Tensor:
        """Return the position of each token: ``[L]`` in BERT, ``[B, L]`` in RoBERTa."""
        length = tokens.shape[-1]
        check_length(length, self._longest, "Bert")
        if not self._counts_tokens:
            return torch.arange(length, device=tokens.device)
        padding_idx = self.embedding.padding_idx
        assert padding_idx is not None  # the Config has checked it
        real = torch.ne(tokens, padding_idx)
        return real.cumsum(-1) * real + padding_idx

    @property
    def layouts(self) -> Mapping[str, Layout]:
        """``"hugging_face"``: the layout of transformers' BERT, RoBERTa and XLM-RoBERTa."""
        output = "encoder.layer.*.attention.output"
        qkv = (f"encoder.layer.*.attention.self.{part}" for part in ("query", "key", "value"))
        steps: list[Step] = [
            Drop("embeddings.position_ids"),  # 0, 1, 2, ..., in files of early versions
            ("embeddings.word_embeddings", "embedding"),
            ("embeddings.position_embeddings", "positions"),
            ("embeddings.token_type_embeddings", "segments"),
            *_norm("embeddings.LayerNorm", "norm"),
            *join_qkv(qkv, "layers.*.attention"),
            (f"{output}.dense", "layers.*.attention.out_proj"),
            *_norm(f"{output}.LayerNorm", "layers.*.norm1"),
            ("encoder.layer.*.intermediate.dense", "layers.*.feed_forward.linear1"),
            ("encoder.layer.*.output.dense", "layers.*.feed_forward.linear2"),
            *_norm("encoder.layer.*.output.LayerNorm", "layers.*.norm2"),
            *self._head_steps(),
        ]
        layout = Layout(
            steps,
            prefix="bert" if self.config.kind == "bert" else "roberta",
            heads=("cls", "lm_head", "classifier", "qa_outputs"),
            prefixed=self.head is not None,
        )
        return {"hugging_face": layout}

    def _head_steps(self) -> list[Step]:
        bert = self.config.kind == "bert"
        match self.config.head:
            case "classification" if not bert:
                return [("classifier.dense", "head.pooler.dense"), ("classifier.out_proj", "head.linear")]
            case "classification" | "tokens":
                return [("classifier", "head.linear")]
            case "answer":
                return [("qa_outputs", "head.linear")]
            case "mlm":
                head = "cls.predictions" if bert else "lm_head"
                # Files have the bias under two names. With tied weights both are one tensor, which every file
                # has under the first; else only the second is used.
                bias: list[Step] = [(f"{head}.bias", "head.decoder.bias"), Drop(f"{head}.decoder.bias")]
                return [
                    *(bias if self.config.tied else [Drop(f"{head}.bias")]),
                    (f"{head}.decoder", "head.decoder"),
                    (f"{head}.transform.dense" if bert else f"{head}.dense", "head.dense"),
                    *_norm(f"{head}.transform.LayerNorm" if bert else f"{head}.layer_norm", "head.norm"),
                ]
        return []


def _norm(theirs: str, ours: str) -> list[Step]:
    """Return the steps of a norm, whose parameters have other names in files that came from TensorFlow."""
    names = (("weight", "weight"), ("bias", "bias"), ("gamma", "weight"), ("beta", "bias"))
    return [(f"{theirs}.{old}", f"{ours}.{new}") for old, new in names]
