"""Metrics: objects that accumulate sums on the device during training and validation."""

from __future__ import annotations

from burnt.train.metrics.accuracy import Accuracy
from burnt.train.metrics.base import Metric, intervals, read
from burnt.train.metrics.confusion import ConfusionMatrix
from burnt.train.metrics.loss import Loss

__all__ = ["Accuracy", "ConfusionMatrix", "Loss", "Metric", "intervals", "read"]
