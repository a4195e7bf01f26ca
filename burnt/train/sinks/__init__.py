"""Sinks: callbacks that mirror a run to another tracker, during the training.

base         Sink: follows the run store in a thread, for all of them
tensorboard  TensorBoard: event files
wandb        WandB: Weights & Biases
mlflow       MLflow
"""

from __future__ import annotations

from burnt.train.sinks.base import Records, Run, Sink
from burnt.train.sinks.mlflow import MLflow
from burnt.train.sinks.tensorboard import TensorBoard
from burnt.train.sinks.wandb import WandB

__all__ = ["MLflow", "Records", "Run", "Sink", "TensorBoard", "WandB"]
