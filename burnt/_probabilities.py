"""What a classifier's scores are: probabilities, or logits that become such. Needs only NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np


def probabilities(scores: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the probabilities of classes from probabilities, logits or log-probabilities.

    An item whose scores are at least 0 and have the sum 1 is taken for probabilities, of any other the
    softmax is taken. `burnt predict`, the server and a page (in `export/page.js`) decide so.

    Args:
        scores: ``[n, classes]``.

    Returns:
        ``[n, classes]`` of float64.

    >>> probabilities(np.array([[0.25, 0.75], [0.0, 0.0]])).tolist()
    [[0.25, 0.75], [0.5, 0.5]]
    """
    wide = scores.astype(np.float64)
    are_given = (wide >= 0).all(1) & (abs(wide.sum(1) - 1) < 1e-4)
    with np.errstate(invalid="ignore"):  # an infinite score has no softmax: NaN
        powers = np.exp(wide - wide.max(1, keepdims=True))
        return np.where(are_given[:, None], wide, powers / powers.sum(1, keepdims=True))
