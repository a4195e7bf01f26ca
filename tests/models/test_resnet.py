"""ResNet next to that of transformers with the same weights, and the names of torchvision."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import burnt
from burnt.errors import ConfigError, RecordError
from burnt.models import ResNet, ResNetConfig
from tests.models.peer import (
    assert_close,
    assert_gradients_close,
    assert_round_trip,
    backward_both,
    perturbed,
)

SIZES: dict[str, Any] = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [2, 1]}
VARIANTS: dict[str, dict[str, Any]] = {
    "bottleneck": {},
    "basic": {"layer_type": "basic", "num_labels": 5},
    "stride-in-1x1": {"downsample_in_bottleneck": True, "num_channels": 1},
    "stride-in-first-stage": {"downsample_in_first_stage": True, "layer_type": "basic"},
    "gelu": {"hidden_act": "gelu", "hidden_sizes": [12, 8, 16], "depths": [1, 2, 1]},
}
SMALL = ResNetConfig(stem_channels=8, channels=(8, 16), depths=(2, 1))


def build_peer(variant: str = "bottleneck", head: str | None = "classification", **options: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(**{**SIZES, **VARIANTS[variant], **options})
    torch.manual_seed(0)
    kind = transformers.ResNetModel if head is None else transformers.ResNetForImageClassification
    return with_statistics(perturbed(kind(config)))


def with_statistics(model: Any) -> Any:
    """Give the batch norms averages that are not 0 and 1, and a count of batches."""
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
            module.num_batches_tracked.fill_(7)
    return model


def images_for(peer: Any) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(3, peer.config.num_channels, 33, 40)


@pytest.mark.sample(keep=("basic", "stride-in-1x1"))
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_classes_and_gradients_are_those_of_transformers(
    variant: str, training: bool, tmp_path: Path
) -> None:
    peer = build_peer(variant)
    peer.save_pretrained(tmp_path)
    model = ResNet.from_pretrained(tmp_path)
    images = images_for(peer)
    if training:
        # Gradients through the statistics of a batch cancel, which leaves little of float32.
        peer, model, images = peer.double().train(), model.double().train(), images.double()
    ours, theirs = model(images), peer(images).logits
    assert_close(ours, theirs)
    backward_both(ours, theirs)
    assert_gradients_close(model, peer)
    written = model.layouts["hugging_face"].write(model.state_dict())
    for name, value in peer.named_buffers():
        assert_close(written[name], value)
    assert int(written["resnet.embedder.embedder.normalization.num_batches_tracked"]) == 7 + training


@pytest.mark.sample(keep=("gelu",))
@pytest.mark.parametrize("variant", VARIANTS)
def test_feature_maps_are_those_of_transformers(variant: str, tmp_path: Path) -> None:
    peer = build_peer(variant, head=None)
    peer.save_pretrained(tmp_path)
    model = ResNet.from_pretrained(tmp_path)
    assert model.config.head is None
    assert_close(model(images_for(peer)), peer(images_for(peer)).last_hidden_state)


@pytest.mark.sample(keep=("basic",))
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("head", ["classification", None])
def test_round_trip(variant: str, head: str | None, tmp_path: Path) -> None:
    peer = build_peer(variant, head)
    peer.save_pretrained(tmp_path / "theirs")
    for name, options in (("one", {}), ("shards", {"shard_bytes": 3000})):
        model = ResNet.from_pretrained(tmp_path / "theirs")
        assert_round_trip(model, peer, tmp_path / name, **options)
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    again = ResNet.from_pretrained(tmp_path / "shards")
    assert again.config == ResNet.from_pretrained(tmp_path / "theirs").config
    assert all(torch.equal(v, again.state_dict()[k]) for k, v in model.state_dict().items())


def test_new_head(tmp_path: Path) -> None:
    peer = build_peer()
    peer.save_pretrained(tmp_path)
    model = ResNet.from_pretrained(tmp_path, num_classes=10)
    assert model(images_for(peer)).shape == (3, 10)
    body = ResNet.from_pretrained(tmp_path, head=None)
    assert_close(body(images_for(peer)), peer.resnet(images_for(peer)).last_hidden_state)
    model.save_pretrained(tmp_path / "ten")
    again = type(peer).from_pretrained(tmp_path / "ten")
    assert again.config.num_labels == 10
    assert_close(model(images_for(peer)), again(images_for(peer)).logits)


def test_a_file_of_the_body_alone(tmp_path: Path) -> None:
    build_peer(head=None).save_pretrained(tmp_path)
    document = json.loads((tmp_path / "config.json").read_text())
    del document["architectures"]
    (tmp_path / "config.json").write_text(json.dumps(document))
    with pytest.warns(UserWarning, match=r"has no head\.weight, head\.bias: these weights are new"):
        ResNet.from_pretrained(tmp_path)


# The tensors of torchvision's models, but for those of batch norms: name, output and input channels, kernel.
STAGE_OF_RESNET18 = """
    layer2.0.conv1 128 64 3, layer2.0.conv2 128 128 3, layer2.0.downsample.0 128 64 1,
    layer2.1.conv1 128 128 3, layer2.1.conv2 128 128 3
"""
STAGE_OF_RESNET50 = """
    layer2.0.conv1 128 256 1, layer2.0.conv2 128 128 3, layer2.0.conv3 512 128 1,
    layer2.0.downsample.0 512 256 1,
    layer2.1.conv1 128 512 1, layer2.1.conv2 128 128 3, layer2.1.conv3 512 128 1,
    layer2.2.conv1 128 512 1, layer2.2.conv2 128 128 3, layer2.2.conv3 512 128 1,
    layer2.3.conv1 128 512 1, layer2.3.conv2 128 128 3, layer2.3.conv3 512 128 1
