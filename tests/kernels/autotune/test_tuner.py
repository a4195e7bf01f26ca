"""The tuner and its table: what is measured, banned, kept, and what happens when things go wrong."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from burnt import kernels
from burnt.errors import CacheError, ConfigError
from burnt.kernels.autotune import tuner
from burnt.kernels.autotune.accuracy import ReferenceResult
from burnt.kernels.autotune.database import Row, TuningDatabase, read_table, shipped_rows, write_table
from burnt.kernels.dispatch.op import Op
from burnt.kernels.interface.tuning_key import bucket, source_hash, tuning_key
from tests import forked


@pytest.fixture(autouse=True)
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BURNT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tuner, "_unsaved_rows", {})
    return tmp_path / "cache" / "tuned.sqlite"


@pytest.fixture
def op() -> Op[..., Any]:
    def tripled(x: Tensor) -> Tensor:
        return x + x + x

    return kernels.op(tripled)


def rows(op: Op[..., Any], *args: Any) -> dict[str, Row]:
    return {row.config: row for row in TuningDatabase().rows(tuning_key(op, args))}


def test_the_fastest_is_chosen_and_kept(op: Op[..., Any]) -> None:
    @op.candidate("slow")
    def slow(x: Tensor) -> Tensor:
        time.sleep(0.002)
        return x * 3

    x = torch.randn(64)
    assert op.chosen(x).candidate.name == "slow"  # by the heuristic: somebody registered it
    with kernels.tuning("quick"):
        op(x)
        assert op.chosen(x).candidate.name != "slow"
        assert op.chosen(x).why.startswith("measured")
    found = rows(op, x)
    assert found["slow"].ms is not None
    assert found["slow"].ms > 2
    # Another process, or this one later, chooses by the table.
    assert op.chosen(x).candidate.name != "slow"
    assert op.chosen(x).why.startswith("measured before")
    with kernels.tuning("off"):
        assert op.chosen(x).candidate.name == "slow"


def test_a_candidate_that_is_wrong_is_banned(op: Op[..., Any]) -> None:
    @op.candidate("wrong")
    def wrong(x: Tensor) -> Tensor:
        result = x * 3
        result[-1] *= 1.001
        return result

    x = torch.linspace(1, 2, 64)  # an error of a thousandth of 0 would be none
    with kernels.tuning("quick"):
        torch.testing.assert_close(op(x), x * 3)
    assert rows(op, x)["wrong"].status == "wrong"
    assert "off by" in rows(op, x)["wrong"].note
    torch.testing.assert_close(op(x), x * 3)
    assert "wrong: result 0: off by" in str(kernels.explain(op, x))


def test_a_ban_holds_for_other_arguments_too(op: Op[..., Any]) -> None:
    op.candidate("wrong")(lambda x: x * 3.01)
    small, large = torch.randn(64), torch.randn(500, 7)
    assert op.chosen(large).candidate.name == "wrong"  # by the heuristic: somebody registered it
    with kernels.tuning("quick"):
        op(small)
    op.forget()
    assert op.chosen(large).candidate.name != "wrong"
    assert op.chosen(large).why == "heuristic"
    assert "wrong for other arguments: result 0: off by" in str(kernels.explain(op, large))
    with kernels.tuning("off"):
        assert op.chosen(large).candidate.name == "wrong"


def test_of_two_candidates_the_one_that_is_right_is_taken(
    op: Op[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(1 << 17)
    assert op.chosen(x).candidate.name == "generated"
    monkeypatch.setattr(
        op.candidates["generated"], "bind_config", lambda args, config=None: lambda x: x * 3.01
    )
    with kernels.tuning("quick"):
        torch.testing.assert_close(op(x), x * 3)
    assert rows(op, x)["generated"].status == "wrong"
    op.forget()
    torch.testing.assert_close(op(x), x * 3)
    assert op.chosen(x).candidate.name == "library"


def test_a_candidate_with_a_wrong_gradient_is_banned(op: Op[..., Any]) -> None:
    @op.candidate("wrong")
    def wrong(x: Tensor) -> Tensor:
        return x * 3

    @wrong.backward
    def _(grad_outs: Any, results: Any, x: Tensor) -> Any:
        return (grad_outs[0] * 2,)

    x = torch.randn(64, requires_grad=True)
    with kernels.tuning("quick"):
        op(x).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.full_like(x, 3.0))
    assert rows(op, x)["wrong"].status == "wrong"


class _Used(TorchDispatchMode):
    """Memory that is not written yet holds large numbers, as it may where torch uses it again."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        unwritten = "empty" in func._schema.name and isinstance(result, Tensor) and result.is_floating_point()
        return result.fill_(torch.finfo(result.dtype).max) if unwritten else result


