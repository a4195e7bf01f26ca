"""Tokens of texts, found by regular expressions in the way of RE2."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from burnt.errors import UnsupportedError
from burnt.onnx.functions.regular_expressions import WORD, FullMatcher

__all__ = ["tokenize"]


def tokenize(
    x: np.ndarray[Any, Any],
    pattern: str = "",
    separators: Sequence[str] = (),
    min_chars: int = 1,
    pad: str = "",
    with_marks: bool = False,
) -> np.ndarray[Any, Any]:
    """Split texts into tokens: com.microsoft's Tokenizer, which skl2onnx writes for vectorizers of text.

    Args:
        x: strings, of any shape.
        pattern: a regular expression of tokens, in the syntax of RE2.
        separators: regular expressions of what is between tokens, used one after the other; a single empty
            one: each character is a token. Either these or a pattern are given.
        min_chars: shorter tokens are left out.
        pad: fills up rows of fewer tokens than the longest.
        with_marks: whether the characters 2 and 3 are put before and after the tokens of a text.

    Returns:
        The tokens along a new last axis, which is empty if there is none.

    Raises:
        UnsupportedError: a regular expression is not supported, or a separator matches an empty text.

    >>> tokenize(np.array(["a good film", "good"], dtype=object), "[a-z]+", min_chars=2, pad="#").tolist()
    [['good', 'film'], ['good', '#']]
    """
    split = _splitter(pattern, separators)
    rows = [[part for part in split(text) if part and len(part) >= min_chars] for text in x.reshape(-1)]
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
    if list(separators) == [""]:
        return list
    if not separators:
        finder = _finder(pattern)
        return lambda text: [text[begin:end] for begin, end in finder.matches(text)]
    finders = [_finder(separator) for separator in separators]
    if any(finder("") for finder in finders):
        raise UnsupportedError(
            "a separator of tokens matches an empty text",
            expected="regular expressions of at least one character",
            found=repr(list(separators)),
        )

    def split(text: str) -> list[str]:
        parts = [text]
        for finder in finders:
            parts = [part for whole in parts for part in finder.between(whole)]
        return parts

    return split


class _Finder(FullMatcher):
    """Finds the longest matches of a pattern from left to right; ``.`` matches a newline too."""

    def matches(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield where matches of at least one character begin and end."""
        begin = 0
        while begin < len(text):
            end = self._longest(text, begin)
            if end > begin:
                yield begin, end
            begin = max(end, begin + 1)

    def between(self, text: str) -> Iterator[str]:
        """Yield what is before, between and after the matches."""
        last = 0
        for begin, end in self.matches(text):
            yield text[last:begin]
            last = end
        yield text[last:]

    def _longest(self, text: str, begin: int) -> int:
        """Return the end of the longest match that begins at a position, or -1."""
        states, found = frozenset({self._start}), -1
        for position in range(begin, len(text) + 1):
            before = "start" if not position else "word" if text[position - 1] in WORD else "other"
            accepts, states = self._next(states, before, text[position : position + 1])
            found = position if accepts else found
            if not states:
                break
        return found

    @functools.lru_cache(1000)  # noqa: B019  # as long-lived as the finders, of which there are few
    def _next(self, states: frozenset[int], before: str, char: str) -> tuple[bool, frozenset[int]]:
        """Return whether the text so far matches, and the states after a character, if there is one."""
        accepts = 0 in self._reached(states, before, char)
        return accepts, frozenset(self._step(states, before, char)) if char else frozenset()


@functools.lru_cache(64)
def _finder(pattern: str) -> _Finder:
    return _Finder(f"(?s){pattern}")
