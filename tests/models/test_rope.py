"""The rotary encoding in config.json: frequencies next to those of transformers, in both spellings."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from burnt import nn
from burnt.models.llama import read_rope, write_rope

LENGTH = {"original_max_position_embeddings": 16}
PARAMETERS: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "yarn": {"factor": 4.0, **LENGTH},
    "yarn, attention_factor": {"factor": 4.0, **LENGTH, "attention_factor": 1.3, "beta_fast": None},
    "yarn, mscale": {"factor": 4.0, **LENGTH, "mscale": 0.7, "mscale_all_dim": 0.3, "beta_slow": 0.5},
    "yarn, truncate": {"factor": 4.0, **LENGTH, "truncate": False, "beta_fast": 8},
    "yarn, no length": {"factor": 4.0},
    "llama3": {"factor": 8.0, **LENGTH, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
}


@pytest.mark.parametrize("spelling", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("name", PARAMETERS)
def test_frequencies_are_those_of_transformers(name: str, spelling: str) -> None:
    transformers = pytest.importorskip("transformers")
    kind = name.partition(",")[0]
    parameters = {"rope_type": kind, **PARAMETERS[name]}
    document: dict[str, Any] = {spelling: dict(parameters)}
    (document[spelling] if spelling == "rope_parameters" else document)["rope_theta"] = 700.0
    base, scaling = read_rope(document, 64, "config.json")
    assert base == 700.0
    ours = nn.RotaryEncoding(24, base, scaling=scaling)

    config = transformers.LlamaConfig(
        hidden_size=96,
        num_attention_heads=4,
        max_position_embeddings=64,
        rope_parameters={**parameters, "rope_theta": 700.0},
    )
    functions = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS
    frequencies, amplitude = functions[kind](config, device="cpu")
    torch.testing.assert_close(ours.inv_freq, frequencies)
    assert scaling is not None
    assert scaling.amplitude() == pytest.approx(amplitude)
    assert read_rope(write_rope(base, scaling, "rope"), 64, "config.json") == (base, scaling)


def test_the_older_name_of_the_type_is_read() -> None:
    scaling = {"type": "dynamic", "factor": 2.0}
    expected = nn.rope_scaling.DynamicNtk(factor=2.0, original_max_len=64)
    assert read_rope({"rope_scaling": scaling}, 64, "config.json") == (10000.0, expected)
    assert read_rope({"rope_scaling": None}, 64, "config.json") == (10000.0, None)
