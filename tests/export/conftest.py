import functools

import pytest
import torch

from tests.onnx.translations import translations_parsed_once

__all__ = ["translations_parsed_once"]

for package in ("emx_onnx_cgen", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason="not installed: pip install 'burnt[c]'")


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def templates_compiled_once() -> None:
    """Each export compiles the templates of all ops, which takes seconds."""
    from jinja2 import Environment

    compiled = Environment.compile
    if not hasattr(compiled, "cache_info"):
        codes: dict[tuple[object, ...], object] = {}

        @functools.wraps(compiled)
        def once(self, source, name=None, filename=None, *rest, **settings):  # type: ignore[no-untyped-def]
            key = (source, name, filename, *rest, *sorted(settings.items()))
            if key not in codes:
                codes[key] = compiled(self, source, name, filename, *rest, **settings)
            return codes[key]

        once.cache_info = codes
        Environment.compile = once
