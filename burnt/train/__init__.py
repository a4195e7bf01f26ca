"""Training: the Learner, the training loop, metrics, checkpoints and the run store.

Public names are imported on first use. Neither this package nor `burnt.store` imports torch, so that
viewers start fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from burnt._lazy import attach

if TYPE_CHECKING:
    from burnt.store import RunReader as RunReader
    from burnt.store import RunWriter as RunWriter
    from burnt.store import find_runs as find_runs
    from burnt.train import metrics as metrics
    from burnt.train import store as store
    from burnt.train.after.batch_norm import update_batch_norm as update_batch_norm
    from burnt.train.after.evaluation import evaluate as evaluate
    from burnt.train.after.prediction import predict as predict
    from burnt.train.checkpoints.checkpoint import Checkpoints as Checkpoints
    from burnt.train.checkpoints.checkpoint import Every as Every
    from burnt.train.checkpoints.checkpoint import KeepBest as KeepBest
    from burnt.train.checkpoints.checkpoint import KeepLast as KeepLast
    from burnt.train.checkpoints.checkpoint import Saved as Saved
    from burnt.train.checkpoints.checkpoint import TrainingState as TrainingState
    from burnt.train.checks.batch_size_finder import find_batch_size as find_batch_size
    from burnt.train.checks.rate_finder import find_learning_rate as find_learning_rate
    from burnt.train.control.end_reason import Interrupted as Interrupted
    from burnt.train.control.plateau import Plateau as Plateau
    from burnt.train.control.stopping import EarlyStopping as EarlyStopping
    from burnt.train.duration import Duration as Duration
    from burnt.train.duration import Position as Position
    from burnt.train.learner import Learner as Learner
    from burnt.train.logged import Histogram as Histogram
    from burnt.train.logged import Image as Image
    from burnt.train.logged import Table as Table
    from burnt.train.ranks.ranks import Ranks as Ranks
    from burnt.train.ranks.sharded import ShardedRanks as ShardedRanks
    from burnt.train.reporting.system import SystemSampler as SystemSampler
    from burnt.train.rewind.replaying import replay as replay
    from burnt.train.sinks import MLflow as MLflow
    from burnt.train.sinks import TensorBoard as TensorBoard
    from burnt.train.sinks import WandB as WandB
    from burnt.train.sinks.profiling import Profiler as Profiler
    from burnt.train.step import ClassificationOutput as ClassificationOutput
    from burnt.train.step import StepOutput as StepOutput
    from burnt.train.training import SupervisedTraining as SupervisedTraining
    from burnt.train.training import TrainingResult as TrainingResult
    from burnt.train.updates.manual import StepOptimizers as StepOptimizers

_NAMES = {
    "burnt.store": "RunReader RunWriter find_runs",
    "burnt.train": "metrics store",
    "burnt.train.after.batch_norm": "update_batch_norm",
    "burnt.train.after.evaluation": "evaluate",
    "burnt.train.after.prediction": "predict",
    "burnt.train.checkpoints.checkpoint": "Checkpoints Every KeepBest KeepLast Saved TrainingState",
    "burnt.train.checks.batch_size_finder": "find_batch_size",
    "burnt.train.checks.rate_finder": "find_learning_rate",
    "burnt.train.control.end_reason": "Interrupted",
    "burnt.train.control.plateau": "Plateau",
    "burnt.train.control.stopping": "EarlyStopping",
    "burnt.train.duration": "Duration Position",
    "burnt.train.learner": "Learner",
    "burnt.train.logged": "Histogram Image Table",
    "burnt.train.ranks.ranks": "Ranks",
    "burnt.train.ranks.sharded": "ShardedRanks",
    "burnt.train.reporting.system": "SystemSampler",
    "burnt.train.rewind.replaying": "replay",
    "burnt.train.sinks": "MLflow TensorBoard WandB",
    "burnt.train.sinks.profiling": "Profiler",
    "burnt.train.step": "ClassificationOutput StepOutput",
    "burnt.train.training": "SupervisedTraining TrainingResult",
    "burnt.train.updates.manual": "StepOptimizers",
}
if not TYPE_CHECKING:  # with a __getattr__, type checkers would accept every name, misspelt ones too
    __getattr__, __dir__, __all__ = attach(globals(), _NAMES)
