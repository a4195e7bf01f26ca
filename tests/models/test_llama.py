"""Llama, Qwen2 and Mistral beside those of transformers, with the same weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import burnt
from burnt.errors import ConfigError, RecordError
from burnt.models import Llama, LlamaConfig
from burnt.nn import rope_scaling
from tests.models.peer import assert_close, assert_gradients_close, assert_round_trip, perturbed

SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
LENGTH = 9
LONG = {"rope_theta": 5000.0, "factor": 4.0}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "one-kv-head": ("Llama", {"num_key_value_heads": 1}),
    "all-kv-heads": ("Llama", {"num_key_value_heads": None}),
    "head-dim": ("Llama", {"head_dim": 12, "rms_norm_eps": 1e-3}),
    "biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "tied": ("Llama", {"tie_word_embeddings": True}),
    "gelu": ("Llama", {"hidden_act": "gelu"}),
    "gelu-tanh": ("Llama", {"hidden_act": "gelu_new"}),
    "relu": ("Llama", {"hidden_act": "relu"}),
    "pad-token": ("Llama", {"pad_token_id": 3}),
    "rope-theta": ("Llama", {"rope_theta": 500.0}),
    "linear": ("Llama", {"rope_parameters": {"rope_type": "linear", **LONG}}),
    "dynamic": (
        "Llama",
        {"rope_parameters": {"rope_type": "dynamic", **LONG}, "max_position_embeddings": 6},
    ),
    "yarn": (
        "Llama",
        {"rope_parameters": {"rope_type": "yarn", **LONG, "original_max_position_embeddings": 16}},
    ),
    "yarn-options": (
        "Llama",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                **LONG,
                "original_max_position_embeddings": 16,
                "beta_fast": 8,
                "beta_slow": 0.5,
                "mscale": 0.7,
                "mscale_all_dim": 0.3,
                "truncate": False,
            }
        },
    ),
    "llama3": (
        "Llama",
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            }
        },
    ),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2-window": ("Qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
    "qwen2-layers": (
        "Qwen2",
        {
            "use_sliding_window": True,
            "sliding_window": 3,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral-window": ("Mistral", {"sliding_window": 4, "head_dim": 16}),
}
HEADS = {"lm": "ForCausalLM", "classification": "ForSequenceClassification", None: "Model"}


def build_peer(variant: str, head: str | None = "lm", **options: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    family, own = VARIANTS[variant]
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **own, **options})
    torch.manual_seed(0)
    return perturbed(getattr(transformers, f"{family}{HEADS[head]}")(config))


def tokens_and_padding(side: str | None) -> tuple[Tensor, Tensor | None]:
    torch.manual_seed(1)
    tokens = torch.randint(4, SIZES["vocab_size"], (3, LENGTH))
    if side is None:
        return tokens, None
    padding = torch.zeros(3, LENGTH, dtype=torch.bool)
    for row, length in enumerate((2, 0, 5)):
        padding[row, :length] = True
    return tokens, padding if side == "left" else padding.flip(1)


def outputs_of(peer: Any, tokens: Tensor, padding: Tensor | None) -> Tensor:
    mask = None if padding is None else (~padding).long()
    output = peer(tokens, attention_mask=mask)
    result: Tensor = output[0]
    return result


@pytest.mark.sample(keep=("yarn-options", "qwen2-layers", "mistral-window"))
@pytest.mark.parametrize("side", [None, "left", "right"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_outputs_and_gradients_are_those_of_transformers(
    variant: str, side: str | None, tmp_path: Path
) -> None:
    peer = build_peer(variant)
    peer.save_pretrained(tmp_path)
    model = Llama.from_pretrained(tmp_path)
    tokens, padding = tokens_and_padding(side)
    seen = torch.ones_like(tokens, dtype=torch.bool) if padding is None else ~padding
    ours, theirs = model(tokens, padding=padding)[seen], outputs_of(peer, tokens, padding)[seen]
    assert_close(ours, theirs)
    weights = torch.randn(ours.shape)
    (ours * weights).sum().backward()
    (theirs * weights).sum().backward()
    assert_gradients_close(model, peer)