"""
# Parameters and number of tensors of torchvision's models.
PRESETS = {
    "resnet18": (11_689_512, 122),
    "resnet34": (21_797_672, 218),
    "resnet50": (25_557_032, 320),
    "resnet101": (44_549_160, 626),
    "resnet152": (60_192_808, 932),
}


@pytest.mark.sample(keep=("resnet18", "resnet50"))
@pytest.mark.parametrize("name", PRESETS)
def test_names_and_sizes_are_those_of_torchvision(name: str) -> None:
    with torch.device("meta"):
        model = getattr(ResNetConfig, name)().init()
    state = dict(model.state_dict())
    assert (model.num_params(), len(state)) == PRESETS[name]
    weights = {path: torch.empty(value.shape) for path, value in state.items()}
    written = {k: tuple(v.shape) for k, v in model.layouts["torchvision"].write(weights).items()}
    assert written["conv1.weight"] == (64, 3, 7, 7)
    assert written["bn1.running_mean"] == (64,)
    assert written["fc.weight"] == (1000, 512 if name in ("resnet18", "resnet34") else 2048)
    stage = {"resnet18": STAGE_OF_RESNET18, "resnet50": STAGE_OF_RESNET50}.get(name)
    if stage is not None:
        wanted: dict[str, tuple[int, ...]] = {}
        for row in stage.split(","):
            conv, out, into, kernel = row.split()
            wanted[f"{conv}.weight"] = (int(out), int(into), int(kernel), int(kernel))
            norm = conv.replace("conv", "bn").replace("downsample.0", "downsample.1")
            for kind in ("weight", "bias", "running_mean", "running_var"):
                wanted[f"{norm}.{kind}"] = (int(out),)
            wanted[f"{norm}.num_batches_tracked"] = ()
        assert {k: v for k, v in written.items() if k.startswith("layer2.")} == wanted


def test_files_of_torchvision_go_both_ways() -> None:
    torch.manual_seed(0)
    one = with_statistics(SMALL.init())
    state = one.layouts["torchvision"].write(one.state_dict())
    other = SMALL.init()
    burnt.load_weights(other, state, layout="torchvision")
    assert all(torch.equal(v, other.state_dict()[k]) for k, v in one.state_dict().items())
    # The first files of torchvision have no counts of batches.
    old = {name: value for name, value in state.items() if not name.endswith("num_batches_tracked")}
    new = SMALL.init()
    burnt.load_weights(new, old, layout="torchvision")
    assert torch.equal(new.eval()(torch.ones(1, 3, 32, 32)), one.eval()(torch.ones(1, 3, 32, 32)))
    # Another number of classes.
    ten = SMALL.replace(num_classes=10).init()
    burnt.load_weights(ten, state, layout="torchvision", skip="head")
    assert torch.equal(ten.stem.conv.weight, one.stem.conv.weight)


@pytest.mark.parametrize("name", ["resnet18", pytest.param("resnet50", marks=pytest.mark.full)])
def test_outputs_are_those_of_torchvision(name: str) -> None:
    why = "torchvision's wheels for Linux load CUDA's libraries, which a torch for CPUs comes without"
    models = pytest.importorskip("torchvision.models", reason=why, exc_type=(ImportError, RuntimeError))
    peer = with_statistics(getattr(models, name)())
    model = getattr(ResNetConfig, name)().init()
    burnt.load_weights(model, peer.state_dict(), layout="torchvision")
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        for training in (False, True):
            assert_close(model.train(training)(images), peer.train(training)(images), 1e-4)


def test_record_check_summary_and_lora(tmp_path: Path) -> None:
    model = with_statistics(SMALL.init()).eval()
    images = torch.randn(2, 3, 32, 32)
    model.save(tmp_path / "resnet.safetensors")
    again = ResNet.load(tmp_path / "resnet.safetensors").eval()
    assert again.config == SMALL
    assert torch.equal(again(images), model(images))
    assert model.check(images)
    assert "stages" in str(model.summary(images))
    burnt.nn.lora(model, rank=2, targets="*.conv|head")
    assert any("lora" in path for path, _ in model.named_parameters())


@pytest.mark.full
def test_compiles_to_one_graph() -> None:
    model, images = SMALL.init(), torch.randn(2, 3, 32, 32)
    wanted = model.eval()(images)
    assert_close(torch.compile(model, backend="eager", fullgraph=True)(images), wanted)


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as depths:
        ResNetConfig(depths=(3, 4))
    assert str(depths.value).splitlines() == [
        "a ResNet needs a depth for the channels of each stage",
        "  in        depths",
        "  expected  4 numbers, as many as channels",
        "  found     (3, 4)",
    ]
    with pytest.raises(ConfigError, match=r"has no|expected") as layer:
        ResNetConfig.from_hugging_face({"model_type": "resnet", "layer_type": "wide"})
    assert "'basic' | 'bottleneck'" in str(layer.value)
    with pytest.raises(ConfigError) as activation:
        ResNetConfig.from_hugging_face({"model_type": "resnet", "hidden_act": "rleu"})
    assert "did you mean 'relu'?" in str(activation.value)
    with pytest.raises(ConfigError, match="this is not a model for ResNetConfig"):
        ResNetConfig.from_hugging_face({"model_type": "regnet"})

    SMALL.init().save_pretrained(tmp_path)
    document = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**document, "embedding_size": 4}))
    with pytest.raises(RecordError, match=r"stem\.conv\.weight: \(4, 3, 7, 7\) in the module"):
        ResNet.from_pretrained(tmp_path)
