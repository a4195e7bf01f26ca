"""`convert_weights`: every format to every other one, with equal bits."""

import errno
import itertools

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch

from burnt import nn
from burnt.errors import RecordError
from burnt.record import Renumber, convert_weights, load_weights, read_weights, record_of
from burnt.record.stored import MemoryTensor, statistics_of
from tests.faults import operations

TARGETS = ["m.safetensors", "m.npz", "m.pt", "m.pth", "m.bin", "m.bpk", "folder/", "shards/"]


def state():
    torch.manual_seed(0)
    weight = torch.randn(4, 3)
    return {
        "encoder.0.weight": weight,
        "encoder.0.bias": torch.randn(4).double(),
        "norm.running_var": torch.tensor([3e-8, 1.0]),
        "norm.weight": torch.ones(2),
        "ids": torch.arange(3),
        "mask": torch.tensor([True, False]),
        "scalar": torch.tensor(2.5, dtype=torch.float16),
        "none": torch.empty(0, 3),
        "head.weight": weight,
    }


def convert(source, target, tmp_path, **options):
    options |= {"shard_bytes": 60} if target == "shards/" else {}
    convert_weights(source, f"{tmp_path}/{target}", **options)
    return tmp_path / target


def same(loaded, expected):
    names = {**loaded.tensors, **{alias: loaded.tensors[name] for alias, name in loaded.aliases.items()}}
    assert names.keys() == expected.keys()
    for name, value in expected.items():
        assert names[name].dtype == value.dtype
        assert torch.equal(names[name], value), name
    return True


@pytest.mark.sample(7)
@pytest.mark.parametrize("to", TARGETS)
@pytest.mark.parametrize("first", TARGETS)
def test_from_everything_to_everything(tmp_path, first, to):
    (tmp_path / "second").mkdir()
    source = convert(state(), first, tmp_path)
    same(read_weights(convert(source, to, tmp_path / "second")), state())


def test_other_programs_read_the_files(tmp_path):
    for target in TARGETS[:3]:
        convert(state(), target, tmp_path)
    loaded = torch.load(tmp_path / "m.pt", weights_only=True)
    assert list(loaded) == list(state())
    assert loaded["head.weight"].data_ptr() == loaded["encoder.0.weight"].data_ptr()
    with np.load(tmp_path / "m.npz") as arrays:
        assert all(np.array_equal(arrays[name], value.numpy()) for name, value in state().items())
    with safetensors.safe_open(tmp_path / "m.safetensors", "pt") as file:
        assert "head.weight" not in file.keys()  # noqa: SIM118
        assert file.metadata()["head.weight"] == "encoder.0.weight"
    model, other = nn.Linear(3, 4), nn.Linear(3, 4)
    convert_weights(model.state_dict(), tmp_path / "layer.safetensors")
    safetensors.torch.load_model(other, tmp_path / "layer.safetensors")
    assert torch.equal(other.weight, model.weight)


def test_equal_weights_are_equal_files(tmp_path):
    for target in ("m.safetensors", "m.npz"):
        path = convert(state(), target, tmp_path)
        before = path.read_bytes()
        assert convert(state(), target, tmp_path, overwrite=True).read_bytes() == before


def test_names_and_dtypes(tmp_path):
    report = convert_weights(
        {f"model.{name}": value for name, value in state().items()},
        tmp_path / "m.safetensors",
        rename=[(r"^model\.", ""), Renumber(r"encoder\.(\d+)", start=7)],
        only=["encoder", "norm"],
        skip="*.bias",
        dtype=torch.float16,
    )
    loaded = read_weights(tmp_path / "m.safetensors")
    assert {name: value.dtype for name, value in loaded.tensors.items()} == {
        "encoder.7.weight": torch.float16,
        "norm.running_var": torch.float32,
        "norm.weight": torch.float32,
    }
    assert report.cast == {"encoder.7.weight": (torch.float32, torch.float16)}
    assert report.kept == ("norm.running_var", "norm.weight")
    assert "head.weight" in report.skipped
    assert str(report) == (
        f"3 tensors from a state dict to {tmp_path}/m.safetensors\n"
        "  cast     encoder.7.weight: from torch.float32 to torch.float16\n"
        "  kept     norm.running_var and 1 more: torch.float32\n"
        "  skipped  encoder.7.bias and 5 more"
    )


