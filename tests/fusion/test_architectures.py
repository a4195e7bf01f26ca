"""Hugging Face architectures, with random weights, through `burnt.compile`."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import burnt
from burnt.errors import FusionWarning

transformers = pytest.importorskip("transformers", reason="an extra: the models are its own")

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

WORDS = {"vocab_size": 200, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64}
GROUPED = {**WORDS, "num_attention_heads": 4, "num_key_value_heads": 2, "use_cache": False}


def ids() -> torch.Tensor:
    return torch.randint(0, 200, (2, 16))


CASES: dict[str, tuple[dict[str, Any], Callable[[], dict[str, torch.Tensor]]]] = {
    "Bert": (
        {**WORDS, "num_attention_heads": 2, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
        lambda: {"input_ids": ids()},
    ),
    "Llama": (GROUPED, lambda: {"input_ids": ids()}),
    "Gemma2": ({**GROUPED, "head_dim": 8}, lambda: {"input_ids": ids()}),
    "T5": (
        {"vocab_size": 200, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4,
         "dropout_rate": 0.0, "use_cache": False},
        lambda: {"input_ids": ids(), "decoder_input_ids": ids()},
    ),
    "ConvNext": (
        {"hidden_sizes": [16, 32], "depths": [1, 2], "num_stages": 2, "patch_size": 2},
        lambda: {"pixel_values": torch.randn(2, 3, 32, 32)},
    ),
    "ResNet": (
        {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "basic"},
        lambda: {"pixel_values": torch.randn(2, 3, 32, 32)},
    ),
}  # fmt: skip


def gradients(model: Any, call: Any, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    call(**inputs).last_hidden_state.cos().mean().backward()
    return {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_as_close_to_float64_as_eager(name: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    settings, make = CASES[name]
    config = getattr(transformers, f"{name}Config")(**settings)
    model, inputs = getattr(transformers, f"{name}Model")(config).train(), make()
    eager, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    wide = {key: value.double() if value.is_floating_point() else value for key, value in inputs.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error", FusionWarning)  # a graph that torch runs
        found = gradients(model, burnt.compile(model), inputs)
    torchs, right = gradients(eager, eager, inputs), gradients(exact, exact, wide)
    largest = max(float(gradient.abs().max()) for gradient in right.values())
    for key, gradient in right.items():
        error, torchs_error = (float((g[key] - gradient).abs().max()) for g in (found, torchs))
        assert error <= 4 * torchs_error + 1e-6 * largest, key
