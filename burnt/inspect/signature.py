"""Signature: names, shapes and dtypes of what a model takes and returns, as JSON.

A run keeps the signature of its model, so that another process can export and serve it without the data.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Self

import msgspec
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from burnt.errors import InputRuntimeError, InputTypeError, UnsupportedError
from burnt.inspect.call_trace import Call
from burnt.inspect.checking import check
from burnt.inspect.meta import run_isolated
from burnt.inspect.specs import Path, TensorSpec, map_tensors, tensor_paths, tensors_in


@dataclass(frozen=True)
class Column:
    """One number in each item of an input that is made of a table's columns.

    Args:
        name: the column, or a part of a date, ``"joined.month"``.
        range: the least and greatest value in training; None if it had none.
        is_whole: whether it has no fractions, such as the number of a category.
        may_be_nan: whether NaN stands for a missing value.
    """

    name: str
    range: tuple[float, float] | None = None
    is_whole: bool = False
    may_be_nan: bool = False


@dataclass(frozen=True)
class TensorInfo:
    """One tensor that a model takes or returns.

    Args:
        name: the argument's name; in a container with key or index: ``"batch.images"``, ``"states.0"``.
        shape: the sizes in the example.
        dtype: the element type by its name in torch, ``"float32"``.
        batch_axis: the axis whose size is the number of items; None if it has no such axis.
        range: the lowest and highest value in the example; None if its values are not known. Of an output 0
            and 1 if the model ends in a sigmoid.
        columns: what the numbers of an item are, ``[batch]`` or ``[batch, columns]``, where they are known.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    batch_axis: int | None = None
    range: tuple[float, float] | None = None
    columns: tuple[Column, ...] = ()

    @property
    def torch_dtype(self) -> torch.dtype:
        """The element type as torch's object."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    def shape_for(self, batch: int) -> tuple[int, ...]:
        """Return the shape for a number of items."""
        return tuple(batch if axis == self.batch_axis else size for axis, size in enumerate(self.shape))

    def shape_text(self) -> str:
        """Format the shape with ``batch`` for the batch axis: ``[batch, 1, 8, 8]``."""
        sizes = ("batch" if axis == self.batch_axis else str(size) for axis, size in enumerate(self.shape))
        return f"[{', '.join(sizes)}]"


@dataclass(frozen=True)
class Signature:
    """What a model takes and returns, as flat lists of tensors, with the arguments that they are a part of.

    Args:
        inputs: the tensors in the arguments, in order.
        outputs: the tensors in the result, in order.
        args: the positional arguments, where ``{"tensor": 0}`` stands for the first input.
        kwargs: the keyword arguments, with tensors replaced likewise.

    >>> import torch
    >>> signature = signature_of(torch.nn.Linear(3, 2), torch.zeros(4, 3))
    >>> signature.inputs[0].shape_text(), signature.outputs[0].shape_text()
    ('[batch, 3]', '[batch, 2]')
    >>> Signature.from_dict(signature.to_dict()) == signature
    True
    """

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def call(self, model: Callable[..., Any], tensors: Sequence[Tensor]) -> list[Tensor]:
        """Call a model with its inputs as a flat list, and return its outputs as one.

        Args:
            model: the module, or a function with its arguments.
            tensors: the inputs, as many as `inputs`.
        """
        args, kwargs = self.arguments(tensors)
        return [tensor for _, tensor in _named_leaves(model(*args, **kwargs), "")]

    def arguments(self, tensors: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call with these inputs."""
        filled = (_fill(template, tensors) for template in self.args)
        return tuple(filled), {name: _fill(template, tensors) for name, template in self.kwargs.items()}

    def example(self, batch: int | None = None, seed: int = 0) -> list[Tensor]:
        """Return random inputs within the ranges of the example, on the CPU.

        Where a range is not known, floating-point values are normal and integers are 0. A quarter of the
        values that may be missing are NaN.

        Args:
            batch: the number of items, by default the example's.
            seed: seed of the random values.
        """
        generator = torch.Generator().manual_seed(seed)
        return [
            _random_columns(info, batch, generator, seed)
            if info.columns
            else _random_tensor(info, batch, generator)
            for info in self.inputs
        ]

    def with_ranges(self, tensors: Sequence[Tensor]) -> Self:
        """Return a copy with the ranges of these inputs."""
        inputs = tuple(
            dataclasses.replace(info, range=_range(t)) for info, t in zip(self.inputs, tensors, strict=True)
        )
        return dataclasses.replace(self, inputs=inputs)

    def check(self, tensors: Mapping[str, Tensor]) -> list[Tensor]:
        """Return inputs by name as the flat list that `call` takes, if they fit.

        Raises:
            InputTypeError: a name is missing or unknown, or a tensor is of another dtype.
            InputRuntimeError: a shape does not fit, or two batch axes differ.
        """
        known = [info.name for info in self.inputs]
        if set(tensors) != set(known):
            raise InputTypeError(
                "the inputs are not those of the model",
                expected=", ".join(known),
                found=", ".join(tensors) or "none",
            )
        batch: int | None = None
        for info in self.inputs:
            tensor = tensors[info.name]
            if tensor.dtype != info.torch_dtype:
                raise InputTypeError(
                    "an input has another dtype",
                    where=info.name,
                    expected=info.dtype,
                    found=_dtype_name(tensor.dtype),
                )
            has_batch = info.batch_axis is not None and tensor.dim() == len(info.shape)
            size = tensor.shape[info.batch_axis] if has_batch and info.batch_axis is not None else 0
            if tuple(tensor.shape) != info.shape_for(size) or (has_batch and batch not in (None, size)):
                raise InputRuntimeError(
                    "an input has another shape",
                    where=info.name,
                    expected=info.shape_text() + (f" with batch {batch}" if batch is not None else ""),
                    found=str(list(tensor.shape)),
                )
            batch = size if has_batch else batch
        return [tensors[name] for name in known]

    def to_dict(self) -> dict[str, Any]:
        """Return the signature as JSON values."""
        return {
            "inputs": [_info_to_dict(info) for info in self.inputs],
            "outputs": [_info_to_dict(info) for info in self.outputs],
            "args": list(self.args),
            "kwargs": dict(self.kwargs),
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """Read what `to_dict` returned.

        Raises:
            ValueError: it is something else.
        """
        try:
            return msgspec.convert(document, cls)
        except msgspec.ValidationError as error:
            raise ValueError(f"no signature of a model: {error}") from None

    def __str__(self) -> str:
        def text(infos: Sequence[TensorInfo]) -> str:
            return ", ".join(f"{info.name}: {info.dtype}{info.shape_text()}" for info in infos)

        return f"{text(self.inputs)} -> {text(self.outputs)}"


def signature_of(
    model: nn.Module, *inputs: Any, batch_sizes: tuple[int, ...] | None = None, **kwargs: Any
) -> Signature:
    """Return the signature of a model from example inputs, without computing values.

    The model runs on meta tensors with two batch sizes: the axes whose sizes differ are batch axes. Where it
    cannot run so, because its code depends on values, it runs on the example itself in its own mode, and a
    leading axis of the example's size is the batch.

    Args:
        model: any module.
        inputs: its arguments: tensors, TensorSpecs, numbers, strings, None; lists, tuples and dicts of these.
        batch_sizes: the sizes that `check` tries. With only one, a leading axis of that size is the batch.
        kwargs: its keyword arguments.

    Raises:
        ShapeError: the example does not fit the model.
        InputTypeError: the number or names of the arguments do not fit `forward`.
        UnsupportedError: an argument or the result is, or holds, an object of another class.
    """
    takes = forward_signature(model)
    try:
        takes.bind(*inputs, **kwargs)
    except TypeError as error:
        raise InputTypeError(
            "the inputs are not those of the model",
            where=type(model).__name__,
            expected=f"forward{takes}",
            found=str(error),
        ) from None

    def from_shapes() -> Signature | None:
        recorder = SignatureRecorder()
        step = recorder.recorded(_call_model)
        report = check(model, *inputs, batch_sizes=batch_sizes, call=step, backward=False, **kwargs)
        return None if report.unchecked else recorder.signature()

    signature = run_isolated(from_shapes)
    if signature is None:
        recorder = SignatureRecorder()
        with torch.no_grad():
            recorder.recorded(_call_model)(model, *_with_tensors(inputs), **_with_tensors(kwargs))
        signature = recorder.signature()
    tensors = [leaf for _, leaf in _named_leaves((inputs, kwargs), "")]
    if all(isinstance(tensor, Tensor) for tensor in tensors):
        return signature.with_ranges(tensors)
    return signature


def forward_signature(model: nn.Module) -> inspect.Signature:
    """Return the arguments of a model's ``forward``; of imported models, whose class has any, their own.

    >>> forward_signature(torch.nn.ReLU())
    <Signature (input: torch.Tensor) -> torch.Tensor>
    """
    own = getattr(model, "__signature__", None)
    return own if isinstance(own, inspect.Signature) else inspect.signature(model.forward)


class SignatureRecorder:
    """Records what a step gives a model's `forward` and what that returns.

    Give the function that `recorded` returns to `burnt.check`, which runs it with two batch sizes, and read
    the signature within the same `run_isolated`.
    """

    def __init__(self) -> None:
        self._calls: list[_Recorded] = []

    def recorded(self, step: Call) -> Call:
        """Return a function that calls ``step(model, ...)`` and records the first call of `model`."""

        def run(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
            calls: list[_Recorded] = []

            paths = tensor_paths(args[0]) if len(args) == 1 else {}
            storages = {id(tensor): _storage(tensor) for tensor in tensors_in(args)}
            writes = _Writes()

            def record(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
                unchanged = {i: path for i, path in paths.items() if storages.get(i) not in writes.storages}
                calls.append(_Recorded(module, args, kwargs, output, unchanged, storages))

            # What the model itself changes in place is part of it.
            handles = (
                model.register_forward_pre_hook(lambda *_: writes.stop(), prepend=True),
                model.register_forward_hook(record, with_kwargs=True),
            )
            try:
                with writes:
                    return step(model, *args, **kwargs)
            finally:
                for handle in handles:
                    handle.remove()
                self._calls += calls[:1]

        return run

    def sources(self) -> tuple[Path | None, ...]:
        """Return where the step takes each input of the model from: its path in the step's batch.

        None stands for an input that the step computes or changes in place. The paths have the order of
        the signature's inputs.
        """
        if not self._calls:
            return ()
        call = self._calls[0]
        leaves = [leaf for _, leaf in _named_leaves((call.args, call.kwargs), "")]
        return tuple(
            call.paths.get(id(leaf)) if call.storages.get(id(leaf)) == _storage(leaf) else None
            for leaf in leaves
        )

    def signature(self) -> Signature:
        """Return the signature of the first call, with the batch axes that it shares with the second.

        UnsupportedError if the step never called the model, or with an object that `signature_of` does not
        list.
        """
        if not self._calls:
            raise UnsupportedError(
                "the inputs of the model are not known",
                found="a step that calls parts of the model, but never the model itself",
                hint="let forward compute what predictions need, and call it in the step: self(batch.x)",
            )
        first, last = self._calls[0], self._calls[-1]
        named = forward_signature(first.module).parameters
        names = _argument_names(list(named.values()), len(first.args))
        leaves = [
            pair for name, value in zip(names, first.args, strict=True) for pair in _named_leaves(value, name)
        ]
        leaves += [pair for name, value in first.kwargs.items() for pair in _named_leaves(value, name)]
        numbers = iter(range(len(leaves)))
        args = tuple(_template(value, numbers) for value in first.args)
        kwargs = {name: _template(value, numbers) for name, value in first.kwargs.items()}
        others = [
            leaf for value in (*last.args, *last.kwargs.values()) for _, leaf in _named_leaves(value, "")
        ]
        sizes = _batch_sizes([leaf for _, leaf in leaves], others)
        root = "output"
        while any(name.split(".")[0] == root for name, _ in leaves):
            root += "_"
        other_outputs = [leaf for _, leaf in _named_leaves(last.output, root)]
        inputs = _infos(leaves, others, sizes)
        outputs = _infos(list(_named_leaves(first.output, root)), other_outputs, sizes)
        return Signature(inputs, outputs, args, kwargs)


@dataclass(frozen=True)
class _Recorded:
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any
    paths: Mapping[int, Path]  # of the tensors in the step's batch that it has not changed in place, by id
    storages: Mapping[int, int | None]  # that the batch's tensors had when the step began, by id


class _Writes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes which storages ops write to, until `stop`: version counters miss what is done to ``.data``."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.storages: set[int | None] = set()
        self._is_stopped = False

    def stop(self) -> None:
        self._is_stopped = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if not self._is_stopped and func._schema.is_mutable:
            for argument, value in zip_longest(func._schema.arguments, args):
                if argument.is_write:
                    self.storages.update(map(_storage, tensors_in(given.get(argument.name, value))))
        return func(*args, **given)


def _storage(tensor: Any) -> int | None:
    """Return a number for a tensor's memory; None for a nested tensor or a TensorSpec."""
    is_plain = isinstance(tensor, Tensor) and tensor.layout == torch.strided and not tensor.is_nested
    return tensor.untyped_storage()._cdata if is_plain else None


def _call_model(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return model(*args, **kwargs)


def _argument_names(parameters: Sequence[inspect.Parameter], count: int) -> list[str]:
    """Return the names of `count` positional arguments; ``*args`` are numbered."""
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    variadic = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "args")
    return [names[i] if i < len(names) else f"{variadic}.{i - len(names)}" for i in range(count)]


def _named_leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Return the tensors and TensorSpecs in a nested value with their names, in order."""
    if isinstance(value, Tensor | TensorSpec):
        yield name, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _named_leaves(part, _join(name, key))
    elif isinstance(value, list | tuple):
        for i, part in enumerate(value):
            yield from _named_leaves(part, _join(name, getattr(value, "_fields", range(len(value)))[i]))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _named_leaves(getattr(value, field.name), _join(name, field.name))


def _join(name: str, key: object) -> str:
    return f"{name}.{key}" if name else str(key)


def _template(value: Any, numbers: Iterator[int]) -> Any:
    """Return an argument as JSON, with ``{"tensor": number}`` for each tensor."""
    if isinstance(value, Tensor | TensorSpec):
        return {"tensor": next(numbers)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return {"dict": {key: _template(part, numbers) for key, part in value.items()}}
    if type(value) in (list, tuple):
        return {type(value).__name__: [_template(part, numbers) for part in value]}
    raise UnsupportedError(
        "an argument of the model cannot be described",
        expected="tensors, numbers, strings, None, and lists, tuples and dicts of these",
        found=f"a {type(value).__name__}",
        hint="let forward take the tensors themselves: self(batch.x) instead of self(batch)",
    )


def _fill(template: Any, tensors: Sequence[Tensor]) -> Any:
    if not isinstance(template, dict):
        return template
    ((kind, value),) = template.items()
    if kind == "tensor":
        return tensors[value]
    if kind == "dict":
        return {key: _fill(part, tensors) for key, part in value.items()}
    parts = [_fill(part, tensors) for part in value]
    return tuple(parts) if kind == "tuple" else parts


def _infos(
    leaves: Sequence[tuple[str, Any]], others: Sequence[Any], sizes: tuple[int, int] | None
) -> tuple[TensorInfo, ...]:
    """Describe the tensors of a call; `others` are another call's, `sizes` both batch sizes."""
    infos = []
    for i, (name, leaf) in enumerate(leaves):
        shape = tuple(leaf.shape)
        other = tuple(others[i].shape) if i < len(others) else shape
        axes = [axis for axis, pair in enumerate(zip(shape, other, strict=False)) if pair == sizes]
        if sizes is not None and sizes[0] == sizes[1]:  # nothing tells the batch from other axes of its size
            axes = [axis for axis in axes if axis == 0]
        limits = (0.0, 1.0) if _is_sigmoid(leaf) else None
        infos.append(
            TensorInfo(name, shape, _dtype_name(leaf.dtype), axes[0] if len(axes) == 1 else None, limits)
        )
    return tuple(infos)


def _is_sigmoid(tensor: Any) -> bool:
    """Whether a tensor is the sigmoid of another, or a view of it, by what autograd has recorded."""
    node = getattr(tensor, "grad_fn", None)
    while node is not None and node.name().startswith(("Squeeze", "Unsqueeze", "View", "Select", "Reshape")):
        node = node.next_functions[0][0]
    return node is not None and node.name().startswith("Sigmoid")


def _batch_sizes(leaves: Sequence[Any], others: Sequence[Any]) -> tuple[int, int] | None:
    """Return the sizes of the axis that differs between the inputs of two calls, or of the leading axis."""
    pairs = [
        pair for a, b in zip(leaves, others, strict=False) for pair in zip(a.shape, b.shape, strict=False)
    ]
    leading = next(((leaf.shape[0],) * 2 for leaf in leaves if len(leaf.shape)), None)
    return next((pair for pair in pairs if pair[0] != pair[1]), leading)


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _info_to_dict(info: TensorInfo) -> dict[str, Any]:
    document = dataclasses.asdict(info)
    if not info.columns:
        del document["columns"]
    return document


def _range(tensor: Tensor) -> tuple[float, float] | None:
    if tensor.is_floating_point() and not tensor.is_meta:
        tensor = tensor[~tensor.isnan()]  # missing values
    if not tensor.numel() or tensor.is_complex() or tensor.is_meta:
        return None
    low, high = tensor.detach().aminmax() if tensor.dtype != torch.bool else (tensor.min(), tensor.max())
    numbers = low.item(), high.item()
    return numbers if all(map(math.isfinite, numbers)) else None


def _random_tensor(info: TensorInfo, batch: int | None, generator: torch.Generator) -> Tensor:
    shape = info.shape if batch is None else info.shape_for(batch)
    dtype = info.torch_dtype
    if dtype.is_floating_point or dtype.is_complex:
        if info.range is None or dtype.is_complex:
            return torch.randn(shape, generator=generator).to(dtype)
        low, high = info.range
        return (low + (high - low) * torch.rand(shape, generator=generator)).to(dtype)
    low, high = (0, 0) if info.range is None else (int(info.range[0]), int(info.range[1]))
    return torch.randint(low, high + 1, shape, generator=generator).to(dtype)


def _random_columns(info: TensorInfo, batch: int | None, generator: torch.Generator, seed: int) -> Tensor:
    """Return random values within the range of each column, with NaN in different rows of each."""
    size = info.shape_for(info.shape[0] if batch is None else batch)[0]
    drawn = []
    for number, column in enumerate(info.columns):
        dtype = "int64" if column.is_whole else info.dtype
        values = _random_tensor(TensorInfo(column.name, (size,), dtype, 0, column.range), None, generator)
        values = values.to(info.torch_dtype)
        if column.may_be_nan:
            values[(torch.arange(size) + number + seed) % 4 == 0] = math.nan
        drawn.append(values)
    return drawn[0] if len(info.shape) == 1 else torch.stack(drawn, 1)


def _with_tensors(value: Any) -> Any:
    """Replace TensorSpecs by zeros."""
    return map_tensors(
        value, lambda t: torch.zeros(t.shape, dtype=t.dtype) if isinstance(t, TensorSpec) else t
    )
