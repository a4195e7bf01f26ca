"""The table of a GPU: families of ops in bfloat16, at 64 MB and more, products of matrices, optimizer steps.

Next to each: torch's own op where there is one, the same unfused in simpler ops, torch.compile with
max-autotune, and Liger-Kernel where it has the op and is installed. Inputs are rotated through more memory
than the L2 cache holds; the calls on all of them are captured in a CUDA graph, whose replays are timed by
events, rivals in turns. What cannot be captured is timed launch by launch, and marked; so are all steps of
optimizers, which burnt leaves to torch while a graph is captured. The share is of the
bandwidth of a copy that is timed in the same way, each input and each output counted once; a backward has
the inputs and the results' gradients for inputs, and the inputs' gradients for outputs. Host time is that
of calls on a few elements. ``own`` is torch's time by that of our own candidate, which is timed too where the
op takes a library's; ``bwd`` the same of the time that gradients take beyond the forward. A step of an
optimizer stands next to torch's fused one (``torch``) and that by lists (``unfused``); where burnt left it to
torch, the row has the reason and no ratio.

Rows are measured by another process, and by a new one after a row that broke the device or took too long
(`row_process`). Without ``compile`` among the rivals nothing is compiled by Inductor: rows next to
flex_attention, which is, have no rival then.

With ``--tune`` an op is tuned for a row's inputs before the row is measured: some block sizes near those that
were picked, and what was best is what burnt runs. How much better than the picked ones it is, is a column.
``--group memory`` and ``--group products`` are its halves (`gpu_rows`; `gpu_products` and `steps`).

On a CPU (``--table gpu --device cpu --quick``) the same is rehearsed with plain timing and small inputs.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.util
import json
import math
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import burnt
from burnt.kernels.autotune.database import TuningDatabase
from burnt.kernels.autotune.timers import NotCapturedError, capture_graph
from kernel_table import clock, steps
from kernel_table.cpu import quartiles, say
from kernel_table.gpu_products import PRODUCTS
from kernel_table.gpu_rows import BACKWARD, FAMILIES, Family
from kernel_table.own import Own, bound, own_of
from kernel_table.report import mark, text_table
from kernel_table.row_process import RowProcess

RIVALS = ("torch", "unfused", "compile", "liger")
TARGETS = {"torch": 1.5, "unfused": 3.0, "compile": 1.05, "liger": 1.1}
"""Of the geometric means over the families."""
SHARE, HOST = 0.85, 15.0
STEPS = {"torch": "torch", "unfused": "lists"}  # which of a step's rivals stands in a column
RANDOM = ("dropout",)
SMALL = 1 << 12  # elements, about, of the inputs that host time is taken with
_LIGER = "liger_kernel.transformers.functional"
ROW_SECONDS = 300.0
"""After which a row's process is stopped: a kernel that hangs never ends by itself."""
SAMPLE_SECONDS = 2.0  # of a row, after which no round begins
_REPLAYS = 5  # of a graph in a sample


def rivals_of(family: Family, names: Sequence[str]) -> dict[str, Callable[..., Any]]:
    """The rivals that there are, by name; burnt first. Inductor compiles none unless ``compile`` is named."""
    found: dict[str, Callable[..., Any]] = {
        "burnt": functools.partial(family.call, getattr(burnt.kernels, family.op))
    }
    inductor = "compile" in names
    if "torch" in names and family.torch is not None and (inductor or not family.inductor):
        found["torch"] = family.torch
    if "unfused" in names:
        found["unfused"] = family.unfused
    if inductor:
        found["compile"] = torch.compile(
            family.torch or family.unfused, mode="max-autotune-no-cudagraphs", dynamic=False
        )
    if "liger" in names and family.liger is not None and importlib.util.find_spec("liger_kernel"):
        name, call = family.liger
        function = getattr(importlib.import_module(_LIGER), name, None)  # not all versions have all of them
        if function is not None:
            found["liger"] = lambda *inputs: call(function, *inputs)
    return found


# --- taking time


