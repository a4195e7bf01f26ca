"""The function that started a run, from the run's ``config.json``: for the commands that start it again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnt.cli.output import UsageError
from burnt.cli.train import assignment_errors, config_class, find_function
from burnt.config import Config
from burnt.errors import ConfigError, clean

if TYPE_CHECKING:
    from burnt.train.code.source import Source


@dataclass(frozen=True)
class StoredTarget:
    """A function that `burnt train` called, and its Config."""

    target: str
    function: Callable[[Any], object]
    config: Config
    overrides: tuple[str, ...]

    @classmethod
    def read(cls, folder: Path, document: Any, instead: str) -> StoredTarget:
        """Return what started a run; `instead` is the hint if `burnt train` has not."""
        from burnt.train.code.source import Source

        try:
            source = Source.from_dict(document["load"]["source"])
        except (KeyError, TypeError):
            source = None
        if source is None or source.target is None:
            what = "the run does not say what started it"
            found = "one of an older burnt" if source is None else "one of an interactive session"
        elif ":" not in source.target:
            what = "the run was started by a script"
            found = " ".join(["python", source.target, *source.overrides])
        if source is None or source.target is None or ":" not in source.target:
            raise UsageError(
                what,
                where=str(folder),
                expected="a run that `burnt train module:function` started",
                found=found,
                hint=instead,
            )
        function = None if source.is_trusted(folder, document) else source.import_function(folder)
        if function is None:
            function = _find(folder, source)
        kind = config_class(function, source.target)
        try:
            if source.config is not None:
                config = kind.from_dict(source.config)
            else:  # of burnt 0.1.0
                config = kind.from_assignments(source.overrides)
        except ConfigError as error:
            raise UsageError(
                f"{source.target} does not take the settings of the run any more",
                where=error.where,
                expected=error.expected,
                found=error.found,
                hint=error.hint,
            ) from error
        file = source.find_file(folder)
        if file is not None and source.has_changed(file):
            print(clean(f"warning: {file} has changed since the run was started"), file=sys.stderr)
        return cls(source.target, function, config, source.overrides)

    def has(self, name: str) -> bool:
        """Whether the Config has a field."""
        return name in type(self.config).__struct_fields__

    def override(self, assignments: Sequence[str]) -> StoredTarget:
        """Return the same function with other settings."""
        with assignment_errors():
            config = self.config.override(assignments)
        return StoredTarget(self.target, self.function, config, (*self.overrides, *assignments))

    def in_folder(self, folder: Path, *, resume: bool) -> StoredTarget:
        """Return the same function for a run folder, as far as its Config has the fields for it."""
        settings = {"folder": str(folder), "resume": "true" if resume else "false"}
        # The other order may not be valid in between: resume=true may require a folder.
        return self.override([f"{name}={value}" for name, value in settings.items() if self.has(name)])

    def require_folder(self) -> None:
        """Check that the run folder of the function is a setting."""
        if not self.has("folder"):
            raise UsageError(
                f"{self.target} cannot train in a new folder, because its Config has no field for it",
                where=type(self.config).__name__,
                expected="a field `folder`, and SupervisedTraining(config.folder, ...)",
                found=f"the fields {', '.join(type(self.config).__struct_fields__) or '(none)'}",
                hint="folder: str = 'runs/name'",
            )

    def call(self) -> None:
        """Call the function."""
        from burnt.train.code.source import started_by

        with started_by(self.target, self.overrides, self.config):
            self.function(self.config)


def _find(folder: Path, source: Source) -> Callable[[Any], object]:
    assert source.target is not None
    try:
        return find_function(source.target)
    except UsageError as error:
        module = source.target.rpartition(":")[0]
        file = Path(module if module.endswith(".py") else module.replace(".", "/") + ".py")
        there = next((base for base in folder.resolve().parents if (base / file).is_file()), None)
        raise UsageError(
            "the function that started the run is not found",
            where=str(folder),
            expected=f"{source.target}, as seen from {Path.cwd()}",
            found=error.what,
            hint=f"go to {there} first"
            if there is not None and there != Path.cwd()
            else "was it moved or renamed? burnt train NEW:NAME --config RUN folder=RUN resume=true",
        ) from error