@pytest.mark.parametrize("wanted", [False, True])
def test_what_memory_held_before_is_no_number_of_an_op(wanted: bool) -> None:
    """Otherwise a candidate could be off by any amount."""

    def by_rows(x: Tensor) -> Tensor:
        result = torch.empty_like(x)
        for i in range(len(x)):
            result[i].copy_(x[i] * 3)
        return result

    op = kernels.op(by_rows)
    x = torch.rand(3, 4, requires_grad=wanted)
    with _Used():
        truth = ReferenceResult(op, (x,))
    assert truth.largest <= 6
    assert truth.find_error(by_rows) is None
    assert "off by" in str(truth.find_error(lambda x: x * 3.01))


@pytest.mark.full
def test_a_candidate_that_changes_its_argument_is_banned_and_spoils_nothing(op: Op[..., Any]) -> None:
    op.candidate("in place")(lambda x: x.mul_(3))
    op.candidate("next to it")(lambda x: x * 3)
    for x in (torch.randn(64), torch.tensor([1.0, torch.nan]), torch.randn(5, requires_grad=True)):
        before = x.detach().clone()
        with kernels.tuning("quick"):
            op.chosen(x)
        found = rows(op, x)
        assert (found["in place"].status, found["in place"].note) == ("wrong", "modifies its argument x")
        assert {row.status for name, row in found.items() if name != "in place"} == {"ok"}
        torch.testing.assert_close(x.detach(), before, rtol=0, atol=0, equal_nan=True)


def test_of_several_arguments_the_one_that_was_changed_is_named() -> None:
    @kernels.op
    def weighed(x: Tensor, weight: Tensor) -> Tensor:
        return x * weight

    @weighed.candidate("scaling the weight")
    def _(x: Tensor, weight: Tensor) -> Tensor:
        result = x * weight
        weight.zero_()
        return result

    @weighed.candidate("failing late")
    def _(x: Tensor, weight: Tensor) -> Tensor:
        x.zero_()
        raise RuntimeError("too late")

    weighed.candidate("right")(torch.mul)
    args = torch.randn(3, 5), torch.randn(5)
    found = {row.config: (row.status, row.note) for row in tuner.tune(weighed, args)}
    assert found["scaling the weight"] == ("wrong", "modifies its argument weight")
    assert found["failing late"] == ("failed", "RuntimeError: too late")
    assert found["right"][0] == "ok"


def test_a_backward_that_changes_its_grad_outs_is_banned(op: Op[..., Any]) -> None:
    @op.candidate("in place")
    def in_place(x: Tensor) -> Tensor:
        return x * 3

    @in_place.backward
    def _(grad_outs: Any, results: Any, x: Tensor) -> Any:
        return (grad_outs[0].mul_(3),)

    @op.candidate("zeroing")
    def zeroing(x: Tensor) -> Tensor:
        return x * 3

    @zeroing.backward
    def _(grad_outs: Any, results: Any, x: Tensor) -> Any:
        with torch.no_grad():
            x.zero_()
        return (grad_outs[0] * 3,)

    x = torch.randn(64, requires_grad=True)
    found = {row.config: (row.status, row.note) for row in tuner.tune(op, (x,))}
    assert found["in place"] == ("wrong", "its backward modifies grad_outs[0]")
    assert found["zeroing"] == ("wrong", "modifies its argument x")
    assert found["library"][0] == found["generated"][0] == "ok"


def test_grad_outs_have_the_layout_of_the_results(op: Op[..., Any]) -> None:
    strides = []

    @op.candidate("seen")
    def seen(x: Tensor) -> Tensor:
        return x * 3

    @seen.backward
    def _(grad_outs: Any, results: Any, x: Tensor) -> Any:
        strides.append((grad_outs[0].stride(), x.stride()))
        return (grad_outs[0] * 3,)

    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last).requires_grad_()
    found = {row.config: row.status for row in tuner.tune(op, (x,))}
    assert found["seen"] == "ok"
    assert strides
    assert all(given == result == (60, 1, 15, 3) for given, result in strides)


def test_a_wrong_result_that_is_not_finite_is_banned(op: Op[..., Any]) -> None:
    op.candidate("wrong")(lambda x: torch.where(x > 1, torch.nan, x * 3))
    x = torch.linspace(0, 2, 64)
    with kernels.tuning("quick"):
        op(x)
    assert rows(op, x)["wrong"].status == "wrong"


