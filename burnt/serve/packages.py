"""The packages of the extra ``burnt[serve]``; imports none of them."""

from __future__ import annotations

import importlib.util

from burnt.errors import UnsupportedError


def require_packages() -> None:
    """Check that the packages of the server are installed."""
    needed = ("starlette", "uvicorn", "httptools", "prometheus_client", "packaging")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise UnsupportedError(
            "the server needs further packages",
            expected=", ".join(needed),
            found=f"no {', no '.join(missing)}",
            hint="pip install burnt[serve]",
        )
