"""What a step costs in burnt's Learner, above the same step in a loop written by hand in PyTorch.

    python benchmarks/learner.py [--quick] [--save] [--device cuda]

Every rival trains the same model from the same weights on the same batches, from a `burnt.data.Loader`,
updates the same metric objects (Loss and Accuracy), reads them every 20 steps and has the same fused AdamW;
that all end at the same loss is checked. burnt writes its run store, samples the machine, prints plain lines
to nowhere and keeps its metrics meanwhile; it writes no checkpoints.

How time is taken: the rivals alternate in one process, in blocks of 0.6 seconds, each a training of its
own. The clock is in the data: the loader looks at it when asked for batch `warm` and for batch
`warm + steps`, so that exactly `steps` whole steps lie between, whoever asks, and neither setting up nor
closing counts. A block is long enough for the work of burnt's background threads (a flush every 0.5 s) to
fall into it at its own rate. A round runs every rival once, in a random order; a row is the median over the
rounds of (rival - hand-written loop), with a bootstrap interval. Rounds in which the machine took time from
one of the two (steal in /proc/stat, over 50 involuntary switches a second) are dropped and counted, as long
as five are left.

Then, in the same way: what each feature of a training adds to a step of burnt's Learner without it. And what
`RunWriter.log` of five values costs the calling thread, and how much memory a training gains
in 10,000 steps after its first 1,000.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.util
import io
import itertools
import json
import logging
import random
import resource
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor

import burnt
from burnt import nn, optim
from burnt.data import Batch, Loader, TensorDataset, move
from burnt.train import ClassificationOutput, Learner, RunWriter, SupervisedTraining
from burnt.train.metrics import Accuracy, Loss, intervals, read

RESULTS = Path(__file__).parent / "results"
READ_EVERY = 20
ENOUGH_CALM = 5  # with fewer undisturbed rounds all are used, and the table says so
HAND = "hand-written loop"


# --- what is trained


class Classifier(burnt.Module):
    layers: torch.nn.Sequential

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs)

    def training_step(self, batch: Batch) -> ClassificationOutput:
        return step(self, batch)


def step(model: torch.nn.Module, batch: Batch) -> ClassificationOutput:
    logits = model(batch.inputs)
    loss = torch.nn.functional.cross_entropy(logits, batch.labels)
    return ClassificationOutput(loss, outputs=logits, targets=batch.labels)


def mlp(ours: bool) -> torch.nn.Module:
    linear, relu = (nn.Linear, nn.Relu) if ours else (torch.nn.Linear, torch.nn.ReLU)
    layers = torch.nn.Sequential(linear(64, 96), relu(), linear(96, 96), relu(), linear(96, 10))
    return Classifier(layers) if ours else layers


def convnet(ours: bool) -> torch.nn.Module:
    conv, norm, relu, flatten, linear = (
        (nn.Conv2d, nn.BatchNorm, nn.Relu, nn.Flatten, nn.Linear)
        if ours
        else (torch.nn.Conv2d, torch.nn.BatchNorm2d, torch.nn.ReLU, torch.nn.Flatten, torch.nn.Linear)
    )
    layers = torch.nn.Sequential(
        *(conv(1, 16, 3, padding=1), norm(16), relu()),
        *(conv(16, 32, 3, padding=1, stride=2), norm(32), relu()),
        *(flatten(), linear(32 * 4 * 4, 10)),
    )
    return Classifier(layers) if ours else layers


@dataclasses.dataclass(frozen=True)
class Task:
    name: str
    build: Callable[[bool], torch.nn.Module]
    shape: tuple[int, ...]
    batch_size: int


TASKS = (
    Task("MLP 64-96-96-10, batch 32", mlp, (64,), 32),
    Task("ConvNet on 8x8 digits, batch 32", convnet, (1, 8, 8), 32),
)


# --- the clock


@dataclasses.dataclass(frozen=True)
class Reading:
    seconds: float
    stolen: int
    switches: int
    memory: int

    @classmethod
    def now(cls) -> Reading:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        switches = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
        with open("/proc/stat", encoding="utf-8") as file:
            stolen = int(file.readline().split()[8])
        return cls(time.perf_counter(), stolen, switches, psutil.Process().memory_info().rss)


class Clocked:
    """One long epoch of a loader; takes a reading when asked for the batches `warm` and `warm + steps`."""

    def __init__(self, task: Task, warm: int, steps: int) -> None:
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn(2048, *task.shape, generator=generator)
        labels = torch.randint(10, (2048,), generator=generator)
        dataset = TensorDataset(inputs=inputs, labels=labels)
        self.loader: Loader[Batch] = Loader(dataset, task.batch_size, shuffle=True)
        self.warm, self.steps = warm, steps
        self.readings: list[Reading] = []

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        batches = itertools.chain.from_iterable(map(self.loader.epoch, itertools.count()))
        for number, batch in enumerate(itertools.islice(batches, len(self))):
            if number in (self.warm, self.warm + self.steps):
                self.readings.append(Reading.now())
            yield batch

    def __iter__(self) -> Iterator[Batch]:
        return self.epoch(0)

    def __len__(self) -> int:
        return self.warm + self.steps + 1

    def num_batches(self) -> int:
        return len(self)

    def state(self) -> dict[str, Any]:
        return self.loader.state()


class Meter:
    """The two metrics, updated at every step and read every `READ_EVERY`, for the rivals of burnt."""

    def __init__(self) -> None:
        self.metrics = [Loss(), Accuracy()]
        self.before = read(self.metrics)
        self.step = 0
        self.values: dict[str, float] = {}

    def update(self, output: ClassificationOutput) -> None:
        for metric in self.metrics:
            metric.update(output)
        self.step += 1
        if self.step % READ_EVERY == 0:
            now = read(self.metrics)
            self.values = intervals(self.metrics, now, self.before)
            self.before = now

    def loss(self) -> float:
        return intervals(self.metrics, read(self.metrics), None)["loss"]


# --- the rivals: each trains to the end of the clocked epoch and returns its mean loss

Rival = Callable[[Task, Clocked, torch.device], float]


def hand(task: Task, clocked: Clocked, device: torch.device) -> float:
    model = task.build(False).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    meter = Meter()
    model.train()
    for batch in clocked:
        output = step(model, move(batch, device) if device.type != "cpu" else batch)
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
        meter.update(output)
    return meter.loss()


def burnt_learner(task: Task, clocked: Clocked, device: torch.device, **settings: Any) -> float:
    learner = Learner(task.build(True), optim.AdamW(), 1e-3, step=settings.pop("step", None))
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        training = SupervisedTraining(
            folder,
            train=clocked,
            duration=f"{len(clocked)} steps",
            metrics=[Loss(), Accuracy()],
            log_every=READ_EVERY,
            checkpoints=None,
            monitor="plain",
            device=device,
            **settings,
        )
        return training.run(learner).values["train/loss"]


def accelerate(task: Task, clocked: Clocked, device: torch.device) -> float:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=device.type == "cpu")
    model = task.build(False)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True))
    meter = Meter()
    model.train()
    for batch in clocked:
        with accelerator.accumulate(model):
            output = step(model, move(batch, device) if device.type != "cpu" else batch)
            accelerator.backward(output.loss)
            optimizer.step()
            optimizer.zero_grad()
        meter.update(output)
    return meter.loss()


def lightning(task: Task, clocked: Clocked, device: torch.device, *, log: bool = False) -> float:
    from lightning import LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = task.build(False)
            self.meter = Meter()

        def training_step(self, batch: Batch, index: int) -> Tensor:
            output = step(self.model, batch)
            self.meter.update(output)
            if log:
                self.log("loss", output.loss, batch_size=task.batch_size)
            return output.loss

        def transfer_batch_to_device(self, batch: Batch, device: torch.device, index: int) -> Batch:
            return move(batch, device) if device.type != "cpu" else batch

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)

    module = Module()
    trainer = Trainer(
        max_epochs=1,
        accelerator="cpu" if device.type == "cpu" else "gpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(module, train_dataloaders=clocked)
    return module.meter.loss()


def lightning_log(task: Task, clocked: Clocked, device: torch.device) -> float:
    return lightning(task, clocked, device, log=True)


RIVALS: dict[str, tuple[str | None, Rival]] = {
    HAND: (None, hand),
    "burnt": (None, burnt_learner),
    "accelerate": ("accelerate", accelerate),
    "lightning": ("lightning", lightning),
    "lightning, one self.log": ("lightning", lightning_log),
}


class StepCallback:
    """The cheapest callback of each step."""

    def on_step(self, event: Any) -> None:
        pass


class GradientsCallback:
    """The cheapest callback of each step's gradients."""

    def on_gradients(self, event: Any) -> None:
        pass


