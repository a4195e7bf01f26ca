"""A training on several ranks and on one does the same."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from burnt.store import RunReader
from burnt.store.ranks import read_ranks
from burnt.train import replay
from burnt.train.control.intercepting import use_first_training
from burnt.train.ranks.early import _Bucket
from tests.distributed import by_several
from tests.train.ranks import programs

SHARDED = [f"{name}-fsdp" for name in programs.SHARDED]
NOT_FINITE = ["nan skip", "nan stop", "nan raise"]
FAST = {
    2: ["resumed", "resumed-fsdp", "nan skip"],
    3: ["uneven"],
}
FILE = Path(programs.__file__)


def train(folder, size, names):
    done = by_several(size, FILE, folder, *names)
    assert done.returncode == 0, done.stderr[-6000:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ranks")


def check(folder, size, names):
    names = [name.replace(" ", "-") for name in names]
    train(folder, 1, [name for name in names if not (folder / f"{name}-1").exists()])
    train(folder, size, names)
    for name in names:
        tolerance = 1e-3 if name.startswith("half") else 1e-6
        one = torch.load(folder / f"{name}-1.rank0.pt")
        expected = json.loads((folder / f"{name}-1.rank0.json").read_text())
        for rank in range(size):
            several = torch.load(folder / f"{name}-{size}.rank{rank}.pt")
            torch.testing.assert_close(several, one, rtol=0, atol=tolerance, msg=f"{name}: {{}}".format)
            found = json.loads((folder / f"{name}-{size}.rank{rank}.json").read_text())
            assert found["values"] == pytest.approx(expected["values"], abs=tolerance), name
            for key in ("step", "reason", "model"):
                assert found[key] == expected[key], name
        assert [load.rank for load in read_ranks(folder / f"{name}-{size}")] == list(range(size)) * (size > 1)
        with RunReader(folder / f"{name}-{size}") as run, RunReader(folder / f"{name}-1") as alone:
            # What loads the model again: fully_shard changes its class.
            config, expected_config = run.config(), alone.config()
            assert config["model"] == expected_config["model"]
            source, expected_source = (
                {**one["load"]["source"], "overrides": []} for one in (config, expected_config)
            )  # the words of a command name trainings that another test may have done
            assert source == expected_source
            assert run.artefacts(name="model")[-1].data == alone.artefacts(name="model")[-1].data
            for series in alone.series():
                if series.name in (
                    "loss",
                    "accuracy",
                    "learning_rate",
                    "loss_scale",
                    "gradient_norm",
                    "skipped_steps",
                    "first_feature",
                    "step",
                ):
                    points = [run.points(series.name, series.split), alone.points(series.name, series.split)]
                    assert points[0].steps == points[1].steps
                    values = pytest.approx(points[1].values, abs=tolerance, nan_ok=True)
                    assert points[0].values == values, (name, series.name)


@pytest.mark.parametrize("size", FAST)
def test_several_ranks_train_as_one_process(folder, size):
    check(folder, size, FAST[size])


def test_one_process_replays_a_step_of_several(folder):
    if not (folder / "uneven-3").exists():
        train(folder, 3, ["uneven"])

    def replayed(change):
        def run(training, learner):
            change(training, learner)
            return replay(training, learner, 8)

        return use_first_training(lambda: programs.uneven(folder / "uneven-3"), run, "uneven")

    report = replayed(lambda training, learner: setattr(training, "strategy", "fsdp"))
    assert (report.difference, report.ranks) == (None, 3)
    assert report.compared == 5
    assert str(report).endswith(
        "\n  nearly equal   all 5 values recorded since step-00000006, to 0.1%:"
        "\n                 3 processes trained the run, and round sums otherwise"
    )
    # Another loss than that of the run.
    report = replayed(lambda training, learner: setattr(learner, "step", programs.classify))
    why = "with one, dropout, other random numbers in the model and BatchNorm differ"
    assert report.difference.endswith(f" now (3 processes trained the run; {why})")


@pytest.mark.full
@pytest.mark.parametrize("size", [2, 3])
def test_all_trainings(folder, size):
    check(folder, size, [name for name in [*programs.CASES, *SHARDED] if name not in FAST[size]])


@pytest.mark.full
def test_a_stream_is_resumed_on_another_number_of_ranks(tmp_path):
    train(tmp_path, 2, ["stream-begun"])
    shutil.copytree(tmp_path / "stream-begun-2", tmp_path / "stream-3")
    check(tmp_path, 3, ["stream"])


@pytest.mark.full
def test_what_ranks_have_of_their_own(tmp_path):
    done = by_several(2, FILE.with_name("own_values.py"), tmp_path)
    assert done.returncode == 0, done.stderr[-6000:]
    assert done.stdout.count("common") == 2


def test_gradients_of_16_bits_are_weighted_in_float32():
    bucket = _Bucket({"w": torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16))})
    bucket.fill("w", torch.full((1,), 1 + 2**-7, dtype=torch.bfloat16), 3)
    assert bucket._parts["w"].item() == 3 * (1 + 2**-7)
