"""Optimizers and learning-rate schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from burnt._hints import no_attribute
from burnt.optim import schedules
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
from burnt.optim.schedules import *  # noqa: F403
from burnt.optim.sgd import Sgd

__all__ = [
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Adan",
    "Ema",
    "Group",
    "Groups",
    "Lamb",
    "Lbfgs",
    "Lion",
    "Muon",
    "NAdam",
    "Optimizer",
    "OptimizerRecord",
    "RAdam",
    "RmsProp",
    "ScheduleFreeAdamW",
    "Sgd",
    "Swa",
    "matrices",
    *schedules.__all__,
]

if not TYPE_CHECKING:  # with a __getattr__, type checkers would accept every name, misspelt ones too

    def __getattr__(name: str) -> Any:
        raise no_attribute(__name__, name, __all__)
