"""Gradients as values: compute them from a loss, add, scale and clip them, and pass them to an optimizer."""

from __future__ import annotations

import sys
from collections.abc import Callable, ItemsView, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from burnt import _torch
from burnt.errors import BurntError, UnsupportedError

BACKWARD_LOOP = (
    "to train in several processes, write the loop: compute the loss with the DistributedDataParallel (DDP) "
    "or fully_shard module, call loss.backward(), and step an optimizer of torch.optim"
)
"""How to train with synchronized gradients, for messages."""


def refuse_parallel(model: torch.nn.Module) -> None:
    """Refuse a model with a parallel wrapper of torch, whose gradients only ``backward()`` synchronizes."""
    kinds: tuple[type, ...] = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)
    if (fsdp := sys.modules.get("torch.distributed.fsdp")) is not None:
        kinds += (fsdp.FullyShardedDataParallel, fsdp.FSDPModule)
    kinds += _torch.replicated_kinds()
    if not any(isinstance(module, kinds) for module in model.modules()):
        return
    path, found = next((path, module) for path, module in model.named_modules() if isinstance(module, kinds))
    name = next(kind.__name__ for kind in kinds if isinstance(found, kind))
    raise UnsupportedError(
        f"burnt computes gradients without the hooks by which {name} synchronizes them",
        where=".".join(filter(None, (type(model).__name__, path))),
        expected="the module without this wrapper, in one process",
        found=f"a module of {'fully_shard' if name == 'FSDPModule' else name}",
        hint=BACKWARD_LOOP,
    )


def summed_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which tensors of a dtype are added up: float32 for those of 16 bits."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


