"""Runs of somebody else: what their config.json names is executed if it is installed or they are trusted."""

import argparse
import json
import os
import shutil
import sqlite3
import stat
import sys
from pathlib import Path

import pytest
import torch

import burnt
from burnt import nn, optim
from burnt.cli import main
from burnt.cli.arguments import _build_parser
from burnt.data import Loader, TensorDataset
from burnt.errors import RunError
from burnt.store.sweeps import Sweep
from burnt.train import Learner, StepOutput, SupervisedTraining
from tests.cli.commands import refused

CODE = """
from pathlib import Path
Path(__file__).with_name("executed").touch()

def main(config):
    Path(__file__).with_name("called").touch()
"""

EXECUTING = {
    "train": "train --resume gift",
    "replay": "replay gift --step 1",
    "fork": "fork gift@2",
    "evaluate": "evaluate gift --data data.py:batches",
    "predict": "predict gift --data data.py:batches",
    "export": "export gift -o gift.onnx",
    "page": "page gift -o gift.html",
    "c": "c gift -o firmware",
    "serve": "serve gift --port 0",
    "quantize": "quantize gift",
    "runs reproduce": "runs reproduce gift",
}
READING = {
    "runs list": "runs list .",
    "runs show": "runs show gift",
    "runs export": "runs export gift --format csv",
    "runs compare": "runs compare gift same",
    "runs search": "runs search loss<100 --in .",
    "runs tag": "runs tag gift +new",
    "runs note": "runs note gift words",
    "runs rm": "runs rm same --yes",
    "monitor": "monitor gift --once",
    "ctl": "ctl gift stop",
    "show": "show gift/checkpoints/step-00000002/model.safetensors",
    "convert": "convert gift/checkpoints/step-00000002/model.safetensors gift.npz",
}
OTHERS = {
    "new",
    "check",
    "import",
    "tune run",
    "tune show",
    "tune export",
    "tune import",
    "tune clear",
    "bench",
    "explain",
    "info",
}


class Net(nn.Linear):
    pass


def step(model, batch):
    return StepOutput(model(batch.x).square().mean(), targets=batch.x)


def train(folder, model=None, **settings):
    model = Net.Config(in_features=2, out_features=1).init() if model is None else model
    loader = Loader(TensorDataset(x=torch.ones(4, 2)), 2)
    SupervisedTraining(folder, train=loader, duration="1 epoch", monitor="off", device="cpu", **settings).run(
        Learner(model, optim.Sgd(), 0.1, step=step)
    )


