"""Modules that tests write as C, each with inputs of one item."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import burnt.nn

__all__ = ["MODELS", "residual"]

CALLS = 20


class _Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.SiLU()) for _ in range(3)
        )
        self.head = nn.Linear(8 * 4 * 4, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = first = self.stem(images)
        for block in self.blocks:
            x = x + block(x)
        return self.head(nn.functional.max_pool2d(x + first, 2).flatten(1))


def residual() -> nn.Module:
    """Return a ConvNet with residual connections, and norms whose statistics make a difference."""
    model = _Residual()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    return model


class _Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.positions = nn.Parameter(torch.randn(12, 32) / 10)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 7)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(tokens) + self.positions).mean(1))


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = burnt.nn.Lstm(4, 4, bidirectional=True)
        self.gru = burnt.nn.Gru(8, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        steps, _ = self.lstm(x)
        _, state = self.gru(steps)
        return steps, state[0]


class _Names(nn.Module):
    """A dict, several inputs and outputs, keywords of C, names that are equal in C, bool, int64 and NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.größe = nn.Linear(4, 3)
        self.fill = burnt.nn.FillMissing(4, [0.5, 1.0, -1.0, 2.0])
        self.scale = burnt.nn.Standardize(4, mean=[1.0, 0.0, 3.0, 0.0], std=[1.0, 2.0, 4.0, 1.0])
        self.register_buffer("levels", torch.tensor([0.5, -2.0, 8.0]))

    def forward(self, float: dict[str, Tensor], tmp0_x: Tensor, unused: Tensor) -> dict[str, Tensor]:
        a, b = self.scale(self.fill(float["a.b"])), float["a_b"]
        logits = self.größe(a.sin() + b) * tmp0_x + self.levels
        return {
            "main": logits,
            "class": logits.argmax(1),
            "is": logits > 0,
            "again": logits,
            "b": b.tan(),
            "levels": self.levels,
            "NAN": logits.double().exp(),
        }


class _Everything(nn.Module):
    """The others in one module: exporting takes the time, not running."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.recurrent, self.names = _Encoder(), _Recurrent(), _Names()

    def forward(
        self, float: dict[str, Tensor], tmp0_x: Tensor, unused: Tensor, tokens: Tensor, x: Tensor
    ) -> list[Any]:
        return [self.names(float, tmp0_x, unused), self.encoder(tokens), self.recurrent(x)]


def _digits() -> tuple[nn.Module, Sequence[Any]]:
    images = torch.tensor(load_digits().images[:CALLS], dtype=torch.float32).unsqueeze(1) / 16
    return residual(), list(images.split(1))


def _texts() -> tuple[nn.Module, Sequence[Any]]:
    return _Encoder(), list(torch.randint(0, 50, (CALLS, 12)).split(1))


def _sequences() -> tuple[nn.Module, Sequence[Any]]:
    return _Recurrent(), list(torch.randn(CALLS, 5, 4).split(1))


def _names() -> tuple[nn.Module, Sequence[Any]]:
    def arguments() -> dict[str, Any]:
        pair = {"a.b": torch.randn(1, 4), "a_b": torch.rand(1, 4)}
        pair["a.b"][0, 1] = torch.nan
        return {"float": pair, "tmp0_x": torch.randn(1, 1), "unused": torch.randn(1, 2)}

    return _Names(), [arguments() for _ in range(CALLS)]


def _everything() -> tuple[nn.Module, Sequence[Any]]:
    parts = zip(_names()[1], _texts()[1], _sequences()[1], strict=True)
    return _Everything(), [{**names, "tokens": tokens, "x": x} for names, tokens, x in parts]


MODELS: dict[str, Callable[[], tuple[nn.Module, Sequence[Any]]]] = {
    "digits": _digits,
    "everything": _everything,
    "encoder": _texts,
    "recurrent": _sequences,
    "names": _names,
}
"""Functions that return a module and what 20 calls are given, as `burnt.onnx.export` takes it."""
