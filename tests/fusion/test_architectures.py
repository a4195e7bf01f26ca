"""Hugging Face architectures, with random weights, through `burnt.compile`: 3 steps, and 50 of four."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import burnt
from burnt.errors import FusionWarning

transformers = pytest.importorskip("transformers", reason="an extra: the models are its own")

pytestmark = [pytest.mark.full, pytest.mark.timeout(1200), pytest.mark.filterwarnings("ignore")]

Inputs = dict[str, Tensor]
WORDS = {"vocab_size": 200, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64}
PLAIN = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_attention_heads": 2}
GROUPED = {**WORDS, "num_attention_heads": 4, "num_key_value_heads": 2, "use_cache": False}
PAIRED = {
    "vocab_size": 200, "d_model": 32, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "dropout": 0.0, "use_cache": False,
}  # fmt: skip
PATCHES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}


def ids(length: int = 16) -> Tensor:
    return torch.randint(0, 200, (2, length))


def words() -> Inputs:
    return {"input_ids": ids()}


def pair() -> Inputs:
    return {"input_ids": ids(), "decoder_input_ids": ids()}


def image() -> Inputs:
    return {"pixel_values": torch.randn(2, 3, 32, 32)}


def sound() -> Inputs:
    return {"input_features": torch.randn(2, 8, 40), "decoder_input_ids": ids(8)}


# By the name of the class: its configuration and what makes its inputs.
CASES: dict[str, tuple[dict[str, Any], Callable[[], Inputs]]] = {
    "Albert": ({**WORDS, **PLAIN, "embedding_size": 16}, words),
    "Bart": ({**PAIRED, "encoder_layers": 2, "decoder_layers": 2}, pair),
    "Bert": ({**WORDS, **PLAIN}, words),
    "CLIPVision": ({**PATCHES, "num_attention_heads": 2}, image),
    "ConvNext": ({"hidden_sizes": [16, 32], "depths": [1, 2], "num_stages": 2, "patch_size": 2}, image),
    "DistilBert": (
        {"vocab_size": 200, "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64, "dropout": 0.0,
         "attention_dropout": 0.0},
        words,
    ),
    "Electra": ({**WORDS, **PLAIN, "embedding_size": 16}, words),
    "GPT2": (
        {"vocab_size": 200, "n_embd": 32, "n_layer": 2, "n_head": 2, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
         "attn_pdrop": 0.0, "use_cache": False},
        words,
    ),
    "Gemma2": ({**GROUPED, "head_dim": 8}, words),
    "Llama": (GROUPED, words),
    "Mamba": (
        {"vocab_size": 200, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, "use_cache": False},
        words,
    ),
    "Mistral": (GROUPED, words),
    # Large enough for batch norms at the end: of two numbers they are +-1, and the gradient is rounding.
    "MobileNetV2": (
        {"image_size": 64, "depth_multiplier": 0.35}, lambda: {"pixel_values": torch.randn(8, 3, 64, 64)}
    ),
    "OPT": (
        {"vocab_size": 200, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
         "ffn_dim": 64, "word_embed_proj_dim": 32, "dropout": 0.0, "use_cache": False},
        words,
    ),
    "Phi3": ({**GROUPED, "pad_token_id": 0}, words),
    "Qwen2": (GROUPED, words),
    "ResNet": (
        {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "basic"}, image
    ),
    "Roberta": ({**WORDS, **PLAIN}, words),
    "Swin": (
        {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4],
         "window_size": 4, "drop_path_rate": 0.0},
        image,
    ),
    "T5": (
        {"vocab_size": 200, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4,
         "dropout_rate": 0.0, "use_cache": False},
        pair,
    ),
    "ViT": ({**PATCHES, **PLAIN}, image),
    "Whisper": (
        {**PAIRED, "encoder_layers": 1, "decoder_layers": 1, "num_mel_bins": 8, "max_source_positions": 20,
         "max_target_positions": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
         "decoder_start_token_id": 1},
        sound,
    ),
}  # fmt: skip


# Eager torch itself, with parameters that differ by an ulp, is off by 2e-3 of the loss after three steps.
STEPS = {"MobileNetV2": 1}


def built(name: str) -> tuple[Any, Inputs]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    settings, make = CASES[name]
    config = getattr(transformers, f"{name}Config")(**settings)
    return getattr(transformers, f"{name}Model")(config).train(), make()


def steps(model: Any, call: Any, inputs: Inputs, count: int) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    """The loss of each training step, and the gradients and buffers after it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(count):
        optimizer.zero_grad()
        loss = call(**inputs).last_hidden_state.cos().mean()
        loss.backward()
        gradients = {
            name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
            for name, p in model.named_parameters()
        }
        yield loss.detach(), gradients | {name: b.clone() for name, b in model.named_buffers()}
        optimizer.step()


@pytest.mark.parametrize("name", CASES)
def test_three_steps_are_as_close_to_float64_as_eager(name: str) -> None:
    model, inputs = built(name)
    eager, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    last = copy.deepcopy(model).to(memory_format=torch.channels_last)
    wide = {key: value.double() if value.is_floating_point() else value for key, value in inputs.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error", FusionWarning)  # a graph that torch runs
        count = STEPS.get(name, 3)
        found = list(steps(model, burnt.compile(model), inputs, count))
    of_eager, right = list(steps(eager, eager, inputs, count)), list(steps(exact, exact, wide, count))
    of_images = of_eager
    if "pixel_values" in inputs:
        # In either layout: an activation next to a kink of ReLU6 is rounded to one side or to the other.
        images = {"pixel_values": inputs["pixel_values"].to(memory_format=torch.channels_last)}
        of_images = list(steps(last, last, images, count))
    for number, (ours, torchs, other, exactly) in enumerate(
        zip(found, of_eager, of_images, right, strict=True)
    ):
        of_loss = max(abs(float(t[0] - exactly[0])) for t in (torchs, other))
        torch.testing.assert_close(ours[0].double(), exactly[0], rtol=1e-5, atol=4 * of_loss + 1e-6)
        largest = max(float(t.abs().max()) for t in exactly[1].values() if t.is_floating_point())
        for key, value in exactly[1].items():
            error, *errors = (float((t[1][key] - value).abs().max()) for t in (ours, torchs, other))
            torchs_error = max(errors)
            assert error <= 4 * torchs_error + 1e-6 * largest, (number, key, error, torchs_error, largest)


@pytest.mark.parametrize("name", ["Bert", "Llama", "ResNet", "T5"])
def test_a_curve_differs_as_little_as_with_another_number_of_threads(name: str) -> None:
    model, inputs = built(name)
    copies = [copy.deepcopy(model) for _ in range(2)]

    def curve(model: Any, call: Any) -> Tensor:
        return torch.stack([loss for loss, _ in steps(model, call, inputs, 50)])

    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        of_two = curve(copies[0], copies[0])
        torch.set_num_threads(1)
        of_one, ours = curve(copies[1], copies[1]), curve(model, burnt.compile(model))
    finally:
        torch.set_num_threads(threads)
    assert of_one[-1] < of_one[0]
    allowed = max(2 * float((of_one - of_two).abs().max()), 1e-5 * float(of_one.abs().max()))
    assert float((ours - of_one).abs().max()) <= allowed
