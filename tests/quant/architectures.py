"""Small models of eight architectures with weights like trained ones, and their inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}
_TEXT: dict[str, Any] = {**_SIZES, "vocab_size": 99, "max_position_embeddings": 64}
_IMAGE: dict[str, Any] = {**_SIZES, "image_size": 32, "patch_size": 8}


def _whisper(hf: Any) -> Any:
    sizes = {f"{part}_{name}": size for part in ("encoder", "decoder") for name, size in _WHISPER.items()}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    config = hf.WhisperConfig(
        d_model=64, vocab_size=99, num_mel_bins=16, max_source_positions=24, **sizes, **ids
    )
    return hf.WhisperModel(config)


_WHISPER = {"layers": 2, "attention_heads": 4, "ffn_dim": 128}


def _clip(hf: Any) -> Any:
    text = {**_TEXT, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return hf.CLIPModel(hf.CLIPConfig(text_config=text, vision_config=_IMAGE, projection_dim=32))


_BUILD: dict[str, tuple[Callable[[Any], Any], tuple[str, ...]]] = {
    "BERT": (lambda hf: hf.BertModel(hf.BertConfig(**_TEXT)), ("input_ids",)),
    "RoBERTa": (lambda hf: hf.RobertaModel(hf.RobertaConfig(**_TEXT)), ("input_ids",)),
    "Llama": (lambda hf: hf.LlamaForCausalLM(hf.LlamaConfig(**_TEXT, num_key_value_heads=2)), ("input_ids",)),
    "Mistral": (
        lambda hf: hf.MistralForCausalLM(hf.MistralConfig(**_TEXT, num_key_value_heads=1, sliding_window=8)),
        ("input_ids",),
    ),
    "T5": (
        lambda hf: hf.T5Model(
            hf.T5Config(d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, vocab_size=99)
        ),
        ("input_ids", "decoder_input_ids"),
    ),
    "ViT": (lambda hf: hf.ViTModel(hf.ViTConfig(**_IMAGE)), ("pixel_values",)),
    "Whisper": (_whisper, ("input_features", "decoder_input_ids")),
    "CLIP": (_clip, ("input_ids", "pixel_values")),
}
NAMES = tuple(_BUILD)


def build(name: str, seed: int) -> tuple[torch.nn.Module, dict[str, Tensor]]:
    """Return a model and inputs.

    Weights have heavy tails, rows of different sizes and a few large columns, as trained ones do.
    """
    import transformers

    torch.manual_seed(seed)
    make, names = _BUILD[name]
    model: torch.nn.Module = make(transformers).eval()
    tails = torch.distributions.StudentT(5.0)
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, torch.nn.Linear):
                rows, columns = layer.weight.shape
                sizes = torch.exp(0.3 * torch.randn(rows, 1)) * torch.where(
                    torch.rand(columns) < 0.02, 4.0, 1.0
                )
                layer.weight.copy_(tails.sample(layer.weight.shape) * sizes / (1.5 * columns**0.5))
                if layer.bias is not None:
                    layer.bias.normal_(0, 0.1)
    inputs = {
        "input_ids": torch.randint(3, 99, (4, 24)),
        "decoder_input_ids": torch.randint(3, 99, (4, 24)),
        "pixel_values": torch.randn(4, 3, 32, 32),
        "input_features": torch.randn(4, 16, 48),
    }
    return model, {name: inputs[name] for name in names}


def outputs(model: torch.nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """Return all results of a model in one vector."""
    wanted = ("logits", "last_hidden_state", "encoder_last_hidden_state", "text_embeds", "image_embeds")
    with torch.no_grad():
        found = model(**inputs)
    return torch.cat([found[name].flatten() for name in wanted if found.get(name) is not None])
