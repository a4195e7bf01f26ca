"""Llama, Qwen2 and Mistral beside those of transformers, with the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import burnt
from burnt import nn
from burnt.errors import ConfigError, RecordError
from burnt.models import Llama, LlamaConfig
from burnt.nn import rope_scaling
from tests.models.peer import assert_close, assert_gradients_close, assert_round_trip, perturbed, plain

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


@pytest.mark.sample(8)
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


@pytest.mark.sample(5)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shard_bytes", [10_000, 5_000_000_000])
def test_a_snapshot_survives_the_way_through_burnt(variant: str, shard_bytes: int, tmp_path: Path) -> None:
    peer = build_peer(variant)
    sharded = shard_bytes < 1e9
    peer.save_pretrained(tmp_path / "theirs", max_shard_size=shard_bytes)
    model = Llama.from_pretrained(tmp_path / "theirs")
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) > 1 or not sharded
    assert_round_trip(model, peer, tmp_path / "ours", shard_bytes=shard_bytes)
    assert len(list((tmp_path / "ours").glob("*.safetensors"))) > 1 or not sharded


@pytest.mark.parametrize("kind", ["llama", "qwen2", "mistral"])
def test_a_new_config_means_the_same_to_transformers(kind: Any, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    options: dict[str, Any] = {
        "llama": {"attention_bias": True, "activation": "gelu_tanh", "rope": rope_scaling.Llama3(factor=2.0)},
        "qwen2": {
            "window": 3,
            "window_layers": [1],
            "rope": rope_scaling.Yarn(factor=2.0, original_max_len=8),
        },
        "mistral": {"window": 3, "head_dim": 16, "rope": rope_scaling.Linear(factor=2.0), "tied": True},
    }
    model = small(kind=kind, num_kv_heads=2, rope_base=700.0, max_len=16, **options[kind]).eval()
    model.save_pretrained(tmp_path)
    assert LlamaConfig.load_hugging_face(tmp_path / "config.json").replace(other={}) == model.config
    peer = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    tokens, _ = tokens_and_padding(None)
    assert_close(model(tokens), outputs_of(peer, tokens, None))


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
    expected = outputs_of(peer, tokens, None)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    assert_close(outputs_of(again, tokens, None), expected)
    assert_close(Llama.from_pretrained(tmp_path / "ours")(tokens), expected)


@torch.no_grad()
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("variant", ["llama", "qwen2-window", "mistral-window"])
def test_steps_with_a_cache_are_the_whole(variant: str, padded: bool, tmp_path: Path) -> None:
    build_peer(variant).save_pretrained(tmp_path)
    model = Llama.from_pretrained(tmp_path)
    tokens, padding = tokens_and_padding("left" if padded else None)
    cache = model.new_cache(max_len=LENGTH)
    steps = []
    for start, end in ((0, 3), (3, 7), (7, 8), (8, 9)):
        seen = None if padding is None else padding[:, :end]
        steps.append(model(tokens[:, start:end], padding=seen, cache=cache))
    shown = torch.ones_like(tokens, dtype=torch.bool) if padding is None else ~padding
    assert_close(torch.cat(steps, 1)[shown], model(tokens, padding=padding)[shown])


@pytest.mark.parametrize("side", [None, "left", "right"])
def test_classes_are_those_of_transformers(side: str | None, tmp_path: Path) -> None:
    peer = build_peer("qwen2", "classification", num_labels=3, pad_token_id=0)
    peer.save_pretrained(tmp_path / "theirs")
    model = Llama.from_pretrained(tmp_path / "theirs")
    assert model.config.head == "classification"
    assert model.config.num_classes == 3
    tokens, padding = tokens_and_padding(side)
    tokens = tokens if padding is None else tokens.masked_fill(padding, 0)
    ours, theirs = model(tokens, padding=padding), outputs_of(peer, tokens, padding)
    assert_close(ours, theirs)
    ours.square().sum().backward()
    theirs.square().sum().backward()
    assert_gradients_close(model, peer)
    assert_round_trip(model, peer, tmp_path / "ours")


def test_the_body_alone_is_that_of_transformers(tmp_path: Path) -> None:
    peer = build_peer("mistral", head=None)
    peer.save_pretrained(tmp_path / "theirs")
    model = Llama.from_pretrained(tmp_path / "theirs")
    assert model.head is None
    tokens, padding = tokens_and_padding("right")
    assert padding is not None
    assert_close(model(tokens, padding=padding)[~padding], outputs_of(peer, tokens, padding)[~padding])
    assert_round_trip(model, peer, tmp_path / "ours")


def test_tables_of_old_snapshots_are_left_out(tmp_path: Path) -> None:
    state = build_peer("llama").state_dict()
    state["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    model = LlamaConfig.from_hugging_face({"model_type": "llama", **SIZES}).init()
    assert not burnt.load_weights(model, state, layout="hugging_face").unexpected


def small(**options: Any) -> Llama:
    sizes = {"vocab_size": 40, "d_model": 32, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    return LlamaConfig(**{**sizes, **options}).init()


def test_dropout_is_for_training() -> None:
    model = small(dropout=0.5)
    tokens, _ = tokens_and_padding(None)
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))
    assert LlamaConfig.from_hugging_face({"model_type": "llama", "attention_dropout": 0.5}).dropout == 0.5


@pytest.mark.full
def test_the_whole_forward_compiles() -> None:
    model = small(kind="mistral", window=4).eval()
    tokens, padding = tokens_and_padding("left")
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert_close(compiled(tokens, padding=padding), model(tokens, padding=padding))


def test_shapes_are_checked_and_summarised() -> None:
    tokens, _ = tokens_and_padding(None)
    model = small()
    model.check(tokens)
    assert "GatedFeedForward" in str(model.summary(tokens))


def test_a_record_holds_the_model(tmp_path: Path) -> None:
    model = small(rope=rope_scaling.Linear(factor=2.0), tied=True)
    model.save(tmp_path / "m.safetensors")
    again = Llama.load(tmp_path / "m.safetensors")
    tokens, _ = tokens_and_padding(None)
    assert again.config == model.config
    assert torch.equal(again(tokens), model(tokens))
    assert again.head is not None
    assert again.head.weight is again.embedding.weight


def test_lora_trains_it_and_is_merged_before_saving(tmp_path: Path) -> None:
    model = small()
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
    torch.testing.assert_close(Llama.from_pretrained(tmp_path)(tokens), trained)


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


@pytest.mark.parametrize("kind", ["llama", "qwen2", "mistral"])
def test_missing_keys_have_the_defaults_of_transformers(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoConfig.for_model(kind)
    read = LlamaConfig.from_hugging_face({"model_type": kind}).to_hugging_face()
    assert plain(type(theirs)(**read)) == plain(theirs)
