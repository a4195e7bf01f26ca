"""Find losses that are given values or shapes which they do not take, while a step runs on meta tensors.

Predictions ``[n, 1]`` compared with targets ``[n]`` are broadcast, which pairs every prediction with every
target: the model learns their mean, without an error.

What a step derives only from its batch, such as labels that it shifts or converts, is computed with values
too, which are then known at the loss. Of outputs of the model, it is known whether they come straight from a
linear layer, a softmax or a sigmoid.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from burnt.data import Loader, TensorDataset
from burnt.data.files.table import Table
from burnt.data.views import Selection
from burnt.errors import BurntError, InputIndexError, InputValueError, ShapeError, range_hint
from burnt.inspect.specs import map_tensors, named_tensors, tensors_in
from burnt.nn.loss import checks as loss_checks
from burnt.train.step import StepOutput

_MOST_ELEMENTS = 1 << 24
"""Of the tensors whose values are followed through an op."""

_KINDS = {
    **dict.fromkeys(("softmax", "softmax2d", "special_softmax"), "softmax"),
    **dict.fromkeys(("log_softmax", "special_log_softmax"), "log_softmax"),
    **dict.fromkeys(("sigmoid", "special_expit", "expit"), "sigmoid"),
    **dict.fromkeys(("linear", "bilinear", "conv1d", "conv2d", "conv3d"), "a linear layer"),
}
"""The functions whose outputs are recognized."""

_RESHAPING = {
    *("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "permute", "transpose", "movedim"),
    *("contiguous", "clone", "float", "double", "half", "bfloat16", "to", "__getitem__"),
}
"""The functions whose outputs are of the kind of their input."""

_LOGITS = "pass the logits themselves, the output of the last layer"
_UNFIT = {
    "cross_entropy": ({"softmax", "sigmoid"}, f"it computes log_softmax itself: {_LOGITS}"),
    "binary_cross_entropy_with_logits": (
        {"softmax", "log_softmax", "sigmoid"},
        f"it computes the sigmoid itself: {_LOGITS}",
    ),
    **dict.fromkeys(
        ("nll_loss", "kl_div", "ctc_loss"),
        (
            {"a linear layer", "softmax", "sigmoid"},
            "it takes log-probabilities: torch.log_softmax(logits, 1), or cross_entropy for classes",
        ),
    ),
    "binary_cross_entropy": (
        {"a linear layer", "log_softmax"},
        "it takes probabilities: torch.sigmoid(logits), or binary_cross_entropy_with_logits",
    ),
}
"""By loss, the inputs that it should not have, and what it does."""


_BROADCASTING = frozenset({"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "poisson_nll_loss"})
"""Losses of torch that broadcast, some with a warning: a column and a row are always a mistake there."""


class TargetChecks:
    """Records the losses of a step, and checks what they were given.

    The batch has values, which may be others than those that the step runs on, in the same shapes. Where ops
    other than elementwise losses broadcast a column and a row, only the outputs and targets that the step
    returns count, since a model may compare all pairs of a batch on purpose.
    """

    def __init__(self, batch: Any) -> None:
        self._batch = batch
        self._broadcast: list[tuple[str, Tensor, Tensor]] | None = None  # columns and rows, in the first run
        self._calls: list[tuple[str, dict[str, Any], dict[int, Tensor], dict[int, str]]] = []

    def recorded(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that runs a step on meta tensors, and records its losses and broadcasts."""

        @functools.wraps(step)
        def run(model: torch.nn.Module, batch: Any, *extra: Any) -> Any:
            given, values = named_tensors(batch, ""), named_tensors(self._batch, "")
            known = {}
            for name, tensor in given.items():
                value = values.get(name)
                if not isinstance(value, Tensor) or value.is_meta or value.layout is not torch.strided:
                    continue
                if value.shape == (1, *tensor.shape[1:]):  # a batch of one item, which is checked as two
                    value = value.expand_as(tensor)
                if value.shape == tensor.shape and value.numel() <= _MOST_ELEMENTS:
                    known[id(tensor)] = tensor, value.detach().to("cpu", copy=True)
            broadcast: list[tuple[str, Tensor, Tensor]] = []
            self._broadcast = broadcast if self._broadcast is None else self._broadcast
            with _Following(known, self._calls, broadcast):
                return step(model, batch, *extra)

        return run

    def check_shapes(self, output: StepOutput, where: str) -> None:
        """Raise a ShapeError if the first run, which returned `output`, broadcast predictions and targets."""
        for name, left, right in self._broadcast or ():
            if name in _BROADCASTING or _is_comparison(left, right, output):
                raise _pairs_error(name, left, right, where)

    def check_values(self, step: str, message: Callable[[str], None]) -> None:
        """Raise if the targets of a recorded loss do not fit it; warn of inputs. `step` names the step."""
        warnings: set[str] = set()
        for name, arguments, values, kinds in self._calls:
            try:
                _check_targets(name, arguments, values)
            except BurntError as error:
                error.where = f"{name} in {step}"
                raise
            kind = kinds.get(id(arguments.get("input")))
            unfit, hint = _UNFIT.get(name, (set(), ""))
            if kind in unfit:
                warnings.add(f"Warning: {name} in {step} gets the output of {kind}, but {hint}.")
        for text in sorted(warnings):
            message(text)


