"""The code of a run: kept in its ``config.json``, so that another process can build the model again."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import msgspec
import torch

from burnt import nn
from burnt._modules import class_in, import_file, import_installed, module_of_file, origin_of
from burnt.config import Config
from burnt.errors import DefinitionError, RecordError, RunError
from burnt.train.code import trust

_IMPORTING: ContextVar[Path | None] = ContextVar("_IMPORTING", default=None)
_STARTED_BY: ContextVar[tuple[str, tuple[str, ...], Config | None] | None] = ContextVar(
    "_STARTED_BY", default=None
)


@contextlib.contextmanager
def started_by(target: str, overrides: Sequence[str], config: Config | None = None) -> Iterator[None]:
    """Context in which runs are recorded as started by `burnt train`, to be started again."""
    token = _STARTED_BY.set((target, tuple(overrides), config))
    try:
        yield
    finally:
        _STARTED_BY.reset(token)


def is_restartable() -> bool:
    """Whether `burnt train` started what runs, so that ``burnt train --resume`` can start it again."""
    return _STARTED_BY.get() is not None


def replay_command(folder: Path, first: int, last: int, *, debug: bool = False) -> str:
    """Return how to run steps of the training in progress again, as the command or the call."""
    if not is_restartable():
        steps = f"{first if first == last else (first, last)}{', debug=True' if debug else ''}"
        return f"burnt.train.replay(training, learner, {steps})"
    steps = f"{first}" if first == last else f"{first}-{last}"
    return f"burnt replay {shlex.quote(str(folder))} --step {steps}{' --pdb' if debug else ''}"


def resume_command(folder: Path, processes: int = 1) -> str:
    """Return the command that resumes a run which `burnt train` has started.

    >>> resume_command(Path("runs/my net"), 2)
    "burnt train --resume 'runs/my net' --nproc 2"
    """
    several = "" if processes == 1 else f" --nproc {processes}"
    return f"burnt train --resume {shlex.quote(str(folder))}{several}"


def settings_in(document: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the Config that a run's function was called with, but for the fields that a resume sets."""
    config = ((document or {}).get("load") or {}).get("source", {}).get("config") or {}
    return {name: value for name, value in config.items() if name not in ("folder", "resume")}


@contextlib.contextmanager
def importing(file: Path) -> Iterator[None]:
    """Context in which code is imported for what it defines, and no training starts."""
    token = _IMPORTING.set(file)
    try:
        yield
    finally:
        _IMPORTING.reset(token)


def refuse_while_importing() -> None:
    """Raise if a run's code is just being imported, so that `load` and the commands do not train again."""
    file = _IMPORTING.get()
    if file is not None:
        raise DefinitionError(
            f"{file.name} trains when it is imported",
            where=str(file),
            expected="the training below `if __name__ == '__main__':`, or in a function",
            hint="only what it defines was wanted; nothing was trained or written",
        )


