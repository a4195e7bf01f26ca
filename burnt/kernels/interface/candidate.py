"""A candidate: one implementation of an op, the arguments it supports, its configurations and its gradient.

`AnyOp` is for modules that `burnt.kernels.dispatch.op` imports and that cannot import `Op`.

User-supplied settings are validated here: their types when the candidate is registered, what ``when=``,
``configs=`` and ``best=`` return at each call.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from burnt import _torch
from burnt.codegen.frontend.guards import GuardedCall
from burnt.errors import DefinitionError


class Alternative(NamedTuple):
    """One configuration of a candidate (None without), and why it is not worth measuring, or None.

    `is_risky`: compilers fail on it or miscompile it; it is measured last and alone, as it may break the
    device.
    """

    config: dict[str, Any] | None
    skip_reason: str | None = None
    is_risky: bool = False


class Candidate:
    """One implementation of an op.

    Args:
        name: identifies it in the tuner's table and in explanations.
        call: computes the op; takes all its arguments by position, and ``config=`` if there are `configs`. It
            must not modify its arguments.
        op: the op's name, for messages.
        devices: the device types that it runs on, such as ``["cpu"]``; None for any.
        dtypes: the supported dtypes: every floating-point tensor must have one of them, and so must at least
            one tensor; None for any. To reject an integer tensor next to a floating-point one, use `when`.
        when: takes the arguments; returns the reason why it cannot run with them (such as unsupported shapes
            or strides), or None if it can.
        configs: takes the arguments; returns the configurations to choose from, each a JSON-serializable
            dictionary, the best guess first.
        best: takes the arguments; returns whether to select it if nothing was measured. By default always.
        compiles: takes a configuration and the arguments; starts compiling in other processes, several
            configurations at once, and returns a future, or None if that is not possible.
        binds: takes a configuration and the arguments; returns a faster call for arguments that differ only
            in the addresses and values of tensors, or None.
        differentiable: autograd can differentiate the call. Otherwise gradients are computed by the function
            registered with `backward`, or without one from the reference.
        autocast: under autocast it behaves as torch's own ops do. Other candidates do not run under autocast,
            unless the op casts its arguments itself (`Op`, ``autocast=``): then candidates run without
            autocast.
        checks_values: it raises on invalid values, such as a label that is not a class. Otherwise the op
            validates the values first (`Op`, ``look=``).

    Raises:
        DefinitionError: a setting has the wrong type, or `call` is not callable.
    """

    def __init__(
        self,
        name: str,
        call: Callable[..., Any],
        *,
        op: str | None = None,
        devices: Sequence[str] | None = None,
        dtypes: Sequence[torch.dtype] | None = None,
        when: Callable[..., str | None] | None = None,
        configs: Callable[..., Sequence[dict[str, Any]]] | None = None,
        best: Callable[..., bool] | None = None,
        compiles: Callable[..., Future[None] | None] | None = None,
        binds: Callable[..., Callable[..., Any] | None] | None = None,
        differentiable: bool = False,
        autocast: bool = False,
        checks_values: bool = False,
    ) -> None:
        self.name = name
        self.call = call
        self.op = op
        if not callable(call):
            raise self.definition_error("the function", "one of the op's arguments", repr(call))
        device_types = "device types: 'cpu', 'cuda' (ROCm, too), 'mps' or others that torch knows"
        for limit, values, is_valid, expected in (
            ("devices=", devices, _is_device_type, device_types),
            ("dtypes=", dtypes, lambda dtype: isinstance(dtype, torch.dtype), "torch dtypes"),
        ):
            is_list = values is None or isinstance(values, list | tuple | set | frozenset)
            if not is_list or (values is not None and not (values and all(map(is_valid, values)))):
                raise self.definition_error(limit, f"a list of {expected}; None for any", repr(values))
        for limit, fn in (
            ("when=", when),
            ("configs=", configs),
            ("best=", best),
            ("compiles=", compiles),
            ("binds=", binds),
        ):
            if fn is not None and not callable(fn):
                raise self.definition_error(limit, "a function of the op's arguments", repr(fn))
        self.devices = None if devices is None else tuple(devices)
        self.dtypes = None if dtypes is None else tuple(dtypes)
        self.when = when
        self.configs = configs
        self.best = best
        self.compiles = compiles
        self.binds = binds
        self.differentiable = differentiable
        self.autocast = autocast
        self.checks_values = checks_values
        self.backward_fn: Callable[..., Sequence[Tensor | None]] | None = None
        functools.update_wrapper(self, call, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run this candidate, whichever one the op would select."""
        return self.call(*args, **kwargs)

    def check_signature(self, arguments: Sequence[str]) -> None:
        """Check that the function takes the op's arguments, and ``config=`` if there are `configs`."""
        try:
            signature = inspect.signature(self.call)
        except (TypeError, ValueError):  # a built-in function without a signature
            return
        keywords = {} if self.configs is None else {"config": None}
        try:
            signature.bind(*arguments, **keywords)
        except TypeError as error:
            expected = f"({', '.join([*arguments, *keywords])}), as it is called"
            raise self.definition_error("the function", expected, f"{signature}: {error}") from None

    def alternatives(self, args: Sequence[Any]) -> list[Alternative]:
        """Return the configurations for these arguments, the best guess first.

        Without `configs`, the only one is None.

        Raises:
            DefinitionError: `configs` raises or returns an invalid value.
        """
        if self.configs is None:
            return [Alternative(None)]
        configs = self._call_limit("configs=", self.configs, args)
        is_list = isinstance(configs, list | tuple) and len(configs) > 0
        if not is_list or not all(isinstance(c, dict) and _is_json(c) for c in configs):
            expected = "a list of dictionaries that JSON can hold, at least one, the best guess first"
            raise self.definition_error("configs=", expected, repr(configs))
        return [Alternative(config) for config in configs]

    def bind_config(self, args: Sequence[Any], config: dict[str, Any] | None = None) -> Callable[..., Any]:
        """Return the call with its configuration filled in: a function of the op's arguments."""
        return functools.partial(self.call, config=config) if config is not None else self.call

    def bind_guarded(self, args: Sequence[Any], config: dict[str, Any] | None) -> GuardedCall | None:
        """Return a call with all arguments by position, which a guard finds to be like `args`, or None."""
        call = None if self.binds is None else self.binds(config, *args)
        return None if call is None else GuardedCall(call, exact_floats=True)

    def accepts(self, config: dict[str, Any] | None, args: Sequence[Any]) -> bool:
        """Whether it can run these arguments with a configuration that was stored earlier."""
        return any(config == alternative.config for alternative in self.alternatives(args))

    def suggest_config(self, timed: Sequence[tuple[dict[str, Any] | None, float]]) -> dict[str, Any] | None:
        """Return another configuration to measure, given the times of the measured ones, or None."""
        return None

    def start_compiling(self, config: dict[str, Any] | None, args: Sequence[Any]) -> Future[None] | None:
        """Start compiling a configuration before its first call; return a future, or None if unsupported."""
        return None if self.compiles is None else self.compiles(config, *args)

    def backward(self, fn: Callable[..., Sequence[Tensor | None]]) -> Callable[..., Any]:
        """Register the backward function: a decorator.

        The function takes ``(grad_outs, results, *args)``: a tuple with the gradient of each result, a tuple
        of the results, and the op's arguments. It must not modify any of them. It returns a tuple with a
        gradient, or None, for each tensor among the arguments, in order and of its shape: ``(dx,)`` for a
        single one.
        """
        self.backward_fn = fn
        return fn

    def why_not(self, args: Sequence[Any]) -> str | None:
        """Return the reason why it cannot run with these arguments, or None if it can.

        Raises:
            DefinitionError: `when` raises or returns an invalid value.
        """
        tensors = [a for a in args if isinstance(a, Tensor)]
        for tensor in tensors:
            if self.devices is not None and tensor.device.type not in self.devices:
                return f"a tensor on {tensor.device}; it runs on {', '.join(self.devices)}"
            if self.dtypes is not None and tensor.is_floating_point() and tensor.dtype not in self.dtypes:
                return f"a tensor of {tensor.dtype}; it takes {', '.join(map(str, self.dtypes))}"
        if self.dtypes is not None and tensors and not any(t.dtype in self.dtypes for t in tensors):
            return f"no tensor of {', '.join(map(str, self.dtypes))}"
        if not self.autocast and _torch.is_autocast():
            return "autocast is on, which it does not support"
        why = None if self.when is None else self._call_limit("when=", self.when, args)
        if why is not None and not isinstance(why, str):
            hint = "return the reason why the candidate cannot run, not whether it can"
            raise self.definition_error("when=", "a string, or None if it can run", repr(why), hint)
        return why

    def is_best(self, args: Sequence[Any]) -> bool:
        """Whether to select it if nothing was measured.

        Raises:
            DefinitionError: `best` raises.
        """
        return self.best is None or bool(self._call_limit("best=", self.best, args))

    def _call_limit(self, limit: str, fn: Callable[..., Any], args: Sequence[Any]) -> Any:
        try:
            return fn(*args)
        except Exception as error:  # user code may raise anything
            found = f"{type(error).__name__}: {error}"
            raise self.definition_error(
                limit, "a result for any arguments that the reference accepts", found
            ) from error

    def definition_error(
        self, what: str, expected: str, found: object, hint: str | None = None
    ) -> DefinitionError:
        """Return the error for an invalid part of the candidate, such as ``when=``."""
        of_op = "" if self.op is None else f" of {self.op}"
        where = None if self.op is None else f"burnt.kernels.{self.op}"
        return DefinitionError(
            f"{what} of the candidate {self.name!r}{of_op} cannot be used",
            where=where,
            expected=expected,
            found=found,
            hint=hint,
        )


