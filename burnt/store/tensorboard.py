"""A writer for the part of TensorBoard's event file format that scalars, images, histograms and texts need.

A file is a sequence of TFRecords: length (uint64), its masked CRC-32C, the data, its masked CRC-32C, all
little endian. The data is an `Event` message of tensorflow/core/util/event.proto, encoded by hand:
wall_time = 1 (double), step = 2 (int64), file_version = 3 (string), summary = 5, session_log = 7; a Summary
holds values = 1, each with tag = 1 (string) and one of simple_value = 2 (float32), image = 4 (height = 1,
width = 2, encoded = 4), histo = 5 (min, max, num, sum and sum_squares = 1 to 5, bucket_limit = 6, bucket = 7)
and tensor = 8 (dtype = 1, shape = 2, string_val = 8), with metadata = 9 that names the plugin of a tensor.
"""

from __future__ import annotations

import itertools
import re
import struct
from collections.abc import Sequence

_DT_STRING = 7  # of tensorflow's DataType
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FLOAT32_MAX = 3.4028234663852886e38


def _crc_table() -> list[int]:
    table = []
    for number in range(256):
        for _ in range(8):
            number = (number >> 1) ^ (0x82F63B78 if number & 1 else 0)
        table.append(number)
    return table


_CRC_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    """Return the Castagnoli CRC of RFC 3720.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    crc = 0xFFFFFFFF
    table = _CRC_TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _bytes(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | _BYTES) + _varint(len(data)) + data


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _masked(length) + data + _masked(data)


def _wall_time(time: float) -> bytes:
    return _varint(1 << 3 | _FIXED64) + struct.pack("<d", time)


def file_name(text: str) -> str:
    """Return a split or host as the name of a file or folder, which cannot lead out of its folder."""
    name = re.sub(r"[/\\\0]", "_", text)
    return name if name.strip(".") else "_" * len(name)


def file_header(time: float) -> bytes:
    """Return the record that starts a file."""
    return _record(_wall_time(time) + _bytes(3, b"brain.Event:2"))


def session_start(step: int, time: float) -> bytes:
    """Return the record after which TensorBoard forgets what earlier files have from this step on."""
    start = _bytes(7, _varint(1 << 3 | _VARINT) + _varint(1))  # SessionLog: status START
    return _record(_wall_time(time) + _varint(2 << 3 | _VARINT) + _varint(step) + start)


def scalar(tag: str, step: int, time: float, value: float) -> bytes:
    """Return the record of one value, as float32; values out of its range become infinite."""
    if _FLOAT32_MAX < abs(value) < float("inf"):
        value = float("inf") if value > 0 else float("-inf")
    return _summary(tag, step, time, _varint(2 << 3 | _FIXED32) + struct.pack("<f", value))


def image(tag: str, step: int, time: float, png: bytes, width: int, height: int) -> bytes:
    """Return the record of an image: the bytes of a PNG file."""
    size = _varint(1 << 3 | _VARINT) + _varint(height) + _varint(2 << 3 | _VARINT) + _varint(width)
    return _summary(tag, step, time, _bytes(4, size + _bytes(4, png)))


def histogram(tag: str, step: int, time: float, counts: Sequence[float], edges: Sequence[float]) -> bytes:
    """Return the record of a histogram, whose sums count values as the middle of their bins."""
    middles = [(low + high) / 2 for low, high in itertools.pairwise(edges)]
    weighted = [count * middle for count, middle in zip(counts, middles, strict=True)]
    moments = (
        edges[0],
        edges[-1],
        sum(counts),
        sum(weighted),
        sum(value * middle for value, middle in zip(weighted, middles, strict=True)),
    )
    data = b"".join(_varint(i << 3 | _FIXED64) + struct.pack("<d", m) for i, m in enumerate(moments, 1))
    for field, numbers in ((6, edges[1:]), (7, counts)):
        data += _bytes(field, struct.pack(f"<{len(numbers)}d", *numbers))
    return _summary(tag, step, time, _bytes(5, data))


def text(tag: str, step: int, time: float, markdown: str) -> bytes:
    """Return the record of a text, which TensorBoard renders as Markdown."""
    shape = _bytes(2, _bytes(2, _varint(1 << 3 | _VARINT) + _varint(1)))  # one dimension of size 1
    tensor = _varint(1 << 3 | _VARINT) + _varint(_DT_STRING) + shape + _bytes(8, markdown.encode())
    plugin = _bytes(9, _bytes(1, _bytes(1, b"text")))
    return _summary(tag, step, time, _bytes(8, tensor) + plugin)


def _summary(tag: str, step: int, time: float, value: bytes) -> bytes:
    summary = _bytes(1, _bytes(1, tag.encode()) + value)
    return _record(_wall_time(time) + _varint(2 << 3 | _VARINT) + _varint(step) + _bytes(5, summary))
