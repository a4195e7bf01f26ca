"""What changes in a model besides its parameters: buffers, copied or saved apart, and static fields."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from burnt._torch import version_of
from burnt.record import constants_of, static_fields_of
from burnt.train.placement import device_of

ALIGNMENT = 64
"""The bytes to which torch's allocators align new tensors."""


class BufferCopies:
    """Copies of a model's buffers, to undo what forward passes change: in place, or by assigning others.

    >>> model = torch.nn.Linear(1, 1)
    >>> model.register_buffer("calls", torch.zeros(()))
    >>> copies = BufferCopies(model)
    >>> copies.take()
    >>> model.calls = model.calls + 1
    >>> copies.restore()
    >>> model.calls
    tensor(0.)
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._owners = [module for module in model.modules() if module._buffers]
        self._copies: list[tuple[torch.nn.Module, str, Tensor | None, Tensor | None]] = []

    def take(self) -> None:
        """Copy the buffers."""
        self._copies = [
            (owner, name, buffer, None if buffer is None else buffer.detach().clone())
            for owner in self._owners
            for name, buffer in owner._buffers.items()
        ]

    def restore(self) -> None:
        """Put the buffers back as they were when they were copied: the same tensors with the same values."""
        with torch.no_grad():
            for owner, name, buffer, copy in self._copies:
                if buffer is not None and copy is not None:
                    buffer.copy_(copy)
                owner._buffers[name] = buffer


class TransientBuffers:
    """The buffers of a model that are not in its state dict, and whether they changed in a training.

    Tables that are computed once, such as those of rotary encodings, do not, and need not be saved. `changed`
    are the paths of those that changed before, in the training that is resumed.

    >>> model = torch.nn.Linear(1, 1)
    >>> model.register_buffer("calls", torch.zeros(()), persistent=False)
    >>> buffers = TransientBuffers(model)
    >>> _ = model.calls.add_(1)
    >>> buffers.changed()
    {'calls': tensor(1.)}
    """

    def __init__(self, model: torch.nn.Module, changed: Collection[str] = ()) -> None:
        self._model = model
        self._at_start = {
            path: (buffer, version_of(buffer))
            for path, buffer in model.named_buffers(remove_duplicate=False)
            if path not in changed
        }
        self._changed = set(changed)

    def changed(self) -> dict[str, Tensor]:
        """Return those that were changed in place or assigned anew since the start, by path."""
        now = dict(self._model.named_buffers(remove_duplicate=False))
        unsaved = now.keys() - self._model.state_dict().keys()
        for path in unsaved - self._changed:
            buffer, version = self._at_start.get(path, (None, 0))
            if now[path] is not buffer or version_of(buffer) != version:
                self._changed.add(path)
        return {path: now[path] for path in sorted(self._changed) if path in now}


def load_buffers(
    model: torch.nn.Module, buffers: Mapping[str, Tensor], strides: Mapping[str, Sequence[int]] | None = None
) -> None:
    """Restore buffers by path, and how buffers lay in memory; unknown paths are left out.

    Values are copied into the model's own buffer, which may be a view or shared by other modules. It is
    replaced by a new one if it lies in memory in another way, or if what shares it was not saved with it:
    then the training had assigned another tensor. `strides` are of all buffers that are not contiguous; None
    if unknown.
    """

    def strides_of(path: str, value: Tensor) -> tuple[int, ...]:
        return tuple((strides or {}).get(path, torch.empty(value.shape, device="meta").stride()))

    now = dict(model.named_buffers(remove_duplicate=False))
    sharing: dict[int, set[str]] = {}
    for path, own in now.items():
        sharing.setdefault(id(own), set()).add(path)
    for prefix, owner in model.named_modules():  # those that were None when the model was built
        for name in [name for name, own in owner._buffers.items() if own is None]:
            path = f"{prefix}.{name}" if prefix else name
            if path in buffers:
                device = device_of(model if next(owner.parameters(), None) is None else owner)
                owner._buffers[name] = allocated(buffers[path], device, strides_of(path, buffers[path]))
    replaced: dict[int, Tensor] = {}
    for path, own in now.items():
        value = buffers.get(path, own)
        if own.layout is not torch.strided or (value is own and strides is None):
            continue
        stride = strides_of(path, value)
        lies_alike = (own.shape, own.dtype, own.stride()) == (value.shape, value.dtype, stride)
        if lies_alike and (value is own or torch.equal(own, value.to(own.device))):
            continue
        is_expanded = any(step == 0 and size > 1 for step, size in zip(stride, value.shape, strict=True))
        is_whole = sharing[id(own)] <= buffers.keys()
        if lies_alike and is_whole and not is_expanded and not own.data_ptr() % ALIGNMENT:
            own.detach().copy_(value)
            continue
        new = replaced.get(id(own))
        if new is None or new.stride() != stride or not torch.equal(new, value.to(new.device)):
            new = replaced[id(own)] = allocated(value, own.device, stride)
        module, _, name = path.rpartition(".")
        setattr(model.get_submodule(module), name, new)


def allocated(value: Tensor, device: torch.device, stride: Sequence[int]) -> Tensor:
    """Return a copy in memory of its own, with these strides and aligned as torch aligns new tensors.

    A tensor of a file begins at any address, and sums over it may be rounded differently.
    """
    copy = torch.empty_strided(value.shape, stride, dtype=value.dtype, device=device)
    part = tuple(slice(1 if step == 0 else None) for step in stride)  # of expanded axes, one element
    copy[part].copy_(value[part])
    return copy


def field_texts(model: torch.nn.Module) -> dict[str, str]:
    """Return the static fields and constants of a model's modules by path, as texts to compare."""
    return {
        f"{path}.{name}" if path else name: json.dumps(value, default=repr, skipkeys=True)
        for path, fields in [*static_fields_of(model).items(), *constants_of(model).items()]
        for name, value in fields.items()
    }
