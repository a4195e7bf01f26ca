"""Strings: numpy arrays of Python's strings, since torch has none; their tokens and regular expressions.

Regular expressions are those of RE2, to whose syntax ONNX refers: a match takes time linear in the text. In
Python's ``re`` it takes exponential time for some patterns, and patterns come from files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from burnt.errors import UnsupportedError


def string_concat(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Concatenate strings element by element; shapes are broadcast."""
    return np.asarray(np.add(x, y), dtype=object)


def string_split(
    x: np.ndarray[Any, Any],
    delimiter: str | None = None,
    maxsplit: int | None = None,
    device: torch.device | None = None,
) -> tuple[np.ndarray[Any, Any], Tensor]:
    """Return the parts of strings along a new last axis, filled up with empty strings, and their numbers.

    A delimiter that is None or empty stands for whitespace; `maxsplit` None is no limit.

    >>> string_split(np.array(["a b", "c"], dtype=object))[1]
    tensor([2, 1])
    """
    parts = [text.split(delimiter or None, -1 if maxsplit is None else maxsplit) for text in x.reshape(-1)]
    counts = torch.tensor([len(words) for words in parts], dtype=torch.int64, device=device)
    filled = _filled(parts, "")
    return filled.reshape(*x.shape, filled.shape[1]), counts.reshape(x.shape)


def _filled(rows: Sequence[Sequence[str]], fill: str) -> np.ndarray[Any, Any]:
    """Return rows of strings as a matrix, filled up to the longest."""
    filled = np.full((len(rows), max(map(len, rows), default=0)), fill, dtype=object)
    for row, words in zip(filled, rows, strict=True):
        row[: len(words)] = words
    return filled


def regex_full_match(x: np.ndarray[Any, Any], pattern: str, device: torch.device | None = None) -> Tensor:
    """Whether a regular expression of RE2's syntax matches the whole of each string, in linear time."""
    compiled = compile_pattern(pattern)
    matches = [compiled.fullmatch(text) is not None for text in x.reshape(-1).tolist()]
    return torch.tensor(matches, dtype=torch.bool, device=device).reshape(x.shape)


def normalize_strings(
    x: np.ndarray[Any, Any],
    action: str = "NONE",
    is_case_sensitive: bool = False,
    stopwords: Sequence[str] = (),
) -> np.ndarray[Any, Any]:
    """Remove stop words of ``[words]`` or ``[1, words]``, then change the case: ``LOWER``, ``UPPER`` or
    ``NONE``.

    A single empty string is returned if no word is left.
    """

    def key(text: str) -> str:
        return text if is_case_sensitive else text.lower()

    unwanted = {key(word) for word in stopwords}
    change = {"LOWER": str.lower, "UPPER": str.upper}.get(action, str)
    words = [change(text) for text in x.reshape(-1) if key(text) not in unwanted] or [""]
    return np.array(words, dtype=object).reshape(*x.shape[:-1], len(words))


def positions(x: np.ndarray[Any, Any], device: torch.device | None = None) -> Tensor:
    """Return the position of each string of an array: int64, in the array's shape."""
    return torch.arange(x.size, device=device).reshape(x.shape)


def take_strings(x: np.ndarray[Any, Any], at: Tensor) -> np.ndarray[Any, Any]:
    """Return the strings at some positions.

    >>> x = np.array([["a", "b"], ["c", "d"]], dtype=object)
    >>> take_strings(x, positions(x).T[:1]).tolist()
    [['a', 'c']]
    """
    taken: np.ndarray[Any, Any] = x.reshape(-1)[at.numpy(force=True)]
    return taken


def tfidf(
    x: Any,
    mode: str,
    lengths: tuple[int, int],
    max_skip: int,
    starts: Sequence[int],
    columns: Sequence[int],
    pool: Sequence[Any],
    weights: Sequence[float] = (),
    device: torch.device | None = None,
) -> Tensor:
    """Count the n-grams of a pool in ``[tokens]`` or ``[batch, tokens]``: float32 ``[columns]`` or ``[batch,
    columns]``.

    `mode` is ``TF`` (counts), ``IDF`` (the weights of those that occur) or ``TFIDF`` (counts times weights).
    `lengths` are the shortest and longest n-grams, `max_skip` the tokens that may stand between two of an
    n-gram, the same number between all. The `pool` has the n-grams one after the other, 1-grams, 2-grams ...
    from `starts`; `columns` and `weights` are theirs, no weights are 1.
    """
    array = x if isinstance(x, np.ndarray) else x.numpy(force=True)
    grams: dict[tuple[Any, ...], int] = {}
    number = 0
    for n, begin in enumerate(starts, start=1):
        end = starts[n] if n < len(starts) else len(pool)
        for position in range(begin, end, n):
            if lengths[0] <= n <= lengths[1]:
                grams[tuple(pool[position : position + n])] = number
            number += 1
    rows = array.reshape(-1, array.shape[-1]) if array.ndim else array.reshape(1, 1)
    counts = np.zeros((len(rows), max(columns) + 1), np.float32)
    for row, tokens in zip(counts, rows.tolist(), strict=True):
        for n in range(lengths[0], min(lengths[1], len(tokens)) + 1):
            longest_step = (len(tokens) - 1) // (n - 1) if n > 1 else 1
            for step in range(1, min(max_skip + 1, longest_step) + 1):
                for begin in range(len(tokens) - (n - 1) * step):
                    found = grams.get(tuple(tokens[begin : begin + (n - 1) * step + 1 : step]))
                    if found is not None:
                        row[columns[found]] += 1
    if mode != "TF":
        scale = np.ones(counts.shape[1], np.float32)
        scale[list(columns)] = weights if len(weights) else 1.0
        counts = (counts > 0) * scale if mode == "IDF" else counts * scale
    result = torch.from_numpy(counts.astype(np.float32)).to(device)
    return result.reshape(*array.shape[:-1], -1)


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
    if with_marks and any(rows):
        rows = [["\x02", *row, "\x03"] for row in rows]
    filled = _filled(rows, pad)
    return filled.reshape(*x.shape, filled.shape[1])


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


def compile_pattern(pattern: str, longest: bool = False) -> Any:
    """Return a pattern of RE2, which has the methods of Python's, but no groups.

    With `longest` matches are the longest ones, as in POSIX, else those that Perl would find. A pattern that
    is invalid or too large, or a missing google-re2, is an UnsupportedError.

    >>> compiled = compile_pattern(r"(a+)+|\\d{2,3}")
    >>> [bool(compiled.fullmatch(text)) for text in ("a" * 1000, "a" * 1000 + "b", "12", "1")]
    [True, False, True, False]
    """
    try:
        import re2
    except ImportError as error:
        raise UnsupportedError(
            "regular expressions need google-re2, which is not installed",
            where=repr(pattern[:80]),
            hint="pip install 'burnt[onnx]'",
        ) from error
    options = re2.Options()
    options.log_errors = False  # to stderr
    options.never_capture = True
    options.longest_match = longest
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        found = error.args[0]
        raise UnsupportedError(
            "a regular expression is not supported",
            where=repr(pattern[:80]),
            expected="the syntax of RE2, in which there are no references to groups and no look-around",
            found=(found.decode(errors="replace") if isinstance(found, bytes) else str(found))[:80],
        ) from None
