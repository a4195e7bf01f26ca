"""`burnt train module:function key=value ...`: find a function, build its Config, call it.

Errors in the command line are `UsageError`s. Errors in the user's code keep their traceback.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import inspect
import itertools
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from burnt._modules import import_file
from burnt.cli import several
from burnt.cli.output import UsageError, closest_path, usage_errors
from burnt.config import Config
from burnt.errors import ConfigError, did_you_mean

_MAX_DEPTH = 4  # depth of the search for names similar to a mistyped one
_MAX_FILES = 2000
_SKIPPED_FOLDERS = {"__pycache__", "node_modules", "site-packages", "venv"}


@several.reporting()
def run(args: argparse.Namespace) -> int:
    """Call a training function with its configuration."""
    if (code := several.start(args)) is not None:
        return code
    choose_monitor(args)
    function, config = _configure(args.target, args.overrides, args.config)
    if args.show:
        print(config.to_json())
    else:
        from burnt.train.code.source import started_by

        with started_by(args.target, args.overrides, config):
            function(config)
    return 0


def choose_monitor(args: argparse.Namespace) -> None:
    """Show progress as ``--monitor`` says, unless the function sets it."""
    if args.monitor is not None:
        os.environ["BURNT_MONITOR"] = args.monitor


def configured(target: str, overrides: Sequence[str], config_file: str | None = None) -> Callable[[], object]:
    """Return a training function with its configuration as the argument."""
    function, config = _configure(target, overrides, config_file)
    return functools.wraps(function)(lambda: function(config))


def find_function(target: str) -> Callable[[Any], object]:
    """Return the function that ``"module:function"`` or ``"path/file.py:function"`` names."""
    module_name, name = split_target(target, "the target names no function", "function")
    function = load_attribute(module_name, name, "function")
    if not callable(function):
        hint = _functions_hint(load_module(module_name))
        raise UsageError(f"{target} is not a function", found=type(function).__name__, hint=hint)
    return function  # type: ignore[no-any-return]  # any callable


def split_target(target: str, problem: str, kind: str = "name") -> tuple[str, str]:
    """Split ``module:name`` or ``path/file.py:name``; a UsageError with the problem if it is neither."""
    module_name, colon, name = target.rpartition(":")
    if not colon or not module_name or not name:
        raise UsageError(
            problem,
            expected=f"module:{kind} or path/file.py:{kind}",
            found=repr(target),
            hint=f"{target.strip(':') or 'module'}:main, if the function is called main"
            if kind == "function"
            else None,
        )
    return module_name, name


def load_module(name: str) -> ModuleType:
    """Import a module by name or file path, with the current folder on ``sys.path``."""
    folder = os.getcwd()
    if folder not in sys.path and "" not in sys.path:
        sys.path.insert(0, folder)
    return _load_file(Path(name)) if name.endswith(".py") or "/" in name else _import_module(name)


def load_attribute(module_name: str, name: str, kind: str = "name") -> Any:
    """Import a module by name or file path, and return what a name in it stands for."""
    module = load_module(module_name)
    if not hasattr(module, name):
        is_function = kind == "function"
        names = [key for key, value in vars(module).items() if not is_function or callable(value)]
        hints = [did_you_mean(name, names), _functions_hint(module) if is_function else None]
        raise UsageError(
            f"{module_name} has no {kind} {name!r}",
            where=getattr(module, "__file__", None),
            hint=" ".join(filter(None, hints)) or None,
        )
    return getattr(module, name)


def _import_module(name: str) -> ModuleType:
    if all(part.isidentifier() for part in name.split(".")):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if _is_raised_inside(error):
                raise
    files = [Path(file).with_suffix("") for file in itertools.islice(_python_files(), _MAX_FILES)]
    modules = [".".join(file.parts).removesuffix(".__init__") for file in files]
    raise _not_found_error("module", name, modules, ".")


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise _not_found_error("file", os.fspath(path), itertools.islice(_python_files(), _MAX_FILES), "/")
    with usage_errors(ConfigError):
        return import_file(path)


def _is_raised_inside(error: BaseException) -> bool:
    """Whether an import error was raised by a module's code, not because the module is missing."""
    import_files = (__file__, importlib.__file__)
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    return any(file not in import_files and not file.startswith("<frozen importlib") for file in files)


