"""Generation with burnt.models next to transformers: new tokens a second, greedy, with a key-value cache.

    python benchmarks/generate.py [--quick] [--rows PATTERN]

Both models have the same random weights and generate the same tokens; they take turns in one process. A
ratio is transformers' time by burnt's, of the medians of calm samples, with the quartiles of the rounds;
`slower` marks those below 0.97 whose quartiles are all below 1.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from kernel_table import clock, report
from kernel_table.cpu import FLOOR, FULL_EFFORT, QUICK_EFFORT, Effort, calm_median, quartiles, say

import burnt
from burnt.models import load_pretrained


class Row(NamedTuple):
    """What is generated: the batch, the length of its prompts, whether they are padded, the new tokens."""

    name: str
    batch: int
    prompt: int
    padded: bool
    new: int


ROWS = [
    Row("one prompt", 1, 16, False, 32),
    Row("long prompt", 1, 256, False, 32),
    Row("batch of 4", 4, 16, False, 32),
    Row("batch of 4, padded", 4, 16, True, 32),
]


def models(quick: bool) -> tuple[Any, Any]:
    """A Llama of 20 million parameters in transformers, and the same in burnt."""
    import transformers

    size, layers, vocab = (32, 2, 100) if quick else (384, 8, 8192)
    config = transformers.LlamaConfig(
        vocab_size=vocab,
        hidden_size=size,
        intermediate_size=8 * size // 3,
        num_hidden_layers=layers,
        num_attention_heads=size // 16 if quick else size // 64,
        num_key_value_heads=2,
        max_position_embeddings=512,
        eos_token_id=None,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    theirs = transformers.LlamaForCausalLM(config).eval()
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        return theirs, load_pretrained(folder)


def runs(row: Row, theirs: Any, ours: Any) -> dict[str, Callable[[], object]]:
    """The same generation by both."""
    torch.manual_seed(1)
    prompts = torch.randint(1, theirs.config.vocab_size, (row.batch, row.prompt))
    mask = torch.ones_like(prompts)
    if row.padded:
        for number in range(row.batch):
            mask[number, : number * row.prompt // row.batch] = 0
    options = {"do_sample": False, "max_new_tokens": row.new}
    padding = mask == 0 if row.padded else None
    return {
        "transformers": lambda: theirs.generate(prompts, attention_mask=mask, **options),
        "burnt": lambda: ours.generate(prompts, row.new, padding=padding),
    }


def measure(row: Row, theirs: Any, ours: Any, effort: Effort) -> list[str]:
    """The line of a row: its name, the new tokens a second of both, and the ratio of the times."""
    both = runs(row, theirs, ours)
    calls = {name: clock.warmed(run) for name, run in both.items()}
    samples: dict[str, list[clock.Sample]] = {name: [] for name in both}
    began, orders = time.monotonic(), clock.orders(both)
    for number in range(effort.rounds):
        if number >= effort.least and time.monotonic() - began > effort.seconds:
            break
        for name in next(orders):
            samples[name].append(clock.sample(both[name], calls[name]))
    seconds = {name: calm_median(taken) for name, taken in samples.items()}
    pairs = zip(samples["transformers"], samples["burnt"], strict=True)
    low, high = quartiles([a.seconds / b.seconds for a, b in pairs])
    ratio = seconds["transformers"] / seconds["burnt"]
    speeds = [f"{row.batch * row.new / seconds[name]:.0f}" for name in both]
    slower = "slower" if ratio < FLOOR and high < 1 else ""
    return [row.name, *speeds, f"{ratio:.2f} ({low:.2f}-{high:.2f})", slower]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="how generation compares with transformers")
    parser.add_argument("--quick", action="store_true", help="small and few: shows that it runs, no more")
    parser.add_argument("--rows", default="", metavar="PATTERN", help="a regular expression of rows' names")
    options = parser.parse_args(arguments)
    burnt.memory.enable()
    theirs, ours = models(options.quick)
    table = [["generation", "transformers tok/s", "burnt tok/s", "x transformers", ""]]
    for row in ROWS:
        if re.search(options.rows, row.name):
            say(row.name)
            table.append(measure(row, theirs, ours, QUICK_EFFORT if options.quick else FULL_EFFORT))
    print(f"{burnt.device_info('cpu').name}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print(f"Llama of {sum(p.numel() for p in ours.parameters()):,} parameters")
    print(report.text_table(table))
    return 0


if __name__ == "__main__":
    sys.exit(main())
