"""New weights of the models: as the published models draw them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from burnt.models import BertConfig, Gpt2, Gpt2Config, Llama, LlamaConfig, ResNetConfig, ViTConfig

SIZES: dict[str, Any] = {"d_model": 64, "d_ff": 128, "num_layers": 2, "num_heads": 2}
CONFIGS: list[Any] = [
    LlamaConfig(vocab_size=500, pad_token=3, init_std=0.05, kind="qwen2", **SIZES),
    BertConfig(vocab_size=500, init_std=0.05, head="mlm", **SIZES),
    ViTConfig(image_size=32, patch_size=4, init_std=0.05, num_classes=50, **SIZES),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
def test_new_weights(config: Any) -> None:
    torch.manual_seed(0)
    model = config.init()
    assert model.config.to_hugging_face()["initializer_range"] == 0.05
    for path, value in model.named_parameters():
        if value.dim() > 1:
            if value.numel() > 1000:
                assert value.std().item() == pytest.approx(0.05, rel=0.1), path
        else:
            assert (value == (0 if path.endswith("bias") else 1)).all(), path
    if hasattr(model, "embedding") and model.embedding.padding_idx is not None:
        assert not model.embedding.weight[model.embedding.padding_idx].any()


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_tied_model_starts_at_the_loss_of_guessing(kind: str) -> None:
    torch.manual_seed(0)
    config: Any = (Gpt2Config if kind == "gpt2" else LlamaConfig)(vocab_size=500, tied=True, **SIZES)
    tokens = torch.randint(500, (4, 32))
    logits = config.init().eval()(tokens)
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    assert loss.item() == pytest.approx(math.log(500), abs=0.1)


@pytest.mark.parametrize(("model", "config"), [(Llama, LlamaConfig), (Gpt2, Gpt2Config)])
def test_new_head_of_a_loaded_body(model: Any, config: Any, tmp_path: Any) -> None:
    config(vocab_size=50, head=None, init_std=0.05, **SIZES).init().save_pretrained(tmp_path)
    loaded = model.from_pretrained(tmp_path, head="classification", num_classes=100)
    assert loaded.head.weight.std().item() == pytest.approx(0.05, rel=0.1)


def test_resnet_is_drawn_as_in_torchvision() -> None:
    torch.manual_seed(0)
    model = ResNetConfig(channels=(64,), depths=(1,), block="basic").init()
    for path, value in model.named_parameters():
        if value.dim() == 4:
            fan_out = value.shape[0] * value[0, 0].numel()
            assert value.std().item() == pytest.approx(math.sqrt(2 / fan_out), rel=0.1), path