def change(run, source=None, **load):
    """Rewrite what a run says of itself, as whoever sends it may do, in config.json and in run.db."""
    document = json.loads((run / "config.json").read_text())
    document["load"].update(load)
    document["load"]["source"].update(source or {})
    text = json.dumps(document)
    (run / "config.json").write_text(text)
    with sqlite3.connect(run / "run.db") as connection:
        connection.execute("UPDATE attempt SET config = ?", (text,))
    connection.close()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run whose config.json names code in its own folder."""
    folder = tmp_path_factory.mktemp("somebody") / "gift"
    train(folder)
    (folder / "evil.py").write_text(CODE)
    source = {
        "module": "evil", "model": "Net", "file": "gift/evil.py", "sha256": None,
        "target": "gift/evil.py:main", "config": {},
    }  # fmt: skip
    change(folder, source, id="0" * 32)
    return folder


@pytest.fixture
def gift(made, desk, monkeypatch):
    """A copy of it in the current folder, for a user who has trusted nothing yet."""
    shutil.copytree(made, desk / "gift")
    (desk / "data.py").write_text("import torch\nbatches = [{'x': torch.ones(2, 2)}]\n")
    monkeypatch.setenv("XDG_STATE_HOME", str(desk / "state"))
    return desk / "gift"


def is_executed(gift):
    """Whether its code was executed; forgets it."""
    sys.modules.pop("evil", None)
    found = (gift / "executed").exists()
    (gift / "executed").unlink(missing_ok=True)
    return found


def test_every_command_is_listed_here():
    commands, trusting = {}, set()

    def walk(parser, name):
        choices = [a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
        for word, below in (choices[0] if choices else {}).items():
            walk(below, f"{name} {word}".strip())
        if not choices:
            commands[name] = parser
            if "--trust" in parser._option_string_actions:
                trusting.add(name)

    walk(_build_parser(), "")
    assert set(commands) == EXECUTING.keys() | READING.keys() | OTHERS | {"sweep"}
    assert trusting == EXECUTING.keys() | {"sweep"}


@pytest.mark.parametrize("command", EXECUTING)
def test_code_in_the_folder_of_a_run_is_executed_if_the_run_is_trusted(command, gift, capsys):
    words = EXECUTING[command].split()
    assert main(words) == 1
    assert not is_executed(gift)
    text = capsys.readouterr().err
    is_started_again = command in ("train", "replay", "fork", "runs reproduce")
    what = "call its function main" if is_started_again else "build its Net"
    assert f"found     it would import {gift / 'evil.py'} and {what}" in text
    assert "--trust, or trust=True in Python" in text
    assert "importing" not in text
    main([*words, "--trust"])  # which fails: there is no Net, and main takes no Config
    assert is_executed(gift)
    assert not (gift / "called").exists()
    main(words)
    assert is_executed(gift)  # it is remembered


def test_a_sweep_from_another_user_runs_if_it_is_trusted(desk, monkeypatch, capsys):
    monkeypatch.setenv("XDG_STATE_HOME", str(desk / "state"))
    (desk / "evil.py").write_text("from pathlib import Path\nPath('executed').touch()\n")
    (desk / "gift").mkdir()
    Sweep(target="evil.py:main", space=(), trials=1, sampler="random").save(desk / "gift" / "sweep.json")
    words = ["sweep", "gift/"]
    assert main(words) == 1
    text = capsys.readouterr().err
    assert "not trusted" in text
    assert "it would call evil.py:main" in text
    assert not (desk / "executed").exists()
    main([*words, "--trust"])  # whose trial fails: there is no main
    assert (desk / "executed").exists()


@pytest.mark.parametrize("command", READING)
def test_commands_that_read_a_run_execute_nothing(command, gift):
    shutil.copytree(gift, gift.with_name("same"))
    main(READING[command].split())
    assert not is_executed(gift)
    assert not is_executed(gift.with_name("same"))
    assert "evil" not in sys.modules


@pytest.mark.parametrize("settings", [{"import_code": True}, {}, {"trust": True}], ids=str)
def test_load_imports_code_of_a_trusted_run(settings, gift):
    with pytest.raises(burnt.errors.BurntError) as caught:
        burnt.load(gift, **settings)
    assert is_executed(gift) == ("trust" in settings)
    if "import_code" in settings:
        assert isinstance(caught.value, RunError)
        assert caught.value.found == f"it would import {gift / 'evil.py'} and build its Net"


# How else a config.json can name code that came with it: (the current folder, the source).
NAMES = {
    "an absolute path": (".", {"file": "{gift}/evil.py", "target": "{gift}/evil.py:main"}),
    "a path outside": (".", {"file": "near.py", "module": "near", "target": "near.py:main"}),
    "a script": (".", {"target": "gift/evil.py"}),
    "in the current folder": ("gift", {"file": "evil.py", "target": "evil.py:main"}),
    "a module in the current folder": ("gift", {"file": None, "target": "evil:main"}),
    "a module near the folder": (".", {"file": None, "module": "near", "target": "near:main"}),
    "a module of a package": (".", {"file": None, "module": "gift.evil", "target": "gift.evil:main"}),
    "a package whose module is missing": (".", {"file": None, "module": "pack.no", "target": "pack.no:main"}),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_module_that_came_with_the_run_is_not_installed(name, gift, monkeypatch, capsys):
    where, source = NAMES[name]
    (gift.parent / "near.py").write_text(CODE)
    (gift.parent / "pack").mkdir()
    (gift.parent / "pack" / "__init__.py").write_text(CODE)
    change(gift, {key: value and value.format(gift=gift) for key, value in source.items()})
    monkeypatch.chdir(where)
    sys.path[:0] = ["", os.getcwd()]  # as a prompt and `python -m burnt` have it
    run = str(gift) if where == "." else "."
    for words in (["train", "--resume", run], ["export", run, "-o", "out.onnx"]):
        is_script = words[0] == "train" and source["target"] == "gift/evil.py"
        assert main(words) == (2 if is_script else 1)
        text = capsys.readouterr().err
        assert ("the run was started by a script" if is_script else "nothing was imported") in text
    with pytest.raises(RunError, match="nothing was imported"):
        burnt.load(run, import_code=True)
    assert not list(gift.parent.rglob("executed"))


DANGEROUS = ["os:system", "subprocess:run", "builtins:eval", "runpy:run_path", "antigravity:fly", "this:s",
             "burnt.train.code.trust:os.system"]  # fmt: skip


@pytest.mark.parametrize("target", DANGEROUS)
def test_installed_code_is_called_only_if_it_is_a_function_of_a_config(target, gift, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "webbrowser", None)  # antigravity would import it
    change(gift, {"target": target, "config": {"command": "touch executed"}})
    is_new = target.partition(":")[0] not in sys.modules
    text = refused(capsys, "train", "--resume", "gift", code=1)
    assert f"and call its function {target.partition(':')[2]}" in text
    assert not (is_new and target.partition(":")[0] in sys.modules)
    if not target.startswith("antigravity"):  # it opens a browser
        assert main(["train", "--resume", "gift", "--trust"]) == 2
    sys.modules.pop("this", None)


CLASSES = [("os", "path"), ("torch", "nn.Linear"), ("burnt", "nn.Linear"), ("this", "Net"), ("", ""),
           ("burnt.cli", "main.__globals__")]  # fmt: skip


@pytest.mark.parametrize(("module", "model"), CLASSES)
def test_a_class_must_be_a_module_that_its_module_defines(module, model, gift):
    change(gift, {"module": module, "model": model, "file": None})
    with pytest.raises(RunError, match="nothing was imported"):
        burnt.load(gift, import_code=True)
    assert "this" not in sys.modules


LIBRARY = """
import burnt
from burnt import nn

