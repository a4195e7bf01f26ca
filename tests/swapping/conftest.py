import pytest
import torch

from burnt.swapping import measure


@pytest.fixture(autouse=True)
def settings():
    torch.manual_seed(0)


@pytest.fixture
def always(monkeypatch):
    """Whatever is right is swapped, however slow, and little time is taken to measure it."""
    monkeypatch.setattr(measure, "_GAIN", 0.0)
    monkeypatch.setattr(measure, "_EVEN", 0.0)
    monkeypatch.setattr(measure, "_ROUNDS", range(1, 2))
    monkeypatch.setattr(measure, "_SECONDS", 0.0)
    monkeypatch.setattr(measure, "_SHORTEST", 0.0)