def _is_device_type(text: object) -> bool:
    try:
        return torch.device(text).type == text  # type: ignore[call-overload, no-any-return]
    except (RuntimeError, TypeError):
        return False


def _is_json(config: dict[str, Any]) -> bool:
    """Whether a configuration is equal to itself after being written and read as JSON."""
    try:
        return bool(json.loads(json.dumps(config)) == config)
    except (TypeError, ValueError):
        return False


class AnyOp(Protocol):
    """An op with any signature; `burnt.kernels.dispatch.op.Op` documents each member."""

    name: str
    reference: Callable[..., Any]
    signature: inspect.Signature
    positions: dict[str, int]
    pair: int | None
    random: bool
    candidates: dict[str, Candidate]
    gradient_functions: dict[tuple[Any, ...], Any]
    in_parts: Callable[..., Any] | None
    features: Callable[..., dict[str, Any]] | None
    examples: Callable[..., Any] | None
    registration: Any

    def bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Return all arguments by position, defaults filled in."""

    def example_args(self, device: torch.device) -> list[tuple[Any, ...]]:
        """Return the arguments of each example on a device, defaults filled in."""

    def run(self, args: Sequence[Any]) -> Any:
        """Compute the op with the selected candidate."""

    def forget(self) -> None:
        """Clear the cached selections; the next call with each signature selects again."""

    def named_tensors(self, args: Sequence[Any]) -> list[tuple[str, Tensor]]:
        """Return the tensors among the arguments, each with a description for messages."""

    def check_unmodified(
        self, who: str, tensors: Sequence[tuple[str, Tensor]], before: Sequence[int]
    ) -> None:
        """Raise if a tensor was modified in place since its version in `before` was read."""

    def check_results(self, candidate: Candidate, args: Sequence[Any], results: Any) -> None:
        """Raise if a candidate's results differ from the reference's in shape, dtype, device or structure."""


OPS: dict[str, AnyOp] = {}
"""Every op by name."""
