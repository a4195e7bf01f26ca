"""`burnt show` and `burnt convert`: the screens, the JSON and the messages."""

import json
import os
import re
import shlex

import pytest
import safetensors.torch
import torch

import burnt
from burnt import nn
from burnt.cli import main
from burnt.cli.output import progress_bar
from burnt.record import Record, read_weights
from burnt.record.formats.safetensors_file import FileTensor
from burnt.store import RunWriter
from tests.cli.commands import ROOT, printed, refused


class Net(burnt.Module):
    embed: nn.Embedding
    norm: nn.BatchNorm
    head: nn.Linear
    scale: float = 2.0


class NetConfig(burnt.Config):
    def init(self) -> Net:
        model = Net(nn.Embedding(6, 4), nn.BatchNorm(4), nn.Linear(4, 6))
        model.head.weight = model.embed.weight
        return model


@pytest.fixture(autouse=True)
def files(desk):
    """The same model in each kind of file, in the current folder."""
    torch.manual_seed(0)
    model = NetConfig().init()
    with torch.no_grad():
        model.norm.bias[1] = torch.nan
    model.save("net.safetensors")
    model.into_record().save_folder("shards", shard_bytes=100)
    torch.save({"epoch": 3, "state_dict": torch.nn.DataParallel(model).state_dict()}, "net.pt")
    assert main(["convert", "net.safetensors", "net.npz"]) == 0
    return desk


@pytest.fixture(autouse=True)
def quiet(files, capsys):
    capsys.readouterr()


def test_a_file(capsys):
    assert printed(capsys, "show", "net.safetensors") == (
        "net.safetensors\n"
        "format  safetensors\n"
        f"model   {__name__}.Net\n"
        f"config  {__name__}.NetConfig {{}}\n"
        'static  {"": {"scale": 2.0}}\n'
        "\n"
        "tensor                    dtype    shape   size\n"
        "embed.weight              float32  (6, 4)  96 B\n"
        "norm.weight               float32  (4,)    16 B\n"
        "norm.bias                 float32  (4,)    16 B\n"
        "norm.running_mean         float32  (4,)    16 B\n"
        "norm.running_var          float32  (4,)    16 B\n"
        "norm.num_batches_tracked  int64    ()       8 B\n"
        "head.bias                 float32  (6,)    24 B\n"
        "head.weight is embed.weight\n"
        "\n"
        "7 tensors, 47 values, 192 B\n"
        "  float32: 6 tensors, 46 values, 184 B\n"
        "  int64: 1 tensor, 1 value, 8 B\n"
    )


def test_shards_and_their_metadata(capsys):
    out = printed(capsys, "show", "shards")
    assert "format  safetensors\nfiles   2\n" in out
    assert "\nmetadata\nformat      pt\ntotal_size  192\n" in out
    assert re.search(r"head.bias +float32 +\(6,\) +24 B +model-00002-of-00002.safetensors", out)


def test_other_files(capsys):
    out = printed(capsys, "show", "net.pt", "--only", "*.norm|*.head")
    assert "format  PyTorch\nnote    taken from 'state_dict'; ignored" not in out
    assert "note    taken from 'state_dict'\n" in out
    assert out.endswith(
        "module.head.weight               float32  (6, 4)  96 B\n"
        "module.head.bias                 float32  (6,)    24 B\n"
        "\n"
        "7 of 8 tensors, 47 values, 192 B\n"
        "  float32: 6 tensors, 46 values, 184 B\n"
        "  int64: 1 tensor, 1 value, 8 B\n"
    )
    assert "format  NumPy .npz\n" in printed(capsys, "show", "net.npz")


def test_values(capsys):
    lines = printed(capsys, "show", "net.safetensors", "--values", "--only", "norm").splitlines()
    rows = [line.split() for line in lines if line.startswith("norm.")]
    assert rows[0] == ["norm.weight", "float32", "(4,)", "16", "B", "1.0000", "1.0000", "1.0000", "0"]
    assert rows[1][-4:] == ["0.0000", "0.0000", "0.0000", "1"]
    assert rows[4] == ["norm.num_batches_tracked", "int64", "()", "8", "B", "0", "0", "0.0000", "0"]


