"""Functions of ai.onnx.ml (preprocessing, linear models, support vectors, trees) and of strings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from burnt.errors import InputValueError, UnsupportedError


def post_transform(scores: Tensor, kind: str) -> Tensor:
    """Apply NONE, SOFTMAX, LOGISTIC, SOFTMAX_ZERO (zeros stay) or PROBIT to scores ``[N, C]``."""
    if kind.startswith("SOFTMAX") and scores.shape[-1] == 1:
        return scores  # as ONNX Runtime: a softmax of one score would be 1
    if kind == "SOFTMAX":
        return torch.softmax(scores, -1)
    if kind == "LOGISTIC":
        return torch.sigmoid(scores)
    if kind == "SOFTMAX_ZERO":
        powers = torch.softmax(scores.masked_fill(scores == 0, -torch.inf), -1)
        return torch.where(scores == 0, torch.zeros_like(scores), powers)
    if kind == "PROBIT":
        quantiles: Tensor = torch.special.ndtri(scores)
        return quantiles
    return scores


def linear_scores(x: Tensor, coefficients: Tensor, intercepts: Tensor | None = None) -> Tensor:
    """Return ``[N, C]`` of inputs ``[N, F]`` and coefficients ``[C, F]``."""
    rows = x.flatten(1) if x.dim() > 1 else x.reshape(1, -1)
    scores = rows.to(coefficients.dtype) @ coefficients.t()
    return scores if intercepts is None else scores + intercepts


def binary_scores(score: Tensor, kind: str = "NONE") -> Tensor:
    """Return scores of two classes ``[N, 2]`` from the second's ``[N, 1]``."""
    if kind == "LOGISTIC":
        return torch.cat([torch.sigmoid(-score), torch.sigmoid(score)], -1)
    if kind == "PROBABILITY":
        return torch.cat([1 - score, score], -1)
    return torch.cat([-score, score], -1)


def classify(scores: Tensor, labels: Sequence[int] | Sequence[str], threshold: float | None = None) -> Any:
    """Return the label of the best score of ``[N, C]``; with a threshold, of the second class above it."""
    best = scores.argmax(-1) if threshold is None else (scores[:, -1] > threshold).long()
    if isinstance(labels[0], str):
        return np.array(labels, dtype=object)[best.cpu().numpy()]
    return torch.tensor(labels, dtype=torch.int64, device=scores.device)[best]


def normalize_rows(x: Tensor, norm: str = "MAX") -> Tensor:
    """Divide each row by its maximum, its sum of sizes (L1), or its length (L2); rows of zeros stay."""
    x = x.float()
    if norm == "MAX":
        size = x.amax(-1, keepdim=True)
    else:
        size = torch.linalg.vector_norm(x, 1 if norm == "L1" else 2, -1, keepdim=True)
    return torch.where(size == 0, x, x / size)


def impute(x: Tensor, missing: float, values: Sequence[float]) -> Tensor:
    """Replace missing values, which may be NaN, by one value or one per column."""
    is_missing = x.isnan() if missing != missing else x == missing
    return torch.where(is_missing, torch.tensor(values, dtype=x.dtype, device=x.device), x)


def one_hot_of(
    x: Any, categories: Sequence[Any], allow_unknown: bool = True, device: torch.device | None = None
) -> Tensor:
    """Return one-hot vectors of values, ``[..., categories]``."""
    device = x.device if isinstance(x, Tensor) else device
    values = x.cpu().numpy() if isinstance(x, Tensor) else x
    found = values[..., None] == np.array(
        categories, dtype=object if isinstance(categories[0], str) else None
    )
    if not allow_unknown and not found.any(-1).all():
        unknown = values[~found.any(-1)].reshape(-1)[0]
        raise InputValueError(
            "a value is not among the categories",
            where="one_hot_of",
            expected=f"one of {', '.join(map(repr, list(categories[:10])))}"
            + (f" and {len(categories) - 10} more" if len(categories) > 10 else ""),
            found=repr(unknown),
        )
    return torch.from_numpy(found.astype(np.float32)).to(device)