class Net(nn.Linear):
    pass

class Run(burnt.Config):
    lr: float = 1.0

called = []

def main(config: Run):
    called.append(config.lr)

def other(config: int):
    called.append("other")
"""


@pytest.fixture
def library(tmp_path_factory, monkeypatch):
    """A folder on sys.path with a package that defines a model and a training function."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "shared_nets").mkdir()
    (folder / "shared_nets" / "__init__.py").write_text("")
    (folder / "shared_nets" / "nets.py").write_text(LIBRARY)
    sys.path.append(str(folder))
    yield folder
    for name in ("shared_nets", "shared_nets.nets"):
        sys.modules.pop(name, None)


def test_installed_code_needs_no_trust(library, gift, capsys):
    source = {"module": "shared_nets.nets", "model": "Net", "file": "nowhere/nets.py",
              "target": "shared_nets.nets:main", "config": {"lr": 0.25}}  # fmt: skip
    change(gift, source)
    assert type(burnt.load(gift, import_code=True)).__module__ == "shared_nets.nets"
    assert main(["train", "--resume", "gift"]) == 1  # the function trains nothing
    assert "the function trains nothing" in capsys.readouterr().err
    assert sys.modules["shared_nets.nets"].called == [0.25]
    change(gift, {"target": "shared_nets.nets:other"})
    assert main(["train", "--resume", "gift"]) == 2  # its parameter is not a Config
    assert "not annotated with a burnt.Config" in capsys.readouterr().err
    assert sys.modules["shared_nets.nets"].called == [0.25]


