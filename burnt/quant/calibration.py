"""Calibration: a model runs over some batches while observers look at its layers' inputs."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from burnt._snapshot import Snapshot
from burnt._torch import is_compiled, version_of
from burnt.errors import QuantError
from burnt.inspect.signature import forward_signature
from burnt.inspect.specs import map_tensors, tensors_in
from burnt.nn.quantized import Quantized, QuantizedConv, QuantizedEmbedding, quantized_class
from burnt.quant.observers import InputObserver


class Flow(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records who reads the outputs of some modules, by the identity of tensors.

    An op that reads such an output outside of the modules, or changes or views it, counts as a reader too:
    the output counts as read only by modules if every op that takes it runs within one whose input it is.

    By the path of a module: `readers` are who reads its outputs (paths, or for others a description that
    starts with a space, as no path does), `sources` the modules whose outputs were its input (None for other
    inputs), `ranks` the numbers of axes of its output, `examples` part of an input and what that became.

    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    >>> flow = Flow({"0": model[0], "2": model[2]})
    >>> with flow.observed(), torch.no_grad():
    ...     flow.end_of_call(model(torch.zeros(1, 4)))
    >>> flow.readers["0"], flow.readers["2"], flow.sources["2"]
    ({' aten.relu'}, {' the output of the model'}, {None})
    """

    def __init__(self, modules: Mapping[str, torch.nn.Module]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._modules = modules
        self.readers: dict[str, set[str]] = defaultdict(set)
        self.sources: dict[str, set[str | None]] = defaultdict(set)
        self.ranks: dict[str, set[int]] = defaultdict(set)
        self.examples: dict[str, tuple[Tensor, Tensor]] = {}
        # Tensors are held until the end of a call of the model, so that no id is used twice.
        self._outputs: dict[int, tuple[Tensor, str]] = {}
        self._with_arguments: set[str] = set()
        self._running: list[tuple[str, Tensor | None]] = []

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Context in which calls of the model are observed."""
        handles = []
        for path, module in self._modules.items():

            def before(_: Any, args: Any, kwargs: Any, path: str = path) -> None:
                self.enter(path, args, kwargs)

            def after(_: Any, args: Any, output: Any, path: str = path) -> None:
                self.leave(path, output)

            handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
            handles.append(module.register_forward_hook(after))
        try:
            with self:
                yield
        finally:
            for handle in handles:
                handle.remove()

    def end_of_call(self, output: Any) -> None:
        """Take note of what the model returned."""
        for tensor in tensors_in(output):
            if (made := self._outputs.get(id(tensor))) is not None:
                self.readers[made[1]].add(" the output of the model")
        self._outputs.clear()
        self._running.clear()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Take note of the tensors that an op reads."""
        if self._outputs:
            path, own = self._running[-1] if self._running else ("", None)
            for tensor in _arguments(args, kwargs or {}):
                if (made := self._outputs.get(id(tensor))) is not None:
                    reader = path if tensor is own else f" {_op_name(func)}"
                    self.readers[made[1]].add(reader)
        return func(*args, **(kwargs or {}))

    def enter(self, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take note that a module is called."""
        tensor = next(_arguments(args, kwargs), None)
        made = None if tensor is None else self._outputs.get(id(tensor))
        self.sources[path].add(None if made is None else made[1])
        self._running.append((path, tensor))
        if len(args) + len(kwargs) != 1:
            self._with_arguments.add(path)

    def leave(self, path: str, output: Any) -> None:
        """Take note that a module has returned."""
        _, tensor = self._running[-1]
        if not isinstance(output, Tensor):
            self.readers[path].add(" nobody known, since it has several outputs")
        else:
            is_example = path not in self.examples and path not in self._with_arguments
            if is_example and tensor is not None and tensor.dim() and output.dim():
                # Before the module is left, so that it is the reader of its input here too.
                self.examples[path] = tensor[:1].clone(), output[:1].clone()
            self._outputs[id(output)] = output, path
            self.ranks[path].add(output.dim())
        self._running.pop()


def _arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    for value in (*args, *kwargs.values()):
        for part in value if isinstance(value, tuple | list) else (value,):
            if isinstance(part, Tensor):
                yield part


def _op_name(func: Any) -> str:
    return str(func).partition(".default")[0]


_CHUNK_ROWS = 4096
_CHUNK_SAMPLES = 64


@dataclasses.dataclass
class Calibration:
    """What was seen while a model ran over a calibration set.

    `inputs` are the observers by path of those layers that were called; `flow` says who reads whose output,
    if that was asked for.
    """

    inputs: dict[str, InputObserver]
    flow: Flow | None


def calibrate_layers(
    model: torch.nn.Module,
    layers: Mapping[str, torch.nn.Module],
    batches: Iterable[Any],
    *,
    forward: Callable[[Any, Any], Any] | None = None,
    followed: Mapping[str, torch.nn.Module] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Calibration:
    """Run a model over a calibration set, in evaluation mode and without gradients.

    Training flags, buffers and hooks are afterwards as before, also if it raises: a QuantError if there is no
    batch, the model fails on one, or it calls none of the layers.

    The inputs of `layers` are observed, those in `followed` also by `Flow`. ``forward(model, batch)`` is for
    batches that do not fit `call_model`. `progress` is called with a text, the number of the batch, and that
    of all, 0 if unknown.
    """
    check_batches(batches)
    observers: dict[str, InputObserver] = {}
    flow = None if followed is None else Flow(followed)
    total = _count_batches(batches)
    count = 0
    device = _single_device(model)
    with _evaluation(model), contextlib.ExitStack() as stack:
        if flow is not None:
            # Its hooks run first: what observers read is then read by the layer itself.
            stack.enter_context(flow.observed())
        for seed, (path, layer) in enumerate(layers.items()):
            stack.callback(_observe(layer, path, seed, observers).remove)
        for count, batch in enumerate(batches, 1):
            if progress is not None:
                progress("calibrating", count - 1, total)
            moved = batch if device is None else map_tensors(batch, lambda tensor: tensor.to(device))
            try:
                output = call_model(model, moved) if forward is None else forward(model, moved)
            except Exception as error:
                raise QuantError(
                    f"the model fails on batch {count - 1} of the calibration set",
                    where=type(model).__name__,
                    expected="batches that the model takes",
                    found=f"{type(error).__name__}: {error}",
                    hint="forward=lambda model, batch: model(...) says how to call it",
                ) from error
            if flow is not None:
                flow.end_of_call(output)
    if not count:
        is_iterator = iter(batches) is batches
        raise QuantError(
            "the calibration set is empty",
            expected="at least one batch",
            found="an iterator without further batches" if is_iterator else "no batches",
            hint="an iterator or generator can be used once: pass a list or a loader"
            if is_iterator
            else None,
        )
    if layers and not any(observer.calls for observer in observers.values()):
        raise QuantError(
            "the calibration called none of the layers to quantize",
            where=type(model).__name__,
            expected=f"calls of {', '.join(list(layers)[:3])}{', ...' * (len(layers) > 3)}",
            found=f"{count} batch{'es' * (count != 1)} without one",
            hint="forward=lambda model, batch: model(...) says how to call the model",
        )
    return Calibration(observers, flow)


def _count_batches(batches: Iterable[Any]) -> int:
    """Return the number of batches, 0 if it is unknown."""
    try:
        return len(batches) if isinstance(batches, Sized) else 0
    except TypeError:  # a DataLoader of a stream has a length only in its class
        return 0


def check_batches(batches: object) -> None:
    """Check that a calibration set is an iterable of batches, not a single batch."""
    is_batch = isinstance(batches, Tensor | Mapping | str)
    if is_batch or not isinstance(batches, Iterable):
        raise QuantError(
            "calibrate= is not an iterable of batches",
            expected="a loader or a list of batches",
            found=f"a {type(batches).__name__}",
            hint="calibrate=[batch]" if is_batch else None,
        )


def call_model(model: torch.nn.Module, batch: Any) -> Any:
    """Call a model with a batch: a tensor is its only argument.

    Of a mapping or Batch, it gets the entries that ``model.forward`` has as arguments; of a tuple or list as
    many positional arguments as ``forward`` takes, so that ``(inputs, targets)`` works for a model of one
    input.
    """
    if isinstance(batch, Tensor):
        return model(batch)
    parameters = forward_signature(model).parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if isinstance(batch, tuple | list):
        takes_all = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        return model(*(batch if takes_all else batch[: len(positional)]))
    entries = dict(batch) if isinstance(batch, Mapping) else dict(getattr(batch, "__dict__", {}))
    names = {p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.POSITIONAL_ONLY, p.VAR_KEYWORD)}
    chosen = {name: value for name, value in entries.items() if name in names}
    if chosen:
        return model(**chosen)
    if [p.name for p in positional] == ["batch"]:
        return model(batch)
    raise QuantError(
        "no entry of the batch is an argument of the model",
        where=f"{type(model).__name__}.forward",
        expected=f"some of {', '.join(map(repr, sorted(names)))}",
        found=", ".join(map(repr, entries)) or f"a {type(batch).__name__}",
        hint="forward=lambda model, batch: model(...)",
    )


def layer_items(layer: torch.nn.Module, input: Tensor) -> Tensor:
    """Return a layer's input as items that it maps one by one: rows, samples or ids."""
    cls = quantized_class(layer)
    assert cls is not None
    if issubclass(cls, QuantizedEmbedding):
        return input.reshape(-1)
    weight: Tensor = layer.get_parameter("weight")
    if issubclass(cls, QuantizedConv):
        return input if input.dim() == weight.dim() else input.unsqueeze(0)
    return input.reshape(-1, input.shape[-1])


def output_error(
    layer: torch.nn.Module, new: Quantized, observer: InputObserver, divisor: Tensor | None = None
) -> float:
    """Return the norm of the error of a quantized layer's output on a sample, relative to the output's.

    `divisor`, ``[channels]``, is what inputs will be divided by.
    """
    error = power = 0.0
    is_conv = isinstance(new, QuantizedConv)
    dtype = layer.get_parameter("weight").dtype  # under autocast, inputs may have had another one
    with torch.no_grad():
        for group in observer.sample.groups():
            items = group.to(dtype) if group.is_floating_point() else group
            items = items if divisor is None else items / divisor.to(dtype)
            for part in torch.split(items, _CHUNK_SAMPLES if is_conv else _CHUNK_ROWS):
                expected = layer(part).double()
                error += float((new(part).double() - expected).square().sum())
                power += float(expected.square().sum())
    if power == 0:
        return 0.0 if error == 0 else float("inf")
    return float((error / power) ** 0.5)


def _observe(
    layer: torch.nn.Module, path: str, seed: int, observers: dict[str, InputObserver]
) -> torch.utils.hooks.RemovableHandle:
    def observe(_: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inputs = args or tuple(kwargs.values())
        if inputs and isinstance(inputs[0], Tensor):
            observers.setdefault(path, InputObserver(seed)).add(layer_items(layer, inputs[0]))

    return layer.register_forward_pre_hook(observe, with_kwargs=True)


@contextlib.contextmanager
def _evaluation(model: torch.nn.Module) -> Iterator[None]:
    """Return a context in which a model evaluates; flags and buffers get their values back after it."""
    modes = [(module, module.training) for module in model.modules()]
    tables = Snapshot()
    values = []
    for module in model.modules():
        if module._buffers and not isinstance(module, Quantized):
            tables.add(module._buffers)
            values += [(b, version_of(b), b.clone()) for b in module._buffers.values() if b is not None]
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        if any(is_compiled(module) for module in model.modules()):
            # Compiled code would run without the hooks.
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        try:
            model.eval()
            yield
        finally:
            for module, mode in modes:
                module.training = mode
            tables.restore()
            for buffer, version, value in values:
                # Unchanged ones may not be writable: expanded tensors, those of inference mode.
                is_same = buffer.is_meta or torch.equal(buffer, value)  # `.data` has no versions
                if version_of(buffer) != version or not is_same:
                    buffer.copy_(value)


def _single_device(model: torch.nn.Module) -> torch.device | None:
    """Return the device of a model's parameters, or None if they have several or none."""
    devices = {parameter.device for parameter in model.parameters()}
    return devices.pop() if len(devices) == 1 else None
