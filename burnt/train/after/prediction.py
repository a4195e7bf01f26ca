"""predict: a model's outputs for a data set, in order and on the CPU."""

from __future__ import annotations

import functools
import inspect
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from burnt._hints import explain_arguments
from burnt._torch import compiled_in_place, restored_modes
from burnt.data import Batch, Loader, collate, move
from burnt.data.batch import clone
from burnt.errors import BurntError, ConfigError, DataError, DefinitionError, InputTypeError, did_you_mean
from burnt.inspect.meta import batch_size_of
from burnt.inspect.signature import forward_signature
from burnt.inspect.specs import at_path, tensors_in
from burnt.train.after.gathering import gather, to_cpu
from burnt.train.after.item_dependence import has_one_scale, measure_item_dependence
from burnt.train.after.trained import TrainedAs
from burnt.train.learner import Learner
from burnt.train.placement import device_of, device_types
from burnt.train.reporting.notebook import WorkProgress
from burnt.train.updates.precision import autocast, check_precision

_BATCH_SIZE = 64
_HINT_ITEMS = (
    "batch_size=1 runs each item by itself, the number of items runs all of them together; if the first axis "
    "is not that of the items, call the model itself: model(data)"
)
_HINT_BATCHES = (
    "stream=True returns the outputs of each batch as they are. To run each item by itself, give its dataset "
    "and batch_size=1"
)

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Inputs = str | int | Sequence[str | int] | Mapping[str, str | int] | Callable[[Any], Any]


@explain_arguments(
    device="the model predicts where it is: model.to(device)",
    num_workers="worker processes belong to a loader: predict(model, Loader(...))",
    dataloader="data= takes a loader",
    loader="data= takes a loader",
    return_outputs="stream=True returns an iterator of the batches' outputs",
    verbose="progress=False shows nothing",
)
def predict(
    model: Learner | torch.nn.Module,
    data: Any,
    batch_size: int | None = None,
    *,
    inputs: Inputs | None = None,
    call: str | Callable[[Any, Any], Any] | None = None,
    transform: Callable[[Any], Any] | None = None,
    precision: str | None = None,
    stream: bool = False,
    progress: bool = True,
) -> Any:
    """Return a model's outputs for data, computed in batches without gradients and in evaluation mode.

    The model stays on its device, with the parameters in place, as in `burnt.train.evaluate`; the training
    mode of each of its modules is restored.

    Args:
        model: a module, what `burnt.load` returned, or a Learner.
        data: one of

            - a tensor or NumPy array, ``[n, ...]``; a dict or tuple of them with a common first axis;
            - a dataset, or a list of items, which are collated;
            - a loader, such as a `burnt.data.Loader` or torch's DataLoader, that does not shuffle;
            - an iterator of batches.

        batch_size: the number of items in a batch, 64 by default; loaders and iterators have their own.
        inputs: what the model takes of a batch that holds more, such as labels: the name or index of a
            column, a list of them for several arguments, a dict from arguments to columns, or a function
            ``inputs(batch)`` that returns a tuple of arguments, a dict of keyword arguments or a single
            argument. By default: see below.
        call: the name of a method to call instead of the model, or a function ``call(model, batch)``, which
            gets the whole batch on the model's device.
        transform: applied to each output on the model's device, such as ``torch.nn.Softmax(-1)``.
        precision: as in `SupervisedTraining`; by default the model's training's, and ``"float32"`` for
            a model that burnt has not trained.
        stream: return an iterator over the outputs of the batches, instead of all at once.
        progress: show a bar when the work takes longer than two seconds, in a terminal or a notebook.

    Returns:
        What the model returns, with the batches put together in the order of the data: tensors of
        ``[n, ...]`` on the CPU, in the containers that the model returns. Outputs whose sizes differ between
        batches are lists with a tensor for each item; scalars, and tensors without a row for each item, have
        an entry for each batch.

    Raises:
        DataError: the data is empty or of an unknown kind, a loader shuffles, the model's inputs cannot be
            found in a batch, or an item's outputs depend on the other items of its batch: see below.
        DefinitionError: `model` is neither a module nor a Learner, or has no method `call`.
        InputTypeError: the inputs are not those that the model takes.
        ConfigError: `batch_size` is below 1 or belongs to the loader; `inputs` is given with a function
            `call`.

    A batch that is a tensor is the model's only argument. From one with several columns, a model that burnt
    has trained, or `burnt.load` has returned, takes those that its training step gave it; if the step
    computed its inputs from the batch, say how with `inputs` or `call`. Any other model takes the columns
    that are named as the arguments of its ``forward``, without an optional ``labels``; of a tuple the first
    ones, as many as ``forward`` requires. Where this leaves a choice, an error asks for `inputs`.

    Outputs must not depend on how the data is divided into batches, as those of a model that takes the
    sequence first or normalizes over the batch. If there is more than one batch, three items of the first one
    that has different items are run in pairs, without forward hooks, and what this changes in buffers and
    attributes is undone. Not checked are a function `call`, and batches of a loader or iterator with
    ``stream=True``.

    >>> import torch
    >>> model = torch.nn.Linear(3, 2)
    >>> predict(model, torch.rand(100, 3)).shape
    torch.Size([100, 2])
    >>> data = {"x": torch.rand(100, 3), "y": torch.zeros(100)}
    >>> predict(model, data, batch_size=32, inputs="x", transform=torch.nn.Softmax(-1)).sum(-1).mean()
    tensor(1.)
    """
    if isinstance(model, Learner):
        module = model.model
    elif isinstance(model, torch.nn.Module):
        module = compiled_in_place(model)
    else:
        raise DefinitionError(
            "predict needs a model",
            expected="a torch.nn.Module, or a Learner",
            found=f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__,
            hint="burnt.load(run) returns the model of a run" if isinstance(model, str) else None,
        )
    trained = TrainedAs.of(module)
    if precision is None:
        precision = "float32" if trained is None else trained.precision
    batches, total, is_in_batches = _batches(data, batch_size)
    run = _Run(module, *_function(module, inputs, call, trained), transform, check_precision(precision))
    # With a single batch, or where batches are the user's and are returned one by one, the outputs are the
    # model's own, whatever they depend on; a function `call` is written for whole batches.
    if total != 1 and not callable(call) and not (stream and is_in_batches):
        run.hint = _HINT_BATCHES if is_in_batches else _HINT_ITEMS
        if batch_size != 1 and has_one_scale(module):
            warnings.warn(
                "inputs quantized by dynamic_tensor have one scale for all items of a batch: large ones make "
                "the outputs of others coarse; batch_size=1 runs each by itself",
                stacklevel=3,
            )
    outputs = _stream(run, batches, total, progress)
    if stream:
        return (output for output, _ in outputs)
    found = list(outputs)
    if not found:
        raise DataError("data= gave no batches", hint="is it an iterator that was used before?")
    return gather([output for output, _ in found], [count for _, count in found])


