"""What a device is and can do, as far as it can be seen on a CPU, and with a CUDA device that is made up."""

from types import SimpleNamespace

import pytest
import torch

from burnt.device import best_device, device_info


def test_the_cpu() -> None:
    info = device_info("cpu")
    assert (info.device, info.kind, info.bfloat16) == ("cpu", "cpu", True)
    assert info.memory is not None
    assert info.memory > 100 * 2**20
    assert info.name
    assert info.architecture == torch.backends.cpu.get_cpu_capability()


def test_the_best_device_is_one_that_computes() -> None:
    assert float(torch.ones(3, device=best_device()).sum()) == 3


@pytest.mark.parametrize("hip", [None, "6.4"])
def test_a_gpu(monkeypatch: pytest.MonkeyPatch, hip: str | None) -> None:
    properties = SimpleNamespace(name="Card", total_memory=2**30, major=9, minor=0, gcnArchName="gfx942")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    monkeypatch.setattr(torch.version, "hip", hip)
    assert best_device() == torch.device("cuda", 1)
    info = device_info()
    assert (info.device, info.name, info.memory) == ("cuda:1", "Card", 2**30)
    assert (info.kind, info.architecture) == (("rocm", "gfx942") if hip else ("cuda", "sm_90"))


def test_another_device_is_named_and_no_more() -> None:
    info = device_info("meta")
    assert (info.device, info.kind, info.memory, info.bfloat16) == ("meta", "meta", None, False)
