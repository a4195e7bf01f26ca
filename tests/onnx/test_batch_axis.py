"""Which axis of a file is the batch: the one that is named so, and only if its items are independent."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import Tensor, nn

import burnt
from burnt.errors import InputRuntimeError, InputValueError
from burnt.inspect import signature_of
from burnt.onnx import export
from burnt.onnx.axes import items_depend, with_named_batch


class Forward(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, *more: Tensor) -> Any:
        return self.function(x, *more)


def dims(path: Path) -> dict[str, list[int | str]]:
    graph = onnx.load(path).graph
    return {
        value.name: [size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output)
    }


SEQUENCE_FIRST = Forward(lambda x: x.cumsum(0) * 2)


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        pytest.param({1: "batch"}, [7, "batch", 4], marks=pytest.mark.full),
        ({0: "sequence", 1: "batch"}, ["sequence", "batch", 4]),
    ],
)
def test_the_batch_is_the_axis_that_is_named_so(
    axes: dict[int, str], expected: list[int | str], tmp_path: Path, run_file: Callable[..., Any]
) -> None:
    path = tmp_path / "m.onnx"
    exported = export(SEQUENCE_FIRST, torch.randn(7, 3, 4), path, open_axes={"x": axes})
    assert str(exported).splitlines()[1] == "  x: float32[7, batch, 4] -> output: float32[7, batch, 4]"
    assert dims(path) == {"x": expected, "output": expected}
    metadata = {entry.key: entry.value for entry in onnx.load(path).metadata_props}
    signature = json.loads(metadata["burnt.signature"])
    assert [info["batch_axis"] for info in (*signature["inputs"], *signature["outputs"])] == [1, 1]
    assert signature["inputs"][0]["shape"] == [7, 3, 4]
    x = torch.randn(7 if expected[0] == 7 else 5, 2, 4)
    for found in (torch.from_numpy(run_file(path, {"x": x})["output"]), burnt.onnx.load(path)(x)):
        torch.testing.assert_close(found, x.cumsum(0) * 2)


@pytest.mark.full
def test_a_layer_that_takes_the_sequence_first(tmp_path: Path, run_file: Callable[..., Any]) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0).eval()
    for axes in ({1: "batch"}, {0: "sequence", 1: "batch"}):
        export(layer, torch.randn(7, 3, 8), tmp_path / "m.onnx", open_axes={"src": axes})
        x = torch.randn(7 if len(axes) == 1 else 4, 5, 8)
        found = run_file(tmp_path / "m.onnx", {"src": x})["output"]
        torch.testing.assert_close(torch.from_numpy(found), layer(x).detach())


@pytest.mark.full
def test_an_axis_whose_entries_depend_on_each_other_is_open_and_not_the_batch(
    tmp_path: Path, run_file: Callable[..., Any]
) -> None:
    path = tmp_path / "m.onnx"
    exported = export(SEQUENCE_FIRST, torch.randn(7, 3, 4), path)
    assert "  axis_0: open, and not a batch, since outputs depend on its other entries\n" in str(exported)
    assert dims(path) == {"x": ["axis_0", 3, 4], "output": ["axis_0", 3, 4]}
    assert [info.batch_axis for info in (*exported.signature.inputs, *exported.signature.outputs)] == [
        None
    ] * 2
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(torch.from_numpy(run_file(path, {"x": x})["output"]), x.cumsum(0) * 2)


def test_an_axis_that_is_wrongly_named_the_batch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputRuntimeError, match="depend on the other items of its batch") as caught:
        export(SEQUENCE_FIRST, torch.randn(7, 3, 4), tmp_path / "m.onnx", open_axes={"x": {0: "batch"}})
    assert caught.value.where == "open_axes"
    assert not list(tmp_path.iterdir())


@pytest.mark.full
def test_a_batch_is_fixed_to_another_size_only_for_independent_items(tmp_path: Path) -> None:
    from burnt.export.c_source import c_source
    from burnt.export.page import write_page

    x = torch.randn(7, 3, 4)
    signature = signature_of(SEQUENCE_FIRST, x)
    for example in (x, signature):
        with pytest.raises(InputRuntimeError, match="depend on the other items of its batch") as caught:
            export(SEQUENCE_FIRST, example, tmp_path / "m.onnx", batch=1)
        assert caught.value.where == "batch=1"
    for write in (c_source, lambda model, example: write_page(model, example, tmp_path / "m.html")):
        with pytest.raises(InputRuntimeError, match="depend on the other items of its batch"):
            write(SEQUENCE_FIRST, x)
    assert not list(tmp_path.iterdir())
    exported = export(SEQUENCE_FIRST, x, tmp_path / "m.onnx", batch=7)
    assert str(exported.signature) == "x: float32[7, 3, 4] -> output: float32[7, 3, 4]"


@pytest.mark.parametrize("axes", [{0: "batch", 1: "batch"}, {-1: "batch"}, {3: "batch"}, {0: "sequence"}])
def test_axes_that_cannot_be_the_batch(axes: dict[int, str], tmp_path: Path) -> None:
    with pytest.raises(InputValueError, match="names no axis that can be opened"):
        export(Forward(lambda x: x * 2), torch.randn(3, 3, 4), tmp_path / "m.onnx", open_axes={"x": axes})


def test_inputs_whose_batch_is_not_named_have_it_first_if_the_size_is_the_same() -> None:
    example = (torch.randn(7, 3, 4), torch.randn(3, 7), torch.randn(7, 7), torch.randn(3))
    signature = signature_of(Forward(lambda x, *more: x), *example, batch_sizes=(7,))
    named = with_named_batch(signature, {"x": {0: "sequence", 1: "batch"}, "more.2": {0: "channels"}})
    assert [info.batch_axis for info in named.inputs] == [1, 0, None, None]
    assert with_named_batch(signature, {"x": {1: "rows"}}) is signature


IDS = torch.zeros(4, 6, dtype=torch.long)
TABLE = nn.Embedding(9, 3)
QUANTIZED = nn.Sequential(nn.Linear(4, 4))
burnt.quantize(QUANTIZED, "int8-dynamic_tensor")


@pytest.mark.sample(10)
@pytest.mark.parametrize(
    ("function", "example", "expected"),
    [
        (lambda x: x - x.mean(0), torch.zeros(4, 4), True),
        (lambda x: x - x.mean(0), torch.ones(4, 4), True),
        (lambda x: (x, x.flip(0)), torch.rand(4, 4), True),
        (lambda x: TABLE(x).cumsum(0), IDS, True),
        (lambda x: TABLE(x).cumsum(1), IDS, False),
        *((lambda x: x / x.abs().amax(), torch.rand(4, size), True) for size in (2, 3, 4, 5, 500)),
        (lambda x: x - x.mean(), torch.rand(4, 5000), True),
        (lambda x: x / x.amax(), torch.arange(1, 25).view(4, 6), True),
        (lambda x: (n := (x != 0).sum(1)) / n.amax(), torch.arange(24).view(4, 6), True),
        (lambda x: torch.hstack([x - x.mean(0), torch.full_like(x, -1e9)]), torch.rand(4, 4), True),
        (lambda x: x.mean(0), torch.rand(4, 5), False),  # no output has the axis
        (lambda x: (x, x @ x.T), torch.rand(4, 5), False),  # it grows with the batch
        (lambda x: x.view(4, -1), torch.rand(4, 5), False),  # tracing says what is wrong
        (lambda x: x.sub_(1), torch.rand(4, 4), False),
        (QUANTIZED, torch.rand(4, 4), False),  # about equally large items share a scale
    ],
)
def test_whether_items_depend_on_each_other(
    function: Callable[..., Any], example: Tensor, expected: bool
) -> None:
    model = Forward(function)
    signature = signature_of(model, example, batch_sizes=(4,))
    with torch.no_grad():
        assert items_depend(model, signature, 2e-2) == expected
