"""Learning-rate schedules: frozen values that map a step number to a learning rate.

A schedule depends only on the number of finished steps: it has no other state, and can be evaluated for any
step at any time. Schedules are Configs, so they can be fields of a user's Config and are saved as JSON. The
reduction of the rate when a metric stalls has a state: it is `burnt.train.Plateau`.
"""

from __future__ import annotations

from burnt.optim.schedules.adapter import TorchSchedule
from burnt.optim.schedules.base import Constant, Function, Schedule
from burnt.optim.schedules.base import ScheduleLike as ScheduleLike
from burnt.optim.schedules.base import as_schedule as as_schedule
from burnt.optim.schedules.combined import Mean, Multiplicative, Product, Sequential, Sum
from burnt.optim.schedules.cyclic import CosineRestarts, Cyclic, OneCycle
from burnt.optim.schedules.decay import (
    Cosine,
    Exponential,
    InverseSqrt,
    Linear,
    MultiStep,
    Polynomial,
    Step,
)
from burnt.optim.schedules.drawing import plot
from burnt.optim.schedules.warmup import Noam, Warmup, WarmupStableDecay

__all__ = [
    "Constant",
    "Cosine",
    "CosineRestarts",
    "Cyclic",
    "Exponential",
    "Function",
    "InverseSqrt",
    "Linear",
    "Mean",
    "MultiStep",
    "Multiplicative",
    "Noam",
    "OneCycle",
    "Polynomial",
    "Product",
    "Schedule",
    "Sequential",
    "Step",
    "Sum",
    "TorchSchedule",
    "Warmup",
    "WarmupStableDecay",
    "plot",
]
