"""Pictures by their specification, of kinds that Pillow does not write."""

from __future__ import annotations

import struct
import zlib


def png(depth: int, colour: int, width: int, row: bytes, transparent: bytes = b"") -> bytes:
    """Return a PNG file of one row, written by its specification."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, 1, depth, colour, 0, 0, 0)
    parts = [(b"IHDR", header), (b"tRNS", transparent), (b"IDAT", zlib.compress(b"\0" + row)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts if part[1] or part[0] != b"tRNS")