def test_wrong_integers_are_banned() -> None:
    def first_positive(x: Tensor) -> Tensor:
        return (x > 0).int().argmax(-1)

    op = kernels.op(first_positive)
    op.candidate("wrong")(lambda x: op.reference(x) + 1)
    x = torch.randn(64, 8)
    with kernels.tuning("quick"):
        assert torch.equal(op(x), first_positive(x))
    assert "integers differ" in rows(op, x)["wrong"].note


def test_what_is_far_behind_stops_early(op: Op[..., Any]) -> None:
    calls = []

    @op.candidate("slow")
    def slow(x: Tensor) -> Tensor:
        calls.append(1)
        time.sleep(0.005)
        return x * 3

    tuner.tune(op, (torch.randn(64),))
    assert len(calls) <= 4  # to check it, to see how long it takes, and a turn or two


def test_a_candidate_that_fails_is_noted(op: Op[..., Any]) -> None:
    @op.candidate("broken")
    def broken(x: Tensor) -> Tensor:
        raise SyntaxError("expected ';'")

    x = torch.randn(64)
    with kernels.tuning("quick"):
        torch.testing.assert_close(op(x), x * 3)
    assert rows(op, x)["broken"].note == "SyntaxError: expected ';'"
    torch.testing.assert_close(op(x), x * 3)


def test_saved_tensor_hooks_do_not_see_what_is_measured(op: Op[..., Any]) -> None:
    """Checkpointing counts the tensors that a call saves."""

    @op.candidate("saves", differentiable=True)
    def saves(x: Tensor) -> Tensor:
        return x * torch.full_like(x, 3)

    def saved_by_a_call() -> int:
        saved: list[Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (saved.append(t), t)[1], lambda t: t):
            op(x)
        return len(saved)

    x = torch.randn(64, requires_grad=True)
    with kernels.tuning("quick"):
        tuned = saved_by_a_call()
        assert rows(op, x)["saves"].status == "ok"
        assert tuned == saved_by_a_call()


def test_configurations_are_rows_of_their_own(op: Op[..., Any]) -> None:
    tried = []

    def configs(x: Tensor) -> list[dict[str, int]]:
        return [{"BLOCK": 64}, {"BLOCK": 128}]

    @op.candidate("tiled", configs=configs)
    def tiled(x: Tensor, config: dict[str, int]) -> Tensor:
        tried.append(config["BLOCK"])
        if config["BLOCK"] == 64:
            time.sleep(0.002)
        return x * 3

    op.discard("library")
    op.candidate("library", autocast=True)(lambda x: (time.sleep(0.004), x * 3)[1])
    op.candidates.pop("generated")
    x = torch.randn(64)
    op(x)
    assert tried == [64]  # the first is the best guess
    with kernels.tuning("full"):
        op(x)
    assert set(rows(op, x)) == {'tiled {"BLOCK": 64}', 'tiled {"BLOCK": 128}', "library"}
    assert op.chosen(x).config == {"BLOCK": 128}
    tried.clear()
    op(x)
    assert tried == [128]


