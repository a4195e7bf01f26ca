"""`burnt train`: finding the function, building its Config, and how it ends."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import burnt
from burnt import Config
from burnt.cli import main
from burnt.errors import DataError
from burnt.store import RunWriter
from tests.cli.commands import printed, refused

ROOT = Path(burnt.__file__).parents[1]

PROGRAM = """
from burnt import Config
from burnt.errors import DataError
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from burnt.train import TrainingResult

class Model(Config):
    hidden: int = 64

class Run(Config):
    model: Model = Model()
    lr: float = 0.001
    name: str = "a"

class Needy(Config):
    data: str
    epochs: int
    model: Model
    lr: float = 0.1

ran = []

def main(config: Run):
    ran.append(config)
    return "a result"

def worded(config: "Run") -> "TrainingResult":
    ran.append(config)

def needy(config: Needy):
    ran.append(config)

def fails(config: Run):
    raise DataError("no data", where="loader", hint="make some")

def breaks(config: Run):
    raise ValueError("mine")

def leaves(config: Run):
    raise SystemExit(130)

def interrupted(config: Run):
    raise KeyboardInterrupt

def bare(config): ...
def none(): ...
def two(config: Run, other: int): ...
def named(*, config: Run): ...
def wrong(config: int): ...
def unknown(config: "Rnu"): ...
def hidden(config: "TrainingResult"): ...
constant = 3
"""


@pytest.fixture(autouse=True)
def program(desk):
    (desk / "work" / "deep").mkdir(parents=True)
    (desk / "work" / "digits.py").write_text(PROGRAM)
    return desk / "work" / "digits.py"


def ran():
    names = [name for name in ("work.digits", "digits") if name in sys.modules]
    return [config.to_dict() for name in names for config in sys.modules[name].ran]


def failure(capsys, *words):
    """The message of a command line that is refused."""
    assert main(["train", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert "Traceback" not in captured.err
    assert ran() == []
    return captured.err


@pytest.mark.parametrize("module", ["work.digits", "work/digits.py", "./work/../work/digits.py"])
@pytest.mark.parametrize("function", ["main", "worded"])
def test_runs_with_overrides(module, function):
    assert main(["train", f"{module}:{function}", "model.hidden=8", "lr=1e-2", "name=12"]) == 0
    assert ran() == [{"model": {"hidden": 8}, "lr": 0.01, "name": "12"}]


def test_runs_an_absolute_path(program, tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert main(["train", f"{program}:main"]) == 0
    assert ran() == [{"model": {"hidden": 64}, "lr": 0.001, "name": "a"}]


def test_a_file_imports_its_neighbours(desk):
    (desk / "work" / "beside.py").write_text("value = 5")
    (desk / "work" / "near.py").write_text(
        "import beside\nfrom burnt import Config\nclass C(Config):\n    x: int = beside.value\n"
        "def main(config: C):\n    print(config.x)\n"
    )
    assert main(["train", "work/near.py:main"]) == 0


def test_string_annotations_of_a_whole_module(desk):
    (desk / "late.py").write_text(
        "from __future__ import annotations\nfrom burnt import Config\n"
        "def main(config: C) -> Unknown:\n    print(config.x)\nclass C(Config):\n    x: int = 5\n"
    )
    assert main(["train", "late:main", "x=6"]) == 0


def test_words_may_stand_on_both_sides_of_options(tmp_path):
    assert main(["train", "work.digits:main", "lr=1", "--show", "name=b"]) == 0
    assert main(["train", "--show", "work.digits:main", "lr=1"]) == 0
    assert main(["train", "--nproc", "2", "--show", "work.digits:main", "lr=1"]) == 0  # in this process
    assert ran() == []


def test_show_prints_the_configuration(capsys):
    assert json.loads(printed(capsys, "train", "work.digits:main", "--show", "model.hidden=3")) == {
        "model": {"hidden": 3},
        "lr": 0.001,
        "name": "a",
    }


def test_starts_from_a_file(tmp_path):
    class Model(Config):
        hidden: int = 7

    class Run(Config):
        model: Model = Model()
        lr: float = 0.5
        name: str = "saved"

    Run().save(tmp_path / "base.json")
    assert main(["train", "work.digits:main", "--config", "base.json", "lr=2"]) == 0
    assert ran() == [{"model": {"hidden": 7}, "lr": 2.0, "name": "saved"}]


def test_starts_from_a_run():
    config = {"model": {"hidden": 7}, "lr": 0.5, "name": "saved"}
    settings = {"config": config, "model": "Net", "optimizer": "AdamW()", "duration": "2 epochs"}
    RunWriter.create("runs/digits", config=settings).close("finished")
    for source in ("runs/digits", "runs/digits/config.json"):
        assert main(["train", "work.digits:main", "--config", source, "lr=2"]) == 0
    assert ran() == [{**config, "lr": 2.0}] * 2


def test_required_fields_are_set_by_words():
    assert main(["train", "work.digits:needy", "data=x", "epochs=3", "model.hidden=1"]) == 0
    assert ran() == [{"data": "x", "epochs": 3, "model": {"hidden": 1}, "lr": 0.1}]


def test_required_fields_that_are_missing(capsys):
    assert failure(capsys, "work.digits:needy", "lr=1") == textwrap.dedent("""\
        error: Needy cannot be built: 2 problems
          in        data
          expected  str
          found     nothing
          from      also epochs: nothing, expected int
          hint      set it with: data=value
        """)


def test_a_value_of_the_wrong_type_is_not_to_be_set_again(capsys):
    text = failure(capsys, "work.digits:needy", "data=x", "epochs=many")
    assert "found     'many' (str)" in text
    assert "set it with" not in text


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        ("work/digits.py", ["the target names no function", "hint      work/digits.py:main, if"]),
        ("work.digits:", ["the target names no function"]),
        ("work.digts:main", ["no module 'work.digts'", "'work.digits'?"]),
        ("digits:main", ["no module 'digits'", "'work.digits'?"]),
        ("wrk.digits:main", ["no module 'wrk.digits'", "'work.digits'?"]),
        ("work..digits:main", ["no module 'work..digits'", "'work.digits'?"]),
        ("work/digts.py:main", ["no file 'work/digts.py'", "'work/digits.py'?"]),
        ("work/digits:main", ["no file 'work/digits'", "'work/digits.py'?"]),
        ("work.digits:mian", ["no function 'mian'", "did you mean 'main'?", "its functions: main, worded"]),
        ("work.digits:constant", ["is not a function", "found     int"]),
        ("work.digits:bare", ["'config' of work.digits:bare is not annotated", "def bare(config: MyConfig)"]),
        ("work.digits:none", ["must take exactly one parameter", "found     def none()"]),
        ("work.digits:two", ["must take exactly one parameter", "other: int"]),
        ("work.digits:named", ["must take exactly one parameter"]),
        ("work.digits:wrong", ["is not annotated with a burnt.Config", "config: int"]),
        ("work.digits:unknown", ["cannot be resolved", "'Rnu' is not defined"]),
        ("work.digits:hidden", ["cannot be resolved", "TYPE_CHECKING"]),
    ],
)
def test_functions_that_cannot_be_called(target, parts, capsys):
    message = failure(capsys, target)
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("modl.hidden=1", ["no key 'modl.hidden'", "did you mean 'model'?"]),
        ("model.hiden=1", ["model.hiden", "did you mean 'hidden'?"]),
        ("lr=fast", ["lr", "expected  float", "'fast'"]),
        ("lr", ["'lr' is not an assignment", "key=value"]),
        ("model=[", ["'[' is not JSON"]),
    ],
)
def test_words_that_do_not_fit(word, parts, capsys):
    message = failure(capsys, "work.digits:main", word)
    for part in parts:
        assert part in message


def test_config_files_that_cannot_be_read(capsys, desk):
    assert "No such file" in failure(capsys, "work.digits:main", "--config", "none.json")
    (desk / "broken.json").write_text('{"format": 1, "config": {"lr": "x"}')
    assert "in        broken.json" in failure(capsys, "work.digits:main", "--config", "broken.json")


def test_a_name_that_is_taken(desk, capsys):
    (desk / "json.py").write_text("def main(config): ...")
    assert "another module 'json' is already loaded" in failure(capsys, "./json.py:main")


@pytest.mark.sample
@pytest.mark.parametrize("target", ["broken:main", "./broken.py:main"])
@pytest.mark.parametrize("line", ["import nubmy", "import work.nothing", "from json import dmups", "1 / 0"])
def test_errors_inside_the_module_are_its_own(desk, target, line):
    (desk / "broken.py").write_text(f"\n\n{line}\n")
    with pytest.raises((ImportError, ZeroDivisionError)) as caught:
        main(["train", target])
    assert (caught.traceback[-1].path, caught.traceback[-1].lineno) == (desk / "broken.py", 2)
    assert "broken" not in sys.modules


def test_errors_of_burnt_have_no_traceback(capsys, monkeypatch):
    assert refused(capsys, "train", "work.digits:fails", code=1) == (
        "error: no data\n  in        loader\n  hint      make some\n"
        "(set BURNT_DEBUG=1 to see the traceback)\n"
    )
    monkeypatch.setenv("BURNT_DEBUG", "1")
    with pytest.raises(DataError):
        main(["train", "work.digits:fails"])


def test_other_ends():
    with pytest.raises(ValueError, match="mine"):
        main(["train", "work.digits:breaks"])
    with pytest.raises(SystemExit) as ended:
        main(["train", "work.digits:leaves"])
    assert ended.value.code == 130
    assert main(["train", "work.digits:interrupted"]) == 130


TRAINING = """
import torch
import burnt
from burnt import Config, data, nn, optim
from burnt.train import ClassificationOutput, Learner, SupervisedTraining

