"""Whether a trial that runs is worth going on with, by the values of the others.

Trials are compared after as many validations, as their steps may be of different sizes.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

_MIN_COMPLETE = 5  # trials before the first is pruned by the median
_FACTOR = 3  # of halving: how many times as many values a rung has, and one of how many trials goes on


def should_prune(
    rule: str, values: Sequence[float], complete: Sequence[Sequence[float]], others: Sequence[Sequence[float]]
) -> bool:
    """Whether to stop a trial.

    Args:
        rule: ``"median"``: its best value is worse than the median of the complete trials' values at that
            point (Optuna's MedianPruner), of which there must be 5; ``"halving"``: after 1, 3, 9 ... values,
            it is not in the best third of all trials that came as far (Li et al., 2020); ``"none"``: never.
        values: the trial's values so far; lower is better here and below.
        complete: the values of the complete trials.
        others: the values of all other trials.

    >>> should_prune("halving", [0.5], [], [[0.1], [0.2], [0.3]])
    True
    """
    count = len(values)
    if rule == "none" or not count:
        return False
    if rule == "median":
        if len(complete) < _MIN_COMPLETE:
            return False
        there = [curve[count - 1] for curve in complete if len(curve) >= count]
        return bool(there) and min(values) > statistics.median(there)
    rung = 1
    while rung * _FACTOR <= count:
        rung *= _FACTOR
    bests = sorted([min(curve[:rung]) for curve in others if len(curve) >= rung])
    allowed = max((len(bests) + 1) // _FACTOR, 1)
    return len(bests) >= allowed and min(values[:rung]) > bests[allowed - 1]