def test_json(capsys):
    found = json.loads(printed(capsys, "show", "shards", "--json", "--values", "--only", "norm.bias|head"))
    assert (found["kind"], found["format"], found["model"]) == ("folder", "safetensors", f"{__name__}.Net")
    assert found["static"] == {"": {"scale": 2.0}}
    assert found["aliases"] == {"head.weight": "embed.weight"}
    assert found["metadata"] == {"format": "pt", "total_size": 192}
    assert found["totals"]["bytes"] == 40
    assert found["totals"]["dtypes"] == {"float32": {"tensors": 2, "values": 10, "bytes": 40}}
    bias = found["tensors"][0]
    assert bias.pop("file").startswith("model-0000")
    assert bias == {
        "name": "norm.bias",
        "dtype": "float32",
        "shape": [4],
        "bytes": 16,
        "min": 0.0,
        "max": 0.0,
        "mean": 0.0,
        "nans": 1,
    }


def test_no_values_are_read(capsys, monkeypatch):
    monkeypatch.setattr(FileTensor, "_read", None)
    printed(capsys, "show", "net.safetensors")
    printed(capsys, "show", "shards", "--json")
    with pytest.raises(TypeError):
        main(["show", "net.safetensors", "--values"])


def test_long_metadata_is_cut(capsys):
    safetensors.torch.save_file({"x": torch.ones(1)}, "lora.safetensors", {"tags": "a\nb " * 500})
    out = printed(capsys, "show", "lora.safetensors")
    assert max(map(len, out.splitlines())) < 220
    assert "\ntags  a b a b" in out
    assert len(json.loads(printed(capsys, "show", "lora.safetensors", "--json"))["metadata"]["tags"]) == 2000


@pytest.mark.parametrize("width", [80, 120])
def test_long_names_are_folded_and_complete(width, capsys, monkeypatch):
    names = [f"model.decoder.layers.{i}.self_attention.with_a_very_long_name.q_proj.weight" for i in range(3)]
    Record({name: torch.ones(1024, 1024) for name in names}).save_folder("long", shard_bytes=5_000_000)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    lines = re.sub(r"\x1b\[[0-9;]*m", "", printed(capsys, "show", "long")).splitlines()
    assert max(map(len, lines)) <= width
    column = next(line.index("float32") for line in lines if "float32" in line)
    text = "".join(line[:column].strip() for line in lines)
    assert all(name in text for name in names)
    assert "(1024, 1024)  4.0 MiB" in "\n".join(lines)
    assert any("model-00001-of-00003.safetensors" in line for line in lines) or width == 80


def test_a_thousand_tensors(capsys):
    Record({f"layers.{i}.weight": torch.ones(2) for i in range(1000)}).save("many.safetensors")
    lines = printed(capsys, "show", "many.safetensors").splitlines()
    assert len(lines) == 1006
    assert lines[-1] == "1,000 tensors, 2,000 values, 7.8 KiB"


def test_convert(capsys):
    assert printed(
        capsys, "convert", "net.pt", "out.safetensors", "--dtype", "bfloat16", "--skip", "head.bias"
    ) == (
        "6 tensors from net.pt to out.safetensors, 520 B\n"
        "  note     taken from 'state_dict'\n"
        "  note     without 'module.', which DistributedDataParallel adds\n"
        "  cast     embed.weight: from torch.float32 to torch.bfloat16\n"
        "  kept     norm.weight and 3 more: torch.float32\n"
        "  tied     head.weight is embed.weight\n"
        "  skipped  head.bias\n"
    ).replace("520", str(os.path.getsize("out.safetensors")))
    assert read_weights("out.safetensors").tensors["embed.weight"].dtype == torch.bfloat16


