"""Gradients as values: taken from a loss, added up, scaled, clipped and handed to an optimizer."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from burnt.errors import BurntError

__all__ = ["Gradients"]


class Gradients(Mapping[str, Tensor]):
    """The gradients of a loss, by parameter path. Nothing is kept on the parameters.

    A value like any other: several threads may each take gradients of one module (without mutable buffers) at
    the same time. Every operation returns new Gradients and leaves the old ones alone.

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
        """The gradients of a scalar with respect to a model's trainable parameters.

        Args:
            loss: a scalar, ``[]``, that depends on the parameters.
            model: a module, or parameters by path.
            create_graph: keep a graph of the gradients themselves, for second derivatives.
            retain_graph: keep the graph of the loss for another call; as `create_graph` by default.

        Returns:
            One tensor for each parameter that the loss depends on, in its shape, dtype and device.

        Raises:
            BurntError: the loss is no scalar, or depends on no parameter.
        """
        if loss.dim() != 0 and loss.numel() != 1:
            raise BurntError(
                "gradients need a scalar loss",
                expected="shape ()",
                found=f"shape {tuple(loss.shape)}",
                hint="take its .mean() or .sum()",
            )
        named = dict(model.named_parameters()) if isinstance(model, torch.nn.Module) else model
        wanted = {path: p for path, p in named.items() if p.requires_grad}
        values: tuple[Tensor | None, ...] = (None,) * len(wanted)
        if loss.requires_grad and wanted:
            values = torch.autograd.grad(
                loss,
                list(wanted.values()),
                create_graph=create_graph,
                retain_graph=retain_graph,
                allow_unused=True,
            )
        found = {path: value for path, value in zip(wanted, values, strict=True) if value is not None}
        if not found:
            raise BurntError(
                "the loss depends on no trainable parameter",
                found=f"{len(wanted)} trainable of {len(named)} parameters; a loss "
                + ("with" if loss.requires_grad else "without")
                + " a graph",
                hint="is the model frozen, or another one, or the loss computed under no_grad, or detached?",
            )
        return cls(found)

    def __getitem__(self, path: str) -> Tensor:
        return self._values[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def items(self) -> ItemsView[str, Tensor]:
        """The paths and their gradients; the dict's own view, which is quicker than the one of Mapping."""
        return self._values.items()

    def __repr__(self) -> str:
        shapes = ", ".join(f"{path}: {tuple(value.shape)}" for path, value in self._values.items())
        return f"Gradients({shapes})"

    def map(self, fn: Callable[[Tensor], Tensor]) -> Gradients:
        """The gradients after `fn` on each."""
        return Gradients({path: fn(value) for path, value in self._values.items()})

    def accumulate(self, other: Mapping[str, Tensor]) -> Gradients:
        """The sum with other gradients; a path that only one side has is taken as it is."""
        total = dict(self._values)
        for path, value in other.items():
            total[path] = total[path] + value if path in total else value
        return Gradients(total)

    def scale(self, factor: float | Tensor) -> Gradients:
        """The gradients times a number."""
        return self.map(lambda value: value * factor)

    def norm(self) -> Tensor:
        """The Euclidean norm over all gradients together, a scalar ``[]`` on their device (0 for none).

        As torch's `clip_grad_norm_`: the norm of the norms, with no synchronisation. Differentiable where the
        gradients are.
        """
        values = self._elements()
        if not values:
            return torch.zeros(())
        if any(value.requires_grad for value in values):
            # get_total_norm, faster on many tensors, runs without autograd.
            norms = [torch.linalg.vector_norm(value).to(values[0].device) for value in values]
            total: Tensor = torch.linalg.vector_norm(torch.stack(norms))
        else:
            total = torch.nn.utils.get_total_norm(values)
        return total

    def clip_norm(self, limit: float) -> Gradients:
        """Scaled down, where need be, to a global norm of at most `limit`, as `clip_grad_norm_` does.

        Non-finite gradients stay non-finite; ask `finite()` where that matters.
        """
        factor = (limit / (self.norm() + 1e-6)).clamp(max=1.0)
        return self.map(lambda value: value * factor.to(value.device))

    def clip_value(self, limit: float) -> Gradients:
        """Each element clamped to ``[-limit, limit]``."""
        return self.map(lambda value: value.clamp(-limit, limit))

    def finite(self) -> bool:
        """Whether no element is NaN or infinite. Waits for the device."""
        # A norm may overflow where its gradients do not.
        return bool(torch.isfinite(self.norm())) or all(
            bool(torch.isfinite(value).all()) for value in self._elements()
        )

    def _elements(self) -> list[Tensor]:
        """The gradients, of sparse ones what they store."""
        return [v.coalesce().values() if v.is_sparse else v for v in self._values.values()]

    def to(self, device: torch.device | str, **kwargs: Any) -> Gradients:
        """The gradients on another device."""
        return self.map(lambda value: value.to(device, **kwargs))
