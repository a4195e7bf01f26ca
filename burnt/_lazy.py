"""Public names that are imported when first used, so that `import burnt` stays cheap (PEP 562)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from burnt._hints import no_attribute

build_quantized: Callable[[Any, Mapping[str, Any], tuple[int, ...] | None], Any]
"""`burnt.nn.quantized.build_quantized`, for records, which the layers stand above. `burnt` sets it."""


def attach(
    namespace: MutableMapping[str, Any], homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` for a package whose public names live elsewhere.

    Args:
        namespace: the package's `globals()`.
        homes: public name -> module that defines it; ``"nn": "burnt.nn"`` in burnt is the module itself.
    """
    package = namespace["__name__"]

    def __getattr__(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise no_attribute(package, name, homes)
        module = importlib.import_module(home)
        value = module if home == f"{package}.{name}" else getattr(module, name)
        namespace[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*namespace, *homes})

    return __getattr__, __dir__
