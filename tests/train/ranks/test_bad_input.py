"""Several processes that cannot train together: the errors say what, which rank, and what to do."""

import contextlib
import socket
import types
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from burnt.errors import MetricError, RankError, RunError, UnsupportedError
from burnt.gradients import Gradients
from burnt.store import RunWriter
from burnt.train.metrics.base import check_mergeable
from burnt.train.ranks.launch import Launched
from burnt.train.ranks.ranks import Ranks
from burnt.train.ranks.sharded import ShardedRanks
from burnt.train.ranks.strategy import ranks_of
from tests import forked
from tests.train.ranks import bad_input

LAUNCHED = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}
CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"RANK": ""}, ["RANK", "a number from 0 to 1, as there are 2", "not set"]),
        ({"RANK": "2"}, ["RANK", "a number from 0 to 1", "2"]),
        ({"RANK": "one"}, ["RANK", "one"]),
        ({"WORLD_SIZE": "two"}, ["WORLD_SIZE", "a number from 1", "two"]),
        ({"WORLD_SIZE": "0"}, ["WORLD_SIZE", "a number from 1", "0"]),
        ({"LOCAL_RANK": "-1"}, ["LOCAL_RANK", "a number from 0", "-1"]),
        ({"WORLD_SIZE": "", "SLURM_STEP_NUM_TASKS": "4"}, ["SLURM_PROCID", "0 to 3, as there are 4"]),
    ],
)
def test_a_launchers_variables_are_checked(changed, words):
    environment = {name: value for name, value in (LAUNCHED | changed).items() if value}
    with pytest.raises(RankError) as caught:
        Launched.find(environment)
    assert all(word in str(caught.value) for word in [*words, "burnt train --nproc 2"])


def test_one_process_of_a_launcher_is_not_several():
    assert Launched.find({"WORLD_SIZE": "1"}) is None
    assert Launched.find({"SLURM_STEP_NUM_TASKS": "1"}) is None


@pytest.fixture
def launched(monkeypatch):
    for name, value in {**LAUNCHED, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)


def test_single_under_a_launcher(launched, tmp_path):
    with pytest.raises(RankError, match="several processes would train in one folder") as caught:
        ranks_of("single", tmp_path, CPU)
    assert 'strategy="auto"' in caught.value.hint
    assert "rank 1 of 2" in caught.value.where


@pytest.mark.parametrize("strategy", ["ddp", Ranks()])
def test_several_processes_asked_for_in_one(strategy, tmp_path):
    with pytest.raises(RankError, match="this strategy is for several processes") as caught:
        ranks_of(strategy, tmp_path, CPU)
    assert "burnt train --nproc 2" in caught.value.hint
    assert "strategy='ddp'" in caught.value.found


def test_two_processes_in_one_folder_without_a_launcher(tmp_path):
    with RunWriter.create(tmp_path / "run"), pytest.raises(RunError, match="is running") as caught:
        RunWriter.create(tmp_path / "run", exists="resume")
    assert 'strategy="single"' in caught.value.hint
    assert "burnt train --nproc 2" in caught.value.hint


def test_an_address_where_nobody_is(launched):
    with pytest.raises(RankError, match="the processes cannot meet") as caught:
        Launched(1, 2, 1).store(0.5)
    assert caught.value.where == "rank 1 of 2"
    assert "MASTER_ADDR and MASTER_PORT" in caught.value.expected
    assert "127.0.0.1:1" in caught.value.found


def test_a_port_that_is_taken(launched, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        monkeypatch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        with pytest.raises(RankError, match="the processes cannot meet") as caught:
            Launched(0, 2, 0).store(0.5)
    assert "a port there that is free" in caught.value.expected


def test_no_address(launched, monkeypatch):
    monkeypatch.delenv("MASTER_ADDR")
    with pytest.raises(RankError, match="the processes cannot meet") as caught:
        Launched(1, 2, 1).store(0.5)
    assert "MASTER_ADDR expected, but not set" in caught.value.found


def test_a_gradient_on_one_rank_only_with_fsdp():
    ranks = ShardedRanks()
    ranks.size = 2
    params = {"a": torch.nn.Parameter(torch.ones(1)), "b": torch.nn.Parameter(torch.ones(1))}
    with pytest.raises(UnsupportedError, match="a gradient on some ranks only") as caught:
        ranks._reduced(Gradients({"a": torch.ones(1)}), params, [2.0, 1.0], 1.0)
    assert caught.value.where == "b"
    assert caught.value.hint == 'strategy="ddp"'


def test_one_gpu_for_each_process_or_for_all(monkeypatch):
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    launched = Launched(1, 2, 1)
    assert launched.device(torch.device("cuda")) == torch.device("cuda:0")  # as by Slurm's --gpus-per-task
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: types.SimpleNamespace(uuid="GPU-1")
    )
    monkeypatch.setattr(Launched, "store", lambda self, timeout: dist.HashStore())
    monkeypatch.setattr(Ranks, "_together", lambda self, *arguments: None)
    for others, is_shared in ((["GPU-0", "GPU-1"], False), (["GPU-1", "GPU-1"], True)):
        monkeypatch.setattr(Ranks, "every", lambda self, value, others=others: others)
        error = pytest.raises(RankError, match="more processes on this machine than GPUs")
        with error if is_shared else contextlib.nullcontext():
            Ranks().join(launched, torch.device("cuda"))


