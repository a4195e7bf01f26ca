"""Train a small GPT on the characters of a text, and let it write.

    python examples/char_gpt/char_gpt.py
    burnt train examples/char_gpt/char_gpt.py:main data=book.txt steps=5000 size=256 layers=6

Without a file it reads Python's language reference as `help()` shows it, 460,000 characters.
"""

from __future__ import annotations

import string
import sys
from pathlib import Path
from pydoc_data.topics import topics

import torch

import burnt
from burnt import data, nn, optim
from burnt.plot import Line, Plot
from burnt.train import ClassificationOutput, Learner, RunReader, SupervisedTraining
from burnt.train.metrics import Accuracy, Perplexity

LETTERS = string.printable  # characters that are not ASCII are left out


class Gpt(burnt.Module):
    """Characters [n, length] -> logits of the character after each, [n, length, 100]."""

    embedding: nn.Embedding
    decoder: nn.TransformerEncoder
    head: nn.Linear

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.decoder(self.embedding(tokens), is_causal=True))

    def training_step(self, windows: torch.Tensor) -> ClassificationOutput:
        targets = windows[:, 1:]
        logits = self(windows[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.transpose(1, 2), targets)
        return ClassificationOutput(loss, logits, targets)

    @torch.no_grad()
    def write(self, start: str, count: int, context: int, temperature: float = 0.7) -> str:
        """Continue a text: draw each character from what the last `context` ones make likely."""
        tokens = encode(start).to(self.head.weight.device)
        for _ in range(count):
            logits = self(tokens[None, -context:])[0, -1] / temperature
            tokens = torch.cat([tokens, torch.multinomial(logits.softmax(-1), 1)])
        return "".join(LETTERS[token] for token in tokens.tolist())


class Settings(burnt.Config):
    """The settings of the program."""

    data: Path | None = None
    folder: str = "runs/char_gpt"
    resume: bool = False
    size: int = 96
    layers: int = 3
    context: int = 96
    steps: int = 1000
    batch_size: int = 32
    lr: float = 3e-3
    seed: int = 0
    device: str | None = None
    precision: str = "float32"
    write: int = 500

    def init(self) -> Gpt:
        rotary = nn.RotaryEncoding.Config(head_dim=self.size // 4)
        decoder = nn.TransformerEncoder(
            self.size, num_heads=4, d_ff=4 * self.size, num_layers=self.layers, dropout=0.0, rotary=rotary
        )
        return Gpt(nn.Embedding(len(LETTERS), self.size), decoder, nn.Linear(self.size, len(LETTERS)))


def encode(text: str) -> torch.Tensor:
    numbers = {letter: number for number, letter in enumerate(LETTERS)}
    return torch.tensor([numbers[letter] for letter in text if letter in numbers])


def main(settings: Settings) -> float:
    """Train, print a text that the model writes, and return the loss on the last tenth of the text."""
    torch.manual_seed(settings.seed)
    text = settings.data.read_text("utf-8") if settings.data else "\n\n".join(topics.values())
    tokens = encode(text)
    cut = int(0.9 * len(tokens))
    windows = data.windows(tokens[:cut], settings.context + 1)
    held_out = data.windows(tokens[cut:], settings.context + 1, stride=settings.context)
    training = SupervisedTraining(
        settings.folder,
        train=data.Loader(windows, settings.batch_size, shuffle=True, seed=settings.seed),
        valid=data.Loader(held_out, 128),
        duration=f"{settings.steps} steps",
        validate_every="200 steps",
        checkpoint_every="200 steps",
        metrics=[Accuracy(), Perplexity()],
        clip_norm=1.0,
        precision=settings.precision,
        device=settings.device,
        seed=settings.seed,
        resume=settings.resume,
        config=settings,
    )
    schedule = optim.Warmup(50, optim.Cosine(settings.lr, steps=settings.steps))
    result = training.run(Learner(settings.init(), optim.AdamW(), schedule))
    with RunReader(result.folder) as run:
        lines = [Line(f"{split} loss", *run.points("loss", split)[::2]) for split in ("train", "valid")]
    (result.folder / "loss.svg").write_text(Plot(lines).svg())
    torch.manual_seed(settings.seed)
    print(result.model.eval().write("The for statement", settings.write, settings.context))
    loss = result.values["valid/loss"]
    print(f"\nLoss on the last tenth: {loss:.4f} nats a character, {loss / 0.6931:.3f} bits")
    return loss


if __name__ == "__main__":
    main(Settings.from_assignments(sys.argv[1:]))
