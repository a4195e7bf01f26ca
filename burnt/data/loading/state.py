"""Positions of iterators as JSON, for checkpoints: what `state_dict` of a dataset returns, and back."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from burnt.errors import DataError

_ARRAY, _TENSOR, _BYTES = "__array__", "__tensor__", "__bytes__"


def encode_state(state: Any, owner: object) -> Any:
    """Return a state as JSON values; tensors, arrays and bytes, such as states of generators, as base64.

    Mappings have text as keys, tuples become lists; any other object is refused, in the name of `owner`.

    >>> decode_state(encode_state({"row": 7, "seed": b"abc"}, "a dataset"))
    {'row': 7, 'seed': b'abc'}
    """
    return _encode(state, owner, "state_dict()")


def decode_state(state: Any) -> Any:
    """Return the state that `encode_state` was given."""
    if isinstance(state, list):
        return [decode_state(item) for item in state]
    if not isinstance(state, dict):
        return state
    if state.keys() == {_BYTES}:
        return base64.b64decode(state[_BYTES])
    if state.keys() == {_ARRAY}:
        return _array(state[_ARRAY])
    if state.keys() == {_TENSOR}:
        return torch.from_numpy(_array(state[_TENSOR]))
    return {key: decode_state(value) for key, value in state.items()}


def has_state(source: object) -> bool:
    """Whether an object has the methods by which its position is stored and restored."""
    return all(callable(getattr(source, name, None)) for name in ("state_dict", "load_state_dict"))


def _encode(value: Any, owner: object, where: str) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic) and not isinstance(value, np.void):
        return _encode(value.item(), owner, where)
    if isinstance(value, bytes):
        return {_BYTES: base64.b64encode(value).decode()}
    if isinstance(value, torch.Tensor):
        return {_TENSOR: _text(value.detach().cpu().numpy())}
    if isinstance(value, np.ndarray) and value.dtype != object:
        return {_ARRAY: _text(value)}
    if isinstance(value, list | tuple):
        return [_encode(item, owner, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _encode(item, owner, f"{where}[{key!r}]") for key, item in value.items()}
    raise DataError(
        f"the position of {type(owner).__name__} cannot be stored in a checkpoint",
        where=where,
        expected="numbers, text, bytes, tensors, lists, and mappings whose keys are text",
        found=f"a mapping with the keys {list(value)!r}"[:200]
        if isinstance(value, Mapping)
        else type(value).__name__,
        hint="return these from state_dict(), or pass an object without one: it is then gone through again",
    )


def _text(array: np.ndarray[Any, Any]) -> str:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return base64.b64encode(file.getvalue()).decode()


def _array(text: str) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = np.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False)
    return array
