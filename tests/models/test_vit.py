"""ViT next to that of transformers with the same weights, and a reference with timm's names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import burnt
from burnt.errors import ConfigError, RecordError, ShapeError
from burnt.models import ViT, ViTConfig
from burnt.record.layouts import timm_vit
from tests.models.peer import assert_close, assert_round_trip, backward_both, perturbed

SIZES: dict[str, Any] = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "image_size": 12,
    "patch_size": 4,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no-qkv-bias": {"qkv_bias": False, "num_labels": 5},
    "gelu-tanh": {"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-2},
    "relu": {"hidden_act": "relu", "pooler_output_size": 7, "pooler_act": "sigmoid"},
    "rectangles": {"image_size": [12, 20], "patch_size": [6, 4], "num_channels": 1},
    "head-dim": {"head_dim": 5, "attn_implementation": "eager"},
    "labels": {"id2label": {0: "cat", 1: "dog", 2: "owl"}, "label2id": {"cat": 0, "dog": 1, "owl": 2}},
}
SMALL = ViTConfig(image_size=12, patch_size=4, d_model=24, d_ff=40, num_layers=2, num_heads=3)


def build_peer(variant: str = "plain", head: str | None = "classification", **options: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(**{**SIZES, **VARIANTS[variant], **options})
    torch.manual_seed(0)
    kind = transformers.ViTModel if head is None else transformers.ViTForImageClassification
    return perturbed(kind(config))


def images_for(peer: Any, *size: int) -> Tensor:
    given = peer.config.image_size
    height, width = size or ((given, given) if isinstance(given, int) else given)
    torch.manual_seed(1)
    return torch.randn(2, peer.config.num_channels, height, width)


def assert_gradients_close(model: ViT, peer: Any) -> None:
    """Compare all gradients; transformers' modules have other names than its files, and both are read."""
    theirs = {path: p.grad for path, p in peer.named_parameters()}
    gradients = model.config.init()
    burnt.load_weights(gradients, theirs, layout="hugging_face")
    wanted = dict(gradients.named_parameters())
    for path, parameter in model.named_parameters():
        assert parameter.grad is not None, path
        assert_close(parameter.grad, wanted[path], 1e-4)


@pytest.mark.sample(keep=("no-qkv-bias", "rectangles"))
@pytest.mark.parametrize("variant", VARIANTS)
def test_classes_and_gradients_are_those_of_transformers(variant: str, tmp_path: Path) -> None:
    peer = build_peer(variant)
    peer.save_pretrained(tmp_path)
    model = ViT.from_pretrained(tmp_path)
    images = images_for(peer)
    ours, theirs = model(images), peer(images).logits
    assert_close(ours, theirs)
    backward_both(ours, theirs)
    assert_gradients_close(model, peer)


@pytest.mark.sample(keep=("relu",))
@pytest.mark.parametrize("variant", ["plain", "relu", "rectangles"])
def test_vectors_and_pooler_are_those_of_transformers(variant: str, tmp_path: Path) -> None:
    peer = build_peer(variant, head=None)
    peer.save_pretrained(tmp_path)
    model = ViT.from_pretrained(tmp_path)
    images = images_for(peer)
    wanted = peer(images)
    vectors = model(images)
    assert model.pooler is not None
    pooled = model.pooler(vectors)
    assert_close(vectors, wanted.last_hidden_state)
    assert_close(pooled, wanted.pooler_output)
    (vectors.square().sum() + pooled.sum()).backward()
    (wanted.last_hidden_state.square().sum() + wanted.pooler_output.sum()).backward()
    assert_gradients_close(model, peer)


@pytest.mark.sample(2)
@pytest.mark.parametrize("size", [(12, 12), (16, 8), (20, 24), (8, 8), (13, 15), (36, 4)])
def test_other_sizes_are_those_of_transformers(size: tuple[int, int]) -> None:
    peer = build_peer()
    model = ViTConfig.from_hugging_face(peer.config.to_dict()).init().eval()
    burnt.load_weights(model, peer.state_dict(), layout="hugging_face")
    images = images_for(peer, *size)
    ours, theirs = (model(images, interpolate=True), peer(images, interpolate_pos_encoding=True).logits)
    assert_close(ours, theirs)
    backward_both(ours, theirs)
    assert_gradients_close(model, peer)


@pytest.mark.parametrize("key", ["hidden_dropout_prob", "attention_probs_dropout_prob"])
def test_dropout_is_where_transformers_has_it(key: str) -> None:
    # With a probability of 1 the result is not random.
    peer = build_peer(**{key: 1.0, "attn_implementation": "eager"})
    model = ViTConfig.from_hugging_face(peer.config.to_dict()).init()
    burnt.load_weights(model, peer.state_dict(), layout="hugging_face")
    images = images_for(peer)
    evaluated = model.eval()(images)
    assert_close(evaluated, peer.eval()(images).logits)
    trained = model.train()(images)
    assert_close(trained, peer.train()(images).logits)
    assert not torch.equal(trained, evaluated)


