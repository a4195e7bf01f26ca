"""burnt on a GPU: layers, optimizers and whole trainings, against float64 on the CPU.

Run by `scripts/gpu`; `pytest tests/gpu --device cpu` rehearses all but the last test on a CPU.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import burnt
from burnt import nn, optim
from burnt.data import Batch, Loader, TensorDataset, move
from burnt.train import ClassificationOutput, KeepLast, Learner, SupervisedTraining, evaluate
from burnt.train.metrics import Accuracy, Loss
from tests.nn.case import Case
from tests.nn.test_every_layer import CASES

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def exact_float32() -> Iterator[None]:
    """Float32 itself: cuDNN rounds operands of convolutions and recurrent layers to TF32 by default."""
    backends = torch.backends.cudnn.conv, torch.backends.cudnn.rnn
    before = [backend.fp32_precision for backend in backends]
    for backend in backends:
        backend.fp32_precision = "ieee"
    yield
    for backend, precision in zip(backends, before, strict=True):
        backend.fp32_precision = precision


CUDNN = ("Gru", "Lstm", "Rnn")
"""Layers that cuDNN computes at such sizes, whose activations are some 150 ulp off."""

LAYERS = {case.name: case for case in reversed(CASES)}
"""The first case of each layer."""


def is_random(case: Case, inputs: list[Tensor]) -> bool:
    """Whether a layer in training mode draws random numbers, which differ between devices."""
    layer, state = case.build(), torch.get_rng_state()
    layer(*inputs)
    return not torch.equal(state, torch.get_rng_state())


def outcome(layer: torch.nn.Module, inputs: list[Tensor], weights: Tensor | None) -> list[Tensor]:
    """The output, then the gradients of a weighted sum of it, in float64 on the CPU."""
    inputs = [t.clone().requires_grad_(i == 0 and t.is_floating_point()) for i, t in enumerate(inputs)]
    output = layer(*inputs)
    output = output[0] if isinstance(output, tuple) else output
    if weights is None:
        weights = torch.randn(output.shape, dtype=torch.float64)
    wanted = [t for t in [*inputs, *layer.parameters()] if t.requires_grad]
    gradients = torch.autograd.grad((output * weights.to(output)).sum(), wanted)
    return [t.detach().double().cpu() for t in (output, *gradients)]


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_layers_forward_and_backward(name: str, device: torch.device) -> None:
    """The error against float64 is at most 4 times that of the CPU, plus some ulp of the largest value."""
    torch.manual_seed(0)
    case = LAYERS[name]
    layer, inputs = case.build(), list(case.inputs(7))
    layer.train(not is_random(case, inputs))
    exact_layer = copy.deepcopy(layer).double()
    exact_inputs = [t.double() if t.is_floating_point() else t for t in inputs]
    weights = torch.randn(outcome(copy.deepcopy(exact_layer), exact_inputs, None)[0].shape)
    exact = outcome(exact_layer, exact_inputs, weights)
    on_cpu = outcome(copy.deepcopy(layer), inputs, weights)
    on_device = outcome(copy.deepcopy(layer).to(device), [t.to(device) for t in inputs], weights)
    assert len(exact) == len(on_device)
    for want, cpu, got in zip(exact, on_cpu, on_device, strict=True):
        ulps = 256 if name in CUDNN else 16
        limit = 4 * (cpu - want).abs().max() + ulps * torch.finfo(torch.float32).eps * want.abs().max()
        assert (got - want).abs().max() <= limit


def test_dropout_drops_its_share_and_scales_the_rest(device: torch.device) -> None:
    x = torch.ones(100_000, device=device)
    y = nn.Dropout(0.25)(x)
    kept = y[y != 0]
    assert abs(kept.numel() / x.numel() - 0.75) < 0.01
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / 0.75))


@pytest.mark.parametrize(
    "build",
    [
        optim.Adam, optim.AdamW, lambda: optim.Adam(amsgrad=True), optim.Sgd, lambda: optim.Sgd(momentum=0.9),
        optim.Adadelta, optim.Adafactor, optim.Adagrad, optim.Adamax, optim.Adan, optim.Lamb, optim.Lion,
        optim.NAdam, optim.RAdam, lambda: optim.RmsProp(momentum=0.9, centered=True),
        lambda: optim.ScheduleFreeAdamW(warmup_steps=3),
    ],
    ids=lambda build: repr(build()),
)  # fmt: skip
def test_optimizers_step_as_on_the_cpu_in_float64(
    build: Callable[[], optim.Optimizer], device: torch.device
) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(7, 5)
    x = torch.randn(3, 7)
    results = []
    for place, dtype in ((torch.device("cpu"), torch.float64), (device, torch.float32)):
        model, optimizer = copy.deepcopy(layer).to(place, dtype), build()
        for step in range(5):
            loss = model(x.to(place, dtype)).square().mean()
            optimizer.step(0.01 * (step + 1), model, burnt.Gradients.of(loss, model))
        tensors = optimizer.into_record().tensors
        assert all(t.device.type == place.type for key, t in tensors.items() if key.endswith("exp_avg"))
        results.append([p.detach().cpu().double() for p in model.parameters()])
    torch.testing.assert_close(results[1], results[0], rtol=2e-5, atol=2e-6)


def test_averaged_groups_clip_and_skip_as_on_the_cpu_in_float64(device: torch.device) -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(7, 5), torch.randn(3, 7)
    results = []
    for place, dtype in ((torch.device("cpu"), torch.float64), (device, torch.float32)):
        groups = optim.Groups([("bias", optim.Sgd(momentum=0.9), 0.1), ("*", optim.AdamW())])
        model, optimizer = copy.deepcopy(layer).to(place, dtype), optim.Ema(groups, decay=0.9)
        skipped = []
        for scale in (None, 8.0, torch.inf, 8.0):
            loss = model(x.to(place, dtype)).square().mean() * (scale or 1)
            grads = burnt.Gradients.of(loss, model)
            scale = None if scale is None else 8.0
            result = optimizer.step(0.01, model, grads, clip_norm=0.1, grad_scale=scale)
            skipped.append(bool(result.skipped))
        assert skipped == [False, False, True, False]
        optimizer.eval(model)
        results.append([p.detach().cpu().double() for p in model.parameters()])
    torch.testing.assert_close(results[1], results[0], rtol=2e-5, atol=2e-6)


def test_an_optimizer_state_of_the_cpu_goes_on_on_the_device(device: torch.device) -> None:
    torch.manual_seed(0)
    model, optimizer = nn.Linear(7, 5), optim.AdamW()
    x = torch.randn(3, 7)

    def step(model: torch.nn.Module, optimizer: optim.Optimizer, x: Tensor) -> None:
        optimizer.step(1e-2, model, burnt.Gradients.of(model(x).square().mean(), model))

    step(model, optimizer, x)
    there, other = model.fork(device), optim.AdamW()
    other.load_record(optimizer.into_record())
    step(there, other, x.to(device))
    step(model, optimizer, x)  # only now, as the record shares its memory
    torch.testing.assert_close([p.cpu() for p in there.parameters()], list(model.parameters()))


def test_gradients_live_on_the_device(device: torch.device) -> None:
    model = nn.Linear(7, 5).to(device)
    grads = burnt.Gradients.of(model(torch.ones(3, 7, device=device)).sum(), model)
    assert {g.device.type for g in grads.values()} == {device.type}
    clipped = grads.clip_norm(1.0)
    assert clipped.norm().device.type == device.type
    assert float(clipped.norm()) == pytest.approx(1.0, rel=1e-4)


def test_fork_to_the_device_is_an_independent_copy(device: torch.device) -> None:
    model = torch.nn.ModuleList([nn.Linear(3, 2), nn.BatchNorm(2)])
    here = Classifier(layers=model)
    there = here.fork(device)
    assert {t.device.type for t in there.state_dict().values()} == {device.type}
    with torch.no_grad():
        there.layers[0].weight.zero_()
    assert here.layers[0].weight.abs().sum() > 0


def test_records_go_from_device_to_device(device: torch.device, tmp_path: Path) -> None:
    model = nn.Linear(3, 2).to(device)
    model.save(tmp_path / "m.safetensors")
    twin = nn.Linear(3, 2)
    twin.load_record(burnt.Record.load(tmp_path / "m.safetensors"))
    torch.testing.assert_close(twin.weight, model.weight.cpu(), rtol=0, atol=0)


def test_device_info_names_the_device(device: torch.device) -> None:
    info = burnt.device_info(device)
    assert torch.device(info.device).type == device.type
    assert info.name
    if device.type == "cuda":
        assert info.kind in ("cuda", "rocm")
        assert info.memory is not None
        assert info.memory > 2**30
        assert info.architecture.startswith(("sm_", "gfx"))
        assert info == burnt.device_info()


class Classifier(burnt.Module):
    layers: list[torch.nn.Module]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x

    def training_step(self, batch: Batch) -> ClassificationOutput:
        logits = self(batch.x)
        return ClassificationOutput(torch.nn.functional.cross_entropy(logits, batch.y), logits, batch.y)


def classifier() -> Classifier:
    torch.manual_seed(0)
    return Classifier([nn.Linear(9, 33), nn.LayerNorm(33), nn.Relu(), nn.Dropout(0.2), nn.Linear(33, 3)])


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(256, 9, generator=generator)
    return TensorDataset(x=x, y=x[:, :3].argmax(-1))


def training(folder: Path, device: torch.device, duration: str, **options: Any) -> SupervisedTraining:
    return SupervisedTraining(
        folder,
        train=options.pop("train", None) or Loader(data(), 32, shuffle=True, seed=3),
        valid=Loader(data(), 100),
        duration=duration,
        metrics=[Loss(), Accuracy()],
        monitor="off",
        device=device,
        seed=7,
        **options,
    )


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_training_learns(precision: str, device: torch.device, tmp_path: Path) -> None:
    learner = Learner(classifier(), optim.AdamW(), 1e-2)
    result = training(tmp_path, device, "8 epochs", precision=precision, clip_norm=1.0).run(learner)
    assert {p.device.type for p in result.model.parameters()} == {device.type}
    assert {p.dtype for p in result.model.parameters()} == {torch.float32}
    assert result.values["valid/accuracy"] > 0.9
    again = evaluate(learner, Loader(data(), 64), [Accuracy()], precision=precision)
    assert again["accuracy"] == pytest.approx(result.values["valid/accuracy"], abs=0.01)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_resumed_training_ends_bit_for_bit_the_same(
    precision: str, device: torch.device, tmp_path: Path
) -> None:
    """Dropout draws from the device's generator, and 13 steps end in the middle of the second epoch."""

    def run(folder: str, duration: str, *, resume: bool = False) -> dict[str, Tensor]:
        learner = Learner(classifier(), optim.AdamW(), optim.Cosine(1e-2, steps=30))
        options = {"checkpoints": [KeepLast()], "resume": resume, "precision": precision}
        result = training(tmp_path / folder, device, duration, **options).run(learner)
        optimizer = learner.optimizer.into_record().tensors
        return {**result.model.state_dict(), **optimizer}

    whole = run("whole", "21 steps")
    halves = run("halves", "13 steps")
    assert not torch.equal(halves["layers.0.weight"], whole["layers.0.weight"])
    halves = run("halves", "21 steps", resume=True)
    assert whole.keys() == halves.keys()
    for name, value in whole.items():
        assert torch.equal(value, halves[name]), name


