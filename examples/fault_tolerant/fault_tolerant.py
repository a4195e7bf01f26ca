"""Train in replicas of which one may die and come back while the others go on, with torchft.

    RUST_LOG=warn python examples/fault_tolerant/fault_tolerant.py

starts two replicas, kills one in the middle, starts it again, and compares the models of both. By hand, each
on its own machine:

    torchft_lighthouse --min-replicas 1 --join-timeout-ms 1000
    burnt train examples/fault_tolerant/fault_tolerant.py:main replica=0 lighthouse=http://host:29510
    burnt train examples/fault_tolerant/fault_tolerant.py:main replica=1 lighthouse=http://host:29510
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torchft import Manager, ProcessGroupGloo
from torchft.coordination import LighthouseServer

import burnt
from burnt import Gradients, data, nn, optim
from burnt.optim import OptimizerRecord
from burnt.plot import Line, Plot
from burnt.store import RunReader
from burnt.train import ClassificationOutput, Learner, Ranks, SupervisedTraining, evaluate
from burnt.train.metrics import Accuracy


class Replicas(Ranks):
    """One of several replicas: in each step, gradients are averaged over those that are there.

    For the training it is the only process. The others are torchft's business: its lighthouse knows which are
    alive, and one that joins is given the model and the optimizer of another one before its first step.
    """

    name = "torchft"
    needs_launcher = False

    def __init__(self, replica: int, lighthouse: str) -> None:
        super().__init__()
        self.replica, self.lighthouse = replica, lighthouse

    def join(self, launched: Any, device: torch.device) -> None:
        """Meet the other replicas, on gloo; with GPUs it is ProcessGroupNCCL."""
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        dist.init_process_group("gloo", store=dist.PrefixStore("own", store), rank=0, world_size=1)
        super().join(launched, device)
        self.manager = Manager(
            pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
            load_state_dict=self.load,
            state_dict=self.save,
            min_replica_size=1,
            use_async_quorum=False,
            replica_id=f"replica{self.replica}",
            lighthouse_addr=self.lighthouse,
            store_addr="127.0.0.1",
            store_port=store.port,
            rank=0,
            world_size=1,
        )

    def prepare(self, learner: Learner, state: Mapping[str, Any]) -> None:
        """Keep what a replica that joins is given."""
        super().prepare(learner, state)
        self.learner = learner

    def save(self) -> dict[str, Any]:
        """Return the state for a replica that joins."""
        record = self.learner.optimizer.into_record()
        optimizer = {"name": record.optimizer, "options": dict(record.options), "tensors": record.tensors}
        return {"model": self.learner.model.state_dict(), "optimizer": optimizer}

    def load(self, state: dict[str, Any]) -> None:
        """Take over the state of another replica."""
        self.learner.model.load_state_dict(state["model"])
        saved = state["optimizer"]
        self.learner.optimizer.load_record(OptimizerRecord(saved["name"], saved["options"], saved["tensors"]))

    def begin_step(self, batches: int, params: Mapping[str, torch.nn.Parameter]) -> None:
        """Find out which replicas are there."""
        super().begin_step(batches, params)
        self.manager.start_quorum()

    def mean(self, window: Any, params: Mapping[str, torch.Tensor], outcomes: Any) -> Gradients | None:
        """Average the gradients; None, which skips the step, if a replica was lost meanwhile."""
        gradients = super().mean(window, params, outcomes)
        if gradients is not None:
            for work in [self.manager.allreduce(gradient) for gradient in gradients.values()]:
                work.wait()
        return gradients if self.manager.should_commit() else None


class StopAt:
    """Ends the training after a number of steps, which the replicas count together."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step(self, event: Any) -> None:
        """Stop if the steps are done."""
        if event.training.ranks.manager.current_step() >= self.steps:
            event.training.stop("the steps of all replicas are done")


class Settings(burnt.Config):
    """The settings of one replica."""

    replica: int = 0
    lighthouse: str = "http://localhost:29510"
    steps: int = 3000
    folder: str = "runs/fault_tolerant"
    resume: bool = False

    def init(self) -> nn.Sequential:
        return nn.Sequential(nn.Linear(64, 128), nn.Relu(), nn.Linear(128, 10))


