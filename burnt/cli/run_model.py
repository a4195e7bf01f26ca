"""What the commands that ship a run share: find the run, import its code, load its model, know its inputs."""

from __future__ import annotations

import argparse
import inspect
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnt.cli.output import UsageError
from burnt.cli.runs_show import open_run, run_folder
from burnt.cli.train import load_attribute
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
    """Load the model of a run. The code that the run names is imported, since the user named the run.

    Args:
        args: those that `arguments.parser.add_run_model` declares.
        run: instead of theirs.

    Raises:
        UsageError: there is no such run, or `--model` or `--example` is wrong.
        BurntError: the run cannot be loaded.
    """
    import json

    from burnt.train.after.loading import RunFiles

    folder = run_folder(run or args.run)
    open_run(folder).close()  # raises the error that names the closest run
    files = RunFiles.read(folder)
    saved, model = load_model(files, args.checkpoint, args.model)
    signature = _signature_of_examples(model, args.example) if args.example else _known_signature(files)
    metadata = {
        "burnt.run": files.folder.resolve().name,
        "burnt.checkpoint": saved.path.name,
        "burnt.config": json.dumps(files.document.get("config") or {}),
    }
    if files.classes:
        metadata["burnt.classes"] = json.dumps(files.classes)
    return RunModel(model, signature, files.folder, saved.path.name, files.classes, metadata)


def load_model(files: RunFiles, checkpoint: str, target: str | None) -> tuple[Saved, torch.nn.Module]:
    """Load the model of a run, importing its code; return the checkpoint, too.

    Args:
        files: the run.
        checkpoint: which one, as in `burnt.load`.
        target: ``"module:name"`` of the model, for a run that does not say it.

    Raises:
        UsageError: `target` is wrong.
        BurntError: the model cannot be loaded.
    """
    from burnt.train.after.loading import load

    source = files.source if target is None else None
    file = None if source is None else source.find_file(files.folder)
    if source is not None and file is not None and source.is_trusted(files.folder, files.document):
        print(clean(f"importing {file}"), file=sys.stderr)
    model = None if target is None else named_model(target)
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", message=".* has changed since the run")
        try:
            loaded = files.read_checkpoint(
                checkpoint,
                lambda saved: load(
                    files.folder, saved.path.name, model, import_code=files.source is not None
                ),
            )
        except RecordError as error:
            if error.hint is not None and "load(" in error.hint:  # what to do in Python
                error.hint = "--model MODULE:NAME: the model's class, or a function that builds the model"
            raise
    for warning in caught:
        print(clean(f"warning: {warning.message}"), file=sys.stderr)
    return loaded


def _known_signature(files: RunFiles) -> Signature:
    try:
        return files.signature()
    except UnsupportedError as error:
        error.hint = "pass an example of each input, the batch axis first: --example 2x3x32x32"
        raise


def named_model(target: str) -> Any:
    """Return the model that ``module:name`` names, or the one that it builds, or a subclass of `Module`.

    Raises:
        UsageError: it names none of these.
    """
    from torch import nn

    from burnt import Module

    module_name, colon, name = target.rpartition(":")
    if not colon or not module_name or not name:
        raise UsageError(
            "--model names no model", expected="module:name or path/file.py:name", found=repr(target)
        )
    value = load_attribute(module_name, name)
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


def _signature_of_examples(model: torch.nn.Module, examples: Sequence[str]) -> Signature:
    from burnt.cli.bench import parse_input
    from burnt.inspect import signature_of

    return signature_of(model, *(parse_input(text, "--example") for text in examples))
