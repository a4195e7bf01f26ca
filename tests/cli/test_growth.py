"""Commands on runs take work in proportion to what there is: counted, since times depend on the machine."""

import sys

import pytest

from burnt.cli import main
from burnt.store import RunReader, RunWriter

SIZES = (4, 8, 16)


def of_metrics(folder, size):
    for name in "ab":
        better = {f"m{i}": "lower" for i in range(size)}
        with RunWriter.create(folder / name, config={"config": {name: 1}, "metrics": better}) as run:
            run.log(1, 1, dict.fromkeys(better, 1.0))


def of_splits(folder, size):
    for name in "ab":
        with RunWriter.create(folder / name, config={"metrics": {"loss": "lower"}}) as run:
            for i in range(size):
                run.log(1, 1, {"loss": 1.0}, f"split{i}")


def of_runs(folder, size):
    for i in range(size):
        with RunWriter.create(folder / f"r{i}", config={"config": {"lr": i}}) as run:
            run.log(1, 1, {"loss": 1.0})


COMMANDS = {
    "runs show FOLDER/a": (of_metrics, of_splits),
    "runs compare FOLDER/a FOLDER/b": (of_splits,),
    "runs export FOLDER/a --format tensorboard": (of_splits,),
    "monitor FOLDER/a --once": (of_metrics,),
    "runs list FOLDER": (of_runs,),
}


def count_calls(words):
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        main(words)
    finally:
        sys.setprofile(None)
    return calls


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The folders of runs of each size, by what they have many of."""
    found = {}
    for make in (of_metrics, of_splits, of_runs):
        for size in SIZES:
            folder = found[make, size] = tmp_path_factory.mktemp("runs")
            make(folder, size)
    return found


def test_twice_the_size_takes_twice_the_calls(folders, capsys):
    for command, many in COMMANDS.items():
        main(command.replace("FOLDER", str(folders[many[0], SIZES[0]])).split())  # imports what it needs
        for make in many:
            calls = [
                count_calls(command.replace("FOLDER", str(folders[make, size])).split()) for size in SIZES
            ]
            # What each further one takes, without what the command takes anyway.
            growth = (calls[2] - calls[1]) / (calls[1] - calls[0])
            assert growth <= 2.2, (command, make.__name__, calls)
    capsys.readouterr()


@pytest.mark.parametrize("option", [(), ("--json",)])
def test_the_configuration_which_lists_the_metrics_is_not_parsed_for_each(
    option, folders, capsys, monkeypatch
):
    parsed = []
    config = RunReader.config

    def counted(reader, attempt=None):
        parsed.append(attempt)
        return config(reader, attempt)

    monkeypatch.setattr(RunReader, "config", counted)
    for size in SIZES:
        assert main(["runs", "show", str(folders[of_metrics, size] / "a"), *option]) == 0
    assert len(parsed) == len(SIZES)
