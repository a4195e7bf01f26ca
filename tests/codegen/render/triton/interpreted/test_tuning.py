"""Block sizes as configs: all compute the same results; the tuner from candidates to a choice."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from burnt import kernels
from burnt.cli import main
from burnt.codegen.function import Function
from burnt.codegen.render.triton.kernel import structure_of
from burnt.codegen.render.triton.tile_config import Limits, neighbouring_configs, why_too_large
from burnt.codegen.runtime import triton_compile_pool
from burnt.codegen.runtime.triton_backend import TRITON, with_block_sizes
from burnt.kernels.autotune import database, timers
from burnt.kernels.autotune.database import TuningDatabase
from burnt.kernels.autotune.tuner import tune
from burnt.kernels.interface import tuning_key

H200 = Limits(132, shared_memory=227 << 10)


def rms_norm(x, r, w):
    s = x + r
    return s * torch.rsqrt((s * s).mean(-1, keepdim=True) + 1e-6) * w, s


CASES = {
    "softmax": (lambda x: torch.softmax(x, -1), (9, 200)),
    "rms_norm": (rms_norm, (6, 100), (6, 100), (100,)),
    "columns": (lambda x: x.sum(0), (300, 17)),
    "transposed": (lambda x, y: x.t() + y, (40, 24), (24, 40)),
    "all": (lambda x: (x * x).sum(), (9000,)),
    "cumsum": (lambda x: x.cumsum(-1), (3, 150)),
    "cross_entropy": (lambda x: F.log_softmax(x, -1)[:, 3].mean(), (7, 130)),
}


@pytest.mark.parametrize("name", CASES)
def test_all_block_sizes_compute_the_same(name: str) -> None:
    fn, *shapes = CASES[name]
    source = torch.Generator().manual_seed(0)
    args = [torch.randn(s, generator=source).requires_grad_() for s in shapes]
    exact = _results(fn, [a.detach().double().requires_grad_() for a in args])
    fused = Function(fn, target=TRITON)
    tried = 0
    _results(fused, args)
    plan = fused.plan(*args)
    assert plan is not None
    result = [
        *plan.kernels,
        *(k for b in plan.backward_plans.values() if b is not None for k in b.plan.kernels),
    ]
    for kernel in result:
        form = structure_of(kernel)
        for blocks in neighbouring_configs(form)[1::3]:
            sized = fused.on(with_block_sizes({kernel.name: str(blocks)}))
            found = _results(sized, args)
            known = sized.plan(*args)
            assert known is not None
            built = [known, *(b.plan for b in known.backward_plans.values() if b is not None)]
            assert len(built) == 2
            assert {id(p.target) for p in built} == {id(sized.target)}
            for ours, theirs in zip(found, exact, strict=True):
                torch.testing.assert_close(
                    ours.double(), theirs, atol=1e-4, rtol=1e-4, msg=f"{kernel.name} {blocks}"
                )
            tried += 1
    assert tried > 3


def _results(fn: Any, args: list[torch.Tensor]) -> list[torch.Tensor]:
    result = fn(*args)
    results = result if isinstance(result, tuple) else (result,)
    return [*(r.detach() for r in results), *torch.autograd.grad([r.sum() for r in results], args)]


class Clock(timers.Clock):
    """Says that a block of 64 columns is the best for the forward, two warps for the backward."""

    def now(self) -> float:
        return 0.0

    def sampler(self, call: Any, inputs: Any) -> Any:
        (inner,) = call.args
        config = getattr(inner, "target", None)
        blocks = (
            config.build.keywords.get("blocks", {})
            if config is not None and hasattr(config.build, "keywords")
            else {}
        )
        ms = 1.0 if isinstance(inner, Function) else 2.0
        for name, text in blocks.items():
            better = " w2" in text if "backward" in name else "x64 " in text
            ms -= 0.1 if better else -0.1
        return lambda turn: ms * 1e-3


@pytest.fixture
def op(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("BURNT_CACHE", str(tmp_path / "cache"))
    # As if the CPU were a GPU.
    for module in ("burnt.kernels.dispatch.generated", "burnt.codegen.function"):
        monkeypatch.setattr(sys.modules[module], "target_of", lambda device: TRITON)
    monkeypatch.setattr(triton_compile_pool, "limits_of", lambda device: H200)

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * 2, -1)

    result = kernels.op(scaled)
    yield result
    kernels.pin({})


def test_tuning_end_to_end(op: Any) -> None:
    x = torch.randn(8, 128, requires_grad=True)
    alternatives = op.candidates["generated"].alternatives([x])
    assert alternatives[0].config is None
    names = {name for a in alternatives[1:] for name in a.config}
    assert names == {"scaled_0", "scaled_backward_0"}
    # The nearest first, of all kernels in turns.
    assert [next(iter(a.config)) for a in alternatives[1:5]] == ["scaled_0", "scaled_backward_0"] * 2
    rows = {row.config: row for row in tune(op, [x], "full", clock=Clock())}
    left_out = [a for a in alternatives if a.skip_reason]
    assert {row.note for row in rows.values() if row.status == "pruned"} == {a.skip_reason for a in left_out}
    assert {row.status for row in rows.values()} <= {"ok", "pruned"}
    both = [row for name, row in rows.items() if name.count('"scaled') == 2]
    assert len(both) == 1  # the best of each kernel, together
    assert both[0].ms == pytest.approx(0.8)
    entry = op.chosen(x)
    assert entry.why.startswith("measured before")
    assert "x64 " in entry.config["scaled_0"]
    assert " w2" in entry.config["scaled_backward_0"]
    torch.testing.assert_close(op(x), torch.softmax(x * 2, -1))
    assert kernels.explain(op, x).winner == both[0].config
    # A checkpoint keeps it, whatever the table says later.
    noted = {k: v for k, v in kernels.choices().items() if k.startswith("scaled|")}
    assert set(noted.values()) == {both[0].config}
    TuningDatabase().clear()
    op.forget()
    assert op.chosen(x).why == "heuristic"
    kernels.pin(noted)
    assert (op.chosen(x).why, op.chosen(x).config) == ("pinned", entry.config)
    torch.testing.assert_close(op(x), torch.softmax(x * 2, -1))


def test_a_table_from_another_machine_of_the_same_name(
    op: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """A table that was measured there and exported into the package is used here without measuring."""
    gpu = "cuda NVIDIA Imaginary 9000 sm_90, triton 3.6"
    monkeypatch.setattr(tuning_key, "machine_name", lambda kind, index=0: gpu)
    x = torch.randn(8, 128, requires_grad=True)
    tune(op, [x], "full", clock=Clock())
    found = op.chosen(x)
    assert main(["tune", "export", str(tmp_path / "imaginary.json"), "--device", "cpu"]) == 0
    TuningDatabase().clear()
    monkeypatch.setattr(database, "_TABLES", tmp_path)
    database.shipped_rows.cache_clear()
    request.addfinalizer(database.shipped_rows.cache_clear)
    op.forget()
    assert op.chosen(x).config == found.config
    assert op.chosen(x).why.startswith("measured before")
    torch.testing.assert_close(op(x), torch.softmax(x * 2, -1))
    with kernels.tuning("off"):
        assert op.chosen(x).why == "heuristic"
    monkeypatch.setattr(tuning_key, "machine_name", lambda kind, index=0: gpu.replace("9000", "9001"))
    op.forget()
    assert op.chosen(x).why == "heuristic"


def test_invalid_block_sizes_are_ignored(op: Any) -> None:
    x = torch.randn(8, 128)
    key = op.chosen(x).key
    for text in (
        'generated {"scaled_0": "3x7 w4"}',
        'generated {"BLOCK": 8}',
        'generated {"scaled',
        "generated x",
    ):
        kernels.pin({key: text})
        assert op.chosen(x).why == "heuristic"
    kernels.pin({key: 'generated {"scaled_0": "1x32 w2"}'})
    assert op.chosen(x).why == "pinned"


def test_quick_mode_tries_few(op: Any) -> None:
    x = torch.randn(8, 128)
    rows = [row for row in tune(op, [x], "quick", clock=Clock()) if row.status != "pruned"]
    assert 6 < len(rows) <= 14
    assert "quick" not in {row.note for row in rows}


def test_known_results_are_not_measured_again(op: Any) -> None:
    x = torch.randn(8, 128)
    rows = tune(op, [x], "quick", clock=Clock())
    again = tune(op, [x], "quick", clock=Clock(), known=rows)
    assert {row.status for row in again} <= {"pruned"}


def test_selected_configs_are_not_too_large() -> None:
    for fn, *shapes in CASES.values():
        plan = Function(fn, target=TRITON).plan(*[torch.randn(s) for s in shapes])
        assert plan is not None
        for kernel in plan.kernels:
            form = structure_of(kernel)
            assert why_too_large(form, neighbouring_configs(form)[0], H200) is None
