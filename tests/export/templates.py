"""A faster C generator for tests."""

import pytest

__all__ = ["templates_compiled_once"]


@pytest.fixture(autouse=True, scope="session")
def templates_compiled_once() -> None:
    """At each export it compiles the templates of all ops, which takes longer than the rest."""
    from jinja2 import Environment

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
