"""An op: one definition, several candidates that compute it, and the choice between them.

The reference, plain torch, is the specification. It is also the first two candidates: ``library`` runs it (or
the single ATen call that is the same), ``generated`` runs the kernels that `burnt.codegen` makes of it. More
are registered with `Op.candidate`. A call looks its signature up in a dictionary and goes to the candidate
that was chosen when the signature was new; how that is chosen is `burnt.kernels.dispatch.selection`'s matter.
Where ops are recorded or transformed instead of run, a call goes through ``torch.ops.burnt``
(`burnt.kernels.dispatch.torch_library`).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, NoReturn, ParamSpec, TypeVar, overload

import torch
from torch import Tensor
from torch.compiler import is_compiling, is_dynamo_compiling

from burnt import _torch
from burnt.codegen.frontend.guards import InlineCache, build_guard
from burnt.codegen.frontend.trace import InlinedWhenTraced, is_tracing
from burnt.codegen.function import Function
from burnt.codegen.precision import precision
from burnt.errors import DefinitionError, InputTypeError
from burnt.kernels.dispatch.generated import Generated
from burnt.kernels.interface.autocast import autocast_dtype
from burnt.kernels.interface.binding import bound_call, brief_descriptions
from burnt.kernels.interface.candidate import Candidate
from burnt.kernels.interface.checks import all_strided, describe, explain_error, signature_text
from burnt.kernels.interface.registry import OPS
from burnt.kernels.interface.results import aliases, as_list, structure_of
from burnt.kernels.tuning.accuracy import Part

__all__ = ["Entry", "Op", "op"]

P = ParamSpec("P")
R = TypeVar("R")


_CONSTANTS = frozenset({bool, int, str, type(None), torch.dtype})
_OURS = ("library", "generated")
_MOST_ENTRIES = 4096  # of an op: a program with ever new shapes must not keep them all


class Entry(NamedTuple):
    """What was chosen for a signature.

    `call` takes the op's arguments by position. `look`: the values are looked at before. `candidate`,
    `config` and `why` say what was chosen and by whom; `key` is the tuner's.
    """

    call: Callable[..., Any]
    look: bool
    candidate: Candidate
    config: dict[str, Any] | None
    why: str
    key: str


class Op(InlinedWhenTraced, Generic[P, R]):
    """A function of tensors with several implementations, of which the best is taken.

    Called like its reference. Made by the decorator `op`.

    Args:
        reference: the definition in plain torch, with annotations for every argument: tensors, numbers,
            strings, dtypes, sequences of integers, and what may be None. Its results are one tensor or a
            tuple of them.
        library: torch's own single call of the same meaning, where the reference is not that.
        check: of the arguments; raises where they do not fit each other (shapes, dtypes). Called once for
            each signature, whatever candidate will run.
        look: of the arguments; raises where values do not fit (a label that is no class). Called before
            candidates that would not notice, on the CPU alone: elsewhere it would wait for the device.
        always_looks: the reference would not notice either.
        pair: the argument that makes results a tuple when it is given.
        examples: of the device; argument tuples for the tuner and the tests, typical first.
        library_best: of the arguments; whether the library is known to be the better one (see
            `burnt.kernels.dispatch.selection`).
        random: results differ from call to call.
        autocast: of the dtype of autocast and the arguments, all by position; the arguments that autocast
            makes of them (`burnt.kernels.interface.autocast`). The call goes on with those, and without
            autocast. Results are of the dtypes that the reference's have under autocast. Without it,
            candidates that follow autocast by themselves (`Candidate`) run there.
        parts: of the arguments; the parts that the reference computes one by one where the tuner judges
            candidates, since all at once would need too much memory (`burnt.kernels.tuning.accuracy.Part`),
            or None for all at once.

    Raises:
        DefinitionError: another op has the name, the reference is no function, an argument of it has no
            annotation that says what it is or cannot be given by position, or `examples` is no function.
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
        library_best: Callable[..., bool] | None = None,
        random: bool = False,
        autocast: Callable[..., tuple[Any, ...]] | None = None,
        parts: Callable[..., Sequence[Part] | None] | None = None,
    ) -> None:
        if not callable(reference) or not hasattr(reference, "__name__"):
            raise DefinitionError(
                "an op is made of a function",
                where="burnt.kernels.op",
                expected="its definition in plain torch",
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
        self.examples, self.library_best, self.random = examples, library_best, random
        self.autocast, self.parts = autocast, parts
        parameters = list(self.signature.parameters.values())
        for p in parameters:
            if p.kind is not p.POSITIONAL_OR_KEYWORD:
                raise DefinitionError(
                    f"the argument {p.name} of the op {self.name} is {p.kind.description}",
                    where=f"{reference.__module__}.{reference.__qualname__}",
                    expected="arguments that are given by position or by name",
                    found=f"{self.name}{self.signature}",
                    hint="leave out the *" if p.kind is p.KEYWORD_ONLY else None,
                )
        self.parameters = {p.name: p.default for p in parameters}
        self.positions = {p.name: i for i, p in enumerate(parameters)}
        self.defaults = tuple(self.parameters.values())
        self.arity = len(parameters)
        self.pair = None if pair is None else self.positions[pair]
        self._entries: dict[tuple[Any, ...], Entry] = {}
        self._recent: InlineCache[Entry] = InlineCache()
        self.gradients: dict[tuple[Any, ...], Function] = {}
        self.candidates: dict[str, Candidate] = {}
        # Strides are part of what a call means, and where the calls of two libraries differ the reference has
        # it.
        own = library or reference
        notices = not always_looks
        self._add(Candidate("library", own, differentiable=True, autocast=True, checks_values=notices))
        self._add(Generated(reference, checks_values=notices))
        functools.update_wrapper(self, reference)
        from burnt.kernels.dispatch.torch_library import Declared, declare, withdraw

        known = OPS.get(self.name)
        if known is not None:
            # The same definition run again, as in a notebook, takes the place of the one before.
            if (known.reference.__module__, known.reference.__qualname__) != (
                reference.__module__,
                reference.__qualname__,
            ):
                raise DefinitionError(
                    f"there is an op {self.name!r} already",
                    where=f"{reference.__module__}.{reference.__qualname__}",
                    found=f"{known.reference.__module__}.{known.reference.__qualname__}",
                    hint="give yours another name; a faster implementation of that one is a candidate of it",
                )
            withdraw(known.declared)
        self.declared: Declared = declare(self)
        OPS[self.name] = self
        self.overloads = self.declared.overloads
        # Arguments of the schema that are lists, and may be given as one number.
        self.listed = [
            "[]" in str(a.type) or "List" in str(a.type) for a in self.overloads[0]._schema.arguments
        ]
        kinds = [str(a.type) for a in self.overloads[0]._schema.arguments]
        self.tensors = ["Tensor" in kind for kind in kinds]
        self.floats = ["float" in kind for kind in kinds]
        self.optional = [kind.startswith("Optional") for kind in kinds]

    def __repr__(self) -> str:
        return f"<op {self.name}: {', '.join(self.candidates)}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The reference's results, by the best candidate."""
        if not is_dynamo_compiling():
            found = self._recent.find(args, kwargs)
            if found is not None:
                return self._run_entry(*found)  # type: ignore[no-any-return]
        full = self.bound(args, kwargs) if kwargs or len(args) != self.arity else args
        if is_compiling() or not _torch.is_plain_call():
            return self.recorded(full)  # type: ignore[no-any-return]
        return self.run(full, args)  # type: ignore[no-any-return]

    def run(self, args: Sequence[Any], written: tuple[Any, ...] | None = None) -> Any:
        """The results by the best candidate, for all arguments by position, of tensors that are plain.

        Calls like this one, whose arguments by position were as `written`, are known by their likeness from
        the third on.
        """
        recent = self._recent  # before the entries, which `forget` replaces first: not to remember old ones
        key: list[Any] = [torch.is_grad_enabled()]
        plain = True
        try:
            for arg in args:
                kind = type(arg)
                if kind is Tensor or kind is torch.nn.Parameter:
                    key += arg.shape, arg.stride(), arg.dtype, arg.device, arg.requires_grad, arg.is_neg()
                elif kind is float:
                    key.append(float)
                elif kind in _CONSTANTS:
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
            # A class of its own, what stands in for a tensor, or no strides: torch's ops know what to do.
            self.check_kinds(args)
            return self.candidates["library"](*args)
        if _torch.is_autocast():
            given, without = self.under_autocast(args)
            if given is not args:
                with without:
                    return self.run(given)
            key += [torch.get_autocast_dtype("cpu"), torch.get_autocast_dtype("cuda")]
            written = None
        if (multiplied := precision()) != "ieee":
            key.append(multiplied)
        signature = tuple(key)
        entry = self._entries.get(signature)
        if entry is None:
            return self._first(signature, args)
        if written is not None and recent.wants(written):
            recent.put(written, build_guard(self.parameters, args), entry)
        return self._run_entry(entry, args)

    def _run_entry(self, entry: Entry, args: Sequence[Any]) -> Any:
        """The results by what was chosen, for all arguments by position; bad values raise."""
        if entry.look:
            self.look(*args)  # type: ignore[misc]
        try:
            return entry.call(*args)
        except Exception as error:
            if not all_strided(args):  # sparse ones, oneDNN's: their signatures may be a strided tensor's
                return self.candidates["library"](*args)
            self._fail(entry, args, error)

    def under_autocast(
        self, args: Sequence[Any]
    ) -> tuple[Sequence[Any], contextlib.AbstractContextManager[object]]:
        """What a call with these arguments goes on with: those that autocast makes of them, and without it.

        Where it is off for their device, or the op has no rule: as they are, and as it is.
        """
        kind = next((a.device.type for a in args if isinstance(a, Tensor)), "meta")
        dtype = None if self.autocast is None else autocast_dtype(kind)
        if self.autocast is None or dtype is None:
            return args, contextlib.nullcontext()
        return self.autocast(dtype, *args), _torch.without_autocast()

    def bound(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """All arguments by position, defaults filled in.

        Raises:
            TypeError: as a Python function raises it.
        """
        try:
            return self._bound(args, kwargs)
        except TypeError as error:
            text = str(error)
            if text.startswith("too many"):
                text = f"takes at most {self.arity} arguments but {len(args)} were given"
            elif text.startswith("multiple"):
                text = f"got {text}"
            raise TypeError(f"{self.name}() {text}") from None

    def _bound(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        full = [*args, *self.defaults[len(args) :]]
        for name, value in kwargs.items():
            at = self.positions.get(name, -1)
            if at < len(args):
                self.signature.bind(*args, **kwargs)  # raises
            full[at] = value
        if len(full) != self.arity or any(value is inspect.Parameter.empty for value in full):
            self.signature.bind(*args, **kwargs)  # raises
        return tuple(full)

    def example_args(self, device: torch.device) -> list[tuple[Any, ...]]:
        """All arguments of each example, defaults filled in.

        Raises:
            DefinitionError: an example is no tuple, or one without an argument that has no default.
        """
        found = []
        for i, example in enumerate(() if self.examples is None else self.examples(device)):
            given = example if isinstance(example, tuple | list) else [example]
            full = (*given, *self.defaults[len(given) :])
            missing = [n for n, v in zip(self.positions, full, strict=False) if v is inspect.Parameter.empty]
            if given is not example:
                fault = "no tuple of arguments"
            elif missing:
                fault = f"without {', '.join(missing)}"
            elif len(given) > self.arity:
                fault = f"one of {len(given)} arguments"
            else:
                found.append(full)
                continue
            raise DefinitionError(
                f"the example {i} of the op {self.name} is {fault}",
                where=f"{self.reference.__module__}.{self.reference.__qualname__}",
                expected=f"arguments for {self.name}{signature_text(self)}",
                found=", ".join(describe(a) for a in given),
                hint="[(x,)], with a comma, for one argument" if given is not example else None,
            )
        return found

    def recorded(self, args: Sequence[Any]) -> Any:
        """A call through ``torch.ops.burnt``, which modes, transforms and compilers see.

        While kernels are made of a function that calls it, it is its reference, to be fused with the rest.
        """
        if is_tracing():
            return self.reference(*args)  # type: ignore[call-arg]
        paired = self.pair is not None and args[self.pair] is not None and args[self.pair] is not False
        return self.overloads[int(paired)](*self.as_declared(args))  # Dynamo of torch 2.11 refuses a bool

    def as_declared(self, args: Sequence[Any]) -> list[Any]:
        """The arguments as the schema wants them: a number that stands for a list as a list."""
        return [[a] if type(a) is int and wants else a for a, wants in zip(args, self.listed, strict=True)]

    def chosen(self, *args: P.args, **kwargs: P.kwargs) -> Entry:
        """What a call with these arguments runs, chosen if need be; the call is not made."""
        given, context = self.under_autocast(self.bound(args, kwargs))
        with context:
            return self._new_entry(given)

    def chosen_despite(self, args: Sequence[Any]) -> tuple[Entry, dict[str, str]]:
        """As `chosen`, of all arguments by position, without the candidates whose limits cannot be used.

        Why they cannot, by the candidate's name, is returned too; a call raises it.
        """
        broken: dict[str, str] = {}
        return self._new_entry(args, broken), broken

    def candidate(self, name: str, **limits: Any) -> Callable[[Callable[..., Any]], Candidate]:
        """Register a way to compute this op: a decorator of a function that takes the op's arguments.

        Args:
            name: what it is called; one that is there already is replaced, without a word.
            limits: where it can run, and how, as `Candidate` has it: ``devices=["cuda"]``,
                ``dtypes=[torch.float32]``, ``when=`` why it cannot take some arguments, ``configs=`` what to
                choose from, ``best=`` whether to take it where nothing was measured, ``compiles=`` a
                configuration ahead of the first call, ``differentiable=True`` where autograd follows it,
                ``autocast=True``, ``checks_values=True``. Functions are of all arguments.

        Raises:
            DefinitionError: there is no name, or a limit is of another kind.

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
                expected="a text",
                found=getattr(name, "__qualname__", repr(name)),
                hint=f'@{self.name}.candidate("mine")',
            )

        def register(call: Callable[..., Any]) -> Candidate:
            made = Candidate(name, call, op=self.name, **limits)
            made.check_signature(list(self.positions))
            self._add(made)
            return made

        return register

    def discard(self, name: str) -> None:
        """Take a candidate out again.

        Raises:
            KeyError: there is none of this name.
        """
        del self.candidates[name]
        self.forget()

    def forget(self) -> None:
        """Choose anew at the next call with any signature."""
        self._entries = {}
        self._recent = InlineCache()

    def _add(self, candidate: Candidate) -> None:
        self.candidates[candidate.name] = candidate
        self.forget()

    def _first(self, signature: tuple[Any, ...], args: Sequence[Any]) -> Any:
        """The first call with a signature, where what does not fit shows."""
        self.check_kinds(args)
        if not all_strided(args):
            return self.candidates["library"](*args)
        if any(isinstance(a, Tensor) and a.is_neg() for a in args):  # kernels read what is in memory
            return self.run([a.resolve_neg() if isinstance(a, Tensor) else a for a in args])
        try:
            entry = self._new_entry(args)
        except DefinitionError:
            # What a limit stumbles over may be what the reference does not take either.
            refused = self.refusal(args)
            if refused is None:
                raise
            raise explain_error(self, args, refused) from None
        versions = [_torch.version_of(a) for a in args if isinstance(a, Tensor)]
        try:
            if entry.look:
                self.look(*args)  # type: ignore[misc]
            made = entry.call(*args)
        except Exception as error:
            self._fail(entry, args, error)
        if entry.candidate.name not in _OURS:
            self._check_arguments(entry.candidate, args, versions)
            self.check_results(entry.candidate, args, made)
        if len(self._entries) >= _MOST_ENTRIES:
            self.forget()
        self._entries[signature] = entry
        return made

    def _fail(self, entry: Entry, args: Sequence[Any], error: Exception) -> NoReturn:
        """Raise what a candidate has raised, said better where that can be."""
        candidate = entry.candidate
        if self.look is not None and isinstance(error, IndexError):
            self.look(*args)
        if self.check is not None:
            self.check(*args)  # a signature takes 1.0 for 1: what was checked then were other arguments
        if candidate.name in _OURS:
            raise explain_error(self, args, error) from None
        refused = self.refusal(args)
        if refused is not None:
            raise explain_error(self, args, refused) from None
        lacking = (
            isinstance(error, KeyError) and entry.config is not None and error.args[0] not in entry.config
        )
        if lacking:
            raise candidate.misdefined(
                f"the configuration {entry.config}",
                "what the candidate looks up in it",
                f"{type(error).__name__}: {error}",
            ) from error
        told = explain_error(self, args, error, candidate.name)
        if told is error:
            raise error
        raise told from error  # the fault is the candidate's own: where it arose is to be seen

    def check_kinds(self, args: Sequence[Any]) -> None:
        """What must be a tensor is one, or stands in for one; what must be a number is no tensor or text.

        Raises:
            InputTypeError: naming the argument.
        """
        for name, value, wanted, number, optional in zip(
            self.positions, args, self.tensors, self.floats, self.optional, strict=True
        ):
            if number and (
                isinstance(value, Tensor | str | list | tuple) or (value is None and not optional)
            ):
                raise InputTypeError(
                    f"the argument {name} of {self.name} is no number",
                    where=f"burnt.kernels.{self.name}",
                    expected=f"{name}: {'float | None' if optional else 'float'}",
                    found=describe(value),
                    hint=f"{name}.item()" if isinstance(value, Tensor) and value.numel() == 1 else None,
                )
            if not wanted or hasattr(type(value), "__torch_function__") or (optional and value is None):
                continue
            raise InputTypeError(
                f"the argument {name} of {self.name} is no tensor",
                where=f"burnt.kernels.{self.name}",
                expected=f"{name}: {'Tensor | None' if optional else 'Tensor'}",
                found=repr(value) if value is None else f"{type(value).__name__}: {value!r:.60}",
                hint=None if value is None else f"torch.as_tensor({name})",
            )

    def _check_arguments(self, candidate: Candidate, args: Sequence[Any], before: Sequence[int]) -> None:
        """Somebody's own candidate leaves its arguments alone, as far as torch can tell."""
        self.check_versions(f"the candidate {candidate.name!r}", self.named_tensors(args), before)

    def named_tensors(self, args: Sequence[Any]) -> list[tuple[str, Tensor]]:
        """The tensors among all arguments by position, with what a message calls them."""
        named = zip(self.positions, args, strict=True)
        return [(f"its argument {name}", a) for name, a in named if isinstance(a, Tensor)]

    def check_versions(self, who: str, given: Sequence[tuple[str, Tensor]], before: Sequence[int]) -> None:
        """Somebody's own code has left tensors alone, of which the versions before are known.

        Raises:
            DefinitionError: naming the first that was changed.
        """
        for (name, tensor), version in zip(given, before, strict=True):
            if _torch.version_of(tensor) != version:
                raise DefinitionError(
                    f"{who} of {self.name} changes {name}",
                    where=f"burnt.kernels.{self.name}",
                    expected="tensors that are left alone, as the reference leaves them",
                    found=f"{describe(tensor)}, which was changed in place",
                    hint="write into a tensor of its own: torch.empty_like, or clone it first",
                )

    def check_results(self, candidate: Candidate, args: Sequence[Any], made: Any) -> None:
        """Somebody's own candidate returns what the reference does, on the device, in memory of its own."""
        on_meta = [a.detach().to("meta") if isinstance(a, Tensor) else a for a in args]
        try:
            with torch.no_grad():
                wanted = self.reference(*on_meta)  # type: ignore[arg-type, call-arg]
        except NotImplementedError:
            return  # it looks at values, which tensors on meta do not have: only the tuner can compare
        found, expected = ", ".join(brief_descriptions(made)), ", ".join(brief_descriptions(wanted))
        if found == expected and structure_of(made) != structure_of(wanted):
            found, expected = f"{structure_of(made)}: {found}", f"{structure_of(wanted)}: {expected}"
        devices = {a.device for a in args if isinstance(a, Tensor)}
        elsewhere = [r for r in as_list(made) if isinstance(r, Tensor) and r.device not in devices]
        if found == expected and len(devices) == 1 and elsewhere:
            found, expected = describe(elsewhere[0]), f"results on {devices.pop()}, as the arguments"
        shared = {} if found != expected else aliases(made, args, self.positions)
        shared = {i: name for i, name in shared.items() if i not in aliases(wanted, on_meta, self.positions)}
        hint = None
        for name in shared.values():
            found, expected = f"the argument {name}, or a view of it", "a tensor of its own"
            hint = f"{name}.clone(): who changes the result must not change the argument"
        if found != expected:
            raise DefinitionError(
                f"the candidate {candidate.name!r} of {self.name} does not return what the reference does",
                where=f"burnt.kernels.{self.name}",
                expected=expected,
                found=found,
                origin=[f"{name} = {describe(a)}" for name, a in zip(self.positions, args, strict=True)],
                hint=hint,
            )

    def refusal(self, args: Sequence[Any]) -> Exception | None:
        """What the reference raises for these arguments, if it does not take them either."""
        try:
            with torch.no_grad():
                self.reference(*args)  # type: ignore[call-arg]
        except Exception as error:  # of any kind: it is a question
            return error
        return None

    def _new_entry(self, args: Sequence[Any], broken: dict[str, str] | None = None) -> Entry:
        from burnt.kernels.dispatch.selection import select_candidate

        if self.check is not None:
            self.check(*args)
        candidate, config, why, key = select_candidate(self, args, broken)
        call = bound_call(self, candidate, config, args)
        on_cpu = any(isinstance(a, Tensor) and a.device.type == "cpu" for a in args)
        look = self.look is not None and not candidate.checks_values and on_cpu
        return Entry(call, look, candidate, config, why, key)


@overload
def op(reference: Callable[P, R], **settings: Any) -> Op[P, R]: ...
@overload
def op(reference: None = None, **settings: Any) -> Callable[[Callable[P, R]], Op[P, R]]: ...
def op(reference: Callable[..., Any] | None = None, **settings: Any) -> Any:
    """Make an op of its reference: a decorator, with `Op`'s settings.

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
