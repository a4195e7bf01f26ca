"""Llama, Qwen2 and Mistral: rotary encodings of other lengths, options of each kind, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import burnt
from burnt.errors import ConfigError
from burnt.models import Llama, LlamaConfig
from burnt.nn import rope_scaling
from tests.models.decoders import LLAMA as SIZES
from tests.models.decoders import build_peer, outputs_of, tokens_and_padding
from tests.models.decoders import small_llama as small
from tests.models.peer import assert_close


@torch.no_grad()
@pytest.mark.parametrize("max_len", [5, 64])
@pytest.mark.parametrize("variant", ["dynamic", "yarn-options"])
def test_another_longest_sequence_leaves_the_saved_rotary_encoding_as_it_is(
    variant: str, max_len: int, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    peer = build_peer(variant)
    peer.save_pretrained(tmp_path / "theirs")
    model = Llama.from_pretrained(tmp_path / "theirs", max_len=max_len)
    model.save_pretrained(tmp_path / "ours")
    tokens, _ = tokens_and_padding(None)  # longer than the length that dynamic scaling starts from
    expected = outputs_of(peer, tokens)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    assert_close(outputs_of(again, tokens), expected)
    assert_close(Llama.from_pretrained(tmp_path / "ours")(tokens), expected)


def test_tables_of_old_snapshots_are_left_out(tmp_path: Path) -> None:
    state = build_peer("llama").state_dict()
    state["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    model = LlamaConfig.from_hugging_face({"model_type": "llama", **SIZES}).init()
    assert not burnt.load_weights(model, state, layout="hugging_face").unexpected


def test_dropout_is_for_training() -> None:
    model = small(dropout=0.5)
    tokens, _ = tokens_and_padding(None)
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))
    assert LlamaConfig.from_hugging_face({"model_type": "llama", "attention_dropout": 0.5}).dropout == 0.5


@pytest.mark.parametrize(
    ("changes", "where", "expected"),
    [
        ({"hidden_act": "mish"}, "hidden_act", "'silu' | 'gelu'"),
        ({"hidden_act": "silo"}, "hidden_act", "'silu' or 'swish'"),
        ({"hidden_size": 30}, "hidden_size", "a multiple of num_heads = 4, or head_dim"),
        ({"hidden_size": "32"}, "hidden_size", "int"),
        ({"model_type": "mistral", "sliding_window": 0}, "window", "1 or more"),
        ({"model_type": "gemma"}, "model_type", "'llama' or 'qwen2' or 'mistral'"),
        ({"quantization_config": {"bits": 4}}, "quantization_config", None),
        ({"rope_scaling": {"type": "longrope", "factor": 2.0}}, "rope_scaling: rope_type", "'default' or"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling: factor", None),
        ({"rope_scaling": [1]}, "rope_scaling", "an object"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, "rope_scaling: factor", "float"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "rope_parameters: factor", "float"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
            "rope_parameters",
            "one for all features of all layers",
        ),
        ({"partial_rotary_factor": 0.5}, "rope_parameters", "one for all features of all layers"),
    ],
)
def test_what_it_lacks_is_refused(changes: dict[str, Any], where: str, expected: str | None) -> None:
    with pytest.raises(ConfigError) as caught:
        LlamaConfig.from_hugging_face({"model_type": "llama", **SIZES, **changes})
    assert caught.value.where == f"config.json: {where}"
    assert expected is None or expected in str(caught.value.expected)


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2"])
def test_options_of_other_kinds_are_refused(kind: Any) -> None:
    option = {"window": 4} if kind == "llama" else {"attention_bias": True}
    with pytest.raises(ConfigError, match=f"a model of kind '{kind}' has no {next(iter(option))}"):
        LlamaConfig(kind=kind, **option)


def test_ntk_scaling_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json has no such scaling") as caught:
        small(rope=rope_scaling.Ntk(factor=2.0)).save_pretrained(tmp_path)
    assert caught.value.expected == "Linear or DynamicNtk or Yarn or Llama3"
