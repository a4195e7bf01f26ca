"""What a classifier's scores say: classes and their probabilities. Needs only NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def classify(
    scores: np.ndarray[Any, Any], classes: Sequence[str], is_multi_label: bool, is_probability: bool
) -> tuple[list[Any], np.ndarray[Any, Any]] | None:
    """Return the class of each item and the probabilities of all; None if the scores are of something else.

    `burnt predict`, the server and a page (in `export/page.js`) decide so. Of a class for each item, scores
    that are at least 0 and have the sum 1 are probabilities; of any others the softmax is taken. Of several
    labels, and of one score for two classes, which is the second one's, the sigmoid is taken.

    Args:
        scores: ``[n, classes]``; or ``[n]`` or ``[n, 1]`` for two classes.
        classes: their names.
        is_multi_label: whether an item may have several, or none; its class is the list of them.
        is_probability: whether the model itself takes the sigmoid.

    Returns:
        the classes, None for an item whose scores are not finite, and ``[n, classes]`` of float64.

    >>> labels, shares = classify(np.array([[0.25, 0.75], [0.0, 0.0]]), ["a", "b"], False, False)
    >>> labels, shares.tolist()
    (['b', 'a'], [[0.25, 0.75], [0.5, 0.5]])
    """
    wide = scores.astype(np.float64)
    is_single = wide.size == len(wide) and len(classes) == 2
    is_logit = is_single or is_multi_label
    if not (is_single or wide.shape[1:] == (len(classes),)) or (is_logit and scores.dtype.kind != "f"):
        return None
    with np.errstate(invalid="ignore", over="ignore"):  # an infinite score has no softmax: NaN
        if is_logit:
            shares = wide if is_probability else 1 / (1 + np.exp(-wide))
            shares = np.stack([1 - shares.ravel(), shares.ravel()], 1) if is_single else shares
        else:
            powers = np.exp(wide - wide.max(1, keepdims=True))
            are_given = (wide >= 0).all(1, keepdims=True) & (abs(wide.sum(1, keepdims=True) - 1) < 1e-4)
            shares = np.where(are_given, wide, powers / powers.sum(1, keepdims=True))
    if is_multi_label and not is_single:
        return [[classes[i] for i in np.flatnonzero(row >= 0.5).tolist()] for row in shares], shares
    best, are_known = shares.argmax(1).tolist(), np.isfinite(shares.min(1))
    return [classes[i] if is_known else None for i, is_known in zip(best, are_known, strict=True)], shares
