"""Optimizers and learning-rate schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from burnt._hints import no_attribute
from burnt._lazy import own_names
from burnt.optim.adagrad import Adadelta as Adadelta
from burnt.optim.adagrad import Adafactor as Adafactor
from burnt.optim.adagrad import Adagrad as Adagrad
from burnt.optim.adagrad import RmsProp as RmsProp
from burnt.optim.adam import Adam as Adam
from burnt.optim.adam import Adamax as Adamax
from burnt.optim.adam import AdamW as AdamW
from burnt.optim.adam import Adan as Adan
from burnt.optim.adam import Lamb as Lamb
from burnt.optim.adam import NAdam as NAdam
from burnt.optim.adam import RAdam as RAdam
from burnt.optim.adam import ScheduleFreeAdamW as ScheduleFreeAdamW
from burnt.optim.averages import Ema as Ema
from burnt.optim.averages import Swa as Swa
from burnt.optim.groups import Group as Group
from burnt.optim.groups import Groups as Groups
from burnt.optim.groups import matrices as matrices
from burnt.optim.lbfgs import Lbfgs as Lbfgs
from burnt.optim.optimizer import Optimizer as Optimizer
from burnt.optim.optimizer import OptimizerRecord as OptimizerRecord
from burnt.optim.schedules import *  # noqa: F403
from burnt.optim.sgd import Lion as Lion
from burnt.optim.sgd import Muon as Muon
from burnt.optim.sgd import Sgd as Sgd

if not TYPE_CHECKING:  # with a __getattr__, type checkers would accept every name, misspelt ones too
    __all__ = own_names(globals())

    def __getattr__(name: str) -> Any:
        raise no_attribute(__name__, name, __all__)
