"""Optimizers and learning-rate schedules."""

from __future__ import annotations

from burnt.optim.adam import Adam, AdamW
from burnt.optim.muon import Muon
from burnt.optim.optimizer import Optimizer, OptimizerRecord
from burnt.optim.schedules import Constant, Cosine, Linear, Schedule, Sequential, Warmup
from burnt.optim.sgd import Sgd

__all__ = [
    "Adam",
    "AdamW",
    "Constant",
    "Cosine",
    "Linear",
    "Muon",
    "Optimizer",
    "OptimizerRecord",
    "Schedule",
    "Sequential",
    "Sgd",
    "Warmup",
]
