"""StepOutcomes: norms of gradients, the loss scale, and steps that change nothing as they are not finite."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from burnt.kernels import StepResult
from burnt.train.checkpoints.buffers import BufferCopies
from burnt.train.step import StepOutput
from burnt.train.updates.optimizer_step import GradientRules


@dataclasses.dataclass(frozen=True)
class NonFinite:
    """Why a step changed nothing."""

    what: str  # "the loss" or "a gradient"
    value: float  # of the first loss; NaN for a gradient
    batches: tuple[int, ...] | None  # with such a loss, by their place in the window; None for a gradient


class StepOutcomes:
    """What came of the steps: the norms of their gradients, the loss scale, and steps that were skipped.

    Where the rules skip steps, each loss is looked at, which waits for the device, and the buffers that a
    forward pass has changed are put back. `non_finite` says why the step in progress, or the last one,
    changes nothing; None unless it is skipped. Of several processes, `agreed` returns for the loss of one the
    first that is not finite.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        rules: GradientRules,
        agreed: Callable[[float], float] | None = None,
    ) -> None:
        self._agreed = agreed
        self.non_finite: NonFinite | None = None
        self._rules = rules
        self._skipped = 0
        self._buffers = BufferCopies(model) if rules.skip_non_finite else None
        self._norms: dict[str, list[Tensor]] = {}

    def begin_step(self) -> None:
        """Copy the buffers, if the step may be skipped."""
        if self._buffers is not None:
            self.non_finite = None
            self._buffers.take()

    def accepts(self, output: StepOutput, number: int) -> bool:
        """Whether the loss of a micro-batch is finite; unless the rules skip steps, it is not looked at."""
        if self._buffers is None:
            return True
        loss = float(output.loss.detach()) if output.count else 0.0
        if self._agreed is not None:
            loss = self._agreed(loss)
        if math.isfinite(loss):
            return True
        earlier = self.non_finite
        if earlier is None or earlier.batches is None:
            self.non_finite = NonFinite("the loss", loss, (number,))
        else:
            self.non_finite = dataclasses.replace(earlier, batches=(*earlier.batches, number))
        # At once: running statistics that are not finite would spoil the next micro-batch.
        self._buffers.restore()
        return False

    def end_step(self, results: Iterable[tuple[str, StepResult | None]]) -> NonFinite | None:
        """Store what the optimizers returned, by name; adapt the loss scale; return why it was skipped."""
        rules, scale = self._rules, self._rules.loss_scale
        if scale is None and self._buffers is None and rules.norm_limit is None:
            return None
        returned = [(name, result) for name, result in results if result is not None]
        if rules.norm_limit is not None:
            for name, result in returned:
                if result.norm is not None:
                    self._norms.setdefault(name, []).append(result.norm)
        if scale is not None:
            skipped = [result.skipped.to(scale.value.device) for _, result in returned]
            if self.non_finite is not None and not skipped:
                skipped = [torch.ones_like(scale.value, dtype=torch.bool)]
            if skipped:
                scale.update(functools.reduce(torch.logical_or, skipped))
        # With a loss scale, gradients that overflow are nothing unusual: the scale adapts.
        elif (
            self._buffers is not None
            and self.non_finite is None
            and any(bool(r.skipped) for _, r in returned)
        ):
            self.non_finite = NonFinite("a gradient", math.nan, None)
        if self._buffers is not None and self.non_finite is not None:
            self._skipped += 1
            self._buffers.restore()
        return self.non_finite

    def readings(self) -> dict[str, float]:
        """Return what is logged of the steps since the last call; waits for the device.

        ``gradient_norm`` is the mean of the norms before clipping, over the steps in which it was finite.
        """
        scale = self._rules.loss_scale
        of_scale = [] if scale is None else [scale.value, scale.skipped]
        tensors = [norm for norms in self._norms.values() for norm in norms] + of_scale
        place = tensors[0].device if tensors else None  # a model in parts has the scale and norms elsewhere
        numbers = iter(torch.stack([t.to(place, torch.float32) for t in tensors]).tolist() if tensors else [])
        values = {}
        for name, norms in self._norms.items():
            finite = [norm for norm in itertools.islice(numbers, len(norms)) if math.isfinite(norm)]
            if finite:
                values["gradient_norm" + (f"/{name}" if name else "")] = math.fsum(finite) / len(finite)
        self._norms = {}
        if scale is not None:
            values |= {"loss_scale": next(numbers), "skipped_steps": next(numbers)}
        elif self._rules.skip_non_finite:
            values["skipped_steps"] = float(self._skipped)
        return values

    def state(self) -> dict[str, Any]:
        """Return the state to save in a checkpoint."""
        scale = self._rules.loss_scale
        return {
            "skipped": self._skipped,
            "norms": {name: torch.stack(norms).tolist() for name, norms in self._norms.items()},
            **({} if scale is None else {"loss_scale": scale.state()}),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state from a checkpoint, which may have been saved with another precision."""
        self._skipped = state["skipped"]
        self._norms = {name: list(torch.tensor(norms)) for name, norms in state["norms"].items()}
        if self._rules.loss_scale is not None and "loss_scale" in state:
            self._rules.loss_scale.load_state(state["loss_scale"])
