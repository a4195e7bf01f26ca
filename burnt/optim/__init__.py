"""Optimizers and learning-rate schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from burnt._hints import no_attribute
from burnt.optim.adam import Adam, AdamW
from burnt.optim.averages import Ema, Swa
from burnt.optim.groups import Group, Groups, matrices
from burnt.optim.muon import Muon
from burnt.optim.optimizer import Optimizer, OptimizerRecord
from burnt.optim.schedules import Constant, Cosine, Linear, Schedule, Sequential, Warmup
from burnt.optim.sgd import Sgd

__all__ = [
    "Adam",
    "AdamW",
    "Constant",
    "Cosine",
    "Ema",
    "Group",
    "Groups",
    "Linear",
    "Muon",
    "Optimizer",
    "OptimizerRecord",
    "Schedule",
    "Sequential",
    "Sgd",
    "Swa",
    "Warmup",
    "matrices",
]

if not TYPE_CHECKING:  # with a __getattr__, type checkers would accept every name, misspelt ones too

    def __getattr__(name: str) -> Any:
        raise no_attribute(__name__, name, __all__)
