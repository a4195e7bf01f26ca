"""burnt.onnx.export: names, axes, metadata, weights, the model left as it was, and what is refused."""

from __future__ import annotations

import importlib
import importlib.util
import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import Tensor, nn

import burnt
from burnt import __version__
from burnt.errors import InputRuntimeError, InputTypeError, InputValueError, ShapeError, UnsupportedError
from burnt.inspect import Signature, TensorSpec, signature_of
from burnt.onnx import export
from burnt.onnx.comparison import compare, first_line

EXPORT = importlib.import_module("burnt.onnx.export")


class Forward(nn.Module):
    """A module made of a function of one tensor, or of several."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, *more: Tensor) -> Any:
        return self.function(x, *more)


def dims(values: Any) -> list[list[int | str]]:
    return [[d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim] for value in values]


def test_axes_weights_and_metadata_have_names(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    exported = export(model, torch.rand(4, 3), tmp_path / "m.onnx", metadata={"author": "me: äß"})
    file = onnx.load(tmp_path / "m.onnx")
    onnx.checker.check_model(file, full_check=True)
    assert [value.name for value in file.graph.input] == ["input"]
    assert [value.name for value in file.graph.output] == ["output"]
    assert dims(file.graph.input) == [["batch", 3]]
    assert dims(file.graph.output) == [["batch", 2]]
    assert {tensor.name for tensor in file.graph.initializer} == set(model.state_dict())
    assert [(opset.domain, opset.version) for opset in file.opset_import] == [("", EXPORT.OPSET)]
    assert file.graph.name == "Linear"
    found = {entry.key: entry.value for entry in file.metadata_props}
    assert found["author"] == "me: äß"
    assert found["burnt.version"] == __version__
    assert found["torch.version"] == torch.__version__
    assert Signature.from_dict(json.loads(found["burnt.signature"])) == exported.signature
    assert exported.size == (tmp_path / "m.onnx").stat().st_size
    assert set(exported.errors) == {1, 3}
    assert f"{exported.size:,} bytes" in str(exported)
    assert "batch 3: largest error" in str(exported)


@pytest.mark.full
def test_names_may_be_those_of_other_values(tmp_path: Path, run_file: Callable[..., Any]) -> None:
    class Names(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add = nn.Parameter(torch.rand(3))
            self.mul = nn.Parameter(torch.rand(3))

        def forward(self, add: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
            return (add + output) * self.mul + self.add * add, output

    inputs = {"add": torch.rand(5, 3), "output": torch.rand(5, 3)}
    model = Names()
    export(model, inputs, tmp_path / "m.onnx")
    found = run_file(tmp_path / "m.onnx", inputs)
    assert list(found) == ["output_.0", "output_.1"]
    torch.testing.assert_close(torch.from_numpy(found["output_.0"]), model(**inputs)[0].detach())


@pytest.mark.full
def test_unused_inputs_and_results_that_are_the_same_tensor_stay(
    tmp_path: Path, run_file: Callable[..., Any]
) -> None:
    model = Forward(lambda x, y: (x, y, y, torch.arange(3.0)) if x is y else (x, x * 2, x * 2, torch.ones(3)))
    export(model, (torch.rand(4, 3), torch.rand(4, 2)), tmp_path / "m.onnx")
    x = torch.rand(2, 3)
    found = list(run_file(tmp_path / "m.onnx", {"x": x, "more.0": torch.rand(2, 2)}).values())
    for array, expected in zip(found, [x, x * 2, x * 2, torch.ones(3)], strict=True):
        assert torch.equal(torch.from_numpy(array), expected)


@pytest.mark.full
def test_an_axis_that_grows_with_the_batch_is_none(tmp_path: Path) -> None:
    model = Forward(lambda x: (x.flatten(0, 1), x @ x.flatten(0, 1).T, x.mT))
    exported = export(model, torch.rand(4, 5, 3), tmp_path / "m.onnx")
    assert [info.batch_axis for info in exported.signature.outputs] == [None, 0, 0]
    assert dims(onnx.load(exported.path).graph.output) == [
        ["5*batch", 3],
        ["batch", 5, "5*batch"],
        ["batch", 3, 5],
    ]


@pytest.mark.full
def test_further_axes_can_be_open(tmp_path: Path, run_file: Callable[..., Any]) -> None:
    model = Forward(lambda x, mask: (x.softmax(1) * mask.unsqueeze(-1)).cumsum(1))
    exported = export(
        model,
        (torch.rand(4, 6, 3), torch.rand(4, 6)),
        tmp_path / "m.onnx",
        open_axes={"x": {1: "sequence"}, "more.0": {1: "sequence"}},
    )
    assert __file__.encode() not in exported.path.read_bytes()  # the exporter keeps lines of the code
    file = onnx.load(exported.path)
    assert dims(file.graph.input) == [["batch", "sequence", 3], ["batch", "sequence"]]
    assert dims(file.graph.output) == [["batch", "sequence", 3]]
    for batch, length in ((1, 1), (2, 40), (6, 6)):
        x, mask = torch.randn(batch, length, 3), torch.rand(batch, length)
        found = run_file(exported.path, {"x": x, "more.0": mask})["output"]
        torch.testing.assert_close(torch.from_numpy(found), model(x, mask))


class _Positions(nn.Module):
    """Adds rows of a table, as BERT its positions."""

    def __init__(self, combine: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.rand(32, 3))
        self.combine = combine

    def forward(self, x: Tensor) -> Tensor:
        return self.combine(x, self.positions)


LENGTH = {"x": {1: "length"}}
LENGTH_OF_INPUT = {"input": {1: "length"}}


@pytest.mark.full
def test_an_open_axis_ends_with_its_table(tmp_path: Path, run_file: Callable[..., Any]) -> None:
    model = _Positions(lambda x, table: x * table[: x.shape[1]])
    exported = export(model, torch.rand(4, 6, 3), tmp_path / "m.onnx", open_axes=LENGTH)
    assert "  length: at most 32, the size of positions\n" in str(exported)
    found = {entry.key: entry.value for entry in onnx.load(exported.path).metadata_props}
    assert json.loads(found["burnt.limits"]) == {"length": 32}
    for length in (1, 7, 32):
        x = torch.randn(2, length, 3)
        array = run_file(exported.path, {"x": x})["output"]
        torch.testing.assert_close(torch.from_numpy(array), model(x).detach())
    with pytest.raises(Exception, match=r"33 by 32|32 by 33"):
        run_file(exported.path, {"x": torch.randn(2, 33, 3)})


@pytest.mark.full
def test_code_that_does_something_else_beyond_a_table_is_found(tmp_path: Path) -> None:
    model = _Positions(lambda x, table: x * 2 if x.shape[1] <= len(table) else x + 1)
    with pytest.raises(InputRuntimeError, match="something else") as caught:
        export(model, torch.rand(4, 6, 3), tmp_path / "m.onnx", open_axes=LENGTH)
    assert caught.value.where == "_Positions, length 33"
    assert not list(tmp_path.iterdir())


def test_what_fixes_an_axis_is_named(tmp_path: Path) -> None:
    model = _Positions(lambda x, table: x * table)
    example = torch.rand(4, 32, 3)
    with pytest.raises(InputRuntimeError, match="the axis length of _Positions") as caught:
        export(model, example, tmp_path / "m.onnx", open_axes=LENGTH)
    assert caught.value.found == "code that fixes its size to 32, the size of positions"
    with pytest.raises(InputRuntimeError, match="the axis length of GRU") as caught:
        export(nn.GRU(3, 2, batch_first=True), example, tmp_path / "m.onnx", open_axes=LENGTH_OF_INPUT)
    assert "each step of a recurrent layer" in str(caught.value.hint)


class _Stateful(torch.nn.Module):
    """A state whose second axis is the batch, as that of a recurrent layer."""

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        return x + state[0]


@pytest.mark.full
def test_the_batch_of_a_state_is_opened(tmp_path: Path) -> None:
    example = (torch.randn(4, 3), torch.randn(1, 4, 3))
    exported = export(_Stateful(), example, tmp_path / "m.onnx", open_axes={"state": {1: "batch"}})
    text = "x: float32[batch, 3], state: float32[1, batch, 3] -> output: float32[batch, 3]"
    assert str(exported.signature) == text
    assert set(exported.errors) == {1, 3}


def test_the_batch_can_be_fixed(tmp_path: Path) -> None:
    model = Forward(lambda x: x.view(2, -1) * 2)
    exported = export(model, torch.rand(2, 3), tmp_path / "m.onnx", batch=2)
    assert str(exported.signature) == "x: float32[2, 3] -> output: float32[2, 3]"
    assert dims(onnx.load(exported.path).graph.input) == [[2, 3]]
    assert set(exported.errors) == {2}
    single = export(nn.Linear(3, 2), TensorSpec((64, 3)), tmp_path / "one.onnx", batch=1)
    assert dims(onnx.load(single.path).graph.output) == [[1, 2]]


@pytest.mark.parametrize("weights", ["float16", pytest.param("bfloat16", marks=pytest.mark.full)])
def test_weights_in_16_bits(weights: str, tmp_path: Path, run_file: Callable[..., Any]) -> None:
    model = nn.Sequential(nn.Linear(64, 200), nn.BatchNorm1d(200), nn.Linear(200, 30)).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    full = export(model, torch.rand(4, 64), tmp_path / "full.onnx")
    half = export(model, torch.rand(4, 64), tmp_path / "half.onnx", weights=weights)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    matrices = 4 * (64 * 200 + 200 * 30)
    assert full.size - half.size == pytest.approx(matrices / 2, rel=0.15)  # less the nodes of the casts
    x = torch.rand(7, 64)
    dtype = getattr(torch, weights)
    rounded = nn.Sequential(nn.Linear(64, 200), nn.BatchNorm1d(200), nn.Linear(200, 30)).eval()
    rounded.load_state_dict({n: v.to(dtype).float() if v.dim() > 1 else v for n, v in before.items()})
    found = torch.from_numpy(run_file(half.path, {"input": x})["output"])
    torch.testing.assert_close(found, rounded(x).detach(), atol=2e-6, rtol=2e-6)
    assert (found - model(x)).abs().max() > 1e-5


@pytest.mark.full
def test_a_signature_from_json_stands_for_the_example(tmp_path: Path) -> None:
    signature = signature_of(nn.Embedding(9, 4), torch.randint(9, (4, 3)))
    read = Signature.from_dict(json.loads(json.dumps(signature.to_dict())))
    exported = export(nn.Embedding(9, 4), read, tmp_path / "m.onnx")
    assert str(exported.signature) == "input: int64[batch, 3] -> output: float32[batch, 3, 4]"


def test_the_model_is_exported_in_evaluation_mode_and_left_as_it_was(
    tmp_path: Path, run_file: Callable[..., Any]
) -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.9))
    nn.init.uniform_(model[1].running_var, 0.5, 2.0)  # type: ignore[arg-type]
    model.register_forward_hook(lambda module, args, output: output + 1)
    model.train()
    model[1].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    export(model, torch.rand(4, 3), tmp_path / "m.onnx")
    with pytest.raises(InputValueError, match="weights= is invalid"):
        export(model, torch.rand(4, 3), tmp_path / "m.onnx", weights="int8")
    with pytest.raises(ShapeError):
        export(model, torch.rand(4, 5), tmp_path / "m.onnx")
    assert [module.training for module in model.modules()] == modes
    assert len(model._forward_hooks) == 1
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    x = torch.rand(6, 3)
    found = torch.from_numpy(run_file(tmp_path / "m.onnx", {"input": x})["output"])
    torch.testing.assert_close(found, model[1](model[0](x)).detach() + 1)


@pytest.mark.gpu
def test_a_model_on_another_device_stays_there(device: torch.device, tmp_path: Path) -> None:
    model = nn.Linear(3, 2).to(device)
    export(model, torch.rand(4, 3, device=device), tmp_path / "m.onnx")
    assert model.weight.device.type == device.type


def branches(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x


def test_code_that_needs_values_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UnsupportedError, match="Forward cannot be traced") as caught:
        export(Forward(branches), torch.rand(4, 3), tmp_path / "m.onnx")
    text = str(caught.value)
    assert f"{__file__}:" in text
    assert "return x * 2 if x.sum() > 0 else x" in text
    assert "torch.where" in text
    assert capfd.readouterr() == ("", "")  # torch prints its graph
    assert not list(tmp_path.iterdir())


@pytest.mark.full
def test_all_ops_that_are_missing_are_named(tmp_path: Path) -> None:
    @torch.library.custom_op("burnt_tests::twice", mutates_args=())
    def twice(x: Tensor) -> Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)
    model = Forward(lambda x: (torch.linalg.qr(x)[1], torch.linalg.eigvalsh(x), twice(x).relu()))
    with pytest.raises(UnsupportedError, match="has no translation for") as caught:
        export(model, torch.rand(4, 3, 3), tmp_path / "m.onnx")
    assert caught.value.found == (
        "aten._linalg_eigh.default, aten.linalg_qr.default, burnt_tests.twice.default"
    )


@pytest.mark.full
def test_a_batch_that_the_code_fixes_is_said(tmp_path: Path) -> None:
    model = Forward(lambda x: x.view(4, -1))
    example = torch.rand(4, 3)
    with pytest.raises(ShapeError) as wrong:
        export(model, example, tmp_path / "m.onnx")
    assert "a batch size is fixed in the model. Or fix it here, too: batch=4" in str(wrong.value)
    described = signature_of(model, example, batch_sizes=(4,))
    with pytest.raises(InputRuntimeError, match="the axis batch of Forward cannot stay open") as caught:
        export(model, described, tmp_path / "m.onnx")
    assert "fixes its size to 4" in str(caught.value)
    assert "batch=4" in str(caught.value)
    limited = Forward(lambda x: x * 2 if x.shape[0] > 5 else x + 1)
    with pytest.raises(InputRuntimeError, match="the axis batch") as caught:
        export(limited, example, tmp_path / "m.onnx")
    assert caught.value.found == "2 <= batch and batch <= 5"
    with pytest.raises(InputRuntimeError, match="the axis features of Linear") as caught:
        export(nn.Linear(3, 2), example, tmp_path / "m.onnx", open_axes={"input": {1: "features"}})
    assert "leave it out of open_axes=" in str(caught.value)
    axes = {"input": {2: "height", 3: "width"}}
    with pytest.raises(InputRuntimeError, match="of MaxPool2d cannot stay open") as caught:
        export(nn.MaxPool2d(2), torch.rand(2, 1, 33, 33), tmp_path / "m.onnx", open_axes=axes)
    assert "a pool or a strided convolution" in str(caught.value.hint)


def test_a_file_that_computes_something_else_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_text("an older file")
    with pytest.raises(InputRuntimeError, match="computes something else") as caught:
        export(Forward(lambda x: x + torch.rand_like(x)), torch.rand(4, 3), tmp_path / "m.onnx")
    assert "random numbers" in str(caught.value)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["an older file"]


@pytest.mark.full
def test_the_comparison_finds_other_shapes_nans_and_files(tmp_path: Path) -> None:
    exported = export(Forward(lambda x: x.log()), torch.tensor([[-1.0, 1.0]]), tmp_path / "m.onnx")
    assert max(exported.errors.values()) < 1e-6  # NaN where the module's is
    arguments = (exported.signature, [{0: "batch"}], (2,), 1e-4)
    with pytest.raises(InputRuntimeError, match="the file's output has another shape") as caught:
        compare(exported.path, Forward(lambda x: x.log()[:1]), *arguments)
    assert caught.value.expected == [1, 2]
    with pytest.raises(InputRuntimeError, match="something else") as caught:
        compare(exported.path, Forward(lambda x: x.abs().log()), *arguments)
    assert caught.value.found == "inf"
    with pytest.raises(InputRuntimeError, match="something else"):
        compare(exported.path, Forward(lambda x: x.log() + 2e-4), *arguments)
    (tmp_path / "m.onnx").write_bytes(b"no protobuf")
    with pytest.raises(InputRuntimeError, match="ONNX Runtime refuses the file"):
        compare(exported.path, Forward(lambda x: x), *arguments)


def test_a_buffer_that_changes_is_refused(tmp_path: Path) -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return x * self.calls

    model = Counts()
    with pytest.raises(UnsupportedError, match="Counts changes its buffers") as caught:
        export(model, torch.rand(4, 3), tmp_path / "m.onnx")
    assert caught.value.found == "calls"
    assert model.calls == 0


def test_weights_without_a_usable_value_are_named(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    with torch.no_grad():
        model[0].weight[0, 0] = 1e6
    with pytest.raises(InputValueError, match="a weight does not fit float16") as caught:
        export(model, torch.rand(4, 3), tmp_path / "m.onnx", weights="float16")
    assert (caught.value.where, caught.value.found) == ("0.weight", "1e+06")
    assert "bfloat16" in str(caught.value.hint)
    with torch.no_grad():
        model[0].weight[1, 1] = float("nan")
    with pytest.raises(InputValueError, match="a weight is NaN") as caught:
        export(model, torch.rand(4, 3), tmp_path / "m.onnx")
    assert caught.value.where == "0.weight"
    with pytest.raises(UnsupportedError, match="have no values"):
        export(nn.Linear(3, 2, device="meta"), torch.rand(4, 3), tmp_path / "m.onnx")
    with pytest.raises(UnsupportedError, match="no tensors of this dtype") as refused:
        export(nn.Linear(3, 2).bfloat16(), torch.rand(4, 3).bfloat16(), tmp_path / "m.onnx")
    assert refused.value.found == "bfloat16"


REFUSED: dict[str, tuple[Any, dict[str, Any], type[Exception], str]] = {
    "weights": (torch.rand(4, 3), {"weights": "int4"}, InputValueError, "weights= is invalid"),
    "batch": (torch.rand(4, 3), {"batch": 0}, InputValueError, "batch= is invalid"),
    "input": (torch.rand(4, 3), {"open_axes": {"y": {1: "s"}}}, InputValueError, "names no input"),
    "axis": (torch.rand(4, 3), {"open_axes": {"x": {2: "s"}}}, InputValueError, "no axis that can be opened"),
    "open": (torch.rand(4, 3), {"open_axes": {"x": {0: "s"}}}, InputValueError, "no axis that can be opened"),
    "symbol": (torch.rand(4, 3), {"open_axes": {"x": {1: "a b"}}}, InputValueError, "invalid name"),
    "size": (torch.rand(4, 1), {"open_axes": {"x": {1: "s"}}}, InputValueError, "unsuitable size"),
    "keyword": ({"y": torch.rand(4, 3)}, {}, InputTypeError, "are not those of the model"),
    "nothing": ((), {}, InputTypeError, "are not those of the model"),
    "no tensor": (3.0, {}, UnsupportedError, "takes or returns no tensors"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_arguments(name: str, tmp_path: Path) -> None:
    example, options, kind, text = REFUSED[name]
    with pytest.raises(kind, match=text):
        export(Forward(lambda x: x * 2), example, tmp_path / "m.onnx", **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.full
def test_a_compiled_module_is_exported_as_the_original(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    exported = export(torch.compile(model), torch.rand(4, 3), tmp_path / "m.onnx")
    assert str(exported.signature) == "input: float32[batch, 3] -> output: float32[batch, 2]"
    assert {tensor.name for tensor in onnx.load(exported.path).graph.initializer} == set(model.state_dict())


@pytest.mark.full
def test_tied_weights_are_written_once(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Embedding(1000, 64), nn.Linear(64, 1000, bias=False))
    model[1].weight = model[0].weight
    for scheme, weight in ((None, 256_000), ("int8", 64_000)):
        if scheme:
            burnt.quantize(model, scheme)
        exported = export(model, torch.randint(1000, (4, 5)), tmp_path / "m.onnx")
        assert weight < exported.size < 1.3 * weight


@pytest.mark.full
def test_what_onnx_runtime_lacks_for_16_bits_is_said(tmp_path: Path) -> None:
    inside = Forward(lambda x: x)
    inside.linear = nn.Linear(3, 2).bfloat16()
    inside.function = lambda x: inside.linear(x.bfloat16()).float()
    with pytest.raises(InputRuntimeError, match="ONNX Runtime refuses the file") as caught:
        export(inside, torch.rand(4, 3), tmp_path / "m.onnx")
    assert "export model.float()" in str(caught.value.hint)
    exported = export(nn.Linear(64, 64).half(), torch.rand(4, 64).half(), tmp_path / "half.onnx")
    assert max(exported.errors.values()) < 4e-3


def test_a_function_is_no_module(tmp_path: Path) -> None:
    with pytest.raises(InputTypeError, match="model is not a module") as caught:
        export(torch.relu, torch.rand(4, 3), tmp_path / "m.onnx")  # type: ignore[arg-type]
    assert "forward of a module" in str(caught.value.hint)


def test_a_path_that_is_none(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "no" / "m.onnx"):
        with pytest.raises(InputValueError, match="not a path for a file"):
            export(nn.Linear(3, 2), torch.rand(4, 3), path)


def test_a_full_disk_leaves_the_older_file(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_text("an older file")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError, match=r"(?i)file too large"):
            export(nn.Linear(400, 400), torch.rand(4, 400), tmp_path / "m.onnx")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.read_text() for path in tmp_path.iterdir()] == ["an older file"]


@pytest.mark.full
def test_weights_that_protobuf_cannot_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EXPORT, "_MAX_BYTES", 1000)
    with pytest.raises(UnsupportedError, match="do not fit into an ONNX file") as caught:
        export(nn.Linear(30, 20), torch.rand(4, 30), tmp_path / "m.onnx")
    assert caught.value.found == "2,480 bytes"


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    missing = ("onnxscript", "onnxruntime")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None if name in missing else find(name))
    with pytest.raises(UnsupportedError, match="needs further packages") as caught:
        export(nn.Linear(3, 2), torch.rand(4, 3), tmp_path / "m.onnx")
    assert caught.value.found == "no onnxscript, no onnxruntime"
    assert caught.value.hint == "pip install 'burnt[onnx]'"


def test_errors_of_others_are_told_in_one_line_without_colours() -> None:
    error = RuntimeError("\n\x1b[96mFailed\x1b[0m to convert \x1b[1;31mit\x1b[0m\nGo to an address")
    assert first_line(error) == "RuntimeError: Failed to convert it"
