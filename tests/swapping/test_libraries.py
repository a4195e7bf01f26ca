"""Models of torchvision and timm, where these are installed, swapped to infer."""

import pytest
import torch

import burnt

WHY = "torchvision's wheels for Linux load CUDA's libraries, which a torch for CPUs comes without"
# How many blocks must be swapped as wholes.
OF_TORCHVISION = {
    "resnet18": 11,
    "mobilenet_v2": 52,
    "efficientnet_b0": 49,
    "vgg11_bn": 2,
    "convnext_tiny": 18,
}
OF_TIMM = {
    "resnet18": 12,
    "seresnet18": 12,
    "mobilenetv3_small_100": 13,
    "vit_tiny_patch16_224": 12,
    "convnext_atto": 12,
}


def agrees(model, blocks):
    model = model.to(memory_format=torch.channels_last).eval()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_var.uniform_(0.5, 1.5)
    x = torch.randn(1, 3, 224, 224).to(memory_format=torch.channels_last)
    with torch.no_grad():
        wanted = model(x)
        report = burnt.swap(model, mode="infer", verify=x)
        found = [
            r.path for r in report.rows if r.state == "swapped" and r.kind in ("conv_block", "feed_forward")
        ]
        assert len(found) == blocks, report
        torch.testing.assert_close(model(x), wanted, rtol=1e-4, atol=1e-4)
        burnt.unswap(model)
        assert torch.equal(model(x), wanted)


@pytest.mark.parametrize("name", OF_TORCHVISION)
def test_torchvision(always, name):
    models = pytest.importorskip("torchvision.models", reason=WHY, exc_type=(ImportError, RuntimeError))
    agrees(getattr(models, name)(), OF_TORCHVISION[name])


@pytest.mark.parametrize("name", OF_TIMM)
def test_timm(always, name):
    timm = pytest.importorskip("timm", reason=WHY, exc_type=(ImportError, RuntimeError))
    agrees(timm.create_model(name), OF_TIMM[name])
