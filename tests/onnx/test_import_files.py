"""Files of other makers: each equals ONNX Runtime, and its Python equals the module that was imported."""

from __future__ import annotations

import importlib.util
import types
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

import burnt
from burnt.onnx.importer.dtypes import from_numpy
from burnt.onnx.importer.package import write_package
from tests.onnx.importer_files import inputs_of, names, read

MAKERS = (
    "bert.dynamo",
    "llama.legacy",
    "convnext.dynamo",
    "gpt2_past.legacy",
    "unet.dynamo",
    "lstm.legacy",
    "tfidf.sklearn",
    "gaps.xgboost",
    "opset7.helper",
)


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", names())
def test_a_file_equals_onnx_runtime(name, tmp_path):
    model = read(name)
    module = burnt.onnx.load(model)
    session = onnxruntime.InferenceSession(model)
    for batch in (2, 3):
        feeds = inputs_of(model, batch)
        found = outputs_of(module, feeds)
        expected = session.run(None, feeds)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            check(one, other)

    write_package(module, tmp_path / "package", name="Imported", title=f"Imported from {name}.onnx.")
    again = outputs_of(import_package(tmp_path / "package").load(), feeds)
    for one, other in zip(found, again, strict=True):
        if isinstance(one, torch.Tensor):
            assert one.dtype == other.dtype
            assert torch.equal(one, other)
        else:
            assert np.array_equal(one, other)


def outputs_of(module: torch.nn.Module, feeds: dict[str, Any]) -> tuple[Any, ...]:
    with torch.no_grad():
        found = module(*(from_numpy(array, torch.device("cpu")) for array in feeds.values()))
    return found if isinstance(found, tuple) else (found,)


def check(found: Any, expected: Any) -> None:
    """Compare an output to 1e-4 of its scale; integers, strings and dicts of sequences likewise."""
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            check(one, other)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        check(torch.stack([torch.as_tensor(v) for v in found.values()]), np.array(list(expected.values())))
    elif expected.dtype.kind in "OSUib":
        assert np.array_equal(np.asarray(found), expected)
    else:
        assert list(found.shape) == list(expected.shape)
        scale = max(float(np.abs(expected).max()), 1e-6)
        assert float(np.abs(found.numpy() - expected).max()) <= 1e-4 * scale


def import_package(folder: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("imported_package", folder / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    return package
