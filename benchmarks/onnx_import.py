"""A BERT from an ONNX file: time and memory of the import, and its speed next to ONNX Runtime, on a CPU.

    python benchmarks/onnx_import.py [--quick] [--rounds 15] [--length 128] [--json FILE]

The file is BERT-base's architecture of transformers with random weights, written by torch's exporter. A
process of its own imports it: seconds, and the largest memory above that of the imported packages, next to
the file's size. Then ONNX Runtime, the module, and the module after ``burnt.swap(mode="infer")`` are called
in turns with batches of 1 and 8: ONNX Runtime's time divided by theirs, the median of the rounds' ratios with
quartiles; above 1 they are faster. The same for what ONNX Runtime's `quantize_dynamic` makes of the file,
with signed and with unsigned weights. Needs onnx, onnxscript, onnxruntime and transformers.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime
import torch

import burnt

BATCHES = (1, 8)
QUANTIZED = {"int8": "QInt8", "uint8 per channel": "QUInt8"}
AIMS = {"seconds": 5.0, "memory": 2.5, "speed": 0.9}
IMPORT = """
import json, re, sys, time
import burnt.onnx, onnx, onnx_ir, torch
import onnx_ir.passes.common
# Not ru_maxrss, which a process inherits from the one that starts it.
usage = lambda key: 1024 * int(re.search(key + r":\\s+(\\d+) kB", open("/proc/self/status").read())[1])
before, start = usage("VmRSS"), time.perf_counter()
module = burnt.onnx.load(sys.argv[1])
print(json.dumps({"seconds": time.perf_counter() - start, "bytes": usage("VmHWM") - before}))
"""


class Output(torch.nn.Module):
    """The first output of a model of transformers."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask, return_dict=False)[
            0
        ]
        return out


def inputs_of(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(1, 1000, (batch, length)), torch.ones(batch, length, dtype=torch.int64)


def write_file(path: Path, quick: bool, length: int) -> None:
    import transformers

    torch.manual_seed(0)
    small = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2}
    config = transformers.BertConfig(**({"vocab_size": 1000, **small} if quick else {}))
    model = Output(transformers.BertModel(config, add_pooling_layer=False)).eval()
    torch.onnx.export(
        model,
        inputs_of(2, length),
        path,
        dynamo=True,
        dynamic_shapes=({0: torch.export.Dim("batch")}, {0: torch.export.Dim("batch")}),
        external_data=False,
        verbose=False,
    )


def sample(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def speeds(path: Path, batch: int, length: int, rounds: int) -> dict[str, Any]:
    """Return milliseconds and ratios for one size of batch."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    # Its threads would go on spinning while the others compute.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    inputs = inputs_of(batch, length)
    arrays = dict(zip([node.name for node in session.get_inputs()], (t.numpy() for t in inputs), strict=True))
    module = burnt.onnx.load(path)
    swapped = copy.deepcopy(module)
    burnt.swap(swapped, mode="infer", verify=inputs)
    calls = {
        "ONNX Runtime": lambda: session.run(None, arrays),
        "imported": lambda: module(*inputs),
        "swapped": lambda: swapped(*inputs),
    }
    expected = torch.from_numpy(calls["ONNX Runtime"]()[0])
    errors = {name: float((calls[name]() - expected).abs().max()) for name in ("imported", "swapped")}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for round_number in range(-2, rounds):
        for name, call in calls.items():
            taken = sample(call)
            if round_number >= 0:
                seconds[name].append(taken)
    result: dict[str, Any] = {
        "ms": {n: 1e3 * statistics.median(s) for n, s in seconds.items()},
        "errors": errors,
    }
    for name in ("imported", "swapped"):
        ratios = [a / b for a, b in zip(seconds["ONNX Runtime"], seconds[name], strict=True)]
        low, ratio, high = statistics.quantiles(ratios, n=4, method="inclusive")
        result[name] = {"ratio": ratio, "low": low, "high": high}
    return result


def quantize(path: Path, name: str) -> Path:
    """Write the file that ONNX Runtime's dynamic quantization makes of one, and return its path."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    target = path.with_name(f"{QUANTIZED[name]}.onnx")
    kind = QuantType[QUANTIZED[name]]
    quantize_dynamic(path, target, weight_type=kind, per_channel="per channel" in name)
    return target


def measure(quick: bool, rounds: int, length: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder, "bert.onnx")
        write_file(path, quick, length)
        done = subprocess.run(
            [sys.executable, "-c", IMPORT, str(path)], check=True, capture_output=True, text=True
        )
        size = path.stat().st_size
        imported = json.loads(done.stdout)
        results: dict[str, Any] = {
            "cpu": burnt.device_info("cpu").name,
            "threads": torch.get_num_threads(),
            "file bytes": size,
            "seconds": imported["seconds"],
            "memory": imported["bytes"] / size,
            "length": length,
        }
        results |= {f"batch {batch}": speeds(path, batch, length, rounds) for batch in BATCHES}
        for name in QUANTIZED:
            quantized = quantize(path, name)
            results |= {
                f"{name}, batch {batch}": speeds(quantized, batch, length, rounds) for batch in BATCHES
            }
        return results


def text(results: dict[str, Any]) -> str:
    def mark(met: bool) -> str:
        return "met" if met else "missed"

    seconds, memory = results["seconds"], results["memory"]
    size = results["file bytes"] / 1e6
    lines = [
        f"{results['cpu']}, {results['threads']} threads, {results['length']} tokens",
        f"import of {size:.1f} MB: {seconds:.2f} s (aim {AIMS['seconds']:g}: "
        f"{mark(seconds <= AIMS['seconds'])}), {memory:.2f} x the file in memory (aim {AIMS['memory']:g}: "
        f"{mark(memory <= AIMS['memory'])})",
    ]
    for name, row in results.items():
        if "batch" not in name:
            continue
        cells = [f"ONNX Runtime {row['ms']['ONNX Runtime']:.2f} ms"]
        for which in ("imported", "swapped"):
            ratio = row[which]
            cells.append(f"{which} x {ratio['ratio']:.2f} ({ratio['low']:.2f}-{ratio['high']:.2f})")
        aim = f"aim {AIMS['speed']:g}: {mark(row['swapped']['ratio'] >= AIMS['speed'])}"
        lines.append(f"{name}: {', '.join(cells)}, {aim}, largest error {max(row['errors'].values()):.1e}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="an imported BERT next to ONNX Runtime")
    parser.add_argument("--quick", action="store_true", help="a small one: shows that it runs, no more")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--length", type=int, default=128, help="tokens")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    results = measure(options.quick, 3 if options.quick else options.rounds, options.length)
    print(text(results))
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