class _Run:
    """Runs batches: `find` returns the arguments in one, for `function`, whose output `transform` gets."""

    def __init__(
        self,
        model: torch.nn.Module,
        find: Callable[[Any], Arguments],
        function: Callable[..., Any],
        transform: Callable[[Any], Any] | None,
        precision: str,
    ) -> None:
        self._model, self._find, self._function, self._transform = model, find, function, transform
        self._device = device_of(model)
        self._autocast = functools.partial(autocast, precision, *device_types(model))
        self.hint: str | None = None  # of the error if items depend on each other; None: that is not checked

    def __call__(self, batch: Any) -> Any:
        """Return the output of a batch on the CPU."""
        # The modes are changed only during a batch: between two, a stream's consumer may use the model.
        with restored_modes(self._model), torch.no_grad(), self._autocast():
            self._model.eval()
            # In memory of its own, since a model may change its inputs in place.
            arguments = clone(move(self._find(batch), self._device))
            if self.hint is not None:
                self._check_independence(arguments)
            return to_cpu(self._apply(arguments))

    def _check_independence(self, arguments: Arguments) -> None:
        found = measure_item_dependence(self._model, self._apply, arguments)
        if found:
            raise DataError(
                "the model's outputs for an item depend on the other items of its batch",
                where=type(self._model).__name__,
                expected="the same outputs in every batch",
                found=f"outputs differ by a relative {found:.2g} when the other items of the batch change",
                hint=self.hint,
            )
        if found is not None:  # else the items of this batch are equal: the next one may show it
            self.hint = None

    def _apply(self, arguments: Arguments) -> Any:
        args, kwargs = arguments
        output = self._function(*args, **kwargs)
        return output if self._transform is None else self._transform(output)


