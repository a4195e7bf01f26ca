"""The table `burnt/torch_speed.json`, measured again: torch's kernel against the generated one.

A fact's calls are the examples of its op in every dtype, with and without gradients. Both candidates take
samples in turns; the fact gets the least and the largest ratio of times, and the kernel that is faster in the
middle one. Facts that no call is about, or that are about another kind of processor, stay as they are, as do
those with a reason in words. A GPU's facts are taken from its results in ``results/``.
"""

from __future__ import annotations

import datetime
import functools
import json
import re
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from burnt import device_info, kernels, torch_speed
from burnt.kernels.autotune.timers import HostClock
from burnt.kernels.dispatch.selection import find_op_fact
from burnt.kernels.interface.binding import bind_candidate, results_and_gradients
from burnt.torch_speed import Fact

SAMPLES = 11
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# What the rows of a GPU's table measure, by how their names begin.
GPU_ROWS = {
    "linear, bias, gelu": "linear",
    "attention": "dot_product_attention",
    "bmm": "bmm",
    "conv ": "conv",
}


def write(pattern: str, results: Path, path: Path = torch_speed.TABLE) -> None:
    """Measure the facts of the ops that match a pattern, and write the table."""
    found = {**_measured(pattern), **_on_gpus(pattern, results)}
    rows = []
    for row in json.loads(torch_speed.TABLE.read_text(encoding="utf-8"))["facts"]:
        machine, date, ratios = found.get(_key(row), ("", "", []))
        if ratios and "why" not in row:
            use = "torch" if statistics.median(ratios) <= 1 else "generated"
            row |= {"use": use, "ratio": [round(min(ratios), 2), round(max(ratios), 2)]}
            row |= {"measured": machine, "date": date}
        rows.append(json.dumps(row))
    path.write_text('{"facts": [\n' + ",\n".join(rows) + "\n]}\n", encoding="utf-8")


Found = dict[str, tuple[str, str, list[float]]]


def _key(row: Fact | dict[str, Any]) -> str:
    row = row._asdict() if isinstance(row, Fact) else row
    place = [row["op"], row.get("processor", "cpu"), list(row.get("dtypes", ()))]
    return json.dumps([*place, row.get("gradients"), row.get("where", {})])


def _measured(pattern: str) -> Found:
    machine = f"{device_info('cpu').name}, {torch.get_num_threads()} threads"
    today, found = datetime.date.today().isoformat(), Found()
    for op in kernels.OPS.values():
        for args in _calls(op) if re.search(pattern, op.name) else ():
            fact = find_op_fact(op, args, True)
            if fact is not None and not fact.why:
                print(
                    f"{op.name}: {[tuple(a.shape) if isinstance(a, Tensor) else a for a in args]}", flush=True
                )
                found.setdefault(_key(fact), (machine, today, []))[2].append(_ratio(op, args))
    return found


def _calls(op: Any) -> Iterator[tuple[Any, ...]]:
    """Yield arguments that the op and both of its candidates take."""
    for example in op.example_args(torch.device("cpu")):
        for dtype in DTYPES:
            for needs_grad in (False, True):
                args = tuple(_converted(a, dtype, needs_grad) for a in example)
                generated = op.candidates.get("generated")
                if (
                    generated is not None
                    and generated.why_not(args) is None
                    and op.reference_error(args) is None
                ):
                    yield args


def _converted(value: Any, dtype: torch.dtype, needs_grad: bool) -> Any:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    return value.detach().to(dtype).requires_grad_(needs_grad)


def _ratio(op: Any, args: Sequence[Any]) -> float:
    """Return the time of the library divided by that of the generated kernels."""
    calls = [bind_candidate(op, op.candidates[name], None, args) for name in ("library", "generated")]
    clock = HostClock(torch.device("cpu"))
    samplers = [clock.sampler(functools.partial(results_and_gradients, call), [args]) for call in calls]
    samples = [[sample(i) for sample in samplers] for i in range(SAMPLES)]
    library, generated = (statistics.median(times) for times in zip(*samples, strict=True))
    return library / generated


def _on_gpus(pattern: str, results: Path) -> Found:
    found = Found()
    for path in sorted(results.glob("*-figures.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        rows: dict[str, Any] = {}  # a race is newer than what is kept of earlier calls
        for stage in document["stages"].values():
            rows |= stage["results"].get("rows", {}) if isinstance(stage.get("results"), dict) else {}
        for name, row in rows.items():
            op = next((op for start, op in GPU_ROWS.items() if name.startswith(start)), None)
            if op is None or not row.get("own") or not re.search(pattern, op):
                continue
            gradients = name.endswith("fwd+bwd")
            for fact in torch_speed.read_table()[op]:
                if fact.processor == "gpu" and fact.gradients in (None, gradients) and not fact.where:
                    place = found.setdefault(_key(fact), (document["device"], document["time"][:10], []))
                    place[2].append(row["own"]["ratio"])
                    break
    return found
