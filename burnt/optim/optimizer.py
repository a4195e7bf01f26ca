"""Optimizer: `torch.optim` behind `step(lr, model, grads)`, with its state kept by parameter path."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from burnt.config import Config as _Config
from burnt.config import DerivedConfig, derive_config, field_values
from burnt.errors import OptimError, nearest
from burnt.record import read_tensors, write_tensors

__all__ = ["Optimizer", "OptimizerRecord"]

# Devices and dtypes for which torch has one kernel for the whole step (measured on a CPU: 6 tensors of an MLP
# in 42 microseconds instead of 143).
_FUSED_DEVICES = frozenset({"cpu", "cuda", "mps", "xpu"})


@dataclasses.dataclass(frozen=True)
class OptimizerRecord:
    """The state of an optimizer.

    Args:
        optimizer: the class's name, ``"AdamW"``.
        options: what the optimizer was built with, without the learning rate.
        tensors: by parameter path and name, ``"head.weight/exp_avg"``.
    """

    optimizer: str
    options: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file, atomically.

        Raises:
            OSError: the folder cannot be written.
        """
        write_tensors(path, self.tensors, {"optimizer": self.optimizer, "options": dict(self.options)})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> OptimizerRecord:
        """Read what `save` wrote.

        Raises:
            RecordError: the file is damaged.
            OptimError: it holds no optimizer.
        """
        tensors, document = read_tensors(path)
        if not document or "optimizer" not in document:
            raise OptimError("this file holds no optimizer", where=os.fspath(path))
        return cls(document["optimizer"], document["options"], tensors)


class Optimizer:
    """Base of the optimizers: made without parameters, told model, gradients and learning rate at each step.

    State belongs to parameter paths, so it follows a model that was moved, forked or loaded again.

    Raises:
        OptimError: an option has a value that it cannot have.
    """

    _torch: ClassVar[type[torch.optim.Optimizer]]

    if TYPE_CHECKING:

        class Config(_Config):
            """The arguments of `__init__`; `init()` builds the optimizer."""

            def __init__(self, **values: Any) -> None: ...

            def init(self) -> Any:
                """Build the optimizer."""

    else:
        Config = DerivedConfig(
            lambda owner: derive_config(owner, lambda config: owner(**field_values(config)))
        )

    def __init__(self, **options: Any) -> None:
        try:
            self._torch([torch.nn.Parameter(torch.empty(0))], lr=0.0, **options)  # type: ignore[call-arg]
        except ValueError as error:
            raise OptimError(f"{type(self).__name__} cannot be built", found=str(error)) from None
        self._options = options
        self._inner: torch.optim.Optimizer | None = None
        self._bound_to: object = None
        self._params: dict[str, torch.nn.Parameter] = {}
        self._waiting: Mapping[str, Tensor] = {}

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self._options.items())
        return f"{type(self).__name__}({options})"

    def step(
        self,
        lr: float,
        model: torch.nn.Module | Mapping[str, torch.nn.Parameter],
        grads: Mapping[str, Tensor],
    ) -> None:
        """Change the parameters, in place.

        Args:
            lr: the learning rate of this step.
            model: a module, or parameters by path; the same mapping is taken to hold the same parameters.
            grads: gradients by path, such as `burnt.Gradients`; parameters without one stay as they are.

        Raises:
            OptimError: a gradient belongs to no parameter of the model.
        """
        if isinstance(model, torch.nn.Module):
            # The module of the last step may have been moved, or given other parameters, by now.
            named = dict(model.named_parameters())
            binding: object = [(path, id(p), p.device, p.dtype) for path, p in named.items()]
            if binding != self._bound_to:
                self._bind(named)
                self._bound_to = binding
        elif model is not self._bound_to:
            self._bind(model)
            self._bound_to = model
        assert self._inner is not None
        params = self._params
        for path, gradient in grads.items():
            parameter = params.get(path)
            if parameter is None:
                self._release()
                guess = nearest(path, params)
                raise OptimError(
                    "a gradient belongs to no parameter of the model",
                    where=path,
                    hint=f"did you mean {guess!r}?"
                    if guess
                    else "were the gradients taken from another model?",
                )
            parameter.grad = gradient
        for group in self._inner.param_groups:
            group["lr"] = lr
        self._advance(self._inner)
        self._release()

    def into_record(self) -> OptimizerRecord:
        """The state, sharing memory with the optimizer."""
        tensors = dict(self._waiting)
        if self._inner is not None:
            for path, parameter in self._params.items():
                for name, value in self._inner.state.get(parameter, {}).items():
                    if value is not None:
                        tensors[f"{path}/{name}"] = value.detach()
        return OptimizerRecord(type(self).__name__, dict(self._options), tensors)

    def load_record(self, record: OptimizerRecord) -> None:
        """Take a saved state over; it is applied when a model is first stepped.

        Raises:
            OptimError: the record is of another optimizer, or of one without `amsgrad` where this one has it.
        """
        if record.optimizer != type(self).__name__:
            raise OptimError(
                "the state of one optimizer does not fit another",
                expected=type(self).__name__,
                found=record.optimizer,
                hint=f"resume with optim.{record.optimizer}, or start afresh",
            )
        if self._options.get("amsgrad") and record.tensors and not record.options.get("amsgrad"):
            raise OptimError(
                "the saved state lacks the largest second moments that amsgrad compares with",
                expected=f"{record.optimizer}(amsgrad=True)",
                found=f"{record.optimizer}(amsgrad=False)",
                hint="resume without amsgrad, or start afresh",
            )
        self._inner = None
        self._bound_to = None
        self._params = {}
        self._waiting = {name: tensor.clone() for name, tensor in record.tensors.items()}

    def _advance(self, inner: torch.optim.Optimizer) -> None:
        inner.step()

    def _release(self) -> None:
        for parameter in self._params.values():
            parameter.grad = None

    def _bind(self, named: Mapping[str, torch.nn.Parameter]) -> None:
        """Make torch's optimizer for these parameters, keeping the state that their paths had."""
        state, params = self.into_record().tensors, dict(named)
        fused = all(p.is_floating_point() and p.device.type in _FUSED_DEVICES for p in params.values())
        inner = self._torch(list(params.values()), lr=0.0, **self._options, fused=fused or None)  # type: ignore[call-arg]
        for key, value in state.items():
            path, _, name = key.rpartition("/")
            parameter = params.get(path)
            if parameter is None:
                raise OptimError(
                    "the optimizer's state belongs to a parameter that the model lacks",
                    where=path,
                    hint="the model has changed since the state was saved",
                )
            # A fused step counts on the parameter's device, the plain one on the CPU.
            if name == "step":
                inner.state[parameter][name] = value.clone().to(parameter.device if fused else "cpu")
                continue
            if value.shape != parameter.shape:
                raise OptimError(
                    "the optimizer's state has another shape than its parameter",
                    where=key,
                    expected=tuple(parameter.shape),
                    found=tuple(value.shape),
                )
            inner.state[parameter][name] = value.clone().to(parameter.device, parameter.dtype)
        self._inner, self._params, self._waiting = inner, params, {}
