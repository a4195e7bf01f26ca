"""The public names of packages; some are imported when first used, so that `import burnt` stays cheap."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from burnt._hints import no_attribute

build_quantized: Callable[[Any, Mapping[str, Any], tuple[int, ...] | None], Any]
"""`burnt.nn.quantized.build_quantized`, for records, which the layers stand above. `burnt` sets it."""


def attach(
    namespace: MutableMapping[str, Any], names: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package whose public names live elsewhere.

    Type checkers read the names from imports under ``if TYPE_CHECKING``, as in ``import Module as Module``.
    `names` maps the module that defines them to public names, the package itself to those of its submodules.
    """
    package = namespace["__name__"]
    homes = {name: home for home, defined in names.items() for name in defined.split()}

    def __getattr__(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise no_attribute(package, name, homes)
        if home == package:
            value = importlib.import_module(f"{package}.{name}")
        else:
            value = getattr(importlib.import_module(home), name)
        namespace[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*namespace, *homes})

    return __getattr__, __dir__, sorted(homes)


def own_names(namespace: Mapping[str, Any]) -> list[str]:
    """Return the public names that a module defines, or a package imports from its modules: its `__all__`.

    Type checkers read them from imports such as ``import Linear as Linear``, which they take as exports.
    """
    own = namespace["__name__"]
    homes = {name: getattr(value, "__module__", "") for name, value in namespace.items()}
    return sorted(name for name, home in homes.items() if f"{home}.".startswith(f"{own}.") and name[0] != "_")
