"""A candidate: a way to compute an op, where it can run, its configurations and its gradient.

What somebody says of a candidate is looked at here: at its registration what is of the wrong kind, at a call
what `when`, `configs` and `best` answer.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from burnt import _torch
from burnt.errors import DefinitionError

__all__ = ["Alternative", "Candidate"]


class Alternative(NamedTuple):
    """A configuration of a candidate.

    Args:
        config: the configuration; None without one.
        left_out: why it is not worth measuring, where it is not.
        risky: it is measured after everything else, by itself.
    """

    config: dict[str, Any] | None
    left_out: str | None = None
    risky: bool = False


class Candidate:
    """A way to compute an op.

    Args:
        name: what the tuner's table and explanations call it.
        call: takes the op's arguments, all of them, by position; also ``config=`` where there are `configs`.
            It leaves them as they are.
        op: the op's name, for messages.
        devices: the kinds of device that it runs on, such as ``["cpu"]``; None for any.
        dtypes: the dtypes that every floating-point tensor must have one of, and at least one tensor; None
            for any. An integer tensor beside a float one is for `when` to refuse.
        when: of the arguments; why it cannot take them, or None. Shapes and strides are looked at here.
        configs: of the arguments; the configurations to choose from, each a dictionary that JSON can hold,
            the best guess first.
        best: of the arguments; whether to take it where nothing was measured, by default always.
        compiles: of a configuration and the arguments; a future of its being compiled in other processes, so
            that several are at once, or None where it cannot be.
        differentiable: autograd follows the call. Otherwise gradients are `backward`'s, or, without one, the
            reference's.
        autocast: under autocast it does what torch's own ops do. Others do not run there, unless the op casts
            its arguments itself (`Op`, ``autocast=``): then no candidate sees autocast.
        checks_values: bad values (a label that is no class) raise; otherwise the op looks at them first.

    Raises:
        DefinitionError: a limit is of another kind than said here, or `call` is no function.
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
        differentiable: bool = False,
        autocast: bool = False,
        checks_values: bool = False,
    ) -> None:
        self.name = name
        self.call = call
        self.op = op
        if not callable(call):
            raise self.misdefined("the function", "one of the op's arguments", repr(call))
        for limit, value in (("devices", devices), ("dtypes", dtypes)):
            many = value is None or isinstance(value, Sequence | set | frozenset)
            if not many or isinstance(value, str):
                raise self.misdefined(f"{limit}=", "a list", repr(value), f"{limit}=[{value!r}]")
            if value is not None and not len(value):
                raise self.misdefined(f"{limit}=", "at least one; None is any", repr(value))
        for limit, fn in (("when", when), ("configs", configs), ("best", best), ("compiles", compiles)):
            if fn is not None and not callable(fn):
                raise self.misdefined(f"{limit}=", "a function of the op's arguments", repr(fn))
        for device in devices or ():
            if not _is_kind_of_device(device):
                expected = "kinds of device: 'cpu', 'cuda' (ROCm's too), 'mps' or others that torch knows"
                raise self.misdefined("devices=", expected, repr(device))
        for dtype in cast("Sequence[object]", dtypes or ()):
            if not isinstance(dtype, torch.dtype):
                known = isinstance(getattr(torch, str(dtype), None), torch.dtype)
                hint = f"dtypes=[torch.{dtype}]" if known else None
                raise self.misdefined("dtypes=", "dtypes of torch", repr(dtype), hint)
        self.devices = None if devices is None else tuple(devices)
        self.dtypes = None if dtypes is None else tuple(dtypes)
        self.when = when
        self.configs = configs
        self.best = best
        self.compiles = compiles
        self.differentiable = differentiable
        self.autocast = autocast
        self.checks_values = checks_values
        self.pull: Callable[..., Sequence[Tensor | None]] | None = None
        functools.update_wrapper(self, call, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it, whatever the op would choose."""
        return self.call(*args, **kwargs)

    def check_signature(self, arguments: Sequence[str]) -> None:
        """Look whether its function can be called with the op's arguments, and with ``config=``.

        Raises:
            DefinitionError: it cannot.
        """
        try:
            signature = inspect.signature(self.call)
        except (TypeError, ValueError):  # one that is built in does not say
            return
        given = {} if self.configs is None else {"config": None}
        try:
            signature.bind(*arguments, **given)
        except TypeError as error:
            hint = None
            config = signature.parameters.get("config")
            if config is None and given:
                hint = "configs= wants an argument config"
            elif config is not None and config.default is config.empty and not given:
                hint = "without configs= no config is given"
            raise self.misdefined(
                "the function",
                f"({', '.join([*arguments, *given])}), as it is called",
                f"{signature}: {error}",
                hint,
            ) from None

    def alternatives(self, args: Sequence[Any]) -> list[Alternative]:
        """The configurations for these arguments, the best guess first; without any, None is the only one.

        Raises:
            DefinitionError: `configs` raises, or gives something else than said here.
        """
        if self.configs is None:
            return [Alternative(None)]
        found = self._answer("configs=", self.configs, args)
        expected = "a list of dictionaries, the best guess first"
        if not isinstance(found, list | tuple) or not all(isinstance(c, dict) for c in found):
            raise self.misdefined("configs=", expected, repr(found))
        if not found:
            hint = "where it cannot run, when= says why"
            raise self.misdefined("configs=", f"{expected}, at least one", repr(found), hint)
        for config in found:
            if not _is_json(config):
                expected = "strings as keys; numbers, strings, lists and such dictionaries as values"
                raise self.misdefined(
                    "configs=", expected, repr(config), "the tuner's table keeps it as JSON"
                )
        return [Alternative(config) for config in found]

    def bound(self, args: Sequence[Any], config: dict[str, Any] | None = None) -> Callable[..., Any]:
        """The call with its configuration filled in: a function of the op's arguments."""
        return functools.partial(self.call, config=config) if config is not None else self.call

    def accepts(self, config: dict[str, Any] | None, args: Sequence[Any]) -> bool:
        """Whether it can run these arguments with a configuration that was noted before."""
        return any(config == known.config for known in self.alternatives(args))

    def combined(self, timed: Sequence[tuple[dict[str, Any] | None, float]]) -> dict[str, Any] | None:
        """A further configuration that the times of others suggest, if one does."""
        return None

    def compiling(self, config: dict[str, Any] | None, args: Sequence[Any]) -> Future[None] | None:
        """What says that a configuration is compiled, if that can be done before a call is made."""
        return None if self.compiles is None else self.compiles(config, *args)

    def backward(self, fn: Callable[..., Sequence[Tensor | None]]) -> Callable[..., Any]:
        """Register the gradient: a decorator.

        The function is given the cotangents of the results (a tuple), the results (a tuple) and the op's
        arguments, all of which it leaves as they are. It returns a tuple with a gradient, or None, for each
        tensor among the arguments, in order and of its shape: ``(dx,)`` where there is one.
        """
        self.pull = fn
        return fn

    def why_not(self, args: Sequence[Any]) -> str | None:
        """Why it cannot run for these arguments, or None.

        Raises:
            DefinitionError: `when` raises, or gives something else than said here.
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
            return "autocast is on, which it does not follow"
        why = None if self.when is None else self._answer("when=", self.when, args)
        if why is not None and not isinstance(why, str):
            hint = "it says why the candidate cannot run, not whether it can"
            raise self.misdefined("when=", "a text, or None where it can run", repr(why), hint)
        return why

    def is_best(self, args: Sequence[Any]) -> bool:
        """Whether to take it where nothing was measured.

        Raises:
            DefinitionError: `best` raises.
        """
        return self.best is None or bool(self._answer("best=", self.best, args))

    def _answer(self, limit: str, fn: Callable[..., Any], args: Sequence[Any]) -> Any:
        try:
            return fn(*args)
        except Exception as error:  # of any kind: it is somebody's own code
            found = f"{type(error).__name__}: {error}"
            raise self.misdefined(limit, "an answer for whatever the reference takes", found) from error

    def misdefined(
        self, what: str, expected: str, found: object, hint: str | None = None, **more: Any
    ) -> DefinitionError:
        """That a part of it, such as ``when=``, is not as it must be."""
        of_op = "" if self.op is None else f" of {self.op}"
        where = None if self.op is None else f"burnt.kernels.{self.op}"
        return DefinitionError(
            f"{what} of the candidate {self.name!r}{of_op} cannot be used",
            where=where,
            expected=expected,
            found=found,
            hint=hint,
            **more,
        )


def _is_kind_of_device(text: object) -> bool:
    try:
        return torch.device(text).type == text  # type: ignore[call-overload, no-any-return]
    except (RuntimeError, TypeError):
        return False


def _is_json(config: dict[str, Any]) -> bool:
    """Whether a configuration can be kept: what is read back must be equal to it."""
    try:
        return bool(json.loads(json.dumps(config)) == config)
    except (TypeError, ValueError):
        return False
