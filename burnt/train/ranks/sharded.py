"""ShardedRanks, the strategy ``"fsdp"``: each rank holds a part of each parameter, by torch's `fully_shard`.

`fully_shard` gathers the parameters of a block for its forward and backward pass, and sums the gradients in
the backward pass. The optimizer steps the local parts: tensors of their own, which know of no other rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from burnt.errors import RankError, UnsupportedError
from burnt.gradients import Gradients
from burnt.optim import Optimizer, OptimizerRecord
from burnt.record import Record, record_of
from burnt.train.learner import Learner
from burnt.train.ranks.ranks import Ranks, trainable


class ShardedRanks(Ranks):
    """The strategy ``"fsdp"``: each rank holds a part of each parameter, its gradient and optimizer state.

    What is sharded by itself, and so gathered at a time, are the layers in the model's ``ModuleList`` and
    ``Sequential`` containers, and then the model.

    Args:
        timeout: as in `Ranks`.
    """

    name = "fsdp"
    has_replicas = False

    def prepare(self, learner: Learner, state: Mapping[str, Any]) -> None:
        """Give all ranks rank 0's values, and keep this rank's part of them."""
        super().prepare(learner, state)
        model, optimizer = learner.model, learner.optimizer
        _check(learner)
        record = optimizer.into_record()
        whole = {path: param.shape for path, param in model.named_parameters()}
        self._rows = {path: shape[0] for path, shape in whole.items()}
        _shard(model, init_device_mesh(self.device.type, (self.size,)))
        self.is_joint = True
        tensors = {
            key: self._own_part(tensor) if _path(key, whole, tensor) is not None else tensor
            for key, tensor in record.tensors.items()
        }
        optimizer.load_record(OptimizerRecord(record.optimizer, record.options, tensors))

    def params(self, model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
        """Return the local parts of the parameters, which share memory with the model's."""
        self.reshard(model)
        return {
            path: torch.nn.Parameter(_local(param), requires_grad=param.requires_grad)
            for path, param in model.named_parameters()
        }

    def reshard(self, model: torch.nn.Module) -> None:
        """Drop the whole parameters that a forward pass without a backward pass has kept."""
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def _differentiated(self, loss: Tensor, params: Mapping[str, Tensor]) -> Gradients:
        torch.autograd.backward(loss * self.size)  # fully_shard takes the mean over the ranks
        found = {}
        for path, param in self._model.named_parameters():
            if param.grad is not None:
                gradient: Any = param.grad
                found[path] = gradient.to_local()
                param.grad = None
        return Gradients(found)

    def _reduced(
        self, local: Gradients | None, params: Mapping[str, Tensor], owners: list[float], weight: float
    ) -> Gradients:
        some = zip(trainable(params), owners, strict=True)
        if (path := next((path for path, owner in some if 0 < owner < self.size), None)) is not None:
            raise UnsupportedError(
                "a parameter has a gradient on some ranks only, and fully_shard sums those of all",
                where=path,
                expected="a model that uses the same parameters for each batch",
                hint='strategy="ddp"',
            )
        return Gradients({}) if local is None else local.scale(weight)

    def total_norm(self, gradients: Gradients) -> Tensor:
        """Return the norm of the gradients of all ranks' parts."""
        norm = gradients.norm()
        square = norm.double().square().cpu()
        self._together(dist.all_reduce, square)
        return square.sqrt().to(norm)

    def all_finite(self, gradients: Gradients) -> bool:
        """Whether the tensors of all ranks' parts are finite."""
        return not self.totals([float(not gradients.finite())])[0]

    def record(self, model: torch.nn.Module) -> Record:
        """Return the record of the whole model; each tensor is gathered by itself, and kept by rank 0."""
        self.reshard(model)
        config = getattr(model, "_built_by", None)
        return record_of(model, config=config, whole=lambda own: self._gathered(own.to_local(), len(own)))

    def optimizer_record(self, optimizer: Optimizer, params: Mapping[str, Tensor]) -> OptimizerRecord:
        """Return the state of the whole optimizer."""
        record = optimizer.into_record()
        local = {path: param.shape for path, param in params.items()}
        tensors = {
            key: tensor
            if (path := _path(key, local, tensor)) is None
            else self._gathered(tensor, self._rows[path])
            for key, tensor in record.tensors.items()
        }
        return OptimizerRecord(record.optimizer, record.options, tensors)

    def load_into(self, model: torch.nn.Module, record: Record) -> None:
        """Load the whole values of a record into the local parts of a model."""
        self.reshard(model)
        with torch.no_grad():
            for path, tensor in [*model.named_parameters(), *model.named_buffers()]:
                if path in record.tensors:
                    value = record.tensors[path]
                    if isinstance(tensor, DTensor):
                        _local(tensor).copy_(self._own_part(value))
                    else:
                        tensor.copy_(value)

    def _own_part(self, whole: Tensor) -> Tensor:
        """Return this rank's rows, as torch.chunk divides them; of the last ranks there may be none."""
        rows = -(-len(whole) // self.size)
        return whole[rows * self.rank : rows * (self.rank + 1)].clone()

    def _gathered(self, part: Tensor, rows: int) -> Tensor:
        """Return a whole tensor, in the host's memory of rank 0; the other ranks get no rows."""
        padded = part.new_zeros((-(-rows // self.size), *part.shape[1:]))
        padded[: len(part)] = part
        parts = None if self.rank else [torch.empty_like(padded) for _ in range(self.size)]
        self._together(dist.gather, padded, parts)
        return padded[:0] if parts is None else torch.cat([one.cpu() for one in parts])[:rows]


def _check(learner: Learner) -> None:
    """Raise if a model or an optimizer cannot be sharded."""
    if learner.optimizer.needs_closure or not learner.optimizer.is_elementwise:
        raise UnsupportedError(
            f"{type(learner.optimizer).__name__} needs whole parameters, of which a rank has a part",
            where='strategy="fsdp"',
            expected="an optimizer that computes each element by itself, such as AdamW",
            found=repr(learner.optimizer),
            hint='strategy="ddp"',
        )
    scalar = next((path for path, param in learner.model.named_parameters() if not param.dim()), None)
    if scalar is not None:
        raise RankError(
            "a parameter without an axis cannot be sharded",
            where=scalar,
            expected="at least one axis: torch.zeros(1)",
            found="shape ()",
        )


def _shard(model: torch.nn.Module, mesh: DeviceMesh) -> None:
    """Move to the device and shard the layers in containers that share no parameter, then the rest."""
    containers = (torch.nn.ModuleList, torch.nn.Sequential)
    owners = Counter(id(param) for module in model.modules() for param in module.parameters(recurse=False))
    layers: list[torch.nn.Module] = []
    for container in filter(lambda module: isinstance(module, containers), model.modules()):
        for layer in container.children():
            params = list(layer.parameters())
            if params and not isinstance(layer, containers) and all(owners[id(p)] == 1 for p in params):
                layers.append(layer)
    for module in [*reversed(layers), model]:  # inner ones first: fully_shard leaves their parameters alone
        if not isinstance(module, FSDPModule):
            kind = type(module)
            fully_shard(module, mesh=mesh)
            for name in ("__module__", "__name__", "__qualname__"):  # of the user's class, for what is shown
                setattr(type(module), name, getattr(kind, name))


def _local(param: Tensor) -> Tensor:
    tensor: Any = param
    local: Tensor = tensor.to_local() if isinstance(param, DTensor) else param
    return local.detach()


def _path(key: str, shapes: Mapping[str, torch.Size], tensor: Tensor) -> str | None:
    """Return the path of the parameter whose state this is, element by element; None if it is none."""
    return next((part for part in key.split("/") if shapes.get(part) == tensor.shape), None)
