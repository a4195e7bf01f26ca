"""torch's schedulers as schedules."""

from __future__ import annotations

import array
import warnings
from collections.abc import Callable

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from burnt.errors import ConfigError, OptimError
from burnt.optim.schedules.base import Schedule, check_rates, invalid, stable_text


class TorchSchedule(Schedule, kw_only=False, dict=True):
    """Any scheduler of torch, or of a library that derives from torch's, as a function of the step.

    A scheduler of its own is stepped on an optimizer without parameters of the model; the rates are kept, so
    that a resumed training gets those of an uninterrupted one. The first rate of a training resumed at step n
    takes n steps of the scheduler. Only the rate is taken over, not a momentum that the scheduler cycles. It
    cannot be saved as JSON.

    Args:
        make: makes the scheduler of a `torch.optim.Optimizer` with one parameter group.
        lr: the initial rate of that optimizer.

    Raises:
        ConfigError: `make` returns no scheduler of the optimizer it is given, or ReduceLROnPlateau, which
            needs a metric: `burnt.train.Plateau` is burnt's.

    >>> from torch.optim.lr_scheduler import StepLR
    >>> schedule = TorchSchedule(lambda optimizer: StepLR(optimizer, 2, gamma=0.5), lr=1.0)
    >>> [schedule(step) for step in range(5)]
    [1.0, 1.0, 0.5, 0.5, 0.25]
    """

    make: Callable[[torch.optim.Optimizer], LRScheduler]
    lr: float

    def __post_init__(self) -> None:
        if not callable(self.make):
            raise invalid(self, "make", "a function of a torch.optim.Optimizer", self.make)
        super().__post_init__()
        check_rates(self, "lr")
        # Schedulers that cycle the momentum need an optimizer with one.
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=self.lr, momentum=0.9)
        try:
            scheduler = self.make(optimizer)
        except (ValueError, TypeError) as error:
            raise ConfigError("TorchSchedule cannot be built", where="make", found=str(error)) from error
        if isinstance(scheduler, ReduceLROnPlateau):
            raise invalid(
                self, "make", "a scheduler that needs only the step", scheduler,
                hint="burnt.train.Plateau(1e-3, metric=...) reduces the rate when a metric stalls",
            )  # fmt: skip
        if not isinstance(scheduler, LRScheduler) or scheduler.optimizer is not optimizer:
            raise invalid(self, "make", "a scheduler of the optimizer that it is given", scheduler)
        self.__dict__.update(scheduler=scheduler, rates=array.array("d", [_rate(optimizer)]))

    def __call__(self, step: int) -> float:
        """Return the scheduler's rate.

        Raises:
            OptimError: the scheduler has no rate for this step.
        """
        scheduler: LRScheduler = self.__dict__["scheduler"]
        rates: array.array[float] = self.__dict__["rates"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's SequentialLR calls what torch itself deprecates
            while len(rates) <= step:
                scheduler.optimizer.step()
                try:
                    scheduler.step()
                except ValueError as error:
                    raise OptimError(
                        f"{type(scheduler).__name__} has no learning rate for step {len(rates)}",
                        found=str(error),
                        hint="give it as many steps as the training has",
                    ) from error
                rates.append(_rate(scheduler.optimizer))
        return rates[step]

    def __repr__(self) -> str:
        return f"TorchSchedule({stable_text(self.make)}, lr={self.lr})"


def _rate(optimizer: torch.optim.Optimizer) -> float:
    return float(optimizer.param_groups[0]["lr"])
