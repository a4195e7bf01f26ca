"""The benchmark of kernels: its rows, its table, its comparison with an earlier one, its picture."""

from __future__ import annotations

import copy
import functools
import importlib
import itertools
import json
import os
import runpy
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests import forked
from tests.benchmarks.running import ROOT, output_of


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmarks import each other as scripts do."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def module(name: str) -> Any:
    return importlib.import_module(f"kernel_table.{name}")


def test_nobody_always_runs_after_the_same_other_one() -> None:
    names = ["burnt", "eager", "inductor", "copy"]
    orders = list(itertools.islice(module("clock").orders(names), 60))
    assert all(sorted(order) == sorted(names) for order in orders)
    after = [pair for order in orders for pair in itertools.pairwise(order)]
    counts = {pair: after.count(pair) for pair in itertools.permutations(names, 2)}
    assert min(counts.values()) > 60 * 3 / 12 / 3  # of 15 that chance gives each


@pytest.mark.full
def test_the_cpu_table(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    rows = "gelu|cross_entropy fwd.bwd 4096|k2s2 2x32|overheads"
    printed = output_of("kernels.py", "--quick", "--rivals", "eager", "--rows", rows, "--json", str(file))
    results = json.loads(file.read_text())
    assert list(results["rows"]) == [
        "max_pool2d k2s2 2x32x512x512",
        "gelu by hand, 16 M",
        "cross_entropy fwd+bwd 4096x4096",
    ]
    for name, row in results["rows"].items():
        line = next(line for line in printed.splitlines() if line.startswith(name))
        for column in ("same allocator", "as shipped"):
            (found,) = row[column].values()
            assert found["ratio"] > 0
            assert found["met"] == (found["ratio"] >= found["target"])
            assert f"{found['ratio']:.2f} (" in line
            assert f" / {found['target']:g} " in line
        assert row["burnt"]["ms"] > 0
    assert results["rows"]["gelu by hand, 16 M"]["share"]["target"] == 0.6
    assert results["rows"]["gelu by hand, 16 M"]["same allocator"]["eager"]["target"] == 6
    overheads = results["overheads"]
    assert overheads["first kernel, empty caches, s"]["target"] == 1
    assert overheads["first kernel, empty caches, after all imports, s"]["burnt"] > 0
    assert overheads["call on 16 elements, us"]["target"] == 12
    assert overheads["call on 16 elements, gradients wanted, us"]["eager"] > 0


@pytest.mark.full
def test_the_gpus_table_rehearsed() -> None:
    printed = output_of(
        "kernels.py",
        "--quick",
        "--table",
        "gpu",
        "--rivals",
        "torch,unfused",
        "--rows",
        "^layer_norm|embedding|14x14|matmul 2048",
    )
    for name in ("layer_norm ", "layer_norm fwd+bwd", "embedding ", "geometric mean"):
        assert f"\n{name}" in printed
    head, *lines = printed.splitlines()[1:]
    assert "own, x torch" in head
    matmul = next(line for line in lines if line.startswith("matmul 2048 "))
    assert " / 0.9 " in matmul  # of our own kernel, where the op takes the library's
    assert "generated" in matmul
    assert " / 1.3 " in next(line for line in lines if line.startswith("conv 14x14x256 "))


FAKE = """
import os, signal, sys, time, types
import kernel_table
from kernel_table import row_process

def measure_row(name, rivals, **setting):
    row = {"rivals": {}, "launched": [], "errors": {}, "product": False, "aims": {}, "whole": True}
    if name == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "hangs":
        time.sleep(60)
    if name == "raises":
        raise ValueError("no such row")
    if name == "breaks":
        row_process.broken = lambda: "CUDA error: an illegal memory access was encountered"
        return row | {"errors": {"burnt": "AcceleratorError: illegal"}}
    return row | {"seconds": 0.5, "bytes": 25e9, "rivals": {"torch": 2.0}, "host_us": 1.0, "pid": os.getpid()}

facts = {"device": "fake", "torch": "0", "copy_gb_s": 100.0}
# Without torch, which takes seconds to import.
kernel_table.gpu = types.ModuleType("gpu")
vars(kernel_table.gpu).update(facts=lambda **setting: facts, measure_row=measure_row)
row_process.broken, row_process._forget = lambda: None, lambda: None
row_process.serve()
"""


@pytest.mark.full
def test_a_row_that_breaks_its_process_costs_no_other_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu, row_process = module("gpu"), module("row_process")
    names = ["first", "second", "raises", "third", "breaks", "fourth", "dies", "fifth", "hangs", "sixth"]
    file, seen = tmp_path / "rows.json", []
    write = gpu.written

    def written(*args: Any) -> None:
        write(*args)
        seen.append(list(json.loads(file.read_text())["rows"]))

    monkeypatch.setattr(row_process, "COMMAND", (sys.executable, "-c", FAKE))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(gpu, "rows", lambda group=None: dict.fromkeys(names))
    monkeypatch.setattr(gpu, "written", written)
    kernels = importlib.import_module("kernels")
    arguments = ["--table", "gpu", "--quick", "--json", str(file), "--row-seconds", "8"]
    with pytest.raises(SystemExit, match="an op of burnt's failed"):
        kernels.main(arguments)
    assert seen == [names[: n + 1] for n in range(len(names))]
    rows = json.loads(file.read_text())["rows"]
    found = {name: row["errors"].get("burnt") for name, row in rows.items() if row["errors"]}
    assert found == {
        "raises": "ValueError: no such row",
        "breaks": "AcceleratorError: illegal",
        "dies": "its process ended with exit code -9",
        "hangs": "took longer than 8 s, and was stopped",
    }
    assert rows["breaks"]["broken"].startswith("CUDA error: an illegal memory access")
    pids = {name: row["pid"] for name, row in rows.items() if "pid" in row}
    # A process goes on after an error that leaves the device usable, and after no other.
    assert pids["first"] == pids["second"] == pids["third"]
    assert len(set(pids.values())) == 4
    assert rows["sixth"]["share"] == pytest.approx(0.5)
    shown = capsys.readouterr().out
    assert "\ndies: its process ended with exit code -9" in shown
    assert "2.00 / 1.5 ✓" in next(line for line in shown.splitlines() if line.startswith("geometric mean"))
    for pid in pids.values():
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_device_that_does_not_answer_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module("row_process"), "COMMAND", (sys.executable, "-c", "raise SystemExit(3)"))
    kernels = importlib.import_module("kernels")
    with pytest.raises(SystemExit, match="cpu cannot be measured: its process ended with exit code 3"):
        kernels.main(["--table", "gpu", "--quick"])


