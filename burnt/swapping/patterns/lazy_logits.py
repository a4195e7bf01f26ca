"""Lazy logits: the last layer's input and parameters, from which the logits are computed when they are read.

A model that trains with labels computes logits for its loss, which `burnt.kernels.linear_cross_entropy` does
not need. So the last layer returns an object that supports what loss functions do (``float``, ``view`` as
rows). Any other operation first computes the logits, with their gradients. If the layer's input or parameters
have changed by then (an optimizer's step), that is an error.
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


class Logits:
    """The logits of a last layer for its input ``[*, d]``, computed when they are first read.

    The layer's parameters must not change before.
    """

    def __init__(self, x: Tensor, head: nn.Linear) -> None:
        self._operands: tuple[Tensor, Tensor, Tensor | None] = x, head.weight, head.bias
        self._versions = [_torch.version_of(t) for t in self._operands if t is not None]
        self._autocast_dtype = autocast_dtype(x.device.type)
        self._base: Logits | None = None  # what these are a view of
        self._in_float32 = False
        self.shape = torch.Size((*x.shape[:-1], head.out_features))
        self._tensor: Tensor | None = None

    def _view_as(self, shape: Sequence[int], *, in_float32: bool) -> Logits:
        view: Logits = object.__new__(type(self))
        base = self if self._base is None else self._base
        view.__dict__.update(
            self.__dict__, _base=base, _tensor=None, _in_float32=in_float32, shape=torch.Size(shape)
        )
        return view

    @property
    def _is_computed(self) -> bool:
        return (self if self._base is None else self._base)._tensor is not None

    # --- used by loss functions, without computing the logits

    @property
    def device(self) -> torch.device:
        """The device of the logits."""
        return self._operands[0].device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the logits."""
        return torch.float32 if self._in_float32 else self._autocast_dtype or self._operands[0].dtype

    def size(self, dim: int | None = None) -> Any:
        """Return the shape, or the size of one axis."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """Return the number of axes."""
        return len(self.shape)

    def float(self, **kwargs: Any) -> Logits | Tensor:
        """Return the logits in float32, still lazy."""
        if kwargs or self._is_computed or self.dtype == torch.float64:
            return self.tensor().float(**kwargs)
        return self._view_as(self.shape, in_float32=True)

    def contiguous(self, **kwargs: Any) -> Logits | Tensor:
        """Return the logits themselves."""
        return self.tensor().contiguous(**kwargs) if kwargs else self

    def view(self, *shape: Any, **kwargs: Any) -> Logits | Tensor:
        """Return a view in another shape; still lazy if it only joins rows."""
        sizes = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], list | tuple) else shape
        if not kwargs and not self._is_computed and sizes in ((-1, self.shape[-1]), tuple(self.shape)):
            rows = self.shape[:-1].numel()
            return self._view_as(
                (rows, self.shape[-1]) if sizes[0] == -1 else self.shape, in_float32=self._in_float32
            )
        return self.tensor().view(*shape, **kwargs)

    def reshape(self, *shape: Any, **kwargs: Any) -> Logits | Tensor:
        """Same as `view`."""
        return self.tensor().reshape(*shape, **kwargs) if kwargs else self.view(*shape)

    def cross_entropy(self, target: Tensor, ignore_index: int, reduction: str) -> Tensor:
        """Compute the loss, ``[]``, without computing the logits."""
        x, weight, bias = self._operands
        in_float32 = self._in_float32 or autocast_dtype(self.device.type) is not None
        with self._restored_autocast():
            loss = kernels.linear_cross_entropy(
                x.reshape(-1, x.shape[-1]), weight, target.reshape(-1), bias, ignore_index, reduction,
                in_float32=in_float32,
            )  # fmt: skip
        return loss if in_float32 else loss.to(self.dtype)

    # --- everything else computes the logits

    def tensor(self) -> Tensor:
        """Return the logits, computed at the first call; SwapError if input or parameters have changed."""
        if self._base is not None:
            base = self._base.tensor()
            if self._in_float32 and base.dtype != torch.float32:
                # Eager mode copies here too. The copy is made once, so that all reads share it.
                self._tensor = base.float() if self._tensor is None else self._tensor.view_as(base)
                base = self._tensor
            return base.view(self.shape)
        if self._tensor is None:
            self._tensor = self._compute()
        return self._tensor

    def _compute(self) -> Tensor:
        x, weight, bias = self._operands
        versions = [_torch.version_of(t) for t in self._operands if t is not None]
        if versions != self._versions or weight.untyped_storage().size() == 0:
            raise SwapError(
                "the deferred logits cannot be computed: the last layer's input or weight has changed",
                expected="a read before the optimizer's step, and before parameters are resharded",
                found=f"a changed or freed weight of shape {list(weight.shape)}, or a changed input",
                hint="read the logits earlier, or swap without defer_logits=True",
            )
        # Gradients were enabled when the layer was called; the context of the first read must not matter.
        with torch.inference_mode(False), torch.enable_grad(), self._restored_autocast():
            return F.linear(x, weight, bias)

    def _restored_autocast(self) -> contextlib.AbstractContextManager[object]:
        """Return a context with the autocast state of the layer's call."""
        kind = self.device.type
        if not torch.amp.is_autocast_available(kind):
            return contextlib.nullcontext()
        return torch.autocast(kind, dtype=self._autocast_dtype, enabled=self._autocast_dtype is not None)

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
        return _identity, (self.tensor(),)  # copied or saved, they are a tensor

    def __repr__(self) -> str:
        return f"logits {list(self.shape)} of {self.dtype}, not computed yet"


def _identity(tensor: Tensor) -> Tensor:
    return tensor


def _forward_to_tensor(name: str) -> Callable[..., Any]:
    def call(self: Logits, *args: Any) -> Any:
        return getattr(self.tensor(), name)(*pytree.tree_map_only(Logits, Logits.tensor, args))

    return call


_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor")
_OTHERS = """
    neg pos abs invert lt le gt ge eq ne getitem setitem len iter array float int bool index contains
    iadd isub imul itruediv
"""
# Python looks operators up in the class, not in the instance.
for _name in (*(side + op for op in _BINARY for side in ("", "r")), *_OTHERS.split()):
    setattr(Logits, f"__{_name}__", _forward_to_tensor(f"__{_name}__"))
Logits.__hash__ = object.__hash__  # type: ignore[method-assign]
