import pytest
import torch

from tests.export.templates import templates_compiled_once
from tests.onnx.translations import translations_parsed_once

__all__ = ["templates_compiled_once", "translations_parsed_once"]

for package in ("emx_onnx_cgen", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason="not installed: pip install 'burnt[c]'")


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
