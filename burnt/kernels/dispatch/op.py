"""An op: one reference implementation, several candidates that compute it, and the dispatch of calls to them.

The reference, a function of plain torch ops, is the specification. Every op has two candidates from the
start: ``library`` calls the reference (or the single ATen op that is equivalent), and ``generated`` runs the
kernels that `burnt.codegen` generates from the reference. `Op.candidate` registers more.

A call first asks the guards of the last few entries, the inline cache, whether its arguments are those of
one of them. If not, it computes its signature (dtypes, shapes, strides and devices of tensors, the values of
other arguments but floats) and looks it up in a dictionary. A new signature selects a candidate, see
`burnt.kernels.dispatch.selection`; the second call with it runs the same candidate and gets a guard, which is
found from the third call on. While ops are traced, compiled or transformed, a call goes through
``torch.ops.burnt`` instead (`burnt.kernels.dispatch.torch_library`).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, NoReturn, ParamSpec, TypeVar, overload

import torch
from torch import Tensor
from torch.compiler import is_compiling, is_dynamo_compiling

from burnt import _torch
from burnt._torch import is_lazy, is_wrapped
from burnt.codegen.frontend.guards import InlineCache, build_guard
from burnt.codegen.frontend.trace import InlinedWhenTraced, is_tracing
from burnt.codegen.function import Function
from burnt.codegen.precision import precision
from burnt.errors import DefinitionError, InputTypeError
from burnt.kernels.dispatch.generated import Generated
from burnt.kernels.interface.autocast import autocast_dtype
from burnt.kernels.interface.binding import (
    aliases,
    as_list,
    bind_candidate,
    bind_guarded,
    describe_results,
    structure_of,
)
from burnt.kernels.interface.candidate import OPS, Candidate
from burnt.kernels.interface.checks import all_strided, describe, format_signature, translate_error

P = ParamSpec("P")
R = TypeVar("R")


_STATIC_TYPES = frozenset({bool, int, str, type(None), torch.dtype})
_BUILT_IN = ("library", "generated")
_MAX_ENTRIES = 4096  # per op: bounds the memory of programs whose shapes keep changing


class Entry(NamedTuple):
    """The cached selection for a signature.

    `call` runs the candidate with the op's arguments by position, after `Op.look` if `checks_values`.
    """

    call: Callable[..., Any]
    checks_values: bool
    candidate: Candidate
    config: dict[str, Any] | None
    why: str
    key: str


class Op(InlinedWhenTraced, Generic[P, R]):
    """A function of tensors with several implementations; each call runs the fastest one known.

    Called like its reference. Created by the decorator `op`.

    Args:
        reference: the definition in plain torch. Every argument has an annotation: a tensor, number, string,
            dtype or sequence of integers, optionally ``| None``. It returns one tensor or a tuple of tensors.
        library: the single torch call that computes the same, where the reference is not one itself.
        check: takes the arguments; raises if their shapes or dtypes do not match. Called once for each
            signature, whichever candidate is selected.
        look: takes the arguments; raises if values are invalid, such as a label that is not a class. Called
            before candidates that do not check values themselves, on the CPU only: on another device it would
            synchronize.
        always_looks: the reference does not check values either, so `look` is called before it, too.
        pair: the name of the optional argument that, when given, makes the op return a tuple.
        examples: takes a device; returns argument tuples for the tuner and the tests, typical ones first.
        features: takes the arguments; returns the sizes and settings by name that the op's facts in
            `burnt.torch_speed` ask for, in addition to those that all ops have.
        small: takes the arguments; returns whether a call is so small that selecting a candidate takes longer
            than any can save; layers then call the library (`in_layer`).
        random: results differ from call to call.
        autocast: takes the autocast dtype and all arguments by position; returns the arguments as autocast
            casts them (`burnt.kernels.interface.autocast`). The call continues with these, autocast disabled.
            Results have the dtypes that the reference's have under autocast. Without it, only candidates that
            support autocast themselves (`Candidate`) run under autocast.
        in_parts: takes the reference or the library's function, and the arguments; returns its result,
            computed in parts. The accuracy check calls it where the whole would need too much memory.

    Raises:
        DefinitionError: another op has this name, the reference is not a function, one of its arguments has
            no supported annotation or cannot be passed by position, or `examples` is not a function.
    """

    def __init__(
        self,
        reference: Callable[P, R],
        *,
        library: Callable[P, R] | None = None,
        check: Callable[..., None] | None = None,
        look: Callable[..., None] | None = None,
        always_looks: bool = False,
        pair: str | None = None,
        examples: Callable[[torch.device], Sequence[tuple[Any, ...]]] | None = None,
        features: Callable[..., dict[str, Any]] | None = None,
        small: Callable[..., bool] | None = None,
        random: bool = False,
        autocast: Callable[..., tuple[Any, ...]] | None = None,
        in_parts: Callable[..., Any] | None = None,
    ) -> None:
        if not callable(reference) or not hasattr(reference, "__name__"):
            raise DefinitionError(
                "an op is defined by a function",
                where="burnt.kernels.op",
                expected="a function of plain torch ops",
                found=f"{type(reference).__name__}: {reference!r:.60}",
            )
        if examples is not None and not callable(examples):
            raise DefinitionError(
                f"examples= of the op {reference.__name__} cannot be used",
                where=reference.__qualname__,
                expected="a function of a device that returns argument tuples",
                found=type(examples).__name__,
                hint="examples=lambda device: [(torch.randn(64, 64, device=device),)]",
            )
        self.reference = reference
        self.name = reference.__name__
        self.signature = inspect.signature(reference)
        self.check, self.look = check, look
        self.examples, self.random, self.small = examples, random, small
        self.features = features
        self.autocast, self.in_parts = autocast, in_parts
        parameters = list(self.signature.parameters.values())
        for p in parameters:
            if p.kind is not p.POSITIONAL_OR_KEYWORD:
                raise DefinitionError(
                    f"the argument {p.name} of the op {self.name} is {p.kind.description}",
                    where=f"{reference.__module__}.{reference.__qualname__}",
                    expected="arguments that can be passed by position or by name",
                    found=f"{self.name}{self.signature}",
                    hint="remove the *" if p.kind is p.KEYWORD_ONLY else None,
                )
        self.parameters = {p.name: p.default for p in parameters}
        self.positions = {p.name: i for i, p in enumerate(parameters)}
        self.defaults = tuple(self.parameters.values())
        self.arity = len(parameters)
        self.pair = None if pair is None else self.positions[pair]
        self._entries: dict[tuple[Any, ...], Entry] = {}
        self._recent: InlineCache[Entry] = InlineCache()
        self.gradient_functions: dict[tuple[Any, ...], Function] = {}
        self.candidates: dict[str, Candidate] = {}
        # Strides are part of a call's meaning; where library and reference differ, the reference's are right.
        library_call = self.library = library or reference
        checks_values = not always_looks
        self._add(
            Candidate(
                "library", library_call, differentiable=True, autocast=True, checks_values=checks_values
            )
        )
        self._add(Generated(reference, checks_values=checks_values))
        functools.update_wrapper(self, reference)
        from burnt.kernels.dispatch.torch_library import Registration, register, unregister

        existing = OPS.get(self.name)
        if existing is not None:
            # Running the same definition again, as in a notebook, replaces the op.
            if (existing.reference.__module__, existing.reference.__qualname__) != (
                reference.__module__,
                reference.__qualname__,
            ):
                raise DefinitionError(
                    f"an op named {self.name!r} exists already",
                    where=f"{reference.__module__}.{reference.__qualname__}",
                    found=f"{existing.reference.__module__}.{existing.reference.__qualname__}",
                    hint="choose another name; a faster implementation of that op is a candidate of it",
                )
            unregister(existing.registration)
        self.registration: Registration = register(self)
        OPS[self.name] = self
        self.overloads = self.registration.overloads
        kinds = [str(a.type) for a in self.overloads[0]._schema.arguments]
        # Arguments that are lists in the schema may be passed as a single number.
        self.is_list = ["[]" in kind or "List" in kind for kind in kinds]
        self.is_tensor = ["Tensor" in kind for kind in kinds]
        self.is_float = ["float" in kind for kind in kinds]
        self.is_optional = [kind.startswith("Optional") for kind in kinds]

    def __repr__(self) -> str:
        return f"<op {self.name}: {', '.join(self.candidates)}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Compute the op with the selected candidate."""
        if not is_dynamo_compiling():
            hit = self._recent.find(args, kwargs)
            if hit is not None:
                return self._run_entry(*hit)  # type: ignore[no-any-return]
        full = self.bind(args, kwargs) if kwargs or len(args) != self.arity else args
        if is_compiling() or not _torch.is_plain_call():
            return self.call_torch_op(full)  # type: ignore[no-any-return]
        return self.run(full, args)  # type: ignore[no-any-return]

    def in_layer(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Compute the op as a layer of `burnt.nn` does.

        Where a compiler, an export or ``torch.jit.trace`` records the call, the library is called: compilers
        fuse torch's ops with their neighbours, and programs without burnt can load them. An op with `small`
        calls it for small arguments, too, and under modes and transforms, such as a counter of FLOPs.
        """
        if is_compiling() or torch._C._get_tracing_state() is not None:
            return self.library(*self.bind(args, kwargs))  # type: ignore[call-arg]
        if self.small is not None and (self.small(*args, **kwargs) or not _torch.is_plain_call()):
            return self.library(*args, **kwargs)
        return self(*args, **kwargs)

    def run(self, args: Sequence[Any], call_args: tuple[Any, ...] | None = None) -> Any:
        """Compute the op with the selected candidate, outside of tracing and transforms.

        Args:
            args: all arguments by position, defaults filled in.
            call_args: the positional arguments of the call as it was written, under which the inline cache
                stores the selected entry; None not to store it.
        """
        # Read before the entries: `forget` replaces those first, so a stale entry cannot enter the new cache.
        recent = self._recent
        key: list[Any] = [torch.is_grad_enabled()]
        plain = True
        try:
            for arg in args:
                kind = type(arg)
                if (kind is Tensor or kind is torch.nn.Parameter) and not is_wrapped(arg):
                    key += arg.shape, arg.stride(), arg.dtype, arg.device, arg.requires_grad, is_lazy(arg)
                elif kind is float:
                    key.append(float)
                elif kind in _STATIC_TYPES:
                    key.append(arg)
                elif kind is list or kind is tuple:
                    key.append(tuple(arg))
                else:
                    plain = False
                    break
        except RuntimeError:
            if all_strided(args):
                raise
            plain = False
        if not plain:
            # A tensor subclass, a proxy for a tensor, or a tensor without strides: leave it to torch's ops.
            self.check_argument_types(args)
            return self.candidates["library"](*args)
        if _torch.is_autocast():
            cast_args, context = self.under_autocast(args)
            if cast_args is not args:
                with context:
                    return self.run(cast_args)
            key += [torch.get_autocast_dtype("cpu"), torch.get_autocast_dtype("cuda")]
            call_args = None
        if (matmul_precision := precision()) != "ieee":
            key.append(matmul_precision)
        signature = tuple(key)
        entry = self._entries.get(signature)
        if entry is None:
            return self._first_call(signature, args)
        if call_args is not None and recent.has_room(call_args):
            bound = None
            if (guard := build_guard(self.parameters, args)) is not None:
                bound = bind_guarded(self, entry.candidate, entry.config, args)
            if bound is None:
                recent.add(call_args, guard, entry)
            else:
                guard = build_guard(self.parameters, args, bound.conditions, bound.exact_floats)
                recent.add(call_args, guard, entry._replace(call=bound.call), bound.exact_floats)
        return self._run_entry(entry, args)

    def _run_entry(self, entry: Entry, args: Sequence[Any]) -> Any:
        """Run the selected candidate with all arguments by position; raise on invalid values."""
        if entry.checks_values:
            self.look(*args)  # type: ignore[misc]
        try:
            return entry.call(*args)
        except Exception as error:
            if _torch.is_raised_by_saved_tensor_hook(error):
                raise  # not the candidate's error
            # A sparse or oneDNN tensor may have the same signature as a strided one.
            if not all_strided(args):
                return self.candidates["library"](*args)
            self._raise_explained(entry, args, error)

    def under_autocast(
        self, args: Sequence[Any]
    ) -> tuple[Sequence[Any], contextlib.AbstractContextManager[object]]:
        """Return the arguments as autocast casts them, and a context that disables autocast for the call.

        If autocast is off for their device or the op has no `autocast` rule: the arguments unchanged, and a
        context that does nothing.
        """
        kind = next((a.device.type for a in args if isinstance(a, Tensor)), "meta")
        dtype = None if self.autocast is None else autocast_dtype(kind)
        if self.autocast is None or dtype is None:
            return args, contextlib.nullcontext()
        return self.autocast(dtype, *args), _torch.without_autocast()

    def bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Return all arguments by position, defaults filled in.

        Raises:
            TypeError: the arguments do not match the signature, as for a Python function.
        """
        try:
            return self._bind(args, kwargs)
        except TypeError as error:
            text = str(error)
            if text.startswith("too many"):
                text = f"takes at most {self.arity} arguments but {len(args)} were given"
            elif text.startswith("multiple"):
                text = f"got {text}"
            raise TypeError(f"{self.name}() {text}") from None

    def _bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        full = [*args, *self.defaults[len(args) :]]
        for name, value in kwargs.items():
            position = self.positions.get(name, -1)
            if position < len(args):
                self.signature.bind(*args, **kwargs)  # raises
            full[position] = value
        if len(full) != self.arity or any(value is inspect.Parameter.empty for value in full):
            self.signature.bind(*args, **kwargs)  # raises
        return tuple(full)

    def example_args(self, device: torch.device) -> list[tuple[Any, ...]]:
        """Return the arguments of each example on a device, defaults filled in.

        Raises:
            DefinitionError: an example is not a tuple, lacks an argument without a default, or has too many.
        """
        examples = []
        given: Iterable[Any] = () if self.examples is None else self.examples(device)
        for i, example in enumerate(given):
            try:
                if not isinstance(example, tuple | list):
                    raise TypeError("it is not a tuple of arguments")
                examples.append(self.bind(example, {}))
            except TypeError as error:
                raise DefinitionError(
                    f"example {i} of the op {self.name} does not have its arguments",
                    where=f"{self.reference.__module__}.{self.reference.__qualname__}",
                    expected=f"a tuple of arguments for {self.name}{format_signature(self)}",
                    found=f"{', '.join(map(describe, as_list(example)))}: {error}",
                    hint="[(x,)], with a comma, for one argument" if isinstance(example, Tensor) else None,
                ) from None
        return examples

    def call_torch_op(self, args: Sequence[Any]) -> Any:
        """Call the op through ``torch.ops.burnt``, which dispatch modes, transforms and compilers see.

        While `burnt.codegen` traces a function that calls the op, call the reference, to fuse it with the
        rest. So does `torch.jit.trace`, whose files are loaded by programs without burnt.
        """
        if is_tracing() or torch._C._get_tracing_state() is not None:
            return self.reference(*args)  # type: ignore[call-arg]
        returns_pair = self.pair is not None and args[self.pair] is not None and args[self.pair] is not False
        # An int, since Dynamo of torch 2.11 does not accept a bool as an index.
        return self.overloads[int(returns_pair)](*self.as_schema_args(args))

    def as_schema_args(self, args: Sequence[Any]) -> list[Any]:
        """Return the arguments in the types of the schema: a single number for a list becomes a list."""
        return [
            [a] if type(a) is int and is_list else a for a, is_list in zip(args, self.is_list, strict=True)
        ]

    def chosen(self, *args: P.args, **kwargs: P.kwargs) -> Entry:
        """Return the candidate that a call with these arguments runs, without making the call."""
        cast_args, context = self.under_autocast(self.bind(args, kwargs))
        with context:
            return self._new_entry(cast_args)

    def choose_despite_errors(self, args: Sequence[Any]) -> tuple[Entry, dict[str, str]]:
        """Select as `chosen` does, but skip candidates with an invalid ``when=``, ``configs=`` or ``best=``.

        Takes all arguments by position. Also returns the error message of each skipped candidate, by its
        name; a call would raise it.
        """
        broken: dict[str, str] = {}
        return self._new_entry(args, broken), broken

    def candidate(self, name: str, **limits: Any) -> Callable[[Callable[..., Any]], Candidate]:
        """Register another implementation of this op: a decorator of a function of the op's arguments.

        Args:
            name: the candidate's name; replaces a candidate of the same name.
            limits: where it can run and how, see `Candidate`: ``devices=["cuda"]``,
                ``dtypes=[torch.float32]``, ``when=`` the reason why it cannot take some arguments,
                ``configs=`` the configurations to choose from, ``best=`` whether to select it if nothing was
                measured, ``compiles=`` compile a configuration ahead of the first call,
                ``differentiable=True`` if autograd can differentiate it, ``autocast=True``,
                ``checks_values=True``. Each function takes all arguments of the op.

        Raises:
            DefinitionError: the name is missing, or a limit has the wrong type.

        >>> from burnt import kernels
        >>> @kernels.silu.candidate("by hand", devices=["cpu"])
        ... def by_hand(x):
        ...     return x / (1 + torch.exp(-x))
        >>> kernels.silu.candidates["by hand"](torch.zeros(1))
        tensor([0.])
        >>> kernels.silu.discard("by hand")
        """

        if not isinstance(name, str):
            raise DefinitionError(
                f"a candidate of {self.name} has no name",
                where=f"burnt.kernels.{self.name}",
                expected="a string",
                found=getattr(name, "__qualname__", repr(name)),
                hint=f'@{self.name}.candidate("mine")',
            )

        def register(call: Callable[..., Any]) -> Candidate:
            candidate = Candidate(name, call, op=self.name, **limits)
            candidate.check_signature(list(self.positions))
            self._add(candidate)
            return candidate

        return register

    def discard(self, name: str) -> None:
        """Remove a candidate.

        Raises:
            KeyError: the op has no candidate of this name.
        """
        del self.candidates[name]
        self.forget()

    def forget(self) -> None:
        """Clear the cached selections; the next call with each signature selects again."""
        self._entries = {}
        self._recent = InlineCache()

    def _add(self, candidate: Candidate) -> None:
        self.candidates[candidate.name] = candidate
        self.forget()

    def _first_call(self, signature: tuple[Any, ...], args: Sequence[Any]) -> Any:
        """Run the first call with a signature: check the arguments, select a candidate, check its results."""
        self.check_argument_types(args)
        if not all_strided(args):
            return self.candidates["library"](*args)
        if any(isinstance(a, Tensor) and is_lazy(a) for a in args):  # kernels read memory
            return self.run([_torch.materialized(a) if isinstance(a, Tensor) else a for a in args])
        try:
            entry = self._new_entry(args)
        except DefinitionError:
            # A candidate's limit may fail because the arguments are invalid: then report the reference's
            # error.
            cause = self.reference_error(args)
            if cause is None:
                raise
            raise translate_error(self, args, cause) from None
        versions = [_torch.version_of(a) for a in args if isinstance(a, Tensor)]
        try:
            if entry.checks_values:
                self.look(*args)  # type: ignore[misc]
            results = entry.call(*args)
        except Exception as error:
            if _torch.is_raised_by_saved_tensor_hook(error):
                raise
            self._raise_explained(entry, args, error)
        if entry.candidate.name not in _BUILT_IN:
            who = f"the candidate {entry.candidate.name!r}"
            self.check_unmodified(who, self.named_tensors(args), versions)
            self.check_results(entry.candidate, args, results)
        if len(self._entries) >= _MAX_ENTRIES:
            self.forget()
        self._entries[signature] = entry
        return results

    def _raise_explained(self, entry: Entry, args: Sequence[Any], error: Exception) -> NoReturn:
        """Raise a candidate's error with a message about the op's arguments, if possible.

        Not for an error of a saved-tensor hook: raised from here, it would be part of a reference cycle, and
        each recomputation of a checkpoint ends with one, whose frames hold activations.
        """
        candidate = entry.candidate
        if self.look is not None and isinstance(error, IndexError):
            self.look(*args)
        if self.check is not None:
            # 1.0 and 1 have the same signature, so these arguments may not have been checked yet.
            self.check(*args)
        if candidate.name in _BUILT_IN:
            raise translate_error(self, args, error) from None
        cause = self.reference_error(args)
        if cause is not None:
            raise translate_error(self, args, cause) from None
        translated = translate_error(self, args, error, candidate.name)
        if translated is error:
            raise error
        raise translated from error  # keep the traceback into the candidate, whose fault it is

    def check_argument_types(self, args: Sequence[Any]) -> None:
        """Check that tensor arguments are tensors (or proxies for them) and float arguments are numbers.

        Raises:
            InputTypeError: one is not; names the argument.
        """
        for name, value, is_tensor, is_float, is_optional in zip(
            self.positions, args, self.is_tensor, self.is_float, self.is_optional, strict=True
        ):
            if is_float and (
                isinstance(value, Tensor | str | list | tuple) or (value is None and not is_optional)
            ):
                raise InputTypeError(
                    f"the argument {name} of {self.name} is not a number",
                    where=f"burnt.kernels.{self.name}",
                    expected=f"{name}: {'float | None' if is_optional else 'float'}",
                    found=describe(value),
                    hint=f"{name}.item()" if isinstance(value, Tensor) and value.numel() == 1 else None,
                )
            if not is_tensor or hasattr(type(value), "__torch_function__") or (is_optional and value is None):
                continue
            raise InputTypeError(
                f"the argument {name} of {self.name} is not a tensor",
                where=f"burnt.kernels.{self.name}",
                expected=f"{name}: {'Tensor | None' if is_optional else 'Tensor'}",
                found=repr(value) if value is None else f"{type(value).__name__}: {value!r:.60}",
                hint=None if value is None else f"torch.as_tensor({name})",
            )

    def named_tensors(self, args: Sequence[Any]) -> list[tuple[str, Tensor]]:
        """Return the tensors among all arguments by position, each with a description for messages."""
        named = zip(self.positions, args, strict=True)
        return [(f"its argument {name}", a) for name, a in named if isinstance(a, Tensor)]

    def check_unmodified(
        self, who: str, tensors: Sequence[tuple[str, Tensor]], before: Sequence[int]
    ) -> None:
        """Check that user code did not modify tensors, given their version counters before it ran.

        Raises:
            DefinitionError: a tensor was modified; names the first.
        """
        for (name, tensor), version in zip(tensors, before, strict=True):
            if _torch.version_of(tensor) != version:
                raise DefinitionError(
                    f"{who} of {self.name} modifies {name}",
                    where=f"burnt.kernels.{self.name}",
                    expected="arguments that stay unchanged, as with the reference",
                    found=f"{describe(tensor)}, modified in place",
                    hint="write to a new tensor (torch.empty_like), or clone it first",
                )

    def check_results(self, candidate: Candidate, args: Sequence[Any], results: Any) -> None:
        """Check a candidate's results: the reference's shapes and dtypes, the right device, no aliasing.

        Raises:
            DefinitionError: they differ, or a result shares memory with an argument.
        """
        on_meta = [a.detach().to("meta") if isinstance(a, Tensor) else a for a in args]
        try:
            with torch.no_grad():
                reference_results = self.reference(*on_meta)  # type: ignore[arg-type, call-arg]
        except NotImplementedError:
            return  # the reference reads values, which meta tensors do not have: only the tuner can compare
        found, expected = ", ".join(describe_results(results)), ", ".join(describe_results(reference_results))
        if found == expected and structure_of(results) != structure_of(reference_results):
            found, expected = (
                f"{structure_of(results)}: {found}",
                f"{structure_of(reference_results)}: {expected}",
            )
        devices = {a.device for a in args if isinstance(a, Tensor)}
        elsewhere = [r for r in as_list(results) if isinstance(r, Tensor) and r.device not in devices]
        if found == expected and len(devices) == 1 and elsewhere:
            found, expected = describe(elsewhere[0]), f"results on {devices.pop()}, as the arguments"
        shared = {} if found != expected else aliases(results, args, self.positions)
        shared = {
            i: name
            for i, name in shared.items()
            if i not in aliases(reference_results, on_meta, self.positions)
        }
        hint = None
        for name in shared.values():
            found, expected = f"the argument {name}, or a view of it", "a new tensor"
            hint = f"{name}.clone(): modifying the result must not modify the argument"
        if found != expected:
            raise DefinitionError(
                f"the candidate {candidate.name!r} of {self.name} does not return what the reference does",
                where=f"burnt.kernels.{self.name}",
                expected=expected,
                found=found,
                origin=[f"{name} = {describe(a)}" for name, a in zip(self.positions, args, strict=True)],
                hint=hint,
            )

    def reference_error(self, args: Sequence[Any]) -> Exception | None:
        """Return the exception that the reference raises for these arguments, or None."""
        try:
            with torch.no_grad():
                self.reference(*args)  # type: ignore[call-arg]
        except Exception as error:
            return error
        return None

    def _new_entry(self, args: Sequence[Any], broken: dict[str, str] | None = None) -> Entry:
        from burnt.kernels.dispatch.selection import select_candidate

        if self.check is not None:
            self.check(*args)
        candidate, config, why, key = select_candidate(self, args, broken)
        call = bind_candidate(self, candidate, config, args)
        on_cpu = any(isinstance(a, Tensor) and a.device.type == "cpu" for a in args)
        checks_values = self.look is not None and not candidate.checks_values and on_cpu
        return Entry(call, checks_values, candidate, config, why, key)


@overload
def op(reference: Callable[P, R], **settings: Any) -> Op[P, R]: ...
@overload
def op(reference: None = None, **settings: Any) -> Callable[[Callable[P, R]], Op[P, R]]: ...
def op(reference: Callable[..., Any] | None = None, **settings: Any) -> Any:
    """Create an op from its reference: a decorator, with the keyword arguments of `Op`.

    >>> from burnt.kernels.dispatch.op import OPS, op
    >>> @op
    ... def twice_of(x: torch.Tensor) -> torch.Tensor:
    ...     return x * 2
    >>> twice_of(torch.ones(2)), twice_of
    (tensor([2., 2.]), <op twice_of: library, generated>)
    """
    if reference is None:
        return functools.partial(op, **settings)
    return Op(reference, **settings)
