"""Llama, and its layout with other sizes: Qwen2 and Mistral.

``config.json`` has two spellings of the rotary encoding: older files have ``rope_theta`` and
``rope_scaling``, those of transformers 5 both in ``rope_parameters``.

Axes: B batch, L tokens, E the size of a vector, V the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from burnt import nn
from burnt.config import field_values
from burnt.errors import ConfigError
from burnt.models.generation import Decoder
from burnt.models.layer import PreNormLayer
from burnt.models.pretrained import LAYER_KEYS, PretrainedConfig, build, check_heads, check_tokens, join_qkv
from burnt.nn import rope_scaling
from burnt.nn.feed_forward import GateActivation
from burnt.record import Drop, Layout, Step

_KINDS: dict[str, type[rope_scaling.Scaling]] = {
    "linear": rope_scaling.Linear,
    "dynamic": rope_scaling.DynamicNtk,
    "yarn": rope_scaling.Yarn,
    "llama3": rope_scaling.Llama3,
}
_ORIGINAL = "original_max_position_embeddings"


def read_rope(
    document: Mapping[str, Any], max_len: int, where: str
) -> tuple[float, rope_scaling.Scaling | None]:
    """Return base and scaling of the rotary encoding in a ``config.json``; `where` is its name in messages.

    Another encoding, and keys that are missing or of the wrong type, are a ConfigError.
    """
    key = "rope_scaling" if document.get("rope_scaling") else "rope_parameters"
    parameters = document.get(key) or {}
    if not isinstance(parameters, dict):
        raise ConfigError(
            "a rotary encoding cannot be read",
            where=f"{where}: {key}",
            expected="an object",
            found=repr(parameters),
        )
    where = f"{where}: {key}"
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    base = parameters.get("rope_theta", document.get("rope_theta", 10000.0))
    share = parameters.get("partial_rotary_factor", document.get("partial_rotary_factor", 1.0))
    by_layer = [name for name, value in parameters.items() if isinstance(value, dict)]
    if share != 1.0 or by_layer:
        raise ConfigError(
            "the model has no such rotary encoding",
            where=where,
            expected="one for all features of all layers",
            found=f"parameters of {', '.join(by_layer)}" if by_layer else f"partial_rotary_factor {share}",
        )
    if kind == "default":
        return base, None
    if kind not in _KINDS:
        raise ConfigError(
            "the model has no such scaling of its rotary encoding",
            where=f"{where}: rope_type",
            expected=" or ".join(map(repr, ("default", *_KINDS))),
            found=repr(kind),
        )
    values = {name: parameters[name] for name in ("factor",) if name in parameters}
    if kind == "dynamic":
        values["original_max_len"] = max_len
    elif kind in ("yarn", "llama3"):
        values["original_max_len"] = document.get(_ORIGINAL, parameters.get(_ORIGINAL, max_len))
    if kind == "llama3":
        values |= {name: parameters.get(name) for name in ("factor", "low_freq_factor", "high_freq_factor")}
    elif kind == "yarn":
        values |= _read_yarn(parameters, max_len / values["original_max_len"])
    try:
        return base, _KINDS[kind].from_dict({"type": _KINDS[kind].__name__, **values})
    except ConfigError as error:
        error.where = f"{where}: {error.where}"
        raise


def _read_yarn(parameters: Mapping[str, Any], ratio: float) -> dict[str, Any]:
    """Return the fields of `rope_scaling.Yarn` but for the length; zero and null are the defaults."""
    values = {name: parameters[name] for name in ("beta_fast", "beta_slow") if parameters.get(name)}
    factor = values["factor"] = parameters.get("factor") or ratio
    values["truncate"] = parameters.get("truncate", True)
    values["attention_factor"] = parameters.get("attention_factor")
    above, below = parameters.get("mscale"), parameters.get("mscale_all_dim")
    if values["attention_factor"] is None and above and below:  # as in DeepSeek's models
        growth = 0.1 * math.log(max(factor, 1.0))
        values["attention_factor"] = (growth * above + 1) / (growth * below + 1)
    return values


def write_rope(base: float, scaling: rope_scaling.Scaling | None, where: str) -> dict[str, Any]:
    """Return the keys of ``config.json``, as all versions of transformers read them."""
    if scaling is None:
        return {"rope_theta": base, "rope_scaling": None}
    kind = next((name for name, known in _KINDS.items() if type(scaling) is known), None)
    if kind is None:
        raise ConfigError(
            "config.json has no such scaling of a rotary encoding",
            where=where,
            expected=" or ".join(known.__name__ for known in _KINDS.values()),
            found=repr(scaling),
        )
    values = {name: value for name, value in field_values(scaling).items() if value is not None}
    original = values.pop("original_max_len", None)
    if original is not None and kind != "dynamic":  # that has max_position_embeddings
        values[_ORIGINAL] = original
    return {"rope_theta": base, "rope_scaling": {"rope_type": kind, **values}}


class LlamaConfig(PretrainedConfig):
    """What a `Llama` consists of.

    Args:
        vocab_size: number V of tokens.
        d_model: size E of the vectors.
        d_ff: size between the Linears of a feed-forward.
        num_layers: number of layers.
        num_heads: heads of the queries.
        num_kv_heads: heads of keys and values; None is `num_heads`.
        head_dim: size of a head; None is ``d_model / num_heads``.
        max_len: the longest sequence of the training. Longer ones are computed, too.
        activation: activation of the gate of a feed-forward.
        eps: added to the mean square in the norms.
        dropout: probability of dropping an attention weight while training.
        init_std: standard deviation of the initial weights.
        rope_base: base of the rotary encoding.
        rope: scaling of the rotary encoding.
        window: how many tokens a token sees, itself included; None is all before it. For Mistral and Qwen2.
        window_layers: indices of the layers with the window; None is all. For Qwen2.
        attention_bias: whether the projections of the attention have biases. For Llama; Qwen2 always has
            them for queries, keys and values, Mistral none.
        feed_forward_bias: whether the Linears of the feed-forwards have biases. For Llama.
        pad_token: token whose embedding is not trained.
        tied: whether the head for logits shares the embedding's weight.
        head: ``"lm"`` for logits over the vocabulary, ``"classification"`` for logits over `num_classes`
            classes from the last token, None for the vectors of all tokens.
        num_classes: number C of classes.
        kind: model type in ``config.json``.

    Raises:
        ConfigError: sizes do not fit each other, or a model of this `kind` has no such option.
    """

    vocab_size: int = 32000
    d_model: int = 4096
    d_ff: int = 11008
    num_layers: int = 32
    num_heads: int = 32
    num_kv_heads: int | None = None
    head_dim: int | None = None
    max_len: int = 2048
    activation: GateActivation = "silu"
    eps: float = 1e-6
    dropout: float = 0.0
    init_std: float = 0.02
    rope_base: float = 10000.0
    rope: rope_scaling.Scaling | None = None
    window: int | None = None
    window_layers: list[int] | None = None
    attention_bias: bool = False
    feed_forward_bias: bool = False
    pad_token: int | None = None
    tied: bool = False
    head: Literal["lm", "classification"] | None = "lm"
    num_classes: int = 2
    kind: Literal["llama", "qwen2", "mistral"] = "llama"

    _MODEL_TYPES: ClassVar[Mapping[str, str]] = {"llama": "Llama", "qwen2": "Qwen2", "mistral": "Mistral"}
    _HEADS: ClassVar[Mapping[str, str | None]] = {
        "ForCausalLM": "lm",
        "ForSequenceClassification": "classification",
        "Model": None,
    }
    _KEYS: ClassVar[Mapping[str, str]] = {
        **LAYER_KEYS,
        "vocab_size": "vocab_size",
        "num_kv_heads": "num_key_value_heads",
        "head_dim": "head_dim",
        "max_len": "max_position_embeddings",
        "eps": "rms_norm_eps",
        "dropout": "attention_dropout",
        "pad_token": "pad_token_id",
        "tied": "tie_word_embeddings",
        "kind": "model_type",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, kinds in _OPTIONS.items():
            if getattr(self, name) and self.kind not in kinds:
                raise ConfigError(
                    f"a model of kind {self.kind!r} has no {name}",
                    where=name,
                    expected=f"kind={' or '.join(map(repr, kinds))}",
                    found=f"{name}={getattr(self, name)!r}",
                )
        if self.head_dim is None:
            check_heads(self.d_model, self.num_heads, ", or head_dim")
        if self.window is not None and self.window < 1:
            raise ConfigError("a token sees itself", where="window", expected="1 or more", found=self.window)

    def init(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Llama:
        """Build the model, with new weights."""
        return build(Llama, self, device, dtype)

    def to_hugging_face(self) -> dict[str, Any]:
        """Return the contents of the ``config.json`` of this model."""
        document = super().to_hugging_face()
        if self.num_kv_heads is None:
            document["num_key_value_heads"] = self.num_heads
        if self.head_dim is None:
            del document["head_dim"]
        if self.kind == "llama":
            document |= {"attention_bias": self.attention_bias, "mlp_bias": self.feed_forward_bias}
        elif self.kind == "mistral":
            document["sliding_window"] = self.window
        else:
            windowed = self._windowed()
            document |= {
                "use_sliding_window": self.window is not None,
                "sliding_window": self.window,
                "layer_types": [
                    f"{'sliding' if i in windowed else 'full'}_attention" for i in range(self.num_layers)
                ],
            }
        if isinstance(self.rope, rope_scaling.DynamicNtk):  # transformers scales from this length on
            document["max_position_embeddings"] = self.rope.original_max_len
        max_len = document["max_position_embeddings"]
        is_written = "rope_theta" in document or "rope_parameters" in document
        if not is_written or read_rope(document, max_len, "other") != (self.rope_base, self.rope):
            document.pop("rope_parameters", None)
            document |= write_rope(self.rope_base, self.rope, "rope")
        return document

    @classmethod
    def _fields_of(cls, document: dict[str, Any], where: str) -> tuple[dict[str, Any], dict[str, Any]]:
        values, rest = super()._fields_of({**_DEFAULTS[document["model_type"]], **document}, where)
        values["rope_base"], values["rope"] = read_rope(rest, values["max_len"], where)
        match values["kind"]:
            case "llama":
                values["attention_bias"] = rest.pop("attention_bias", False)
                values["feed_forward_bias"] = rest.pop("mlp_bias", False)
            case "mistral":
                values["window"] = rest.pop("sliding_window")
            case "qwen2":
                window, first = rest.pop("sliding_window"), rest["max_window_layers"]
                kinds = rest.pop("layer_types", None)
                if rest.pop("use_sliding_window"):
                    values["window"] = window
                    values["window_layers"] = [
                        i
                        for i in range(values["num_layers"])
                        if (i >= first if kinds is None else kinds[i] == "sliding_attention")
                    ]
        return values, rest

    def _windowed(self) -> Collection[int]:
        """Return the indices of the layers with a window."""
        if self.window is None:
            return ()
        return range(self.num_layers) if self.window_layers is None else self.window_layers


_OPTIONS = {
    "attention_bias": ("llama",),
    "feed_forward_bias": ("llama",),
    "window": ("mistral", "qwen2"),
    "window_layers": ("qwen2",),
}
"""The kinds that have an option."""

_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {"max_position_embeddings": 2048},  # `read_rope` needs it
    "mistral": {
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
    "qwen2": {
        "vocab_size": 151936,
        "intermediate_size": 22016,
        "num_key_value_heads": 32,
        "max_position_embeddings": 32768,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
}
"""What transformers takes for keys that a ``config.json`` lacks, where the field has another default."""


class Llama(Decoder[LlamaConfig]):
    """A decoder of rotary attention with grouped queries, RMS norms and gated feed-forwards.

    Args:
        config: its `LlamaConfig`; ``config.init()`` builds it, too.

    Touvron et al., 2023; Jiang et al., 2023 (Mistral); Yang et al., 2024 (Qwen2).

    >>> from burnt.models import LlamaConfig
    >>> config = LlamaConfig(vocab_size=100, d_model=32, d_ff=64, num_layers=2, num_heads=4, num_kv_heads=2)
    >>> config.init()(torch.tensor([[5, 17, 99]])).shape
    torch.Size([1, 3, 100])
    """

    config_class = LlamaConfig

    rotary: nn.RotaryEncoding

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        c = config
        head_dim = c.d_model // c.num_heads if c.head_dim is None else c.head_dim
        self.embedding = nn.Embedding(c.vocab_size, c.d_model, c.pad_token)
        self.rotary = nn.RotaryEncoding(head_dim, c.rope_base, scaling=c.rope)
        self.layers = [
            PreNormLayer(
                norm1=nn.RmsNorm(c.d_model, c.eps),
                attention=nn.MultiHeadAttention(
                    c.d_model,
                    c.num_heads,
                    num_kv_heads=c.num_kv_heads,
                    head_dim=head_dim,
                    dropout=c.dropout,
                    bias=c.attention_bias or c.kind == "qwen2",
                    out_bias=c.attention_bias,
                    rotary=self.rotary,
                ),
                norm2=nn.RmsNorm(c.d_model, c.eps),
                feed_forward=nn.GatedFeedForward(
                    c.d_model, c.d_ff, activation=c.activation, bias=c.feed_forward_bias
                ),
                dropout=nn.Identity(),
            )
            for _ in range(c.num_layers)
        ]
        self.norm = nn.RmsNorm(c.d_model, c.eps)
        self._add_head()

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
            padding: booleans ``[B, S]``, True at tokens to ignore, at either end; S counts those in `cache`,
                too.
            cache: what `new_cache` returned, with the tokens before these; theirs are added.
            last: compute only the logits of the last token, ``[B, 1, V]``.

        Returns:
            ``[B, L, V]`` with the head ``"lm"``, ``[B, C]`` of the last token that is not padding with the
            head ``"classification"``, and the normalised vectors ``[B, L, E]`` without a head.

        Raises:
            ShapeError: `padding` or `cache` do not fit.
            InputIndexError: a token outside the vocabulary, on the CPU.
            InputTypeError: `tokens` is not a tensor, or `padding` is not boolean.
        """
        check_tokens(tokens, padding, type(self).__name__)
        start = cache[0].length if cache else 0
        hidden = self._outside_window(tokens, start)
        cos_sin = self.rotary.cos_sin(tokens.shape[1], start)
        windowed = self.config._windowed()
        x = self.embedding(tokens)
        for index, layer in enumerate(self.layers):
            x = layer(
                x,
                attn_mask=hidden if index in windowed else None,
                key_padding_mask=padding,
                is_causal=True,
                cache=None if cache is None else cache[index],
                offset=cos_sin,
            )
        return self._output(x, padding, last)

    @property
    def layouts(self) -> Mapping[str, Layout]:
        """``"hugging_face"``: the layout of transformers' Llama, Qwen2 and Mistral."""
        attention = self.layers[0].attention
        heads = (attention.num_heads, attention.num_kv_heads, attention.num_kv_heads)
        sizes = tuple(number * attention.head_dim for number in heads)
        qkv = (f"layers.*.self_attn.{x}_proj" for x in "qkv")
        steps: list[Step] = [
            ("embed_tokens", "embedding"),
            Drop("layers.*.self_attn.rotary_emb"),
            *join_qkv(qkv, "layers.*.attention", sizes),
            ("layers.*.self_attn.o_proj", "layers.*.attention.out_proj"),
            ("layers.*.mlp", "layers.*.feed_forward"),
            ("layers.*.input_layernorm", "layers.*.norm1"),
            ("layers.*.post_attention_layernorm", "layers.*.norm2"),
            ("score" if self.config.head == "classification" else "lm_head", "head"),
        ]
        heads_of_file = ("lm_head", "score")
        prefixed = self.head is not None
        return {"hugging_face": Layout(steps, prefix="model", heads=heads_of_file, prefixed=prefixed)}

    def _outside_window(self, tokens: Tensor, start: int) -> Tensor | None:
        """Return the mask of keys before the window, ``[L, S]``; None if all are within it."""
        length, window = tokens.shape[1], self.config.window
        if window is None or start + length <= window:
            return None
        mask = torch.ones(length, start + length, dtype=torch.bool, device=tokens.device)
        return mask.tril(start - window)