def _check_targets(name: str, arguments: Mapping[str, Any], values: Mapping[int, Tensor]) -> None:
    loss, input = torch.nn.Identity(), arguments.get("input")
    target, index = (values.get(id(arguments.get(key))) for key in ("target", "index"))
    if index is not None and index.numel() and arguments.get("size"):
        _check_indices(index, arguments["size"])
    elif target is None or not target.numel() or not isinstance(input, Tensor):
        return
    elif name == "ctc_loss":
        lengths = arguments["target_lengths"]
        lengths = values.get(id(lengths)) if isinstance(lengths, Tensor) else torch.tensor(lengths)
        if target.dim() == 1:
            _check_indices(target, input.shape[-1])
        elif lengths is not None:
            _check_indices(target[torch.arange(target.shape[1]) < lengths[:, None]], input.shape[-1])
    elif name in ("cross_entropy", "nll_loss", "multi_margin_loss", "multilabel_margin_loss"):
        if not target.is_floating_point():  # which are probabilities
            ignored = -1 if name == "multilabel_margin_loss" else arguments.get("ignore_index", -100)
            loss_checks.labels(loss, input, target, ignored)
    elif name == "linear_cross_entropy":
        loss_checks.labels(loss, arguments["weight"].t(), target, arguments["ignore_index"])
    elif name in ("binary_cross_entropy", "binary_cross_entropy_with_logits", "multilabel_soft_margin_loss"):
        if target.min() < -0.5 or target.max() > 1.5:  # not what resizing a mask adds at its edges
            loss_checks.probabilities(loss, target)
    elif name.endswith("_embedding_loss") or name in ("margin_ranking_loss", "soft_margin_loss"):
        if not (target == -1).any() or not ((target == 0) | (target.abs() == 1)).all():  # 0 leaves out
            loss_checks.signs(loss, target)
    elif name == "poisson_nll_loss" or (name == "kl_div" and not arguments.get("log_target")):
        smallest = float(target.min())
        if smallest >= 0:
            return
        raise InputValueError(
            "the target is negative",
            expected="probabilities" if name == "kl_div" else "counts, at least 0",
            found=f"target from {smallest:g}",
            hint="log_target=True for log-probabilities" if name == "kl_div" else None,
        )


def _check_indices(index: Tensor, size: int) -> None:
    smallest, largest = int(index.min()), int(index.max())
    if smallest < 0 or largest >= size:
        raise InputIndexError(
            "an index is out of range",
            expected=f"0 to {size - 1}",
            found=f"{smallest} to {largest}",
            hint=range_hint(smallest, largest, size),
        )


