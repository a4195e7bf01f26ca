"""What `burnt.swap` makes of Hugging Face's models: eager, torch.compile and swapped, in turns.

    python benchmarks/swap.py [--quick] [--rows PATTERN] [--rivals eager,inductor,liger] [--save] [--report]

Models are built of configurations, with random weights: base widths, 4 layers, 4 x 256 tokens or 4 images of
224 pixels, float32 (``--dtype``). A training step is forward, loss and backward in training mode (dropout at
the configuration's default); there is no optimizer, which would be the same for all. Inference is the forward
in evaluation, without gradients; its results are compared first. All are in one process and have the same
allocator, burnt's pool of host buffers. In a round everybody takes a sample, in turns; a ratio is the median
of the rounds' ratios, with its quartiles.

``Llama 1B`` (16 layers, 8 x 2048 tokens, a vocabulary of 128,256) is for GPUs, trained without its logits, as
Liger-Kernel does, a rival for Llamas where ``--rivals`` names it.

``--save`` writes results/<device>-swap.json and .md. Needs transformers.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
import transformers
from kernel_table.cpu import quartiles

import burnt
from burnt._text import table_lines
from burnt.swapping.benchmark import Comparison, compare
from burnt.swapping.patterns.hf_layers import resolve_global, with_global

RIVALS = ("eager", "inductor", "liger")
RESULTS = Path(__file__).parent / "results"
LAYERS, BATCH, LENGTH, PIXELS = 4, 4, 256, 224
CLASSES = 1000


@dataclass(frozen=True)
class Size:
    """How large models are: base widths, or what shows that they run."""

    quick: bool

    def __call__(self, full: int, quick: int) -> int:
        return quick if self.quick else full


def _text(size: Size, vocabulary: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(vocabulary, (size(BATCH, 2), size(LENGTH, 16)), generator=generator)
    return {"input_ids": tokens, "labels": tokens}


def _images(size: Size) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    count, pixels = size(BATCH, 2), size(PIXELS, 32)
    images = torch.randn(count, 3, pixels, pixels, generator=generator)
    return {"pixel_values": images, "labels": torch.arange(count)}


def _transformer(size: Size, intermediate: int) -> dict[str, int]:
    return {
        "hidden_size": size(768, 32),
        "intermediate_size": size(intermediate, 64),
        "num_hidden_layers": size(LAYERS, 2),
        "num_attention_heads": size(12, 4),
    }


Pair = tuple[torch.nn.Module, dict[str, Any]]


def bert(size: Size) -> Pair:
    vocabulary = size(30522, 64)
    config = transformers.BertConfig(vocab_size=vocabulary, **_transformer(size, 3072))
    return transformers.BertForMaskedLM(config), _text(size, vocabulary)


def llama(size: Size) -> Pair:
    vocabulary = size(32000, 64)
    config = transformers.LlamaConfig(vocab_size=vocabulary, **_transformer(size, 2048))
    return transformers.LlamaForCausalLM(config), _text(size, vocabulary)


def gpt2(size: Size) -> Pair:
    vocabulary = size(50257, 64)
    config = transformers.GPT2Config(
        vocab_size=vocabulary,
        n_embd=size(768, 32),
        n_layer=size(LAYERS, 2),
        n_head=size(12, 4),
        bos_token_id=0,
        eos_token_id=0,
        loss_type="ForCausalLM",
    )
    return transformers.GPT2LMHeadModel(config), _text(size, vocabulary)


def vit(size: Size) -> Pair:
    config = transformers.ViTConfig(
        image_size=size(PIXELS, 32), patch_size=size(16, 8), num_labels=CLASSES, **_transformer(size, 3072)
    )
    return transformers.ViTForImageClassification(config), _images(size)


def llama_1b(size: Size) -> Pair:
    """As large as Llama 3.2's smallest, for a GPU."""
    vocabulary = size(128_256, 64)
    config = transformers.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=size(2048, 32),
        intermediate_size=size(8192, 64),
        num_hidden_layers=size(16, 2),
        num_attention_heads=size(32, 4),
        num_key_value_heads=size(8, 2),
        tie_word_embeddings=True,
        use_cache=False,
    )
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(vocabulary, (size(8, 2), size(2048, 16)), generator=generator)
    return transformers.LlamaForCausalLM(config), {"input_ids": tokens, "labels": tokens}


def convnext(size: Size) -> Pair:
    widths = [8, 16, 24, 32] if size.quick else [128, 256, 512, 1024]
    config = transformers.ConvNextConfig(
        hidden_sizes=widths, depths=[1] * LAYERS, image_size=size(PIXELS, 32), num_labels=CLASSES
    )
    return transformers.ConvNextForImageClassification(config), _images(size)


