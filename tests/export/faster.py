"""A faster export for tests: what each export parses and compiles anew is kept in the process."""

import functools

import pytest

__all__ = ["exports_are_fast"]


@pytest.fixture(autouse=True, scope="session")
def exports_are_fast() -> None:
    """Keep torch.onnx's translations, and the C generator's templates, of which it compiles all each time."""
    from jinja2 import Environment
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    if not hasattr(ONNXRegistry.from_torchlib, "cache_info"):
        ONNXRegistry.from_torchlib = staticmethod(functools.cache(ONNXRegistry.from_torchlib))  # type: ignore[method-assign]
    compiled = Environment.compile
    if not hasattr(compiled, "codes"):
        codes: dict[tuple[object, ...], object] = {}

        def once(self, source, name=None, filename=None, *rest, **settings):  # type: ignore[no-untyped-def]
            key = (source, name, filename, *rest, *sorted(settings.items()))
            if key not in codes:
                codes[key] = compiled(self, source, name, filename, *rest, **settings)
            return codes[key]

        once.codes = codes  # type: ignore[attr-defined]
        Environment.compile = once  # type: ignore[method-assign]
