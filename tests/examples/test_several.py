"""The examples with several processes or threads: they train as one does."""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from burnt import Gradients
from burnt.data import Batch
from burnt.store import RunReader
from burnt.store.ranks import read_ranks
from tests.distributed import by_several
from tests.forked import ROOT

EXAMPLES = ROOT / "examples"
WORKER = """
import sys
import torch
examples, folder, rank = sys.argv[1:]
sys.path.insert(0, f"{examples}/custom_loop_with_ranks")
from custom_loop_with_ranks import Settings, main
model = main(Settings(hidden=8, epochs=2, lr=1e-2, folder=f"{folder}/run"))
torch.save(model.state_dict(), f"{folder}/rank{rank}.pt")
"""


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES / "threads"))
    return importlib.import_module("threads")


@pytest.mark.parametrize("items", [11, 2])  # with 2, a thread has none
def test_gradients_of_threads_add_up_to_those_of_the_batch(threads: Any, items: int) -> None:
    torch.manual_seed(0)
    model = threads.Settings(hidden=8).init().double()
    batch = Batch(x=torch.randn(items, 64).double(), y=torch.randint(10, (items,)))
    loss, found = threads.Threads(model, [torch.device("cpu")] * 3)(batch)
    expected = torch.nn.functional.cross_entropy(model(batch.x), batch.y)
    assert loss == pytest.approx(expected.item())
    torch.testing.assert_close(dict(found), dict(Gradients.of(expected, model)))


def test_threads_train_as_one_does(threads: Any, capsys: pytest.CaptureFixture[str]) -> None:
    one, three = (
        threads.main(threads.Settings(threads=count, hidden=16, epochs=3, lr=1e-2, folder=f"runs/{count}"))
        for count in (1, 3)
    )
    torch.testing.assert_close(three.state_dict(), one.state_dict(), rtol=0, atol=1e-5)
    printed = capsys.readouterr().out.splitlines()
    assert [line.split(", ")[0] for line in printed] == [printed[0].split(", ")[0]] * 2
    assert Path("runs/3/loss.svg").read_text().startswith("<svg")


def test_a_loop_in_two_processes_trains_as_in_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    monkeypatch.setattr("sys.path", list(sys.path))
    monkeypatch.setattr("sys.argv", ["worker", str(EXAMPLES), str(one), "0"])
    exec(compile(WORKER, "worker", "exec"), {})
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    done = by_several(2, worker, EXAMPLES, two)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == capsys.readouterr().out.replace("on 1 ranks", "on 2 ranks")
    expected, *found = (torch.load(file) for file in (one / "rank0.pt", two / "rank0.pt", two / "rank1.pt"))
    torch.testing.assert_close(found[0], expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)
    assert (two / "run" / "loss.svg").read_text().startswith("<svg")
    with RunReader(two / "run") as run:
        losses = run.points("loss").values
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.full
def test_two_nodes_with_addresses_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES / "two_nodes"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "BURNT_MONITOR": "plain", "OMP_NUM_THREADS": "1"}
    nodes = [
        subprocess.Popen(
            [
                *(
                    "torchrun",
                    "--nnodes",
                    "2",
                    "--node-rank",
                    str(node),
                    "--local-addr",
                    f"127.0.0.{node + 1}",
                ),
                *("--master-addr", "127.0.0.1", "--master-port", str(port), "--no-python"),
                *(
                    sys.executable,
                    "-m",
                    "burnt",
                    "train",
                    f"{EXAMPLES}/two_nodes/two_nodes.py:main",
                    "epochs=1",
                    "width=4",
                ),
            ],
            cwd=tmp_path,
            env=environment,
        )
        for node in range(2)
    ]
    one = importlib.import_module("two_nodes")
    one.main(one.Settings(epochs=1, width=4, folder=f"{tmp_path}/one"))
    try:
        assert [node.wait(240) for node in nodes] == [0, 0]
    finally:
        for node in nodes:
            node.kill()
    assert [load.state for load in read_ranks(tmp_path / "runs/two_nodes")] == ["finished"] * 2
    with RunReader(tmp_path / "runs/two_nodes") as several, RunReader(tmp_path / "one") as alone:
        for name in ("loss", "accuracy"):
            assert several.points(name).values == pytest.approx(alone.points(name).values, abs=1e-5)
    assert (tmp_path / "runs/two_nodes/loss.svg").read_text().startswith("<svg")


@pytest.mark.full
def test_a_replica_that_is_killed_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(
        "torchft", reason="torchft has only nightly builds, so it is not among the test's packages"
    )
    monkeypatch.syspath_prepend(str(EXAMPLES / "fault_tolerant"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *sys.path]))
    example = importlib.import_module("fault_tolerant")
    accuracy = example.demonstrate(example.Settings(folder=f"{tmp_path}/runs", steps=3000))
    assert accuracy > 0.93
    assert '"largest difference of a weight": 0.0' in capsys.readouterr().out