def test_prefixes_are_taken_away(tmp_path):
    names = ["module._orig_mod.a.weight", "module._fsdp_wrapped_module.b._checkpoint_wrapped_module.weight"]
    report = convert_weights({name: torch.ones(1) for name in names}, tmp_path / "m.pt")
    assert list(report.tensors) == ["a.weight", "b.weight"]
    assert [note.split(",")[0] for note in report.notes] == [
        "without '_checkpoint_wrapped_module.'",
        "without '_fsdp_wrapped_module.'",
        "without '_orig_mod.'",
        "without 'module.'",
    ]
    model = torch.nn.ModuleDict({"a": nn.Linear(1, 1, bias=False), "b": nn.Linear(1, 1, bias=False)})
    assert load_weights(model, {name: torch.ones(1, 1) for name in names}).notes == report.notes


def test_metadata_goes_along(tmp_path):
    model = nn.Linear(2, 2)
    record = model.into_record()
    convert_weights(record, tmp_path / "a.safetensors")
    convert_weights(tmp_path / "a.safetensors", tmp_path / "b", shard_bytes=8)
    assert read_weights(tmp_path / "b").model == record.model
    convert_weights(record, tmp_path / "c.safetensors", rename=[("^", "layer.")])
    assert read_weights(tmp_path / "c.safetensors").model is None  # it has other paths
    safetensors.torch.save_file({"x": torch.ones(1)}, tmp_path / "d.safetensors", {"license": "MIT"})
    convert_weights(tmp_path / "d.safetensors", tmp_path / "e.safetensors")
    with safetensors.safe_open(tmp_path / "e.safetensors", "pt") as file:
        assert file.metadata()["license"] == "MIT"


def test_a_view_is_stored_without_the_rest(tmp_path):
    large = torch.randn(1000, 10)
    convert_weights({"row": large[3]}, tmp_path / "m.pt")
    assert (tmp_path / "m.pt").stat().st_size < 4000


