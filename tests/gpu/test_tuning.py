"""The tuner on a GPU: its clock, compiling elsewhere, block sizes of the ops, forward and with gradients.

`pytest tests/gpu/test_tuning.py --device cpu` rehearses what needs no CUDA with the candidates of a CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from burnt import kernels
from burnt.kernels.autotune.database import TuningDatabase
from burnt.kernels.autotune.timers import EventClock, GraphClock, NotCapturedError
from burnt.kernels.autotune.tuner import make_input_sets, tune
from burnt.kernels.dispatch.generated import Generated

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("BURNT_CACHE", str(tmp_path / "cache"))
    yield
    for op in kernels.OPS.values():
        op.forget()


@pytest.fixture
def cuda(device: torch.device) -> torch.device:
    if device.type != "cuda":
        pytest.skip("graphs, events and block sizes are a GPU's")
    return device


def copies(megabytes: int, device: torch.device) -> list[list[torch.Tensor]]:
    return [[torch.ones(megabytes << 18, device=device) for _ in range(2)] for _ in range(2)]


def test_clocks_agree_where_launches_take_no_time(cuda: torch.device) -> None:
    clocks = GraphClock(), EventClock()
    small, large = (
        [clock.sampler(lambda given: given[0].copy_(given[1]), copies(size, cuda)) for clock in clocks]
        for size in (128, 512)
    )
    times = [[min(sample(turn) for turn in range(5)) for sample in samples] for samples in (small, large)]
    print([f"{(2 * size << 20) / min(t) / 1e9:.0f} GB/s" for size, t in zip((128, 512), times, strict=True)])
    for short, long in zip(*times, strict=True):
        assert 3 < long / short < 5
    for graphs, events in times:
        assert 0.8 < graphs / events < 1.25


def test_a_graph_shows_no_host_time(cuda: torch.device) -> None:
    inputs = [[torch.ones(16, device=cuda)] for _ in range(4)]
    graphs, events = (c.sampler(lambda given: given[0] + 1, inputs) for c in (GraphClock(), EventClock()))
    assert min(graphs(turn) for turn in range(5)) < min(events(turn) for turn in range(5))


@pytest.mark.parametrize(
    "waits", [lambda x: x.sum().item(), lambda x: torch.cuda.synchronize()], ids=["item", "all"]
)
def test_what_waits_is_not_captured_and_torch_goes_on(cuda: torch.device, waits: Any) -> None:
    before = torch.cuda.current_stream()
    for _ in range(2):
        with pytest.raises(NotCapturedError):
            GraphClock().sampler(lambda given: waits(given[0]), [[torch.ones(16, device=cuda)]])
    assert torch.cuda.current_stream() == before
    assert torch.randn(1000, device=cuda).std() > 0.5
    dropped = GraphClock().sampler(
        lambda given: torch.dropout(given[0], 0.5, True), [[torch.ones(16, device=cuda)]]
    )
    assert dropped(0) > 0


CALLS = {
    "softmax": lambda like: (like(512, 4096), -1, None),
    "layer_norm": lambda like: (like(512, 4096), like(4096), like(4096), 1e-5, None, None),
    "reduce_sum": lambda like: (like(4096, 512), (0,), False, None),
    "gelu": lambda like: (like(512, 4096), "none"),
    "dropout": lambda like: (like(512, 4096), 0.1, True),
}


@pytest.mark.parametrize("gradients", [False, True], ids=["forward", "training"])
@pytest.mark.parametrize("name", CALLS)
def test_ops_are_tuned(name: str, gradients: bool, device: torch.device) -> None:
    def like(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device, dtype=torch.bfloat16).requires_grad_(gradients)

    op, args = kernels.OPS[name], CALLS[name](like)
    rows = tune(op, args, "quick")
    print(*[f"{r.config}: {r.status} {r.ms} {r.note}" for r in rows if r.status != "pruned"], sep="\n")
    assert {row.status for row in rows} <= {"ok", "pruned"}
    timed = [row.config for row in rows if row.status == "ok"]
    assert {"library", "generated"} <= set(timed)
    if device.type == "cuda":
        assert len(timed) > 4
    best = min((row for row in TuningDatabase().rows() if row.ms is not None), key=lambda row: row.ms or 0)
    op.forget()
    assert kernels.explain(op, *args).winner == best.config
    result = op(*args)
    assert result.shape == op.candidates["library"](*args).shape


def test_a_launch_finds_what_other_processes_compiled(cuda: torch.device) -> None:
    import triton

    op, args = kernels.softmax, (torch.randn(300, 777, device=cuda, dtype=torch.float16), -1, None)
    generated = op.candidates["generated"]
    assert isinstance(generated, Generated)
    alternatives = [a.config for a in generated.alternatives(args) if a.skip_reason is None][1:5]
    assert alternatives
    for config in alternatives:
        future = generated.start_compiling(config, args)
        assert future is not None
        future.result(120)
    hits: list[bool] = []
    triton.knobs.compilation.listener = lambda *, cache_hit, **_: hits.append(cache_hit)
    try:
        for config in alternatives:
            torch.testing.assert_close(
                generated.bind_config(args, config)(*args), torch.softmax(args[0], -1), atol=2e-3, rtol=2e-3
            )
    finally:
        triton.knobs.compilation.listener = None
    assert hits
    assert all(hits)


def test_inputs_are_more_than_the_cache_holds(cuda: torch.device) -> None:
    x = torch.randn(1 << 22, device=cuda)
    cache = torch.cuda.get_device_properties(cuda).L2_cache_size
    sets = make_input_sets([x])
    assert sum(given[0].nbytes for given in sets) >= min(2 * cache, 32 * x.nbytes)
    assert all(torch.equal(given[0], x) for given in sets)
