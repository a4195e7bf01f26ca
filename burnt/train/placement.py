"""A model in parts: submodules on several devices, and the hooks that move their inputs.

A part's first module has a forward pre-hook, `_Part`, and the model a forward hook, `_Outputs`. They ask the
module where its tensors are at each call, so that they do nothing after ``model.to("cpu")`` and in copies.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from burnt._patterns import matches, near, warn_unmatched
from burnt.data import move
from burnt.device import as_device
from burnt.errors import ConfigError, DeviceError, UnsupportedError
from burnt.inspect.specs import tensors_in

Devices = torch.device | str | None | Mapping[str, torch.device | str]
"""What ``device=`` takes: one device, None for the fastest, or devices by patterns on paths."""

_Model = TypeVar("_Model", bound=torch.nn.Module)


def place(model: _Model, device: Devices) -> _Model:
    """Put a model on one device, or its parts on several, and let hooks move the inputs of the parts.

    Args:
        model: any module; it is changed in place.
        device: a device, None for the fastest one, or devices by patterns on paths of parameters and buffers,
            or of the modules above them, as in `burnt.freeze`: ``{"embedding": "cpu", "*": "cuda"}``. The
            first pattern that matches a path wins. The last one's device is the model's: the model's outputs
            are moved there, and so are the batches of a training, an evaluation and a prediction.

    Returns:
        The model. ``model.to(device)`` takes it back to one device.

    Raises:
        DeviceError: there is no such device.
        ConfigError: a pattern matches no tensor or only those of earlier patterns, a tensor has no device, or
            one parameter or one module would be on two.

    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    >>> placed = place(model, {"0": "cpu", "*": "meta"})
    >>> placed(torch.ones(4, 2)).device, placed[0].weight.device
    (device(type='meta'), device(type='cpu'))
    """
    return Placement(device).apply(model)


def device_of(model: torch.nn.Module) -> torch.device:
    """Return a model's device: where its batches go, and where the outputs of a model in parts are.

    >>> device_of(torch.nn.Linear(2, 1)), device_of(torch.nn.ReLU())
    (device(type='cpu'), device(type='cpu'))
    """
    for hook in model._forward_hooks.values():
        if isinstance(hook, _Outputs):
            return hook.find_device(model)
    return next(_tensors(model), torch.empty(0, device="cpu")).device


def device_types(model: torch.nn.Module) -> tuple[str, ...]:
    """Return the types of all devices that a model's tensors are on, its own device's first."""
    return tuple(dict.fromkeys([device_of(model).type, *(tensor.device.type for tensor in _tensors(model))]))


class Placement:
    """Where a model is: on one device, or its parts on several; see `place`.

    `main` is the device of batches and outputs.

    >>> Placement({"embedding": "cpu", "*": "meta"})
    embedding: cpu, *: meta
    """

    def __init__(self, device: Devices) -> None:
        self.devices: dict[str, torch.device] = {}
        self.is_default = device is None
        if not isinstance(device, Mapping):
            self.main = as_device(device)
            return
        for pattern, one in device.items():
            if not isinstance(pattern, str) or not isinstance(one, str | torch.device):
                raise _invalid(f"{pattern!r}: {one!r}")
            try:
                self.devices[pattern] = as_device(one)
            except DeviceError as error:
                error.where = f"device[{pattern!r}]"
                raise
        if not self.devices:
            raise _invalid("no pattern")
        self.main = self.devices[list(self.devices)[-1]]

    @classmethod
    def of(cls, model: torch.nn.Module) -> Placement:
        """Return where a model is now."""
        main, named = device_of(model), _named_tensors(model)
        if all(tensor.device == main for tensor in named.values()):
            return cls(main)
        below = _devices_below({path: tensor.device for path, tensor in named.items()})
        patterns = {
            next((above for above in _modules_above(path)[1:] if len(below[above]) == 1), path): tensor.device
            for path, tensor in named.items()
            if tensor.device != main
        }
        return cls({**patterns, "*": main})

    def for_model(self, model: torch.nn.Module) -> Placement:
        """Return where a training has the model: with ``device=None``, one that `place` has put stays."""
        if not self.is_default:
            return self
        is_placed = any(isinstance(hook, _Outputs) for hook in model._forward_hooks.values())
        found = Placement.of(model)
        kept = found if is_placed and found.devices else Placement(None)
        kept.is_default = True  # the next training may be of another model
        return kept

    def of_rank(self, device: torch.device) -> Placement:
        """Return where one of several ranks, which has a device of its own, has the model."""
        if self.devices:
            raise UnsupportedError(
                "several ranks cannot train a model in parts",
                where="device",
                expected="one device for each rank, or a single process",
                found=repr(self),
                hint='device="cuda" puts the whole model on the device of each rank',
            )
        return Placement(device)

    def __repr__(self) -> str:
        return ", ".join(f"{pattern}: {one}" for pattern, one in self.devices.items()) or str(self.main)

    def apply(self, model: _Model) -> _Model:
        """Move the model's tensors, once, and add the hooks."""
        self.add_hooks(model, planned=False)
        if not self.devices:
            return model.to(self.main)
        of_modules = {path.rpartition(".")[0]: one for path, one in self.find_devices(model).items()}
        for path, module in model.named_modules():
            if path in of_modules:
                # Its own tensors, as `to` moves them: parameters stay the same objects.
                module._apply(lambda tensor, to=of_modules[path]: tensor.to(to), recurse=False)
        return model

    def add_hooks(self, model: torch.nn.Module, *, planned: bool = True) -> None:
        """Add the hooks in place of an earlier placement's; no tensor moves, which may only be planned."""
        for module in model.modules():
            for hooks in (module._forward_pre_hooks, module._forward_hooks):
                for key in [key for key, hook in hooks.items() if isinstance(hook, _Part | _Outputs)]:
                    del hooks[key]
        if not self.devices:
            return
        devices = self.find_devices(model)
        if len(set(devices.values())) == 1:
            return
        below = _devices_below(devices)
        own = {path.rpartition(".")[0]: one for path, one in devices.items()}
        inside: list[str] = []  # the prefixes of paths in modules that are a part as a whole
        for path, module in model.named_modules():
            is_called = type(module).forward is not torch.nn.Module.forward  # unlike a ModuleList
            if path not in below or not is_called or path.startswith(tuple(inside)):
                continue
            if len(below[path]) == 1:
                inside.append(f"{path}.")
            elif path not in own:
                continue
            device = own.get(path, next(iter(below[path])))
            module.register_forward_pre_hook(_Part(device if planned else None), with_kwargs=True)
        main = next(path for path, one in reversed(devices.items()) if one == self.main)
        model.register_forward_hook(_Outputs(self.main if planned else None, main.rpartition(".")[0]))

    def find_devices(self, model: torch.nn.Module) -> dict[str, torch.device]:
        """Return the device of each parameter and buffer by path, after all checks.

        A shared one is there by each of its paths.
        """
        parameters = dict(model.named_parameters(remove_duplicate=False))
        paths = list(_named_tensors(model))
        hits = {path: [p for p in self.devices if matches(p, path)] for path in paths}
        chosen = {path: found[0] for path, found in hits.items() if found}
        for pattern in self.devices:
            matched = next((path for path, found in hits.items() if pattern in found), None)
            if matched is None:
                raise ConfigError(
                    f"the pattern {pattern!r} of device= matches no parameter and no buffer",
                    where=f"device[{pattern!r}]",
                    expected="a pattern on their paths, or on the paths of the modules above them",
                    found=repr(pattern),
                    hint=near(pattern, paths),
                )
            if pattern not in chosen.values():
                raise ConfigError(
                    f"the pattern {pattern!r} of device= places nothing",
                    where=f"device[{pattern!r}]",
                    found=f"all that it matches, such as {matched}, is placed by patterns before it",
                    hint=f"put it before {chosen[matched]!r}: the first pattern that matches wins",
                )
            warn_unmatched(pattern, paths, "parameter and no buffer")
        if missing := [path for path in paths if path not in chosen]:
            raise ConfigError(
                f"device= places only {len(chosen)} of {len(paths)} parameters and buffers",
                where=missing[0],
                expected="a pattern that matches each of them",
                found=", ".join(map(repr, self.devices)),
                hint=f'a last pattern "*" takes all that are left: {{..., "*": "{self.main}"}}',
            )
        devices = {path: self.devices[pattern] for path, pattern in chosen.items()}
        modules = dict(model.named_modules(remove_duplicate=False))
        owners = {path: modules[path.rpartition(".")[0]] for path in paths}
        _refuse_two_devices(
            devices, {path: id(p) for path, p in parameters.items()}, "is shared by two parts"
        )
        _refuse_two_devices(
            devices, {path: id(m) for path, m in owners.items()}, "is in one module with another"
        )
        return devices


