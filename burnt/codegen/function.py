"""`fuse` and `Function`, which compiles a Python function for each call signature and caches the plans.

The first call with a signature (shapes, dtypes, values of integers, captured objects, ...) traces the
function, schedules it into kernels, generates and compiles their code. Later calls look the plan up, allocate
the results and launch the kernels. Where no plan would be correct, the eager function runs, and
`Function.fallback_reason` says why.

Tracing is in `frontend`, scheduling in `schedule`, running a plan in `runtime.compiled_plan`, gradients in
`backward`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import sys
import types
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast
from weakref import WeakSet

import torch
from torch import Tensor
from torch.compiler import is_compiling, is_dynamo_compiling

from burnt import _torch
from burnt.codegen.backward import Differentiable, trace_backward
from burnt.codegen.eager_policy import EagerCalls, eager_calls
from burnt.codegen.frontend.captures import (
    CONSTANT_TYPES,
    CaptureSite,
    capture_key,
    captures,
    copy_partial,
    read_capture,
    why_unsupported_callable,
    why_unsupported_captures,
)
from burnt.codegen.frontend.containers import FlatCall, Structure, flatten, is_container, unflatten
from burnt.codegen.frontend.guards import Condition, Guard, GuardedCall, InlineCache, build_guard
from burnt.codegen.frontend.instances import (
    FUSED_METHODS,
    InstanceState,
    StateReader,
    build_state_check,
    snapshot_attributes,
)
from burnt.codegen.frontend.trace import PLANNING_LOCK, InlinedWhenTraced, is_random, trace, why_unsupported
from burnt.codegen.ir import Kernel
from burnt.codegen.lower.matmul import why_always_library_call
from burnt.codegen.precision import precision
from burnt.codegen.printing import debug_log, debug_log_plan
from burnt.codegen.runtime.c_backend import C
from burnt.codegen.runtime.compiled_plan import CompiledPlan, warn_fallback
from burnt.codegen.runtime.host_code import HostCode
from burnt.codegen.runtime.target import Target
from burnt.codegen.runtime.targets import target_of
from burnt.codegen.schedule.saved_tensors import SavedTensors, select_saved_tensors, with_saved_outputs
from burnt.codegen.schedule.scheduler import TorchCall
from burnt.codegen.verification import interval_of, verify_plan
from burnt.errors import CacheError, DefinitionError, FusionError, FusionWarning, UnsupportedError

# Limits on the plans of one function. Beyond the first two, running the eager function is cheaper.
_MAX_FLOAT_VALUES = 16  # sets of float arguments that plans are specialized to
_MAX_INTEGER_VALUES = 32  # sets of integer arguments among calls that are otherwise the same
_MAX_ENTRIES = 1024  # cached signatures; beyond, the older half is dropped
_MAX_STRUCTURES = 256  # structures of arguments with containers; beyond, the older half is dropped
_FALLBACK_HINT = (
    "Change what is named there, or fuse a part of the function. burnt.fuse(single=True) makes this an "
    "error. To hide it: warnings.filterwarnings('ignore', category=burnt.errors.FusionWarning)"
)
_FUNCTIONS: WeakSet[Function] = WeakSet()


class CacheEntry(NamedTuple):
    """What a `Function` caches for a signature: a plan, or the reason why the eager function runs."""

    forward: CompiledPlan | None  # the plan; None if the eager function runs
    # Tensors that the function captured, which the plan takes after its arguments.
    captured_tensors: list[Tensor]
    # Everything that the function captured. The signature may hold its `id`, so it must stay alive.
    captured_objects: list[Any]
    fallback_reason: str | None = None  # why the eager function runs, or None
    is_specialized: bool = False  # whether the plan is valid only for these values of the float arguments
    # The torch calls that the function consists of, if it runs eagerly as they are faster.
    eager_calls: EagerCalls | None = None
    needs_grad: bool = False  # whether an argument or captured tensor requires a gradient
    capture_sites: Sequence[CaptureSite] = ()  # where each captured object was found
    capture_keys: Sequence[Any] = ()  # what the signature holds for each captured object (`capture_key`)
    # The structure of the plan's result; None for a single tensor or constant.
    result_structure: Structure | None = None
    # Runs the plan for the function's arguments; None where `Function._run` must look at them first.
    call: Callable[..., Any] | None = None

    def generate_call(
        self, args: Sequence[Any], parameters: Sequence[str], names: Sequence[str]
    ) -> Callable[..., Any] | None:
        """Generate a function of these parameters, of which `names` are the arguments, which are like `args`.

        None if the plan does not run for all such arguments.
        """
        forward = self.forward
        if forward is None or forward.mutated or forward.number_limits:
            return None
        code = HostCode(parameters)
        tensors = [name for name, a in zip(names, args, strict=True) if isinstance(a, Tensor)]
        tensors += [code.name(t) for t in self.captured_tensors]
        numbers = [names[i] for i in forward.plan.number_positions]
        if self.needs_grad:
            given = f"[{', '.join(numbers)}]"
            flat = code.call(Differentiable.apply, code.name(forward), given, *tensors)
        else:
            seed = [] if forward.plan.seed is None else [code.call(forward.draw_seed)]
            flat = f"{code.name(forward)}.run({', '.join([*tensors, *seed, *numbers])})"
        structure, count = self.result_structure, len(forward.traced.results)
        if forward.traced.aliases.by_position or (
            structure is not None and (structure.kind is not tuple or any(structure.elements))
        ):
            return code.build(code.call(self.finish, flat))
        return code.build(f"{flat}[{'0' if structure is None else f':{count}'}]")

    def finish(self, flat: Sequence[Any]) -> Any:
        """Return the function's result, given what the plan returns."""
        assert self.forward is not None
        traced = self.forward.traced
        flat = flat[: len(traced.results)]
        if traced.aliases.by_position:
            flat = traced.with_aliases(flat)
        return unflatten(self.result_structure, flat)


