"""A resumed training has its buffers and sums in memory as the training that never stopped has them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from burnt import optim
from burnt.data import Batch, Loader, TensorDataset
from burnt.train import Learner, StepOutput, SupervisedTraining
from burnt.train.checkpoints.buffers import load_buffers
from burnt.train.metrics import Metric
from tests.train.cases import supervised

SIZE = 37


class Net(nn.Module):
    """Its buffers are changed in place, or assigned anew in all kinds of memory layouts."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.child = nn.Linear(6, SIZE), nn.Module()
        for name in ("mean", "turned", "every", "wide"):
            self.register_buffer(name, torch.zeros(SIZE, 2) if name != "mean" else torch.zeros(SIZE), False)
        self.register_buffer("saved", torch.zeros(SIZE, 2))
        self.child.register_buffer("mean", self.mean, persistent=False)  # one buffer of two modules
        self.register_buffer("first", self.linear.weight.detach()[0], persistent=False)  # a view
        self.register_buffer("old", self.turned, persistent=False)  # until `turned` is assigned anew
        self.register_buffer("late", None, persistent=False)
        self.register_buffer("flat", torch.zeros(1, SIZE).expand(3, SIZE), persistent=False)
        self.register_buffer("square", torch.zeros(SIZE, 2), persistent=False)
        self.child.register_buffer("square", self.square, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.linear(x)
        if self.training and not x.is_meta:
            both = torch.stack([hidden.detach().mean(0), hidden.detach().amax(0)])  # [2, SIZE]
            self.child.mean.mul_(0.9).add_(both[0], alpha=0.1)
            self.turned = (0.9 * self.turned.T + 0.1 * both).T
            self.saved = (0.9 * self.saved.T + 0.1 * both).T
            self.every = F.pad(both.T, (0, 3))[:, ::3]
            self.wide = both[0, :, None].expand(-1, 2)
            self.late = both[1] if self.late is None else 0.9 * self.late + 0.1 * both[1]
            self.flat[0].add_(both[0])
            self.square = self.child.square = both.square().T
        sums = [self.mean @ self.mean, self.turned.sum(), self.saved.sum(), self.every.sum(), self.wide.sum()]
        sums += [
            self.flat.sum(),
            self.square.sum(),
            torch.zeros(()) if self.late is None else self.late.sum(),
        ]
        return hidden * torch.stack(sums).sum() + self.first.sum() + self.old.sum()


class Largest(Metric):
    """Keeps a sum of many values."""

    name, higher_is_better = "largest", None

    def update(self, output: StepOutput) -> None:
        self.add(output.outputs.detach().sum(0), 1)

    def value(self, total: list[float], count: int) -> float:
        return max(total) / count


def run(folder: Path, steps: int, *, resume: bool = False) -> tuple[Net, SupervisedTraining]:
    torch.manual_seed(0)
    x = torch.randn(48, 6)

    def step(model: nn.Module, batch: Batch) -> StepOutput:
        outputs = model(batch.x)
        return StepOutput(F.mse_loss(outputs, batch.y.expand_as(outputs)), outputs, batch.y)

    data = Loader(TensorDataset(x=x, y=x.sum(1, keepdim=True)), 16, shuffle=True)
    settings = {"train": data, "duration": f"{steps} steps", "metrics": [Largest()]}
    training = supervised(folder, settings, resume=resume)
    net = Net()
    training.run(Learner(net, optim.AdamW(), 1e-2, step=step))
    return net, training


def test_a_resumed_training_has_the_buffers_of_one_that_never_stopped(tmp_path: Path) -> None:
    whole, _ = run(tmp_path / "whole", 10)
    for steps in (2, 5, 7):  # in the middle of an epoch, and after two resumes
        resumed, _ = run(tmp_path / "run", steps, resume=steps > 2)
    assert all(buffer.data_ptr() % 64 == 0 for name, buffer in resumed.named_buffers() if name != "first")
    assert resumed.child.mean is resumed.mean
    assert resumed.child.square is resumed.square
    assert resumed.first.data_ptr() == resumed.linear.weight.data_ptr()
    assert not resumed.old.any()
    resumed, _ = run(tmp_path / "run", 10, resume=True)
    for (name, one), other in zip(whole.state_dict().items(), resumed.state_dict().values(), strict=True):
        assert torch.equal(one, other), name
    for (name, one), other in zip(whole.named_buffers(), resumed.buffers(), strict=True):
        assert torch.equal(one, other), name
        assert one.stride() == other.stride(), name


def test_strides_of_any_kind_come_back() -> None:
    source = torch.arange(24.0).view(2, 3, 4)
    for value in (source.permute(2, 0, 1), source[:, ::2], source[:, :1].expand(2, 5, 4), source[0, 0, 0]):
        model = nn.Module()
        model.register_buffer("b", torch.zeros(value.shape), persistent=False)
        load_buffers(model, {"b": value.contiguous(), "unknown": value}, {"b": value.stride()})
        assert torch.equal(model.b, value)
        assert model.b.stride() == value.stride()
        assert model.b.data_ptr() % 64 == 0


@pytest.mark.parametrize("strides", [None, {}])
def test_buffers_of_earlier_checkpoints_are_assigned(strides: dict[str, tuple[int, ...]] | None) -> None:
    model, child = nn.Module(), nn.Module()
    model.register_buffer("b", torch.zeros(3), persistent=False)
    model.add_module("child", child)
    child.register_buffer("b", model.b, persistent=False)
    load_buffers(model, {"b": torch.ones(3)}, strides)  # without the other path of the same tensor
    assert model.b.tolist() == [1, 1, 1]
    assert child.b.tolist() == [0, 0, 0]
