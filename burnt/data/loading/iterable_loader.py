"""Other iterables of batches, such as torch's DataLoader, as loaders; positions as JSON."""

from __future__ import annotations

import base64
import io
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic

import numpy as np
import torch
from torch import Tensor

from burnt.data.loading.loader import B, EpochLoader
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


class IterableLoader(Generic[B]):
    """Any iterable of batches, such as torch's DataLoader, as the Learner wants it.

    A resumed run continues where it was if the iterable has ``state_dict`` and ``load_state_dict``, as
    torchdata's StatefulDataLoader and the datasets of Hugging Face do. With others it goes through the
    batches that it has had (`replays`), since an iterable cannot skip. A DataLoader gives them as it did,
    since the Learner puts the global random states back for it; one with a ``generator`` of its own need not.
    ``set_epoch`` of the iterable or its samplers is called where there is one.

    >>> list(IterableLoader([10, 20, 30]).epoch(0, start=1))
    [20, 30]
    """

    def __init__(self, batches: Iterable[B]) -> None:
        self.batches = batches

    @property
    def replays(self) -> bool:
        """Whether a resumed run goes through the earlier batches of its epoch again."""
        # A list needs no reading, and neither does what stands for one.
        return not has_state(self.batches) and not isinstance(self.batches, list | tuple)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[B]:
        """The batches of an epoch, those before `start` served and dropped at once."""
        self._set_epoch(epoch)
        batches = self._iterator()
        for _ in itertools.islice(batches, start):
            pass
        return batches

    def resume(self, epoch: int, start: int, state: Mapping[str, Any]) -> Iterator[B]:
        """The batches of an epoch from a position on that its iterator's `state` returned.

        Raises:
            DataError: the iterable has no ``load_state_dict``, unlike the one that the state is of.
        """
        if not has_state(self.batches):
            raise DataError(
                f"{type(self.batches).__name__} cannot continue from a stored position",
                expected="the methods state_dict and load_state_dict, as when the position was stored",
                hint="resume with the same loader, or start a new run",
            )
        self._set_epoch(epoch)
        self.batches.load_state_dict(decode_state(dict(state)))  # type: ignore[attr-defined]
        return self._iterator()

    def num_batches(self) -> int | None:
        """How many batches an epoch has, if the iterable has a length."""
        try:
            return len(self.batches)  # type: ignore[arg-type]
        except TypeError:
            return None

    def state(self) -> dict[str, Any]:
        """The number of batches, all that is known of an iterable."""
        return {"batches": self.num_batches()}

    def _set_epoch(self, epoch: int) -> None:
        parts: list[Any] = [self.batches]
        parts += [getattr(self.batches, name, None) for name in ("sampler", "batch_sampler")]
        for part in parts:
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)

    def _iterator(self) -> Iterator[B]:
        if not has_state(self.batches):
            return iter(self.batches)
        batches = _StatefulIterator(self.batches)
        batches.state()  # what a checkpoint cannot hold is an error now, not at the first checkpoint
        return batches


class _StatefulIterator(Generic[B]):
    """Batches of an iterable that knows its position."""

    def __init__(self, source: Iterable[B]) -> None:
        self._source: Any = source
        self._batches = iter(source)

    def __iter__(self) -> Iterator[B]:
        return self

    def __next__(self) -> B:
        return next(self._batches)

    def state(self) -> dict[str, Any]:
        """The position after the last batch, as JSON."""
        state: dict[str, Any] = encode_state(self._source.state_dict(), self._source)
        return state


def as_loader(source: Any, name: str) -> EpochLoader[Any]:
    """A loader, or any iterable of batches, as the Learner wants it.

    Args:
        source: what the user passed as data.
        name: what it is called in messages, ``"train"``.

    Raises:
        DataError: a dataset, whose items are not batches; an iterator, which ends after one epoch; nothing
            that can be iterated; or no batches.
    """
    if callable(getattr(source, "epoch", None)) and callable(getattr(source, "num_batches", None)):
        loader: EpochLoader[Any] = source
    elif (
        isinstance(source, Iterable)
        and not _is_dataset(source)
        and not isinstance(source, Iterator | str | Tensor | Mapping)
    ):
        loader = IterableLoader(source)
    else:
        what, hint = "gives no batches", None
        if _is_dataset(source):
            what = "is a dataset, whose items are not batches"
            hint = "Loader(dataset, batch_size=32) makes batches of it"
        elif isinstance(source, Iterator):
            what = "is an iterator, which can be gone through only once"
        raise DataError(
            f"{name}= {what}",
            expected="a burnt.data.Loader, a DataLoader or a list of batches",
            found=type(source).__name__,
            hint=hint,
        )
    if loader.num_batches() == 0:
        raise DataError(f"{name}= has no batches", hint="is its dataset empty?")
    return loader


def _is_dataset(source: object) -> bool:
    """Whether this has items by index and is not a sequence of batches.

    Datasets of Hugging Face and dataframes can be iterated too, by rows and by columns.
    """
    if not hasattr(source, "__getitem__") or isinstance(source, str | Mapping):
        return False
    is_table = hasattr(source, "select_columns") or hasattr(source, "__arrow_c_stream__")
    return is_table or not isinstance(source, Iterable)
