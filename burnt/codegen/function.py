"""`fuse` and `Function`, which compiles a Python function for each call signature and caches the plans.

The first call with a signature (shapes, dtypes, values of integers, captured objects, ...) traces the
function, schedules it into kernels, generates and compiles their code. Later calls look the plan up, allocate
the results and launch the kernels. Where no plan would be correct, the eager function runs, and
`Function.fallback_reason` says why.

Tracing is in `frontend`, scheduling in `schedule`, running a plan in `runtime.compiled_plan`, gradients in
`backward`.
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
from burnt.codegen.backward import Differentiable, trace_backward
from burnt.codegen.eager_policy import EagerCalls, eager_calls
from burnt.codegen.frontend.captures import (
    CONSTANT_TYPES,
    capture_key,
    captures,
    copy_partial,
    read_capture,
    why_unsupported_callable,
    why_unsupported_captures,
)
from burnt.codegen.frontend.guards import Guard, InlineCache, build_guard
from burnt.codegen.frontend.trace import PLANNING_LOCK, InlinedWhenTraced, is_random, trace, why_unsupported
from burnt.codegen.ir import Kernel
from burnt.codegen.lower.matmul import why_always_library_call
from burnt.codegen.precision import precision
from burnt.codegen.runtime.c_backend import C
from burnt.codegen.runtime.compiled_plan import CompiledPlan, debug_log, debug_log_plan, warn_fallback
from burnt.codegen.runtime.target import Target
from burnt.codegen.runtime.targets import target_of
from burnt.codegen.schedule.saved_tensors import SavedTensors, select_saved_tensors, with_saved_outputs
from burnt.codegen.schedule.scheduler import TorchCall
from burnt.errors import CacheError, DefinitionError, FusionError, UnsupportedError

__all__ = ["Function", "functions", "fuse"]

# Limits on the plans of one function. Beyond the first two, running the eager function is cheaper.
_MAX_FLOAT_VALUES = 16  # sets of float arguments that plans are specialized to
_MAX_INTEGER_VALUES = 32  # sets of integer arguments among calls that are otherwise the same
_MAX_ENTRIES = 1024  # cached signatures; beyond, the older half is dropped
_FUNCTIONS: WeakSet[Function] = WeakSet()


class CacheEntry(NamedTuple):
    """What a `Function` caches for a signature: a plan, or the reason why the eager function runs.

    Args:
        forward: the plan; None if the eager function runs.
        captured_tensors: tensors that the function captured, which the plan takes after its arguments.
        captured_objects: everything that the function captured. The signature may hold its `id`, so it must
            stay alive.
        fallback_reason: why the eager function runs, or None.
        is_specialized: whether the plan is valid only for these values of the float arguments.
        eager_calls: the torch calls that the function consists of, if it runs eagerly as they are faster.
        needs_grad: whether an argument or captured tensor requires a gradient.
        capture_sites: where each captured object was found.
        capture_keys: what the signature holds for each captured object (`capture_key`).
    """

    forward: CompiledPlan | None
    captured_tensors: list[Tensor]
    captured_objects: list[Any]
    fallback_reason: str | None = None
    is_specialized: bool = False
    eager_calls: EagerCalls | None = None
    needs_grad: bool = False
    capture_sites: Sequence[tuple[Any, str]] = ()
    capture_keys: Sequence[Any] = ()


class Function(InlinedWhenTraced):
    """A function of tensors and numbers that is compiled to as few kernels as the scheduler finds.

    Args:
        fn: a Python function of tensors, numbers and other constants; it may capture tensors.
        single: raise `FusionError` unless it compiles to a single kernel.
        target: the backend that kernels are generated for; by default the one of the tensors' device.
        always_generate: generate kernels even where a torch call is known to be faster
            (`burnt.codegen.eager_policy`). `single` and `target` imply this.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        single: bool = False,
        target: Target | None = None,
        always_generate: bool = False,
    ) -> None:
        if not callable(fn):
            raise DefinitionError(
                "the object to fuse is not callable",
                where="burnt.fuse",
                expected="a function of tensors",
                found=f"{type(fn).__name__}: {fn!r:.60}",
            )
        self.fn = copy_partial(fn)
        self.single = single
        self.always_generate = always_generate or single or target is not None
        self.target = target
        self.name = "".join(c if c.isalnum() else "_" for c in getattr(fn, "__name__", "fn"))
        self._entries: dict[Any, CacheEntry] = {}
        self._capture_sites = captures(self.fn)
        self._specialized_values: set[tuple[str, ...]] = set()  # float values that have plans, for any shapes
        # By signature without its integers: how many integers were seen, and the fallback if too many.
        self._integer_counts: Counter[tuple[Any, ...]] = Counter()
        self._integer_fallbacks: dict[tuple[Any, ...], CacheEntry] = {}
        self._unsupported_types: set[tuple[type, ...]] = set()
        self._inline_cache: InlineCache[CacheEntry] = InlineCache()
        self._origin: Function | None = None
        functools.update_wrapper(self, fn)
        _FUNCTIONS.add(self)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def rebuild_arguments(self) -> tuple[Any, ...]:
        """Return what `pickle` and `copy` make another function of, which builds its plans anew."""
        return _rebuild, (self.fn, self.single, self.target, self.always_generate)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function: run the compiled plan for these arguments, or the eager function."""
        if not is_dynamo_compiling() and not kwargs:
            found = self._inline_cache.find(args, kwargs)
            if found is not None:
                return self._run(*found)
        if is_compiling() or not _torch.is_plain_call():
            return self.fn(*args, **kwargs)
        if kwargs:
            return self._call_with_keywords(args, kwargs)
        entry = self._lookup(args)
        if entry is None:
            arg_types = tuple(map(type, args))
            if arg_types not in self._unsupported_types or self.single:
                self._unsupported_types.add(arg_types)
                self._fallback(_unsupported_argument_reason(args), [])
            return self.fn(*args)
        if self._inline_cache.has_room(args) and not entry.is_specialized and not _torch.is_autocast():
            self._inline_cache.add(args, self._build_guard(entry, args), entry)
        return self._run(entry, args)

    def _build_guard(self, entry: CacheEntry, args: Sequence[Any]) -> Guard | None:
        """Build a guard that holds for calls that may reuse the entry of these arguments."""
        names = dict.fromkeys([f"argument_{i}" for i in range(len(args))], inspect.Parameter.empty)
        dtype = torch.get_default_dtype()
        conditions: list[tuple[Callable[[], object], object]] = [(torch.get_default_dtype, dtype)]
        if entry.capture_sites:
            conditions.append((functools.partial(_capture_keys, entry.capture_sites), entry.capture_keys))
        return build_guard(names, args, conditions)

    def _run(self, entry: CacheEntry, args: Sequence[Any]) -> Any:
        """Run the plan of a cache entry, or the eager function."""
        forward = entry.forward
        if forward is None:
            return self.fn(*args)
        tensors = [a for a in args if isinstance(a, Tensor)]
        if forward.mutated and forward.mutates_overlap([*tensors, *entry.captured_tensors]):
            return self.fn(*args)
        numbers = [args[i] for i in forward.plan.number_positions]
        if entry.needs_grad:
            tensors += entry.captured_tensors
            flat = Differentiable.apply(forward, numbers, *tensors)  # type: ignore[no-untyped-call]
        else:
            flat = forward([*tensors, *entry.captured_tensors], numbers)
            flat = flat[: len(forward.traced.results)]
        if forward.traced.aliases.by_position:
            flat = forward.traced.with_aliases(flat)
        structure = forward.traced.structure
        return flat[0] if structure.is_leaf() else pytree.tree_unflatten(list(flat), structure)

    def _lookup(self, args: Sequence[Any]) -> CacheEntry | None:
        """Return the cache entry for arguments, and create it at the first call.

        None if an argument is of a type that signatures do not support.
        """
        key: list[Any] = [torch.is_grad_enabled()]
        tensors: list[Tensor] = []
        for arg in args:
            kind = type(arg)
            if kind is Tensor or kind is torch.nn.Parameter:
                try:
                    key.append(
                        (arg.shape, arg.stride(), arg.dtype, arg.device, arg.requires_grad, arg.is_neg())
                    )
                except RuntimeError:  # a tensor without strides
                    return None
                tensors.append(arg)
            elif kind is float:
                key.append(float)
            elif kind in CONSTANT_TYPES or isinstance(arg, CONSTANT_TYPES):
                key.append((kind, arg))
            else:
                return None
        device_type = tensors[0].device.type if tensors else "cpu"
        if device_type != "meta" and torch.is_autocast_enabled(device_type):
            key.append(torch.get_autocast_dtype(device_type))
        if torch.get_default_dtype() is not torch.float32:
            key.append(torch.get_default_dtype())
        if (matmul_precision := precision()) != "ieee":
            key.append(matmul_precision)
        key += _capture_keys(self._capture_sites)
        entry = self._entries.get(tuple(key)) or self._integer_fallbacks.get(_without_integers(key))
        if entry is None:
            entry = self._add_entry(key, args, tensors)
        if entry.is_specialized:
            key.append(_float_values(args))
            entry = self._entries.get(tuple(key)) or self._add_entry(key, args, tensors, specialize=True)
        return entry

    def _call_with_keywords(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        bound = self._bind(args, kwargs)
        return self.fn(*args, **kwargs) if bound.kwargs else self(*bound.args)

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        bound = inspect.signature(self.fn).bind(*args, **kwargs)
        bound.apply_defaults()
        return bound

    def positional(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the arguments by position, with defaults filled in, as signatures need them.

        Raises:
            TypeError: they do not fit the function, or some can be given by keyword only.
        """
        bound = self._bind(args, kwargs)
        if bound.kwargs:
            names = ", ".join(bound.kwargs)
            raise TypeError(
                f"{self.name} takes {names} by keyword only, which plans do not support: "
                "the eager function runs"
            )
        return bound.args

    def fallback_reason(self, *args: Any) -> str | None:
        """Return why the eager function runs for these arguments; None if generated kernels run.

        >>> fused = fuse(lambda x: x[x > 0])
        >>> fused.fallback_reason(torch.ones(3))
        "it cannot be traced: a shape in it depends on a tensor's values (aten.nonzero.default)"
        """
        return self.cache_entry(*args).fallback_reason

    def why_plain(self, *args: Any) -> str | None:
        """Deprecated name of `fallback_reason`."""
        warnings.warn(
            "Function.why_plain is deprecated: use Function.fallback_reason", DeprecationWarning, stacklevel=2
        )
        return self.fallback_reason(*args)

    def plan(self, *args: Any) -> CompiledPlan | None:
        """Return the forward plan for these arguments, built if needed; None if the eager function runs."""
        return self.cache_entry(*args).forward

    def cache_entry(self, *args: Any) -> CacheEntry:
        """Return the cache entry for these arguments, built if needed."""
        return self._lookup(args) or CacheEntry(None, [], [], _unsupported_argument_reason(args))

    def on(self, target: Target) -> Function:
        """Return this function for another target, which compiles the same scheduled kernels for it."""
        function = Function(self.fn, single=self.single, target=target)
        function._origin = self
        return function

    def cache_entries(self) -> list[CacheEntry]:
        """Return the cache entries of all signatures so far."""
        return list({id(entry): entry for entry in self._entries.values()}.values())

    # --- building cache entries ---------------------------------------------------------------------------

    def _add_entry(
        self, key: list[Any], args: Sequence[Any], tensors: Sequence[Tensor], *, specialize: bool = False
    ) -> CacheEntry:
        """Build the entry of a signature and cache it; with `specialize`, for these float values alone."""
        with PLANNING_LOCK:
            captured_objects = [read_capture(holder, name) for holder, name in self._capture_sites]
            if not specialize:
                # A helper function may have been redefined since, and capture other names than before.
                num_captures = len(captured_objects)
                self._capture_sites = captures(self.fn)
                captured_objects = [read_capture(holder, name) for holder, name in self._capture_sites]
                key = [*key[: len(key) - num_captures], *map(capture_key, captured_objects)]
            sites, capture_keys = self._capture_sites, key[len(key) - len(captured_objects) :]
            signature = tuple(key)
            entry = self._entries.get(signature)
            if entry is None:
                without_integers = _without_integers(signature)
                if not specialize and without_integers != signature:
                    self._integer_counts[without_integers] += 1
                if self._integer_counts.get(without_integers, 0) > _MAX_INTEGER_VALUES:
                    self._integer_fallbacks[without_integers] = self._fallback(
                        f"it was called with more than {_MAX_INTEGER_VALUES} values of its integer arguments"
                        ", each with a plan of its own: pass what varies as a float or a tensor",
                        captured_objects,
                    )._replace(capture_sites=sites, capture_keys=capture_keys)
                    return self._integer_fallbacks[without_integers]
                values = _float_values(args)
                if (
                    values
                    and values not in self._specialized_values
                    and len(self._specialized_values) >= _MAX_FLOAT_VALUES
                ):
                    # `is_specialized`: this signature may still get a plan for one of the values seen before.
                    entry = self._fallback(
                        "it depends on the values of its float arguments, and was called with more than "
                        f"{_MAX_FLOAT_VALUES} of them",
                        captured_objects,
                    )._replace(is_specialized=True)
                else:
                    entry = self._retarget(args) or self._build_entry(args, tensors, captured_objects)
                    any_requires_grad = any(t.requires_grad for t in [*tensors, *entry.captured_tensors])
                    entry = entry._replace(needs_grad=any_requires_grad and torch.is_grad_enabled())
                    if entry.is_specialized or specialize:
                        self._specialized_values.add(values)
                if len(self._entries) >= _MAX_ENTRIES:
                    # Replace the dict rather than change it: another thread may be reading it.
                    self._entries = dict(list(self._entries.items())[_MAX_ENTRIES // 2 :])
                    self._integer_counts.clear()
                    self._inline_cache = InlineCache()
                if not specialize:
                    entry = entry._replace(capture_sites=sites, capture_keys=capture_keys)
                self._entries[signature] = entry
                if entry.is_specialized and not specialize:
                    # It was built for these values.
                    self._entries[*signature, values] = entry
            return entry

    def _retarget(self, args: Sequence[Any]) -> CacheEntry | None:
        """Compile the original function's plan for this target; None unless `on` made this function."""
        if self._origin is None or self.target is None:
            return None
        entry = self._origin.cache_entry(*args)
        forward = None if entry.forward is None else entry.forward.with_target(self.target)
        return entry._replace(forward=forward)

    def _build_entry(
        self, args: Sequence[Any], tensors: Sequence[Tensor], captured_objects: list[Any]
    ) -> CacheEntry:
        """Trace, schedule and compile for these arguments, or find why the eager function must run."""
        target = self.target or (target_of(tensors[0].device) if tensors else C)
        if (
            self.always_generate
            and self.target is None
            and isinstance(target, Target)
            and target.why_torch_matmul
        ):
            target = dataclasses.replace(target, why_torch_matmul=why_always_library_call)
        reason = target if isinstance(target, str) else None
        reason = (
            reason
            or why_unsupported_callable(self.fn)
            or self._why_unsupported_tensors(tensors)
            or why_unsupported_captures(captured_objects)
        )
        if isinstance(target, str) or reason is not None:
            return self._fallback(str(reason), captured_objects)
        try:
            traced, is_general = trace(self.fn, args)
        except Exception as error:  # of any kind: the eager function either raises it too, or can run
            return self._fallback(f"it cannot be traced: {_why_untraceable(error)}", captured_objects)
        captured_tensors = [getattr(traced.graph, name) for name in traced.captured]
        reason = (
            self._why_unsupported_tensors(captured_tensors)
            or why_unsupported(traced)
            or traced.aliases.unsupported_reason
        )
        inputs = [*tensors, *captured_tensors]
        needs_grad = torch.is_grad_enabled() and any(t.requires_grad for t in inputs)
        any_result_requires_grad = any(
            result is not None and result.requires_grad for result in traced.results
        )
        if reason is None and any_result_requires_grad and not torch.is_grad_enabled():
            reason = "it enables gradients itself"
        if reason is None and needs_grad and traced.mutated:
            reason = "it modifies an argument in place, and gradients are needed"
        if reason is not None:
            return self._fallback(reason, captured_objects)
        calls = (
            None
            if self.always_generate or needs_grad or target is not C
            else eager_calls(self.fn, args, traced)
        )
        if calls is not None:
            return CacheEntry(None, captured_tensors, captured_objects, calls.why, eager_calls=calls)
        traced = traced.without_aliases()
        captured_tensors = [getattr(traced.graph, name) for name in traced.captured]
        device = tensors[0].device if tensors else torch.device("cpu")
        backward_trace = trace_backward(traced, inputs, device) if needs_grad else None
        saved = (
            select_saved_tensors(traced, backward_trace, target.why_torch_call)
            if backward_trace is not None
            else SavedTensors([], [])
        )
        try:
            with torch.no_grad():
                forward = CompiledPlan(
                    with_saved_outputs(traced, saved.nodes), captured_tensors, self.name, target, device
                )
        except UnsupportedError as error:
            return self._fallback(str(error), captured_objects)
        except RecursionError:
            return self._fallback(
                "its expressions are nested too deeply for code generation", captured_objects
            )
        except CacheError:
            raise  # the cache folder cannot be trusted
        except Exception as error:  # of any kind: a fault in burnt must not stop what torch can run
            return self._fallback(warn_fallback(self.name, error), captured_objects)
        reason = _why_random_call(forward) if needs_grad else None
        if reason is not None:
            return self._fallback(reason, captured_objects)
        forward.saved = saved
        if backward_trace is not None:
            forward.backward_traces[tuple(t.requires_grad for t in inputs)] = backward_trace
        if self.single and len(forward.plan.steps) != 1:
            raise FusionError(
                f"{self.name} cannot be compiled to a single kernel",
                expected="1 kernel",
                found=f"{len(forward.plan.steps)} steps: "
                + ", ".join(
                    s.kind if isinstance(s, Kernel) else str(s.node.target) for s in forward.plan.steps
                ),
                hint="burnt.explain shows why each step is separate",
            )
        debug_log_plan(forward)
        return CacheEntry(forward, captured_tensors, captured_objects, is_specialized=not is_general)

    def _fallback(self, reason: str, captured_objects: list[Any]) -> CacheEntry:
        """Return an entry that runs the eager function; with `single`, raise instead."""
        if self.single:
            raise FusionError(f"{self.name} cannot be compiled to a single kernel", found=reason)
        debug_log(self.name, f"the eager function runs: {reason}")
        return CacheEntry(None, [], captured_objects, reason)

    def _why_unsupported_tensors(self, tensors: Sequence[Tensor]) -> str | None:
        """Return why plans do not support these tensors; None if they do."""
        for tensor in tensors:
            if tensor.device != tensors[0].device:
                return f"tensors on {tensors[0].device} and {tensor.device}"
            if tensor.layout != torch.strided or tensor.dtype.is_complex or tensor.is_quantized:
                return f"a tensor of layout {tensor.layout} and dtype {tensor.dtype}"
            if tensor.is_conj() or tensor.is_neg() or type(tensor) not in (Tensor, torch.nn.Parameter):
                return "a tensor subclass, or a lazily negated or conjugated tensor"
        return None


def _rebuild(fn: Callable[..., Any], single: bool, target: Target | None, always_generate: bool) -> Function:
    return Function(fn, single=single, target=target, always_generate=always_generate)


def _without_integers(signature: Sequence[Any]) -> tuple[Any, ...]:
    """Replace the values of integer arguments in a signature by their type."""
    return tuple(
        int if type(part) is tuple and len(part) == 2 and part[0] is int else part for part in signature
    )


def _unsupported_argument_reason(args: Sequence[Any]) -> str:
    """Say which argument is of a type that signatures do not support."""
    position = next((i for i, arg in enumerate(args) if not _is_supported_type(arg)), None)
    if position is None:
        return "one of its tensors has no strides"
    return (
        f"argument {position} is a {type(args[position]).__name__}: only tensors, numbers, strings, dtypes "
        "and devices are supported, each as a separate argument"
    )


def _is_supported_type(arg: object) -> bool:
    """Whether signatures support an argument of this type."""
    return type(arg) in (Tensor, torch.nn.Parameter, float) or isinstance(arg, CONSTANT_TYPES)


def _capture_keys(sites: Sequence[tuple[Any, str]]) -> list[Any]:
    """Return the part of a signature for the objects captured at these sites."""
    return [capture_key(read_capture(holder, name)) for holder, name in sites]


def _float_values(args: Sequence[Any]) -> tuple[str, ...]:
    """Return the values of the float arguments, as a specialized signature holds them."""
    return tuple(arg.hex() for arg in args if type(arg) is float)


def functions() -> list[Function]:
    """Return all `Function` objects of this process, sorted by name."""
    return sorted(_FUNCTIONS, key=lambda function: function.name)


def _why_untraceable(error: Exception) -> str:
    """Describe a tracing error in one line; torch's own messages give advice for torch.compile."""
    kind = type(error).__name__
    if isinstance(error, UnsupportedError):
        return error.what
    if kind in ("GuardOnDataDependentSymNode", "DataDependentOutputException"):
        return "it depends on a tensor's value"
    if "mutating a non-functional tensor" in str(error):
        return "it modifies a captured tensor in place: pass it as an argument"
    if kind == "DynamicOutputShapeException":
        return f"a shape in it depends on a tensor's values ({error})"
    return f"{kind}: {str(error).partition(chr(10))[0]}"


def _why_random_call(forward: CompiledPlan) -> str | None:
    """Return a reason if a torch call in the plan draws random numbers; None otherwise."""
    for step in forward.plan.steps:
        if isinstance(step, TorchCall) and is_random(step.node):
            return f"{step.node.target} draws random numbers, and its backward would draw different ones"
    return None


def fuse(fn: Callable[..., Any] | None = None, *, single: bool = False) -> Any:
    """Compile a function of tensors to as few kernels as possible, forward and backward.

    The function is traced at its first call with a new signature: shapes, strides, dtypes, devices, which
    tensors require gradients, autocast, and the values of all arguments that are neither tensors nor floats.
    Captured tensors are inputs; rebinding a captured name is noticed. Calls of other fused functions and of
    burnt's ops are fused with the rest.

    The eager function runs inside torch.compile, torch.export and function transforms, where the function
    cannot be compiled (`Function.fallback_reason` says why), and where it is a single torch call that is
    known to be faster.

    Args:
        fn: a function of tensors, numbers and other constants. Without it, a decorator is returned.
        single: raise `FusionError` unless the function compiles to a single generated kernel.

    Returns:
        a `Function`, which is called like `fn`.

    Raises:
        DefinitionError: `fn` is not callable.
        FusionError: at a call, with `single`, naming what splits the function.

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
