"""A user's program, checked with this project's mypy: all must pass, and each marked mistake must be one."""

from __future__ import annotations

import torch
from torch import Tensor

import burnt
from burnt import nn, optim
from burnt.data import Batch, Loader, TensorDataset
from burnt.models import Llama, LlamaConfig
from burnt.train import (
    ClassificationOutput,
    EarlyStopping,
    KeepBest,
    KeepLast,
    Learner,
    StepOutput,
    SupervisedTraining,
    TrainingResult,
    evaluate,
)
from burnt.train.metrics import Accuracy, Loss, Metric


class Net(burnt.Module):
    hidden: nn.Linear
    head: nn.Linear
    blocks: list[nn.Linear] = burnt.field(default_factory=list)
    scale: float = 1.0

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = torch.relu(block(x))
        logits: Tensor = self.head(torch.relu(self.hidden(x)))
        return logits * self.scale

    def training_step(self, batch: Batch) -> ClassificationOutput:
        logits = self(batch.x)
        return ClassificationOutput(torch.nn.functional.cross_entropy(logits, batch.y), logits, batch.y)


class NetConfig(burnt.Config):
    hidden: int = 32
    rate: optim.Schedule = optim.Warmup(10, 1e-2)
    activation: nn.ActivationConfig = "gelu"

    def init(self) -> Net:
        return Net(nn.Linear(8, self.hidden), nn.Linear(self.hidden, 2), scale=2.0)


class MeanAbsoluteError(Metric):
    name = "mae"
    higher_is_better = False

    def update(self, output: StepOutput) -> None:
        self.add((output.outputs - output.targets).abs().sum(), output.targets.numel())


def step(model: torch.nn.Module, batch: Batch) -> StepOutput:
    outputs = model(batch.x)
    return StepOutput(torch.nn.functional.mse_loss(outputs, batch.y), outputs, batch.y)


def train(config: NetConfig) -> TrainingResult:
    x = torch.randn(20, 8)
    loader = Loader(TensorDataset(x=x, y=(x[:, 0] > 0).long()), batch_size=4, shuffle=True)
    model = config.init()
    model.freeze("head").unfreeze("head.bias").map(lambda path, parameter: parameter.detach())
    training = SupervisedTraining(
        "runs/typed",
        train=loader,
        valid=loader,
        duration="1 epoch",
        metrics=[Accuracy(), MeanAbsoluteError()],
        checkpoints=[KeepLast(2), KeepBest(Loss())],
        stopping=EarlyStopping("loss", patience="3 epochs"),
    )
    learner = Learner(model, optim.AdamW(weight_decay=0.1), config.rate)
    result = training.run(learner)
    values: dict[str, float] = evaluate(learner, loader, [Accuracy()])
    print(values, burnt.summary(model, burnt.TensorSpec((4, 8))), burnt.check(model, x).seconds)
    return result


def by_hand(model: Net, x: Tensor) -> float:
    optimizer = optim.Sgd(momentum=0.9)
    gradients = burnt.Gradients.of(model(x).sum(), model).clip_norm(1.0)
    optimizer.step(0.1, model, gradients)
    model.save("net.safetensors")
    copied: Net = Net.load("net.safetensors", config=NetConfig().replace(hidden=8)).fork("cpu")
    record: burnt.Record = copied.into_record()
    copied.load_record(record)
    report = burnt.load_weights(
        copied, "net.safetensors", only="hidden", rename=[(r"^net", "")], dtype=torch.half
    )
    print(
        report.applied, burnt.load_weights(torch.nn.Linear(1, 1), {"weight": x}, partial=True, dtype="stored")
    )
    Learner(torch.nn.Linear(1, 1), optim.Adam(), 1e-3, step=step)
    groups = [("*.bias", optim.AdamW()), (optim.matrices, optim.Muon(), 0.02), ("*", optim.Adam(), None, 1.0)]
    Learner(model, optim.Ema(optim.Groups(groups), decay=0.99), 1e-3)
    return float(gradients.norm())


def activations(config: NetConfig) -> torch.nn.Module:
    slope = nn.LeakyRelu.Config(negative_slope=0.2)
    layers = [nn.build_activation(config.replace(activation=slope).activation), nn.LeakyRelu(0.2)]
    return nn.Sequential(*layers, nn.build_activation("mish"), NetConfig(activation=slope).init())


def pretrained(tokens: Tensor) -> Tensor:
    model = Llama.from_pretrained("snapshot", dtype="stored", head="classification").train()
    logits: Tensor = model(tokens, cache=model.new_cache(max_len=model.config.max_len))
    return logits


def mistakes() -> None:
    LlamaConfig(head="logits")  # type: ignore[arg-type]
    Llama.from_pretrained("snapshot", dtype="half")  # type: ignore[arg-type]
    Net(nn.Linear(8, 4), nn.Conv2d(1, 2, 3))  # type: ignore[arg-type]
    Net(nn.Linear(8, 4), nn.Linear(4, 2), scale="large")  # type: ignore[arg-type]
    Net(nn.Linear(8, 4))  # type: ignore[call-arg]
    Net(nn.Linear(8, 4), nn.Linear(4, 2), sclae=2.0)  # type: ignore[call-arg]
    NetConfig(hidden="many")  # type: ignore[arg-type]
    NetConfig(32)  # type: ignore[call-arg]
    NetConfig(activation="gelo")  # type: ignore[arg-type]
    nn.build_activation("gelo")  # type: ignore[arg-type]
    nn.LeakyRelu("steep")  # type: ignore[arg-type]
    NetConfig().hidden = 3  # type: ignore[misc]
    nn.Linear("8", 4)  # type: ignore[arg-type]
    Learner(NetConfig().init(), torch.optim.AdamW([]), 0.1)  # type: ignore[arg-type]
    SupervisedTraining("runs/typed", train=[])  # type: ignore[call-arg]
    optim.AdamW(lr=0.1)  # type: ignore[call-arg]
    burnt.no_such_name  # type: ignore[attr-defined]
