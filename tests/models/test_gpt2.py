"""GPT-2 beside that of transformers, with the same weights."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import burnt
from burnt import nn
from burnt.errors import ConfigError, RecordError, ShapeError
from burnt.models import Gpt2, Gpt2Config, load_pretrained
from tests.models.peer import assert_close, assert_gradients_close, assert_round_trip, perturbed, plain

SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "n_positions": 24,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LENGTH = 9
HEADS = {"lm": "GPT2LMHeadModel", "classification": "GPT2ForSequenceClassification", None: "GPT2Model"}
VARIANTS: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "sdpa": {"attn_implementation": "sdpa"},
    "inner": {"n_inner": 48, "layer_norm_epsilon": 1e-3},
    "gelu": {"activation_function": "gelu"},
    "gelu-fast": {"activation_function": "gelu_fast"},
    "relu": {"activation_function": "relu"},
    "silu": {"activation_function": "swish"},
    "tanh": {"activation_function": "tanh"},
    "not-scaled": {"scale_attn_weights": False},
    "scaled-by-layer": {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True},
    "scaled-by-layer-alone": {"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True},
    "not-tied": {"tie_word_embeddings": False},
}


def build_peer(variant: str, head: str | None = "lm", **options: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        **{"attn_implementation": "eager", **SIZES, **VARIANTS[variant], **options}
    )
    torch.manual_seed(0)
    return perturbed(getattr(transformers, HEADS[head])(config))


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
    if padding is None:
        result: Tensor = peer(tokens)[0]
        return result
    mask = (~padding).long()
    positions = (mask.cumsum(1) - 1).clamp(min=0)  # as its `generate` counts them
    result = peer(tokens, attention_mask=mask, position_ids=positions)[0]
    return result


def small(**options: Any) -> Gpt2:
    sizes = {"vocab_size": 40, "max_len": 24, "d_model": 32, "num_layers": 2, "num_heads": 4}
    return Gpt2Config(**{**sizes, **options}).init()


@pytest.mark.sample(7)
@pytest.mark.parametrize("side", [None, "left", "right"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_outputs_and_gradients_are_those_of_transformers(
    variant: str, side: str | None, tmp_path: Path
) -> None:
    peer = build_peer(variant)
    peer.save_pretrained(tmp_path)
    model = Gpt2.from_pretrained(tmp_path)
    tokens, padding = tokens_and_padding(side)
    seen = torch.ones_like(tokens, dtype=torch.bool) if padding is None else ~padding
    ours, theirs = model(tokens, padding=padding)[seen], outputs_of(peer, tokens, padding)[seen]
    assert_close(ours, theirs)
    weights = torch.randn(ours.shape)
    (ours * weights).sum().backward()
    (theirs * weights).sum().backward()
    assert_gradients_close(model, peer)


@pytest.mark.sample(4)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shard_bytes", [10_000, 5_000_000_000])
def test_a_snapshot_survives_the_way_through_burnt(variant: str, shard_bytes: int, tmp_path: Path) -> None:
    peer = build_peer(variant)
    sharded = shard_bytes < 1e9
    peer.save_pretrained(tmp_path / "theirs", max_shard_size=shard_bytes)
    model = load_pretrained(tmp_path / "theirs")
    assert isinstance(model, Gpt2)
    assert_round_trip(model, peer, tmp_path / "ours", shard_bytes=shard_bytes)
    assert len(list((tmp_path / "ours").glob("*.safetensors"))) > 1 or not sharded
    texts = [(tmp_path / folder / "generation_config.json").read_text() for folder in ("theirs", "ours")]
    assert json.loads(texts[0]) == json.loads(texts[1])


def test_a_new_config_means_the_same_to_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = small(activation="relu", d_ff=40, scale_scores_by_layer=True, tied=False).eval()
    model.save_pretrained(tmp_path)
    assert Gpt2Config.load_hugging_face(tmp_path / "config.json").replace(other={}) == model.config
    peer = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    tokens, _ = tokens_and_padding(None)
    assert_close(model(tokens), outputs_of(peer, tokens, None))


def test_missing_keys_have_the_defaults_of_transformers() -> None:
    theirs = pytest.importorskip("transformers").GPT2Config()
    read = Gpt2Config.from_hugging_face({"model_type": "gpt2"}).to_hugging_face()
    assert plain(type(theirs)(**read)) == plain(theirs)


@torch.no_grad()
@pytest.mark.parametrize("side", [None, "left", "right"])
def test_steps_with_a_cache_are_the_whole(side: str | None) -> None:
    model = small().eval()
    tokens, padding = tokens_and_padding(side)
    cache = model.new_cache(max_len=LENGTH)
    steps = []
    for start, end in ((0, 3), (3, 7), (7, 8), (8, 9)):
        seen = None if padding is None else padding[:, :end]
        steps.append(model(tokens[:, start:end], padding=seen, cache=cache))
    shown = torch.ones_like(tokens, dtype=torch.bool) if padding is None else ~padding
    whole = model(tokens, padding=padding)
    assert_close(torch.cat(steps, 1)[shown], whole[shown])
    assert_close(model(tokens, padding=padding, last=True), whole[:, -1:])


@pytest.mark.parametrize("side", [None, "left", "right"])
def test_classes_are_those_of_transformers(side: str | None, tmp_path: Path) -> None:
    peer = build_peer("gpt2", "classification", num_labels=3, pad_token_id=0)
    peer.save_pretrained(tmp_path / "theirs")
    model = Gpt2.from_pretrained(tmp_path / "theirs")
    assert (model.config.head, model.config.num_classes) == ("classification", 3)
    tokens, padding = tokens_and_padding(side)
    tokens = tokens if padding is None else tokens.masked_fill(padding, 0)
    ours, theirs = model(tokens, padding=padding), outputs_of(peer, tokens, padding)
    assert_close(ours, theirs)
    ours.square().sum().backward()
    theirs.square().sum().backward()
    assert_gradients_close(model, peer)
    assert_round_trip(model, peer, tmp_path / "ours")


def test_the_body_alone_is_that_of_transformers(tmp_path: Path) -> None:
    peer = build_peer("gpt2", head=None)
    peer.save_pretrained(tmp_path / "theirs")
    model = Gpt2.from_pretrained(tmp_path / "theirs")
    assert model.head is None
    tokens, padding = tokens_and_padding("right")
    assert padding is not None
    assert_close(model(tokens, padding=padding)[~padding], outputs_of(peer, tokens, padding)[~padding])
    assert_round_trip(model, peer, tmp_path / "ours")


def test_heads_that_a_snapshot_lacks(tmp_path: Path) -> None:
    peer = build_peer("gpt2", head=None)
    peer.save_pretrained(tmp_path / "body")
    tokens, _ = tokens_and_padding(None)
    # The head for logits is tied to the embedding, so that nothing is missing.
    model = Gpt2.from_pretrained(tmp_path / "body", head="lm")
    assert_close(model(tokens), outputs_of(peer, tokens, None) @ peer.wte.weight.T)
    model = Gpt2.from_pretrained(tmp_path / "body", head="classification", num_classes=5)
    assert model(tokens).shape == (3, 5)
    model.save_pretrained(tmp_path / "classes")
    document = json.loads((tmp_path / "classes" / "config.json").read_text())
    assert list(document["id2label"].values()) == [f"LABEL_{i}" for i in range(5)]
    body = Gpt2.from_pretrained(tmp_path / "classes", head=None)
    assert_close(body(tokens), outputs_of(peer, tokens, None))
    assert body.load_report is not None
    assert body.load_report.unexpected == ("score.weight",)


def test_untied_heads_have_to_be_in_the_snapshot(tmp_path: Path) -> None:
    build_peer("not-tied", head=None).save_pretrained(tmp_path)
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
    assert_close(model(tokens), outputs_of(peer, tokens, None))


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


@pytest.mark.full
def test_the_whole_forward_compiles() -> None:
    model = small(scale_scores=False).eval()
    tokens, padding = tokens_and_padding("left")
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert_close(compiled(tokens, padding=padding), model(tokens, padding=padding))


def test_shapes_are_checked_and_summarised() -> None:
    tokens, _ = tokens_and_padding(None)
    model = small()
    model.check(tokens)
    assert "PositionWiseFeedForward" in str(model.summary(tokens))


def test_a_record_holds_the_model(tmp_path: Path) -> None:
    model = small(scale_scores=False).eval()
    model.save(tmp_path / "m.safetensors")
    again = Gpt2.load(tmp_path / "m.safetensors").eval()
    tokens, _ = tokens_and_padding(None)
    assert again.config == model.config
    assert torch.equal(again(tokens), model(tokens))
    assert again.head is not None
    assert again.head.weight is again.embedding.weight


def test_lora_trains_it(tmp_path: Path) -> None:
    model = small(dropout=0.0, embedding_dropout=0.0, attention_dropout=0.0)
    nn.lora(model, rank=2)
    tokens, _ = tokens_and_padding(None)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 1.0)
    for _ in range(2):
        model(tokens).square().mean().backward()
        optimizer.step()
    trained = model(tokens)
    nn.merge_lora(model)
    model.save_pretrained(tmp_path)
    torch.testing.assert_close(Gpt2.from_pretrained(tmp_path)(tokens), trained)


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


def test_weights_of_other_sizes_are_refused(tmp_path: Path) -> None:
    build_peer("gpt2").save_pretrained(tmp_path)
    with pytest.raises(RecordError, match=r"positions\.weight"):
        Gpt2.from_pretrained(tmp_path, max_len=25)


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
