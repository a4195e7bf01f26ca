"""Import a Python file by its path, or a module that is installed."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from burnt.errors import ConfigError

_T = TypeVar("_T")


def import_file(path: str | os.PathLike[str]) -> ModuleType:
    """Import a file as the module of its name, with its folder on ``sys.path`` as when Python runs it.

    A file that is already imported, also as the script ``__main__``, is not imported again. Where another
    module of that name is imported, and for what is not a Python file, it raises a ConfigError.
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
    if spec is None or not isinstance(spec.loader, SourceFileLoader):
        raise ConfigError(
            f"{path.name} is not a Python file", where=str(path), hint="its name must end in .py"
        )
    sys.path.insert(0, str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        # Not the byte code next to it, which may have come with a received file, and do otherwise.
        exec(spec.loader.source_to_code(path.read_bytes(), os.fspath(path)), vars(module))
    except BaseException:
        del sys.modules[name]
        raise
    return module


def module_of_file(path: str | os.PathLike[str]) -> ModuleType | None:
    """Return the imported module of a file, by any name; None if it is not imported."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        with contextlib.suppress(OSError):  # one of them is gone, or in an archive
            if file is not None and os.path.samefile(file, path):
                return module
    return None


def class_in(module: ModuleType | None, name: str, base: type[_T]) -> type[_T] | None:
    """Return the class of this qualified name if the module defines it, and does not only import it.

    >>> import collections
    >>> class_in(collections, "OrderedDict", dict), class_in(collections, "abc.Mapping", object)
    (<class 'collections.OrderedDict'>, None)
    """
    found: object = module
    for part in name.split("."):
        found = vars(found).get(part) if isinstance(found, type | ModuleType) else None
        if not isinstance(found, type) or found.__module__ != getattr(module, "__name__", None):
            return None
    return found if isinstance(found, type) and issubclass(found, base) else None


def origin_of(name: str) -> str | None:
    """Return the file of a module that an import would execute, with the current folder on ``sys.path``.

    Nothing is imported to find out. Of a module that is missing from its package it is the package's file, of
    a built-in one ``"built-in"``; None if nothing is found.
    """
    sys.path.insert(0, os.getcwd())
    try:
        return next((spec.origin for spec in reversed(_specs(name)) if spec.origin is not None), None)
    finally:
        sys.path.remove(os.getcwd())


def import_installed(name: str, is_defined: Callable[[ast.Module], bool], outside: Path) -> ModuleType | None:
    """Import a module that another person named if it is installed and `is_defined` of its source; else None.

    Modules in the folder `outside` do not count as installed, even if ``sys.path`` has it. Nor do those of
    the current folder, which ``python -m`` and a prompt put there, unless PYTHONPATH has its path.
    """
    with _without_current_folder():
        specs = _specs(name)
        places = [Path(spec.origin).resolve() for spec in specs if spec.has_location and spec.origin]
        loader: Any = specs[-1].loader if specs and specs[-1].name == name else None
        if not places or any(place.is_relative_to(outside.resolve()) for place in places):
            return None
        try:
            source = loader.get_source(name) if hasattr(loader, "get_source") else None
            if source is None or not is_defined(ast.parse(source)):
                return None
        except (ImportError, SyntaxError):
            return None
        return importlib.import_module(name)


def _specs(name: str) -> list[ModuleSpec]:
    """Return the specs of a module's packages and of the module, as far as they are found."""
    specs: list[ModuleSpec] = []
    parts = name.split(".")
    for i, part in enumerate(parts):
        try:
            if i == 0:
                spec = importlib.util.find_spec(part) if part.isidentifier() else None
            else:
                spec = PathFinder.find_spec(".".join(parts[: i + 1]), specs[-1].submodule_search_locations)
        except (ImportError, ValueError, KeyError):  # of __main__; of namespaces within namespaces
            spec = None
        if spec is None:
            break
        specs.append(spec)
        if spec.submodule_search_locations is None:
            break
    return specs


@contextlib.contextmanager
def _without_current_folder() -> Iterator[None]:
    named = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if os.path.isabs(path)]
    # Relative entries lead to where the user has gone, too.
    relative = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path not in named]
    left_out = {os.path.realpath(path) for path in (os.curdir, *relative)} - {*map(os.path.realpath, named)}
    removed = [(i, path) for i, path in enumerate(sys.path) if os.path.realpath(path) in left_out]
    sys.path[:] = [path for i, path in enumerate(sys.path) if i not in dict(removed)]
    try:
        yield
    finally:
        for i, path in removed:
            sys.path.insert(i, path)