@pytest.mark.sample(keep=("labels",))
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("head", ["classification", None])
def test_round_trip(variant: str, head: str | None, tmp_path: Path) -> None:
    peer = build_peer(variant, head)
    peer.save_pretrained(tmp_path / "theirs")
    for name, options in (("one", {}), ("shards", {"shard_bytes": 8000})):
        model = ViT.from_pretrained(tmp_path / "theirs")
        assert model.config.head == head
        assert_round_trip(model, peer, tmp_path / name, **options)
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    names = json.loads((tmp_path / "shards" / "model.safetensors.index.json").read_text())["weight_map"]
    prefix = "" if head is None else "vit."
    assert f"{prefix}encoder.layer.0.attention.attention.query.weight" in names
    again = ViT.from_pretrained(tmp_path / "shards")
    assert again.config == ViT.from_pretrained(tmp_path / "theirs").config
    assert all(torch.equal(v, again.state_dict()[k]) for k, v in model.state_dict().items())


def test_a_file_of_the_body_alone(tmp_path: Path) -> None:
    peer = build_peer(head=None)
    peer.save_pretrained(tmp_path)
    document = json.loads((tmp_path / "config.json").read_text())
    del document["architectures"]
    (tmp_path / "config.json").write_text(json.dumps(document))
    with pytest.warns(UserWarning, match=r"has no head\.weight, head\.bias: these weights are new"):
        model = ViT.from_pretrained(tmp_path)
    with torch.no_grad():
        vectors = peer(images_for(peer)).last_hidden_state
        assert model.head is not None
        assert_close(model(images_for(peer)), model.head(vectors[:, 0]))


def test_masked_image_modeling_loads_without_its_decoder(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    peer = perturbed(
        transformers.ViTForMaskedImageModeling(transformers.ViTConfig(**SIZES, encoder_stride=4))
    )
    peer.save_pretrained(tmp_path)
    model = ViT.from_pretrained(tmp_path, pooler=False)
    assert_close(model(images_for(peer)), peer.vit(images_for(peer)).last_hidden_state)
    assert model.load_report is not None
    assert set(model.load_report.unexpected) == {"decoder.0.weight", "decoder.0.bias"}


def test_layout_of_timm() -> None:
    """What the library's layout makes of it, tested next to transformers, is that of Hugging Face."""
    model, other = (SMALL.replace(eps=1e-6, num_classes=5).init() for _ in range(2))
    written = model.layouts["timm"].write(model.state_dict())
    published = model.layouts["hugging_face"].write(model.state_dict())
    expected = {name.removeprefix("vit."): value for name, value in published.items()}
    found = timm_vit.read(written)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert len(burnt.load_weights(other, written, layout="timm").applied) == len(model.state_dict())
    assert all(torch.equal(other.state_dict()[name], value) for name, value in model.state_dict().items())


def test_vit_base_has_the_published_number_of_parameters() -> None:
    with torch.device("meta"):
        model = ViTConfig(num_classes=1000).init()
    assert model.num_params() == 86_567_656


def test_record_check_summary_and_lora(tmp_path: Path) -> None:
    model = SMALL.init().eval()
    images = torch.randn(2, 3, 12, 12)
    model.save(tmp_path / "vit.safetensors")
    again = ViT.load(tmp_path / "vit.safetensors").eval()
    assert again.config == SMALL
    assert torch.equal(again(images), model(images))
    assert model.check(images)
    assert "feed_forward" in str(model.summary(images))
    burnt.nn.lora(model, rank=2, targets="*.attention|*.linear1")
    assert any("lora" in path for path, _ in model.named_parameters())


@pytest.mark.full
def test_compiles_to_one_graph() -> None:
    model = SMALL.init().eval()
    for size in ((12, 12), (20, 8)):
        images = torch.randn(2, 3, *size)
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        assert_close(compiled(images, interpolate=True), model(images, interpolate=True))


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(ShapeError) as shape:
        SMALL.init()(torch.zeros(2, 3, 16, 12))
    assert str(shape.value).splitlines() == [
        "the images do not have the size of the training",
        "  in        ViT",
        "  expected  (batch, 3, 12, 12)",
        "  found     (2, 3, 16, 12)",
        "  hint      model(images, interpolate=True) interpolates the positions for images of other sizes",
    ]
    with pytest.raises(ShapeError, match="images come in a batch") as single:
        SMALL.init()(torch.zeros(3, 12, 12))
    assert single.value.hint == "images[None] is a batch of one image"
    with pytest.raises(ConfigError, match="an image has no patch"):
        ViTConfig(image_size=(8, 32), patch_size=16)
    with pytest.raises(ConfigError) as activation:
        ViTConfig.from_hugging_face({"model_type": "vit", "hidden_act": "quick_gelu"})
    assert "the models have no such activation" in str(activation.value)
    assert "config.json: hidden_act" in str(activation.value)
    with pytest.raises(ConfigError, match="this is not a model for ViTConfig"):
        ViTConfig.from_hugging_face({"model_type": "deit"})

    SMALL.init().save_pretrained(tmp_path)
    document = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**document, "image_size": 16}))
    with pytest.raises(RecordError, match=r"positions: \(1, 17, 24\) in the module, \(1, 10, 24\) in the"):
        ViT.from_pretrained(tmp_path)
