"""Logits that are not computed unless somebody looks at them: a last layer's input, and the layer.

A model that trains with labels makes logits for its loss, which `burnt.kernels.linear_cross_entropy` does not
need. What the last layer returns then is a stand-in that loss functions take (``float``, ``view`` to rows);
anything else that is done with it makes the logits first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from burnt import kernels

__all__ = ["Logits"]


class Logits:
    """The logits of a last layer, made when they are looked at.

    Args:
        x: the layer's input, ``[*, d]``.
        head: the layer.
        shape: of the logits; rows may be joined.
        wide: whether they were cast to float32.
    """

    def __init__(
        self, x: Tensor, head: nn.Linear, shape: Sequence[int] | None = None, *, wide: bool = False
    ) -> None:
        kind = x.device.type
        self._x, self._head, self._wide = x, head, wide
        self._narrow = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        self.shape = torch.Size((*x.shape[:-1], head.out_features) if shape is None else shape)
        self._made: Tensor | None = None

    # --- what loss functions do with them

    @property
    def device(self) -> torch.device:
        """Where they would be."""
        return self._x.device

    @property
    def dtype(self) -> torch.dtype:
        """What they would be of."""
        return torch.float32 if self._wide else self._narrow or self._x.dtype

    def size(self, axis: int | None = None) -> Any:
        """Their shape, or the size of one axis."""
        return self.shape if axis is None else self.shape[axis]

    def dim(self) -> int:
        """How many axes they have."""
        return len(self.shape)

    def float(self) -> Logits | Tensor:
        """The same in float32."""
        if self._made is not None or self._x.dtype == torch.float64:
            return self.tensor().float()
        return self._like(self.shape, wide=True)

    def contiguous(self) -> Logits:
        """The same."""
        return self

    def view(self, *shape: Any) -> Logits | Tensor:
        """The same in another shape: with rows joined, still not computed."""
        sizes = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape
        if self._made is None and sizes in ((-1, self.shape[-1]), tuple(self.shape)):
            rows = self.shape[:-1].numel()
            return self._like((rows, self.shape[-1]) if sizes[0] == -1 else self.shape, wide=self._wide)
        return self.tensor().view(*shape)

    reshape = view

    def cross_entropy(self, target: Tensor, ignore_index: int, reduction: str) -> Tensor:
        """Their loss, ``[]``, without them."""
        x = self._x.reshape(-1, self._x.shape[-1])
        weight, bias = self._parameters()
        if self._narrow is not None:  # as autocast would, which the op does not follow
            x, weight = x.to(self._narrow), weight.to(self._narrow)
            bias = None if bias is None else bias.to(self._narrow)
        with torch.autocast(self.device.type, enabled=False):
            return kernels.linear_cross_entropy(
                x, weight, target.reshape(-1), bias, ignore_index, reduction, in_float32=self._wide
            )

    def _parameters(self) -> tuple[Tensor, Tensor | None]:
        """The layer's weight and bias; whole, where after its call they are shared out among processes."""
        weight, bias = (
            t.full_tensor() if hasattr(t, "full_tensor") else t for t in (self._head.weight, self._head.bias)
        )
        return weight, bias

    def _like(self, shape: Sequence[int], *, wide: bool) -> Logits:
        made = Logits(self._x, self._head, shape, wide=wide)
        made._narrow = self._narrow
        return made

    # --- what anybody else does

    def tensor(self) -> Tensor:
        """The logits."""
        if self._made is None:
            kind = self.device.type
            context = (
                torch.autocast(kind, enabled=False)
                if self._narrow is None
                else torch.autocast(kind, dtype=self._narrow)
            )
            with context if torch.amp.is_autocast_available(kind) else contextlib.nullcontext():
                made = F.linear(self._x, *self._parameters())
            self._made = (made.float() if self._wide else made).view(self.shape)
        return self._made

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        args, kwargs = pytree.tree_map_only(cls, cls.tensor, (tuple(args), dict(kwargs or {})))
        return function(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.tensor(), name)

    def __repr__(self) -> str:
        return f"logits {list(self.shape)} of {self.dtype}, not looked at yet"


def _forwarded(name: str) -> Callable[..., Any]:
    def call(self: Logits, *args: Any) -> Any:
        made = getattr(self.tensor(), name)(*pytree.tree_map_only(Logits, Logits.tensor, args))
        return made

    return call


# Operators are looked up in the class.
for _name in (
    *(f"__{side}{op}__" for op in ("add", "sub", "mul", "truediv", "pow", "matmul") for side in ("", "r")),
    "__neg__", "__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__", "__getitem__", "__setitem__",
    "__len__", "__iter__", "__array__", "__float__",
):  # fmt: skip
    setattr(Logits, _name, _forwarded(_name))
Logits.__hash__ = object.__hash__  # type: ignore[method-assign]
