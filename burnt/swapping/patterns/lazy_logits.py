"""Logits that are not computed unless somebody looks at them: a last layer's input, and its parameters.

A model that trains with labels makes logits for its loss, which `burnt.kernels.linear_cross_entropy` does not
need. What the last layer returns then is a stand-in that loss functions take (``float``, ``view`` to rows);
anything else that is done with it makes the logits first, with their gradients, from what they were to be
made of; where that has changed since (an optimizer's step), it is an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from burnt import _torch, kernels
from burnt.errors import SwapError
from burnt.kernels.interface.autocast import autocast_dtype

__all__ = ["Logits"]


class Logits:
    """The logits of a last layer, made when they are looked at.

    Args:
        x: the layer's input, ``[*, d]``.
        head: the layer, whose parameters are taken as they are now.
    """

    def __init__(self, x: Tensor, head: nn.Linear) -> None:
        self._given: tuple[Tensor, Tensor, Tensor | None] = x, head.weight, head.bias
        self._versions = [_torch.version_of(t) for t in self._given if t is not None]
        self._narrow = autocast_dtype(x.device.type)
        self._base: Logits | None = None  # what these are a view of
        self._wide = False
        self.shape = torch.Size((*x.shape[:-1], head.out_features))
        self._made: Tensor | None = None

    def _like(self, shape: Sequence[int], *, wide: bool) -> Logits:
        made: Logits = object.__new__(type(self))
        base = self if self._base is None else self._base
        made.__dict__.update(self.__dict__, _base=base, _made=None, _wide=wide, shape=torch.Size(shape))
        return made

    @property
    def _is_made(self) -> bool:
        return (self if self._base is None else self._base)._made is not None

    # --- what loss functions do with them

    @property
    def device(self) -> torch.device:
        """Where they would be."""
        return self._given[0].device

    @property
    def dtype(self) -> torch.dtype:
        """What they would be of."""
        return torch.float32 if self._wide else self._narrow or self._given[0].dtype

    def size(self, dim: int | None = None) -> Any:
        """Their shape, or the size of one axis."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """How many axes they have."""
        return len(self.shape)

    def float(self, **kwargs: Any) -> Logits | Tensor:
        """The same in float32."""
        if kwargs or self._is_made or self.dtype == torch.float64:
            return self.tensor().float(**kwargs)
        return self._like(self.shape, wide=True)

    def contiguous(self, **kwargs: Any) -> Logits | Tensor:
        """The same."""
        return self.tensor().contiguous(**kwargs) if kwargs else self

    def view(self, *shape: Any, **kwargs: Any) -> Logits | Tensor:
        """The same in another shape: with rows joined, still not computed."""
        sizes = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], list | tuple) else shape
        if not kwargs and not self._is_made and sizes in ((-1, self.shape[-1]), tuple(self.shape)):
            rows = self.shape[:-1].numel()
            return self._like((rows, self.shape[-1]) if sizes[0] == -1 else self.shape, wide=self._wide)
        return self.tensor().view(*shape, **kwargs)

    def reshape(self, *shape: Any, **kwargs: Any) -> Logits | Tensor:
        """As `view`."""
        return self.tensor().reshape(*shape, **kwargs) if kwargs else self.view(*shape)

    def cross_entropy(self, target: Tensor, ignore_index: int, reduction: str) -> Tensor:
        """Their loss, ``[]``, without them."""
        x, weight, bias = self._given
        wide = self._wide or autocast_dtype(self.device.type) is not None
        with self._as_before():
            loss = kernels.linear_cross_entropy(
                x.reshape(-1, x.shape[-1]), weight, target.reshape(-1), bias, ignore_index, reduction,
                in_float32=wide,
            )  # fmt: skip
        return loss if wide else loss.to(self.dtype)

    # --- what anybody else does

    def tensor(self) -> Tensor:
        """The logits.

        Raises:
            SwapError: what they are made of is not there any more.
        """
        if self._base is not None:
            made = self._base.tensor()
            if self._wide and made.dtype != torch.float32:
                # A copy in eager too, and one to all who look.
                self._made = made.float() if self._made is None else self._made.view_as(made)
                made = self._made
            return made.view(self.shape)
        if self._made is None:
            self._made = self._computed()
        return self._made

    def _computed(self) -> Tensor:
        x, weight, bias = self._given
        versions = [_torch.version_of(t) for t in self._given if t is not None]
        if versions != self._versions or weight.untyped_storage().size() == 0:
            raise SwapError(
                "the logits were not looked at before what they are made of was changed",
                expected="a look before the optimizer's step, and before sharded parameters are put away",
                found=f"other values of the last layer's {list(weight.shape)} weight, or of its input",
                hint="swap without defer_logits=True where logits are wanted later",
            )
        # There were gradients when they were to be made; who looks first does not decide about them.
        with torch.inference_mode(False), torch.enable_grad(), self._as_before():
            return F.linear(x, weight, bias)

    def _as_before(self) -> contextlib.AbstractContextManager[object]:
        """Autocast as it was when they were to be made."""
        kind = self.device.type
        if not torch.amp.is_autocast_available(kind):
            return contextlib.nullcontext()
        return torch.autocast(kind, dtype=self._narrow, enabled=self._narrow is not None)

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
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.tensor(), name)

    def __reduce__(self) -> Any:
        return _same, (self.tensor(),)  # copied or saved, they are a tensor

    def __repr__(self) -> str:
        return f"logits {list(self.shape)} of {self.dtype}, not looked at yet"


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _forwarded(name: str) -> Callable[..., Any]:
    def call(self: Logits, *args: Any) -> Any:
        return getattr(self.tensor(), name)(*pytree.tree_map_only(Logits, Logits.tensor, args))

    return call


_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor")
_OTHERS = """
    neg pos abs invert lt le gt ge eq ne getitem setitem len iter array float int bool index contains
    iadd isub imul itruediv
"""
# Operators are looked up in the class.
for _name in (*(side + op for op in _BINARY for side in ("", "r")), *_OTHERS.split()):
    setattr(Logits, f"__{_name}__", _forwarded(f"__{_name}__"))
Logits.__hash__ = object.__hash__  # type: ignore[method-assign]