REFUSED = {
    "suffix": ("m.safetensor", {}, ["does not say in which format", "did you mean {folder}/m.safetensors?"]),
    "no suffix": ("m", {}, ["found     a name without an ending", "or in / for a folder of safetensors"]),
    "shards of a file": (
        "m.npz",
        {"shard_bytes": 9},
        ["a single file has no shards", "name a folder: {folder}/m/"],
    ),
    "exists": ("old.npz", {}, ["the file exists already", "overwrite=True (--force) replaces what is there"]),
    "folder exists": ("old/", {}, ["the folder has weights already", "found     model.safetensors"]),
    "dtype": ("m.npz", {"dtype": torch.bfloat16}, ["cannot be stored as plain values", "torch.bfloat16"]),
    "only": ("m.pt", {"only": "encodr"}, ["the pattern 'encodr' of only= matches nothing", "'encoder'?"]),
    "too large": ("m.pt", {"dtype": torch.float16, "only": "big"}, ["big: 1e+05", "magnitudes up to 65504"]),
    "rename": ("m.pt", {"rename": [("^.*$", "x")]}, ["rename= gives two tensors one name"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_written_is_said(tmp_path, case):
    convert_weights({"x": torch.ones(1)}, tmp_path / "old.npz")
    convert_weights({"x": torch.ones(1)}, f"{tmp_path}/old/")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    target, options, texts = REFUSED[case]
    with pytest.raises(RecordError) as caught:
        convert_weights({**state(), "big": torch.tensor([1e5])}, f"{tmp_path}/{target}", **options)
    for text in texts:
        assert text.format(folder=tmp_path) in str(caught.value)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*")} == before


@pytest.mark.parametrize("target", ["m.safetensors", "m.npz", "m.pt", "shards/"])
def test_a_full_disk_leaves_the_old_file(tmp_path, target):
    old, new = ({"a": torch.full((30,), i), "b": torch.full((30,), i)} for i in (0.0, 1.0))
    path = convert(old, target, tmp_path)
    for at in itertools.count(1):
        error = None
        with operations(at, "full") as done:
            try:
                convert(new, target, tmp_path, overwrite=True)
            except OSError as raised:
                error = raised
        if error is None:
            break
        assert error.errno == errno.ENOSPC
        assert str(tmp_path) in str(error.filename)
        assert "/." not in str(error.filename)
        assert done.failed
        loaded = read_weights(path).tensors
        assert loaded["a"].equal(loaded["b"])
        if loaded["a"][0] == 1:
            convert(old, target, tmp_path, overwrite=True)
        hidden = [p for p in tmp_path.rglob(".*") if p.is_file()]
        assert hidden == []
    assert at > 5
    same(read_weights(path), new)


def test_progress(tmp_path):
    seen = []
    for dtype, total in ((None, 24), (torch.float16, 48)):
        seen.clear()
        weights = {"a": torch.ones(4), "b": torch.ones(2)}
        convert_weights(
            weights, tmp_path / "m.pt", dtype=dtype, overwrite=True, on_read=lambda *sizes: seen.append(sizes)
        )
        assert seen[0] == (16, total)
        assert seen[-1] == (total, total)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (torch.tensor([1.0, torch.nan, -torch.inf]), (-torch.inf, 1.0, -torch.inf, 1)),
        (torch.tensor([torch.nan]), (None, None, None, 1)),
        (torch.empty(0), (None, None, None, 0)),
        (torch.tensor([2**53 + 1, -(2**53) - 1]), (-(2**53) - 1, 2**53 + 1, 0.0, 0)),
        (torch.tensor([True, False]), (0, 1, 0.5, 0)),
        (torch.tensor([1, 40000], dtype=torch.uint16), (1, 40000, 20000.5, 0)),
        (torch.tensor([1j, complex("nan")]), (None, None, None, 1)),
        (torch.tensor([1.0, 3.0], dtype=torch.bfloat16), (1.0, 3.0, 2.0, 0)),
        (torch.tensor([1.0, 3.0]).to(torch.float8_e4m3fn), (1.0, 3.0, 2.0, 0)),
        (torch.ones(5_000_000), (1.0, 1.0, 1.0, 0)),
    ],
)
def test_statistics(values, expected):
    found = statistics_of(MemoryTensor.of(values))
    assert (found.min, found.max, found.mean, found.nans) == expected


@pytest.mark.parametrize("target", TARGETS)
def test_one_element_of_any_stride(tmp_path, target):
    pairs = {"x": torch.arange(4).view(2, 2)[:1, ::2], "y": torch.arange(2.0).double()[::2]}
    assert same(read_weights(convert(pairs, target, tmp_path)), pairs)
    module = torch.nn.Module()
    module.register_buffer("x", torch.zeros(1, 4, dtype=torch.int64)[:, ::4])
    module.register_buffer("y", torch.zeros(2, dtype=torch.float64)[::2])
    load_weights(module, tmp_path / target)
    assert all(torch.equal(module.get_buffer(name), value) for name, value in pairs.items())


@pytest.mark.parametrize("target", ["m.safetensors", "m.npz", "m.pt", "shards/"])
def test_a_conjugate_is_not_the_same_tensor(tmp_path, target):
    value = torch.tensor([1 + 2j, 3j])
    state = {"x": value, "conjugate": value.conj(), "negative": torch._neg_view(value)}
    loaded = read_weights(convert(state, target, tmp_path))
    assert not loaded.aliases
    assert same(loaded, state)
    module = torch.nn.Module()
    for name, tensor in state.items():
        module.register_buffer(name, tensor)
    assert not record_of(module).aliases


def test_no_tensors(tmp_path):
    for target in TARGETS:
        assert not read_weights(convert({}, target, tmp_path)).tensors


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.empty(2, device="meta"), "on the meta device has no values"),
        (torch.eye(2).to_sparse(), "not stored as plain values"),
    ],
)
def test_what_has_no_values_is_not_converted(tmp_path, value, text):
    for target in TARGETS:
        with pytest.raises(RecordError, match=text):
            convert({"x": value}, target, tmp_path)
    assert not list(tmp_path.rglob("*.*"))


@pytest.mark.parametrize(
    ("target", "names"), [("m.safetensors", ["__metadata__"]), ("m.npz", ["x\0y", "x\0z"])]
)
def test_names_that_a_format_cannot_hold(tmp_path, target, names):
    with pytest.raises(RecordError, match=r"\.?(safetensors|npz) file cannot hold a tensor of this name"):
        convert_weights({name: torch.ones(1) for name in names}, tmp_path / target)


def test_damaged_values_are_not_converted(tmp_path):
    path = convert({"x": torch.arange(1000.0)}, "m.npz", tmp_path)
    content = bytearray(path.read_bytes())
    content[2000] ^= 1
    path.write_bytes(content)
    with pytest.raises(RecordError, match="an array of a"):
        convert_weights(path, tmp_path / "m.safetensors")
