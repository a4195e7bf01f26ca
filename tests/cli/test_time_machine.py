"""`burnt train --resume`, `burnt replay`, `burnt fork` and `burnt runs reproduce`."""

import contextlib
import io
import json
import shutil
import sqlite3
import sys

import pytest

from burnt.cli import main
from burnt.record import read_tensors
from burnt.store import RunWriter
from burnt.train import Checkpoints, RunReader
from tests.cli.commands import printed, refused

PROGRAM = """
import torch
import burnt
from burnt import Config, data, nn, optim
from burnt.train import ClassificationOutput, Learner, SupervisedTraining

class Net(burnt.Module):
    first: nn.Linear
    drop: nn.Dropout
    last: nn.Linear

    def forward(self, x):
        return self.last(self.drop(torch.relu(self.first(x))))

    def training_step(self, batch):
        logits = self(batch.x)
        return ClassificationOutput(torch.nn.functional.cross_entropy(logits, batch.y), logits, batch.y)

class Run(Config):
    folder: str = "runs/net"
    resume: bool = False
    epochs: int = 3
    lr: float = 0.1
    width: int = 4
    batch: int = 4
    bad: int = -1
    log_every: int = 1

def main(config: Run):
    torch.manual_seed(0)
    x = torch.randn(16, 3, generator=torch.Generator().manual_seed(1))
    if config.bad >= 0:
        x[config.bad, 1] = float("nan")
    train = data.Loader(data.TensorDataset(x=x, y=torch.arange(16) % 2), config.batch, shuffle=True)
    training = SupervisedTraining(
        config.folder, train=train, valid=train, duration=f"{config.epochs} epochs", config=config,
        resume=config.resume, device="cpu", monitor="off", log_every=config.log_every, check=False,
    )
    net = Net(nn.Linear(3, config.width), nn.Dropout(0.3), nn.Linear(config.width, 2))
    training.run(Learner(net, optim.AdamW(), optim.Cosine(config.lr, steps=100)))
    ended.append(config)

ended = []
"""


@pytest.fixture(autouse=True)
def program(desk):
    (desk / "net.py").write_text(PROGRAM)


def train(*words):
    assert main(["train", "net.py:main", *words]) == 0


def ended():
    return sys.modules["net"].ended


def points(folder, name="loss", split="train"):
    with RunReader(folder) as reader:
        return dict(zip(*reader.points(name, split)[::2], strict=True))


def model(folder):
    return {k: v.tolist() for k, v in read_tensors(newest(folder).path / "model.safetensors")[0].items()}


def newest(folder):
    return Checkpoints(folder / "checkpoints").saved()[-1]


# --- burnt train --resume


def test_resume_goes_on_with_the_settings_of_the_run_and_changes(desk):
    train("epochs=1", "lr=0.05")
    assert main(["train", "--resume", "net", "epochs=3"]) == 0
    train("folder=runs/whole", "lr=0.05")
    assert model(desk / "runs/net") == model(desk / "runs/whole")
    assert points("runs/net") == points("runs/whole")
    assert (ended()[1].lr, ended()[1].epochs, ended()[1].resume) == (0.05, 3, True)


@pytest.mark.full
def test_resume_takes_the_whole_configuration_also_that_of_a_file(desk, capsys):
    (desk / "base.json").write_text('{"format": 1, "type": "Run", "config": {"lr": 0.02, "epochs": 1}}')
    train("--config", "base.json")
    capsys.readouterr()
    shown = json.loads(printed(capsys, "train", "--resume", "runs/net", "--show", "epochs=2"))
    assert (shown["lr"], shown["epochs"], shown["folder"], shown["resume"]) == (0.02, 2, "runs/net", True)


@pytest.mark.full
def test_a_function_that_has_no_field_for_it_is_resumed_if_it_trains_there(desk, capsys):
    fixed = PROGRAM.replace('    folder: str = "runs/net"\n    resume: bool = False\n', "")
    fixed = fixed.replace("resume=config.resume, ", "").replace("config.folder", "FOLDER")
    (desk / "fixed.py").write_text(fixed + '\nFOLDER = "runs/fixed"\n')
    assert main(["train", "fixed.py:main", "epochs=1"]) == 0
    assert main(["train", "--resume", "runs/fixed", "epochs=2"]) == 0
    assert sorted(points("runs/fixed")) == list(range(1, 9))
    sys.modules["fixed"].FOLDER = "runs/other"
    message = refused(capsys, "train", "--resume", "runs/fixed", "epochs=3", code=1)
    assert "the program trains in another folder" in message
    assert "runs/other" in message
    assert "a field `folder`" in message
    message = refused(capsys, "fork", "runs/fixed@3")
    assert "fixed.py:main cannot train in a new folder, because its Config has no field for it" in message


