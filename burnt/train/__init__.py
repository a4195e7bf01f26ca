"""Training: the Learner, the training loop, metrics, checkpoints and the run store.

Public names are imported on first use. Neither this package nor `burnt.store` imports torch, so that
viewers start fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from burnt._lazy import attach

if TYPE_CHECKING:
    from burnt.store import RunReader, RunWriter, find_runs
    from burnt.train import metrics, store
    from burnt.train.after.batch_norm import update_batch_norm
    from burnt.train.after.evaluation import evaluate
    from burnt.train.after.prediction import predict
    from burnt.train.checkpoints.checkpoint import (
        Checkpoints,
        Every,
        KeepBest,
        KeepLast,
        Saved,
        TrainingState,
    )
    from burnt.train.checks.batch_size_finder import find_batch_size
    from burnt.train.checks.rate_finder import find_learning_rate
    from burnt.train.control.interrupt import Interrupted
    from burnt.train.control.plateau import Plateau
    from burnt.train.control.stopping import EarlyStopping
    from burnt.train.duration import Duration, Position
    from burnt.train.learner import Learner
    from burnt.train.logged import Histogram, Image, Table
    from burnt.train.reporting.system import SystemSampler
    from burnt.train.rewind.replaying import replay
    from burnt.train.sinks import MLflow, TensorBoard, WandB
    from burnt.train.sinks.profiling import Profiler
    from burnt.train.step import ClassificationOutput, StepOutput
    from burnt.train.training import SupervisedTraining, TrainingResult
    from burnt.train.updates.manual import StepOptimizers

_HOMES = {
    "Checkpoints": "burnt.train.checkpoints.checkpoint",
    "ClassificationOutput": "burnt.train.step",
    "Duration": "burnt.train.duration",
    "EarlyStopping": "burnt.train.control.stopping",
    "Every": "burnt.train.checkpoints.checkpoint",
    "Histogram": "burnt.train.logged",
    "Image": "burnt.train.logged",
    "Interrupted": "burnt.train.control.interrupt",
    "KeepBest": "burnt.train.checkpoints.checkpoint",
    "KeepLast": "burnt.train.checkpoints.checkpoint",
    "Learner": "burnt.train.learner",
    "MLflow": "burnt.train.sinks",
    "Plateau": "burnt.train.control.plateau",
    "Position": "burnt.train.duration",
    "Profiler": "burnt.train.sinks.profiling",
    "RunReader": "burnt.store",
    "RunWriter": "burnt.store",
    "Saved": "burnt.train.checkpoints.checkpoint",
    "StepOptimizers": "burnt.train.updates.manual",
    "StepOutput": "burnt.train.step",
    "SupervisedTraining": "burnt.train.training",
    "SystemSampler": "burnt.train.reporting.system",
    "Table": "burnt.train.logged",
    "TensorBoard": "burnt.train.sinks",
    "TrainingResult": "burnt.train.training",
    "TrainingState": "burnt.train.checkpoints.checkpoint",
    "WandB": "burnt.train.sinks",
    "evaluate": "burnt.train.after.evaluation",
    "find_batch_size": "burnt.train.checks.batch_size_finder",
    "find_learning_rate": "burnt.train.checks.rate_finder",
    "find_runs": "burnt.store",
    "metrics": "burnt.train.metrics",
    "replay": "burnt.train.rewind.replaying",
    "predict": "burnt.train.after.prediction",
    "store": "burnt.train.store",
    "update_batch_norm": "burnt.train.after.batch_norm",
}
if not TYPE_CHECKING:  # with a __getattr__, type checkers would accept every name, misspelt ones too
    __getattr__, __dir__ = attach(globals(), _HOMES)

__all__ = [
    "Checkpoints",
    "ClassificationOutput",
    "Duration",
    "EarlyStopping",
    "Every",
    "Histogram",
    "Image",
    "Interrupted",
    "KeepBest",
    "KeepLast",
    "Learner",
    "MLflow",
    "Plateau",
    "Position",
    "Profiler",
    "RunReader",
    "RunWriter",
    "Saved",
    "StepOptimizers",
    "StepOutput",
    "SupervisedTraining",
    "SystemSampler",
    "Table",
    "TensorBoard",
    "TrainingResult",
    "TrainingState",
    "WandB",
    "evaluate",
    "find_batch_size",
    "find_learning_rate",
    "find_runs",
    "metrics",
    "predict",
    "replay",
    "store",
    "update_batch_norm",
]
