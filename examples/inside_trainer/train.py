"""Train a small Llama with the Hugging Face Trainer, as it is and with burnt's kernels in it.

    python examples/inside_trainer/train.py --steps 60

Model and Trainer are of transformers (which needs accelerate). `burnt.swap` puts the kernels in.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)  # fmt: skip

import burnt
from burnt.plot import Line, Plot

LENGTH = 128


class Watch(TrainerCallback):
    """Keeps the time of each step; the Trainer logs the losses."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.ms: list[float] = []

    def on_step_begin(self, *_: object, **__: object) -> None:
        self.start = time.perf_counter()

    def on_step_end(self, *_: object, **__: object) -> None:
        self.ms.append(1e3 * (time.perf_counter() - self.start))

    def on_log(self, *_: object, logs: dict[str, float], **__: object) -> None:
        if "loss" in logs:
            self.losses.append(float(logs["loss"]))


def load_windows() -> list[dict[str, torch.Tensor]]:
    """Return the source of argparse as windows of bytes, each also its own labels."""
    text = torch.frombuffer(bytearray(Path(argparse.__file__).read_bytes()), dtype=torch.uint8).long()
    return [{"input_ids": part, "labels": part} for part in text.split(LENGTH) if len(part) == LENGTH]


def train(steps: int, width: int, layers: int, swap: bool) -> Watch:
    """Train with the Trainer; the same weights and batches each time."""
    set_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 64,
        max_position_embeddings=LENGTH,
    )
    model, windows, watch = LlamaForCausalLM(config), load_windows(), Watch()
    if swap:
        batch = {name: torch.stack([item[name] for item in windows[:8]]) for name in windows[0]}
        print(burnt.swap(model, verify=batch))  # measured here; unswap(model) takes them out
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=steps,
            per_device_train_batch_size=8,
            learning_rate=1e-3,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
            seed=0,
        )
        Trainer(model, arguments, train_dataset=windows, callbacks=[watch]).train()
    return watch


def main(words: list[str]) -> dict[str, Watch]:
    """Train twice, print the times and draw the losses."""
    parser = argparse.ArgumentParser()
    for name, default in (("steps", 60), ("width", 256), ("layers", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--out", type=Path, default=Path("losses.svg"))
    args = parser.parse_args(words)
    found = {
        name: train(args.steps, args.width, args.layers, swap=name == "swapped")
        for name in ("torch", "swapped")
    }
    for name, watch in found.items():
        print(f"{name:<8} {statistics.median(watch.ms[5:]):6.1f} ms a step, last loss {watch.losses[-1]:.4f}")
    steps = range(1, args.steps + 1)
    args.out.write_text(Plot([Line(name, steps, watch.losses) for name, watch in found.items()]).svg())
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