Timer = Callable[[], float]


def timer(
    runs: Sequence[Callable[[], object]], device: torch.device, capture: bool = True
) -> tuple[Timer, bool]:
    """Seconds of one of the calls, taken over all of them; and whether they were captured in a graph.

    Args:
        runs: the calls.
        device: theirs.
        capture: whether to try; else calls are launched one by one between two events.
    """
    for run in runs:
        run()
    if device.type != "cuda":
        return lambda: clock.sample(lambda: [run() for run in runs], 1).seconds / len(runs), False
    torch.cuda.synchronize()
    replay, captured = captured_or_not(runs) if capture else (in_turns(runs), False)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def take() -> float:
        begin.record()
        for _ in range(_REPLAYS):
            replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3 / _REPLAYS / len(runs)

    take()
    return take, captured


def captured_or_not(runs: Sequence[Callable[[], object]]) -> tuple[Callable[[], object], bool]:
    try:
        return capture_graph(runs).replay, True
    except NotCapturedError as error:
        say(f"    not captured: {error}")
        return in_turns(runs), False


def in_turns(runs: Sequence[Callable[[], object]]) -> Callable[[], object]:
    """All of the calls, one after the other."""
    return lambda: [run() for run in runs]


def copies(nbytes: int, device: torch.device) -> int:
    """How many sets of inputs are rotated, so that none is found in the cache."""
    if device.type != "cuda":
        return 2
    cache = torch.cuda.get_device_properties(device).L2_cache_size
    return 2 + 2 * cache // nbytes