def resnet(size: Size) -> Pair:
    """ResNet-50, channels-last, which eager torch is faster with, too."""
    shape: dict[str, Any] = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}
    config = transformers.ResNetConfig(num_labels=CLASSES, **(shape if size.quick else {}))
    batch = _images(size)
    last = torch.channels_last
    batch["pixel_values"] = batch["pixel_values"].to(memory_format=last)
    return transformers.ResNetForImageClassification(config).to(memory_format=last), batch


@dataclass(frozen=True)
class Model:
    """A row's model, and how many times as fast as eager it is meant to be.

    Args:
        build: makes it, with a batch.
        target: on a CPU, or for a GPU's model there; None to look at it.
        gpu: it is for GPUs, and trained without its logits.
    """

    build: Callable[[Size], Pair]
    target: float | None
    gpu: bool = False


MODELS = {
    "BERT": Model(bert, 1.5),
    "Llama": Model(llama, 1.5),
    "GPT-2": Model(gpt2, 1.5),
    "ViT": Model(vit, 1.4),
    "ConvNeXt": Model(convnext, 1.1),
    "ResNet": Model(resnet, None),
    "Llama 1B": Model(llama_1b, 1.15, gpu=True),
}
ROWS = {
    f"{name} {what}": (name, what)
    for name, model in MODELS.items()
    for what in ("training", "inference")[: 1 if model.gpu else 2]
}


def liger(model: torch.nn.Module) -> None:
    """Liger-Kernel's own patch of a model, with its loss without logits.

    What it changes for all models of the process, the others being timed among them, is changed for this one.
    """
    from liger_kernel.transformers.monkey_patch import _apply_liger_kernel_to_instance

    home = sys.modules[type(model).__module__]
    before = dict(vars(home))
    _apply_liger_kernel_to_instance(model=model)
    changed = {name: value for name, value in vars(home).items() if before.get(name) is not value}
    for name in changed:
        setattr(home, name, before[name])
    for module in model.modules():
        forward = vars(module).get("forward", types.MethodType(type(module).forward, module)).__func__
        for name in [name for name in changed if resolve_global(forward, name) is not None]:
            forward = with_global(forward, name, changed[name])
            module.forward = types.MethodType(forward, module)


def machine(device: torch.device) -> dict[str, Any]:
    pool = burnt.memory.stats()
    return {
        "device": burnt.device_info(str(device)).name,
        "cores": psutil.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "burnt": burnt.__version__,
        "pool": "on" if pool.enabled else f"off: {pool.reason}",
    }


def measure(row: str, options: argparse.Namespace) -> tuple[dict[str, Any], Comparison]:
    """A row of the table, as JSON can hold it."""
    name, what = ROWS[row]
    torch.manual_seed(0)
    model, batch = MODELS[name].build(Size(options.quick))
    model.to(options.device, options.dtype)
    batch = {
        key: value.to(options.device, options.dtype if value.is_floating_point() else None)
        for key, value in batch.items()
    }
    found = compare(
        model,
        batch,
        what == "training",
        [*(rival for rival in options.rivals if rival != "liger"), "swapped"],
        seconds=options.seconds,
        rounds=2 if options.quick else 25,
        say=lambda text: say(f"  {text}"),
        patches={"liger": liger} if "liger" in options.rivals and name.startswith("Llama") else {},
        defer_logits=MODELS[name].gpu,
    )
    torch.compiler.reset()
    ratios = {
        rival: _ratio(found.seconds[rival], found.seconds["swapped"])
        for rival in options.rivals
        if rival in found.seconds
    }
    target = MODELS[name].target if (options.device.type != "cpu") == MODELS[name].gpu else None
    speed = ratios["eager"]["ratio"]
    return {
        "ms": {rival: 1e3 * found.median(rival) for rival in found.seconds},
        "ratios": ratios,
        "failed": found.failed,
        "target": target,
        "met": None if target is None else speed >= target,
        "error": found.error,
        "peak_mb": {rival: peak / 1e6 for rival, peak in found.peaks.items()},
        "rounds": len(found.seconds["swapped"]),
        "swapped": len(found.report.swapped),
        "left": len(found.report.left),
    }, found


def _ratio(rival: Sequence[float], swapped: Sequence[float]) -> dict[str, float]:
    ratios = [other / own for other, own in zip(rival, swapped, strict=True)]
    low, high = quartiles(ratios)
    return {"ratio": statistics.median(ratios), "low": low, "high": high}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# --- the table


