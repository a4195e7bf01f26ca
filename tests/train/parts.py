"""Trainings of a small model on one device and in parts, for programs that have a second device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from burnt import optim
from burnt.data import Loader, TensorDataset
from burnt.train import Learner, StepOutput, SupervisedTraining
from burnt.train.metrics import Accuracy


class Net(nn.Module):
    """An embedding, blocks with a residual connection and a norm with running statistics, and a head."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2)])
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 3)
        self.to(dtype)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x.mean(1)))


def step(model: nn.Module, batch: Any) -> StepOutput:
    logits = model(batch.x)
    assert logits.device == batch.y.device
    return StepOutput(nn.functional.cross_entropy(logits, batch.y), outputs=logits, targets=batch.y)


def loader(n: int = 30, seed: int = 1) -> Loader:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(11, (n, 5), generator=generator)
    return Loader(TensorDataset(x=x, y=torch.randint(3, (n,), generator=generator)), 8, shuffle=True)


OPTIMIZERS = {
    "adamw": lambda: optim.AdamW(),
    "sgd": lambda: optim.Sgd(momentum=0.9, dampening=0.1),
    "lamb": lambda: optim.Lamb(),
    "adafactor": lambda: optim.Adafactor(),
    "ema": lambda: optim.Ema(optim.AdamW(), decay=0.9),
    "schedule_free": lambda: optim.ScheduleFreeAdamW(),
    "groups": lambda: optim.Groups(
        [("*.bias|norm", optim.Sgd(), 0.1, 0.2), (optim.matrices, optim.Muon()), ("*", optim.AdamW())]
    ),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clip_norm": {"clip_norm": 0.05},
    "clip_both": {"clip_norm": 0.05, "clip_value": 0.01},
    "accumulate": {"accumulate": 3},
    "skip": {"on_nan": "skip", "clip_norm": 0.05},
    "float16": {"precision": "float16"},
    "bfloat16": {"precision": "bfloat16"},
}


def train(
    folder: Path, device: Any, optimizer: str = "adamw", setting: str = "plain", **more: Any
) -> tuple[Any, Any]:
    """Train for 3 epochs; return the result and the Learner."""
    torch.manual_seed(0)
    settings = SETTINGS[setting]
    dtype = more.pop("dtype", torch.float32 if "precision" in settings else torch.float64)
    learner = Learner(Net(dtype), OPTIMIZERS[optimizer](), 1e-2, step)
    training = SupervisedTraining(
        folder,
        **{
            "train": loader(), "valid": loader(12, 2), "duration": "3 epochs", "metrics": [Accuracy()],
            "monitor": "off", "device": device, "log_every": 1, **settings, **more,
        },
    )  # fmt: skip
    return training.run(learner), learner


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {path: tensor.detach().cpu() for path, tensor in model.state_dict().items()}


def difference(a: nn.Module, b: nn.Module) -> float:
    """The largest difference between the tensors of two models."""
    ours, theirs = weights(a), weights(b)
    assert ours.keys() == theirs.keys()
    return max(float((ours[path].double() - theirs[path].double()).abs().max()) for path in ours)


def devices(model: nn.Module) -> dict[str, str]:
    return {path: tensor.device.type for path, tensor in model.named_parameters()}
