"""Training: the Learner, the training loop, metrics, checkpoints and the run store.

Public names are imported on first use. Neither this package nor `burnt.train.store` imports torch, so that
viewers start fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from burnt._lazy import attach

if TYPE_CHECKING:
    from burnt.train import metrics, store
    from burnt.train.batch_norm import update_batch_norm
    from burnt.train.batch_size_finder import find_batch_size
    from burnt.train.checkpoint import Checkpoints, Every, KeepBest, KeepLast, Saved
    from burnt.train.duration import Duration, Position
    from burnt.train.evaluation import evaluate
    from burnt.train.interrupt import Interrupted
    from burnt.train.learner import Learner
    from burnt.train.logged import Histogram, Image, Table
    from burnt.train.manual import StepOptimizers
    from burnt.train.plateau import Plateau
    from burnt.train.prediction import predict
    from burnt.train.profiling import Profiler
    from burnt.train.rate_finder import find_learning_rate
    from burnt.train.replaying import replay
    from burnt.train.sinks import MLflow, TensorBoard, WandB
    from burnt.train.step import ClassificationOutput, StepOutput
    from burnt.train.stopping import EarlyStopping
    from burnt.train.store import RunReader, RunWriter, find_runs
    from burnt.train.system import SystemSampler
    from burnt.train.training import SupervisedTraining, TrainingResult

_HOMES = {
    "Checkpoints": "burnt.train.checkpoint",
    "ClassificationOutput": "burnt.train.step",
    "Duration": "burnt.train.duration",
    "EarlyStopping": "burnt.train.stopping",
    "Every": "burnt.train.checkpoint",
    "Histogram": "burnt.train.logged",
    "Image": "burnt.train.logged",
    "Interrupted": "burnt.train.interrupt",
    "KeepBest": "burnt.train.checkpoint",
    "KeepLast": "burnt.train.checkpoint",
    "Learner": "burnt.train.learner",
    "MLflow": "burnt.train.sinks",
    "Plateau": "burnt.train.plateau",
    "Position": "burnt.train.duration",
    "Profiler": "burnt.train.profiling",
    "RunReader": "burnt.train.store",
    "RunWriter": "burnt.train.store",
    "Saved": "burnt.train.checkpoint",
    "StepOptimizers": "burnt.train.manual",
    "StepOutput": "burnt.train.step",
    "SupervisedTraining": "burnt.train.training",
    "SystemSampler": "burnt.train.system",
    "Table": "burnt.train.logged",
    "TensorBoard": "burnt.train.sinks",
    "TrainingResult": "burnt.train.training",
    "WandB": "burnt.train.sinks",
    "evaluate": "burnt.train.evaluation",
    "find_batch_size": "burnt.train.batch_size_finder",
    "find_learning_rate": "burnt.train.rate_finder",
    "find_runs": "burnt.train.store",
    "metrics": "burnt.train.metrics",
    "replay": "burnt.train.replaying",
    "predict": "burnt.train.prediction",
    "store": "burnt.train.store",
    "update_batch_norm": "burnt.train.batch_norm",
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