@dataclass(frozen=True)
class Source:
    """Where a run's model is defined, and what started the run.

    `file` is relative to the folder that the run was started in if it is below that; an interactive session
    has no file and no target.
    """

    module: str  # of the model's class; that of a script is named by its file, "train"
    model: str  # the qualified name of the class in it, "Digits"
    file: str | None
    sha256: str | None  # of the file's content
    target: str | None  # "train.py:main" of `burnt train`, or the script's file
    overrides: tuple[str, ...]  # the assignments given with it, or the script's arguments
    config: dict[str, Any] | None = None  # that the target was called with; None for a script

    @classmethod
    def of(cls, model: torch.nn.Module) -> Source:
        """Return the source of a model that is about to be trained."""
        kind = type(model)
        path = getattr(sys.modules.get(kind.__module__), "__file__", None)
        module = Path(path).stem if kind.__module__ == "__main__" and path else kind.__module__
        script = getattr(sys.modules["__main__"], "__file__", None)
        target, overrides, config = _STARTED_BY.get() or (
            script and _relative(script),
            tuple(sys.argv[1:]),
            None,
        )
        return cls(
            module,
            kind.__qualname__,
            None if path is None else _relative(path),
            None if path is None else _digest(Path(path)),
            target,
            overrides,
            None if config is None else config.to_dict(),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Source:
        """Read what `to_dict` returned."""
        try:
            return msgspec.convert(document, cls)
        except msgspec.ValidationError as error:  # another program may have written it
            raise TypeError(str(error)) from None

    def find_file(self, run: Path) -> Path | None:
        """Return the file as seen from this folder, or from one that contains the run; None if it is gone."""
        if self.file is None:
            return None
        bases = (Path.cwd(), *run.resolve().parents)
        found = [path for base in bases if (path := base / self.file).is_file()]
        return next((path for path in found if not self.has_changed(path)), next(iter(found), None))

    def has_changed(self, file: Path) -> bool:
        """Whether a file differs from the one that the run was started with."""
        return _digest(file) != self.sha256

    def mark(self, run: Path, document: Any) -> None:
        """Remember that the code may be executed which this source names in the ``config.json`` of a run."""
        trust.mark(run, document, *self._code(run))

    def is_trusted(self, run: Path, document: Any) -> bool:
        """Whether the code may be executed: this user trained the run here, or trusts it, now or before.

        `document` is the content of the run's ``config.json``. Trust given now, as by ``--trust``, is kept.
        """
        if trust.has_mark(document, *self._code(run)):
            return True
        if trust.is_trusting():
            self.mark(run, document)
            return True
        return False

    def import_function(self, run: Path) -> Callable[[Any], object] | None:
        """Return the target of a run that is not trusted, if it is a function of an installed module.

        None: there is nothing of that name. RunError: it is something else, and what would be executed.
        """
        module, _, name = (self.target or "").rpartition(":")
        file = self._target_file()
        if file is None:
            return None
        code = import_installed(module, lambda code: _defines_function(code, name), run)
        function = vars(code).get(name) if code is not None else None
        if isinstance(function, FunctionType) and function.__module__ == module:
            return function
        raise _untrusted(run, f"import {file} and call its function {name}")

    def _target_file(self) -> Path | None:
        """Return the file of the function or script that started the run, as seen from this folder."""
        module = (self.target or "").rpartition(":")[0] or self.target or ""
        if module.endswith(".py") or "/" in module:
            file = Path(module).absolute()
            return file if file.is_file() else None
        origin = origin_of(module)
        return None if origin is None else Path(origin)

    def _code(self, run: Path) -> tuple[list[Path], list[Path]]:
        """Return the files that are named here: those inside the run folder, and others."""
        named = {file.resolve() for file in (self.find_file(run), self._target_file()) if file is not None}
        files = [file for file in named if file.is_file()]
        inside = [file for file in files if file.is_relative_to(run.resolve())]
        return inside, [file for file in files if file not in inside]

    def imported_class(self, run: Path) -> type[torch.nn.Module] | None:
        """Return the model's class if it is already imported, found by its module's name or its file."""
        file = self.find_file(run)
        modules = [module_of_file(file) if file is not None else None, sys.modules.get(self.module)]
        return next((kind for module in modules if (kind := self._class_in(module)) is not None), None)

    def import_class(self, run: Path, document: Any) -> type[torch.nn.Module]:
        """Import the module that defines the model's class, and return the class.

        RunError: the run is not trusted, and the module is not an installed one. Imported code may raise
        anything.
        """
        file = self.find_file(run)
        if not self.is_trusted(run, document):
            name = self.model.rpartition(".")[2]
            kind = self.imported_class(run) or self._class_in(
                import_installed(self.module, lambda code: _defines_class(code, name), run)
            )
            if kind is not None:
                return kind
            if file is not None or self.file is None:
                raise _untrusted(
                    run, f"import {file or origin_of(self.module) or self.module} and build its {self.model}"
                )
        if file is None and self.file is not None:
            raise RecordError(
                "the code of the run is not found",
                where=str(run),
                expected=self.file,
                found=f"no such file below {Path.cwd()} or a folder that contains the run",
                hint="go to the folder in which it was trained, or pass the model",
            )
        module = importlib.import_module(self.module) if file is None else self._import(file)
        kind = self._class_in(module)
        if kind is None:
            raise RecordError(
                "the code of the run does not define its model",
                where=str(file or self.module),
                expected=f"a class {self.model}",
                found="one inside of a function when it was trained"
                if "<locals>" in self.model
                else "no such class",
                hint="define the class at the top of its module"
                if "<locals>" in self.model
                else "was it renamed since?",
            )
        return kind

    def _import(self, file: Path) -> ModuleType:
        parts = self.module.split(".")
        path = [*file.parts[:-1], *([file.stem] if file.stem != "__init__" else [])]
        with importing(file):
            if len(parts) == 1 or path[-len(parts) :] != parts:
                return import_file(file)
            root = str(Path(*path[: -len(parts)]))
            if root not in sys.path:
                sys.path.insert(0, root)
            return importlib.import_module(self.module)

    def _class_in(self, module: ModuleType | None) -> type[torch.nn.Module] | None:
        kind = class_in(module, self.model, torch.nn.Module)
        if kind is None and self.module.startswith("burnt.nn."):  # an older burnt had it in another module
            public = getattr(nn, self.model, None)
            kind = public if isinstance(public, type) and issubclass(public, torch.nn.Module) else None
        return kind


def _untrusted(run: Path, what: str) -> RunError:
    problem = trust.marks_problem()
    return RunError(
        "the run names code to execute, and is not trusted: nothing was imported",
        where=str(run / "config.json"),
        expected="a run that you trained on this machine, or code in an installed package",
        found=f"it would {what}",
        hint="read that code; if you trust it and what it imports: --trust, or trust=True in Python. This is "
        "remembered until config.json or the code in the folder changes. A run of your own needs it once "
        "if an older burnt or another machine trained it, or its code was moved and changed"
        + (f". Nothing is remembered: {problem}" if problem else ""),
    )


def _defines_class(code: ast.Module, name: str) -> bool:
    return any(isinstance(node, ast.ClassDef) and node.name == name for node in ast.walk(code))


def _defines_function(code: ast.Module, name: str) -> bool:
    """Whether a function of this name has one parameter, annotated, as a function of a Config has."""
    found = [node.args for node in code.body if isinstance(node, ast.FunctionDef) and node.name == name]
    parameters = [arg for arguments in found for arg in (*arguments.posonlyargs, *arguments.args)]
    return len(found) == len(parameters) == 1 and parameters[0].annotation is not None


def _relative(path: str) -> str:
    resolved = Path(path).resolve()
    return os.fspath(resolved.relative_to(Path.cwd()) if resolved.is_relative_to(Path.cwd()) else resolved)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