def logging_step(model: torch.nn.Module, batch: Batch) -> ClassificationOutput:
    output = step(model, batch)
    output.log = {"logit": output.outputs[0, 0].detach()}
    return output


BASE = "burnt"
FEATURES: dict[str, dict[str, Any]] = {
    BASE: {},
    "a callback of steps": {"callbacks": [StepCallback()]},
    "a callback of gradients": {"callbacks": [GradientsCallback()]},
    "log_gradient_norm": {"log_gradient_norm": True},
    "clip_norm": {"clip_norm": 1.0},
    "clip_value": {"clip_value": 1.0},
    'on_nan="skip"': {"on_nan": "skip"},
    "bfloat16": {"precision": "bfloat16"},
    "float16, autocast included": {"precision": "float16"},
}
if "log" in {field.name for field in dataclasses.fields(ClassificationOutput)}:
    FEATURES["log= of one scalar"] = {"step": logging_step}


def feature(settings: dict[str, Any]) -> Rival:
    return lambda task, clocked, device: burnt_learner(task, clocked, device, **settings)


# --- the measurement


@dataclasses.dataclass
class Block:
    microseconds: float
    disturbed: bool
    loss: float


def run_block(rival: Rival, task: Task, warm: int, steps: int, device: torch.device) -> Block:
    torch.manual_seed(0)
    clocked = Clocked(task, warm, steps)
    loss = rival(task, clocked, device)
    began, ended = clocked.readings
    seconds = ended.seconds - began.seconds
    disturbed = ended.stolen > began.stolen or ended.switches - began.switches > 50 * seconds
    return Block(seconds / steps * 1e6, disturbed, loss)