def test_a_run_of_one_s_own_is_known_wherever_it_is(desk, monkeypatch, tmp_path_factory):
    monkeypatch.setenv("XDG_STATE_HOME", str(desk / "state"))
    (desk / "own_net.py").write_text("from burnt import nn\nclass Net(nn.Linear): pass\n")
    sys.path.insert(0, str(desk))
    import own_net

    train("runs/own", own_net.Net.Config(in_features=2, out_features=1).init())
    (desk / "own_net.py").write_text("from burnt import nn\nclass Net(nn.Linear): pass\n# changed\n")
    moved = Path(shutil.move("runs/own", desk / "moved"))
    sys.path.remove(str(desk))
    sys.modules.pop("own_net")
    with pytest.warns(UserWarning, match="has changed since the run moved was started"):
        assert type(burnt.load(moved, import_code=True)).__name__ == "Net"
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (desk / "state" / "burnt").rglob("*")]
    assert sorted(modes) == [0o600, 0o700]
    assert stat.S_IMODE((desk / "state" / "burnt").stat().st_mode) == 0o700
    sys.modules.pop("own_net")
    change(moved, seed=1)  # as anybody can whom the run was given
    with pytest.raises(RunError, match="is not trusted"):
        burnt.load(moved, import_code=True)


OWN_CODE = "from burnt import nn\nclass Net(nn.Linear): pass\n"


