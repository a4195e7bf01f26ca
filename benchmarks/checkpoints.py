"""How long a training waits for a checkpoint: written at once, in the background, and by torch's async_save.

A model of 25 million parameters (100 MB) with AdamW's state makes checkpoints of 300 MB.

    python benchmarks/checkpoints.py [--width 2500] [--folder /tmp]
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed.checkpoint as dcp

from burnt import memory, optim
from burnt.gradients import Gradients
from burnt.train import Checkpoints, Every, KeepLast, Position, TrainingState
from burnt.train.checkpoints.rng import RandomStates
from burnt.train.checkpoints.saving import CheckpointWriter

ROUNDS = 5


def build(width: int) -> tuple[torch.nn.Module, optim.AdamW]:
    """Return a model of four square layers, and an optimizer that has done a step."""
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(4)))
    optimizer = optim.AdamW()
    params = dict(model.named_parameters())
    optimizer.step(1e-3, params, Gradients({path: torch.ones_like(p) for path, p in params.items()}))
    return model, optimizer


def milliseconds(call) -> float:
    """Return the time that a call takes."""
    start = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - start)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=2500)
    parser.add_argument("--folder", default=None)
    arguments = parser.parse_args()
    model, optimizer = build(arguments.width)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder, memory.pool():
        checkpoints = Checkpoints(Path(folder) / "run", [KeepLast(1)])
        run = SimpleNamespace(sync=lambda: None, event=lambda *_, **__: None)
        writer = CheckpointWriter(checkpoints, run, lambda saved: None, in_background=True)
        position, rng = Position(), RandomStates.capture()

        def save(*, wait: bool) -> None:
            position.step += 1
            state = TrainingState(model, optimizer.into_record(), [], position, {}, rng)
            writer.save(state, None, wait=wait)

        in_torch = None

        def save_by_torch() -> None:
            nonlocal in_torch
            position.step += 1
            state = {"model": model.state_dict(), "optimizer": optimizer.into_record().tensors}
            in_torch = dcp.async_save(state, checkpoint_id=f"{folder}/torch-{position.step}", no_dist=True)

        rows: dict[str, list[float]] = {"at once": [], "in the background": [], "until it is written": []}
        rows |= {"torch's async_save": [], "until torch has written it": []}
        for _ in range(ROUNDS):
            rows["at once"].append(milliseconds(lambda: save(wait=True)))
            rows["in the background"].append(milliseconds(lambda: save(wait=False)))
            rows["until it is written"].append(milliseconds(writer.wait))
            rows["torch's async_save"].append(milliseconds(save_by_torch))
            rows["until torch has written it"].append(milliseconds(in_torch.result))
        for name, times in rows.items():
            print(f"{name:<28} {statistics.median(times):8.1f} ms   [{min(times):.1f} to {max(times):.1f}]")

        interval, calls = Every("500 steps").interval, 100_000
        ask = milliseconds(lambda: [interval.due(position, epoch_ended=False) for _ in range(calls)])
        print(f"{'Every, in each step':<28} {1e6 * ask / calls:8.0f} ns")


if __name__ == "__main__":
    main()
