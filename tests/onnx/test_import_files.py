"""Files of other makers: each equals ONNX Runtime, and its Python equals the module that was imported."""

from __future__ import annotations

import importlib.util

import numpy as np
import onnxruntime
import pytest
import torch

import burnt
from burnt.onnx.importer.python import write_package
from tests.onnx.importer_files import inputs_of, names, read


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", names())
def test_a_file_equals_onnx_runtime(name, tmp_path):
    model = read(name)
    module = burnt.onnx.load(model)
    session = onnxruntime.InferenceSession(model)
    for batch in (2, 3):
        feeds = inputs_of(model, batch)
        expected = session.run(None, feeds)
        with torch.no_grad():
            found = module(*map(torch.from_numpy, feeds.values()))
        found = found if isinstance(found, tuple) else (found,)
        for one, other in zip(found, expected, strict=True):
            assert list(one.shape) == list(other.shape)
            scale = max(float(np.abs(other).max()), 1e-6)
            assert float(np.abs(one.numpy() - other).max()) <= 1e-4 * scale

    write_package(module, tmp_path / "package", name="Imported", title=f"Imported from {name}.onnx.")
    spec = importlib.util.spec_from_file_location("imported_package", tmp_path / "package" / "__init__.py")
    package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    written = package.load()
    with torch.no_grad():
        again = written(*map(torch.from_numpy, feeds.values()))
    for one, other in zip(found, again if isinstance(again, tuple) else (again,), strict=True):
        assert torch.equal(one, other)