def test_convert_to_shards_with_names(capsys):
    words = ("--shard", "0.1KB", "--rename", "^embed=tokens", "--rename", "^=x.", "--only", "*tokens|*norm")
    found = json.loads(printed(capsys, "convert", "net.npz", "out/", *words, "--json"))
    assert found["files"] == [f"out/model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    assert found["bytes"] == sum(map(os.path.getsize, found["files"]))
    assert found["tensors"]["x.tokens.weight"] == {"shape": [6, 4], "dtype": "float32"}
    assert set(found["skipped"]) == {"x.head.weight", "x.head.bias"}


WRONG = {
    "show": (["show", "net.safetensor"], 2, "there is no such file or folder"),
    "show run": (
        ["show", "runs/net"],
        2,
        "`burnt runs show runs/net` shows it; its weights are in the folders",
    ),
    "show only": (["show", "net.safetensors", "--only", "nrm"], 1, "did you mean 'norm'?"),
    "show text": (["show", "notes.txt"], 1, "expected  a safetensors, PyTorch, .npz, burnpack or GGUF file"),
    "source": (["convert", "no.pt", "a.npz"], 2, "there is no such file or folder"),
    "force": (["convert", "net.pt", "net.npz"], 1, "overwrite=True (--force) replaces what is there"),
    "format": (["convert", "net.pt", "net.gguf"], 1, "found     a name that ends in .gguf"),
    "shard": (["convert", "net.pt", "out/", "--shard", "2 apples"], 2, "a size such as 64k, 500MB or 1GiB"),
    "no shard": (["convert", "net.pt", "out/", "--shard", "0"], 2, "--shard is invalid"),
    "rename": (["convert", "net.pt", "a.npz", "--rename", "bert"], 2, "REGEX=REPLACEMENT"),
    "rename nothing": (["convert", "net.pt", "a.npz", "--rename", "=x"], 2, "found     '=x'"),
    "regex": (["convert", "net.pt", "a.npz", "--rename", "(=x"], 1, "a step of rename= cannot be applied"),
    "no folder": (["convert", "net.pt", "no/a.safetensors"], 2, "there is no folder for the file"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said(capsys, name, files):
    RunWriter.create("runs/net", config={}).close("finished", None)
    (files / "notes.txt").write_text("a few notes")
    before = sorted(files.rglob("*"))
    words, code, text = WRONG[name]
    assert text in refused(capsys, *words, code=code)
    assert sorted(files.rglob("*")) == before


def test_an_option_that_is_mistyped():
    for words in (["convert", "a", "b", "--dtype", "int8"], ["show"], ["show", "a", "--vaules"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 2


def test_the_progress_bar_is_for_terminals_and_large_files(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for is_terminal, total, is_shown in ((True, 10**9, True), (True, 10**6, False), (False, 10**9, False)):
        monkeypatch.setattr("sys.stderr.isatty", lambda value=is_terminal: value)
        for known in (total, None):
            with progress_bar("reading", known) as advance_to:
                advance_to(total // 2, total)
            assert ("reading" in capsys.readouterr().err) == is_shown


def test_the_commands_of_the_page_about_weights(capsys, files):
    state = {
        f"bert.{name}": torch.ones(2, 2)
        for name in ("encoder.norm.weight", "encoder.norm.bias", "head.weight")
    }
    torch.save({"state_dict": {f"module.{name}": value for name, value in state.items()}}, "checkpoint.pt")
    (files / "snapshots").mkdir()
    Record(state).save_folder("snapshots/gpt2")
    page = (ROOT / "docs" / "weights.md").read_text()
    (block,) = re.findall(r"```console\n(.*?burnt show.*?)```", page, re.DOTALL)
    commands = [line.partition("$ burnt ")[2].partition(" #")[0] for line in block.splitlines()]
    assert len(commands) == 7
    # `burnt convert` writes what the first command shows.
    for command in sorted(commands, key=lambda text: "convert checkpoint" not in text):
        printed(capsys, *shlex.split(command))
    assert list(read_weights("half.npz").tensors) == ["encoder.norm.weight", "head.weight"]
    assert read_weights("half.npz").tensors["head.weight"].dtype == torch.float32
