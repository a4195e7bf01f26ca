"""The stores of a run's ranks, written by hand: a part of the run in what lists, removes and replaces it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from burnt.cli import main
from burnt.errors import RunError
from burnt.monitor.data.runs import RunLibrary
from burnt.store import RunWriter, find_runs
from burnt.store.ranks import read_ranks, slowest
from burnt.store.removal import examine, remove
from tests.store.test_existing_runs import crashed

WAITS = (0.5, 0.0, 0.25)


def rank_writer(folder: Path, rank: int, attempt: int = 1) -> RunWriter:
    """Begin the store of a rank, as `burnt.train.Ranks` does."""
    config = {"attempt": attempt, "device": f"cuda:{rank}"}
    return RunWriter.create(folder / "ranks" / str(rank), config=config, exists="resume")


def measure(run: RunWriter, rank: int) -> None:
    for step, speed in ((10, 5.0), (20, 2.5)):  # 200 and 400 ms
        run.log(step, 1, {"loss": 0.5, "steps_per_second": speed, "rank_wait_share": WAITS[rank]})
        run.log(step, 1, {"data_wait_share": 0.1 * rank})
    run.progress(20, 1)
    run.system({"process.rss_bytes": 2**30 + rank, "gpu0.memory_used_bytes": 1, "gpu1.memory_used_bytes": 2})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run that three ranks have trained, of which one has crashed."""
    folder = tmp_path / "runs" / "net"
    for rank in range(3):
        run = rank_writer(folder, rank) if rank else RunWriter.create(folder)
        measure(run, rank)
        run.close("crashed" if rank == 2 else "finished")
    return folder


def test_ranks_are_read_with_the_slowest(folder: Path) -> None:
    loads = read_ranks(folder)
    assert [load.state for load in loads] == ["finished", "finished", "crashed"]
    assert [load.step_seconds for load in loads] == pytest.approx([0.3] * 3)
    assert [load.own_seconds for load in loads] == pytest.approx([0.15, 0.3, 0.225])
    assert [load.data_wait_share for load in loads] == pytest.approx([0.0, 0.1, 0.2])
    assert [load.memory_bytes for load in loads] == [2**30, 2**30 + 1, 2**30 + 2]
    assert [load.gpu_memory_bytes for load in loads] == [1, 2, None]
    assert slowest(loads) == 1
    assert slowest(loads[:1]) is None


def test_a_run_of_one_process_has_no_ranks(tmp_path: Path) -> None:
    RunWriter.create(tmp_path / "net").close("finished")
    assert read_ranks(tmp_path / "net") == []


def test_a_run_resumed_on_fewer_ranks_has_only_those(folder: Path) -> None:
    with (
        RunWriter.create(folder, resume=True, resumed_from_step=20),
        rank_writer(folder, 1, attempt=2),
    ):
        assert [(load.rank, load.state) for load in read_ranks(folder)] == [(0, "running"), (1, "running")]
        assert slowest(read_ranks(folder)) is None  # nothing is measured yet
    with RunWriter.create(folder, resume=True, resumed_from_step=20):  # on one
        assert read_ranks(folder) == []


def test_a_rank_that_cannot_be_read_is_said(folder: Path) -> None:
    (folder / "ranks" / "1" / "run.db").write_bytes(b"damaged")
    assert [load.state for load in read_ranks(folder)] == ["finished", "unreadable", "crashed"]


def test_ranks_are_no_runs_of_their_own(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = folder.parent
    assert find_runs(root) == [folder]
    library = RunLibrary([root])
    library.refresh()
    assert [view.label for view in library.views] == ["net"]
    library.close()
    assert main(["runs", "list", str(root)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2  # with the heading


def test_show_has_a_table_of_the_ranks(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "show", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    table = [line.split() for line in lines[lines.index("ranks") + 1 :][:4]]
    assert " ".join(table[0]) == "rank state step step ms own ms data wait rank wait memory GPU memory"
    assert " ".join(table[2]) == "1 finished 20 300 300 10% 0% 1.0 GiB 2 B slowest"
    assert [row[0:2] for row in table[1:]] == [["0", "finished"], ["1", "finished"], ["2", "crashed"]]
    assert sum("slowest" in row for row in table) == 1
    assert main(["runs", "show", str(folder), "--json"]) == 0
    ranks = json.loads(capsys.readouterr().out)["ranks"]
    assert ranks[1]["own_seconds"] == pytest.approx(0.3)


def test_a_run_is_removed_with_its_ranks(folder: Path) -> None:
    assert examine(folder).other_names == []
    RunWriter.create(folder / "ranks" / "mine").close("finished")
    with pytest.raises(RunError, match="contains another run"):
        examine(folder)
    remove(folder / "ranks" / "mine")
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    assert remove(folder).bytes == sum(sizes)
    assert not folder.exists()


def test_a_run_is_not_removed_while_a_rank_is_alive(folder: Path) -> None:
    with rank_writer(folder, 2), pytest.raises(RunError, match="is running and is not removed"):
        remove(folder)
    assert remove(folder).state == "finished"


@pytest.mark.parametrize("lost", [False, True])
def test_a_new_run_in_the_folder_has_none_of_the_old_ranks(tmp_path: Path, lost: bool) -> None:
    crashed(tmp_path)
    (tmp_path / ".DS_Store").unlink()
    rank_writer(tmp_path, 1).close("crashed")
    if lost:  # only its checkpoints are needed, to resume it
        (tmp_path / "run.db").unlink()
    with RunWriter.create(tmp_path):
        assert not (tmp_path / "ranks").exists()


def test_a_run_that_is_resumed_keeps_its_ranks(folder: Path) -> None:
    with RunWriter.create(folder, resume=True, resumed_from_step=20), rank_writer(folder, 1, 2) as run:
        assert run.attempt == 2