class _FusedMethods:
    """The fused methods of an instance, which holds them; its copies and pickles begin without any."""

    def __init__(self, instance: object = None) -> None:
        self.instance = instance
        self.functions: dict[Function, Function] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return _FusedMethods, ()


class Function(InlinedWhenTraced):
    """A function of tensors and numbers that is compiled to as few kernels as the scheduler finds.

    Args:
        fn: a Python function of tensors, numbers, other constants and containers of them, or another callable
            object; it may capture tensors and modules.
        single: raise `FusionError` unless it compiles to a single kernel.
        target: the backend that kernels are generated for; by default the one of the tensors' device.
        always_generate: generate kernels even where a torch call is known to be faster
            (`burnt.codegen.eager_policy`). `single` and `target` imply this.
        verify: as in `fuse`.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        single: bool = False,
        target: Target | None = None,
        always_generate: bool = False,
        verify: bool | float = False,
    ) -> None:
        self._interval = interval_of(verify, "burnt.fuse")
        self._options: dict[str, Any] = {"single": single, "target": target, "verify": verify}
        self._options["always_generate"] = always_generate
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
        name = type(fn).__name__ if isinstance(fn, torch.nn.Module) else "fn"
        self.name = "".join(c if c.isalnum() else "_" for c in getattr(fn, "__name__", name))
        self._entries: dict[Any, CacheEntry] = {}
        self._capture_sites = captures(self.fn)
        self._specialized_values: set[tuple[str, ...]] = set()  # float values that have plans, for any shapes
        # By signature without its integers: how many integers were seen, and the fallback if too many.
        self._integer_counts: Counter[tuple[Any, ...]] = Counter()
        self._integer_fallbacks: dict[tuple[Any, ...], CacheEntry] = {}
        self._unsupported_types: set[tuple[type, ...]] = set()
        self._inline_cache: InlineCache[CacheEntry] = InlineCache()
        # The functions of the leaves of arguments, for calls with containers or keyword arguments.
        self._flat_functions: dict[Structure, Function] = {}
        self._class_functions: dict[type, Function] = {}  # this one as a class method
        self._owner: type | None = None  # the class that this is a method of
        self._reported: set[str] | None = None  # the reasons that were reported; None to report none
        self._origin: Function | None = None
        functools.update_wrapper(self, fn, updated=())
        if isinstance(fn, types.FunctionType):
            for name, value in vars(fn).items():
                self.__dict__.setdefault(name, value)
        _FUNCTIONS.add(self)

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner = owner

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Return the method of an instance, a `Function` with plans of its own, whose captures it holds."""
        if instance is None:
            return self
        if isinstance(instance, type):
            function = self._class_functions.get(instance)
            if function is None:
                function = self._class_functions[instance] = self._derive(types.MethodType(self.fn, instance))
            return function
        if is_dynamo_compiling() or not hasattr(instance, "__dict__"):
            return types.MethodType(self, instance)
        methods = instance.__dict__.get(FUSED_METHODS)
        if methods is None or methods.instance is not instance:  # a shallow copy shares it
            methods = instance.__dict__[FUSED_METHODS] = _FusedMethods(instance)
        function = methods.functions.get(self)
        if function is None:
            function = methods.functions[self] = self._derive(types.MethodType(self.fn, instance))
        return function

    def _derive(self, fn: Callable[..., Any]) -> Function:
        """Return a function with the same options, which reports a reason once for both."""
        function = Function(fn, **self._options)
        function.name, function._reported = self.name, self._reported
        return function

    def rebuild_arguments(self) -> tuple[Any, ...]:
        """Return what `pickle` and `copy` make another function of, which builds its plans anew."""
        return _rebuild, (self.fn, self._options, self._reported is not None)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the function: run the compiled plan for these arguments, or the eager function."""
        if not is_dynamo_compiling() and not kwargs:
            found = self._inline_cache.find(args, kwargs)
            if found is not None:
                call = found[0].call
                return self._run(*found) if call is None else call(*found[1])
        if is_compiling() or not _torch.is_plain_call():
            return self.fn(*args, **kwargs)
        entry = None if kwargs else self._lookup(args)
        if entry is None:
            return self._call_with_containers(args, kwargs)
        self._add_to_inline_cache(entry, args)
        result = self._run(entry, args)
        self._report(entry, args)
        return result

    def _call_with_containers(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function with keyword arguments, containers, or arguments that plans do not take."""
        if kwargs:
            positional, keywords = self._by_position(args, kwargs)
            if not keywords:
                return self(*positional)
            args, kwargs = positional, keywords
        method = self._bind_first(args)
        if method is not None:
            return method(*args[1:], **kwargs)
        function, leaves = self._flatten(args, kwargs)
        found = function._inline_cache.find(leaves, {})
        entry = function._lookup(leaves) if found is None else found[0]
        if entry is None:
            leaf_types = tuple(map(type, leaves))
            if leaf_types not in self._unsupported_types or self.single:
                self._unsupported_types.add(leaf_types)
                reason = _unsupported_argument_reason(args, kwargs, leaves)
                entry = self._fallback(reason, [])
            result = self.fn(*args, **kwargs)
        else:
            if found is None:
                function._add_to_inline_cache(entry, leaves)
            result = function._run(entry, leaves, functools.partial(self.fn, *args, **kwargs))
        if entry is not None and found is None:
            self._report(entry, leaves)
        return result

    def _add_to_inline_cache(self, entry: CacheEntry, args: tuple[Any, ...]) -> None:
        if self._inline_cache.has_room(args) and not _torch.is_autocast():
            guard = self._build_guard(entry, args)
            self._inline_cache.add(args, guard, entry, entry.is_specialized)

    def _report(self, entry: CacheEntry, leaves: Sequence[Any]) -> None:
        """Warn if the eager function ran, once for each reason that the user can do something about."""
        reason = entry.fallback_reason
        if (
            reason is None
            or self._reported is None
            or reason in self._reported
            or entry.eager_calls is not None
        ):
            return
        if any(isinstance(a, Tensor) and (a.is_meta or _torch.is_fake(a)) for a in leaves):
            return  # shapes are computed, and nothing is slow
        self._reported.add(reason)
        warnings.warn(
            f"burnt.fuse: {self.name} runs as the eager function, without generated kernels: {reason}.\n"
            f"{_FALLBACK_HINT}",
            FusionWarning,
            stacklevel=_stacklevel(),
        )

    def _build_guard(self, entry: CacheEntry, args: Sequence[Any]) -> Guard | None:
        names = dict.fromkeys([f"argument_{i}" for i in range(len(args))], inspect.Parameter.empty)
        conditions = self._conditions(entry)
        return None if conditions is None else build_guard(names, args, conditions, entry.is_specialized)

    def bind(
        self, args: Sequence[Any], parameters: Sequence[str], names: Sequence[str]
    ) -> GuardedCall | None:
        """Return what runs the plan for arguments that a guard finds to be like `args`, unguarded.

        It is a function of `parameters`, of which `names` are this function's arguments, in order. None if
        the plan does not run for all such arguments.
        """
        entry = self._lookup(args)
        call = None if entry is None else entry.generate_call(args, parameters, names)
        conditions = None if entry is None else self._conditions(entry)
        if entry is None or call is None or conditions is None:
            return None
        return GuardedCall(call, conditions, entry.is_specialized)

    def _conditions(self, entry: CacheEntry) -> list[Condition] | None:
        """Return what a guard must test besides arguments; None if there can be no guard."""
        conditions: list[Condition]
        conditions = [(torch.get_default_dtype, torch.get_default_dtype())]
        sites = list(zip(entry.capture_sites, entry.capture_keys, entry.captured_objects, strict=False))
        states = [(site, state) for site, _, state in sites if isinstance(state, InstanceState)]
        if states and entry.forward is not None:
            check = build_state_check([site for site, _ in states], [state for _, state in states])  # type: ignore[misc]
            if _capture_keys(entry.capture_sites) != entry.capture_keys:
                return None  # another thread has just set an attribute
            conditions.append((check, True))
            sites = [site for site in sites if not isinstance(site[2], InstanceState)]
        if sites:
            keys = [key for _, key, _ in sites]
            conditions.append((functools.partial(_capture_keys, [site for site, _, _ in sites]), keys))
        return conditions

    def _run(
        self, entry: CacheEntry, args: Sequence[Any], call_eager: Callable[[], Any] | None = None
    ) -> Any:
        """Run the plan of a cache entry, or the eager function: `call_eager` if that does not take `args`."""
        forward = entry.forward
        if forward is None:
            return self.fn(*args) if call_eager is None else call_eager()
        tensors = [a for a in args if isinstance(a, Tensor)]
        if forward.mutated and forward.mutates_overlap([*tensors, *entry.captured_tensors]):
            if self.single:
                self._fallback("an argument that it modifies in place shares memory with another tensor", [])
            return self.fn(*args) if call_eager is None else call_eager()
        numbers = [args[i] for i in forward.plan.number_positions]
        if forward.number_limits and forward.exceeds_limits(numbers):
            return self.fn(*args) if call_eager is None else call_eager()
        if entry.call is not None:
            return entry.call(*args)
        tensors += entry.captured_tensors
        if entry.needs_grad:
            flat = Differentiable.apply(forward, numbers, *tensors)  # type: ignore[no-untyped-call]
        else:
            flat = forward(tensors, numbers)
        return entry.finish(flat)

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
                    key.append((arg.shape, arg.stride(), arg.dtype, arg.device, arg.requires_grad))
                    key += _torch.is_lazy(arg), _torch.is_wrapped(arg)
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

    @functools.cached_property
    def _signature(self) -> inspect.Signature | None:
        """The function's signature; None for a function of C that has none."""
        try:
            return inspect.signature(self.fn)
        except ValueError:
            return None

    def _by_position(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return arguments by position where that is possible, with defaults filled in, and the others."""
        if self._signature is None:
            return args, kwargs
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.args, bound.kwargs

    def _bind_first(self, args: Sequence[Any]) -> Function | None:
        """Return this as a method of the first argument, if that is a module, a class or its owner's."""
        if args and isinstance(args[0], (torch.nn.Module, type, self._owner or torch.nn.Module)):
            method = self.__get__(args[0])
            return method if isinstance(method, Function) else None
        return None

    def _flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Function, tuple[Any, ...]]:
        """Return the function of the leaves of arguments, and the leaves; this function if there is none."""
        if not kwargs and not any(map(is_container, args)):
            return self, args
        leaves: list[Any] = []
        try:
            structure = flatten((args, kwargs), leaves)
        except (TypeError, RecursionError):  # no hashable structure
            return self, args
        assert structure is not None
        function = self._flat_functions.get(structure)
        if function is None:
            if len(self._flat_functions) >= _MAX_STRUCTURES:
                # Replace the dict rather than change it: another thread may be reading it.
                self._flat_functions = dict(list(self._flat_functions.items())[_MAX_STRUCTURES // 2 :])
            function = self._flat_functions[structure] = self._derive(FlatCall(self.fn, structure))
        return function, tuple(leaves)

    def resolve(self, /, *args: Any, **kwargs: Any) -> tuple[Function, tuple[Any, ...]]:
        """Return the function and the flat arguments, by position, that a call with these arguments leads to.

        The flat arguments are tensors, numbers and other constants, in containers or not.

        Raises:
            TypeError: the arguments do not fit the function.
        """
        if kwargs:
            args, kwargs = self._by_position(args, kwargs)
        if all(map(_is_supported_type, args)) and not kwargs:
            return self, args
        method = self._bind_first(args)
        return self._flatten(args, kwargs) if method is None else method.resolve(*args[1:], **kwargs)

    def __repr__(self) -> str:
        return f"<burnt.fuse of {self.name}>"

    def fallback_reason(self, /, *args: Any, **kwargs: Any) -> str | None:
        """Return why the eager function runs for these arguments; None if generated kernels run.

        >>> fused = fuse(lambda x: x[x > 0])
        >>> fused.fallback_reason(torch.ones(3))
        "it cannot be traced: a shape in it depends on a tensor's values (aten.nonzero.default)"
        """
        return self.cache_entry(*args, **kwargs).fallback_reason

    def why_plain(self, *args: Any) -> str | None:
        """Deprecated name of `fallback_reason`."""
        warnings.warn(
            "Function.why_plain is deprecated: use Function.fallback_reason", DeprecationWarning, stacklevel=2
        )
        return self.fallback_reason(*args)

    def plan(self, /, *args: Any, **kwargs: Any) -> CompiledPlan | None:
        """Return the forward plan for these arguments, built if needed; None if the eager function runs."""
        return self.cache_entry(*args, **kwargs).forward

    def cache_entry(self, /, *args: Any, **kwargs: Any) -> CacheEntry:
        """Return the cache entry for these arguments, built if needed."""
        function, leaves = self.resolve(*args, **kwargs)
        entry = function._lookup(leaves)
        return entry or CacheEntry(None, [], [], _unsupported_argument_reason(args, kwargs, leaves))

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
        """Build the entry of a signature and cache it; with `specialize`, only for these float values."""
        with PLANNING_LOCK:
            captured_objects = [read_capture(holder, name) for holder, name in self._capture_sites]
            if not specialize:
                # A helper function may have been redefined since, and capture other names than before.
                num_captures = len(captured_objects)
                self._capture_sites = captures(self.fn)
                captured_objects = [read_capture(holder, name) for holder, name in self._capture_sites]
                key = [*key[: len(key) - num_captures], *map(capture_key, captured_objects)]
            sites, capture_keys = self._capture_sites, list(map(capture_key, captured_objects))
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
                    parameters = [f"x{i}" for i in range(len(args))]
                    entry = entry._replace(call=entry.generate_call(args, parameters, parameters))
                    if entry.is_specialized or specialize:
                        self._specialized_values.add(values)
                if len(self._entries) >= _MAX_ENTRIES:
                    # Replace the dict rather than change it: another thread may be reading it.
                    self._entries = dict(list(self._entries.items())[_MAX_ENTRIES // 2 :])
                    self._integer_counts.clear()
                    self._inline_cache = InlineCache()
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
        if isinstance(target, str):
            return self._fallback(target, captured_objects)
        if self.always_generate and self.target is None and target.why_torch_matmul:
            target = dataclasses.replace(target, why_torch_matmul=why_always_library_call)
        reason = (
            why_unsupported_callable(self.fn)
            or self._why_unsupported_tensors(tensors)
            or why_unsupported_captures(captured_objects)
        )
        if reason is not None:
            return self._fallback(reason, captured_objects)
        call = self.fn if isinstance(self.fn, FlatCall) else FlatCall(self.fn)
        attributes = snapshot_attributes(
            [i for i, name in self._capture_sites if isinstance(name, StateReader)]
        )
        try:
            traced, is_general = trace(call.trace, args)
        except Exception as error:  # of any kind: the eager function either raises it too, or can run
            return self._fallback(f"it cannot be traced: {_why_untraceable(error)}", captured_objects)
        finally:
            assigned = next(attributes.changes(), None)
            attributes.restore()  # it may have set some to tensors without memory
            if assigned is not None:
                kind = type(assigned[0]).__name__
                reason = f"it assigns to the attribute {assigned[1]!r} of a {kind}, which a plan would not do"
        device = tensors[0].device if tensors else torch.device("cpu")
        captured_tensors = [getattr(traced.graph, name) for name in traced.captured]
        reason = (
            reason
            or call.unsupported_reason
            or self._why_unsupported_tensors([*tensors, *captured_tensors])
            or why_unsupported(traced, device)
            or traced.aliases.unsupported_reason
        )
        inputs = [*tensors, *captured_tensors]
        needs_grad = torch.is_grad_enabled() and any(t.requires_grad for t in inputs)
        (nodes,) = cast("tuple[Sequence[Any]]", traced.graph.graph.output_node().args)
        any_result_requires_grad = any(
            layout is not None and layout.requires_grad and node.op == "call_function"  # not an input itself
            for node, layout in zip(nodes, traced.results, strict=True)
        )
        if reason is None and any_result_requires_grad and not torch.is_grad_enabled():
            reason = "it enables gradients itself"
        if reason is None and needs_grad and traced.mutated:
            reason = "it modifies an argument in place, and gradients are needed"
        if reason is not None:
            entry = self._fallback(reason, captured_objects)
            return entry._replace(is_specialized=not is_general)
        if target is C and not (self.always_generate or needs_grad):
            calls = eager_calls(call.trace, args, traced)
            if calls is not None:
                return CacheEntry(None, captured_tensors, captured_objects, calls.why, eager_calls=calls)
        traced = traced.without_aliases()
        captured_tensors = [getattr(traced.graph, name) for name in traced.captured]
        backward_trace = trace_backward(traced, inputs, device) if needs_grad else None
        saved = SavedTensors([], [])
        if backward_trace is not None:
            saved = select_saved_tensors(traced, backward_trace, target.why_torch_call)
        try:
            with torch.no_grad():
                forward = CompiledPlan(
                    with_saved_outputs(traced, saved.nodes), captured_tensors, self.name, target, device
                )
        except (UnsupportedError, RecursionError) as error:
            too_deep = "its expressions are nested too deeply for code generation"
            reason = too_deep if isinstance(error, RecursionError) else str(error)
            return self._fallback(reason, captured_objects)
        except CacheError:
            raise  # the cache folder cannot be trusted
        except Exception as error:  # of any kind: a fault in burnt must not stop what torch can run
            reason = warn_fallback(self.name, error)
            if self._reported is not None:
                self._reported.add(reason)
            return self._fallback(reason, captured_objects)
        reason = _why_random_call(forward) if needs_grad else None
        if reason is not None:
            return self._fallback(reason, captured_objects)
        forward.saved = saved
        if backward_trace is not None:
            forward.backward_traces[tuple(t.requires_grad for t in inputs)] = backward_trace
        if self.single and len(forward.plan.steps) != 1:
            steps = [s.kind if isinstance(s, Kernel) else str(s.node.target) for s in forward.plan.steps]
            raise FusionError(
                f"{self.name} cannot be compiled to a single kernel",
                expected="1 kernel",
                found=f"{len(steps)} steps: {', '.join(steps)}",
                hint="burnt.explain shows why each step is separate",
            )
        debug_log_plan(forward)
        if self._interval is not None:
            verify_plan(forward, self._interval)
        return CacheEntry(
            forward,
            captured_tensors,
            captured_objects,
            is_specialized=not is_general,
            result_structure=call.result_structure,
        )

    def _fallback(self, reason: str, captured_objects: list[Any]) -> CacheEntry:
        """Return an entry that runs the eager function; with `single`, raise instead."""
        if self.single:
            raise FusionError(
                f"{self.name} cannot be compiled to a single kernel",
                where="burnt.fuse(single=True)",
                expected="1 kernel",
                found=f"the eager function: {reason}",
                hint="change what is named there, or fuse without single=True, which runs the eager function",
            )
        debug_log(self.name, f"the eager function runs: {reason}")
        return CacheEntry(None, [], captured_objects, reason)

    def _why_unsupported_tensors(self, tensors: Sequence[Tensor]) -> str | None:
        """Return why plans do not support these tensors; None if they do."""
        for tensor in tensors:
            if tensor.device != tensors[0].device:
                return f"tensors on {tensors[0].device} and {tensor.device}"
            if tensor.layout != torch.strided or tensor.dtype.is_complex or tensor.is_quantized:
                return f"a tensor of layout {tensor.layout} and dtype {tensor.dtype}"
            if _torch.is_lazy(tensor) or type(tensor) not in (Tensor, torch.nn.Parameter):
                return "a tensor subclass, or a lazily negated, conjugated or zero tensor"
            if _torch.is_wrapped(tensor):
                return "a tensor of a transform that has ended"
        return None


def _rebuild(fn: Callable[..., Any], options: dict[str, Any], reports: bool) -> Function:
    function = Function(fn, **options)
    function._reported = set() if reports else None
    return function


def _without_integers(signature: Sequence[Any]) -> tuple[Any, ...]:
    """Replace the values of integer arguments in a signature by their type."""
    return tuple(
        int if type(part) is tuple and len(part) == 2 and part[0] is int else part for part in signature
    )


def _unsupported_argument_reason(
    args: Sequence[Any], kwargs: Mapping[str, Any], leaves: Sequence[Any]
) -> str:
    """Say which argument is, or holds, an object of a type that signatures do not support."""
    found = next((leaf for leaf in leaves if not _is_supported_type(leaf)), None)
    if found is None:
        return "one of its tensors has no strides"
    arguments: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
    name = next((name for name, arg in arguments.items() if _holds(arg, found)), "?")
    verb = "is" if arguments.get(name) is found else "holds"
    return (
        f"argument {name} {verb} a {type(found).__name__}: only tensors, numbers, strings, dtypes and "
        "devices are supported, and lists, tuples, dicts and dataclasses of them"
    )


def _holds(arg: Any, leaf: object) -> bool:
    leaves: list[Any] = [arg]
    with contextlib.suppress(TypeError, RecursionError):
        flatten(arg, leaves)
    return any(part is leaf for part in leaves)


def _is_supported_type(arg: object) -> bool:
    return type(arg) in (Tensor, torch.nn.Parameter, float) or isinstance(arg, CONSTANT_TYPES)


def _stacklevel() -> int:
    """Return the stack level of the call outside of burnt and torch that a warning is about."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in (
        "burnt",
        "torch",
    ):
        level, frame = level + 1, frame.f_back
    return level


def _capture_keys(sites: Sequence[CaptureSite]) -> list[Any]:
    return [capture_key(read_capture(holder, name)) for holder, name in sites]


def _float_values(args: Sequence[Any]) -> tuple[str, ...]:
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
    for step in forward.plan.steps:
        if isinstance(step, TorchCall) and is_random(step.node):
            return f"{step.node.target} draws random numbers, and its backward would draw different ones"
    return None


def fuse(fn: Callable[..., Any] | None = None, *, single: bool = False, verify: bool | float = False) -> Any:
    """Compile a function of tensors to as few kernels as possible, forward and backward.

    The function is traced at its first call with a new signature: shapes, strides, dtypes, devices, which
    tensors require gradients, autocast, the values of all arguments that are neither tensors nor floats, and
    the structure of containers (lists, tuples, dicts, dataclasses and other pytrees). Captured tensors are
    inputs; rebinding a captured name is noticed, and so is a change of an attribute of a module, or of the
    object of a method. Calls of other fused functions and of burnt's ops are fused with the rest.

    The eager function runs inside torch.compile, torch.export and function transforms, where it is a single
    torch call that is known to be faster, and where the function cannot be compiled. Then a `FusionWarning`
    says why, once for each reason, as does `Function.fallback_reason`.

    Args:
        fn: a function of tensors, numbers, other constants and containers of them; a method, or a
            `torch.nn.Module`. Without it, a decorator is returned.
        single: raise `FusionError` unless the function compiles to a single generated kernel.
        verify: as in `burnt.compile`: True compares each new plan, forward and backward, with its graph run
            by torch; ``1/1000`` a sample of calls.

    Returns:
        a `Function`, which is called like `fn`; for a static or class method, another one of it.

    Raises:
        DefinitionError: `fn` is not callable.
        FusionError: at a call: with `single`, naming what splits the function; with ``verify=True``, if a
            plan computes something else.
        InputValueError: `verify` is neither a truth value nor a share.

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
        return functools.partial(fuse, single=single, verify=verify)
    if isinstance(fn, staticmethod | classmethod):
        return type(fn)(fuse(fn.__func__, single=single, verify=verify))
    function = Function(fn, single=single, verify=verify)
    if (getattr(fn, "__module__", None) or "").split(".")[0] != "burnt":  # of burnt's own, no user can change
        function._reported = set()
    return function
