"""The command line itself: help, versions, mistakes, start-up, pipes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import burnt
from burnt.cli import main
from burnt.cli.output import report
from burnt.store import RunWriter

ROOT = Path(burnt.__file__).parents[1]


def python(*words, stdout=subprocess.PIPE, **env):
    env = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    command = [sys.executable, *words]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, env=env, timeout=120)


def test_version(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"burnt {burnt.__version__}\n"


def test_help_is_short_and_shows_every_command(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    out = capsys.readouterr().out
    assert len(out.splitlines()) <= 40
    assert max(map(len, out.splitlines())) <= 80
    for command in ("train", "runs list", "runs show", "runs export", "info"):
        assert f"\n  burnt {command}" in out


@pytest.mark.parametrize(
    "command",
    [
        *("new", "train", "check", "evaluate", "ctl", "bench", "info", "show", "convert", "quantize", "runs"),
        *(f"runs {name}" for name in ("list", "show", "compare", "search", "tag", "note", "rm")),
    ],
)
def test_every_command_has_an_example(command, capsys):
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    assert re.search(rf"example.*burnt {command} ", capsys.readouterr().out, re.DOTALL)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["runs"],
        ["rnus"],
        ["runs", "list", "--jsn"],
        ["runs", "list", "a", "b=1"],
        ["runs", "export", "r", "--format", "csv", "--follow"],
        ["runs", "export", "r", "--format", "xml"],
        ["train", "m:f", "--shwo"],
        ["info", "--js"],
    ],
)
def test_mistyped_words_are_refused(words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_a_setting_written_as_an_option_is_explained(capsys):
    with pytest.raises(SystemExit):
        main(["train", "m:f", "--lr", "0.1"])
    assert "unrecognized arguments: --lr; settings are written key=value" in capsys.readouterr().err


def test_looking_at_runs_never_loads_torch(write):
    write("r")
    write("s")
    commands = [
        ["--help"],
        ["--version"],
        ["runs", "list", "."],
        ["runs", "show", "r"],
        ["runs", "show", "r", "--json"],
        ["runs", "export", "r", "--format", "csv"],
        ["runs", "compare", "r", "s"],
        ["runs", "search", "lr>0", "--in", "."],
        ["runs", "tag", "r", "+a"],
        ["runs", "note", "r", "text"],
        ["monitor", "--once", "."],
        ["runs", "rm", "s", "--yes"],
        ["ctl", "live", "stop", "--no-wait"],
    ]
    program = (
        f"import sys\nfrom burnt.cli import main\nfor words in {commands!r}:\n"
        "    try:\n        code = main(words)\n    except SystemExit as end:\n        code = end.code\n"
        "    heavy = {'torch', 'textual'} & set(sys.modules)\n"
        "    if words == ['--help']:\n"
        "        heavy |= {'rich', 'msgspec', 'numpy', 'sqlite3', 'psutil'} & set(sys.modules)\n"
        "    assert (code, heavy) == (0, set()), words\nprint('nothing heavy')"
    )
    with RunWriter.create("live"):
        done = python("-c", program)
    assert done.stdout.endswith("nothing heavy\n"), done.stderr


@pytest.mark.parametrize("command", [["export", "r", "--format", "csv"], ["show", "r"]])
def test_a_reader_that_goes_away_is_no_error(write, command):
    write("r")
    read, written = os.pipe()
    os.close(read)  # what is written now fails at once, as after `| head`
    done = python("-m", "burnt", "runs", *command, stdout=written)
    os.close(written)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_full_disk_is_reported_in_a_line(write):
    write("r")
    with open("/dev/full", "w") as full:
        done = python("-m", "burnt", "runs", "list", ".", stdout=full)
    assert done.returncode == 1
    assert done.stderr == "error: [Errno 28] No space left on device\n"


def test_names_that_the_output_cannot_hold_are_escaped(write):
    write("größe")
    done = python("-m", "burnt", "runs", "list", ".", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert r"gr\xf6\xdfe  finished" in done.stdout


def test_notes_of_an_error_are_printed(capsys):
    error = burnt.errors.DataError("no item")
    error.add_note("in step 3")
    report(error)
    assert capsys.readouterr().err == (
        "error: no item\nin step 3\n(set BURNT_DEBUG=1 to see the traceback)\n"
    )
