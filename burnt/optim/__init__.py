"""Optimizers and learning-rate schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from burnt._hints import no_attribute
from burnt.optim.adafactor import Adafactor
from burnt.optim.adagrad import Adadelta, Adagrad, RmsProp
from burnt.optim.adam import Adam, Adamax, AdamW, Adan, Lamb, NAdam, RAdam
from burnt.optim.averages import Ema, Swa
from burnt.optim.groups import Group, Groups, matrices
from burnt.optim.lbfgs import Lbfgs
from burnt.optim.lion import Lion
from burnt.optim.muon import Muon
from burnt.optim.optimizer import Optimizer, OptimizerRecord
from burnt.optim.schedule_free import ScheduleFreeAdamW
from burnt.optim.schedules import (
    Constant,
    Cosine,
    CosineRestarts,
    Cyclic,
    Exponential,
    Function,
    InverseSqrt,
    Linear,
    Mean,
    Multiplicative,
    MultiStep,
    Noam,
    OneCycle,
    Polynomial,
    Product,
    Schedule,
    Sequential,
    Step,
    Sum,
    TorchSchedule,
    Warmup,
    WarmupStableDecay,
    plot,
)
from burnt.optim.sgd import Sgd

__all__ = [
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Adan",
    "Constant",
    "Cosine",
    "CosineRestarts",
    "Cyclic",
    "Ema",
    "Exponential",
    "Function",
    "Group",
    "Groups",
    "InverseSqrt",
    "Lamb",
    "Lbfgs",
    "Linear",
    "Lion",
    "Mean",
    "MultiStep",
    "Multiplicative",
    "Muon",
    "NAdam",
    "Noam",
    "OneCycle",
    "Optimizer",
    "OptimizerRecord",
    "Polynomial",
    "Product",
    "RAdam",
    "RmsProp",
    "Schedule",
    "ScheduleFreeAdamW",
    "Sequential",
    "Sgd",
    "Step",
    "Sum",
    "Swa",
    "TorchSchedule",
    "Warmup",
    "WarmupStableDecay",
    "matrices",
    "plot",
]

if not TYPE_CHECKING:  # with a __getattr__, type checkers would accept every name, misspelt ones too

    def __getattr__(name: str) -> Any:
        raise no_attribute(__name__, name, __all__)