class Net(burnt.Module):
    a: nn.Linear
    def forward(self, x):
        return self.a(x)
    def training_step(self, batch):
        logits = self(batch.x)
        return ClassificationOutput(torch.nn.functional.cross_entropy(logits, batch.y), logits, batch.y)

class Run(Config):
    epochs: int = 2

def main(config: Run):
    batches = data.Loader(data.TensorDataset(x=torch.randn(64, 4), y=torch.arange(64) % 2), 16)
    training = SupervisedTraining("runs/net", train=batches, valid=batches, monitor="plain",
                                  duration=f"{config.epochs} epochs", device="cpu")
    training.run(Learner(Net(nn.Linear(4, 2)), optim.Sgd(), lambda step: 0.1))
"""


@pytest.mark.full  # tests/train/test_training.py sends signals to a training that a script runs
def test_ctrl_c_of_a_real_training_ends_with_130(desk):
    (desk / "real.py").write_text(TRAINING)
    command = [sys.executable, "-m", "burnt", "train", "real.py:main", "epochs=1000000"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if re.match(r"epoch +1/1000000", line):
                    process.send_signal(signal.SIGINT)
                    break
            rest = process.communicate(timeout=120)[0]
        finally:
            process.kill()
    assert process.returncode == 130, rest
    assert "resume=True" in rest
    assert "Traceback" not in rest
    assert main(["runs", "show", "runs/net"]) == 0


def test_a_real_training_is_listed_and_shown(desk, capsys):
    (desk / "real_two.py").write_text(TRAINING)
    assert main(["train", "real_two:main"]) == 0
    capsys.readouterr()
    (run,) = json.loads(printed(capsys, "runs", "list", "--json"))
    assert (run["folder"], run["state"], run["progress"]["fraction"]) == ("runs/net", "finished", 1.0)
    assert run["metric"] == {"name": "loss", "split": "valid"}
    out = printed(capsys, "runs", "show", "runs/net")
    assert re.search(r"^step-0+8 +[\d.]+ KiB +\ds  train/loss 0\.\d+  valid/loss 0\.\d+$", out, re.MULTILINE)
    assert re.search(r"^optimizer +Sgd", out, re.MULTILINE)


def test_what_is_shown_meanwhile_can_be_said(desk, monkeypatch, capsys):
    monkeypatch.setenv("TERM", "xterm")
    (desk / "shown.py").write_text(
        "import burnt\n"
        "from burnt.train.reporting.progress import choose_reporter\n"
        "class C(burnt.Config):\n    monitor: str = 'auto'\n"
        "def main(config: C): print(type(choose_reporter(config.monitor)).__name__)\n"
    )
    for words, kind in (
        ([], "PlainReporter"),
        (["--monitor", "live"], "LiveReporter"),
        (["--monitor", "off"], "Reporter"),
        (["monitor=plain", "--monitor", "off"], "PlainReporter"),  # the function's own word holds
    ):
        monkeypatch.setenv("BURNT_MONITOR", "")
        assert printed(capsys, "train", "shown:main", *words) == f"{kind}\n"
    with pytest.raises(SystemExit) as caught:
        main(["train", "shown:main", "--monitor", "telly"])
    assert caught.value.code == 2