def _stream(
    run: _Run, batches: Iterator[Any], total: int | None, progress: bool
) -> Iterator[tuple[Any, int | None]]:
    """Yield the output and the number of items of each batch."""
    with WorkProgress("Predicting", total, "batches", show=progress) as bar:
        done = 0
        for number, batch in enumerate(batches):
            count = _count(batch)
            try:
                output = run(batch)
            except Exception as error:
                where = f"items {done} to {done + count - 1}" if count else f"a {type(batch).__name__}"
                error.add_note(f"burnt.predict was at batch {number}, {where}")
                raise
            yield output, count
            done += count or 0
            bar.advance()


def _count(batch: Any) -> int | None:
    """Return the number of items of a batch."""
    size = batch_size_of(list(tensors_in(batch)))
    if size is None and isinstance(batch, Sequence):
        return len(batch)  # of texts, for a function `call`
    return size


def _batches(data: Any, batch_size: int | None) -> tuple[Iterator[Any], int | None, bool]:
    """Return the batches of any data, their number if it is known, and whether the data had batches."""
    if batch_size is not None and (not isinstance(batch_size, int) or batch_size < 1):
        raise ConfigError("batch_size is invalid", expected="an int of at least 1", found=repr(batch_size))
    size = batch_size or _BATCH_SIZE
    columns = _columns(data)
    if columns is not None:
        count = _common_length(columns)
        starts = range(0, max(count, 1), size)  # an empty tensor has an empty output of the right shape
        return (_rows(data, start, start + size) for start in starts), len(starts), False
    is_loader = callable(getattr(data, "epoch", None)) and callable(getattr(data, "num_batches", None))
    if isinstance(data, torch.utils.data.IterableDataset):
        return _collated(data, size), None, False
    if not is_loader and _is_dataset(data):
        loader = Loader(data, size)
        return loader.epoch(0), len(loader), False
    if isinstance(data, str) or not (is_loader or isinstance(data, Iterable)):
        raise DataError(
            "data= cannot be predicted",
            expected="a tensor, a dict of tensors, a dataset, a list, a loader or an iterator of batches",
            found="a text" if isinstance(data, str) else f"a {type(data).__name__}",
        )
    if batch_size is not None:
        raise ConfigError(
            "batch_size= is given, but the data is in batches already",
            where="batch_size",
            found=f"a {type(data).__name__}",
            hint="give the dataset itself, or set the loader's batch_size",
        )
    _refuse_reordered(data)
    if is_loader:
        return data.epoch(0), data.num_batches(), True
    try:
        total = len(data)
    except TypeError:
        total = None
    return iter(data), total, True


def _columns(data: Any) -> dict[Any, Any] | None:
    """Return the columns of data that is a tensor, or a dict or tuple of them; None for other data."""
    if isinstance(data, Tensor | np.ndarray):
        return {"data": data}
    columns = None if isinstance(data, list) else _batch_columns(data)
    if columns is None:
        return None
    wrong = next((n for n, column in columns.items() if not isinstance(column, Tensor | np.ndarray)), None)
    if isinstance(data, tuple) and (wrong is not None or not columns):
        return None
    if wrong is not None or not columns:
        raise DataError(
            "a column of the data is not a tensor",
            where=None if wrong is None else repr(wrong),
            expected="a dict of tensors with a common first axis",
            found=f"a {type(columns[wrong]).__name__}" if columns else "no columns",
        )
    return columns


def _common_length(columns: Mapping[Any, Any]) -> int:
    lengths = {len(column) if column.ndim else -1 for column in columns.values()}
    if len(lengths) > 1 or -1 in lengths:
        raise DataError(
            "the columns of the data have no common first axis",
            expected="tensors of equal length",
            found=", ".join(f"{name}: {tuple(column.shape)}" for name, column in columns.items()),
        )
    return lengths.pop()


