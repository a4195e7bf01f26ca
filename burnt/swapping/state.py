"""Run a user's module and leave no trace: everything that a call may change is restored afterwards."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from burnt._snapshot import Snapshot
from burnt.inspect.meta import preserved_random_states

_CONTAINERS = (list, tuple, dict, OrderedDict, defaultdict, set, deque)
# What every module has: these attributes are torch's own, and restored one by one or not at all.
_MODULE_ATTRIBUTES = frozenset({*vars(nn.Module()), "_compiled_call_impl"})
_OWN_PREFIX = "_burnt"  # of attributes that `swap` sets


@contextmanager
def preserved_state(module: nn.Module, *, on_host: bool = False) -> Iterator[None]:
    """Context that restores a module's state and the random generators, also if the module raises.

    Restored are values and shapes of parameters and buffers, training modes, and attributes: tensors,
    containers, `torch.Generator` objects, and values of other types by reference. What a call adds is
    removed. Tensors are compared by value: torch's version counter misses what `F.batch_norm` does to running
    statistics, and ``.data``. Not restored are attributes of torch's own modules, among them wrappers for
    distributed training, which manage their memory themselves, and what lazy modules initialize. With
    `on_host`, copies of tensors are in host memory.
    """
    with torch.inference_mode(False), torch.no_grad():
        state = _State(module, on_host)
    with preserved_random_states():
        try:
            yield
        finally:
            with torch.inference_mode(False), torch.no_grad():
                state.restore()


class _State:
    """A snapshot of a module and of all modules in it."""

    def __init__(self, module: nn.Module, on_host: bool) -> None:
        self.on_host = on_host
        self.containers = Snapshot()  # the user's, and the tables of buffers
        self.attributes = Snapshot(ignores=_is_internal)
        self.modules: list[tuple[nn.Module, bool]] = []  # with their training modes
        self.tables: list[tuple[dict[str, Any], set[str]]] = []  # parameters and modules, with their names
        self.generators: list[tuple[torch.Generator, Tensor]] = []
        self.tensors: list[_TensorState] = []
        self.memory: dict[int, _Memory] = {}  # by address, since tensors may share memory
        self._seen: set[int] = set()
        self._add(module)

    def restore(self) -> None:
        """Make the module as it was."""
        for module, training in self.modules:
            module.training = training
        for table, before in self.tables:
            for name in table.keys() - before:
                del table[name]
        self.containers.restore()
        self.attributes.restore()
        for generator, state in self.generators:
            generator.set_state(state)
        for tensor in self.tensors:
            tensor.restore()
        for memory in self.memory.values():
            memory.restore()

    def _add(self, root: object) -> None:
        """Take a snapshot of a value and of everything in it."""
        pending: list[Any] = [root]  # a list rather than recursion: modules may be nested deeply
        while pending:
            value = pending.pop()
            if id(value) in self._seen:
                continue
            if isinstance(value, nn.Module):
                pending += self._add_module(value)
            elif isinstance(value, Tensor):
                self._add_tensor(value)
            elif isinstance(value, torch.Generator):
                self.generators.append((value, value.get_state()))
            elif type(value) in _CONTAINERS:
                if not isinstance(value, tuple):
                    self.containers.add(value)
                pending += value.values() if isinstance(value, dict) else value
            else:
                continue
            self._seen.add(id(value))

    def _add_module(self, module: nn.Module) -> list[Any]:
        """Take a snapshot of what a module holds, by reference, and return it."""
        self.modules.append((module, module.training))
        if isinstance(module, torch.jit.ScriptModule):  # its tables are C++ objects
            own = module.parameters(recurse=False), module.buffers(recurse=False), module.children()
            return [value for values in own for value in values]
        self.containers.add(module._buffers)
        self.containers.add(module._non_persistent_buffers_set)
        held = [*module._parameters.values(), *module._buffers.values(), *module._modules.values()]
        if type(module).__module__.partition(".")[0] != "torch":
            # Parameters are not bound again: FSDP exchanges them around a call, and keeps count of it.
            self.tables += [(table, {*table}) for table in (module._parameters, module._modules)]
            self.attributes.add(vars(module))
            held += [value for name, value in vars(module).items() if not _is_internal(name)]
        return held

    def _add_tensor(self, tensor: Tensor) -> None:
        if is_lazy(tensor):
            return
        if hasattr(tensor, "__tensor_flatten__"):  # a wrapper, such as a DTensor
            names, _ = tensor.__tensor_flatten__()
            for name in names:
                self._add(getattr(tensor, name))
            return
        state = _TensorState(tensor)
        self.tensors.append(state)
        if state.storage is not None and state.storage.nbytes() and state.storage.device.type != "meta":
            address = state.storage.data_ptr()
            if address not in self.memory:
                self.memory[address] = _Memory(state.storage, self.on_host)
            self.memory[address].tensors.append(tensor)


def _is_internal(name: str) -> bool:
    return name in _MODULE_ATTRIBUTES or name.startswith(_OWN_PREFIX)


class _TensorState:
    """The memory and shape of a tensor, which ``resize_``, ``set_`` and assignments to ``.data`` change."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.alias = tensor.detach()
        self.storage = _storage_of(tensor)
        # Without one storage (sparse, oneDNN), in-place changes are left to the version counter.
        self.copy = tensor.detach().clone() if self.storage is None else None
        self.version = 0 if tensor.is_inference() else tensor._version

    def restore(self) -> None:
        tensor = self.tensor
        if self.copy is not None:
            if not tensor.is_inference() and tensor._version != self.version:
                tensor.copy_(self.copy)  # not a detached sparse tensor, which would become another one
        elif _layout_of(tensor) != _layout_of(self.alias):
            tensor.data = self.alias


class _Memory:
    """The bytes of a storage, whatever tensors are on it: expanded, overlapping, of any dtype."""

    def __init__(self, storage: torch.UntypedStorage, on_host: bool) -> None:
        self.storage = storage
        self.tensors: list[Tensor] = []
        self.before = self._bytes().to("cpu", copy=True) if on_host else self._bytes().clone()

    def restore(self) -> None:
        if self.storage.nbytes() < self.before.numel():
            return  # freed, as FSDP does between calls
        now = self._bytes()[: self.before.numel()]
        before = self.before.to(now.device)
        if not torch.equal(now, before):
            now.copy_(before)
            # Packed weights and graphs of autograd must learn of it.
            torch.autograd.graph.increment_version(t for t in self.tensors if not t.is_inference())

    def _bytes(self) -> Tensor:
        return torch.empty(0, dtype=torch.uint8, device=self.storage.device).set_(self.storage)


def _storage_of(tensor: Tensor) -> torch.UntypedStorage | None:
    """Return a tensor's storage; None if it has no single one."""
    try:
        storage = tensor.untyped_storage()
        storage.data_ptr()
    except RuntimeError:  # or NotImplementedError, which is one
        return None
    return storage


def _layout_of(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.untyped_storage().data_ptr(), tensor.shape, tensor.stride(), tensor.storage_offset()
