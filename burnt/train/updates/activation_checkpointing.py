"""Activation checkpointing: modules whose activations are computed again in the backward pass, not stored."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from burnt._patterns import matches, near, warn_unmatched
from burnt.errors import ConfigError
from burnt.inspect.specs import tensors_in


@contextlib.contextmanager
def checkpointed(model: torch.nn.Module, pattern: str | None) -> Iterator[None]:
    """Context manager that checkpoints the modules which a pattern matches, while they train.

    Only the inputs of such a module are stored; its forward pass runs once more in the backward pass, with
    the same random numbers, under the same autocast, and without a second update of running statistics. Paths
    and hooks of modules stay as they are. The pattern is one on paths of modules, as in `burnt.freeze`; None
    checkpoints nothing.

    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    >>> with checkpointed(model, "0"):
    ...     model(torch.ones(1, 2)).sum().backward()
    >>> model[0].weight.grad.shape
    torch.Size([2, 2])
    """
    if pattern is None:
        yield
        return
    modules = select_modules(model, pattern).values()
    with contextlib.ExitStack() as stack:
        for module in modules:
            had_forward = "forward" in module.__dict__
            forward = module.forward
            object.__setattr__(module, "forward", _checkpointed_forward(module, forward))
            if had_forward:
                stack.callback(object.__setattr__, module, "forward", forward)
            else:
                stack.callback(object.__delattr__, module, "forward")
        yield


def select_modules(model: torch.nn.Module, pattern: str) -> dict[str, torch.nn.Module]:
    """Return the outermost modules that a pattern matches, by path; each must have a forward of its own.

    >>> model = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(2, 2)), torch.nn.Linear(2, 2))
    >>> list(select_modules(model, "*"))
    ['0', '1']
    """
    modules = {path: module for path, module in model.named_modules() if path}
    matching = {path for path in modules if matches(pattern, path)}
    chosen = {
        path: module
        for path, module in modules.items()
        if path in matching and path.rpartition(".")[0] not in matching
    }
    if not chosen:
        raise ConfigError(
            "checkpoint_activations= matches no module",
            where="checkpoint_activations",
            expected="a pattern on paths of modules",
            found=repr(pattern),
            hint=near(pattern, modules),
        )
    warn_unmatched(pattern, modules, "module")
    for path, module in chosen.items():
        if type(module).forward is torch.nn.Module.forward:
            raise ConfigError(
                "a module to checkpoint is never called",
                where=f"checkpoint_activations, {path}",
                expected="modules with a forward of their own",
                found=f"a {type(module).__name__}",
                hint=f"did you mean {path + '.*'!r}?",
            )
    return chosen


def _checkpointed_forward(module: torch.nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if not (module.training and torch.is_grad_enabled()):
            return forward(*args, **kwargs)
        if torch.compiler.is_compiling():  # its graphs change buffers once
            return checkpoint(forward, *args, use_reentrant=False, **kwargs)
        again = _SameBuffers(module)
        return checkpoint(
            lambda _, /, *args, **kwargs: forward(*args, **kwargs),
            _on_other_devices(module, args, kwargs),
            *args,
            use_reentrant=False,
            context_fn=lambda: (contextlib.nullcontext(), again),
            **kwargs,
        )

    return call


def _on_other_devices(module: torch.nn.Module, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Return a tensor on each accelerator that a call uses and no positional argument is on.

    torch repeats random numbers and autocast only for the devices of positional arguments.
    """
    known = {tensor.device for tensor in tensors_in(args)}
    used = itertools.chain(tensors_in(kwargs), module.parameters(), module.buffers())
    return list({t.device: t for t in used if t.device not in known and t.device.type != "cpu"}.values())


_Buffers = list[tuple[torch.nn.Module, dict[str, torch.Tensor | None]]]


class _SameBuffers:
    """Context of a second forward pass: it starts from the buffers of the first, and changes copies of them.

    The first pass may have changed what its outputs depend on, such as a running codebook. The
    buffers are replaced, not restored: their versions must stay as autograd has saved them. It can be entered
    more than once, since a graph that is retained repeats the pass for each of its gradients.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        owners = [owner for owner in module.modules() if owner._buffers]
        self._before: _Buffers = [(owner, _copied(owner._buffers)) for owner in owners]
        self._now: _Buffers = []

    def __enter__(self) -> None:
        self._now = [(owner, dict(owner._buffers)) for owner, _ in self._before]
        for owner, buffers in self._before:
            owner._buffers.update(_copied(buffers))

    def __exit__(self, *error: object) -> None:
        for owner, buffers in self._now:
            owner._buffers.update(buffers)


def _copied(buffers: Mapping[str, torch.Tensor | None]) -> dict[str, torch.Tensor | None]:
    return {name: None if buffer is None else buffer.detach().clone() for name, buffer in buffers.items()}
