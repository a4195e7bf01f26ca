"""Quantized layers and models next to float32 and next to other libraries, in turns, on a CPU.

    python benchmarks/quantization.py [--quick] [--rows PATTERN] [--rounds 25] [--json FILE] [--save]

Rows: a linear layer 4096 x 4096 with one row of input, as in generation (int8 and int4 weights; calls go
round several layers, which no cache holds together); a linear layer of 1024 x 1024 with 1024 rows, and
RoBERTa-base's architecture with random weights and 2 x 256 tokens (int8 weights and activations, with a
scale per row).
Rivals: eager float32, torchao, torch.ao.quantization.quantize_dynamic, and ONNX Runtime with its own
quantize_dynamic. In a round everybody takes a sample, in turns; a ratio is the median of the rounds' ratios,
with its quartiles: how many times as long a rival takes. The error is that of burnt's output relative to
float32's. Below the table: the bandwidth of a copy in the same rounds, and decoding's share of it.

``--save`` writes results/cpu-quantization.json and .md. Needs torchao, onnx, onnxruntime and transformers;
what is missing or fails leaves a gap with its reason.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import re
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn

import burnt

RESULTS = Path(__file__).parent / "results"
RIVALS = ("float32", "torchao", "torch.ao", "ONNX Runtime")
LAYERS = 6  # whose weights calls go round: more than caches hold
SHORTEST = 2e-3  # seconds of a sample, at least

Call = Callable[[], Any]


class Layers(nn.Module):
    """Linear layers that are called in turn, one at each call."""

    def __init__(self, size: int, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(size, size) for _ in range(count))
        self.next = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.next = (self.next + 1) % len(self.layers)
        return self.layers[self.next](x)


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Args:
        build: makes the model and its inputs by name; with True, small ones.
        scheme: burnt's.
        torchao: the configuration of the same scheme.
        aims: by rival, how many times as long it is meant to take; with VNNI, or without.
        others: whether torch.ao and ONNX Runtime have the scheme.
    """

    build: Callable[[bool], tuple[nn.Module, dict[str, torch.Tensor]]]
    scheme: str
    torchao: Callable[[], Any]
    aims: Mapping[str, float]
    others: bool = False
    reads: int = 0  # bytes of a float32 weight that a call reads


def decode(quick: bool) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    size = 64 if quick else 4096
    return Layers(size, LAYERS), {"x": torch.randn(1, size)}


def linear(quick: bool) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    size = 64 if quick else 1024
    return nn.Sequential(nn.Linear(size, size)), {"input": torch.randn(size, size)}


def roberta(quick: bool) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    import transformers

    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.RobertaConfig(
        vocab_size=50265, max_position_embeddings=514, **(small if quick else {})
    )
    tokens = torch.randint(10, 50000, (2, 16 if quick else 256))
    return transformers.RobertaModel(config, add_pooling_layer=False), {"input_ids": tokens}


def int8_weights() -> Any:
    from torchao.quantization import Int8WeightOnlyConfig

    return Int8WeightOnlyConfig()


def int4_weights() -> Any:
    from torchao.quantization import IntxWeightOnlyConfig, PerGroup

    return IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32))


def int8_dynamic() -> Any:
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig

    return Int8DynamicActivationInt8WeightConfig()


# Other instructions multiply int8 no faster than AVX2 does float32.
HAS_VNNI = bool({"avx512_vnni", "avx_vnni"} & set(re.findall(r"\w+", Path("/proc/cpuinfo").read_text()))) if (
    Path("/proc/cpuinfo").exists()
) else False  # fmt: skip
AHEAD = {"torchao": 1.0, "torch.ao": 1.0, "ONNX Runtime": 1.0}
ROWS = {
    "decode int8": Row(decode, "int8", int8_weights, {"float32": 3.2}, reads=1),
    "decode int4": Row(decode, "int4-block32", int4_weights, {"float32": 5.5}, reads=1),
    "linear int8": Row(
        linear, "int8-dynamic", int8_dynamic, {"float32": 2.5 if HAS_VNNI else 1.0, **AHEAD}, others=True
    ),
    "RoBERTa int8": Row(
        roberta, "int8-dynamic", int8_dynamic, {"float32": 2.0} if HAS_VNNI else {}, others=True
    ),
}


