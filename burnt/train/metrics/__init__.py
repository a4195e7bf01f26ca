"""Metrics: objects that accumulate sums on the device during training and validation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from burnt._hints import no_attribute
from burnt.train.metrics.accuracy import Accuracy, ConfusionMatrix
from burnt.train.metrics.base import Loss, Metric, intervals, read

if not TYPE_CHECKING:  # with a __getattr__, type checkers would accept every name, misspelt ones too

    def __getattr__(name: str) -> Any:
        raise no_attribute(__name__, name, __all__)


__all__ = ["Accuracy", "ConfusionMatrix", "Loss", "Metric", "intervals", "read"]