class Gradients(Mapping[str, Tensor]):
    """The gradients of a loss, by parameter path. The parameters' ``grad`` is not used.

    Several threads may compute gradients of one module (without mutable buffers) at the same time. Every
    operation returns new Gradients and leaves the old ones unchanged.

    >>> import torch
    >>> from burnt import Gradients, nn
    >>> model = nn.Linear(2, 1)
    >>> grads = Gradients.of(model(torch.ones(3, 2)).sum(), model)
    >>> grads["weight"], float(grads.norm())
    (tensor([[3., 3.]]), 5.196152...)
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Tensor]) -> None:
        self._values = dict(values)

    @classmethod
    def of(
        cls,
        loss: Tensor,
        model: torch.nn.Module | Mapping[str, Tensor],
        *,
        create_graph: bool = False,
        retain_graph: bool | None = None,
    ) -> Gradients:
        """Compute the gradients of a scalar with respect to a model's trainable parameters.

        Args:
            loss: a scalar, ``[]``, that depends on the parameters.
            model: a module, or parameters by path.
            create_graph: build a graph of the gradients, for second derivatives.
            retain_graph: keep the graph of the loss for another call; as `create_graph` by default.

        Returns:
            One tensor per parameter that the loss depends on, with its shape, dtype and device.

        Raises:
            BurntError: the loss is not a scalar, or depends on no trainable parameter.
            UnsupportedError: the model contains DistributedDataParallel or the like, whose gradients only
                ``loss.backward()`` synchronizes.
        """
        if isinstance(model, torch.nn.Module):
            refuse_parallel(model)
        if not isinstance(loss, Tensor):
            raise BurntError(
                "gradients need a loss with a graph",
                expected="a tensor of shape ()",
                found=type(loss).__name__,
                hint="return the loss itself, not its .item() or float(loss)",
            )
        if loss.dim() != 0 and loss.numel() != 1:
            raise BurntError(
                "gradients need a scalar loss",
                expected="shape ()",
                found=f"shape {tuple(loss.shape)}",
                hint="use its .mean() or .sum()",
            )
        named = dict(model.named_parameters()) if isinstance(model, torch.nn.Module) else model
        trainable = {path: p for path, p in named.items() if p.requires_grad}
        values: tuple[Tensor | None, ...] = (None,) * len(trainable)
        if loss.requires_grad and trainable:
            values = torch.autograd.grad(
                loss,
                list(trainable.values()),
                create_graph=create_graph,
                retain_graph=retain_graph,
                allow_unused=True,
            )
        by_path = {path: value for path, value in zip(trainable, values, strict=True) if value is not None}
        if not by_path:
            raise BurntError(
                "the loss depends on no trainable parameter",
                found=f"{len(trainable)} trainable of {len(named)} parameters; a loss "
                + ("with" if loss.requires_grad else "without")
                + " a graph",
                hint="is the model frozen or not the one that computed the loss, or is the loss detached?",
            )
        return cls(by_path)

    def __getitem__(self, path: str) -> Tensor:
        return self._values[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def items(self) -> ItemsView[str, Tensor]:
        """Return the paths and their gradients, as the dict's own view, which is faster than Mapping's."""
        return self._values.items()

    def __repr__(self) -> str:
        shapes = ", ".join(f"{path}: {tuple(value.shape)}" for path, value in self._values.items())
        return f"Gradients({shapes})"

    def map(self, fn: Callable[[Tensor], Tensor]) -> Gradients:
        """Apply `fn` to each gradient."""
        return Gradients({path: fn(value) for path, value in self._values.items()})

    def accumulate(self, other: Mapping[str, Tensor]) -> Gradients:
        """Add other gradients; a path that only one side has is kept unchanged."""
        total = dict(self._values)
        for path, value in other.items():
            total[path] = total[path] + value if path in total else value
        return Gradients(total)

    def scale(self, factor: float | Tensor) -> Gradients:
        """Multiply the gradients by a number."""
        if isinstance(factor, Tensor):
            return self.map(lambda value: value * factor.to(value.device))
        return self.map(lambda value: value * factor)

    def norm(self) -> Tensor:
        """Return the Euclidean norm of all gradients together, a scalar ``[]`` on their device (0 if empty).

        As in torch's `clip_grad_norm_`, it is the norm of the norms, without synchronisation.
        Differentiable if the gradients are.
        """
        values = self._dense_values()
        if not values:
            return torch.zeros(())
        if any(value.requires_grad for value in values):
            # get_total_norm is faster for many tensors, but runs without autograd.
            norms = [torch.linalg.vector_norm(value).to(values[0].device) for value in values]
            total: Tensor = torch.linalg.vector_norm(torch.stack(norms))
        else:
            total = torch.nn.utils.get_total_norm(values)
        return total

    def clip_norm(self, limit: float, norm: Tensor | None = None) -> Gradients:
        """Scale the gradients down to a global norm of at most `limit`, as `clip_grad_norm_` does.

        `norm` is theirs, where it is known, or that of the whole gradients that these are a part of.
        Non-finite gradients stay non-finite; check them with `finite()`.
        """
        factor = (limit / ((self.norm() if norm is None else norm) + 1e-6)).clamp(max=1.0)
        return self.map(lambda value: value * factor.to(value.device))

    def clip_value(self, limit: float) -> Gradients:
        """Clamp each element to ``[-limit, limit]``."""

        def clamp(value: Tensor) -> Tensor:
            if not value.is_sparse:
                return value.clamp(-limit, limit)
            value = value.coalesce()
            clamped = value.values().clamp(-limit, limit)
            return torch.sparse_coo_tensor(value.indices(), clamped, value.shape, is_coalesced=True)

        return self.map(clamp)

    def finite(self) -> bool:
        """Whether all elements are finite. Synchronises with the device."""
        # The norm may overflow although all gradients are finite.
        return bool(torch.isfinite(self.norm())) or all(
            bool(torch.isfinite(value).all()) for value in self._dense_values()
        )

    def _dense_values(self) -> list[Tensor]:
        """Return the gradients; for sparse ones, their stored values."""
        return [v.coalesce().values() if v.is_sparse else v for v in self._values.values()]

    def to(self, device: torch.device | str, **kwargs: Any) -> Gradients:
        """Move the gradients to another device."""
        return self.map(lambda value: value.to(device, **kwargs))