def test_what_became_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = module("row_process").broken

    def synchronize() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with ...")

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    assert broken() is None  # it is not in use
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert broken() == "CUDA error: an illegal memory access was encountered"
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert broken() is None


@pytest.mark.full
def test_without_its_rival_nothing_is_compiled_by_inductor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a half, of a pattern and within a time; what flex_attention is next to loses its rival."""
    kernels, file = importlib.import_module("kernels"), tmp_path / "rows.json"
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    common = ["--quick", "--table", "gpu", "--rivals", "torch,unfused,liger", "--json", str(file)]
    common += ["--rows", "softmax$|soft cap|^matmul 2048|sgd"]
    assert kernels.main([*common, "--group", "products", "--seconds", "500"]) == 0
    found = json.loads(file.read_text())["rows"]
    assert list(found) == [
        *(f"matmul 2048{backward}" for backward in ("", " fwd+bwd")),
        *(f"attention, soft cap next to flex_attention{backward}" for backward in ("", " fwd+bwd")),
        "sgd, momentum + clip, 50 M in 300 tensors",
    ]
    assert not any(row["inductor"] for row in found.values())
    rivals = [list(row["rivals"]) for row in found.values()]
    assert rivals == [["torch", "unfused"]] * 2 + [["unfused"]] * 2 + [["torch", "unfused"]]
    capsys.readouterr()
    assert kernels.main([*common, "--group", "memory", "--seconds", "0"]) == 0
    assert "left out for want of time: softmax, log_softmax" in capsys.readouterr().out


@pytest.mark.full  # Inductor takes its time
def test_whether_inductor_compiled_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    command = ["--quick", "--table", "gpu", "--json", str(file), "--rows", "^relu2$"]
    output_of("kernels.py", *command, "--rivals", "unfused,compile")
    assert json.loads(file.read_text())["rows"]["relu2"]["inductor"]


class Cuda:
    """As much of `torch.cuda` as taking time asks for; an event is as late as there were calls before it."""

    def __init__(self) -> None:
        self.calls = 0

    def event(self, enable_timing: bool) -> Any:
        event = SimpleNamespace(synchronize=lambda: None)
        event.record = lambda: setattr(event, "at", self.calls)
        event.elapsed_time = lambda end: 4.0 * (end.at - event.at)
        return event


def test_steps_of_a_gpu_are_timed_by_events(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, steps, cuda = module("gpu"), module("steps"), Cuda()

    def run() -> None:
        cuda.calls += 1

    def capture_graph(runs: Any) -> Any:
        raise AssertionError("a step is captured in a graph, where torch serves it")

    monkeypatch.setattr(gpu, "capture_graph", capture_graph)
    monkeypatch.setattr(torch.cuda, "Event", cuda.event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(steps, "runs", lambda *args: {"burnt": run, "torch": lambda: (run(), run())})
    row = gpu.measure_step(steps.ADAMW, ["torch"], torch.device("cuda"), 1, 3)
    assert row["errors"] == {}
    assert row["seconds"] == pytest.approx(4e-3)
    assert row["rivals"] == {"torch": pytest.approx(2.0)}
    assert row["launched"] == ["burnt", "torch"]


@pytest.mark.parametrize("after", [0, 4])
def test_a_step_that_torch_served_has_no_ratio(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first, or only once it is timed."""
    gpu, steps, foreach = (
        module("gpu"),
        module("steps"),
        importlib.import_module("burnt.kernels.optim.foreach"),
    )
    usual, calls = foreach._fallback_reason, itertools.count()
    reason = "a CUDA graph is captured"
    monkeypatch.setattr(
        foreach, "_fallback_reason", lambda *args: reason if next(calls) >= after else usual(*args)
    )
    row = gpu.measure_step(steps.SGD, ["torch", "unfused"], torch.device("cpu"), 5000, 2)
    assert "seconds" not in row
    assert row["rivals"] == {}
    assert row["errors"]["burnt"] == f"NotServedError: the step was served by torch: {reason}"
    assert gpu.line("sgd", row, ["torch"])[1] == "failed"
    cpu, report = module("cpu"), module("report")
    on_cpu = steps.measure(steps.SGD, cpu.Effort(rounds=2, seconds=0, least=2, divisor=5000))
    lines = report.step_lines({"steps": {"sgd": on_cpu}})
    assert lines[1] == ["sgd", f"the step was served by torch: {reason}", "-", "-"]