def head(results: dict[str, Any]) -> list[str]:
    return ["", "burnt ms", *(f"x {rival}" for rival in results["rivals"]), "aim", "error", "swapped, left"]


def line(name: str, row: dict[str, Any], rivals: list[str]) -> list[str]:
    aim = "-" if row["target"] is None else f"{row['target']:g} {'✓' if row['met'] else '✗'}"
    error = "-" if row["error"] is None else f"{row['error']:.0e}"
    cells = [_cell(row, rival) for rival in rivals]
    return [name, f"{row['ms']['swapped']:.4g}", *cells, aim, error, f"{row['swapped']}, {row['left']}"]


def _cell(row: dict[str, Any], rival: str) -> str:
    found = row["ratios"].get(rival)
    if found is None:
        return f"- ({row['failed'][rival].partition(':')[0]})" if rival in row["failed"] else "-"
    return f"{found['ratio']:.2f} ({found['low']:.2f}-{found['high']:.2f})"


def table(results: dict[str, Any]) -> list[list[str]]:
    lines = [line(name, row, results["rivals"]) for name, row in results["rows"].items()]
    return [head(results), *lines]


def markdown(results: dict[str, Any]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in table(results)]
    notes = [
        f"{name}, {rival}: {why}"
        for name, row in results["rows"].items()
        for rival, why in row["failed"].items()
    ]
    parts = [
        "# Swapped models",
        "`python benchmarks/swap.py --save`: Hugging Face's models of base widths and 4 layers, 4 x 256 "
        "tokens or 4 images of 224 pixels, with random weights. A ratio is the median of the rounds' ratios, "
        "with quartiles: how many times as long a rival takes. Training is forward, loss and backward.",
        ", ".join(f"{name} {value}" for name, value in results["machine"].items()),
        "\n".join([lines[0], "|" + "---|" * len(head(results)), *lines[1:]]),
        *notes,
    ]
    return "\n\n".join(parts) + "\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="what burnt.swap makes of Hugging Face's models")
    parser.add_argument("--quick", action="store_true", help="small and few: shows that it runs, no more")
    parser.add_argument("--rows", default="", metavar="PATTERN", help="a regular expression of rows' names")
    parser.add_argument("--rivals", type=lambda words: words.split(","), default=["eager", "inductor"])
    parser.add_argument("--seconds", type=float, default=90.0, help="of the rounds of a row")
    parser.add_argument("--device", default="cpu", type=torch.device)
    parser.add_argument("--dtype", default="float32", type=lambda name: getattr(torch, name))
    parser.add_argument("--report", action="store_true", help="print what was swapped where, too")
    parser.add_argument("--json", type=Path, help="write the results to this file, after each row")
    parser.add_argument("--save", action="store_true", help="write results/<device>-swap.json and .md")
    options = parser.parse_args(arguments)
    os.environ["BURNT_SWAP_CACHE"] = "0"  # decisions are made in this run
    if unknown := set(options.rivals) - set(RIVALS):
        parser.error(f"--rivals: {', '.join(sorted(unknown))}; there are {', '.join(RIVALS)}")
    options.rivals = [rival for rival in RIVALS if rival in {*options.rivals, "eager"}]
    if options.quick and options.save:
        parser.error("ratios of --quick say nothing: no --save")
    burnt.memory.enable()
    on_cpu = options.device.type == "cpu" and not options.quick
    chosen = [
        row
        for row, (name, _) in ROWS.items()
        if re.search(options.rows, row) and not (MODELS[name].gpu and on_cpu)
    ]
    results: dict[str, Any] = {
        "machine": machine(options.device),
        "quick": options.quick,
        "dtype": str(options.dtype).removeprefix("torch."),
        "rivals": options.rivals,
        "rows": {},
    }
    for number, row in enumerate(chosen, 1):
        say(f"{number}/{len(chosen)} {row}")
        results["rows"][row], found = measure(row, options)
        if options.report:
            print(f"{row}: {found.report}", end="\n\n")
        if options.json:
            options.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    print(*table_lines(table(results)), sep="\n")
    for row, found in results["rows"].items():
        if found["peak_mb"]:
            print(f"memory of {row}: " + ", ".join(f"{n} {mb:.0f} MB" for n, mb in found["peak_mb"].items()))
    if options.save:
        name = f"{options.device.type}-swap"
        (RESULTS / f"{name}.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
        (RESULTS / f"{name}.md").write_text(markdown(results), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