def copy_bandwidth(device: torch.device, divisor: int, rounds: int) -> float:
    """Bytes per second, read and written."""
    pairs = [torch.randn((2, (1 << 27) // divisor), device=device, dtype=torch.bfloat16) for _ in range(2)]
    take, _ = timer([lambda p=p: p[0].copy_(p[1]) for p in pairs], device)  # type: ignore[misc]
    return pairs[0].nbytes / statistics.median(take() for _ in range(rounds))


def host(call: Callable[[], object], number: int) -> dict[str, float]:
    """Microseconds of a call that leaves the device little to do and is not waited for; Triton's launches."""
    taken, launches, on_gpu = [], [], torch.cuda.is_initialized()
    for _ in range(7):
        if on_gpu:
            torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(number):
            call()
        taken.append((time.perf_counter() - began) / number * 1e6)
    found: dict[str, float] = {"host_us": statistics.median(taken)}
    if on_gpu:
        import triton

        triton.knobs.runtime.launch_enter_hook.add(launches.append)
        call()
        triton.knobs.runtime.launch_enter_hook.remove(launches.append)
        found["launches"] = len(launches)
    return found


# --- rows


def measure(
    family: Family,
    gradients: bool,
    names: Sequence[str],
    device: torch.device,
    divisor: int,
    rounds: int,
    tune: bool = False,
    picks: Sequence[dict[str, Any] | None] = (),
) -> dict[str, Any]:
    """A row: seconds by rival, ratios, the bytes that have to be moved, host time."""
    first = family.inputs(device, gradients, divisor)
    sets = [first]
    while len(sets) < copies(sum(t.nbytes for t in first), device):
        sets.append(family.inputs(device, gradients, divisor))
    functions = rivals_of(family, names)
    op, call = family.beneath or (family.op, family.call)
    if picks:
        mine = {json.dumps(c): functools.partial(call, bound(burnt.kernels.OPS[op], c)) for c in picks}
        functions = {"torch": family.torch or family.unfused, **mine}
    gain = tuned(functions["burnt"], first) if tune and not picks else None
    result: dict[str, Any] = {"rivals": {}, "launched": [], "errors": {}}
    if gain is not None:
        result["tuned"] = gain
    own = bound_own(family, first, result["errors"]) if family.product and not picks else None
    if own is not None and own.candidate is not None:
        functions["own"] = functools.partial(call, own)
    timers: dict[str, Timer] = {}
    made: dict[str, list[Tensor]] = {}
    expected = next(iter(functions))
    for name, fn in functions.items():
        try:
            made[name] = [t.detach().float() for t in clock.flat(fn(*first)) if t.is_floating_point()]
            if family.op not in RANDOM and not alike(made[name], made.get(expected, made[name])):
                raise ValueError(f"its results are not those of {expected}")
            runs = [clock.runner(fn, inputs, gradients) for inputs in sets]
            timers[name], captured = timer(runs, device)
        except Exception as error:  # of any kind: one that fails is a row's news, and no end of the table
            result["errors"][name] = failure(name, error)
            continue
        if not captured:
            result["launched"].append(name)
    samples = sampled(timers, rounds, result)
    seconds = {name: statistics.median(taken) for name, taken in samples.items()}
    if picks and "torch" in seconds and len(seconds) > 1:
        theirs = seconds.pop("torch")
        best = min(seconds, key=seconds.__getitem__)
        ratio = theirs / seconds[best]
        found = {"candidate": best, "seconds": seconds[best], "torch_seconds": theirs, "ratio": ratio}
        result |= {"own": found, "candidates": seconds, "seconds": seconds[best], "rivals": {"torch": ratio}}
    if own is not None and "torch" in seconds:
        ours, theirs = seconds.get("burnt" if own.candidate is None else "own"), seconds["torch"]
        result["own"] = {"candidate": own.candidate or own.chosen, "seconds": ours, "torch_seconds": theirs}
        result["own"]["ratio"] = None if ours is None else theirs / ours
    if "burnt" in seconds:
        results = clock.flat(functions["burnt"](*first))
        once = sum(t.nbytes for t in first) + sum(t.nbytes for t in results)
        wanted = sum(t.nbytes for t in first if t.requires_grad)
        result["bytes"] = 2 * once + wanted if gradients else once
        result["seconds"] = seconds["burnt"]
        result["quartiles"] = quartiles(samples["burnt"])
        result["rivals"] = {n: s / seconds["burnt"] for n, s in seconds.items() if n not in ("burnt", "own")}
        small = family.inputs(device, gradients, max(divisor, first[0].numel() // SMALL, 2))
        if family.peak and device.type == "cuda":
            ways = {n: clock.runner(fn, first, gradients) for n, fn in functions.items() if n in seconds}
            result["peak_mb"] = {name: peak(run) for name, run in ways.items()}
        result |= host(lambda: functions["burnt"](*small), 100 if divisor == 1 else 5)
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    return result


def bound_own(family: Family, inputs: Sequence[Tensor], errors: dict[str, str]) -> Own | None:
    """Our own candidate for a row, by the op that it calls; None where that is ours alone, or it fails."""
    name, call = family.beneath or (family.op, family.call)
    if name not in burnt.kernels.OPS:
        return None
    try:
        return own_of(name, call, inputs)
    except Exception as error:  # of any kind: the row is measured all the same, and says it
        errors["own"] = failure("own", error)
        return None


def sampled(timers: Mapping[str, Timer], rounds: int, result: dict[str, Any]) -> dict[str, list[float]]:
    """Seconds by name, taken in turns; whoever fails takes no more turns, and has an error instead.

    The result gets the errors, and the clock and the power of the GPU.
    """
    samples: dict[str, list[float]] = {name: [] for name in timers}
    began = time.monotonic()
    for _ in range(rounds):
        for name in list(samples):
            try:
                samples[name].append(timers[name]())
            except Exception as error:  # of any kind: one that fails is a row's news, and no end of the table
                result["errors"][name] = failure(name, error)
                del samples[name]
        if time.monotonic() - began > SAMPLE_SECONDS:
            break
    result |= clock.device_state() if torch.cuda.is_initialized() else {}
    return samples


def failure(name: str, error: BaseException) -> str:
    """What a row says of a rival that failed; whoever waits reads it at once."""
    say(f"    {name}: {type(error).__name__}: {error}")
    return f"{type(error).__name__}: {str(error)[:300]}"


def measure_step(
    step: steps.Step, names: Sequence[str], device: torch.device, divisor: int, rounds: int
) -> dict[str, Any]:
    """A row of an optimizer step. Its tensors are more than a cache holds, and each run changes them.

    Timed by events: while a graph is captured burnt leaves its step to torch.
    """
    result: dict[str, Any] = {"rivals": {}, "launched": [], "errors": {}}
    try:
        runs = steps.runs(step, divisor, device)
    except (Exception, SystemExit) as error:  # of any kind: the other rows are measured all the same
        return result | {"errors": {"burnt": failure("burnt", error)}}
    timers: dict[str, Timer] = {}
    for name, run in runs.items():
        try:
            timers[name], _ = timer([run], device, capture=False)
        except Exception as error:  # of any kind, as above
            result["errors"][name] = failure(name, error)
            continue
        result["launched"].append(name)
    samples = sampled(timers, rounds, result)
    seconds = {name: statistics.median(taken) for name, taken in samples.items()}
    if "burnt" not in seconds:
        return result
    result |= {"seconds": seconds["burnt"], "quartiles": quartiles(samples["burnt"])}
    result |= host(runs["burnt"], 5)
    columns = {column: rival for column, rival in STEPS.items() if column in names and rival in seconds}
    result["rivals"] = {column: seconds[rival] / seconds["burnt"] for column, rival in columns.items()}
    return result


def peak(run: Callable[[], object]) -> float:
    """Megabytes that a call holds at its most, next to what is there before it."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 1e6


def tuned(fn: Callable[..., Any], inputs: Sequence[Tensor]) -> dict[str, Any] | None:
    """Tune the ops that a call makes: milliseconds of the picked sizes and of the best, what failed."""
    before = set(burnt.kernels.choices())
    with burnt.kernels.tuning("quick"):
        try:
            fn(*inputs)
        except Exception as error:  # of any kind: the row is measured all the same, and says more
            say(f"    not tuned: {type(error).__name__}: {error}")
            return None
    keys = [key for key in burnt.kernels.choices() if key not in before]
    rows = [row for key in keys for row in TuningDatabase().rows(key)]
    picked = [row.ms for row in rows if row.config == "generated" and row.ms is not None]
    if not picked:
        return None
    best = min((row for row in rows if row.ms is not None), key=lambda row: row.ms or 0)
    bad = [f"{row.config}: {row.status}: {row.note}" for row in rows if row.status != "ok"]
    return {"picked_ms": picked[0], "best_ms": best.ms, "best": best.config, "tried": len(rows), "bad": bad}


def alike(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Within some roundings of bfloat16: that both compute the same, no more."""
    pairs = zip(found, expected, strict=True)
    return all(a.shape == b.shape and (a - b).abs().max() <= 0.05 * b.abs().max() for a, b in pairs)


def against(ratio: float, aim: float | None) -> str:
    """``1.31 / 1.3 ✓``: a ratio, and what is aimed at, if anything is."""
    return f"{ratio:.2f}" if aim is None else f"{ratio:.2f} / {aim:g} {mark(ratio >= aim)}"


def line(name: str, row: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    if "seconds" not in row:
        return [name, "failed", "", *["" for _ in names], "", "", ""]
    aims, own = row.get("aims", {}), row.get("own", {})
    ratios = [
        against(row["rivals"][n], aims.get(n)) if n in row["rivals"] else row["errors"].get(n, "-")[:20]
        for n in names
    ]
    launched = "*" if "burnt" in row["launched"] else ""
    share = f"{row['share']:.0%} {mark(row['share'] >= SHARE)}" if "share" in row else "-"
    ours = row["errors"].get("own", "-")[:20]
    if own.get("ratio") is not None:
        told = against(own["ratio"], None if "backward" in own else aims.get("own"))
        told += f", bwd {against(own['backward'], aims.get('own'))}" if "backward" in own else ""
        ours = f"{told} {own['candidate'].split(' {')[0]}"
    host = f"{row['host_us']:.1f} {mark(row['host_us'] <= HOST)}" if "host_us" in row else "-"
    gain = row.get("tuned")
    better = "-" if gain is None else f"{gain['picked_ms'] / gain['best_ms']:.2f}"
    return [name, f"{row['seconds'] * 1e3:.3f}{launched}", share, *ratios, ours, host, better]


def backward_alone(forward: Mapping[str, Any], both: Mapping[str, Any]) -> float | None:
    """torch's time by ours of a backward, from ``own`` of rows without and with gradients, if known."""
    if forward.get("ratio") is None or both.get("ratio") is None:
        return None
    ours = both["seconds"] - forward["seconds"]
    return (both["torch_seconds"] - forward["torch_seconds"]) / ours if ours > 0 else None


def means(rows: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> dict[str, float]:
    """Geometric means of the ratios, over the rows of what moves memory that have a rival."""
    found = {}
    for name in names:
        ratios = [r["rivals"][name] for r in rows.values() if name in r["rivals"] and not r["product"]]
        if ratios:
            found[name] = math.exp(statistics.fmean(map(math.log, ratios)))
    return found


def rows(group: str | None = None) -> dict[str, tuple[Family, bool] | steps.Step]:
    """The table's rows by name, or those of half of it: a family without or with gradients, or a step."""
    families = {"memory": FAMILIES, "products": PRODUCTS, None: (*FAMILIES, *PRODUCTS)}[group]
    found: dict[str, tuple[Family, bool] | steps.Step] = {
        family.name(gradients): (family, gradients)
        for family in families
        for gradients in (False, True)[: 1 + family.backward]
    }
    return found if group == "memory" else found | {step.name: step for step in steps.ON_GPU}


def facts(device: str, divisor: int, rounds: int) -> dict[str, Any]:
    """What a table begins with: the device, and what it copies."""
    where = placed(device)
    return {
        "device": burnt.device_info(where).name,
        "torch": torch.__version__,
        "copy_gb_s": copy_bandwidth(where, divisor, 3 * rounds) / 1e9,
    }


def constants(device: str, divisor: int, rounds: int) -> dict[str, Any]:
    """Facts for the cost model: the rate of torch's matmul, a launch, the clock and the power."""
    where, size = placed(device), max(8192 // divisor, 16)
    result: dict[str, Any] = {"errors": {}}
    a, b = torch.randn((2, size, size), device=where, dtype=torch.bfloat16)
    take, _ = timer([lambda: a @ b], where)
    taken = sampled({"matmul": take}, 20 * rounds, result)["matmul"]
    result["matmul_tflops"] = 2 * size**3 / statistics.median(taken) / 1e12
    result["launch_us"] = host(a[:1, :1].neg_, 100)["host_us"]
    return facts(device, divisor, rounds) | result


def measure_row(
    name: str,
    rivals: Sequence[str],
    device: str,
    divisor: int,
    rounds: int,
    tune: bool,
    picks: Sequence[dict[str, Any] | None] = (),
) -> dict[str, Any]:
    """The row of a name."""
    where, take = placed(device), rows()[name]
    if isinstance(take, steps.Step):
        return measure_step(take, rivals, where, divisor, rounds) | {"product": True}
    family, gradients = take
    row = measure(family, gradients, rivals, where, divisor, rounds, tune, picks)
    return row | {"product": family.product, "aims": family.aimed(gradients), "whole": family.share}


def placed(device: str) -> torch.device:
    """A device, which is also the current one if it is a GPU."""
    found = torch.device(device)
    if found.type == "cuda":
        found = torch.device("cuda", torch.cuda.current_device() if found.index is None else found.index)
        torch.cuda.set_device(found)
    return found


def run(options: argparse.Namespace) -> None:
    """Measure all rows that are asked for; results are written after each, in case time runs out.

    Raises:
        SystemExit: an op of burnt's failed, or the device cannot be used.
    """
    names = options.rivals
    divisor, rounds = (1024, 2) if options.quick else (1, 15)
    setting = {"device": str(options.device), "divisor": divisor, "rounds": rounds}
    began = time.monotonic()
    picks = json.loads(options.picks.read_text(encoding="utf-8")) if options.picks else {}
    process = RowProcess()
    try:
        found = process.ask(options.row_seconds, do="facts", **setting)
        if "error" in found:
            raise SystemExit(f"{options.device} cannot be measured: {found['error']}")
        copy = found["copy_gb_s"] * 1e9
        results: dict[str, Any] = {
            **{key: found[key] for key in ("device", "torch", "copy_gb_s")},
            "quick": options.quick,
            "targets": {**TARGETS, "share": SHARE, "host_us": HOST},
            "rows": {},
        }
        for name in rows(options.group):
            if not re.search(options.rows, name) or (picks and name not in picks):
                continue
            if time.monotonic() - began > options.seconds:
                results["left_out"] = [*results.get("left_out", []), name]
                continue
            say(f"  {name}")
            configs = [pick["config"] for pick in picks.get(name, ())]
            more = {"picks": configs, "tune": options.tune}
            row = process.ask(options.row_seconds, do="row", name=name, rivals=names, **more, **setting)
            results["rows"][name] = completed(name, row, results["rows"], copy)
            results["means"] = means(results["rows"], names)
            if options.json:
                written(options.json, results)
    finally:
        process.close()
    report(results, names)
    if any("burnt" in row["errors"] for row in results["rows"].values()):
        raise SystemExit("an op of burnt's failed; see above")


def completed(
    name: str, row: dict[str, Any], others: Mapping[str, Mapping[str, Any]], copy: float
) -> dict[str, Any]:
    """A row with what other rows are needed for; one whose process was lost says so."""
    if "error" in row:
        say(f"    {row['error']}")
        # The means leave it out either way.
        row = {"rivals": {}, "launched": [], "product": True, "errors": {"burnt": row["error"]}} | row
    if row.get("broken"):
        say(f"    the device is broken, and the next row gets a new process: {row['broken']}")
    if name.endswith(BACKWARD):
        forward = others.get(name.removesuffix(BACKWARD), {})
        alone = backward_alone(forward.get("own", {}), row.get("own", {}))
        if alone is not None:
            row["own"]["backward"] = alone
    if "seconds" in row and row.get("whole"):
        row["share"] = row["bytes"] / row["seconds"] / copy
    return row


def written(file: Path, results: Mapping[str, Any]) -> None:
    """Write results so that whoever stops this process finds those of all rows before."""
    part = file.with_name(f"{file.name}.part")
    part.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    os.replace(part, file)


def report(results: Mapping[str, Any], names: Sequence[str]) -> None:
    print(f"{results['device']}, torch {results['torch']}, copy {results['copy_gb_s']:.0f} GB/s, bfloat16")
    head = ["", "burnt ms", "of copy", *(f"x {name}" for name in names), "own, x torch"]
    head += ["host us", "x picked"]
    found = results.get("means", {})
    mean = [
        f"{found[n]:.2f} / {TARGETS[n]:g} {mark(found[n] >= TARGETS[n])}" if n in found else "-"
        for n in names
    ]
    lines = [line(name, row, names) for name, row in results["rows"].items()]
    print(text_table([head, *lines, ["geometric mean", "", "", *mean, "", "", ""]]))
    print("* not captured in a graph; the mean is over what moves memory, without products of matrices")
    for name, row in results["rows"].items():
        if "burnt" in row["errors"]:
            print(f"{name}: {row['errors']['burnt']}")
    for name, row in results["rows"].items():
        if "peak_mb" in row:
            used = ", ".join(f"{rival} {megabytes:.0f} MB" for rival, megabytes in row["peak_mb"].items())
            less = row["peak_mb"]["burnt"] <= row["peak_mb"].get("liger", math.inf)
            print(f"memory of {name}: {used}{'' if less else '; more than liger'}")
    if results.get("left_out"):
        print(f"left out for want of time: {', '.join(results['left_out'])}")
