"""Crossings: which tensors a model in parts copies from one device to another, from a run on meta tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from burnt._text import bytes_text
from burnt.inspect.specs import map_tensors, tensors_in


@dataclass(frozen=True)
class Crossing:
    """Copies from one device to another in one call of a model in parts.

    Args:
        path: the module whose inputs are copied; empty for the model's outputs.
        source: the device that they come from.
        target: the device that they go to.
        nbytes: their size, in the forward pass.
        gradient_bytes: the size of the gradients that go back, in the backward pass.

    >>> print(Crossing("embedding", "cuda:0", "cpu", 4096))
    into embedding: cuda:0 -> cpu, 4 KiB
    """

    path: str
    source: str
    target: str
    nbytes: int
    gradient_bytes: int = 0

    def __str__(self) -> str:
        back = f", {bytes_text(self.gradient_bytes)} back" if self.gradient_bytes else ""
        where = f"into {self.path}" if self.path else "outputs"
        return f"{where}: {self.source} -> {self.target}, {bytes_text(self.nbytes)}{back}"


class CrossingTrace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows on which device each tensor of a meta run would be; results are where their first input is.

    The parts of the model are the modules with a hook that says where they are (`burnt.train.placement`).
    """

    def __init__(self, model: nn.Module, meta_model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: dict[tuple[str, str, str], Crossing] = {}
        self._devices: dict[
            int | None, tuple[Any, torch.device | None]
        ] = {}  # by storage, which is kept so that ids last
        self._main: torch.device | None = next(_places(model._forward_hooks, model), None)
        self._model = meta_model
        modules = dict(meta_model.named_modules())
        self._parts = [
            (path, modules[path], device)
            for path, module in model.named_modules()
            for device in _places(module._forward_pre_hooks, module)
        ]

    @contextmanager
    def following(self) -> Iterator[None]:
        """Context in which crossings are recorded; without parts it does nothing."""
        if self._main is None:
            yield
            return
        self.found.clear()
        handles = []
        for path, module, device in self._parts:

            def enter(_: Any, args: Any, kwargs: Any, path: str = path, to: torch.device = device) -> Any:
                return map_tensors((args, kwargs), lambda tensor: self._cross(tensor, path, to))

            def leave(_: Any, args: Any, output: Any, at: torch.device = device) -> None:
                self._set(output, at)

            handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
            handles.append(module.register_forward_hook(leave))
        main = self._main

        def collect(_: Any, args: Any, output: Any) -> Any:
            return map_tensors(output, lambda tensor: self._cross(tensor, "", main))

        handles.append(self._model.register_forward_hook(collect))
        try:
            with self:
                yield
        finally:
            self._devices.clear()
            for handle in handles:
                handle.remove()

    def _cross(self, tensor: torch.Tensor, path: str, target: torch.device) -> torch.Tensor:
        _, source = self._devices.get(_key(tensor), (None, self._main))
        if source == target or _key(tensor) is None:
            return tensor
        key = path, str(source), str(target)
        earlier, back = self.found.get(key, Crossing(*key, 0)), tensor.nbytes if tensor.requires_grad else 0
        self.found[key] = replace(
            earlier, nbytes=earlier.nbytes + tensor.nbytes, gradient_bytes=earlier.gradient_bytes + back
        )
        copied = tensor.clone()
        self._devices[_key(copied)] = copied.untyped_storage(), target
        return copied

    def _set(self, value: Any, device: torch.device | None) -> None:
        for tensor in tensors_in(value):
            if (key := _key(tensor)) is not None:
                self._devices.setdefault(key, (tensor.untyped_storage(), device))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        keys = map(_key, tensors_in((args, kwargs)))
        if (known := next((key for key in keys if key in self._devices), None)) is not None:
            self._set(result, self._devices[known][1])
        return result


def _places(hooks: Any, module: nn.Module) -> Iterator[torch.device]:
    for hook in hooks.values():
        if hasattr(hook, "find_device"):
            yield hook.planned or hook.find_device(module)


def _key(tensor: torch.Tensor) -> int | None:
    """Return what identifies a tensor's memory; views of it share it."""
    key: int | None = tensor.untyped_storage()._cdata if tensor.layout is torch.strided else None
    return key
