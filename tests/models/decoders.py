"""What the tests of GPT-2 and Llama share: models of transformers in many variants, and inputs for them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from burnt.models import Gpt2, Gpt2Config, Llama, LlamaConfig
from tests.models.peer import perturbed

LENGTH = 9
GPT2: dict[str, Any] = {
    "vocab_size": 40,
    "n_positions": 24,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
LONG = {"rope_theta": 5000.0, "factor": 4.0}
YARN = {"rope_type": "yarn", **LONG, "original_max_position_embeddings": 16}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", {}),
    "gpt2-sdpa": ("GPT2", {"attn_implementation": "sdpa"}),
    "gpt2-inner": ("GPT2", {"n_inner": 48, "layer_norm_epsilon": 1e-3}),
    "gpt2-gelu": ("GPT2", {"activation_function": "gelu"}),
    "gpt2-gelu-fast": ("GPT2", {"activation_function": "gelu_fast"}),
    "gpt2-relu": ("GPT2", {"activation_function": "relu"}),
    "gpt2-silu": ("GPT2", {"activation_function": "swish"}),
    "gpt2-tanh": ("GPT2", {"activation_function": "tanh"}),
    "gpt2-not-scaled": ("GPT2", {"scale_attn_weights": False}),
    "gpt2-scaled-by-layer": (
        "GPT2",
        {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True},
    ),
    "gpt2-scaled-by-layer-alone": (
        "GPT2",
        {"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True},
    ),
    "gpt2-not-tied": ("GPT2", {"tie_word_embeddings": False}),
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
    "dynamic": ("Llama", {"rope_parameters": {"rope_type": "dynamic", **LONG}, "max_position_embeddings": 6}),
    "yarn": ("Llama", {"rope_parameters": YARN}),
    "yarn-options": (
        "Llama",
        {
            "rope_parameters": {
                **YARN,
                "beta_fast": 8,
                "beta_slow": 0.5,
                "mscale": 0.7,
                "mscale_all_dim": 0.3,
                "truncate": False,
            }
        },
    ),
    "llama3": ("Llama", {"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 16}}),
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


def build_peer(variant: str, head: str | None = "lm", **options: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    family, own = VARIANTS[variant]
    sizes = {"attn_implementation": "eager", **GPT2} if family == "GPT2" else LLAMA
    config = getattr(transformers, f"{family}Config")(**{**sizes, **own, **options})
    ends = {"lm": "ForCausalLM", "classification": "ForSequenceClassification", None: "Model"}
    end = "LMHeadModel" if family == "GPT2" and head == "lm" else ends[head]
    torch.manual_seed(0)
    return perturbed(getattr(transformers, family + end)(config))


def tokens_and_padding(side: str | None) -> tuple[Tensor, Tensor | None]:
    torch.manual_seed(1)
    tokens = torch.randint(4, 40, (3, LENGTH))
    if side is None:
        return tokens, None
    padding = torch.zeros(3, LENGTH, dtype=torch.bool)
    for row, length in enumerate((2, 0, 5)):
        padding[row, :length] = True
    return tokens, padding if side == "left" else padding.flip(1)


def outputs_of(peer: Any, tokens: Tensor, padding: Tensor | None = None) -> Tensor:
    options = {}
    if padding is not None:
        options["attention_mask"] = (~padding).long()
        if peer.config.model_type == "gpt2":  # as its `generate` counts them
            options["position_ids"] = (options["attention_mask"].cumsum(1) - 1).clamp(min=0)
    result: Tensor = peer(tokens, **options)[0]
    return result


def small_gpt2(**options: Any) -> Gpt2:
    sizes = {"vocab_size": 40, "max_len": 24, "d_model": 32, "num_layers": 2, "num_heads": 4}
    return Gpt2Config(**{**sizes, **options}).init()


def small_llama(**options: Any) -> Llama:
    sizes = {"vocab_size": 40, "d_model": 32, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    return LlamaConfig(**{**sizes, **options}).init()