def test_more_processes_than_gpus(monkeypatch):
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(RankError, match="more processes on this machine than GPUs") as caught:
        Launched(2, 4, 2).device(torch.device("cuda"))
    assert caught.value.where == "rank 2 of 4"
    assert "device='cpu'" in caught.value.hint


def test_gpus_without_nccl(monkeypatch):
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    with pytest.raises(RankError, match="several processes cannot train on GPUs") as caught:
        Launched(1, 2, 1).device(torch.device("cuda"))
    assert "without NCCL" in caught.value.found


def test_a_process_group_of_nccl_only(monkeypatch):
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_backend_config", lambda: "cuda:nccl")
    monkeypatch.setattr(Launched, "store", lambda self, timeout: None)
    with pytest.raises(RankError, match="no way to exchange") as caught:
        Ranks().join(Launched(0, 2, 0), CPU)
    assert "'gloo'" in caught.value.expected
    assert caught.value.found == "cuda:nccl"


@pytest.mark.parametrize(
    "lost",
    [
        RuntimeError("[/x/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer"),
        dist.DistBackendError("NCCL communicator was aborted"),
    ],
)
def test_messages_of_torchs_own_do_not_hide_the_first_cause(lost, tmp_path):
    ranks = Ranks()
    ranks._store = dist.HashStore()
    ranks._store.set("failure", "1\nValueError: mine\nTraceback of rank 1")
    with pytest.raises(RankError, match="rank 1 has failed") as caught, ranks.failing(tmp_path, SystemExit):
        raise lost
    assert caught.value.found == "ValueError: mine"
    with pytest.raises(RuntimeError, match="shapes differ"), ranks.failing(tmp_path, SystemExit):
        raise RuntimeError("shapes differ")


def test_a_metric_that_cannot_be_merged():
    with pytest.raises(MetricError, match="own cannot be merged over several processes") as caught:
        check_mergeable([bad_input.Own()])
    assert "merge(state)" in caught.value.expected


FAST = ["config", "shapes", "length", "taken"]


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad")

    def read(name):
        """Return what each rank has printed; the fast cases are run together, and so are the others."""
        if not (folder / name).is_dir():
            names = FAST if name in FAST else [case for case in bad_input.cases(0) if case not in FAST]
            done = forked.run(Path(bad_input.__file__).read_text(), folder, *names, timeout=300)
            assert done.returncode == 0, done.stderr[-3000:]
        return [(folder / name / f"rank{rank}.txt").read_text() for rank in range(2)]

    return read


def full(*values):
    return pytest.param(*values, marks=pytest.mark.full)


@pytest.mark.parametrize(
    ("case", "what", "expected", "found"),
    [
        ("config", "the Config: width", "16", "17"),
        full("dataset", "the training's loader: items", "50", "51"),
        full("settings", "the settings: clip_norm", "None", "1.0"),
        full("optimizer", "the Learner: optimizer", "AdamW(betas=", "AdamW(betas="),
        full("rate", "the Learner: schedule", "'Constant(lr=0.1)'", "'Constant(lr=0.2)'"),
        ("shapes", "the model: weight", "[3, 6] float64", "[4, 6] float64"),
        full("parameters", "the model: 1.weight", "nothing", "[16, 16] float64"),
        full("first batch", "the first batch of an iterable", "values of", "values of"),
        full("stream", "the first batch of an iterable", "values of", "values of"),
        ("length", "the next batch of an iterable", "no further one", "one of 4 items"),
        full("sizes", "the next batch of an iterable", "one of 4 items", "one of 5 items"),
    ],
)
def test_ranks_that_differ(said, case, what, expected, found):
    first, second = said(case)
    assert first == second  # an error on all ranks, which says the same
    assert first.startswith(f"RankError\nthe ranks differ in {what}\n  in        rank 1 of 2\n")
    assert "same" in first.splitlines()[-1]
    rows = dict(line.split(maxsplit=1) for line in first.splitlines()[2:])
    assert rows["expected"].startswith(expected)
    assert rows["expected"].endswith(", as rank 0")
    assert rows["found"].startswith(found)


def test_a_taken_folder(said):
    first, second = said("taken")
    assert first.startswith("RunError\n")
    assert "holds files that are not a run" in first
    assert "rank 0 has failed, and this one cannot go on" in second
    assert "holds files that are not a run" in second


@pytest.mark.full
def test_a_metric_that_cannot_be_merged_on_all_ranks(said):
    assert all("MetricError\nown cannot be merged" in text for text in said("merge"))


@pytest.mark.full
def test_sparse_gradients(said):
    for text in said("sparse"):
        assert "sparse gradients are not summed over ranks" in text
    assert "Embedding(sparse=False)" in said("sparse")[0]


@pytest.mark.full
def test_fewer_items_in_a_batch_than_ranks(said):
    first, second = said("small")
    assert first.count("Warning: a batch has 1 item, so of 2 ranks some have nothing to do.") == 1
    assert "Warning" not in second
    assert first.endswith("trained\n")
    assert second == "trained\n"


@pytest.mark.full
def test_ranks_that_drift_apart(said):
    first, second = said("drift")
    assert first.count("Warning: the ranks have drifted apart: 0.weight and 3 more parameters of rank 1") == 1
    assert "(at step " in first
    assert second == "trained\n"