def test_what_is_known_is_not_measured_again(op: Op[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(64)
    with kernels.tuning("quick"):
        op(x)
    before = rows(op, x)
    op.candidate("new")(lambda x: x * 3)
    # A new candidate changes the sources, and with them the key; a new configuration adds a row.
    assert tuning_key(op, (x,)) not in {row.key for row in before.values()}
    monkeypatch.setattr(tuner._Benchmark, "add", lambda *_: pytest.fail("measured again"))
    with kernels.tuning("quick"):
        assert tuner.tune(op, (x,), known=[Row("", n, "ok", 1.0) for n in op.candidates]) == []


@pytest.mark.parametrize("way", ["capture", "rank", "tracing"])
def test_there_are_times_not_to_tune(op: Op[..., Any], monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setattr(tuner._Benchmark, "add", lambda *_: pytest.fail("measured"))
    if way == "capture":
        monkeypatch.setattr(tuner, "is_capturing", lambda: True)
    elif way == "rank":
        monkeypatch.setenv("RANK", "1")
    else:
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with kernels.tuning("quick"):
        assert op.chosen(torch.randn(64)).why == "heuristic"
    assert not tuner.can_measure()


def test_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tuner.policy() == "cached"
    monkeypatch.setenv("BURNT_TUNE", "")
    assert tuner.policy() == "cached"
    monkeypatch.setenv("BURNT_TUNE", "quik")
    with pytest.raises(ConfigError, match="BURNT_TUNE") as error:
        tuner.policy()
    assert "'quick'?" in str(error.value)
    with pytest.raises(ConfigError, match="no such tuning policy"), kernels.tuning("sometimes"):
        pass
    with kernels.tuning("off"):
        assert tuner.policy() == "off"


def test_choices_can_be_pinned(op: Op[..., Any]) -> None:
    x = torch.randn(64)
    op(x)
    noted = {k: v for k, v in kernels.choices().items() if k.startswith("tripled")}
    op.candidate("mine")(lambda x: x * 3)
    assert op.chosen(x).candidate.name == "mine"
    op.discard("mine")
    other = "generated" if set(noted.values()) == {"library"} else "library"
    try:
        kernels.pin(dict.fromkeys(noted, other))
        assert (op.chosen(x).candidate.name, op.chosen(x).why) == (other, "pinned")
        kernels.pin(dict.fromkeys(noted, "gone"))
        assert op.chosen(x).why == "heuristic"
    finally:
        kernels.pin({})


def test_keys_tell_apart_what_matters(op: Op[..., Any]) -> None:
    x = torch.randn(64, 48)
    different = [
        x,
        x.double(),
        x.t(),
        x[:, ::2],
        x.clone().requires_grad_(),
        torch.randn(64, 480),
        torch.randn(64 * 48 + 1)[1:].view(64, 48),
        torch.randn(64, 1).expand(64, 48),
    ]
    assert len({tuning_key(op, (t,)) for t in different}) == len(different)
    assert tuning_key(op, (torch.randn(100, 48),)) == tuning_key(op, (torch.randn(120, 48),))
    assert bucket(33) == bucket(48) == 48


# --- the table --------------------------------------------------------------------------------------------

SOME = [Row("silu|a", "library", "ok", 2.0, "", 1.0), Row("silu|a", "generated", "ok", 1.0, "", 1.0)]


def test_rows_come_fastest_first() -> None:
    TuningDatabase().add([*SOME, Row("silu|a", "broken", "failed", None, "no", 1.0)])
    assert [row.config for row in TuningDatabase().rows("silu|a")] == ["generated", "library", "broken"]
    TuningDatabase().add([SOME[0]._replace(ms=0.5)])
    assert TuningDatabase().rows("silu|a")[0].config == "library"
    assert TuningDatabase().rows("silu") == []


# Two processes write rows, one in each transaction; another one is killed after five transactions of 50.
WRITERS = """
import os, signal
from burnt.kernels.autotune.database import Row, TuningDatabase
children = []
for name in "ab":
    if not (child := os.fork()):
        for i in range(20):
            TuningDatabase().add([Row(f"silu|{name}", str(i), "ok", 1.0)])
        os._exit(0)
    children.append(child)
assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
read, write = os.pipe()
if not (child := os.fork()):
    for i in range(10**6):
        TuningDatabase().add([Row("silu|killed", f"{i} {j}", "ok", 1.0) for j in range(50)])
        os.write(write, b".")
for _ in range(5):
    assert os.read(read, 1)
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
"""


def test_processes_write_at_once_and_a_killed_one_leaves_whole_transactions() -> None:
    done = forked.run(WRITERS)
    assert done.returncode == 0, done.stderr
    assert [len(TuningDatabase().rows(f"silu|{name}")) for name in "ab"] == [20, 20]
    found = TuningDatabase().rows()
    assert len(found) >= 40 + 50 * 5
    assert (len(found) - 40) % 50 == 0
    TuningDatabase().add(SOME)
    assert len(TuningDatabase().rows()) == len(found) + 2


@pytest.mark.parametrize("damage", ["text", "cut", "holes"])
def test_a_damaged_table(table: Path, op: Op[..., Any], damage: str) -> None:
    TuningDatabase().add([Row("silu|a", str(i), "ok", 1.0, "x" * 200) for i in range(200)])
    if damage == "text":
        table.write_bytes(b"no database " * 1000)
    else:
        whole = table.read_bytes()
        table.write_bytes(whole[:9000] if damage == "cut" else whole[:4096] + b"\xff" * (len(whole) - 4096))
    before = table.read_bytes()
    with pytest.raises(CacheError, match="is damaged") as error:
        TuningDatabase().rows()
    assert "burnt tune clear" in str(error.value)
    x = torch.randn(64)
    torch.testing.assert_close(op(x), x * 3)  # programs go on
    assert table.read_bytes() == before
    aside = TuningDatabase().set_aside()
    assert aside.read_bytes() == before
    TuningDatabase().add(SOME)
    assert len(TuningDatabase().rows()) == 2


def test_a_table_of_another_program_is_refused(table: Path, op: Op[..., Any]) -> None:
    table.parent.mkdir(mode=0o700)
    with sqlite3.connect(table) as connection:
        connection.execute("CREATE TABLE photos (name TEXT)")
        connection.execute("INSERT INTO photos VALUES ('beach')")
    connection.close()
    for use in (
        lambda: TuningDatabase().rows(),
        lambda: TuningDatabase().add(SOME),
        lambda: TuningDatabase().clear(),
    ):
        with pytest.raises(CacheError, match="another program"):
            use()
    with kernels.tuning("quick"):
        torch.testing.assert_close(op(torch.ones(3)), torch.full((3,), 3.0))
    with sqlite3.connect(table) as connection:
        assert connection.execute("SELECT name FROM photos").fetchall() == [("beach",)]
    connection.close()


def test_a_table_of_a_newer_burnt_is_refused(table: Path) -> None:
    TuningDatabase().add(SOME)
    with sqlite3.connect(table) as connection:
        connection.execute("PRAGMA user_version=7")
    connection.close()
    with pytest.raises(CacheError, match="newer burnt"):
        TuningDatabase().rows()


def test_a_folder_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, op: Op[..., Any]
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match="cannot be used"):
        TuningDatabase(tmp_path / "file" / "tuned.sqlite").add(SOME)
    # Root writes wherever it likes, but not to a folder in the file's place.
    (tmp_path / "cache").mkdir(mode=0o700)
    (tmp_path / "cache" / "tuned.sqlite").mkdir()
    with pytest.raises(CacheError, match="cannot be used") as error:
        TuningDatabase().add(SOME)
    assert "BURNT_CACHE" in str(error.value)
    with kernels.tuning("quick"):
        torch.testing.assert_close(op(torch.ones(3)), torch.full((3,), 3.0))


WITHOUT_A_FOLDER = """
import pwd, warnings

def unknown(uid):
    raise KeyError(uid)

pwd.getpwuid = unknown
import torch
import burnt
from burnt import kernels

with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    for _ in range(2):
        burnt.nn.LayerNorm(8)(torch.ones(2, 8))
        kernels.layer_norm(torch.ones(600, 400))
    with kernels.tuning("quick"):
        found = [kernels.softmax.chosen(torch.ones(n, 8)).why for n in (3, 3)]
    with kernels.tuning("cached"):
        found.append(kernels.softmax.chosen(torch.ones(3, 8)).why)
print(sum("BURNT_CACHE" in str(w.message) for w in told), len(told))
print(*[why.partition(":")[0] for why in found], sep=",")
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize("environment", [{"BURNT_CACHE": "{}/file"}, {}], ids=["a file", "no home"])
def test_ops_run_where_there_can_be_no_folder(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    left = {k: v for k, v in os.environ.items() if k not in ("BURNT_CACHE", "XDG_CACHE_HOME", "HOME")}
    given = {name: value.format(tmp_path) for name, value in environment.items()}
    done = forked.run(WITHOUT_A_FOLDER, env=left | given)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1", "1", "measured,measured,measured", "before"]


def test_tables_as_files(tmp_path: Path) -> None:
    write_table(tmp_path / "t.json", SOME)
    assert read_table(tmp_path / "t.json") == SOME
    for text in (
        "{",
        "[]",
        '{"format": "other"}',
        (tmp_path / "t.json").read_text().replace('"ok"', '"fine"'),
    ):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(CacheError, match="not a table of tuned kernels"):
            read_table(tmp_path / "bad.json")
    with pytest.raises(CacheError, match="cannot be read"):
        read_table(tmp_path / "missing.json")


def test_tables_that_come_with_the_package(op: Op[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(64)
    key = tuning_key(op, (x,))
    shipped = [Row(key, "library", "ok", 2.0), Row(key, "generated", "ok", 1.0)]
    monkeypatch.setattr(tuner, "shipped_rows", lambda: shipped)
    if len(op.candidates) > 1 and op.candidates["generated"].why_not((x,)) is None:
        assert op.chosen(x).candidate.name == "generated"
    # What was measured here counts more.
    TuningDatabase().add([Row(key, "generated", "ok", 9.0)])
    assert op.chosen(x).candidate.name == "library"


def test_the_rows_that_ship_are_of_the_ops_as_they_are():
    """A row of an op that has changed is never read: measure again, or renew the key if only words did."""
    rows = shipped_rows()
    assert rows
    assert not {row.op for row in rows if row.sources != source_hash(getattr(kernels, row.op))}