def step(model: torch.nn.Module, batch: data.Batch) -> ClassificationOutput:
    logits = model(batch.x)
    return ClassificationOutput(torch.nn.functional.cross_entropy(logits, batch.y), logits, batch.y)


def digits() -> tuple[data.Dataset[Any], data.Dataset[Any]]:
    """Return images [n, 64] with labels [n], to train and to test."""
    images, labels = load_digits(return_X_y=True)
    table = data.TensorDataset(x=torch.tensor(images / 16).float(), y=torch.tensor(labels))
    train, test = data.split(table, 0.8, 0.2, seed=0, stratify="y")
    return train, test


def main(settings: Settings) -> None:
    """Train one replica, on batches that it draws by its own seed."""
    train, test = digits()
    torch.manual_seed(0)
    training = SupervisedTraining(
        f"{settings.folder}/replica{settings.replica}",
        train=data.Loader(train, batch_size=32, shuffle=True, seed=settings.replica),
        valid=data.Loader(test, batch_size=256),
        duration=f"{settings.steps} epochs",  # StopAt ends it before
        validate_every="500 steps",
        checkpoint_every="100 steps",
        log_every=10,
        metrics=[Accuracy()],
        callbacks=[StopAt(settings.steps)],
        strategy=Replicas(settings.replica, settings.lighthouse),
        config=settings,
        resume=settings.resume,
        monitor="plain",
    )
    training.run(Learner(settings.init(), optim.AdamW(), 3e-4, step))
    training.ranks.manager.shutdown(wait=False)


def start(replica: int, settings: Settings, *, resume: bool = False) -> subprocess.Popen[bytes]:
    """Start a replica as a process."""
    own = {"replica": replica, "lighthouse": settings.lighthouse, "steps": settings.steps}
    own |= {"folder": settings.folder, "resume": str(resume).lower()}
    words = [f"{name}={value}" for name, value in own.items()]
    command = [sys.executable, "-m", "burnt", "train", f"{__file__}:main", *words]
    return subprocess.Popen(command, env={**os.environ, "RUST_LOG": "warn"})  # torchft says much else


def logged(folder: Path) -> Any:
    """Return the losses that a replica has logged so far; None before the first one."""
    try:
        with RunReader(folder) as run:
            return run.points("loss", "train")
    except burnt.errors.BurntError:
        return None


def wait_until(folder: Path, step: int) -> None:
    """Wait until a replica has logged a step."""
    while (points := logged(folder)) is None or not points.steps or points.steps[-1] < step:
        time.sleep(0.1)


def demonstrate(settings: Settings) -> float:
    """Train in two replicas, of which one is killed and comes back; return the accuracy of the model."""
    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=1000)
    settings = settings.replace(lighthouse=lighthouse.address())
    folders = [Path(settings.folder, f"replica{number}") for number in range(2)]
    replicas = [start(number, settings) for number in range(2)]
    wait_until(folders[1], settings.steps // 4)
    replicas[1].send_signal(signal.SIGKILL)
    replicas[1].wait()
    print("replica 1 was killed, and starts again; replica 0 goes on", flush=True)
    replicas[1] = start(1, settings, resume=True)
    codes = [replica.wait() for replica in replicas]
    assert codes == [0, 0], codes
    models = [burnt.load(folder, "last", model=settings.init()) for folder in folders]
    pairs = zip(models[0].parameters(), models[1].parameters(), strict=True)
    difference = max(float((one - other).detach().abs().max()) for one, other in pairs)
    test = data.Loader(digits()[1], batch_size=256)
    accuracy: float = evaluate(models[0], test, metrics=[Accuracy()], step=step)["accuracy"]
    lines = [
        Line(f"replica {number}", points.steps, points.values)
        for number, points in enumerate(map(logged, folders))
    ]
    Path(settings.folder, "loss.svg").write_text(Plot(lines).svg())
    print(json.dumps({"accuracy": round(accuracy, 4), "largest difference of a weight": difference}))
    return accuracy


if __name__ == "__main__":
    demonstrate(Settings.from_assignments(sys.argv[1:]))
