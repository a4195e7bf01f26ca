"""Whole models through `burnt.compile`: next to eager torch, `burnt.swap` and Inductor, in turns.

    python benchmarks/models.py [--quick] [--rows PATTERN] [--rivals eager,swap] [--threads 2] [--save]

Three tables. The first: a training step (forward, loss, backward; no optimizer, which would be the same for
all) or a forward in evaluation; in a round everybody takes a sample, in turns, and a ratio is the median of
the rounds' ratios with its quartiles. With one thread times are CPU seconds of the process, with more they
are the clock's. *Library* is the share of a step in products, convolutions and attention of the library, by
torch's profiler: what no compiler of the rest can change. *Peak* is the most memory of tensors in a step,
relative to eager's. Inductor's inference is with freezing.

The second: CPU seconds of a first training step, compilers included, each in a process of its own, with empty
caches and with those of the first; less what Dynamo and AOTAutograd take of it, which is the backend
``aot_eager``. The third: the step of the models' own rounding, the error of all gradients beside float64.

Models are built of configurations, with random weights. ``--device cuda`` trains three in bfloat16, next to
Inductor's ``max-autotune``, which captures CUDA graphs, as `burnt.compile` does for inference alone. Needs
transformers.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gc
import itertools
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from kernel_table.cpu import quartiles
from torch import Tensor, nn
from torch.nn import functional

import burnt
from burnt._text import table_lines

RIVALS = ("eager", "swap", "inductor")
RESULTS = Path(__file__).parent / "results"
CLASSES = 100
LIBRARY = re.compile(r"aten::(mm|addmm|bmm|baddbmm|linear|convolution|_scaled_dot)|mkldnn::|onednn::")

# --- models


Built = tuple[nn.Module, tuple[Tensor, ...], Callable[[Any], Tensor]]


def mean_square(output: Any) -> Tensor:
    output = output if isinstance(output, Tensor) else output.last_hidden_state
    return output.float().square().mean()  # type: ignore[no-any-return]


def encoder(quick: bool) -> Built:
    width, batch, length = (32, 2, 16) if quick else (256, 16, 128)
    layer = nn.TransformerEncoderLayer(
        width, 4, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return model, (torch.randn(batch, length, width),), mean_square


def _tokens(quick: bool) -> Tensor:
    return torch.randint(64 if quick else 2000, (2, 16) if quick else (8, 128))


def bert(quick: bool) -> Built:
    import transformers

    config = transformers.BertConfig(
        vocab_size=64 if quick else 2000,
        hidden_size=32 if quick else 256,
        num_hidden_layers=2 if quick else 4,
        num_attention_heads=4,
        intermediate_size=64 if quick else 1024,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return transformers.BertModel(config, add_pooling_layer=False), (_tokens(quick),), mean_square


def qwen2(quick: bool) -> Built:
    import transformers

    tokens = _tokens(quick)
    vocabulary = 64 if quick else 2000
    config = transformers.Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=32 if quick else 256,
        num_hidden_layers=2 if quick else 4,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64 if quick else 768,
        use_cache=False,
        tie_word_embeddings=False,
    )

    def loss(output: Any) -> Tensor:
        logits = output.logits[:, :-1].reshape(-1, vocabulary)
        return functional.cross_entropy(logits, tokens[:, 1:].reshape(-1).to(logits.device))

    return transformers.Qwen2ForCausalLM(config), (tokens,), loss


class InvertedResidual(nn.Module):
    """MobileNetV2's block: wide in the middle, where each channel has its own filter."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        wide = 4 * channels
        self.is_residual = channels == out and stride == 1
        self.layers = nn.Sequential(
            nn.Conv2d(channels, wide, 1, bias=False),
            nn.BatchNorm2d(wide),
            nn.Hardswish(),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            nn.Hardswish(),
            nn.Conv2d(wide, out, 1, bias=False),
            nn.BatchNorm2d(out),
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return x + y if self.is_residual else y


def _images(quick: bool) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    count, pixels = (2, 32) if quick else (8, 96)
    labels = torch.arange(count) % CLASSES

    def loss(output: Any) -> Tensor:
        logits = output if isinstance(output, Tensor) else output.logits
        return functional.cross_entropy(logits.float(), labels.to(logits.device))

    return torch.randn(count, 3, pixels, pixels), loss


def mobile(quick: bool) -> Built:
    blocks = [(16, 16, 1), (16, 24, 2)]
    blocks += [] if quick else [(24, 24, 1), (24, 40, 2), (40, 40, 1), (40, 40, 1)]
    images, loss = _images(quick)
    stem = [nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.Hardswish()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(blocks[-1][1], CLASSES)]
    return nn.Sequential(*stem, *itertools.starmap(InvertedResidual, blocks), *head), (images,), loss


def regnet(quick: bool) -> Built:
    import transformers

    images, loss = _images(quick)
    config = transformers.RegNetConfig(
        embedding_size=16 if quick else 32,
        hidden_sizes=[16, 32] if quick else [32, 64, 128, 256],
        depths=[1, 1] if quick else [1, 1, 2, 1],
        groups_width=16,
        layer_type="y",
        num_labels=CLASSES,
    )
    return transformers.RegNetForImageClassification(config), (images,), loss


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(functional.gelu(self.up(self.norm(x))))  # type: ignore[no-any-return]


def tiny(quick: bool) -> Built:
    """So small that the time of a step is the host's."""
    return nn.Sequential(*(Block(8) for _ in range(8))), (torch.randn(4, 8),), mean_square


@dataclass(frozen=True)
class Row:
    """A model, how it is called, and how many times as fast as eager it is meant to be."""

    build: Callable[[bool], Built]
    train: bool
    aim: float | None
    bfloat16: bool = False
    channels_last: bool = False


ROWS = {
    "encoder training": Row(encoder, True, 1.12),
    "BERT training": Row(bert, True, 1.12),
    "Qwen2 training": Row(qwen2, True, 1.12),
    "encoder training, bfloat16": Row(encoder, True, 1.2, bfloat16=True),
    "MobileNet-like training": Row(mobile, True, 1.4),
    "RegNet training": Row(regnet, True, 1.4),
    "MobileNet-like training, channels last": Row(mobile, True, 1.1, channels_last=True),
    "RegNet training, channels last": Row(regnet, True, 1.1, channels_last=True),
    "tiny training": Row(tiny, True, 1.0),
    "encoder inference": Row(encoder, False, None),  # eager torch has a kernel for the whole layer
    "BERT inference": Row(bert, False, None),
    "Qwen2 inference": Row(qwen2, False, None),
    "MobileNet-like inference": Row(mobile, False, 1.5),
    "RegNet inference": Row(regnet, False, 1.5),
    "tiny inference": Row(tiny, False, 2.0),
}
GPU_ROWS = {
    name: Row(ROWS[name].build, True, 1.2, bfloat16=True)
    for name in ("encoder training", "BERT training", "Qwen2 training")
}
FIRST_STEPS = ("encoder training", "Qwen2 training", "MobileNet-like training")


# --- runs


def made(row: Row, rival: str, model: nn.Module, arguments: tuple[Tensor, ...]) -> Callable[..., Any]:
    """Return the model as a rival runs it; `model` is the rival's own copy."""
    on_gpu = arguments[0].device.type == "cuda"
    if rival == "inductor":
        return torch.compile(model, mode="max-autotune" if on_gpu else None)
    if rival == "aot_eager":
        return torch.compile(model, backend="aot_eager")
    if rival == "swap":
        burnt.swap(model, mode="train" if row.train else "infer", remeasure=True)
    if rival == "burnt":
        return burnt.compile(model, mode="train" if row.train else "infer")
    return model


def steps_of(
    row: Row, rivals: Sequence[str], quick: bool, device: torch.device
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield a function of each rival that takes a step; all have the same weights."""
    torch.manual_seed(0)
    model, arguments, loss = row.build(quick)
    layout = torch.channels_last if row.channels_last else torch.preserve_format
    model = model.to(device, memory_format=layout).train(row.train)
    arguments = tuple(a.to(device).contiguous(memory_format=layout) for a in arguments)
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=row.bfloat16)
    for rival in rivals:
        own = copy.deepcopy(model)
        call = made(row, rival, own, arguments)

        def step(own: nn.Module = own, call: Callable[..., Any] = call) -> Any:
            if not row.train:
                with torch.no_grad(), autocast:
                    return call(*arguments)
            own.zero_grad()
            with autocast:
                value = loss(call(*arguments))
            value.backward()
            return value

        yield rival, step


def first_call(rival: str, row: Row, step: Callable[[], Any]) -> None:
    """Compile."""
    freezing: Any = contextlib.nullcontext()
    if rival == "inductor" and not row.train:
        freezing = torch._inductor.config.patch(freezing=True)
    with freezing:
        for _ in range(3):
            step()


def clock(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    elif torch.get_num_threads() == 1:
        return time.process_time()
    return time.perf_counter()


def sample(step: Callable[[], Any], count: int, device: torch.device) -> float:
    """Seconds of a step, the mean of some."""
    gc.collect()
    gc.disable()
    start = clock(device)
    for _ in range(count):
        step()
    seconds = (clock(device) - start) / count
    gc.enable()
    return seconds


def profiled(step: Callable[[], Any], device: torch.device) -> tuple[float, int]:
    """Return the share of a step in calls of the library, and the most bytes of tensors that it allocates."""
    with torch.profiler.profile(profile_memory=True) as profile, torch.profiler.record_function("whole step"):
        step()
    events = profile.events()
    outermost = [e for e in events if LIBRARY.match(e.name) and not _is_inside(e)]
    if device.type == "cuda":
        whole = sum(e.self_device_time_total for e in events)
        library = sum(e.device_time_total for e in outermost)
    else:
        whole = next(e.cpu_time_total for e in events if e.name == "whole step")
        library = sum(e.cpu_time_total for e in outermost)
    changes = [
        (e.start_ns(), e.nbytes())
        for e in profile.profiler.kineto_results.events()  # type: ignore[union-attr]
        if e.name() == "[memory]"
    ]
    peak = max(itertools.accumulate(change for _, change in sorted(changes)), default=0)
    return library / max(whole, 1), peak


def _is_inside(event: Any) -> bool:
    parent = event.cpu_parent
    return parent is not None and (bool(LIBRARY.match(parent.name)) or _is_inside(parent))


def speed(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """A row of the first table, as JSON can hold it."""
    rows = GPU_ROWS if options.device.type == "cuda" else ROWS
    row = rows[name]
    torch.compiler.reset()
    steps: dict[str, Callable[[], Any]] = {}
    failed: dict[str, str] = {}
    for rival, step in steps_of(row, [*options.rivals, "burnt"], options.quick, options.device):
        say(f"  {rival}")
        try:
            first_call(rival, row, step)
        except Exception as error:  # compilers raise any exception
            if rival in ("eager", "burnt"):
                raise
            failed[rival] = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
        else:
            steps[rival] = step
    shares = {rival: profiled(step, options.device) for rival, step in steps.items()}
    once = {rival: sample(step, 1, options.device) for rival, step in steps.items()}
    counts = {rival: max(1, round(5e-3 / max(seconds, 1e-7))) for rival, seconds in once.items()}
    seconds: dict[str, list[float]] = {rival: [] for rival in steps}
    began = time.perf_counter()
    for done in range(2 if options.quick else options.rounds):
        if done >= 5 and time.perf_counter() - began > options.seconds:
            break
        for rival, step in steps.items():
            seconds[rival].append(sample(step, counts[rival], options.device))
    ratios = {}
    for rival in options.rivals:
        if rival in seconds:
            each = [a / b for a, b in zip(seconds[rival], seconds["burnt"], strict=True)]
            low, high = quartiles(each)
            ratios[rival] = {"ratio": statistics.median(each), "low": low, "high": high}
    return {
        "ms": {rival: 1e3 * statistics.median(each) for rival, each in seconds.items()},
        "ratios": ratios,
        "failed": failed,
        "aim": row.aim,
        "library": shares["burnt"][0],
        "peak": shares["burnt"][1] / max(shares["eager"][1], 1),
    }


def cpu_seconds() -> float:
    """Of this process and those that have ended, compilers."""
    own, others = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime


def first_step(name: str, rival: str, quick: bool) -> float:
    """Take a first training step in this process; return its CPU seconds."""
    row = ROWS[name]
    ((_, plain),) = steps_of(row, ["eager"], quick, torch.device("cpu"))
    plain()
    ((_, step),) = steps_of(row, [rival], quick, torch.device("cpu"))
    start = cpu_seconds()
    step()
    return cpu_seconds() - start


def first_steps(name: str, rivals: Sequence[str], quick: bool) -> dict[str, list[float]]:
    """By rival, the CPU seconds of a first step with empty caches and with filled ones."""
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "BURNT_CACHE": f"{folder}/burnt",
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
        }
        for rival in rivals:
            say(f"  {rival}")
            command = [sys.executable, __file__, "--first-step", name, rival, *["--quick"] * quick]
            found[rival] = [
                float(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout)
                for _ in ("cold", "warm")
            ]
    return found


def errors(name: str, quick: bool) -> dict[str, float]:
    """The largest error of a gradient beside float64, relative to the largest gradient, by rival."""
    torch.compiler.reset()
    row = ROWS[name]
    torch.manual_seed(0)
    model, arguments, loss = row.build(quick)
    model.train()

    def gradients(own: nn.Module, call: Callable[..., Any], arguments: Sequence[Tensor]) -> list[Tensor]:
        loss(call(*arguments)).backward()
        return [p.grad.double() for p in own.parameters() if p.grad is not None]

    exact, plain, own = (copy.deepcopy(model) for _ in range(3))
    exact = exact.double()
    doubled = [a.double() if a.is_floating_point() else a for a in arguments]
    expected = gradients(exact, exact, doubled)
    scale = max(float(g.abs().max()) for g in expected)
    found = {"eager": gradients(plain, plain, arguments)}
    found["burnt"] = gradients(own, burnt.compile(own), arguments)
    return {
        rival: max(float((a - b).abs().max()) for a, b in zip(each, expected, strict=True)) / scale
        for rival, each in found.items()
    }


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# --- tables


def machine(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "device": burnt.device_info(str(options.device)).name,
        "cores": psutil.cpu_count(),
        "threads": options.threads,
        "torch": torch.__version__,
        "burnt": burnt.__version__,
    }


def tables(results: dict[str, Any]) -> dict[str, list[list[str]]]:
    """The tables' cells, by title."""
    rivals = results["rivals"]
    found = {}
    if results["rows"]:
        head = ["", "burnt ms", *(f"x {rival}" for rival in rivals), "aim", "library", "peak / eager's"]
        found["Speed"] = [head, *(_speed_line(n, row, rivals) for n, row in results["rows"].items())]
    if results["first"]:
        own = list(next(iter(results["first"].values())))
        head = ["", *(f"{rival}, {when}" for rival in own for when in ("cold", "warm"))]
        lines = [[n, *(f"{s:.1f}" for r in own for s in row[r])] for n, row in results["first"].items()]
        found["First training step, CPU seconds"] = [head, *lines]
    if results["errors"]:
        lines = [[n, f"{e['eager']:.1e}", f"{e['burnt']:.1e}"] for n, e in results["errors"].items()]
        found["Largest error of a gradient beside float64, of the largest gradient"] = [
            ["", "eager", "burnt"],
            *lines,
        ]
    return found


def _speed_line(name: str, row: dict[str, Any], rivals: Sequence[str]) -> list[str]:
    cells = []
    for rival in rivals:
        ratio = row["ratios"].get(rival)
        why = row["failed"].get(rival, "").partition(":")[0]
        cells.append(f"- ({why})" if ratio is None else "{ratio:.2f} ({low:.2f}-{high:.2f})".format(**ratio))
    aim = "-"
    if row["aim"] is not None:
        aim = f"{row['aim']:g} {'✓' if row['ratios']['eager']['ratio'] >= row['aim'] else '✗'}"
    return [name, f"{row['ms']['burnt']:.4g}", *cells, aim, f"{row['library']:.0%}", f"{row['peak']:.2f}"]


def markdown(results: dict[str, Any]) -> str:
    parts = [
        "# Compiled models",
        "`python benchmarks/models.py --save`: a ratio is how many times as long a rival takes, the median "
        "of the rounds' ratios with its quartiles. *Library* is the share of a step in products, "
        "convolutions and attention of the library.",
        ", ".join(f"{name} {value}" for name, value in results["machine"].items()),
    ]
    for title, lines in tables(results).items():
        rows = ["| " + " | ".join(cells) + " |" for cells in lines]
        parts += [f"## {title}", "\n".join([rows[0], "|" + "---|" * len(lines[0]), *rows[1:]])]
    for name, row in results["rows"].items():
        parts += [f"{name}, {rival}: {why}" for rival, why in row["failed"].items()]
    return "\n\n".join(parts) + "\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="whole models through burnt.compile")
    parser.add_argument("--quick", action="store_true", help="small and few: shows that it runs, no more")
    parser.add_argument("--rows", default="", metavar="PATTERN", help="a regular expression of rows' names")
    parser.add_argument("--rivals", type=lambda words: words.split(","), default=list(RIVALS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=60.0, help="of the rounds of a row")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu", type=torch.device)
    parser.add_argument("--tables", type=lambda words: words.split(","), default=["speed", "first", "errors"])
    parser.add_argument("--json", type=Path, help="write the results to this file, after each row")
    parser.add_argument("--save", action="store_true", help="write results/<device>-models.json and .md")
    parser.add_argument("--first-step", nargs=2, metavar=("ROW", "RIVAL"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    if options.first_step:
        print(first_step(*options.first_step, quick=options.quick))
        return 0
    if unknown := set(options.rivals) - set(RIVALS):
        parser.error(f"--rivals: {', '.join(sorted(unknown))}; there are {', '.join(RIVALS)}")
    if options.quick and options.save:
        parser.error("ratios of --quick say nothing: no --save")
    options.rivals = [rival for rival in RIVALS if rival in {*options.rivals, "eager"}]
    os.environ["BURNT_SWAP_CACHE"] = "0"  # decisions are made in this run
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    burnt.memory.enable()  # for all of them
    on_gpu = options.device.type == "cuda"
    chosen = [name for name in (GPU_ROWS if on_gpu else ROWS) if re.search(options.rows, name)]
    results: dict[str, Any] = {
        "machine": machine(options),
        "quick": options.quick,
        "rivals": options.rivals,
        "rows": {},
        "first": {},
        "errors": {},
    }
    compilers = ["aot_eager", *(r for r in options.rivals if r == "inductor"), "burnt"]
    work: list[tuple[str, str, Callable[[], Any]]] = []
    if "speed" in options.tables:
        work += [("rows", name, lambda name=name: speed(name, options)) for name in chosen]
    if "first" in options.tables and not on_gpu:
        names = [name for name in FIRST_STEPS if name in chosen]
        work += [("first", n, lambda n=n: first_steps(n, compilers, options.quick)) for n in names]
    if "errors" in options.tables and not on_gpu:
        names = [n for n in chosen if ROWS[n] == Row(ROWS[n].build, True, ROWS[n].aim)]
        work += [("errors", name, lambda name=name: errors(name, options.quick)) for name in names]
    for number, (table, name, run) in enumerate(work, 1):
        say(f"{number}/{len(work)} {name}" + {"rows": "", "first": ", first step"}.get(table, ", errors"))
        results[table][name] = run()
        if options.json:
            options.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    for title, lines in tables(results).items():
        print(title, *table_lines(lines), "", sep="\n")
    if options.save:
        path = RESULTS / f"{options.device.type}-models.json"
        path.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
        path.with_suffix(".md").write_text(markdown(results), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
