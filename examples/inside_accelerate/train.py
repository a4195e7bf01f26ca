"""Train a BERT classifier in a loop with Accelerate, as it is and with burnt's kernels in it.

    python examples/inside_accelerate/train.py --steps 60

The model is of transformers, the loop is Accelerate's usual one. `burnt.swap` puts the kernels in.
"""

from __future__ import annotations

import argparse
import inspect
import statistics
import sys
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, default_collate
from transformers import BertConfig, BertForSequenceClassification

import burnt
from burnt.plot import Line, Plot

MODULES = (argparse, statistics, inspect, torch.serialization)  # which of them is a line of source from?
LENGTH = 64


def load_lines() -> list[dict[str, torch.Tensor]]:
    """Return the lines of the modules' sources as bytes, padded with 0, with the number of the module."""
    items = []
    for label, module in enumerate(MODULES):
        for line in Path(module.__file__).read_text(encoding="utf-8").splitlines():
            words = line.strip().encode()[:LENGTH]
            if len(words) >= 20:
                tokens = torch.tensor([*words, *[0] * (LENGTH - len(words))])
                items.append({"input_ids": tokens, "attention_mask": tokens.ne(0).long(), "labels": label})
    return items


def train(steps: int, width: int, layers: int, swap: bool) -> tuple[list[float], list[float]]:
    """Train with Accelerate; return the losses and the milliseconds of the steps."""
    set_seed(0)
    config = BertConfig(
        vocab_size=256,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
        num_labels=len(MODULES),
        hidden_dropout_prob=0.0,  # dropout draws other random numbers in other kernels
        attention_probs_dropout_prob=0.0,
    )
    model = BertForSequenceClassification(config)
    loader = DataLoader(load_lines(), 32, shuffle=True, drop_last=True)
    accelerator = Accelerator(cpu=True)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.AdamW(model.parameters(), lr=3e-4), loader
    )
    if swap:
        batch = default_collate(loader.dataset[:32])
        print(burnt.swap(accelerator.unwrap_model(model), verify=batch))  # unswap(model) takes them out
    losses, ms = [], []
    model.train()
    while len(losses) < steps:
        for batch in loader:
            start = time.perf_counter()
            loss = model(**batch).loss
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            ms.append(1e3 * (time.perf_counter() - start))
            if len(losses) == steps:
                break
    return losses, ms


def main(words: list[str]) -> dict[str, tuple[list[float], list[float]]]:
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
    for name, (losses, ms) in found.items():
        print(f"{name:<8} {statistics.median(ms[5:]):6.1f} ms a step, last loss {losses[-1]:.4f}")
    steps = range(1, args.steps + 1)
    args.out.write_text(Plot([Line(name, steps, losses) for name, (losses, _) in found.items()]).svg())
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
