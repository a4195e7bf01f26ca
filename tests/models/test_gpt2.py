"""GPT-2: heads, files of early versions, new weights, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import burnt
from burnt.errors import ConfigError, ShapeError
from burnt.models import Gpt2, Gpt2Config
from tests.models.decoders import GPT2 as SIZES
from tests.models.decoders import build_peer, outputs_of, tokens_and_padding
from tests.models.decoders import small_gpt2 as small
from tests.models.peer import assert_close


def test_heads_that_a_snapshot_lacks(tmp_path: Path) -> None:
    peer = build_peer("gpt2", head=None)
    peer.save_pretrained(tmp_path / "body")
    tokens, _ = tokens_and_padding(None)
    # The head for logits is tied to the embedding, so that nothing is missing.
    model = Gpt2.from_pretrained(tmp_path / "body", head="lm")
    assert_close(model(tokens), outputs_of(peer, tokens) @ peer.wte.weight.T)
    model = Gpt2.from_pretrained(tmp_path / "body", head="classification", num_classes=5)
    assert model(tokens).shape == (3, 5)
    model.save_pretrained(tmp_path / "classes")
    document = json.loads((tmp_path / "classes" / "config.json").read_text())
    assert list(document["id2label"].values()) == [f"LABEL_{i}" for i in range(5)]
    body = Gpt2.from_pretrained(tmp_path / "classes", head=None)
    assert_close(body(tokens), outputs_of(peer, tokens))
    assert body.load_report is not None
    assert body.load_report.unexpected == ("score.weight",)


def test_untied_heads_have_to_be_in_the_snapshot(tmp_path: Path) -> None:
    build_peer("gpt2-not-tied", head=None).save_pretrained(tmp_path)
    document = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**document, "architectures": ["GPT2LMHeadModel"]}))
    with pytest.warns(UserWarning, match=r"has no head\.weight: these weights are new"):
        model = Gpt2.from_pretrained(tmp_path)
    assert model.head is not None
    assert model.head.weight.isfinite().all()


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_files_of_early_versions_are_read(prefix: str) -> None:
    peer = build_peer("gpt2")
    state = {f"{prefix}{name}": value for name, value in peer.transformer.state_dict().items()}
    for layer in range(2):
        state[f"{prefix}h.{layer}.attn.bias"] = torch.ones(1, 1, 24, 24).tril()
        state[f"{prefix}h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    if prefix:
        state["lm_head.weight"] = peer.lm_head.weight
    model = Gpt2Config.from_hugging_face({"model_type": "gpt2", **SIZES, "n_ctx": 24}).init().eval()
    burnt.load_weights(model, state, layout="hugging_face")
    tokens, _ = tokens_and_padding(None)
    assert_close(model(tokens), outputs_of(peer, tokens))


def test_other_names_of_keys_are_read() -> None:
    document = {"model_type": "gpt2", "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
    config = Gpt2Config.from_hugging_face({**document, "max_position_embeddings": 7})
    assert (config.d_model, config.num_layers, config.num_heads, config.max_len) == (32, 3, 2, 7)


def test_new_weights_are_those_of_the_paper() -> None:
    model = small(d_model=128, num_layers=8, init_std=0.05)
    assert math.isclose(model.embedding.weight.std().item(), 0.05, rel_tol=0.1)
    attention = model.layers[3].attention
    assert math.isclose(attention.in_proj_weight.std().item(), 0.05, rel_tol=0.1)
    for residual in (attention.out_proj, model.layers[3].feed_forward.linear2):
        assert math.isclose(residual.weight.std().item(), 0.05 / 4, rel_tol=0.1)
        assert not residual.bias.any()
    assert (model.layers[3].norm1.weight == 1).all()


@pytest.mark.parametrize("field", ["dropout", "embedding_dropout", "attention_dropout"])
def test_dropout_is_for_training(field: str) -> None:
    key = {"dropout": "resid_pdrop", "embedding_dropout": "embd_pdrop", "attention_dropout": "attn_pdrop"}
    keys = {**dict.fromkeys(key.values(), 0.0), key[field]: 0.5}
    model = Gpt2Config.from_hugging_face({"model_type": "gpt2", **SIZES, **keys}).init()
    tokens, _ = tokens_and_padding(None)
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))


@pytest.mark.parametrize(
    ("changes", "where", "expected"),
    [
        ({"activation_function": "quick_gelu"}, "activation_function", "'gelu_python' or 'gelu_new'"),
        ({"add_cross_attention": True}, "add_cross_attention", "False"),
        ({"model_type": "gpt_neo"}, "model_type", "'gpt2'"),
        ({"n_embd": "32"}, "n_embd", "int"),
        ({"n_embd": 30}, "n_embd", "a multiple of num_heads = 4"),
    ],
)
def test_what_it_lacks_is_refused(changes: dict[str, Any], where: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Gpt2Config.from_hugging_face({"model_type": "gpt2", **SIZES, **changes})
    assert caught.value.where == f"config.json: {where}"
    assert expected in str(caught.value.expected)


def test_sequences_that_do_not_fit_are_refused() -> None:
    model = small()
    with pytest.raises(ShapeError, match="longer than the model's positions") as caught:
        model(torch.zeros(1, 25, dtype=torch.long))
    assert (caught.value.expected, caught.value.found) == ("at most 24 tokens", 25)
    cache = model.new_cache()
    model(torch.zeros(1, 20, dtype=torch.long), cache=cache)
    with pytest.raises(ShapeError, match="longer than the model's positions"):
        model(torch.zeros(1, 5, dtype=torch.long), cache=cache)
    with pytest.raises(ShapeError, match="padding does not fit the tokens") as caught:
        model(torch.zeros(2, 5, dtype=torch.long), padding=torch.zeros(2, 4, dtype=torch.bool))
    assert caught.value.expected == "(2, 5), a value for each token"
