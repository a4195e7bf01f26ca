"""Checksums in the headers of files of weights and in indexes: of the tensors, and of the text itself.

They are zlib's CRC-32, which does some 3 GB/s (SHA-256 1.4, BLAKE2b 0.5). Other programs ignore them.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from burnt.errors import RecordError

CHECKSUMS, HEADER_CHECKSUM = "burnt.crc32", "burnt.crc32.json"
"""Keys of the metadata: the checksums of the tensors' bytes, in the order of the header (in an index, of the
shards' headers); and the checksum of the whole text, in which its own digits are zeros."""

_ZEROS = "0" * 8
_IN_JSON = re.compile(rb'"burnt\.crc32\.json":\s*"([0-9a-f]{8})"')
_IN_CBOR = re.compile(rb"pburnt\.crc32\.jsonh([0-9a-f]{8})")

CHANGED = "a disk or a copy has changed the file: take another copy, or of a run an older checkpoint"


def with_checksums(metadata: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Return metadata with room for the checksums of so many tensors, which `fill_checksums` fills in."""
    return {**without_checksums(metadata), CHECKSUMS: " ".join([_ZEROS] * count), HEADER_CHECKSUM: _ZEROS}


def without_checksums(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata that belongs to other weights, too."""
    return {key: value for key, value in metadata.items() if key not in (CHECKSUMS, HEADER_CHECKSUM)}


def fill_checksums(header: bytes, checksums: Sequence[int]) -> tuple[bytes, int]:
    """Return a header with the checksums for which `with_checksums` made room and its own; and its own."""
    place = _find_header_checksum(header)
    assert place is not None
    zeros, sums = " ".join([_ZEROS] * len(checksums)), " ".join(f"{checksum:08x}" for checksum in checksums)
    first = header.rindex(zeros.encode(), 0, place.start())
    header = header[:first] + sums.encode() + header[first + len(zeros) :]
    own = zlib.crc32(header)
    return b"%s%08x%s" % (header[: place.start(1)], own, header[place.end(1) :]), own


def check_header(
    header: bytes, metadata: Mapping[str, Any], names: Sequence[str], where: str
) -> dict[str, int]:
    """Check a header against its own checksum; return the tensors' checksums, {} for a file without."""
    place, checksums = _find_header_checksum(header), str(metadata.get(CHECKSUMS, "")).split()
    if place is None and not {CHECKSUMS, HEADER_CHECKSUM} & metadata.keys():
        return {}
    start, end = (0, 0) if place is None else place.span(1)
    found = zlib.crc32(header[:start] + _ZEROS.encode() + header[end:])
    hint = (
        f"a program that writes other tensors with the metadata of this file must leave out {CHECKSUMS} "
        f"and {HEADER_CHECKSUM} (or read them with safetensors, for burnt.load_weights); otherwise {CHANGED}"
    )
    what = "the header of a file has changed since it was written"
    check_checksum(None if place is None else int(place[1], 16), found, where, what, hint)
    try:
        return dict(zip(names, (int(checksum, 16) for checksum in checksums), strict=True))
    except ValueError as error:  # of a hostile file
        raise RecordError(what, where=where, found=str(error), hint=hint) from None


def _find_header_checksum(header: bytes) -> re.Match[bytes] | None:
    # Strings of JSON cannot look like it; the names of tensors in CBOR can, and come before.
    found = list((_IN_JSON if header[:1] == b"{" else _IN_CBOR).finditer(header))
    return found[-1] if found else None


def check_checksum(
    expected: int | None,
    found: int | None,
    where: str,
    what: str = "the values of a tensor have changed since they were written",
    hint: str = CHANGED,
) -> None:
    """Refuse what has another checksum than was written."""
    if found != expected:
        texts = ("none" if checksum is None else f"CRC-32 {checksum:08x}" for checksum in (expected, found))
        raise RecordError(what, where=where, expected=next(texts), found=next(texts), hint=hint)
