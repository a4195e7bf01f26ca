"""Transforms as JSON, which a run keeps to change new images as it changed those of its validation data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from burnt.data.transforms.color import Grayscale, Normalize, ToFloat, ToImage
from burnt.data.transforms.geometry import CenterCrop, Pad, Resize
from burnt.data.transforms.transform import Compose
from burnt.errors import UnsupportedError

_STORED = {kind.__name__: kind for kind in (CenterCrop, Grayscale, Normalize, Pad, Resize, ToFloat, ToImage)}


def to_json(transform: Any) -> list[dict[str, Any]] | None:
    """Return what a transform does, in order; None if it is random, or code that JSON does not hold.

    >>> to_json(Compose(Resize((8, 8)), ToFloat()))[1], to_json(lambda item, generator: item)
    ({'name': 'ToFloat', 'dtype': 'float32'}, None)
    """
    if type(transform) is Compose:
        parts = [to_json(part) for part in transform.transforms]
        return None if None in parts else [document for part in parts for document in part or ()]
    if type(transform) not in _STORED.values():
        return None
    try:
        return [{"name": type(transform).__name__, **arguments_to_json(transform)}]
    except UnsupportedError:
        return None


def from_json(documents: Sequence[Mapping[str, Any]]) -> Compose:
    """Return the transform that `to_json` described; raise a ValueError for other documents."""
    try:
        return Compose([from_arguments(_STORED[document["name"]], document) for document in documents])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"an unknown transform: {error}") from error


def arguments_to_json(value: Any) -> dict[str, Any]:
    """Return a dataclass's arguments as JSON values; raise an UnsupportedError for one of another type."""
    fields = [field.name for field in dataclasses.fields(value) if field.init]
    return {name: _plain(getattr(value, name), f"{type(value).__name__}({name}=)") for name in fields}


def from_arguments(kind: type, document: Mapping[str, Any]) -> Any:
    """Return the object of a dataclass that `arguments_to_json` described, apart from ``name``."""
    arguments = {
        name: tuple(value) if isinstance(value, list) else getattr(torch, value) if name == "dtype" else value
        for name, value in document.items()
        if name != "name"
    }
    return kind(**arguments)


def _plain(value: Any, where: str) -> Any:
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, tuple | list):
        return [_plain(part, where) for part in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UnsupportedError("an argument cannot be stored as JSON", where=where, found=type(value).__name__)
