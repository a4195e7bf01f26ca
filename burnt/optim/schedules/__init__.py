"""Learning-rate schedules: frozen values that map a step number to a learning rate.

A schedule depends only on the number of finished steps: it has no other state, and can be evaluated for any
step at any time. Schedules are Configs, so they can be fields of a user's Config and are saved as JSON. The
reduction of the rate when a metric stalls has a state: it is `burnt.train.Plateau`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from burnt._lazy import own_names
from burnt.optim.schedules.base import Constant as Constant
from burnt.optim.schedules.base import Function as Function
from burnt.optim.schedules.base import Schedule as Schedule
from burnt.optim.schedules.base import ScheduleLike as ScheduleLike
from burnt.optim.schedules.base import as_schedule as as_schedule
from burnt.optim.schedules.base import plot as plot
from burnt.optim.schedules.combined import Mean as Mean
from burnt.optim.schedules.combined import Multiplicative as Multiplicative
from burnt.optim.schedules.combined import Noam as Noam
from burnt.optim.schedules.combined import Product as Product
from burnt.optim.schedules.combined import Sequential as Sequential
from burnt.optim.schedules.combined import Sum as Sum
from burnt.optim.schedules.combined import TorchSchedule as TorchSchedule
from burnt.optim.schedules.combined import Warmup as Warmup
from burnt.optim.schedules.combined import WarmupStableDecay as WarmupStableDecay
from burnt.optim.schedules.decay import Cosine as Cosine
from burnt.optim.schedules.decay import CosineRestarts as CosineRestarts
from burnt.optim.schedules.decay import Cyclic as Cyclic
from burnt.optim.schedules.decay import Exponential as Exponential
from burnt.optim.schedules.decay import InverseSqrt as InverseSqrt
from burnt.optim.schedules.decay import Linear as Linear
from burnt.optim.schedules.decay import MultiStep as MultiStep
from burnt.optim.schedules.decay import OneCycle as OneCycle
from burnt.optim.schedules.decay import Polynomial as Polynomial
from burnt.optim.schedules.decay import Step as Step

if not TYPE_CHECKING:  # type checkers take the imports above as exports
    __all__ = sorted({*own_names(globals()), "ScheduleLike"} - {"as_schedule"})