def lookup(
    x: Any,
    keys: Sequence[Any],
    values: Sequence[Any],
    default: Any,
    dtype: torch.dtype | None,
    device: torch.device | None = None,
) -> Any:
    """Replace values by a table's; the result is an array of strings where `dtype` is None."""
    array = x.cpu().numpy() if isinstance(x, Tensor) else x
    table = {_key(key): value for key, value in zip(keys, values, strict=True)}
    found = [table.get(_key(value), default) for value in array.reshape(-1).tolist()]
    if dtype is None:
        return np.array(found, dtype=object).reshape(array.shape)
    device = x.device if isinstance(x, Tensor) else device
    return torch.tensor(found, dtype=dtype, device=device).reshape(array.shape)


def _key(value: Any) -> Any:
    return "nan" if isinstance(value, float) and value != value else value


def pick(x: Any, columns: Tensor) -> Any:
    """Take columns of the last axis; the result has two axes at least."""
    index = columns.reshape(-1)
    if not isinstance(x, Tensor):
        return np.atleast_2d(x.take(index.cpu().numpy(), axis=-1))
    picked = x[..., index]
    return picked if picked.dim() > 1 else picked.reshape(1, -1)


def feature_vector(tensors: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """Concatenate features as float32, each cut or filled with zeros to its size."""
    parts = []
    for tensor, size in zip(tensors, sizes, strict=True):
        rows = tensor.float().reshape(tensor.shape[0], -1) if tensor.dim() > 1 else tensor.float()[:, None]
        parts.append(torch.nn.functional.pad(rows, (0, size - rows.shape[1])))
    return torch.cat(parts, -1)


def vectorize(
    values: Mapping[Any, Any], vocabulary: Sequence[Any], device: torch.device | None = None
) -> Any:
    """Return the values of a dictionary in the order of a vocabulary, ``[1, V]``; 0 where there is none."""
    found = [values.get(key, 0) for key in vocabulary]
    return torch.tensor([[float(value) for value in found]], device=device)


def zip_map(scores: Tensor, labels: Sequence[Any]) -> list[dict[Any, float]]:
    """Return a dictionary of scores by label, for each row."""
    if torch.compiler.is_exporting():
        raise UnsupportedError(
            "a model that returns dictionaries (ZipMap) cannot be exported",
            where="zip_map",
            expected="tensors",
            hint="export the pipeline with skl2onnx's zipmap=False, or return the scores before zip_map",
        )
    rows = scores.reshape(-1, len(labels)).tolist()
    return [dict(zip(labels, row, strict=True)) for row in rows]


def kernel_scores(
    x: Tensor, vectors: Tensor, kind: str, gamma: float = 0.0, coef0: float = 0.0, degree: float = 0.0
) -> Tensor:
    """Return the kernel of rows and support vectors, ``[N, V]``: LINEAR, POLY, RBF or SIGMOID."""
    x = x.to(vectors.dtype)
    if kind == "RBF":
        return torch.exp(-gamma * torch.cdist(x, vectors, compute_mode="donot_use_mm_for_euclid_dist") ** 2)
    product = x @ vectors.t()
    if kind == "POLY":
        return (gamma * product + coef0) ** degree
    return torch.tanh(gamma * product + coef0) if kind == "SIGMOID" else product


def pair_votes(scores: Tensor) -> Tensor:
    """Return how many pairs of classes each class wins, ``[N, C]``.

    A positive score of a pair, ``[N, C (C - 1) / 2]``, is the first class's.
    """
    first, second, count = _pairs(scores)
    wins = (scores > 0).to(scores.dtype)
    votes = scores.new_zeros(scores.shape[0], count)
    return votes.index_add(1, first, wins).index_add(1, second, 1 - wins)


def _pairs(scores: Tensor) -> tuple[Tensor, Tensor, int]:
    """Return first and second classes of the pairs, and the number of classes."""
    count = round((1 + math.sqrt(1 + 8 * scores.shape[1])) / 2)
    first, second = torch.triu_indices(count, count, 1, device=scores.device)
    return first, second, count


def pair_probabilities(scores: Tensor, slopes: Sequence[float], offsets: Sequence[float]) -> Tensor:
    """Return probabilities of classes ``[N, C]`` from scores of pairs, ``[N, C (C - 1) / 2]``.

    Slopes and offsets belong to each pair's logistic function (Platt, 1999); the pairs are coupled as
    LIBSVM does it (Wu, Lin and Weng, 2004).
    """
    first, second, count = _pairs(scores)
    slope, offset = (torch.tensor(v, dtype=scores.dtype, device=scores.device) for v in (slopes, offsets))
    wins = (1 - torch.sigmoid(scores * slope + offset)).clamp(1e-7, 1 - 1e-7)
    rates = scores.new_zeros(scores.shape[0], count, count)
    rates[:, first, second], rates[:, second, first] = wins, 1 - wins
    matrix = -rates.mT * rates
    matrix.diagonal(dim1=-2, dim2=-1).copy_(rates.square().sum(1))
    result = torch.full((scores.shape[0], count), 1 / count, dtype=scores.dtype, device=scores.device)
    for _ in range(max(100, count)):
        product = (matrix @ result[..., None])[..., 0]
        total = (result * product).sum(-1)
        is_open = (product - total[:, None]).abs().amax(-1) >= 0.005 / count
        if not bool(is_open.any()):
            break
        updated = result
        for i in range(count):
            change = (total - product[:, i]) / matrix[:, i, i]
            total = (total + change * (change * matrix[:, i, i] + 2 * product[:, i])) / (1 + change) ** 2
            scale = (1 + change)[:, None]
            product = (product + change[:, None] * matrix[:, i]) / scale
            updated = updated.clone()
            updated[:, i] += change
            updated = updated / scale
        result = torch.where(is_open[:, None], updated, result)
    return result


def tree_ensemble(
    x: Tensor,
    features: Tensor,
    splits: Tensor,
    modes: Tensor,
    yes: Tensor,
    no: Tensor,
    missing: Tensor,
    weights: Tensor,
    roots: Tensor,
    aggregate: str = "SUM",
    base: Sequence[float] = (),
    members: Tensor | None = None,
) -> Tensor:
    """Return the sums of leaves of trees, ``[N, targets]``, for ``[N, F]``.

    Of each node, `features` has the column that is compared, `splits` the value, `modes` how: 0 <=, 1 <, 2
    >=, 3 >, 4 ==, 5 !=, 6 is among `members` ``[nodes, M]``, filled with NaN. `yes` and `no` are the next
    nodes, of a leaf itself; `missing` says whether NaN is a yes. `weights` ``[nodes, targets]`` belong to
    leaves, NaN where a leaf has no such target. The trees begin at `roots`, and are joined by `aggregate`:
    SUM, AVERAGE, MIN or MAX. `base` is added: one number, or one per target.
    """
    x = x.to(splits.dtype)
    place = roots.expand(x.shape[0], -1)
    for _ in range(features.numel() + 1):  # a bound for damaged files; ends when all are at leaves
        value = x.gather(1, features[place])
        split, mode = splits[place], modes[place]
        tests = [value <= split, value < split, value >= split, value > split, value == split, value != split]
        if members is not None:
            tests.append((value[..., None] == members[place]).any(-1))
        is_so = torch.stack(tests).gather(0, mode[None])[0]
        is_so = torch.where(value.isnan(), missing[place], is_so)
        following = torch.where(is_so, yes[place], no[place])
        if torch.equal(following, place):
            break
        place = following
    found = weights[place]
    if aggregate in ("MIN", "MAX"):
        limit = torch.inf if aggregate == "MIN" else -torch.inf
        filled = found.nan_to_num(nan=limit)
        total = filled.amin(1) if aggregate == "MIN" else filled.amax(1)
        total = torch.where(found.isnan().all(1), torch.zeros_like(total), total)
    else:
        total = found.nansum(1)
        total = total / roots.numel() if aggregate == "AVERAGE" else total
    return total + torch.tensor(base, dtype=total.dtype, device=total.device) if len(base) else total


# Strings: numpy arrays of Python's strings, since torch has none; their tokens and regular expressions.
# Regular expressions are those of RE2, to whose syntax ONNX refers: a match takes time linear in the
# text. In Python's `re` it takes exponential time for some patterns, and patterns come from files.


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
