"""Strings: numpy arrays of Python's strings, since torch has none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from burnt.onnx.functions.regular_expressions import compile_pattern


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
    width = max(map(len, parts), default=0)
    padded = np.full((len(parts), width), "", dtype=object)
    for row, words in zip(padded, parts, strict=True):
        row[: len(words)] = words
    counts = torch.tensor([len(words) for words in parts], dtype=torch.int64, device=device)
    return padded.reshape(*x.shape, width), counts.reshape(x.shape)


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