def _rows(data: Any, start: int, stop: int) -> Any:
    if isinstance(data, Tensor | np.ndarray):
        return torch.as_tensor(data[start:stop])
    if isinstance(data, tuple):
        return tuple(_rows(column, start, stop) for column in data)
    columns = _batch_columns(data) or {}
    return Batch(**{name: _rows(column, start, stop) for name, column in columns.items()})


def _is_dataset(data: Any) -> bool:
    """Whether the data has items by index; torch's DataLoader has only a length."""
    return (
        not isinstance(data, str | bytes) and hasattr(type(data), "__len__") and hasattr(data, "__getitem__")
    )


def _collated(items: Iterable[Any], size: int) -> Iterator[Any]:
    iterator = iter(items)
    while chunk := list(itertools.islice(iterator, size)):
        yield collate(chunk)


def _refuse_reordered(loader: Any) -> None:
    """Raise if a loader's batches are not the data in its order, so that outputs could not be assigned."""
    found = [
        f"{name}={value!r}"
        for name in ("shuffle", "drop_last", "buckets", "pack")
        if (value := getattr(loader, name, None)) and not callable(value)
    ]
    sampler = getattr(loader, "sampler", None)
    is_random = isinstance(
        sampler, torch.utils.data.RandomSampler | torch.utils.data.WeightedRandomSampler
    ) or (callable(getattr(sampler, "indices", None)) and getattr(sampler, "shuffle", True))
    if is_random:
        found.append(f"a {type(sampler).__name__}")
    if found:
        raise DataError(
            "the loader does not give all items in their order",
            expected="a loader that neither shuffles nor drops items",
            found=", ".join(found),
            hint="predict(model, loader.dataset, batch_size=...)",
        )


def _function(
    model: torch.nn.Module,
    inputs: Inputs | None,
    call: str | Callable[[Any, Any], Any] | None,
    trained: TrainedAs | None,
) -> tuple[Callable[[Any], Arguments], Callable[..., Any]]:
    """Return a function that finds arguments in a batch, and the function that is called with them."""
    if callable(call):
        if inputs is not None:
            raise ConfigError(
                "inputs= and a function call= exclude each other",
                expected="call=function, which gets the whole batch, or inputs=",
                found="both",
            )
        return lambda batch: ((batch,), {}), functools.partial(call, model)
    method = model if call is None else getattr(model, call, None)
    if not callable(method):
        raise DefinitionError(
            f"{type(model).__name__} has no method {call!r}",
            expected="the name of a method, or a function call(model, batch)",
            hint=did_you_mean(call, [name for name in dir(model) if not name.startswith("_")]),
        )
    # What the training step gave `forward` says nothing about another method.
    return _InputFinder(model, call or "forward", inputs, trained if call is None else None), method


def call_with_batch(model: torch.nn.Module) -> Callable[[Any, Any], Any]:
    """Return a function ``forward(model, batch)`` that finds a model's inputs in batches as `predict` does.

    It raises a DataError for a batch that lacks an input, or does not say which column it is.
    """
    find = _InputFinder(model, "forward", None, TrainedAs.of(model))

    def forward(model: Any, batch: Any) -> Any:
        args, kwargs = find(batch)
        return model(*args, **kwargs)

    return forward


