import pytest
import torch

from tests.export.faster import exports_are_fast
from tests.onnx.translations import translations_parsed_once

__all__ = ["exports_are_fast", "translations_parsed_once"]

for package in ("emx_onnx_cgen", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason="not installed: pip install 'burnt[c]'")


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
