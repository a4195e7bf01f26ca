"""Metrics: objects that accumulate sums on the device during training and validation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from burnt._hints import no_attribute
from burnt.train.metrics.accuracy import Accuracy, ConfusionMatrix, TopKAccuracy
from burnt.train.metrics.base import EpochMetric, Loss, Metric, intervals, read
from burnt.train.metrics.curves import CalibrationCurve, PrecisionRecallCurve, RocCurve
from burnt.train.metrics.language import Perplexity, TokensPerSecond
from burnt.train.metrics.shortcuts import (
    AUROC,
    CER,
    F1,
    MAE,
    MCC,
    PSNR,
    R2,
    RMSE,
    SSIM,
    WER,
    AveragePrecision,
    BinaryAccuracy,
    CalibrationError,
    Dice,
    FBeta,
    IoU,
    MultilabelAccuracy,
    Precision,
    Recall,
)
from burnt.train.metrics.torch_metric import TorchMetric

if not TYPE_CHECKING:  # with a __getattr__, type checkers would accept every name, misspelt ones too

    def __getattr__(name: str) -> Any:
        raise no_attribute(__name__, name, __all__)


__all__ = [
    "AUROC",
    "CER",
    "F1",
    "MAE",
    "MCC",
    "PSNR",
    "R2",
    "RMSE",
    "SSIM",
    "WER",
    "Accuracy",
    "AveragePrecision",
    "BinaryAccuracy",
    "CalibrationCurve",
    "CalibrationError",
    "ConfusionMatrix",
    "Dice",
    "EpochMetric",
    "FBeta",
    "IoU",
    "Loss",
    "Metric",
    "MultilabelAccuracy",
    "Perplexity",
    "Precision",
    "PrecisionRecallCurve",
    "Recall",
    "RocCurve",
    "TokensPerSecond",
    "TopKAccuracy",
    "TorchMetric",
    "intervals",
    "read",
]
