"""Checkpoints that a thread writes while the training goes on: the training waits for the copy alone."""

from __future__ import annotations

import copy
import dataclasses
import threading
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import torch
from torch import Tensor

from burnt.record import Record

T = TypeVar("T")


class BackgroundWriter(Generic[T]):
    """Writes one checkpoint at a time in a thread.

    Its methods are for one thread, that of the training. An error of the writer is raised by `collect`, each
    time, because the training must not go on without its checkpoints.

    >>> writer = BackgroundWriter[None]()
    >>> writer.start("a checkpoint", lambda: None)
    >>> writer.start("another one", lambda: 1 / 0)  # waits for the first
    >>> writer.wait()
    >>> writer.collect()
    Traceback (most recent call last):
    ZeroDivisionError: division by zero
    while another one was written in the background
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._saved: T | None = None
        self._error: BaseException | None = None

    def start(self, name: str, write: Callable[[], T]) -> None:
        """Write a checkpoint in the thread, when the one before is written; `name` is for messages."""
        self.wait()

        def run() -> None:
            try:
                self._saved = write()
            except BaseException as error:
                error.add_note(f"while {name} was written in the background")
                self._error = error

        # A disk that does not answer must not keep the process from ending.
        self._thread = threading.Thread(target=run, name="burnt-checkpoint", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until nothing is being written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def collect(self) -> T | None:
        """Return the checkpoint written since the last call, or None; raise the error of writing it."""
        if self._error is not None:
            raise self._error
        saved, self._saved = self._saved, None
        return saved


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
