"""How candidates are measured, by a clock that is told what to say: who is sampled when, who drops out."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from burnt import kernels
from burnt.errors import CompileError
from burnt.kernels.autotune import timers, tuner
from burnt.kernels.autotune.database import Row, TuningDatabase
from burnt.kernels.autotune.timers import NotCapturedError
from burnt.kernels.autotune.tuner import make_input_sets, tune
from burnt.kernels.dispatch.op import Op
from burnt.kernels.interface.candidate import Alternative, Candidate
from burnt.kernels.interface.tuning_key import tuning_key

COSTS: dict[str, Any] = {"library": 2.0}


class Clock(timers.Clock):
    """Takes what `COSTS` says for a call; notes who was sampled, and with which inputs first."""

    def __init__(self, cost: float = 0.01) -> None:
        self.seconds = 0.0
        self.cost = cost  # of a sample
        self.log: list[tuple[str, int]] = []
        self.inputs: Sequence[Any] = ()

    def now(self) -> float:
        return self.seconds

    def sampler(self, call: Any, inputs: Any) -> Any:
        self.inputs = inputs
        name = _name(call)

        def sample(turn: int) -> float:
            self.seconds += self.cost
            self.log.append((name, turn))
            return _cost(name)

        return sample


def _cost(name: str) -> float:
    cost = COSTS.get(name, 1.0)
    return (cost if isinstance(cost, float) else next(cost)) * 1e-3


def _name(call: Any) -> str:
    (inner,) = call.args
    return str(inner.marked if hasattr(inner, "marked") else inner.keywords["config"]["k"])


@pytest.fixture(autouse=True)
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BURNT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def op() -> Op[..., Any]:
    def raced(x: Tensor) -> Tensor:
        return x + x + x

    raced.marked = "library"  # type: ignore[attr-defined]
    result = kernels.op(raced)
    result.discard("generated")
    return result


def entered(op: Op[..., Any], name: str, costs: Any) -> None:
    def call(x: Tensor) -> Tensor:
        return x * 3

    call.marked = name  # type: ignore[attr-defined]
    COSTS[name] = costs
    op.candidate(name)(call)


def sampled(clock: Clock) -> list[str]:
    return [name for name, _ in clock.log]


def test_candidates_take_turns_and_inputs_are_rotated(op: Op[..., Any]) -> None:
    entered(op, "a", 1.0)
    entered(op, "b", 1.5)
    clock = Clock()
    rows = tune(op, (torch.randn(64),), clock=clock)
    assert sampled(clock) == ["library", "a", "b"] * 7
    assert [turn for _, turn in clock.log] == [t for t in range(7) for _ in range(3)]
    assert {row.config: row.ms for row in rows} == {"library": 2.0, "a": 1.0, "b": 1.5}
    assert len(clock.inputs) == 8
    assert len({given[0].data_ptr() for given in clock.inputs}) == 8


def test_who_is_far_behind_drops_out(op: Op[..., Any]) -> None:
    entered(op, "slow", 3.5)
    entered(op, "late", 2.9)
    entered(op, "fast", 1.0)
    clock = Clock()
    rows = tune(op, (torch.randn(64),), clock=clock)
    names = sampled(clock)
    assert names.count("slow") == 1
    assert names.count("late") == names.count("fast") == 7
    assert {row.config: row.ms for row in rows}["slow"] == 3.5  # what was seen of it is kept


def test_samples_that_scatter_are_taken_again_and_marked(op: Op[..., Any]) -> None:
    entered(op, "calm", itertools.cycle((1.0, 1.1)))
    entered(op, "restless", itertools.cycle((1.0, 2.0)))
    clock = Clock()
    rows = {row.config: row.note for row in tune(op, (torch.randn(64),), clock=clock)}
    assert rows == {"library": "", "calm": "", "restless": "disturbed: samples differ by 67%"}
    assert sampled(clock) == ["library", "calm", "restless"] * 14
    # Once it has calmed down no more are taken.
    entered(op, "restless", itertools.chain((1.0, 2.0), itertools.repeat(1.0)))
    clock = Clock()
    tune(op, (torch.randn(64),), clock=clock)
    assert sampled(clock) == ["library", "calm", "restless"] * 7


def test_time_is_limited(op: Op[..., Any]) -> None:
    entered(op, "a", 1.0)
    clock = Clock(cost=0.6)
    tune(op, (torch.randn(64),), clock=clock)
    assert len(clock.log) == 4  # 2 seconds, and the turn is taken to its end
    clock = Clock(cost=0.6)
    tune(op, (torch.randn(64),), "full", clock=clock)
    assert len(clock.log) == 50


class Tiled(Candidate):
    """One with configurations that are compiled elsewhere, and that may be combined."""

    def __init__(
        self, ks: dict[int, Future[None] | None], left_out: Sequence[int] = (), risky: Sequence[int] = ()
    ) -> None:
        super().__init__("tiled", lambda x, config: x * 3, differentiable=True)
        self.ks, self.left_out, self.risky = ks, left_out, risky
        self.asked: list[int] = []
        self.further: dict[str, Any] | None = None

    def alternatives(self, args: Sequence[Any]) -> list[Alternative]:
        found = [Alternative({"k": k}, is_risky=k in self.risky) for k in self.ks]
        return found + [Alternative({"k": k}, "too large") for k in self.left_out]

    def start_compiling(self, config: Any, args: Sequence[Any]) -> Future[None] | None:
        self.asked.append(config["k"])
        return self.ks.get(config["k"])

    def suggest_config(self, timed: Any) -> dict[str, Any] | None:
        self.timed = timed
        return self.further


def done(error: Exception | None = None) -> Future[None]:
    result: Future[None] = Future()
    if error is None:
        result.set_result(None)
    else:
        result.set_exception(error)
    return result


def test_what_is_ready_is_measured_while_the_rest_is_compiled(op: Op[..., Any]) -> None:
    late: Future[None] = Future()
    op.candidates["tiled"] = tiled = Tiled(
        {1: late, 2: done(), 3: done(CompileError("no", found="ptxas"))}, [8]
    )
    COSTS.update({"1": 0.5, "2": 1.0})

    class Watching(Clock):
        def sampler(self, call: Any, inputs: Any) -> Any:
            if _name(call) == "2":  # it comes before the one that is not compiled yet
                threading.Timer(0.05, late.set_result, [None]).start()
            return super().sampler(call, inputs)

    clock = Watching()
    rows = {row.config: row for row in tune(op, (torch.randn(64),), clock=clock)}
    assert tiled.asked == [1, 2, 3]  # all at once, before anything is timed
    # Each is timed next to the best so far when it comes, and all in turns in the end.
    assert sampled(clock)[:4] == ["library", "2", "2", "1"]
    assert sampled(clock)[4:7] == ["2", "1", "2"]  # the library's is far behind by now
    assert rows['tiled {"k": 1}'].ms == 0.5
    assert rows['tiled {"k": 3}'].status == "failed"
    assert "ptxas" in rows['tiled {"k": 3}'].note
    assert rows['tiled {"k": 8}']._replace(at=0.0) == Row(
        tuning_key(op, (torch.randn(64),)), 'tiled {"k": 8}', "pruned", None, "too large"
    )
    kept = {row.config for row in TuningDatabase().rows()}
    assert 'tiled {"k": 8}' not in kept
    assert 'tiled {"k": 3}' in kept


def test_what_is_risky_is_measured_after_everything_else_and_by_itself(op: Op[..., Any]) -> None:
    ready: dict[int, Future[None] | None] = {1: done(), 2: done(), 3: done(), 4: done()}
    op.candidates["tiled"] = tiled = Tiled(ready, risky=[1, 3])
    entered(op, "last", 1.0)
    COSTS.update(dict.fromkeys("1234", 1.0))
    clock = Clock()
    asked: list[tuple[int, int]] = []
    tiled.start_compiling = lambda config, args: (asked.append((config["k"], len(clock.log))), done())[1]  # type: ignore[method-assign]
    rows = {row.config: row.status for row in tune(op, (torch.randn(64),), clock=clock)}
    assert list(rows.values()) == ["ok"] * 6
    names = sampled(clock)
    begin = names.index("1")
    assert set(names[:begin]) == {"library", "last", "2", "4"}
    assert names[:begin].count("last") >= 7  # all of their turns
    assert names.index("3") > begin
    # Not even compiled before, and one at a time.
    assert [k for k, _ in asked] == [2, 4, 1, 3]
    assert [samples >= begin - 1 for _, samples in asked] == [False, False, True, True]
    assert asked[2][1] < asked[3][1]
    assert sampled(clock)[-6:].count("3") == 1  # then they take turns with the others


def test_what_was_measured_is_kept_where_something_risky_breaks_the_device(
    op: Op[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(x: Tensor, config: dict[str, int]) -> Tensor:
        if config["k"] == 1:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return x * 3

    op.candidates["tiled"] = tiled = Tiled({1: done(), 2: done()}, risky=[1])
    tiled.call = call
    COSTS.update({"1": 1.0, "2": 1.0})

    def refuse(args: Any) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(tuner, "_raise_if_device_broken", refuse)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        tune(op, (torch.randn(64),), clock=Clock())
    kept = {row.config: row.status for row in TuningDatabase().rows()}
    assert kept == {"library": "ok", 'tiled {"k": 2}': "ok", 'tiled {"k": 1}': "failed"}


def test_compilers_are_not_waited_for_for_ever(op: Op[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "_COMPILE_TIMEOUT", 0.2)
    never: Future[None] = Future()
    op.candidates["tiled"] = Tiled({1: never, 2: done()})
    rows = {row.config for row in tune(op, (torch.randn(64),), clock=Clock())}
    assert rows == {
        "library",
        'tiled {"k": 2}',
    }  # of the other nothing is noted: it may be tried another time
    assert never.cancelled()


def test_configurations_are_combined_and_checked(op: Op[..., Any]) -> None:
    op.candidates["tiled"] = tiled = Tiled({1: done(), 2: done()})
    tiled.further = {"k": 12}
    COSTS.update({"1": 1.0, "2": 1.0, "12": 0.5})
    clock = Clock()
    rows = {row.config: row.ms for row in tune(op, (torch.randn(64),), clock=clock)}
    assert [config for config, _ in tiled.timed] == [{"k": 1}, {"k": 2}]
    assert rows['tiled {"k": 12}'] == 0.5
    # The new one is timed in turns with those it was made of.
    assert sampled(clock)[-6:] == ["1", "2", "12"] * 2


def test_what_cannot_be_captured_is_timed_otherwise_with_all_others(
    op: Op[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    entered(op, "waits", 1.0)
    entered(op, "other", 1.0)

    class Capturing(Clock):
        def sampler(self, call: Any, inputs: Any) -> Any:
            if _name(call) == "waits":
                raise NotCapturedError("a call waits")
            return super().sampler(call, inputs)

    capturing, events = Capturing(), Clock()
    monkeypatch.setattr(tuner, "EventClock", lambda: events)
    rows = {row.config: row.status for row in tune(op, (torch.randn(64),), clock=capturing)}
    assert rows == {"library": "ok", "waits": "ok", "other": "ok"}
    assert capturing.log == []
    assert set(sampled(events)) >= {"waits", "other"}


def test_a_broken_device_ends_the_race_and_the_culprit_is_noted(
    op: Op[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    entered(op, "last", 1.0)

    def broken(x: Tensor) -> Tensor:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    op.candidates.pop("last")
    op.candidate("broken")(broken)
    entered(op, "last", 1.0)

    def refuse(args: Any) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(tuner, "_raise_if_device_broken", refuse)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        tune(op, (torch.randn(64),), clock=Clock())
    assert [(row.config, row.status) for row in TuningDatabase().rows()] == [("broken", "failed")]


def test_copies_lie_as_the_originals_do() -> None:
    base = torch.arange(4096.0)
    for x in (base.view(64, 64), base.view(64, 64).t(), base[1:4001].view(50, 80), base[3:1003:2], base[:0]):
        x = x.detach().requires_grad_()
        for given in make_input_sets([x, 3, None]):
            assert given[1:] == [3, None]
            assert torch.equal(given[0], x)
            assert given[0].stride() == x.stride()
            assert given[0].data_ptr() % 16 == x.data_ptr() % 16
            assert given[0].requires_grad


def test_copies_of_what_shares_its_elements_share_nothing_with_the_original() -> None:
    base = torch.arange(40.0)
    for x in (base[:1].expand(8), base[:5].expand(3, 5), base.as_strided((6, 4), (2, 1), 3)):
        copies = make_input_sets([x])
        for (given,) in copies:
            assert torch.equal(given, x)
            assert given.stride() == x.stride()
            given.as_strided((1,), (1,)).fill_(-1)
        assert base.min() == 0
        assert len({given.data_ptr() for (given,) in copies}) == len(copies)