@pytest.fixture
def own(desk, monkeypatch):
    """A run of one's own in ``project/run``, and the code of its model next to it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(desk / "state"))
    project = desk / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    (project / "own_net.py").write_text(OWN_CODE)
    monkeypatch.syspath_prepend(str(project))
    import own_net

    train("run", own_net.Net.Config(in_features=2, out_features=1).init())
    monkeypatch.chdir(desk)
    sys.path.remove(str(project))
    yield project
    sys.modules.pop("own_net", None)


@pytest.mark.sample
@pytest.mark.parametrize(
    ("is_edited", "code"),
    [
        (False, OWN_CODE),  # the whole project was copied
        (False, OWN_CODE + "# another one\n"),
        (True, OWN_CODE + "# another one\n"),
        (True, None),
    ],
    ids=["copied", "changed", "changed next to an edited one", "edited"],
)
@pytest.mark.filterwarnings("ignore:.* has changed since")
def test_code_outside_of_a_run_is_that_of_its_path_or_its_content(is_edited, code, own, monkeypatch):
    other = own.parent / "other"
    shutil.copytree(own / "run", other / "run")
    sys.modules.pop("own_net")
    if is_edited:
        (own / "own_net.py").write_text(OWN_CODE + "# edited\n")
    if code is not None:
        (other / "own_net.py").write_text(code)
        monkeypatch.chdir(other)
        if code != OWN_CODE:
            with pytest.raises(RunError, match=f"would import {other / 'own_net.py'}"):
                burnt.load("run", import_code=True)
            burnt.load("run", trust=True)
            sys.modules.pop("own_net")
        assert type(burnt.load("run", import_code=True)).__name__ == "Net"
    else:  # the path that was marked may have other content, as of a file that one works on
        monkeypatch.chdir(own)
        assert type(burnt.load("run", import_code=True)).__name__ == "Net"


def test_relative_entries_of_the_path_are_not_installed(gift, monkeypatch, capsys):
    (gift / "src").mkdir()
    code = CODE.replace("config", "config: burnt.Config") + "import burnt\nclass Net(burnt.nn.Linear): pass\n"
    (gift / "src" / "near.py").write_text("from __future__ import annotations\n" + code)
    change(gift, {"file": None, "module": "near", "target": "near:main"})
    shutil.move(gift / "src", gift.parent / "src")
    monkeypatch.setenv("PYTHONPATH", "src")
    monkeypatch.syspath_prepend(str(gift.parent / "src"))  # as Python makes it
    for words in (["train", "--resume", "gift"], ["export", "gift", "-o", "out.onnx"]):
        assert "nothing was imported" in refused(capsys, *words, code=1)
    assert not (gift.parent / "src" / "executed").exists()


def test_two_equal_trainings_have_marks_of_their_own(desk, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(desk / "state"))
    train("runs/a")
    train("runs/b")
    a, b = (json.loads(Path(f"runs/{name}/config.json").read_text()) for name in "ab")
    assert a["load"].pop("id") != b["load"].pop("id")
    assert a == b
    train("runs/a", resume=True)
    assert len(list((desk / "state" / "burnt" / "trust").iterdir())) == 3


@pytest.mark.parametrize("changed", ["config", "code"])
def test_trust_ends_with_a_change(changed, gift):
    with pytest.raises(burnt.errors.RecordError):
        burnt.load(gift, trust=True)
    assert is_executed(gift)
    if changed == "code":
        (gift / "evil.py").write_text(CODE + "\n")
    else:
        change(gift, seed=3)
    with pytest.raises(RunError, match="is not trusted"):
        burnt.load(gift, import_code=True)
    assert not is_executed(gift)


def test_bytecode_that_came_with_the_code_is_not_executed(gift):
    import py_compile

    py_compile.compile(str(gift / "evil.py"), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    (gift / "evil.py").write_text(CODE.replace("executed", "innocent"))
    with pytest.raises(burnt.errors.RecordError):
        burnt.load(gift, trust=True)
    assert not is_executed(gift)
    assert (gift / "innocent").exists()


def test_marks_that_others_could_have_made_count_for_nothing(gift, capsys):
    main(["export", "gift", "-o", "gift.onnx", "--trust"])
    assert is_executed(gift)
    folder = gift.parent / "state" / "burnt" / "trust"
    folder.chmod(0o777)
    assert main(["export", "gift", "-o", "gift.onnx"]) == 1
    assert not is_executed(gift)
    assert f"{folder} belongs to another user, or others can write to it" in capsys.readouterr().err


def test_a_state_folder_that_cannot_be_written(gift, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    with (
        pytest.warns(UserWarning, match="cannot be recorded as trusted"),
        pytest.raises(burnt.errors.RecordError),
    ):
        burnt.load(gift, trust=True)
    assert is_executed(gift)
    with pytest.raises(RunError, match="is not trusted"):
        burnt.load(gift, import_code=True)
    with pytest.warns(UserWarning, match="cannot be recorded as trusted"):
        train("runs/own")


def test_a_state_folder_that_came_with_the_run_is_not_the_user_s(gift, monkeypatch):
    with pytest.raises(burnt.errors.RecordError):
        burnt.load(gift, trust=True)
    assert is_executed(gift)
    monkeypatch.setenv("HOME", str(gift.parent / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", "state")  # relative to the folder that the user is in
    with pytest.raises(RunError, match="is not trusted"):
        burnt.load(gift, import_code=True)


def test_marks_that_are_damaged_are_no_trust(gift):
    folder = gift.parent / "state" / "burnt"
    folder.mkdir(parents=True)
    (folder / "trust").write_bytes(b"\0\xff")
    with pytest.warns(UserWarning, match="cannot be recorded"), pytest.raises(burnt.errors.RecordError):
        burnt.load(gift, trust=True)
    assert is_executed(gift)
    with pytest.raises(RunError, match="is not trusted"):
        burnt.load(gift, import_code=True)


def test_a_source_of_wrong_types_is_none(gift):
    change(gift, {"module": ["os"], "file": 5, "overrides": 7})
    with pytest.raises(burnt.errors.RecordError, match="the class of the run's model is not imported"):
        burnt.load(gift, import_code=True)


def test_trust_is_for_runs(capsys):
    with pytest.raises(SystemExit):
        main(["train", "net.py:main", "--trust"])
    assert "--trust is about the code that a run names: it needs --resume RUN" in capsys.readouterr().err