class Strict:
    """A loader that has torch refuse every wait for the GPU between two readings of the metrics."""

    def __init__(self, log_every: int) -> None:
        self.loader: Loader[Batch] = Loader(data(), 32)
        self.log_every = log_every
        self.checked = 0

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        number = 0
        for _ in range(8):
            for batch in self.loader.epoch(0):
                # Of the steps in between, the last reads the metrics and the first comes right after.
                hot = 0 < number % self.log_every < self.log_every - 1
                torch.cuda.set_sync_debug_mode("error" if hot else "default")
                self.checked += hot
                yield batch
                number += 1
        torch.cuda.set_sync_debug_mode("default")

    def num_batches(self) -> int:
        return 8 * len(self.loader)

    def state(self) -> dict[str, Any]:
        return self.loader.state()


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")
@pytest.mark.parametrize(
    ("precision", "options"),
    [("float32", {}), ("bfloat16", {}), ("float16", {}), ("float32", {"clip_value": 0.1})],
)
def test_nothing_waits_for_the_gpu_between_two_readings(
    precision: str, options: dict[str, Any], device: torch.device, tmp_path: Path
) -> None:
    if device.type != "cuda":
        pytest.skip("torch watches synchronisation on CUDA devices alone")
    strict = Strict(log_every=20)
    learner = Learner(classifier(), optim.AdamW(), optim.Cosine(1e-2, steps=100))
    try:
        training(
            tmp_path,
            device,
            "64 steps",
            train=strict,
            log_every=20,
            precision=precision,
            clip_norm=1.0,
            **options,
        ).run(learner)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert strict.checked > 50


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")
def test_the_watch_for_synchronisation_would_see_one(device: torch.device) -> None:
    if device.type != "cuda":
        pytest.skip("torch watches synchronisation on CUDA devices alone")
    x = torch.ones(3, device=device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        with pytest.raises(RuntimeError, match="synchroniz"):
            float(x.sum())
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_batches_move_to_the_device(device: torch.device) -> None:
    batch = move(Batch(x=torch.ones(2), rest=[torch.zeros(1), {"y": torch.zeros(1)}]), device)
    assert batch.x.device.type == batch.rest[0].device.type == batch.rest[1]["y"].device.type == device.type
