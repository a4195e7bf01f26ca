"""Which layers read the output of which others: observed while a model runs, op by op."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from burnt.inspect.specs import tensors_in


class Flow(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records who reads the outputs of some modules, by the identity of tensors.

    An op that reads such an output outside of the modules, or changes or views it, counts as a reader too:
    the output is only then read by modules alone if every op that takes it runs within one whose input it is.

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