class _Part:
    """Forward pre-hook of a part's first module: moves the inputs to where the module is."""

    def __init__(self, planned: torch.device | None) -> None:
        self.planned = planned  # where the module will be; None where it is moved (`burnt.inspect.crossings`)

    def find_device(self, module: torch.nn.Module) -> torch.device:
        """Return where the module is now."""
        return next(_tensors(module)).device

    def __call__(self, module: torch.nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        device = self.find_device(module)
        return tuple(_moved(value, device) for value in args), {
            name: _moved(value, device) for name, value in kwargs.items()
        }


class _Outputs:
    """Forward hook of a model in parts: moves its outputs to the device of a submodule."""

    def __init__(self, planned: torch.device | None, module: str) -> None:
        self.planned, self._module = planned, module

    def find_device(self, model: torch.nn.Module) -> torch.device:
        """Return where that submodule is now."""
        return next(_tensors(model.get_submodule(self._module))).device

    def __call__(self, model: torch.nn.Module, args: Any, output: Any) -> Any:
        return _moved(output, self.find_device(model))


def _tensors(module: torch.nn.Module) -> Iterator[Tensor]:
    """Yield a module's own tensors, then all others in it."""
    return itertools.chain(
        module.parameters(recurse=False), module.buffers(recurse=False), module.parameters(), module.buffers()
    )


def _named_tensors(model: torch.nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by path, a shared one by each of its paths."""
    return {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }


def _moved(value: Any, device: torch.device) -> Any:
    """Return a value on a device: the same object, unless it contains a tensor that is elsewhere."""
    tensors = (
        (value,) if isinstance(value, Tensor) else tensors_in(value)
    )  # whose ids torch.compile would guard
    return move(value, device) if any(tensor.device != device for tensor in tensors) else value


def _modules_above(path: str) -> list[str]:
    names = path.split(".")
    return [".".join(names[:end]) for end in range(len(names))]


def _devices_below(devices: Mapping[str, torch.device]) -> dict[str, set[torch.device]]:
    """Return the devices of the tensors in each module."""
    below: dict[str, set[torch.device]] = {}
    for path, one in devices.items():
        for module_path in _modules_above(path):
            below.setdefault(module_path, set()).add(one)
    return below


def _refuse_two_devices(devices: Mapping[str, torch.device], identities: Mapping[str, int], how: str) -> None:
    first: dict[int, str] = {}
    for path, identity in identities.items():
        other = first.setdefault(identity, path)
        if devices[path] != devices[other]:
            raise ConfigError(
                f"a parameter or buffer {how}, on different devices",
                where=path,
                expected=f"{devices[other]}, the device of {other}",
                found=str(devices[path]),
                hint=f'one pattern for both: {{"{other}|{path}": "{devices[other]}", ...}}',
            )


def _invalid(found: str) -> ConfigError:
    return ConfigError(
        "device= cannot be used",
        where="device",
        expected='devices by patterns on paths: {"embedding": "cpu", "*": "cuda"}',
        found=found,
    )