def bootstrap(values: list[float], draws: int = 2000) -> tuple[float, float]:
    """The 95 % interval of the median."""
    dice = random.Random(0)
    medians = sorted(statistics.median(dice.choices(values, k=len(values))) for _ in range(draws))
    return medians[int(0.025 * draws)], medians[int(0.975 * draws)]


def compare(
    task: Task,
    rounds: int,
    block_seconds: float,
    device: torch.device,
    rivals: dict[str, tuple[str | None, Rival]] = RIVALS,
    tolerance: float | None = None,
) -> dict[str, Any]:
    """Rows by rival: microseconds per step, the difference to the first rival and its interval."""
    base = next(iter(rivals))
    present = {name: run for name, (needs, run) in rivals.items() if needs is None or installed(needs)}
    pilot = {name: run_block(run, task, 50, 100, device) for name, run in present.items()}
    # A GPU adds up in another order each time, and training makes much of little.
    tolerance = tolerance or (1e-4 if device.type == "cpu" else 2e-2)
    for name, block in pilot.items():
        if abs(block.loss - pilot[base].loss) > tolerance * abs(pilot[base].loss):
            raise SystemExit(f"{name} trains something else: loss {block.loss}, not {pilot[base].loss}")
    steps = max(int(block_seconds * 1e6 / pilot[base].microseconds), 20)
    dice = random.Random(0)
    blocks: dict[str, list[Block]] = {name: [] for name in present}
    for _ in range(rounds):
        for name in dice.sample(list(present), len(present)):
            blocks[name].append(run_block(present[name], task, min(steps, 100), steps, device))
    rows: dict[str, Any] = {
        name: {"skipped": f"{needs} is not installed"} for name, (needs, _) in rivals.items()
    }
    for name, own in blocks.items():
        pairs = list(zip(own, blocks[base], strict=True))
        calm = [(a, b) for a, b in pairs if not (a.disturbed or b.disturbed)]
        used = calm if len(calm) >= ENOUGH_CALM else pairs
        differences = [a.microseconds - b.microseconds for a, b in used]
        rows[name] = {
            "microseconds": statistics.median(a.microseconds for a, _ in used),
            "above": statistics.median(differences),
            "interval": bootstrap(differences),
            "rounds": len(pairs),
            "calm": len(calm),
        }
    return {"steps": steps, "rows": rows}


def installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def log_cost(calls: int) -> dict[str, float]:
    """Microseconds that writing five metrics takes from the calling thread, at 1,000 calls a second."""
    values = {"loss": 0.5, "accuracy": 0.9, "learning_rate": 1e-3, "steps_per_second": 3e3, "samples": 1e5}
    taken = []
    with tempfile.TemporaryDirectory() as folder, RunWriter.create(folder) as writer:
        for number in range(calls):
            began = time.perf_counter()
            writer.log(number + 1, 1, values)
            taken.append((time.perf_counter() - began) * 1e6)
            time.sleep(0.001)
    return {"median": statistics.median(taken), "percentile_99": sorted(taken)[int(0.99 * calls)]}


def memory_growth(warm: int, steps: int, device: torch.device) -> dict[str, float]:
    """Resident memory gained by a training of burnt, in MB, over `steps` steps after the first `warm`."""
    clocked = Clocked(TASKS[0], warm, steps)
    burnt_learner(TASKS[0], clocked, device)
    began, ended = clocked.readings
    return {"megabytes": (ended.memory - began.memory) / 2**20, "steps": steps, "after": warm}


def machine(device: torch.device) -> dict[str, Any]:
    info = burnt.device_info(device)
    return {
        "device": info.name,
        "cpu": burnt.device_info("cpu").name,
        "cores": psutil.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "burnt": burnt.__version__,
    }


def table(task: Task, result: dict[str, Any]) -> str:
    base = next(iter(result["rows"]))
    above = "above hand" if base == HAND else f"above {base}"
    lines = [
        f"{task.name}, blocks of {result['steps']} steps",
        f"  {'':<26} {'us/step':>9} {above:>11} {'95 % interval':>18} {'calm rounds':>12}",
    ]
    for name, row in result["rows"].items():
        if "skipped" in row:
            lines.append(f"  {name:<26} skipped: {row['skipped']}")
            continue
        low, high = row["interval"]
        above = "" if name == base else f"{row['above']:+.1f}"
        interval = "" if name == base else f"[{low:+.1f}, {high:+.1f}]"
        calm = f"{row['calm']}/{row['rounds']}" + ("" if row["calm"] >= ENOUGH_CALM else ", all used")
        lines.append(f"  {name:<26} {row['microseconds']:>9.1f} {above:>11} {interval:>18} {calm:>12}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="what a step costs above a loop written by hand")
    parser.add_argument(
        "--quick", action="store_true", help="a few short blocks: shows that it runs, no more"
    )
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}/<device>-learner.json")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--device", default="cpu", type=torch.device)
    options = parser.parse_args(arguments)
    rounds, seconds, calls, warm, steps = (
        (2, 0.05, 200, 50, 200) if options.quick else (24, 0.6, 3000, 1000, 10_000)
    )
    # One thread: matrices of this size gain nothing from more, and waiting for them is noise.
    torch.set_num_threads(1)
    # Tips and advice that the peers give at every start.
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    results: dict[str, Any] = {"machine": machine(options.device), "tasks": {}}
    print(", ".join(f"{name} {value}" for name, value in results["machine"].items()))
    # First of all: later, memory that was freed before would hide what is gained.
    results["memory_growth"] = memory_growth(warm, steps, options.device)
    for task in TASKS:
        results["tasks"][task.name] = compare(task, rounds, seconds, options.device)
        print("\n" + table(task, results["tasks"][task.name]))
    rivals = {name: (None, feature(settings)) for name, settings in FEATURES.items()}
    # The losses are those of other precisions and of clipped gradients.
    found = compare(TASKS[0], rounds, seconds, options.device, rivals, tolerance=0.1)
    results["features"] = found
    print("\nwhat each feature adds\n" + table(TASKS[0], found))
    if options.device.type == "cuda":
        from burnt.kernels.optim import foreach_triton

        # Tables of addresses that the optimizer's steps had to upload, of those that they needed.
        results["uploads"] = foreach_triton._upload.cache_info()._asdict()
    results["log_5_metrics_microseconds"] = log_cost(calls)
    cost = results["log_5_metrics_microseconds"]
    print(f"\nwriting 5 metrics     {cost['median']:.1f} us, 99th percentile {cost['percentile_99']:.1f} us")
    print(f"memory growth         {results['memory_growth']['megabytes']:+.1f} MB over {steps} steps")
    targets = [options.json] if options.json else []
    if options.save:
        targets.append(RESULTS / f"{options.device.type}-learner.json")
    for path in targets:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
