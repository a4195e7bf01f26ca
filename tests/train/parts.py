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


class Gan(nn.Module):
    """A generator and a critic, of which one may be on two devices itself."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.BatchNorm1d(8), nn.Linear(8, 2))
        self.critic = nn.Sequential(nn.Linear(2, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
        self.to(dtype)


casts: list[list[bool]] = []
"""Whether autocast was on in a backward pass, for each device of the model."""


def gan_step(model: nn.Module, batch: Any, optimizers: Any) -> StepOutput:
    loss_of = nn.functional.binary_cross_entropy_with_logits
    fake = model.generator(batch.z)
    if fake.requires_grad:
        kinds = {parameter.device.type for parameter in model.parameters() if not parameter.is_meta}
        fake.register_hook(lambda gradient: casts.append([torch.is_autocast_enabled(kind) for kind in kinds]))
    real, wrong = model.critic(batch.x), model.critic(fake.detach())
    critic_loss = loss_of(real, torch.ones_like(real)) + loss_of(wrong, torch.zeros_like(wrong))
    optimizers["critic"].step(critic_loss, clip_norm=0.1)
    judged = model.critic(fake)
    # Two losses, whose gradients are added up.
    loss = loss_of(judged, torch.ones_like(judged))
    part = optimizers["generator"].gradients(loss, retain_graph=True)
    optimizers["generator"].step(part.accumulate(optimizers["generator"].gradients(fake.square().mean())))
    return StepOutput(loss.detach() + critic_loss.detach(), targets=batch.x)


def gan_learner(dtype: torch.dtype = torch.float64) -> tuple[Learner, Loader]:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    items = TensorDataset(
        x=torch.randn(40, 2, generator=generator, dtype=dtype),
        z=torch.randn(40, 4, generator=generator, dtype=dtype),
    )
    optimizers = {"generator": optim.AdamW(), "critic": optim.Ema(optim.Sgd(momentum=0.9), decay=0.9)}
    learner = Learner(Gan(dtype), optimizers, dict.fromkeys(optimizers, 1e-2), step=gan_step)
    return learner, Loader(items, 8, shuffle=True)


class Deep(nn.Module):
    """A block to checkpoint that may be on two devices, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.block = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8))
        self.head = nn.Linear(8, 1)
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.block(self.first(x)))


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {path: tensor.detach().cpu() for path, tensor in model.state_dict().items()}


def difference(a: nn.Module, b: nn.Module) -> float:
    """The largest difference between the tensors of two models."""
    ours, theirs = weights(a), weights(b)
    assert ours.keys() == theirs.keys()
    return max(float((ours[path].double() - theirs[path].double()).abs().max()) for path in ours)


def devices(model: nn.Module) -> dict[str, str]:
    return {path: tensor.device.type for path, tensor in model.named_parameters()}
