"""Train a transformer with Lightning, as it is and with burnt's kernels in it.

    python examples/inside_lightning/train.py --steps 60

Built of torch.nn's layers; Lightning's Trainer runs the loop. `burnt.swap` puts the kernels in.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from pathlib import Path

import lightning
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import burnt
from burnt.plot import Line, Plot

LENGTH = 128


class Bytes(lightning.LightningModule):
    """A language model over bytes: tokens [n, L] to logits [n, L, 256]."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(256, width)
        self.positions = torch.nn.Parameter(0.02 * torch.randn(LENGTH, width))
        layer = torch.nn.TransformerEncoderLayer(
            width, width // 64, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm, self.head = torch.nn.LayerNorm(width), torch.nn.Linear(width, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = torch.nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        x = self.embedding(tokens) + self.positions
        return self.head(self.norm(self.blocks(x, mask=mask, is_causal=True)))

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        return cross_entropy(self(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Watch(lightning.Callback):
    """Keeps the loss and the time of each step."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.ms: list[float] = []

    def on_train_batch_start(self, *_: object) -> None:
        self.start = time.perf_counter()

    def on_train_batch_end(
        self, trainer: object, module: object, outputs: dict[str, Tensor], *_: object
    ) -> None:
        self.losses.append(float(outputs["loss"]))
        self.ms.append(1e3 * (time.perf_counter() - self.start))


def train(steps: int, width: int, layers: int, swap: bool) -> Watch:
    """Train with Lightning; the same weights and batches each time."""
    lightning.seed_everything(0, verbose=False)
    text = torch.frombuffer(bytearray(Path(argparse.__file__).read_bytes()), dtype=torch.uint8).long()
    windows = text[: len(text) // (LENGTH + 1) * (LENGTH + 1)].view(-1, LENGTH + 1)
    loader = DataLoader(windows, 16, shuffle=True, drop_last=True, generator=torch.Generator().manual_seed(0))
    model, watch = Bytes(width, layers), Watch()
    if swap:
        print(burnt.swap(model, verify=windows[:16, :-1]))  # measured here; unswap(model) takes them out
    trainer = lightning.Trainer(
        max_steps=steps,
        max_epochs=-1,
        accelerator="cpu",
        logger=False,
        callbacks=[watch],
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    trainer.fit(model, loader)
    return watch


def main(words: list[str]) -> dict[str, Watch]:
    """Train twice, print the times and draw the losses."""
    parser = argparse.ArgumentParser()
    for name, default in (("steps", 60), ("width", 256), ("layers", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--out", type=Path, default=Path("losses.svg"))
    args = parser.parse_args(words)
    warnings.filterwarnings("ignore", ".*does not have many workers.*")
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