class _InputFinder:
    """Finds the arguments of a model's method in a batch.

    They are what the user's `inputs` say, or what the training step gave the model, or else the columns that
    are named as the method's parameters, or its first columns.
    """

    def __init__(
        self, model: torch.nn.Module, method: str, inputs: Inputs | None, trained: TrainedAs | None
    ) -> None:
        self._where = f"{type(model).__name__}.{method}"
        self._signature = (
            forward_signature(model) if method == "forward" else inspect.signature(getattr(model, method))
        )
        self._inputs = inputs
        self._trained = trained if trained is not None and trained.sources else None
        self._is_checked = False

    def __call__(self, batch: Any) -> Arguments:
        """Return positional and keyword arguments."""
        args, kwargs = self._given(batch) if self._inputs is not None else self._found(batch)
        if not self._is_checked:
            try:
                self._signature.bind(*args, **kwargs)
            except TypeError as error:
                raise InputTypeError(
                    "the inputs are not those of the model",
                    where=self._where,
                    expected=str(self._signature),
                    found=str(error),
                    hint="inputs= names the columns of a batch that the model takes",
                ) from None
            self._is_checked = True
        return args, kwargs

    def _given(self, batch: Any) -> Arguments:
        inputs = self._inputs
        if callable(inputs):
            found = inputs(batch)
            if isinstance(found, tuple):
                return found, {}
            return ((), dict(found)) if isinstance(found, dict) else ((found,), {})
        if isinstance(inputs, Mapping):
            return (), {name: self._column(batch, key) for name, key in inputs.items()}
        keys = [inputs] if isinstance(inputs, str | int) else list(inputs or ())
        return tuple(self._column(batch, key) for key in keys), {}

    def _column(self, batch: Any, key: str | int) -> Any:
        columns = _batch_columns(batch)
        if columns is None or key not in columns:
            raise DataError(
                f"the batch has no column {key!r}",
                where="inputs",
                expected=_columns_text(columns, batch),
                hint=did_you_mean(key, map(str, columns or ())),
            )
        return columns[key]

    def _found(self, batch: Any) -> Arguments:
        columns = _batch_columns(batch)
        if columns is None:
            return (batch,), {}
        # A test set without labels has one column, which the step computes the inputs from all the same.
        if self._trained is not None and (len(columns) > 1 or None in self._trained.sources):
            return self._as_trained(batch, columns)
        if len(columns) == 1:
            return tuple(columns.values()), {}
        return self._by_position(columns) if 0 in columns else self._by_name(columns)

    def _as_trained(self, batch: Any, columns: Mapping[Any, Any]) -> Arguments:
        assert self._trained is not None
        signature = self._trained.signature
        names = ("inputs",) if signature is None else (info.name for info in signature.inputs)
        tensors = []
        for name, path in zip(names, self._trained.sources, strict=True):
            if path is None:
                raise DataError(
                    "the model's training step computes its inputs from the batch",
                    where=f"{self._where}, {name}",
                    expected="inputs=function, or call=function, that does the same",
                    found=_columns_text(columns, batch),
                    hint="or give only the inputs, as a tensor",
                )
            try:
                tensors.append(at_path(batch, path))
            except (LookupError, AttributeError, TypeError):
                raise DataError(
                    "the batch lacks what the model was trained on",
                    where=f"{self._where}, {name}",
                    expected=".".join(map(str, path)),
                    found=_columns_text(columns, batch),
                    hint="inputs= names the columns of these batches that the model takes",
                ) from None
        assert signature is not None
        return signature.arguments(tensors)

    def _by_name(self, columns: Mapping[Any, Any]) -> Arguments:
        named = [
            p for p in self._signature.parameters.values() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        ]
        required = [p.name for p in named if p.default is p.empty]
        # An optional `labels` makes models of transformers compute a loss.
        taken = [p.name for p in named if p.name in columns and (p.name != "labels" or p.default is p.empty)]
        if not taken or not set(required) <= set(taken):
            raise self._unknown(columns)
        return (), {name: columns[name] for name in taken}

    def _by_position(self, columns: Mapping[Any, Any]) -> Arguments:
        positional = [
            p
            for p in self._signature.parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)
        ]
        required = [p for p in positional if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
        if not required or len(required) > len(columns) or len(positional) > len(required):
            raise self._unknown(columns)
        return tuple(columns[i] for i in range(len(required))), {}

    def _unknown(self, columns: Mapping[Any, Any]) -> BurntError:
        first = next(iter(columns))
        return DataError(
            "the inputs of the model are not known",
            where=self._where,
            expected=str(self._signature),
            found=_columns_text(columns, None),
            hint=f"name the columns that the model takes, such as inputs={first!r}",
        )


def _batch_columns(batch: Any) -> dict[Any, Any] | None:
    """Return the columns of a batch by name or index; None if it is a single value."""
    if isinstance(batch, Mapping):
        return dict(batch)
    if isinstance(batch, Batch):
        return dict(vars(batch))
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return dict(zip(batch._fields, batch, strict=True))
    if isinstance(batch, tuple) or (isinstance(batch, list) and any(isinstance(p, Tensor) for p in batch)):
        return dict(enumerate(batch))
    return None


def _columns_text(columns: Mapping[Any, Any] | None, batch: Any) -> str:
    if columns is None:
        return f"a {type(batch).__name__}"
    return f"a batch of {', '.join(map(str, columns))}"