def test_the_list_of_what_was_not_run_on_a_gpu_is_up_to_date() -> None:
    folder = ROOT / "benchmarks" / "results"
    written = (folder / "gpu-not-run.md").read_text(encoding="utf-8")
    assert written == module("gpu_list").markdown(folder), "python benchmarks/kernels.py --list-gpu"


def test_what_was_run_on_a_gpu_is_not_in_the_list(tmp_path: Path) -> None:
    listed = module("gpu_list")

    def names() -> list[str]:
        return [line.split(" | ")[0].strip("| ") for line in listed.markdown(tmp_path).splitlines()[6:]]

    assert names() == [*module("gpu").rows(), listed.MEANS, listed.SWAP]
    assert (
        "| attention fwd+bwd | 0.8x torch, by our own candidate (the backward alone) | not run |"
        in listed.markdown(tmp_path)
    )
    rows = {name: {"seconds": 1.0} for name in ("softmax", "relu2")} | {"gelu": {"errors": {"burnt": "no"}}}
    results = {"quick": False, "rows": rows, "left_out": ["silu"]}
    document = {"asked_for": "cuda", "dry_run": False, "stages": {"memory": {"results": results}}}
    document["stages"]["swap"] = {"ok": True, "skipped": "transformers is not installed"}  # type: ignore[index]
    for change in ({"dry_run": True}, {"asked_for": "cpu"}, {}):
        (tmp_path / "device.json").write_text(json.dumps(document | change))
        left = set(names())
        assert ({"softmax", "relu2"} <= left) == bool(change)
        assert {"gelu", "silu", "softmax fwd+bwd", listed.MEANS, listed.SWAP} <= left
    del results["left_out"]
    document["stages"]["swap"] = {"results": {"quick": False, "rows": {"Llama 1B training": {}}}}  # type: ignore[index]
    (tmp_path / "device.json").write_text(json.dumps(document))
    assert not {listed.MEANS, listed.SWAP} & set(names())


