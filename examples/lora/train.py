"""Train a small character model on source code, then adapt it to English by LoRA, with 4 % of the parameters.

    python examples/lora/train.py                   # or: burnt train examples/lora/train.py:main rank=2

Both texts come with Python: modules of its standard library, and the topics of its help().
"""

from __future__ import annotations

import os
import pydoc_data.topics
import sys
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import burnt
from burnt import data, nn, optim
from burnt.plot import Line, Plot
from burnt.store import RunReader
from burnt.train import Learner, StepOutput, SupervisedTraining, evaluate

CODE = sorted(Path(os.__file__).parent.glob("[a-z]*.py"))[:60]


class Characters(burnt.Module):
    """Tokens [n, L] to logits [n, L, 128], each of the character after it."""

    embedding: nn.Embedding
    blocks: nn.TransformerEncoder
    head: nn.Linear

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.blocks(self.embedding(tokens), is_causal=True))

    def training_step(self, windows: Tensor) -> StepOutput:
        logits = self(windows[:, :-1])
        return StepOutput(cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()))


class LoraConfig(burnt.Config):
    """The settings of the training program."""

    width: int = 128
    length: int = 64
    base_steps: int = 600
    steps: int = 250
    rank: int = 4
    seed: int = 0
    folder: Path = Path("runs/lora")

    def init(self) -> Characters:
        rotary = nn.RotaryEncoding.Config(head_dim=self.width // 4)
        blocks = nn.TransformerEncoder(self.width, 4, 4 * self.width, 2, dropout=0.0, rotary=rotary)
        return Characters(nn.Embedding(128, self.width), blocks, nn.Linear(self.width, 128))


def load_texts(length: int) -> dict[str, list[data.Dataset]]:
    """Return windows of each text: to train with, and of its last tenth."""
    texts = {
        "code": "".join(file.read_text(encoding="utf-8") for file in CODE)[:1_500_000],
        "English": "\n".join(pydoc_data.topics.topics.values())[:200_000],
    }
    found = {}
    for name, text in texts.items():
        tokens = torch.tensor([min(ord(character), 127) for character in text])
        cut = len(tokens) * 9 // 10
        found[name] = [data.windows(part, length + 1, stride=length) for part in (tokens[:cut], tokens[cut:])]
    return found


def main(config: LoraConfig) -> dict[str, dict[str, float]]:
    """Train, adapt, merge; return the losses on both texts after each of them."""
    torch.manual_seed(config.seed)
    texts = load_texts(config.length)
    held_out = {name: data.Loader(parts[1], 64) for name, parts in texts.items()}
    model, losses, lines = config.init(), {}, []

    def fit(name: str, text: str, steps: int) -> None:
        training = SupervisedTraining(
            config.folder / name,
            train=data.Loader(texts[text][0], 32, shuffle=True, seed=config.seed),
            valid=held_out[text],
            duration=f"{steps} steps",
            validate_every="100 steps",
            validate_first=True,
            clip_norm=1.0,
            exists="number",
            config=config,
        )
        schedule = optim.Warmup(steps // 20 + 1, optim.Cosine(3e-3, steps=steps))
        with RunReader(training.run(Learner(model, optim.AdamW(), schedule)).folder) as run:
            points = run.points("loss", "valid")
        lines.append(Line(f"{name}, on {text}", points.steps, points.values))

    def measure(name: str) -> None:
        losses[name] = {text: evaluate(model, loader)["loss"] for text, loader in held_out.items()}

    fit("base", "code", config.base_steps)
    measure("base")
    nn.lora(model, rank=config.rank, targets="*.self_attn|*.linear1|*.linear2", alpha=2 * config.rank)
    trained, whole = burnt.num_params(model, trainable=True), burnt.num_params(model)
    print(f"{trained:,} of {whole:,} parameters are trained: {trained / whole:.1%}")
    fit("adapter", "English", config.steps)
    measure("adapted")
    nn.save_lora(model, config.folder / "adapter.safetensors")
    with nn.without_lora(model):
        measure("without the adapter")
    nn.merge_lora(model)  # one matrix product for each layer again
    measure("merged")
    for name, values in losses.items():
        print(f"{name:<20}" + "".join(f"  {text} {loss:.4f}" for text, loss in values.items()))
    (config.folder / "losses.svg").write_text(Plot(lines).svg())
    return losses


if __name__ == "__main__":
    main(LoraConfig.from_assignments(sys.argv[1:]))
