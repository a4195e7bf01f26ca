from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.onnx.translations import translations_parsed_once

__all__ = ["translations_parsed_once"]

pytest.importorskip("onnxscript", reason="no ONNX here: pip install 'burnt[onnx]'")
pytest.importorskip("onnxruntime", reason="no ONNX Runtime here: pip install 'burnt[onnx]'")


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def run_file() -> Callable[..., dict[str, np.ndarray]]:
    """Runs a file in ONNX Runtime without burnt: named tensors in, named arrays out."""
    return _run_file


def _run_file(
    path: Path, inputs: Mapping[str, torch.Tensor], optimized: bool = True
) -> dict[str, np.ndarray]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names: Sequence[str] = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(None, {k: v.numpy() for k, v in inputs.items()}), strict=True))
