"""Messages between this process and its workers: pickled objects, whose tensors and arrays are shared memory.

A message is one file in memory that holds the pickle and the buffers; only its descriptor goes through the
socket. So sending never waits for the other side, and nothing depends on the sender once a message is sent.
torch.multiprocessing would open a connection and share a descriptor for each tensor, in /dev/shm, which
containers limit to 64 MB.
"""

from __future__ import annotations

import io
import itertools
import os
import pickle
import socket
import struct
import tempfile
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_ALIGNMENT = 64


def pickled(value: Any) -> list[memoryview]:
    """Return the parts of a message that holds `value`: the pickle, then its tensors and arrays, uncopied."""
    file = io.BytesIO()
    buffers: list[pickle.PickleBuffer] = []
    _Pickler(file, protocol=5, buffer_callback=buffers.append).dump(value)
    return [file.getbuffer(), *(buffer.raw() for buffer in buffers)]


def send(connection: socket.socket, parts: Sequence[memoryview]) -> None:
    """Send a message; OSError if the other side is gone."""
    lengths = [part.nbytes for part in parts]
    offsets, size = _layout(lengths)
    descriptor = _open_memory()
    try:
        os.ftruncate(descriptor, size)
        head = memoryview(struct.pack(f"<{len(parts) + 1}Q", len(parts), *lengths))
        for offset, part in zip([0, *offsets], [head, *parts], strict=True):
            while part.nbytes:  # Linux writes at most 2 GiB at once
                written = os.pwrite(descriptor, part, offset)
                part, offset = part[written:], offset + written
        socket.send_fds(connection, [b"m"], [descriptor])
    finally:
        os.close(descriptor)


def receive(connection: socket.socket) -> memoryview:
    """Wait for a message, and return its memory; EOFError if the other side is gone."""
    try:
        data, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
    except ConnectionResetError:  # it is gone, and has left messages unread
        data = b""
    if not data:
        raise EOFError
    if not descriptors:
        raise OSError("a batch of a worker could not be opened: too many open files; see ulimit -n")
    try:
        size = os.fstat(descriptors[0]).st_size
        # Unlike an mmap of Python, it keeps no descriptor open as long as the batch lives.
        memory = torch.from_file(f"/dev/fd/{descriptors[0]}", shared=True, size=size, dtype=torch.uint8)
    finally:
        os.close(descriptors[0])
    return memoryview(memory.numpy())  # type: ignore[arg-type]


def unpickled(view: memoryview) -> Any:
    """Return the value of a message, whose tensors lie in the message's memory."""
    (count,) = struct.unpack_from("<Q", view)
    lengths = struct.unpack_from(f"<{count}Q", view, 8)
    offsets, _ = _layout(lengths)
    first, *buffers = (view[at : at + length] for at, length in zip(offsets, lengths, strict=True))
    return pickle.loads(first, buffers=buffers)


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if (
            type(value) is Tensor
            and value.device.type == "cpu"
            and value.layout == torch.strided
            and not (value.requires_grad or value.is_quantized or value.is_conj() or value.is_neg())
        ):
            dense = value if value.is_contiguous() else value.clone()  # a clone keeps channels_last
            elements = dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)
            return _tensor, (
                pickle.PickleBuffer(elements.numpy()),  # type: ignore[arg-type]
                value.dtype,
                tuple(dense.shape),
                dense.stride(),
            )
        return NotImplemented  # as torch and others pickle it: copied into the pickle


def _tensor(buffer: Any, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
    if 0 in shape:
        return torch.empty_strided(shape, strides, dtype=dtype)
    storage = torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()
    return torch.empty(0, dtype=dtype).set_(storage, 0, shape, strides)


def _layout(lengths: Sequence[int]) -> tuple[list[int], int]:
    """Return where the parts begin, after the table of their lengths, and the size of the whole."""
    padded = [-(-length // _ALIGNMENT) * _ALIGNMENT for length in (8 * (len(lengths) + 1), *lengths)]
    *offsets, size = itertools.accumulate(padded)
    return offsets, size


def _open_memory() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("burnt-loader")
    with tempfile.TemporaryFile() as file:  # macOS
        return os.dup(file.fileno())