def test_a_row_of_a_gpu_that_has_no_result_of_ours_is_reported() -> None:
    gpu = module("gpu")
    row = {"rivals": {"torch": 1.25}, "seconds": 1e-3, "launched": [], "errors": {}, "aims": {"own": 0.9}}
    row["own"] = {"candidate": 'flash {"BLOCK": 1}', "ratio": 0.85}
    reported = gpu.line("attention", row, ["torch", "liger"])
    assert reported == ["attention", "1.000", "-", "1.25", "-", "0.85 / 0.9 ✗ flash", "-", "-"]
    forward = {"ratio": 1.0, "seconds": 2.0, "torch_seconds": 2.0}
    both = {"ratio": 0.75, "seconds": 8.0, "torch_seconds": 6.5}
    row["own"] |= {"backward": gpu.backward_alone(forward, both)}
    assert gpu.line("attention fwd+bwd", row, [])[3] == "0.85, bwd 0.75 / 0.9 ✗ flash"
    assert gpu.backward_alone(forward, {}) is gpu.backward_alone(both, forward) is None
    row["own"] = {"candidate": "flash", "ratio": None}  # it could not be timed
    row["errors"]["own"] = "OutOfResources: shared memory"
    assert gpu.line("attention", row, ["torch"])[-3] == "OutOfResources: shar"
    assert gpu.line("attention", {"errors": {}}, ["torch"])[1] == "failed"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--quick", "--save"], "ratios of --quick say nothing"),
        (["--rivals", "liger"], "there are eager, inductor"),
    ],
)
def test_what_says_nothing_is_refused(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "benchmarks" / "kernels.py"))["main"](options)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


# --- rows


def test_inputs_are_the_same_in_every_process_and_smaller_when_quick() -> None:
    row = module("rows").find("cross_entropy fwd+bwd 512x32000")
    first, again = row.inputs(32), row.inputs(32)
    assert [tuple(t.shape) for t in first] == [(16, 32_000), (16,)]
    assert first[0].requires_grad
    assert first[1].max() < 32_000
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a, b)


def test_a_rivals_process_has_no_burnt() -> None:
    code = "import sys; from kernel_table import rows, clock, rival; print('burnt' in sys.modules)"
    done = forked.run(code, cwd=ROOT / "benchmarks")
    assert done.stdout == "False\n", done.stderr


def test_a_rival_that_fails_ends_the_run() -> None:
    sibling = module("rival").Sibling(1)
    try:
        with pytest.raises(SystemExit, match=r"a rival failed at .*StopIteration"):
            sibling.prepare("no such row", 32, "eager")
    finally:
        sibling.close()


