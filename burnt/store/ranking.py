"""Which of two values of a metric is better."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# The run store does not record the better direction of a metric, so it is inferred from its name.
_LOWER_IS_BETTER = {
    "loss", "error", "perplexity", "nll", "mse", "rmse", "mae", "wer", "cer", "fid", "bpc", "bpb",
}  # fmt: skip
_HIGHER_IS_BETTER = {
    "accuracy", "precision", "recall", "f1", "fbeta", "auc", "auroc", "iou", "dice", "bleu", "rouge", "map",
    "psnr", "ssim", "r2",
}  # fmt: skip


def better_direction(name: str, config: Mapping[str, Any] | None = None) -> str | None:
    """Return the better direction of a metric, ``"lower"`` or ``"higher"``; None if unknown.

    The run's configuration declares it for the metrics passed to the training; for others it is inferred from
    the name, which may have its split.

    >>> better_direction("loss"), better_direction("accuracy_top5"), better_direction("learning_rate")
    ('lower', 'higher', None)
    >>> better_direction("valid/words", {"metrics": {"words": "higher"}})
    'higher'
    """
    given = config.get("metrics") if isinstance(config, Mapping) else None
    directions = given if isinstance(given, Mapping) else {}
    parts = name.split("/")  # a split, a metric, and of "f1/cat" a class
    names = ["/".join(parts[i:]) for i in range(len(parts))] + parts
    declared = next((directions[one] for one in names if one in directions), None)
    if declared in ("lower", "higher"):
        return str(declared)
    words = set("".join(c if c.isalnum() else " " for c in name.lower()).split())
    return "lower" if words & _LOWER_IS_BETTER else "higher" if words & _HIGHER_IS_BETTER else None
