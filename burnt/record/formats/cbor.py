"""The part of CBOR (RFC 8949) that burnpack files use: numbers, text, arrays and maps of known length."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

MOST_ITEMS = 3_000_000
"""In one document: some 3 s, and 180,000 tensors; Burn reads at most 100,000."""

_DEEPEST = 32

_UNSIGNED, _NEGATIVE, _TEXT, _ARRAY, _MAP, _SIMPLE = 0, 1, 3, 4, 5, 7
_CONSTANTS = {20: False, 21: True, 22: None}
_FLOATS = {25: ">e", 26: ">f", 27: ">d"}

CborValue = int | str | Sequence["CborValue"] | Mapping[str, "CborValue"]


def encode_cbor(value: CborValue) -> bytes:
    """Encode integers from 0 on, text, sequences and maps with text as keys.

    >>> encode_cbor({"shape": [3, 256]}).hex(" ")
    'a1 65 73 68 61 70 65 82 03 19 01 00'
    """
    parts: list[bytes] = []
    _encode(value, parts)
    return b"".join(parts)


def _encode(value: CborValue, parts: list[bytes]) -> None:
    if isinstance(value, int):
        parts.append(_head(_UNSIGNED, value))
    elif isinstance(value, str):
        text = value.encode()
        parts += (_head(_TEXT, len(text)), text)
    elif isinstance(value, Mapping):
        parts.append(_head(_MAP, len(value)))
        for key, item in value.items():
            _encode(key, parts)
            _encode(item, parts)
    else:
        parts.append(_head(_ARRAY, len(value)))
        for item in value:
            _encode(item, parts)


def _head(kind: int, argument: int) -> bytes:
    """Return the first bytes of an item: its type in three bits, and a number in as few bytes as it takes."""
    if argument < 24:
        return bytes([kind << 5 | argument])
    power = next(power for power in range(4) if argument < 1 << (8 << power))
    return bytes([kind << 5 | 24 + power]) + argument.to_bytes(1 << power, "big")


def decode_cbor(data: bytes) -> Any:
    """Decode one item that fills `data`.

    Python's usual decoders also build dates, fractions, references and more from tags, which a hostile file
    can make expensive; burnpack files have none. A ValueError is raised if the item is damaged, nested more
    than 32 deep, has more than `MOST_ITEMS` items or a key twice in a map, or has what burnpack files lack:
    tags, byte strings, items of unknown length.

    >>> decode_cbor(bytes.fromhex("a1 65 73 68 61 70 65 82 03 19 01 00"))
    {'shape': [3, 256]}
    """
    decoder = _Decoder(data)
    value = decoder.item(0)
    if decoder.position != len(data):
        raise ValueError(f"{len(data) - decoder.position} bytes too many")
    return value


class _Decoder:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0
        self.items = 0

    def item(self, depth: int) -> Any:
        self.items += 1
        if self.items > MOST_ITEMS:
            raise ValueError(f"more than {MOST_ITEMS:,} items")
        if depth > _DEEPEST:
            raise ValueError(f"nested more than {_DEEPEST} deep")
        start = self.position
        first = self._take(1)[0]
        kind, info = first >> 5, first & 31
        if info < 24:
            argument = info
        elif info < 28:
            argument = int.from_bytes(self._take(1 << (info - 24)), "big")
        else:
            raise ValueError(f"an item of unknown length at byte {start}")
        if kind == _UNSIGNED:
            return argument
        if kind == _NEGATIVE:
            return -1 - argument
        if kind == _TEXT:
            return self._take(argument).decode()
        if kind == _ARRAY:
            self._check_left(argument)
            return [self.item(depth + 1) for _ in range(argument)]
        if kind == _MAP:
            self._check_left(2 * argument)
            return self._map(argument, depth + 1)
        if kind == _SIMPLE and info in _CONSTANTS:
            return _CONSTANTS[info]
        if kind == _SIMPLE and info in _FLOATS:
            return struct.unpack(_FLOATS[info], self.data[start + 1 : self.position])[0]
        raise ValueError(f"an item of type {kind}.{info} at byte {start}")

    def _map(self, length: int, depth: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for _ in range(length):
            key = self.item(depth)
            if not isinstance(key, str):
                raise ValueError(f"a key of type {type(key).__name__}")
            if key in values:
                raise ValueError(f"the key {key[:80]!r} twice")
            values[key] = self.item(depth)
        return values

    def _take(self, count: int) -> bytes:
        self._check_left(count)
        self.position += count
        return self.data[self.position - count : self.position]

    def _check_left(self, count: int) -> None:
        left = len(self.data) - self.position
        if count > left:
            # An item takes a byte or more.
            raise ValueError(f"{count} or more bytes expected at byte {self.position}, {left} left")