def write_run(folder, target, overrides=()):
    source = {"module": "train", "model": "Net", "file": None, "sha256": None, "target": target,
              "overrides": list(overrides)}  # fmt: skip
    with RunWriter.create(folder, config={"load": {"source": source}}) as run:
        run.log(1, 1, {"loss": 1.0})
        run.progress(8, 1)


def test_runs_that_cannot_be_started_again(desk, capsys):
    write_run("runs/script", "train.py", ["--fast"])
    message = refused(capsys, "train", "--resume", "script")
    assert "the run was started by a script" in message
    assert "python train.py --fast" in message
    assert "resume=True" in message
    assert "burnt.train.replay(training, learner, 3)" in refused(capsys, "replay", "script", "--step", "3")
    write_run("runs/session", None)
    assert "one of an interactive session" in refused(capsys, "train", "--resume", "session")
    RunWriter.create("runs/old", config={"lr": 1}).close("finished")
    assert "one of an older burnt" in refused(capsys, "train", "--resume", "old")
    write_run("runs/moved", "gone.py:main")
    message = refused(capsys, "train", "--resume", "moved")
    assert "the function that started the run is not found" in message
    assert f"gone.py:main, as seen from {desk}" in message
    assert "was it moved or renamed?" in message
    (desk / "runs" / "gone.py").write_text(PROGRAM)
    assert f"go to {desk / 'runs'} first" in refused(capsys, "train", "--resume", "moved")
    train("epochs=1")
    sys.modules["net"].main.__annotations__["config"] = type("Run", (sys.modules["burnt"].Config,), {})
    message = refused(capsys, "train", "--resume", "net")
    assert "net.py:main does not take the settings of the run any more" in message
    assert "there is no folder 'nope'" in refused(capsys, "train", "--resume", "nope")


def test_a_function_that_trains_nothing_any_more(desk, capsys):
    train("epochs=1")
    module = sys.modules["net"]

    def main(config: module.Run):
        pass

    module.main = main
    for words in (["train", "--resume", "net"], ["replay", "net", "--step", "3"], ["fork", "net@4"]):
        message = refused(capsys, *words, code=1)
        assert "the function trains nothing" in message
        assert "net.py:main" in message
    assert [path.name for path in (desk / "runs").iterdir()] == ["net"]


def test_words_that_do_not_go_with_resume(capsys):
    for words, text in (
        (["net.py:main", "--resume", "runs/net"], "give no other one"),
        (["--resume", "runs/net", "--config", "a.json"], "not by --config"),
        ([], "MODULE:FUNCTION, or --resume RUN"),
    ):
        with pytest.raises(SystemExit) as caught:
            main(["train", *words])
        assert caught.value.code == 2
        assert text in capsys.readouterr().err


# --- burnt replay


