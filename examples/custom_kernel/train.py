"""Write an activation as a kernel of one's own, check it against torch, time it, and train with it.

    python examples/custom_kernel/train.py          # or: burnt train examples/custom_kernel/train.py:main

Snake (Liu et al., 2020) is ``x + sin(a x)**2 / a`` with a learnable ``a`` for each channel: a network with it
continues a periodic signal where it has seen no data. torch takes five passes over memory, the kernel one.
"""

from __future__ import annotations

import sys
import timeit
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

import burnt
from burnt import nn, optim
from burnt.data import Batch, Loader, TensorDataset
from burnt.plot import Line, Plot
from burnt.train import Learner, StepOutput, SupervisedTraining


def snake_reference(x: Tensor, a: Tensor) -> Tensor:
    return x + torch.sin(a * x).square() / a


snake = burnt.fuse(single=True)(snake_reference)  # single: an error unless it is one kernel


class Snake(burnt.Module):
    """``[n, channels]`` to the same."""

    a: torch.nn.Parameter

    def forward(self, x: Tensor) -> Tensor:
        return snake(x, self.a)


class Signal(burnt.Module):
    """Times [n, 1] to values [n, 1]."""

    layers: nn.Sequential

    def forward(self, t: Tensor) -> Tensor:
        return self.layers(t)

    def training_step(self, batch: Batch) -> StepOutput:
        outputs = self(batch.t)
        return StepOutput(mse_loss(outputs, batch.y), outputs, batch.y)


class KernelConfig(burnt.Config):
    """The settings of the training program."""

    activation: str = "snake"
    hidden: int = 128
    steps: int = 3000
    lr: float = 3e-3
    seed: int = 0
    size: int = 1024
    folder: Path = Path("runs/custom_kernel")

    def init(self) -> Signal:
        def activation() -> torch.nn.Module:
            a = torch.nn.Parameter(0.5 + 4 * torch.rand(self.hidden))
            return nn.Relu() if self.activation == "relu" else Snake(a)

        inner = [nn.Linear(1, self.hidden), activation(), nn.Linear(self.hidden, self.hidden), activation()]
        return Signal(nn.Sequential(*inner, nn.Linear(self.hidden, 1)))


def check_kernel(rows: int) -> float:
    """Compare values and gradients with float64; return how many times as long torch takes for both."""
    x, a = torch.randn(rows, 1024, requires_grad=True), (0.5 + torch.rand(1024)).requires_grad_()
    grad = torch.randn(rows, 1024)
    ours = (snake(x, a), *torch.autograd.grad(snake(x, a), (x, a), grad))
    wide = [tensor.detach().double().requires_grad_() for tensor in (x, a)]
    exact = snake_reference(*wide)
    for mine, truth in zip(ours, (exact, *torch.autograd.grad(exact, wide, grad.double())), strict=True):
        torch.testing.assert_close(mine.double(), truth, rtol=1e-4, atol=1e-4)

    def seconds(fn) -> float:
        return min(timeit.repeat(lambda: torch.autograd.grad(fn(x, a), (x, a), grad), number=1, repeat=15))

    return seconds(snake_reference) / seconds(snake)


def main(config: KernelConfig) -> dict[str, float]:
    """Show and check the kernel; train with it and with ReLU, and draw what they predict after the data."""
    print(burnt.explain(snake, torch.randn(64, 64), torch.ones(64), timed=False))
    print(f"with gradients, torch takes {check_kernel(config.size):.1f} times as long")
    t = torch.linspace(-6, 6, 600)[:, None]
    train = TensorDataset(t=t, y=torch.sin(2 * t) + 0.3 * t)
    t = torch.linspace(-6, 12, 181)[:, None]
    y = torch.sin(2 * t) + 0.3 * t
    lines, errors = [Line("signal; data end at 6", t[:, 0].tolist(), y[:, 0].tolist())], {}
    for name in ("snake", "relu"):
        torch.manual_seed(config.seed)
        chosen = config.override([f"activation={name}"])
        training = SupervisedTraining(
            config.folder / name,
            train=Loader(train, 50, shuffle=True, seed=config.seed),
            duration=f"{config.steps} steps",
            exists="number",
            config=chosen,
        )
        learner = Learner(chosen.init(), optim.AdamW(), optim.Cosine(config.lr, steps=config.steps))
        outputs = burnt.predict(training.run(learner).model, TensorDataset(t=t))
        errors[name] = mse_loss(outputs[t > 6], y[t > 6]).sqrt().item()
        lines.append(Line(name, t[:, 0].tolist(), outputs[:, 0].tolist()))
        print(f"{name}: root mean square error after the data {errors[name]:.3f}")
    (config.folder / "signal.svg").write_text(Plot(lines, x="t").svg())
    return errors


if __name__ == "__main__":
    main(KernelConfig.from_assignments(sys.argv[1:]))
