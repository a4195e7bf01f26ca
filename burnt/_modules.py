"""Import a Python file by its path."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

from burnt.errors import ConfigError

__all__ = ["import_file", "module_of_file"]


def import_file(path: str | os.PathLike[str]) -> ModuleType:
    """Import a file as the module of its name, with its folder on ``sys.path`` as when Python runs it.

    A file that is already imported, also as the script ``__main__``, is not imported again.

    Raises:
        ConfigError: another module of that name is imported, or it is no Python file.
        OSError: it cannot be read.
    """
    path = Path(path).resolve()
    name = path.stem
    loaded = module_of_file(path)
    if loaded is not None:
        return loaded
    if name in sys.modules:
        raise ConfigError(
            f"{path.name} cannot be loaded: another module {name!r} is already loaded",
            where=str(path),
            found=getattr(sys.modules[name], "__file__", None) or "a built-in module",
            hint="rename the file, or name it as a module: package.module:function",
        )
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(
            f"{path.name} is not a Python file", where=str(path), hint="its name must end in .py"
        )
    sys.path.insert(0, str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def module_of_file(path: str | os.PathLike[str]) -> ModuleType | None:
    """Return the imported module of a file, by any name; None if it is not imported."""
    path = os.fspath(Path(path).resolve())
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file is not None and os.path.realpath(file) == path:
            return module
    return None