def test_rivals_that_compute_something_else_are_found() -> None:
    cpu, row = module("cpu"), module("rows").find("gelu by hand, 16 M")
    right, wrong = [torch.ones(3)], [torch.tensor([1.0, 1.0, 1.1])]
    cpu.check(row, {"burnt": lambda: right, "eager": lambda: right})
    with pytest.raises(SystemExit, match="gelu by hand, 16 M: eager and burnt compute different things"):
        cpu.check(row, {"burnt": lambda: right, "eager": lambda: wrong})


# --- our own candidates


def test_every_op_of_a_row_has_candidates_of_its_own_or_one_beneath() -> None:
    from burnt import kernels

    rows = [row for row in module("rows").ROWS if row.op is not None]
    lacking = [row.name for row in rows if (row.beneath or row.op)[0] not in kernels.OPS]
    assert lacking == ["batch_norm + relu fwd+bwd 16x64x56x56"]  # its op has no other choice than ours


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("softmax fwd+bwd 4096x1024", "generated"),
        ("attention, causal fwd+bwd 2x12x512x64", "generated"),
        ("lstm fwd+bwd 16x128x256", "steps"),
    ],
)
def test_our_own_candidate_is_found_and_computes_the_same(
    name: str, ours: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from burnt.kernels.dispatch.op import Entry
    from burnt.kernels.interface.candidate import OPS

    cpu, clock, row = module("cpu"), module("clock"), module("rows").find(name)
    op = OPS[(row.beneath or row.op)[0]]
    library = op.candidates["library"]
    monkeypatch.setattr(op, "chosen", lambda *args: Entry(library, False, library, None, "for the test", ""))
    inputs = row.inputs(32)
    own = cpu.own_candidate(row, inputs)
    assert (own.chosen, own.candidate) == ("library", ours)
    fns = {"burnt": functools.partial(cpu.own_call(row), own), "eager": row.fn}
    cpu.check(row, {name: clock.runner(fn, inputs, row.backward) for name, fn in fns.items()})


def test_where_ours_is_chosen_nothing_else_is_timed() -> None:
    row = module("rows").find("var, last axis, 4096x1024")
    own = module("cpu").own_candidate(row, row.inputs(8))
    assert (own.chosen, own.candidate) == ("generated", None)


def test_picked_candidates_are_timed_next_to_torch() -> None:
    gpu = module("gpu")
    family, _ = gpu.rows()["matmul 2048"]
    row = gpu.measure(family, False, ["torch"], torch.device("cpu"), 1024, 2, picks=[None])
    assert row["errors"] == {}
    assert row["own"]["candidate"] == "null"
    assert row["own"]["seconds"] == row["seconds"] == row["candidates"]["null"]
    assert row["rivals"]["torch"] == row["own"]["ratio"] == row["own"]["torch_seconds"] / row["seconds"]


def test_our_own_is_listed_beside_the_rivals() -> None:
    cpu, report, sample = module("cpu"), module("report"), module("clock").Sample
    same = module("rows").SAME
    samples = {(same, n): [sample(s, True)] * 5 for n, s in (("burnt", 0.01), ("eager", 0.02), ("own", 0.04))}
    samples[same, "copy"] = samples[same, "burnt"]
    row = cpu.summary(module("rows").find("softmax fwd+bwd 4096x1024"), "", samples, 1, 1)
    assert list(row[same]) == ["eager"]
    assert row["own"] == {"ms": 40.0, "calm": 5, "ratio": 0.5, "quartiles": [0.5, 0.5]}
    measured = results()
    assert "own" not in report.markdown(measured).lower()  # as files have it that are older than the column
    measured["rows"]["a & b"]["own"] = row["own"] | {"candidate": "tiled", "plain": False}
    text = report.markdown(measured)
    assert "| of copy | own, x eager |" in text
    assert "| 50% / 60% ✗ | 0.50 (0.50-0.50) tiled |" in text
    bars = ElementTree.fromstring(report.picture(measured))
    assert sum(bar.get("fill") == "#a8a8a8" for bar in bars) == 2  # its bar, and the legend's
    del measured["rows"]["a & b"]["own"]["ratio"]  # eager was not among the rivals
    assert "| 40 ms tiled |" in report.markdown(measured)


# --- samples and figures


def test_bytes_are_those_of_inputs_and_outputs() -> None:
    cpu, find = module("cpu"), module("rows").find
    assert cpu.moved(find("gelu by hand, 16 M"), 1) == 2 * 4 * 2**24
    assert cpu.moved(find("max_pool2d k2s2 2x32x512x512"), 1) == 4 * (2 * 32 * 512 * 512) * 5 // 4
    # Forward reads x and writes y; backward reads x and y's gradient, and writes x's.
    assert cpu.moved(find("softmax fwd+bwd 4096x1024"), 1) == 5 * 4 * 4096 * 1024


def test_disturbed_samples_are_dropped_while_enough_are_left() -> None:
    cpu, sample = module("cpu"), module("clock").Sample
    calm = [sample(1.0, True)] * 5
    assert cpu.calm_median([*calm, *[sample(9.0, False)] * 20]) == 1.0
    assert cpu.calm_median([*calm[1:], *[sample(9.0, False)] * 20]) == 9.0


def test_a_sample_in_which_time_was_taken_is_not_calm(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = module("clock")
    ticks = iter([5, 5, 5, 6])
    monkeypatch.setattr(clock, "stolen", lambda: next(ticks))
    monkeypatch.setattr(clock, "_SWITCHES", float("inf"))
    assert clock.sample(lambda: None, 3).calm
    assert not clock.sample(lambda: None, 3).calm


def test_summary_gives_ratios_of_medians_beside_their_targets() -> None:
    cpu, rows, sample = module("cpu"), module("rows"), module("clock").Sample

    def taken(*seconds: float) -> list[Any]:
        return [sample(s, True) for s in seconds]

    samples = {
        (rows.SAME, "burnt"): taken(0.010, 0.011, 0.010, 0.012, 0.010),
        (rows.SAME, "eager"): taken(0.060, 0.061, 0.062, 0.090, 0.060),
        (rows.SAME, "copy"): taken(0.005, 0.005, 0.005, 0.005, 0.005),
        (rows.SHIPPED, "eager"): taken(0.190, 0.190, 0.190, 0.190, 0.190),
    }
    row = rows.find("gelu by hand, 16 M")
    result = cpu.summary(row, "burnt.fuse", samples, bytes_moved=1000, copied=1000)
    same, shipped = result[rows.SAME]["eager"], result[rows.SHIPPED]["eager"]
    assert same["ratio"] == pytest.approx(6.1)
    assert (same["target"], same["met"], shipped["target"], shipped["met"]) == (6, True, 20, False)
    assert result["share"] == {"ratio": pytest.approx(0.5), "target": 0.6, "met": False}
    assert result["burnt"]["ms"] == pytest.approx(10)
    # A row without a target of its own may still not be slower than eager, if that takes long enough.
    other, clone = rows.find("logsumexp 4096x1024"), rows.find("clone, 64 MB")
    assert cpu.summary(other, "", samples, 1, 1)[rows.SAME]["eager"]["target"] == 0.97
    assert cpu.summary(other, "", samples, 1, 1)[rows.SHIPPED]["eager"]["target"] is None
    assert cpu.summary(clone, "", samples, 1, 1)[rows.SAME]["eager"]["target"] is None  # torch, on both sides
    samples = {place: [sample(s.seconds / 1000, True) for s in taken] for place, taken in samples.items()}
    assert cpu.summary(other, "", samples, 1, 1)[rows.SAME]["eager"]["target"] is None


# --- what is written


def results() -> dict[str, Any]:
    def found(ratio: float, target: float | None) -> dict[str, Any]:
        met = None if target is None else ratio >= target
        return {"ratio": ratio, "quartiles": [ratio, ratio], "target": target, "met": met, "calm": 9}

    row = {
        "burnt": {"ms": 1.5, "calm": 9, "rounds": 9, "quartiles": [1.4, 1.6]},
        "same allocator": {"eager": found(8.0, 6), "inductor": found(0.5, 1.05)},
        "as shipped": {"eager": found(20.0, None), "inductor": found(3.0, 4)},
        "share": {"ratio": 0.5, "target": 0.6, "met": False},
    }
    overhead = {"burnt": 9.0, "eager": 4.0, "target": 12, "met": True}
    return {
        "machine": {"cpu": "one"},
        "rivals": ["eager", "inductor"],
        "rows": {"a & b": row},
        "overheads": {"call, us": overhead},
    }


def test_the_written_table_has_every_figure() -> None:
    text = module("report").markdown(results())
    assert (
        "| a & b | 1.5 | 8.00 (8.00-8.00) / 6 ✓ | 0.50 (0.50-0.50) / 1.05 ✗ | 20.00 (20.00-20.00) |" in text
    )
    assert "| 3.00 (3.00-3.00) / 4 ✗ | 50% / 60% ✗ |" in text
    assert "| call, us | 9.00 | 12 ✓ | 4.0 | - |" in text


def test_the_picture_is_drawn_to_scale() -> None:
    drawn = ElementTree.fromstring(module("report").picture(results()))
    bars = [r for r in drawn if r.tag.endswith("rect") and r.get("height") == "9" and r.get("y") != "10"]
    above, below = (float(bar.get("width", "")) for bar in bars)
    assert above == pytest.approx(3 * below, rel=0.01)  # 8 is three doublings, one half is one
    assert "a & b" in [text.text for text in drawn]


def test_saving_and_checking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kernels, measured = importlib.import_module("kernels"), results()
    monkeypatch.setattr(kernels, "RESULTS", tmp_path)
    monkeypatch.setattr(kernels, "cpu_table", lambda options: measured)
    with pytest.raises(SystemExit):
        kernels.main(["--check"])
    assert "cpu-kernels.json to compare with: --save writes it" in capsys.readouterr().err
    assert kernels.main(["--save"]) == 0
    assert {file.suffix for file in tmp_path.iterdir()} == {".json", ".md", ".svg"}
    assert kernels.main(["--check"]) == 0
    measured["rows"]["a & b"]["as shipped"]["inductor"]["ratio"] = 2.0
    measured["machine"] = {"cpu": "another"}
    capsys.readouterr()
    assert kernels.main(["--check", "--save"]) == 1
    reported = capsys.readouterr()
    assert reported.out.endswith("worse than it was:\n  a & b: 2.00 x inductor, as shipped; it was 3.00\n")
    assert reported.err == "compared with another machine or versions: cpu one\n"
    assert json.loads((tmp_path / "cpu-kernels.json").read_text())["machine"] == {"cpu": "one"}


def test_a_ratio_that_fell_is_named() -> None:
    report, before, now = module("report"), results(), copy.deepcopy(results())
    assert report.worse(now, before) == []
    now["rows"]["a & b"]["same allocator"]["eager"]["ratio"] = 6.5
    assert report.worse(now, before) == []
    now["rows"]["a & b"]["same allocator"]["eager"]["ratio"] = 6.3
    assert report.worse(now, before) == ["a & b: 6.30 x eager, same allocator; it was 8.00"]
    now["rows"]["a & b"]["burnt"]["ms"] = 100  # seconds say nothing
    now["rows"]["new"] = now["rows"].pop("a & b")
    assert report.worse(now, before) == []
