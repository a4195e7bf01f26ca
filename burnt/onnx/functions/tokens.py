"""Tokens of texts, found by regular expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from burnt.errors import UnsupportedError
from burnt.onnx.functions.regular_expressions import compile_pattern


def tokenize(
    x: np.ndarray[Any, Any],
    pattern: str = "",
    separators: Sequence[str] = (),
    min_chars: int = 1,
    pad: str = "",
    with_marks: bool = False,
) -> np.ndarray[Any, Any]:
    """Split texts into tokens along a new last axis: com.microsoft's Tokenizer, as skl2onnx writes it.

    Tokens are the longest matches of a `pattern` of RE2, or what is between `separators`, used one after the
    other; a single ``.`` or an empty separator makes each character a token. Those shorter than `min_chars`
    are left out, `pad` fills up shorter rows, and with `with_marks` the characters 2 and 3 are put around a
    text's tokens. UnsupportedError: a regular expression is not supported, or cuts characters, as ``\\C``
    does; a separator matches an empty text; google-re2 is not installed.

    >>> tokenize(np.array(["a good film", "good"], dtype=object), "[a-z]+", min_chars=2, pad="#").tolist()
    [['good', 'film'], ['good', '#']]
    """
    split = _splitter(pattern, separators)
    try:
        rows = [[part for part in split(text) if part and len(part) >= min_chars] for text in x.reshape(-1)]
    except UnicodeDecodeError as error:
        raise UnsupportedError(
            "a regular expression of tokens cuts characters into bytes",
            expected=r"whole characters, without \C",
            found=repr([*separators] or pattern)[:80],
        ) from error
    width = max(map(len, rows), default=0)
    if with_marks and width:
        rows = [["\x02", *row, "\x03"] for row in rows]
        width += 2
    padded = np.full((len(rows), width), pad, dtype=object)
    for padded_row, row in zip(padded, rows, strict=True):
        padded_row[: len(row)] = row
    return padded.reshape(*x.shape, width)


def _splitter(pattern: str, separators: Sequence[str]) -> Callable[[str], list[str]]:
    """Return what splits a text into tokens, some of which may be empty."""
    if list(separators) == [""] or (pattern == "." and not separators):  # characters, newlines included
        return list
    if not separators:
        tokens = compile_pattern(pattern, longest=True)
        return lambda text: [match[0].decode() for match in tokens.finditer(text.encode())]
    compiled = [compile_pattern(separator, longest=True) for separator in separators]
    if any(separator.fullmatch("") for separator in compiled):
        raise UnsupportedError(
            "a separator of tokens matches an empty text",
            expected="regular expressions of at least one character",
            found=repr(list(separators)),
        )

    def split(text: str) -> list[str]:
        parts = [text.encode()]
        for separator in compiled:
            parts = [part for whole in parts for part in _between(separator, whole)]
        return [part.decode() for part in parts]

    return split


def _between(separator: Any, text: bytes) -> Iterator[bytes]:
    """Yield what is before, between and after the matches of at least one character."""
    last = 0
    for match in separator.finditer(text):
        begin, end = match.span()
        if end > begin:
            yield text[last:begin]
            last = end
    yield text[last:]
