"""What the commands that ship a run share: find the run, import its code, load its model, know its inputs."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnt.cli.output import UsageError
from burnt.cli.runs_select import find_run
from burnt.cli.train import load_attribute, split_target
from burnt.errors import RecordError, UnsupportedError, clean

if TYPE_CHECKING:
    import torch

    from burnt.data.description import TableDescription
    from burnt.inspect.signature import Signature
    from burnt.train.after.loading import RunFiles
    from burnt.train.checkpoints.checkpoint import Saved


@dataclass(frozen=True)
class RunModel:
    """A run's model, ready to be shipped."""

    model: torch.nn.Module  # in evaluation mode
    signature: Signature
    folder: Path
    checkpoint: str  # its name
    classes: Sequence[str] | None  # their names, where the dataset had them
    metadata: Mapping[str, str]  # texts for files: the run's name, the checkpoint and the Config as JSON
    table: TableDescription | None = None  # whose entries are the inputs, if they are columns of a table
    is_multi_label: bool = False  # an item may have several classes


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
    if files.is_multi_label:
        metadata["burnt.multi_label"] = "true"
    table = None if args.example else files.input_table()
    return RunModel(
        model, signature, files.folder, saved.path.name, files.classes, metadata, table, files.is_multi_label
    )


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


def named_call(target: str, inputs: Sequence[str], *, is_model: bool = False) -> tuple[Any, Any]:
    """Return the model that ``module:name`` names or builds, and a batch: of `parse_input`, or built with it.

    Unless `is_model`, it may also name a function of tensors, or an op.
    """
    model, batch = named_model(target, "the target names no model", with_batch=True, or_function=not is_model)
    if inputs:
        batch = tuple(parse_input(text) for text in inputs)
    if batch is None:
        raise UsageError(
            f"there are no inputs for {target}",
            expected="a function that returns (model, batch), or --input for each argument",
            hint="--input 8x3x224x224, --input 4x256:int64:30000",
        )
    return model, batch


def named_model(
    target: str,
    problem: str = "--model names no model",
    *,
    with_batch: bool = False,
    or_function: bool = False,
) -> Any:
    """Return the model that ``module:name`` names, or the one that it builds, or a subclass of `Module`.

    With `with_batch` it is a pair of the model and the batch, or None, that a function returns with it. With
    `or_function` a function that takes arguments stands for itself, and an op for its reference.
    """
    from torch import nn

    from burnt import Module

    value, batch = load_attribute(*split_target(target, problem)), None
    expected = "a torch.nn.Module, a class of burnt.Module, or a function without arguments that builds one"
    if not with_batch and inspect.isclass(value) and issubclass(value, Module):
        return value
    if callable(value) and not isinstance(value, nn.Module):
        try:
            with contextlib.suppress(ValueError):  # of a function in C without a signature
                inspect.signature(value).bind()
        except TypeError as error:
            if or_function:
                return getattr(value, "reference", value), None
            raise UsageError(f"{target} needs arguments", expected=expected, found=str(error)) from None
        value = value()
        if with_batch and isinstance(value, tuple) and len(value) == 2:
            value, batch = value
    if not isinstance(value, nn.Module):
        raise UsageError(
            f"{target} is not a model, and builds none", expected=expected, found=type(value).__name__
        )
    return (value, batch) if with_batch else value


def parse_input(text: str, option: str = "--input") -> Any:
    """Create a random tensor from its shape, dtype and, for integers, the number of values.

    >>> parse_input("2x3:int64:10").shape
    torch.Size([2, 3])
    """
    import torch

    shape, _, rest = text.partition(":")
    name, _, high = rest.partition(":")
    dtype = getattr(torch, name or "float32", None)
    sizes = shape.split("x")
    if not all(size.isdigit() for size in sizes) or not isinstance(dtype, torch.dtype):
        raise UsageError(
            "the input is invalid",
            expected="SHAPE, SHAPE:DTYPE or SHAPE:DTYPE:VALUES",
            found=repr(text),
            hint=f"{option} 8x3x224x224, {option} 4x256:int64:30000",
        )
    size = [int(s) for s in sizes]
    if dtype.is_floating_point:
        return torch.randn(size).to(dtype)
    if not high.isdigit() or not int(high):
        raise UsageError(
            "an integer input needs the number of values",
            found=repr(text),
            hint=f"{option} {shape}:{name}:1000",
        )
    return torch.randint(int(high), size).to(dtype)


def _signature(files: RunFiles, model: torch.nn.Module, examples: Sequence[str]) -> Signature:
    if not examples:
        try:
            return files.signature()
        except UnsupportedError as error:
            error.hint = "pass an example of each input, the batch axis first: --example 2x3x32x32"
            raise
    from burnt.inspect import signature_of

    return signature_of(model, *(parse_input(text, "--example") for text in examples))
