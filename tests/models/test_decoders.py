"""What holds for GPT-2, Llama, Qwen2 and Mistral: they are those of transformers with the same weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from burnt import nn
from burnt.errors import RecordError
from burnt.models import load_pretrained
from burnt.nn import rope_scaling
from tests.models.decoders import (
    LENGTH,
    VARIANTS,
    build_peer,
    outputs_of,
    small_gpt2,
    small_llama,
    tokens_and_padding,
)
from tests.models.peer import assert_close, assert_gradients_close, assert_round_trip, backward_both, plain

sides = pytest.mark.parametrize("side", [None, "left", "right"])
SMALL = {"gpt2": small_gpt2, "llama": small_llama}


@pytest.mark.sample(15)
@sides
@pytest.mark.parametrize("variant", VARIANTS)
def test_outputs_and_gradients_are_those_of_transformers(
    variant: str, side: str | None, tmp_path: Path
) -> None:
    peer = build_peer(variant)
    peer.save_pretrained(tmp_path)
    model = load_pretrained(tmp_path)
    tokens, padding = tokens_and_padding(side)
    seen = torch.ones_like(tokens, dtype=torch.bool) if padding is None else ~padding
    ours, theirs = model(tokens, padding=padding)[seen], outputs_of(peer, tokens, padding)[seen]
    assert_close(ours, theirs)
    backward_both(ours, theirs)
    assert_gradients_close(model, peer)


@pytest.mark.sample(9)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shard_bytes", [10_000, 5_000_000_000])
def test_a_snapshot_survives_the_way_through_burnt(variant: str, shard_bytes: int, tmp_path: Path) -> None:
    peer = build_peer(variant)
    peer.save_pretrained(tmp_path / "theirs", max_shard_size=shard_bytes)
    model = load_pretrained(tmp_path / "theirs")
    assert_round_trip(model, peer, tmp_path / "ours", shard_bytes=shard_bytes)
    for folder in ("theirs", "ours"):
        assert len(list((tmp_path / folder).glob("*.safetensors"))) > 1 or shard_bytes > 1e9
    texts = [(tmp_path / folder / "generation_config.json").read_text() for folder in ("theirs", "ours")]
    assert json.loads(texts[0]) == json.loads(texts[1])


LLAMAS: dict[str, Any] = {"num_kv_heads": 2, "rope_base": 700.0, "max_len": 16}
CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {"activation": "relu", "d_ff": 40, "scale_scores_by_layer": True, "tied": False},
    "llama": {"attention_bias": True, "activation": "gelu_tanh", "rope": rope_scaling.Llama3(factor=2.0)},
    "qwen2": {"window": 3, "window_layers": [1], "rope": rope_scaling.Yarn(factor=2.0, original_max_len=8)},
    "mistral": {"window": 3, "head_dim": 16, "rope": rope_scaling.Linear(factor=2.0), "tied": True},
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_new_config_means_the_same_to_transformers(kind: Any, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    options = CONFIGS[kind]
    model: Any = small_gpt2(**options) if kind == "gpt2" else small_llama(kind=kind, **LLAMAS, **options)
    model.eval().save_pretrained(tmp_path)
    again = type(model.config).load_hugging_face(tmp_path / "config.json")
    assert again.replace(other={}) == model.config
    peer = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    tokens, _ = tokens_and_padding(None)
    assert_close(model(tokens), outputs_of(peer, tokens))


@pytest.mark.parametrize("kind", CONFIGS)
def test_missing_keys_have_the_defaults_of_transformers(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoConfig.for_model(kind)
    config: Any = type((small_gpt2 if kind == "gpt2" else small_llama)().config)
    read = config.from_hugging_face({"model_type": kind}).to_hugging_face()
    assert plain(type(theirs)(**read)) == plain(theirs)


@torch.no_grad()
@pytest.mark.parametrize("side", [None, "left"])
@pytest.mark.parametrize("variant", ["gpt2", "llama", "qwen2-window", "mistral-window"])
def test_steps_with_a_cache_are_the_whole(variant: str, side: str | None, tmp_path: Path) -> None:
    build_peer(variant).save_pretrained(tmp_path)
    model: Any = load_pretrained(tmp_path)
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


@sides
@pytest.mark.parametrize("variant", ["gpt2", "qwen2"])
def test_classes_are_those_of_transformers(variant: str, side: str | None, tmp_path: Path) -> None:
    peer = build_peer(variant, "classification", num_labels=3, pad_token_id=0)
    peer.save_pretrained(tmp_path / "theirs")
    model = load_pretrained(tmp_path / "theirs")
    assert (model.config.head, model.config.num_classes) == ("classification", 3)
    tokens, padding = tokens_and_padding(side)
    tokens = tokens if padding is None else tokens.masked_fill(padding, 0)
    ours, theirs = model(tokens, padding=padding), outputs_of(peer, tokens, padding)
    assert_close(ours, theirs)
    backward_both(ours, theirs)
    assert_gradients_close(model, peer)
    assert_round_trip(model, peer, tmp_path / "ours")


@pytest.mark.parametrize("variant", ["gpt2", "mistral"])
def test_the_body_alone_is_that_of_transformers(variant: str, tmp_path: Path) -> None:
    peer = build_peer(variant, head=None)
    peer.save_pretrained(tmp_path / "theirs")
    model = load_pretrained(tmp_path / "theirs")
    assert model.head is None
    tokens, padding = tokens_and_padding("right")
    assert padding is not None
    assert_close(model(tokens, padding=padding)[~padding], outputs_of(peer, tokens, padding)[~padding])
    assert_round_trip(model, peer, tmp_path / "ours")


@pytest.mark.full
@pytest.mark.parametrize(
    "model", [small_gpt2(scale_scores=False), small_llama(kind="mistral", window=4)], ids=["gpt2", "mistral"]
)
def test_the_whole_forward_compiles(model: Any) -> None:
    model.eval()
    tokens, padding = tokens_and_padding("left")
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert_close(compiled(tokens, padding=padding), model(tokens, padding=padding))


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("model", "part"),
    [
        (small_gpt2(scale_scores=False), "PositionWiseFeedForward"),
        (small_llama(rope=rope_scaling.Linear(factor=2.0), tied=True), "GatedFeedForward"),
    ],
    ids=["gpt2", "llama"],
)
def test_it_is_checked_summarised_and_recorded(model: Any, part: str, tmp_path: Path) -> None:
    tokens, _ = tokens_and_padding(None)
    model.check(tokens)
    assert part in str(model.summary(tokens))
    model.save(tmp_path / "m.safetensors")
    again = type(model).load(tmp_path / "m.safetensors").eval()
    assert again.config == model.config
    assert torch.equal(again(tokens), model.eval()(tokens))
    assert again.head.weight is again.embedding.weight


@pytest.mark.parametrize("kind", SMALL)
def test_lora_trains_it_and_is_merged_before_saving(kind: str, tmp_path: Path) -> None:
    model: Any = SMALL[kind]().eval()
    model.save_pretrained(tmp_path)
    nn.lora(model, rank=2)
    tokens, _ = tokens_and_padding(None)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 1.0)
    for _ in range(2):
        model(tokens).square().mean().backward()
        optimizer.step()
    trained = model(tokens)
    with pytest.raises(RecordError, match="a snapshot cannot hold LoRA adapters") as caught:
        model.save_pretrained(tmp_path)
    assert "merge_lora(model) adds them" in str(caught.value)
    nn.merge_lora(model)
    model.save_pretrained(tmp_path)
    torch.testing.assert_close(load_pretrained(tmp_path)(tokens), trained)