class _Following(TorchFunctionMode):
    """Computes values next to meta tensors, by their `id`, and records losses with what is known then."""

    def __init__(
        self, known: dict[int, tuple[Tensor, Tensor]], calls: list[Any], broadcast: list[Any]
    ) -> None:
        super().__init__()
        self._known, self._calls, self._broadcast = known, calls, broadcast
        self._kinds: dict[int, tuple[Tensor, str]] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "").partition(".")[0]
        if name.endswith(("_loss", "cross_entropy", "_with_logits")) or name == "kl_div" or name in _LOOKUPS:
            arguments = _arguments(func, name, args, kwargs)
            given = {id(value) for value in arguments.values()}
            values = {key: value.clone() for key, (_, value) in self._known.items() if key in given}
            kinds = {key: kind for key, (_, kind) in self._kinds.items() if key in given}
            self._calls.append((name, arguments, values, kinds))
        result = func(*args, **kwargs)
        pair = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)][:2]
        if len(pair) == 2 and _are_column_and_row(*pair):
            is_broadcast = getattr(result, "shape", None) == _broadcast_shape(*pair)
            self._broadcast += [(name, *pair)] if name in _BROADCASTING or is_broadcast else []
        if name == "__setitem__":
            self._kinds.pop(id(args[0]), None)
        if isinstance(result, Tensor):
            source = self._kinds.get(id(args[0]), (None, None))[1] if args else None
            if args and result is args[0]:
                name = name.removesuffix("_")
                self._kinds.pop(id(result), None)
            if (kind := _KINDS.get(name, source if name in _RESHAPING else None)) is not None:
                self._kinds[id(result)] = result, kind
        self._follow(func, name, args, kwargs, result)
        return result

    def _follow(
        self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Compute the values of a result if all tensors' values are known, else forget what was changed."""
        results = list(tensors_in(result)) if isinstance(result, Tensor | tuple | list) else []
        tensors = list(tensors_in((args, kwargs)))
        is_changed = name == "__setitem__" or any(one is tensors[0] for one in results if tensors)
        if not (results or is_changed):
            return
        size = sum(tensor.numel() for tensor in (*tensors, *results))
        if size <= _MOST_ELEMENTS and all(id(tensor) in self._known for tensor in tensors):
            with contextlib.suppress(Exception):  # of an op that takes no such values: they stay unknown
                values = self._values_of(func, args, kwargs)
                if [value.shape for value in values] == [one.shape for one in results]:
                    pairs = zip(results, values, strict=True)
                    self._known |= {id(one): (one, v) for one, v in pairs if not v.is_meta}
                    return
        pair = self._known.get(id(tensors[0])) if is_changed else None
        if pair is not None:
            lost = pair[1].untyped_storage().data_ptr()
            known = self._known.items()
            self._known = {key: p for key, p in known if p[1].untyped_storage().data_ptr() != lost}

    def _values_of(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        if hasattr(func, "_schema"):
            raise NotImplementedError("an op of burnt, which would be compiled")
        values = map_tensors((args, kwargs), lambda tensor: self._known[id(tensor)][1])
        with torch.device("cpu"), torch.no_grad():
            return list(tensors_in(func(*_on_cpu(values[0]), **_on_cpu(values[1]))))


_ORDER = {
    **dict.fromkeys(("gather", "index_select"), ("input", "dim", "index")),
    "one_hot": ("index", "num_classes"),
    "embedding": ("weight", "input"),
    "ctc_loss": ("input", "target", "input_lengths", "target_lengths"),
}
"""The arguments of functions without a signature."""

_LOOKUPS = {"embedding", "embedding_bag", "one_hot", "gather", "index_select"}


def _on_cpu(value: Any) -> Any:
    """Return arguments with the CPU in place of devices."""
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return type(value)(map(_on_cpu, value))
    return {key: _on_cpu(part) for key, part in value.items()} if type(value) is dict else value


def _arguments(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a loss or a lookup by torch's names, with defaults where they are known."""
    if (schema := getattr(func, "_schema", None)) is not None:
        names = {argument.name: argument.default_value for argument in schema.arguments}
        found = {**names, **dict(zip(names, args, strict=False)), **kwargs}
        found["input"] = found.get("logits", found.get("x", found.get("indices")))
    else:
        try:
            bound = inspect.signature(func).bind(*args, **kwargs)
            bound.apply_defaults()
            found = dict(bound.arguments)
        except (ValueError, TypeError):  # a function of C has no signature
            order = _ORDER.get(name, ("input", "target"))
            found = {"num_classes": -1, **dict(zip(order, args, strict=False)), **kwargs}
    for old, new in (("log_probs", "input"), ("targets", "target"), ("input1", "input"), ("tensor", "index")):
        if old in found:
            found[new] = found[old]
    if name.startswith("embedding"):
        found |= {"index": found.get("input"), "size": len(found.get("weight", ()))}
    elif name == "one_hot":
        found["size"] = max(found["num_classes"], 0)
    elif name in _LOOKUPS and isinstance(dim := found.get("dim"), int) and found["input"].dim():
        found["size"] = found["input"].shape[dim]
    return found


def _are_column_and_row(left: Tensor, right: Tensor) -> bool:
    """Whether the shapes are ``[*, n, 1]`` and ``[*, n]``, in either order, with more than one element."""
    if left.numel() != right.numel() or left.numel() < 2:
        return False
    longer, shorter = (left, right) if left.dim() > right.dim() else (right, left)
    return longer.shape[-1:] == (1,) and longer.shape[:-1] == shorter.shape and shorter.dim() == 1


def _broadcast_shape(left: Tensor, right: Tensor) -> tuple[int, ...]:
    return tuple(torch.broadcast_shapes(left.shape, right.shape))  # type: ignore[no-untyped-call]


def _is_comparison(left: Tensor, right: Tensor, output: StepOutput) -> bool:
    outputs, targets = output.outputs, output.targets
    if not isinstance(targets, Tensor):
        return False
    if outputs is None:  # what depends on the parameters is compared with the targets themselves
        return any(
            predicted.requires_grad and true is targets for predicted, true in ((left, right), (right, left))
        )
    if not isinstance(outputs, Tensor):
        return False
    return any(
        predicted.shape == outputs.shape
        and true.shape == targets.shape
        and (predicted is outputs or true is targets)
        for predicted, true in ((left, right), (right, left))
    )


def _pairs_error(name: str, left: Tensor, right: Tensor, where: str) -> ShapeError:
    column = left if left.dim() > right.dim() else right
    return ShapeError(
        "the loss compares each prediction with every target",
        where=where,
        expected=f"predictions and targets of one shape in {name}",
        found=f"{tuple(left.shape)} and {tuple(right.shape)}, which broadcast to "
        f"{_broadcast_shape(left, right)}",
        hint=f"squeeze(-1) the tensor of shape {tuple(column.shape)}",
    )


def batch_of_extremes(loader: Any, batch: Any) -> Any:
    """Return a batch with the smallest and largest numbers of each column of a dataset in memory.

    The second smallest and largest ones are taken, too, because the loss may ignore the first. Where the
    columns are not known, `batch`, the loader's first one, is returned.
    """
    dataset: Any = getattr(loader, "dataset", None)
    source: Any = dataset.dataset if isinstance(dataset, Selection) else dataset
    is_known = type(loader) is Loader and isinstance(source, TensorDataset | Table)
    if not is_known or loader.pack is not None or loader.buckets is not None:
        return batch
    order = loader.order(0)[: len(loader) * loader.batch_size]
    places = order if dataset is source else torch.from_numpy(dataset.indices)[order]
    candidates: dict[bool, list[Any]] = {False: [], True: []}  # by whether a column has floats: four rows
    for column in source.columns.values() if isinstance(source, TensorDataset) else source.numbers():
        if column.is_complex() or not 0 < len(places) * column[:1].numel() <= _MOST_ELEMENTS:
            continue
        flat = column[places.to(column.device)].reshape(len(places), -1).cpu()
        low, high = (np.unique(ends.numpy(), return_index=True)[1] for ends in (flat.amin(1), flat.amax(1)))
        rows = [high[-1], low[0], high[-min(2, len(high))], low[min(1, len(low) - 1)]]
        candidates[column.is_floating_point()].append(rows)
    # Labels and indices first, and of all columns the extremes before the second ones.
    first = [int(row) for rows in candidates.values() for row in np.array(rows, np.int64).T.ravel()]
    size = min(loader.batch_size, len(order))
    return loader.read(order[torch.tensor(list(dict.fromkeys([*first, *range(size)]))[:size])])
