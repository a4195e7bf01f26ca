"""A faster torch.onnx for tests."""

import functools

import pytest


@pytest.fixture(autouse=True, scope="session")
def translations_parsed_once() -> None:
    """At each export torch.onnx parses all its translations, which takes longer than the rest."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    if not hasattr(ONNXRegistry.from_torchlib, "cache_info"):
        ONNXRegistry.from_torchlib = staticmethod(functools.cache(ONNXRegistry.from_torchlib))  # type: ignore[method-assign]
