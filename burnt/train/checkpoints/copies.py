"""Copies of a training's state, which a thread writes while the training goes on."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from burnt.record import Record


def copied_record(record: Record) -> Record:
    """Return a record with copies of the values, in memory that the training does not change."""
    return dataclasses.replace(
        record, tensors=copied_tensors(record.tensors), static=copy.deepcopy(record.static)
    )


def copied_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of tensors on the host; from CUDA, all at once through pinned memory.

    >>> ours = torch.ones(2)
    >>> copies = copied_tensors({"a": ours})
    >>> ours.zero_(), copies
    (tensor([0., 0.]), {'a': tensor([1., 1.])})
    """
    copies = {name: _copied(tensor.detach()) for name, tensor in tensors.items()}
    for device in {tensor.device for tensor in tensors.values() if tensor.is_cuda}:
        torch.cuda.current_stream(device).synchronize()
    return copies


def _copied(tensor: Tensor) -> Tensor:
    if tensor.layout is not torch.strided or hasattr(tensor, "__tensor_flatten__") or tensor.is_meta:
        return tensor  # which the writer refuses
    if tensor.is_cuda:
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return host.copy_(tensor, non_blocking=True)
    return tensor.to("cpu", copy=True, memory_format=torch.contiguous_format)
