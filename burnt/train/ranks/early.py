"""EarlySums: sums of gradients over the ranks that start while the backward pass still runs.

The gradients of the last layers are there first. Hooks of the parameters, which fire during `autograd.grad`
too, put each gradient into its bucket; a full bucket is summed at once, in the background. All ranks start
the same buckets in the same order, so one that has no gradients starts them with zeros, at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from burnt.gradients import summed_dtype

T = TypeVar("T", bound=Tensor)


def grouped(tensors: Iterable[tuple[str, T]], most_bytes: int) -> Iterator[dict[str, T]]:
    """Group named tensors that are summed in one dtype, on one device, to some `most_bytes` each."""
    group: dict[str, T] = {}
    kind, size = None, 0
    for name, tensor in tensors:
        own = summed_dtype(tensor.dtype), tensor.device
        if group and (own != kind or size >= most_bytes):
            yield group
            group, size = {}, 0
        kind, group[name] = own, tensor
        size += tensor.nbytes
    if group:
        yield group


class EarlySums:
    """The buckets of the trainable parameters of a model, those of its last layers first.

    `together` calls an operation that all ranks take part in.
    """

    def __init__(
        self, params: Mapping[str, torch.nn.Parameter], bucket_bytes: int, together: Callable[..., None]
    ) -> None:
        self._together = together
        trainable = [(path, param) for path, param in params.items() if param.requires_grad]
        self._buckets = [_Bucket(group) for group in grouped(reversed(trainable), bucket_bytes)]
        self._handles = [
            param.register_hook(self._hook(bucket, path))  # type: ignore[no-untyped-call]
            for bucket in self._buckets
            for path, param in bucket.params.items()
        ]
        self._paths = {path for bucket in self._buckets for path in bucket.params}
        self._count: int | None = None

    def fits(self, params: Mapping[str, Tensor]) -> bool:
        """Whether these are the parameters that are trained now."""
        return self._paths == {path for path, param in params.items() if param.requires_grad}

    def _hook(self, bucket: _Bucket, path: str) -> Callable[[Tensor], None]:
        def hook(gradient: Tensor) -> None:
            if self._count is not None and not gradient.is_sparse:
                bucket.fill(path, gradient, self._count)
                self._start(only_full=True)

        return hook

    def begin(self, count: int) -> None:
        """Take the gradients of the next backward pass, times a number of items."""
        self._count = count

    def finish(self) -> dict[str, Tensor]:
        """Return the sums over the ranks by path, zeros of parameters without a gradient.

        All ranks call it once a step, also those without a backward pass.
        """
        self._count = None
        self._start(only_full=False)
        sums: dict[str, Tensor] = {}
        for bucket in self._buckets:
            self._together(bucket.wait)
            sums |= bucket.taken()
        return sums

    def _start(self, *, only_full: bool) -> None:
        """Start the sums of buckets, in order, as far as they have all their gradients."""
        for bucket in self._buckets:
            if bucket.work is None:
                if only_full and bucket.missing:
                    return
                self._together(bucket.start)

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()


class _Bucket:
    """Parameters of one dtype and device, whose gradients are summed together."""

    def __init__(self, params: Mapping[str, torch.nn.Parameter]) -> None:
        self.params, self.missing = params, set(params)
        self.work: Any = None
        self._flat: Tensor | None = None
        self._size = sum(param.numel() for param in params.values())
        first = next(iter(params.values()))
        self._options: dict[str, Any] = {"dtype": summed_dtype(first.dtype), "device": first.device}

    def _views(self, flat: Tensor) -> dict[str, Tensor]:
        parts: Sequence[Tensor] = torch.split(flat, [param.numel() for param in self.params.values()])
        return {
            path: part.view(param.shape)
            for (path, param), part in zip(self.params.items(), parts, strict=True)
        }

    def fill(self, path: str, gradient: Tensor, count: int) -> None:
        """Put a gradient into its place, times a number of items."""
        if self._flat is None:
            self._flat = torch.zeros(self._size, **self._options)
            self._parts = self._views(self._flat)
        self._parts[path].copy_(gradient.detach()).mul_(count)  # wide before it is multiplied
        self.missing.discard(path)

    def start(self) -> None:
        """Start the sum over the ranks."""
        if self._flat is None:
            self._flat = torch.zeros(self._size, **self._options)
        self.work = dist.all_reduce(self._flat, async_op=True)

    def wait(self) -> None:
        """Wait for the sum."""
        self.work.wait()

    def taken(self) -> dict[str, Tensor]:
        """Return the sums by path, and empty the bucket."""
        assert self._flat is not None
        sums = self._views(self._flat)
        self.work = self._flat = None
        self.missing = set(self.params)
        return sums
