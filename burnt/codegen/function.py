"""A traced function: plans for each signature, cached, and called with as little as possible in between.

`Function` is what `fuse` makes. The first call with a signature traces, schedules, prints and compiles; later
ones look it up, allocate the results and launch. Wherever a plan would not be right, the eager function runs,
and `Function.why_plain` says why.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakSet

import torch
from torch import Tensor
from torch.compiler import is_compiling, is_dynamo_compiling
from torch.utils import _pytree as pytree

from burnt import _torch
from burnt.codegen.backward import Differentiable, derive
from burnt.codegen.eager_policy import EagerCalls, eager_calls
from burnt.codegen.frontend.captures import (
    SIMPLE,
    captures,
    content,
    identity,
    own,
    unsuited_callable,
    unsuited_captures,
)
from burnt.codegen.frontend.guards import Guard, InlineCache, build_guard
from burnt.codegen.frontend.trace import PLANNING, InlinedWhenTraced, is_random, trace, why_unsupported
from burnt.codegen.ir import Kernel
from burnt.codegen.lower.matmul import why_always_library_call
from burnt.codegen.precision import precision
from burnt.codegen.runtime.c_backend import C
from burnt.codegen.runtime.compiled_plan import CompiledPlan, debug_log, debug_log_plan, warn_fallback
from burnt.codegen.runtime.target import Target
from burnt.codegen.runtime.targets import target_of
from burnt.codegen.schedule.saved_tensors import SavedTensors, select_saved_tensors, with_saved_outputs
from burnt.codegen.schedule.scheduler import Call
from burnt.errors import CacheError, DefinitionError, FusionError, UnsupportedError

__all__ = ["Function", "functions", "fuse"]

_MOST_VALUES = 16  # of floats that a function looks at: beyond, the eager function is the cheaper one
_MOST_INTEGERS = 32  # sets of whole numbers that otherwise equal calls have plans for: the same
_MOST_PLANS = 1024  # signatures that a function remembers; the older half is forgotten beyond
_FUNCTIONS: WeakSet[Function] = WeakSet()


class Planned(NamedTuple):
    """What is known for a signature: a plan, or why the eager function runs.

    `held` keeps alive what the function captured, as the signature knows it by its address. `by_value`: the
    function looks at its numbers, and the plan is right for these alone. `eager_calls`: by which calls of
    torch's own, where the eager function runs because it is nothing else. `wants_gradient`: whether a tensor
    does, given or captured. `places`: where what is captured was found, and `identities`: what it is known
    by.
    """

    forward: CompiledPlan | None
    captured: list[Tensor]
    held: list[Any]
    fallback_reason: str | None = None
    by_value: bool = False
    served: EagerCalls | None = None
    wants_gradient: bool = False
    places: Sequence[tuple[Any, str]] = ()
    identities: Sequence[Any] = ()


class Function(InlinedWhenTraced):
    """A function of tensors and numbers that runs as few kernels as the schedule finds.

    Args:
        fn: a Python function of tensors, numbers and other constants; it may capture tensors.
        single: raise `FusionError` where it does not come out as one kernel.
        target: what kernels are printed for; by default what the tensors' device has.
        lowered: make kernels also where a call of torch's own is known to be faster
        (`burnt.codegen.eager_policy`),
            as `single` and `target` do.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        single: bool = False,
        target: Target | None = None,
        lowered: bool = False,
    ) -> None:
        if not callable(fn):
            raise DefinitionError(
                "there is nothing to fuse",
                where="burnt.fuse",
                expected="a function of tensors",
                found=f"{type(fn).__name__}: {fn!r:.60}",
            )
        self.fn = own(fn)
        self.single = single
        self.lowered = lowered or single or target is not None
        self.target = target
        self.name = "".join(c if c.isalnum() else "_" for c in getattr(fn, "__name__", "fn"))
        self._entries: dict[Any, Planned] = {}
        self._captures = captures(self.fn)
        self._looked_at: set[tuple[str, ...]] = set()  # floats that plans were made for, whatever the shapes
        # By signatures without their whole numbers: how many there were, and where these were too many.
        self._integers: Counter[tuple[Any, ...]] = Counter()
        self._plain_ones: dict[tuple[Any, ...], Planned] = {}
        self._unknown: set[tuple[type, ...]] = set()
        self._recent: InlineCache[Planned] = InlineCache()
        self._origin: Function | None = None
        functools.update_wrapper(self, fn)
        _FUNCTIONS.add(self)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result."""
        if not is_dynamo_compiling() and not kwargs:
            found = self._recent.find(args, kwargs)
            if found is not None:
                return self._run_planned(*found)
        if is_compiling() or not _torch.is_plain_call():
            return self.fn(*args, **kwargs)
        if kwargs:
            return self._with_keywords(args, kwargs)
        planned = self._lookup(args)
        if planned is None:
            kinds = tuple(map(type, args))
            if kinds not in self._unknown or self.single:
                self._unknown.add(kinds)
                self._plain(_unknown(args), [])
            return self.fn(*args)
        if self._recent.wants(args) and not planned.by_value and not _torch.is_autocast():
            self._recent.put(args, self._likeness(planned, args), planned)
        return self._run_planned(planned, args)

    def _likeness(self, planned: Planned, args: Sequence[Any]) -> Guard | None:
        """What tells a call like one with these arguments, for which this was planned."""
        names = dict.fromkeys([f"argument_{i}" for i in range(len(args))], inspect.Parameter.empty)
        dtype = torch.get_default_dtype()
        answers: list[tuple[Callable[[], object], object]] = [(torch.get_default_dtype, dtype)]
        if planned.places:
            answers.append((functools.partial(_identities, planned.places), planned.identities))
        return build_guard(names, args, answers)

    def _run_planned(self, planned: Planned, args: Sequence[Any]) -> Any:
        """The result by what is known for the arguments."""
        forward = planned.forward
        if forward is None:
            return self.fn(*args)
        tensors = [a for a in args if isinstance(a, Tensor)]
        if forward.changed and _share_memory([*tensors, *planned.captured]):
            return self.fn(*args)
        numbers = [args[i] for i in forward.plan.numbers]
        if planned.wants_gradient:
            flat = Differentiable.apply(forward, numbers, *tensors, *planned.captured)  # type: ignore[no-untyped-call]
        else:
            flat = forward([*tensors, *planned.captured], numbers)
            flat = flat[: len(forward.traced.results)]
        structure = forward.traced.structure
        return flat[0] if structure.is_leaf() else pytree.tree_unflatten(list(flat), structure)

    def _lookup(self, args: Sequence[Any]) -> Planned | None:
        """What is known for arguments, made at the first time; None where no signature knows one of them."""
        key: list[Any] = [torch.is_grad_enabled()]
        tensors: list[Tensor] = []
        for arg in args:
            kind = type(arg)
            if kind is Tensor or kind is torch.nn.Parameter:
                try:
                    key.append(
                        (arg.shape, arg.stride(), arg.dtype, arg.device, arg.requires_grad, arg.is_neg())
                    )
                except RuntimeError:  # it has no strides
                    return None
                tensors.append(arg)
            elif kind is float:
                key.append(float)
            elif kind in SIMPLE or isinstance(arg, SIMPLE):
                key.append((kind, arg))
            else:
                return None
        kind_of_device = tensors[0].device.type if tensors else "cpu"
        if kind_of_device != "meta" and torch.is_autocast_enabled(kind_of_device):
            key.append(torch.get_autocast_dtype(kind_of_device))
        if torch.get_default_dtype() is not torch.float32:
            key.append(torch.get_default_dtype())
        if (multiplied := precision()) != "ieee":
            key.append(multiplied)
        key += _identities(self._captures)
        planned = self._entries.get(tuple(key)) or self._plain_ones.get(_without_integers(key))
        if planned is None:
            planned = self._prepare(key, args, tensors)
        if planned.by_value:
            key.append(_values(args))
            planned = self._entries.get(tuple(key)) or self._prepare(key, args, tensors, by_value=True)
        return planned

    def _with_keywords(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        bound = self._bound(args, kwargs)
        return self.fn(*args, **kwargs) if bound.kwargs else self(*bound.args)

    def _bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        bound = inspect.signature(self.fn).bind(*args, **kwargs)
        bound.apply_defaults()
        return bound

    def positional(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Arguments by position, as signatures know them.

        Raises:
            TypeError: they are not those of the function, or one can be given by name alone.
        """
        bound = self._bound(args, kwargs)
        if bound.kwargs:
            names = ", ".join(bound.kwargs)
            raise TypeError(
                f"{self.name} takes {names} by name alone, and no plan does: the eager function runs"
            )
        return bound.args

    def fallback_reason(self, *args: Any) -> str | None:
        """Why the eager function runs for these arguments; None if generated kernels do.

        >>> fused = fuse(lambda x: x[x > 0])
        >>> fused.fallback_reason(torch.ones(3))
        "it cannot be traced: a shape in it depends on a tensor's values (aten.nonzero.default)"
        """
        return self.planned(*args).fallback_reason

    def why_plain(self, *args: Any) -> str | None:
        """Deprecated name of `fallback_reason`."""
        warnings.warn(
            "Function.why_plain is deprecated: use Function.fallback_reason", DeprecationWarning, stacklevel=2
        )
        return self.fallback_reason(*args)

    def plan(self, *args: Any) -> CompiledPlan | None:
        """The forward plan for these arguments, made if need be; None where the eager function runs."""
        return self.planned(*args).forward

    def planned(self, *args: Any) -> Planned:
        """What is known for these arguments, made if need be."""
        return self._lookup(args) or Planned(None, [], [], _unknown(args))

    def on(self, target: Target) -> Function:
        """The same function for another target, which takes the kernels that are planned for this one's."""
        made = Function(self.fn, single=self.single, target=target)
        made._origin = self
        return made

    def known(self) -> list[Planned]:
        """What is known for the signatures that were met so far."""
        return list({id(planned): planned for planned in self._entries.values()}.values())

    # --- making plans -------------------------------------------------------------------------------------

    def _prepare(
        self, key: list[Any], args: Sequence[Any], tensors: Sequence[Tensor], *, by_value: bool = False
    ) -> Planned:
        with PLANNING:
            held = [content(holder, name) for holder, name in self._captures]
            if not by_value:
                # A helper that was given another body may look elsewhere than the one before it.
                known = len(held)
                self._captures = captures(self.fn)
                held = [content(holder, name) for holder, name in self._captures]
                key = [*key[: len(key) - known], *map(identity, held)]
            places, identities = self._captures, key[len(key) - len(held) :]
            signature = tuple(key)
            entry = self._entries.get(signature)
            if entry is None:
                rest = _without_integers(signature)
                if not by_value and rest != signature:
                    self._integers[rest] += 1
                if self._integers.get(rest, 0) > _MOST_INTEGERS:
                    self._plain_ones[rest] = self._plain(
                        f"it has met {_MOST_INTEGERS} values of its whole numbers, each with a plan of its "
                        "own: what changes can be given as a float or a tensor",
                        held,
                    )._replace(places=places, identities=identities)
                    return self._plain_ones[rest]
                values = _values(args)
                if values and values not in self._looked_at and len(self._looked_at) >= _MOST_VALUES:
                    # `by_value`: a plan may still be made of this signature for one of those.
                    entry = self._plain(
                        f"it looks at its numbers, and has met {_MOST_VALUES} values of them", held
                    )._replace(by_value=True)
                else:
                    entry = self._retarget(args) or self._build_plan(args, tensors, held)
                    wants = any(t.requires_grad for t in [*tensors, *entry.captured])
                    entry = entry._replace(wants_gradient=wants and torch.is_grad_enabled())
                    if entry.by_value or by_value:
                        self._looked_at.add(values)
                if len(self._entries) >= _MOST_PLANS:
                    # Another thread may be looking it up: taken out of a copy.
                    self._entries = dict(list(self._entries.items())[_MOST_PLANS // 2 :])
                    self._integers.clear()
                    self._recent = InlineCache()
                if not by_value:
                    entry = entry._replace(places=places, identities=identities)
                self._entries[signature] = entry
                if entry.by_value and not by_value:
                    # It was made for these values.
                    self._entries[*signature, values] = entry
            return entry

    def _retarget(self, args: Sequence[Any]) -> Planned | None:
        """The plan of the function that this one was made of, built for this one's target."""
        if self._origin is None or self.target is None:
            return None
        planned = self._origin.planned(*args)
        built = None if planned.forward is None else planned.forward.with_target(self.target)
        return planned._replace(forward=built)

    def _build_plan(self, args: Sequence[Any], tensors: Sequence[Tensor], held: list[Any]) -> Planned:
        target = self.target or (target_of(tensors[0].device) if tensors else C)
        if self.lowered and self.target is None and isinstance(target, Target) and target.why_eager_matmul:
            target = dataclasses.replace(target, why_eager_matmul=why_always_library_call)
        reason = target if isinstance(target, str) else None
        reason = reason or unsuited_callable(self.fn) or self._unsuited(tensors) or unsuited_captures(held)
        if isinstance(target, str) or reason is not None:
            return self._plain(str(reason), held)
        try:
            traced, general = trace(self.fn, args)
        except Exception as error:  # of any kind: the eager function either raises it too, or can run
            return self._plain(f"it cannot be traced: {_why_untraceable(error)}", held)
        captured = [getattr(traced.graph, name) for name in traced.captured]
        reason = self._unsuited(captured) or why_unsupported(traced)
        given = [*tensors, *captured]
        wants_gradient = torch.is_grad_enabled() and any(t.requires_grad for t in given)
        with_gradients = any(fact is not None and fact[1] for fact in traced.results)
        if reason is None and with_gradients and not torch.is_grad_enabled():
            reason = "it turns gradients on"
        if reason is None and wants_gradient and traced.changed:
            reason = "it changes an argument in place, with gradients"
        if reason is not None:
            return self._plain(reason, held)
        found = (
            None if self.lowered or wants_gradient or target is not C else eager_calls(self.fn, args, traced)
        )
        if found is not None:
            return Planned(None, captured, held, found.why, served=found)
        device = tensors[0].device if tensors else torch.device("cpu")
        derived = derive(traced, given, device) if wants_gradient else None
        saved = (
            select_saved_tensors(traced, derived, target.why_eager)
            if derived is not None
            else SavedTensors([], [])
        )
        try:
            with torch.no_grad():
                forward = CompiledPlan(
                    with_saved_outputs(traced, saved.nodes), captured, self.name, target, device
                )
        except UnsupportedError as error:
            return self._plain(str(error), held)
        except RecursionError:
            return self._plain("its expressions are nested too deeply to be printed", held)
        except CacheError:
            raise  # of a folder that cannot be trusted
        except Exception as error:  # of any kind: a fault of ours must not stop what torch can run
            return self._plain(warn_fallback(self.name, error), held)
        reason = _random_call(forward) if wants_gradient else None
        if reason is not None:
            return self._plain(reason, held)
        forward.saved = saved
        if derived is not None:
            forward.backward_traces[tuple(t.requires_grad for t in given)] = derived
        if self.single and len(forward.plan.steps) != 1:
            raise FusionError(
                f"{self.name} does not come out as one kernel",
                expected="1 kernel",
                found=f"{len(forward.plan.steps)} steps: "
                + ", ".join(
                    s.kind if isinstance(s, Kernel) else str(s.node.target) for s in forward.plan.steps
                ),
                hint="see burnt.explain for what ends each group",
            )
        debug_log_plan(forward)
        return Planned(forward, captured, held, by_value=not general)

    def _plain(self, reason: str, held: list[Any]) -> Planned:
        if self.single:
            raise FusionError(f"{self.name} does not come out as one kernel", found=reason)
        debug_log(self.name, f"the eager function runs: {reason}")
        return Planned(None, [], held, reason)

    def _unsuited(self, tensors: Sequence[Tensor]) -> str | None:
        for tensor in tensors:
            if tensor.device != tensors[0].device:
                return f"tensors on {tensors[0].device} and {tensor.device}"
            if tensor.layout != torch.strided or tensor.dtype.is_complex or tensor.is_quantized:
                return f"a tensor of layout {tensor.layout} and dtype {tensor.dtype}"
            if tensor.is_conj() or tensor.is_neg() or type(tensor) not in (Tensor, torch.nn.Parameter):
                return "a tensor that is more than its memory"
        return None


def _without_integers(signature: Sequence[Any]) -> tuple[Any, ...]:
    """A signature without the values of whole numbers."""
    return tuple(
        int if type(part) is tuple and len(part) == 2 and part[0] is int else part for part in signature
    )


def _unknown(args: Sequence[Any]) -> str:
    """Which argument is of a kind that no signature knows."""
    at = next((i for i, arg in enumerate(args) if not _is_known(arg)), None)
    if at is None:
        return "one of its tensors has no strides"
    return (
        f"argument {at} is a {type(args[at]).__name__}: a plan takes tensors, numbers, strings, dtypes and "
        "devices, each as an argument of its own"
    )


def _is_known(arg: object) -> bool:
    """Whether a signature can tell what an argument is."""
    return type(arg) in (Tensor, torch.nn.Parameter, float) or isinstance(arg, SIMPLE)


def _identities(places: Sequence[tuple[Any, str]]) -> list[Any]:
    """What a signature knows by what is captured."""
    return [identity(content(holder, name)) for holder, name in places]


def _values(args: Sequence[Any]) -> tuple[str, ...]:
    """What the floats among arguments are, in a signature that they are built into."""
    return tuple(arg.hex() for arg in args if type(arg) is float)


def functions() -> list[Function]:
    """The traced functions of this process, by name."""
    return sorted(_FUNCTIONS, key=lambda function: function.name)


def _share_memory(tensors: Sequence[Tensor]) -> bool:
    """Whether a change of one may be seen in another."""
    return len({t.untyped_storage().data_ptr() for t in tensors}) < len(tensors)


def _why_untraceable(error: Exception) -> str:
    """What tracing failed of, in a line: torch's errors give advice for its own compiler."""
    kind = type(error).__name__
    if kind in ("GuardOnDataDependentSymNode", "DataDependentOutputException"):
        return "it looks at a tensor's value"
    if kind == "DynamicOutputShapeException":
        return f"a shape in it depends on a tensor's values ({error})"
    return f"{kind}: {str(error).partition(chr(10))[0]}"


def _random_call(forward: CompiledPlan) -> str | None:
    for step in forward.plan.steps:
        if isinstance(step, Call) and is_random(step.node):
            return f"{step.node.target} draws random numbers, which a derived backward would draw again"
    return None


def fuse(fn: Callable[..., Any] | None = None, *, single: bool = False) -> Any:
    """Make a function of tensors run as few kernels as possible, forward and backward.

    Args:
        fn: a function of tensors, numbers and other constants. It is traced at the first call with a
            signature: shapes, strides, dtypes, devices, gradients wanted, autocast, and the values of what is
            neither a tensor nor a float. Tensors that it captures are inputs; a captured name that is given
            another object is noticed. Fused functions and ops that it calls are fused with the rest. Inside
            of torch.compile, export and transforms the eager function runs, and where it is one call of
            torch's own that is known to be faster.
        single: raise `FusionError` where it does not come out as one kernel, which is ours.

    Raises:
        DefinitionError: `fn` cannot be called.
        FusionError: with `single`, naming what splits it.

    >>> import torch
    >>> from burnt.codegen import fuse
    >>> @fuse
    ... def gelu(x):
    ...     return 0.5 * x * (1 + torch.erf(x * 0.5**0.5))
    >>> x = torch.linspace(-2, 2, 5)
    >>> torch.allclose(gelu(x), torch.nn.functional.gelu(x))
    True
    """
    if fn is None:
        return functools.partial(fuse, single=single)
    return Function(fn, single=single)