@dataclass
class Found:
    """The results of a row."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    error: float = 0.0
    bytes: int = 0

    def ratio(self, rival: str) -> tuple[float, float, float]:
        """Return the median of the rounds' ratios of a rival's time to burnt's, and their quartiles."""
        ratios = [other / own for other, own in zip(self.seconds[rival], self.seconds["burnt"], strict=True)]
        low, _, high = (
            statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
        )
        return statistics.median(ratios), low, high


def torchao_model(model: nn.Module, row: Row) -> nn.Module:
    from torchao.quantization import quantize_

    quantize_(model, row.torchao())
    return model


def torch_ao_model(model: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        quantized: nn.Module = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    return quantized


def onnxruntime_call(model: nn.Module, inputs: Mapping[str, torch.Tensor], folder: Path) -> Call:
    import onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic

    whole, small = folder / "whole.onnx", folder / "small.onnx"
    torch.onnx.export(
        model, kwargs=dict(inputs), f=whole, dynamo=True, verbose=False, external_data=False, optimize=True
    )
    quantize_dynamic(whole, small, weight_type=QuantType.QInt8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(small, options, providers=["CPUExecutionProvider"])
    names = [node.name for node in session.get_inputs()]
    arrays = dict(zip(names, (tensor.numpy() for tensor in inputs.values()), strict=True))
    return lambda: session.run(None, arrays)


def calls_of(row: Row, quick: bool, folder: Path) -> tuple[dict[str, Call], Found]:
    """Return what is timed, by rival; every rival has a copy of one model."""
    torch.manual_seed(0)
    model, inputs = row.build(quick)
    model.eval()
    found = Found(bytes=sum(p.nbytes for p in model.parameters()) // (LAYERS if row.reads else 1))
    ours = copy.deepcopy(model)
    burnt.quantize(ours, row.scheme, skip="*embeddings*" if row.build is roberta else None)
    expected, computed = (_first(module(**inputs)) for module in (model, ours))
    found.error = float((computed - expected).norm() / expected.norm())
    makers: dict[str, Callable[[], Call]] = {
        "burnt": lambda: _caller(ours, inputs),
        "float32": lambda: _caller(model, inputs),
        "torchao": lambda: _caller(torchao_model(copy.deepcopy(model), row), inputs),
    }
    if row.others:
        makers["torch.ao"] = lambda: _caller(torch_ao_model(copy.deepcopy(model)), inputs)
        makers["ONNX Runtime"] = lambda: onnxruntime_call(model, inputs, folder)
    calls = {}
    for name, make in makers.items():
        try:
            calls[name] = make()
            calls[name]()
        except Exception as error:  # libraries raise any exception
            if name in ("burnt", "float32"):
                raise
            found.failed[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            calls.pop(name, None)
    return calls, found


def _caller(model: nn.Module, inputs: Mapping[str, torch.Tensor]) -> Call:
    return lambda: model(**inputs)


def _first(output: Any) -> torch.Tensor:
    tensor: torch.Tensor = output if isinstance(output, torch.Tensor) else output[0]
    return tensor


def sample(call: Call, count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def measure(row: Row, quick: bool, rounds: int) -> Found:
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        calls, found = calls_of(row, quick, Path(folder))
        source = torch.randn(4096 if quick else 32 << 20)
        target = torch.empty_like(source)
        if row.reads:
            calls["copy"] = lambda: target.copy_(source)
        counts = {name: max(1, round(SHORTEST / max(sample(call, 2), 1e-7))) for name, call in calls.items()}
        found.seconds = {name: [] for name in calls}
        for _ in range(rounds):
            for name, call in calls.items():
                found.seconds[name].append(sample(call, counts[name]))
        if row.reads:
            # A copy reads and writes.
            found.seconds["copy"] = [seconds / (2 * source.nbytes) for seconds in found.seconds["copy"]]
    return found


def machine() -> dict[str, Any]:
    import importlib.metadata

    packages = ("torch", "torchao", "onnxruntime", "transformers")
    versions = {name: importlib.metadata.version(name) for name in packages if _has(name)}
    return {
        "cpu": burnt.device_info("cpu").name,
        "vnni": HAS_VNNI,
        "cores": psutil.cpu_count(),
        "threads": torch.get_num_threads(),
        **versions,
        "burnt": burnt.__version__,
    }


def _has(name: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(name) is not None


def as_json(row: Row, found: Found) -> dict[str, Any]:
    rivals = [rival for rival in RIVALS if rival in found.seconds]
    ratios = {rival: dict(zip(("ratio", "low", "high"), found.ratio(rival), strict=True)) for rival in rivals}
    result: dict[str, Any] = {
        "scheme": row.scheme,
        "ms": {name: 1e3 * statistics.median(found.seconds[name]) for name in ("burnt", *rivals)},
        "ratios": ratios,
        "failed": found.failed,
        "aims": dict(row.aims),
        "met": all(rival in ratios and ratios[rival]["ratio"] >= aim for rival, aim in row.aims.items()),
        "error": found.error,
    }
    if row.reads:
        share = 1 / 4 if row.scheme == "int8" else 9 / 64  # int4: half a byte, and a scale of 2 bytes for 32
        bandwidth = statistics.median(1 / second for second in found.seconds["copy"])
        result["copy GB/s"] = bandwidth / 1e9
        result["share of copy"] = found.bytes * share / statistics.median(found.seconds["burnt"]) / bandwidth
    return result


def table(results: Mapping[str, Any]) -> list[list[str]]:
    lines = [["", "scheme", "burnt ms", *(f"x {rival}" for rival in RIVALS), "aim", "error"]]
    for name, row in results["rows"].items():
        cells = []
        for rival in RIVALS:
            ratio = row["ratios"].get(rival)
            cells.append(
                "-" if ratio is None else f"{ratio['ratio']:.2f} ({ratio['low']:.2f}-{ratio['high']:.2f})"
            )
        aim = f"{row['aims']['float32']:g} {'✓' if row['met'] else '✗'}" if "float32" in row["aims"] else "-"
        lines.append([name, row["scheme"], f"{row['ms']['burnt']:.4g}", *cells, aim, f"{row['error']:.2%}"])
    return lines


def notes(results: Mapping[str, Any]) -> list[str]:
    lines = []
    for name, row in results["rows"].items():
        lines += [f"{name}, {rival}: {why}" for rival, why in row["failed"].items()]
        if "share of copy" in row:
            lines.append(
                f"{name}: weights are read at {row['share of copy']:.0%} of the {row['copy GB/s']:.1f} GB/s "
                "of a copy"
            )
    return lines


def text(lines: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in lines)
    return "\n".join("  ".join(row).rstrip() for row in rows)


def markdown(results: Mapping[str, Any]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in table(results)]
    parts = [
        "# Quantization",
        "`python benchmarks/quantization.py --save`: how many times as long rivals take as burnt, the median "
        "of the rounds' ratios with quartiles. The error is that of burnt's output relative to float32's.",
        ", ".join(f"{name} {value}" for name, value in results["machine"].items()),
        "\n".join([lines[0], "|" + "---|" * len(table(results)[0]), *lines[1:]]),
        *notes(results),
    ]
    return "\n\n".join(parts) + "\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="quantized layers and models next to other libraries'")
    parser.add_argument("--quick", action="store_true", help="small and few: shows that it runs, no more")
    parser.add_argument("--rows", default="", metavar="PATTERN", help="a regular expression of rows' names")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--json", type=Path, help="write the results to this file, after each row")
    parser.add_argument("--save", action="store_true", help="write results/cpu-quantization.json and .md")
    options = parser.parse_args(arguments)
    if options.quick and options.save:
        parser.error("ratios of --quick say nothing: no --save")
    logging.disable(logging.WARNING)  # of the rivals
    results: dict[str, Any] = {"machine": machine(), "quick": options.quick, "rows": {}}
    for name, row in ROWS.items():
        if re.search(options.rows, name):
            print(name, file=sys.stderr, flush=True)
            results["rows"][name] = as_json(
                row, measure(row, options.quick, 3 if options.quick else options.rounds)
            )
            if options.json:
                options.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    print(", ".join(f"{name} {value}" for name, value in results["machine"].items()), end="\n\n")
    print(text(table(results)), *notes(results), sep="\n")
    if options.save:
        (RESULTS / "cpu-quantization.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
        (RESULTS / "cpu-quantization.md").write_text(markdown(results), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