def _python_files() -> Iterator[str]:
    for folder, folders, files in os.walk("."):
        parts = Path(folder).parts
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _SKIPPED_FOLDERS]
        if len(parts) >= _MAX_DEPTH:
            folders.clear()
        yield from (str(Path(folder, file)) for file in sorted(files) if file.endswith(".py"))


def _not_found_error(kind: str, name: str, names: Iterable[str], separator: str) -> UsageError:
    guess = closest_path(name, names, separator)
    return UsageError(
        f"there is no {kind} {name!r}",
        where=os.getcwd(),
        hint=f"did you mean {guess!r}?" if guess else "modules and files are searched from this folder",
    )


def _functions_hint(module: ModuleType) -> str:
    functions = [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    ]
    return f"its functions: {', '.join(functions)}" if functions else "it defines no functions"


def config_class(function: Callable[[Any], object], target: str) -> type[Config]:
    """Return the Config class that annotates a function's only parameter."""
    name = target.rpartition(":")[2]
    expected = f"def {name}(config: MyConfig), where MyConfig is a burnt.Config"
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (ValueError, NameError) as error:  # a builtin; from Python 3.14 on also an unresolvable annotation
        raise UsageError(
            f"the signature of {target} cannot be read", expected=expected, found=str(error)
        ) from error
    if len(parameters) != 1 or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        found = ", ".join(str(parameter) for parameter in parameters)
        raise UsageError(
            f"{target} must take exactly one parameter", expected=expected, found=f"def {name}({found})"
        )
    parameter = parameters[0]
    if parameter.annotation is parameter.empty:
        raise UsageError(
            f"the parameter {parameter.name!r} of {target} is not annotated",
            expected=expected,
            found=f"def {name}({parameter.name})",
        )
    annotation = parameter.annotation
    if isinstance(annotation, str):
        try:
            annotation = eval(annotation, getattr(inspect.unwrap(function), "__globals__", {}))
        except (NameError, AttributeError, TypeError, SyntaxError) as error:
            raise UsageError(
                f"the annotation of {target} cannot be resolved",
                expected=expected,
                found=f"{parameter}: {error}",
                hint="import the Config at the top of the module, not under `if TYPE_CHECKING`",
            ) from error
    if not (isinstance(annotation, type) and issubclass(annotation, Config)):
        raise UsageError(
            f"the parameter {parameter.name!r} of {target} is not annotated with a burnt.Config",
            expected=expected,
            found=f"def {name}({parameter})",
        )
    return annotation


def _configure(
    target: str, overrides: Sequence[str], config_file: str | None
) -> tuple[Callable[[Any], object], Config]:
    """Return the function that a target names, and its Config from a file or the defaults, overridden."""
    function = find_function(target)
    cls = config_class(function, target)
    try:
        with assignment_errors():
            if config_file is None:
                return function, cls.from_assignments(overrides)
            in_folder = Path(config_file, "config.json")
            return function, cls.load(in_folder if in_folder.is_file() else config_file).override(overrides)
    except OSError as error:
        raise UsageError(
            "the configuration cannot be read",
            where=config_file,
            found=error.strerror,
            hint="--config takes a file written by Config.save, or a run's folder or config.json",
        ) from error


@contextlib.contextmanager
def assignment_errors() -> Iterator[None]:
    """Context in which assignments that a Config does not take raise a UsageError."""
    with usage_errors(ConfigError):
        try:
            yield
        except ConfigError as error:
            if error.found == "nothing":
                error.hint = error.hint or f"set it with: {error.where}=value"
            raise