def files(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_replay_repeats_a_step_and_writes_nothing(desk, capsys):
    train()
    before = files(desk / "runs")
    capsys.readouterr()
    assert main(["replay", "net", "--step", "11", "--json"]) == 0
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert err == "from step-00000008, 2 steps forward, about 0.0 s and the validations on the way\n"
    assert report["start"] == "step-00000008"
    step = report["step"]
    assert step["losses"] == [pytest.approx(points("runs/net")[11], abs=1e-6)]
    assert report["logged"]["loss"] == points("runs/net")[11]
    assert (report["difference"], step["non_finite"], step["epoch"], step["batches"]) == (None, None, 3, [2])
    assert report["compared"] >= 6
    loader = sys.modules["burnt"].data.Loader(range(16), 4, shuffle=True)
    assert step["samples"] == loader.order(2)[8:12].tolist()
    assert [layer for layer, *_ in step["gradients"]] == ["first", "last"]
    assert files(desk / "runs") == before
    assert len(ended()) == 1  # the lines after the training were not run again
    out = printed(capsys, "replay", "net", "--step", "11")
    assert "step 11, epoch 3, batch 2" in out
    assert "bit for bit" in out


def test_a_loss_that_became_nan_names_the_replay_which_names_the_sample(capsys):
    message = refused(capsys, "train", "net.py:main", "bad=7", "log_every=3", code=1)
    assert "the loss became nan" in message
    assert "to see where it began: burnt replay runs/net --step 1-3" in message
    out = printed(capsys, "replay", "net", "--step", "1-3")
    order = sys.modules["burnt"].data.Loader(range(16), 4, shuffle=True).order(0).tolist()
    assert f"step {order.index(7) // 4 + 1}, epoch 1" in out
    assert "not finite     batch.x, which the loader gave: 1 of 12 values, in sample 7" in out


@pytest.mark.full
def test_replay_in_the_debugger_stops_in_the_training_step(capsys, monkeypatch):
    train("epochs=1")
    monkeypatch.setattr("sys.stdin", io.StringIO("p tuple(batch.x.shape)\nn\np tuple(logits.shape)\nc\n"))
    out = printed(capsys, "replay", "net", "--step", "2", "--pdb")
    first, *_ = out.splitlines()
    assert first.endswith("training_step()")
    assert "-> logits = self(batch.x)\n(Pdb) (4, 3)" in out
    assert "(Pdb) (4, 2)" in out
    assert "step 2, epoch 1, batch 1" in out


def test_which_steps_are_replayed(capsys):
    train("epochs=1")
    capsys.readouterr()
    assert main(["replay", "net", "--step", "1-2"]) == 0
    assert capsys.readouterr().out.startswith("steps 1 to 2: all values are finite; the last one:\nstep 2, ")
    assert main(["replay", "net", "--step", "2"]) == 0
    assert capsys.readouterr().out.startswith("step 2, ")
    assert "a step from 1 to 4" in refused(capsys, "replay", "net", "--step", "5", code=1)
    for text in ("x", "0", "3-2", "-1"):
        assert "--step is invalid" in refused(capsys, "replay", "net", f"--step={text}")


@pytest.mark.full
def test_a_long_way_is_asked_about_in_a_terminal(capsys, monkeypatch):
    train("epochs=1")
    monkeypatch.setattr("burnt.cli.replay._ASK_SECONDS", -1.0)
    for answer, code in (("n\n", 2), ("y\n", 0)):
        stdin = io.StringIO(answer)
        stdin.isatty = lambda: True
        monkeypatch.setattr("sys.stdin", stdin)
        assert main(["replay", "net", "--step", "3"]) == code
        assert "from the beginning: there is no checkpoint before, 2 steps forward" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", None)
    assert main(["replay", "net", "--step", "3", "--yes"]) == 0


# --- burnt fork


@pytest.mark.parametrize("step", [6, pytest.param(8, marks=pytest.mark.full)])  # of 8 is a checkpoint
def test_a_fork_without_changes_is_the_continuation_of_its_parent(desk, capsys, step):
    train("epochs=3")
    for file in ("logs/wandb.json", "wandb/run/x", "control/00.json", "profile/step-1.json.gz", "lock"):
        (desk / "runs/net" / file).parent.mkdir(parents=True, exist_ok=True)
        (desk / "runs/net" / file).touch()
    before = files(desk / "runs")
    assert main(["fork", f"net@{step}"]) == 0
    fork = desk / f"runs/net-fork-{step}"
    assert model(fork) == model(desk / "runs/net")
    assert newest(fork).values == newest(desk / "runs/net").values
    assert points(fork) == {k: v for k, v in points("runs/net").items() if k > step}
    document = json.loads((fork / "config.json").read_text())
    assert document["fork"] == {"folder": "../net", "step": step}
    assert {path: data for path, data in files(desk / "runs").items() if fork not in path.parents} == before
    assert {path.relative_to(fork).parts[0] for path in files(fork)} == {
        "run.db",
        "config.json",
        "checkpoints",
    }


@pytest.mark.full
def test_a_fork_with_changes_can_be_resumed_replayed_and_forked(desk, capsys):
    train("epochs=2")
    assert main(["fork", "net@5", "lr=0.01", "epochs=2", "folder=runs/slow"]) == 0
    assert "runs/slow: from step 5 of runs/net" in capsys.readouterr().err
    assert min(points("runs/slow")) == 6
    assert points("runs/slow")[6] == points("runs/net")[6]  # the loss before the first changed step
    assert points("runs/slow")[7] != points("runs/net")[7]
    assert main(["train", "--resume", "slow", "epochs=3"]) == 0
    assert json.loads((desk / "runs/slow/config.json").read_text())["fork"] == {"folder": "../net", "step": 5}
    assert main(["replay", "slow", "--step", "7"]) == 0
    assert main(["fork", "slow@7"]) == 0
    assert points("runs/slow-fork-7")[8] == points("runs/slow")[8]
    assert main(["fork", "slow@7"]) == 0
    assert (desk / "runs/slow-fork-7-2").exists()
    for words in (["replay", "slow", "--step", "5"], ["fork", "slow@4"]):
        message = refused(capsys, *words, code=1)
        assert (
            f"there is no way to step {words[-1].removeprefix('slow@')}: the run itself begins after"
            in message
        )
        assert "the steps before are those of runs/net, which it was forked from" in message
    assert main(["fork", "slow@5"]) == 0
    assert points("runs/slow-fork-5")[8] == points("runs/slow")[8]


def test_a_fork_of_a_program_that_gives_other_values_now_warns(desk, capsys):
    train("epochs=1")
    capsys.readouterr()
    assert main(["fork", "net@2"]) == 0
    assert "other values" not in capsys.readouterr().err
    with contextlib.closing(sqlite3.connect(desk / "runs/net/run.db")) as database, database:
        database.execute("UPDATE point SET value = 9 WHERE step = 1")
    assert main(["fork", "net@2"]) == 0
    message = capsys.readouterr().err
    assert "warning: the program gives other values now than in runs/net, and the fork starts from" in message
    assert "from these: train/learning_rate at step 1: 9.0 in the run, 0.1 now" in message


@pytest.mark.full
def test_forks_that_cannot_be_made_leave_nothing(desk, capsys):
    train("epochs=2")
    for words, code, text in (
        (["net@6", "width=5"], 1, "does not fit the model"),
        (["net@6", "batch=2"], 1, "fork at the end of an epoch, or keep the settings of the loader"),
        (["net@9"], 1, "a step from 1 to 8"),
        (["net"], 2, "RUN@STEP, such as runs/digits@1200"),
        (["net@0"], 2, "RUN@STEP"),
        (["net@4", "wdth=5"], 2, "did you mean 'width'?"),
        (["net@4", "folder=runs/net"], 2, "runs/net is not empty"),
        (["nope@4"], 2, "there is no folder 'nope'"),
    ):
        assert text in refused(capsys, "fork", *words, code=code)
        assert [path.name for path in (desk / "runs").iterdir()] == ["net"]
    (newest(desk / "runs/net").path / "model.safetensors").write_bytes(b"half")
    message = refused(capsys, "fork", "net@8", code=1)
    assert "remove the folder runs/net/checkpoints/step-00000008 to resume from step-00000004" in message
    assert [path.name for path in (desk / "runs").iterdir()] == ["net"]


@pytest.mark.full
def test_a_fork_at_the_end_of_an_epoch_takes_another_batch_size(desk):
    train("epochs=2")
    assert main(["fork", "net@4", "batch=8"]) == 0
    assert sorted(points("runs/net-fork-4")) == [5, 6]


# --- burnt runs reproduce


def test_a_run_that_is_reproduced(desk, capsys):
    train("epochs=2")
    capsys.readouterr()
    found = json.loads(printed(capsys, "runs", "reproduce", "net", "--json"))
    assert (found["equal"], found["reproduction"]) == (True, "runs/net-reproduced")
    series = [("loss", "train"), ("learning_rate", "train"), ("loss", "valid")]
    assert found["compared"] == sum(len(points("runs/net", *one)) for one in series)
    assert all(pair["equal"] for pair in found["circumstances"].values())


@pytest.mark.full
def test_a_fork_is_reproduced_from_its_parent(desk, capsys):
    train("epochs=2")
    assert main(["fork", "net@5", "lr=0.3"]) == 0
    capsys.readouterr()
    assert json.loads(printed(capsys, "runs", "reproduce", "net-fork-5", "--json"))["equal"]
    with RunReader("runs/net-fork-5-reproduced") as reader:
        assert (reader.parent().step, reader.points("loss").steps) == (5, [6, 7, 8])
    (desk / "runs" / "net").rename(desk / "net-elsewhere")
    message = refused(capsys, "runs", "reproduce", "net-fork-5")
    assert "the run is a fork of a run that is gone" in message
    assert "from whose step 5 it starts" in message


@pytest.mark.full
def test_a_run_that_is_not_reproduced_differs_from_a_step_on(desk, capsys):
    train("epochs=2")
    (desk / "net.py").write_text(PROGRAM.replace("Dropout(0.3)", "Dropout(0.31)"))
    del sys.modules["net"]
    capsys.readouterr()
    out = printed(capsys, "runs", "reproduce", "net", "--out", "runs/again", code=1)
    assert "changed since the run" in out
    assert "different: train/loss at step 1: " in out
    assert "runs/again exists" in refused(capsys, "runs", "reproduce", "net", "--out", "runs/again")


@pytest.mark.full
def test_what_was_changed_while_a_run_went_on_is_named_as_a_cause(desk, capsys):
    train("epochs=1")
    with RunWriter.create("runs/net", resume=True, resumed_from_step=4) as run:
        run.event("learning_rate", 6, value=0.5)
    assert main(["train", "--resume", "net", "epochs=2", "lr=0.05"]) == 0
    capsys.readouterr()
    out = printed(capsys, "runs", "reproduce", "net", code=1)
    causes = "epochs changed at step 4, lr changed at step 4, learning rate 0.5 at step 6"
    assert causes in " ".join(out.split())
    shutil.rmtree(desk / "runs/net/checkpoints/step-00000004")
    assert main(["replay", "net", "--step", "3"]) == 0
    assert "warning: the run was resumed" not in capsys.readouterr().err
    assert main(["replay", "net", "--step", "7"]) == 1
    err = capsys.readouterr().err
    assert (
        "warning: the run was resumed at step 4 with other settings; the steps before it are run with" in err
    )
    assert "different: train/learning_rate at step 1: 0.1 in the run, 0.05 now" in out
