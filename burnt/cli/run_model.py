"""What the commands that ship a run share: find the run, import its code, load its model, know its inputs."""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnt.cli.output import UsageError
from burnt.cli.runs_show import find_run
from burnt.cli.train import load_attribute, split_target
from burnt.errors import RecordError, UnsupportedError, clean

if TYPE_CHECKING:
    import torch

    from burnt.inspect.signature import Signature
    from burnt.train.after.loading import RunFiles
    from burnt.train.checkpoints.checkpoint import Saved


@dataclass(frozen=True)
class RunModel:
    """A run's model, ready to be shipped.

    Args:
        model: the module, in evaluation mode.
        signature: what it takes and returns.
        folder: the run folder.
        checkpoint: the name of the checkpoint.
        classes: the names of the classes, where the dataset had them.
        metadata: texts for files: the run's name, the checkpoint and the Config as JSON.
    """

    model: torch.nn.Module
    signature: Signature
    folder: Path
    checkpoint: str
    classes: Sequence[str] | None
    metadata: Mapping[str, str]


def load_run_model(args: argparse.Namespace, run: str | None = None) -> RunModel:
    """Load the model of a run. The code that the run names is imported, since the user named the run."""
    files = read_run(run or args.run)
    saved, model = load_model(files, args.checkpoint, args.model)
    signature = _signature(files, model, args.example)
    metadata = {
        "burnt.run": files.folder.resolve().name,
        "burnt.checkpoint": saved.path.name,
        "burnt.config": json.dumps(files.document.get("config") or {}),
    }
    if files.classes:
        metadata["burnt.classes"] = json.dumps(files.classes)
    return RunModel(model, signature, files.folder, saved.path.name, files.classes, metadata)


def read_run(name: str) -> RunFiles:
    """Read the files of a run for building its model; `find_run` says what a mistyped name raises."""
    from burnt.train.after.loading import RunFiles

    return RunFiles.read(find_run(name))


def load_model(files: RunFiles, checkpoint: str, target: str | None) -> tuple[Saved, torch.nn.Module]:
    """Load the model of a run and its checkpoint, importing its code, or that of a ``module:name``."""
    from burnt.train.after.loading import load_with_checkpoint

    source = files.source if target is None else None
    file = None if source is None else source.find_file(files.folder)
    if source is not None and file is not None and source.is_trusted(files.folder, files.document):
        print(clean(f"importing {file}"), file=sys.stderr)
    model = None if target is None else named_model(target)
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", message=".* has changed since the run")
        try:
            loaded = load_with_checkpoint(files, checkpoint, model, import_code=files.source is not None)
        except RecordError as error:
            if error.hint is not None and "load(" in error.hint:  # what to do in Python
                error.hint = "--model MODULE:NAME: the model's class, or a function that builds the model"
            raise
    for warning in caught:
        print(clean(f"warning: {warning.message}"), file=sys.stderr)
    return loaded


def named_model(target: str) -> Any:
    """Return the model that ``module:name`` names, or the one that it builds, or a subclass of `Module`."""
    from torch import nn

    from burnt import Module

    value = load_attribute(*split_target(target, "--model names no model"))
    if isinstance(value, nn.Module) or (inspect.isclass(value) and issubclass(value, Module)):
        return value
    if callable(value):
        try:
            inspect.signature(value).bind()
        except TypeError as error:
            raise UsageError(
                f"{target} cannot be called", expected="a function without arguments", found=str(error)
            ) from None
    built = value() if callable(value) else value
    if not isinstance(built, nn.Module):
        raise UsageError(
            f"{target} is no model, and builds none",
            expected="a torch.nn.Module, a class of burnt.Module, or a function that builds one",
            found=type(built).__name__,
        )
    return built


def _signature(files: RunFiles, model: torch.nn.Module, examples: Sequence[str]) -> Signature:
    """Return the signature that the run knows, or that of ``--example``."""
    if not examples:
        try:
            return files.signature()
        except UnsupportedError as error:
            error.hint = "pass an example of each input, the batch axis first: --example 2x3x32x32"
            raise
    from burnt.cli.bench import parse_input
    from burnt.inspect import signature_of

    return signature_of(model, *(parse_input(text, "--example") for text in examples))
