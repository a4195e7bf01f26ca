"""Ops as ``torch.ops.burnt``: what modes, transforms, compilers and export see of them.

For each op ``burnt::f`` is declared from the Python signature of its reference, with

- a kernel for every device, which chooses a candidate as the Python front does;
- a fake, which is the reference without memory: shapes, dtypes and strides are its own, and the kernel lays
  results out so, whichever candidate runs;
- gradients at the Autograd key, by ``burnt::f_backward``, an op of its own that compilers see, whose own
  gradients are torch's of the reference; of an op that draws random numbers the reference runs, since another
  op would draw others;
- vmap and autocast, which run the reference: torch's own ops batch and cast as they always do.

Results of these ops never share memory with arguments; a reference that returns its argument is copied.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from burnt import _torch
from burnt.errors import DefinitionError
from burnt.kernels.interface.vjp import Vjp

if TYPE_CHECKING:
    from burnt.kernels.interface.op_protocol import AnyOp

__all__ = ["Declared", "declare", "decompositions", "withdraw"]

_TAGS = (torch.Tag.pt2_compliant_tag,)
_RANDOM_TAGS = (*_TAGS, torch.Tag.nondeterministic_seeded)

_TYPES: dict[Any, str] = {
    Tensor: "Tensor",
    int: "SymInt",
    float: "float",
    bool: "bool",
    str: "str",
    torch.dtype: "ScalarType",
    Sequence[int]: "SymInt[]",
    int | Sequence[int]: "SymInt[]",  # one number is a list of one: see `Op.recorded`
    str | int | Sequence[int]: "SymInt[]",  # the op puts numbers for its words
}

_references: dict[Any, Callable[..., Any]] = {}
_MOST_STRIDES = 4096  # of an op: a program with ever new shapes must not keep them all

Strides = Sequence[tuple[int, ...]]


class Declared(NamedTuple):
    """What torch knows of an op.

    Args:
        overloads: the one whose result is a tensor, and the one whose results are a pair (the same where the
            op always returns as many).
        library: holds the registrations, which go with it.
    """

    overloads: tuple[Any, Any]
    library: Any


def declare(op: AnyOp) -> Declared:
    """Declare ``burnt::f`` and its backward.

    Raises:
        DefinitionError: the reference's annotations do not say what it takes or returns.
    """
    arguments, results = _schema(op)
    library: Any = torch.library.Library("burnt", "FRAGMENT")  # type: ignore[no-untyped-call]
    if op.pair is None:
        overload = _declared(library, op, "", arguments, results)
        return Declared((overload, overload), library)
    # Which of the two is called depends on an argument, which is always, or never, given.
    always = [a if i != op.pair else _given(a) for i, a in enumerate(arguments)]
    name = list(op.positions)[op.pair]
    one = _declared(library, op, "", arguments, "Tensor")
    return Declared((one, _declared(library, op, name, always, "(Tensor, Tensor)")), library)


def withdraw(declared: Declared) -> None:
    """Undo `declare`."""
    for overload in declared.overloads:
        _references.pop(overload, None)
    _torch.destroy(declared.library)


def decompositions() -> dict[Any, Callable[..., Any]]:
    """The references of all ops, for `torch.export.ExportedProgram.run_decompositions` and `make_fx`.

    >>> from burnt import kernels
    >>> torch.ops.burnt.softmax.default in kernels.decompositions()
    True
    """
    return dict(_references)


def _schema(op: AnyOp) -> tuple[list[str], str]:
    hints = typing.get_type_hints(op.reference)
    made = []
    for name, parameter in op.signature.parameters.items():
        text = _type(op, name, hints.get(name))
        if parameter.default is not parameter.empty:
            default = parameter.default
            default = f'"{default}"' if isinstance(default, str) else default
            if "[]" in text and default is not None:
                default = [default] if isinstance(default, int) else list(default)
            made.append(f"{text} {name}={default}")
        else:
            made.append(f"{text} {name}")
    result = hints.get("return")
    if op.pair is None:
        if result is Tensor:
            return made, "Tensor"
        if typing.get_origin(result) is tuple and set(typing.get_args(result)) == {Tensor}:
            return made, f"({', '.join('Tensor' for _ in typing.get_args(result))})"
        raise DefinitionError(
            f"the result of the op {op.name} is not annotated as a tensor or a tuple of tensors",
            where=op.reference.__module__,
            expected="-> Tensor, or -> tuple[Tensor, Tensor] of as many as there are",
            found="no annotation" if result is None else result,
        )
    return made, ""


def _type(op: AnyOp, name: str, hint: Any) -> str:
    found = _TYPES.get(hint)
    if found is not None:
        return found
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        rest = [a for a in typing.get_args(hint) if a is not type(None)]
        if len(rest) < len(typing.get_args(hint)):
            whole = rest[0]
            for other in rest[1:]:
                whole = whole | other
            return f"{_type(op, name, whole)}?"
    raise DefinitionError(
        f"the argument {name} of the op {op.name} has no type that torch's schemas know",
        where=op.reference.__module__,
        expected="Tensor, int, float, bool, str, torch.dtype, Sequence[int], or one `| None`",
        found="no annotation" if hint is None else hint.__qualname__ if isinstance(hint, type) else hint,
    )


def _given(argument: str) -> str:
    """An optional argument as one that must be given."""
    kind, rest = argument.split(" ", 1)
    return f"{kind.removesuffix('?')} {rest.partition('=')[0]}" if kind == "Tensor?" else argument


def _declared(library: Any, op: AnyOp, overload: str, arguments: Sequence[str], results: str) -> Any:
    name = op.name
    tags = _RANDOM_TAGS if op.random else _TAGS
    full = f"{name}.{overload}" if overload else name
    # An argument without a default may follow none with one; where one must be given, all before it must.
    listed = list(arguments)
    last = max((i for i, a in enumerate(listed) if "=" not in a), default=-1)
    listed = [a.partition("=")[0] if i < last else a for i, a in enumerate(listed)]
    library.define(f"{full}({', '.join(listed)}) -> {results}", tags=tags)
    made = getattr(getattr(torch.ops.burnt, name), overload or "default")
    _kernels(library, full, _of_values(op), op.reference, lambda *args: _owned_all(op.reference(*args), args))
    _references[made] = op.reference
    if op.random:

        def plain(*args: Any) -> Any:
            return _owned_all(op.reference(*args), args)

        library.impl(full, _at_autograd(made, plain, plain), "Autograd")
        return made

    back = f"{name}_backward"
    given = [a.partition("=")[0] for a in listed]
    full_back = f"{back}.{overload}" if overload else back
    library.define(
        f"{full_back}(Tensor[] cotangents, {', '.join(given)}, bool[] wanted) -> Tensor[]", tags=tags
    )
    backward = getattr(getattr(torch.ops.burnt, back), overload or "default")

    def plain_gradients(cotangents: Sequence[Tensor], *rest: Any) -> list[Tensor]:
        return _gradients(op.reference, cotangents, rest[:-1], rest[-1])

    def fast_gradients(cotangents: Sequence[Tensor], *rest: Any) -> list[Tensor]:
        from burnt.kernels.interface.binding import reference_gradient

        with _torch.normal_dispatch(), torch.no_grad():
            made = reference_gradient(op, cotangents, rest[:-1], rest[-1])
            expected = _like(rest[:-1], rest[-1], device="meta")
            return [_laid_out(_owned(t, rest), e.stride()) for t, e in zip(made, expected, strict=True)]

    _kernels(
        library,
        full_back,
        fast_gradients,
        plain_gradients,
        lambda cotangents, *rest: _like(rest[:-1], rest[-1]),
    )
    _references[backward] = plain_gradients
    library.impl(full, _autograd(op, made, backward), "Autograd")
    library.impl(full_back, _autograd_of_backward(backward, plain_gradients), "Autograd")
    return made


def _kernels(
    library: Any,
    name: str,
    run: Callable[..., Any],
    reference: Callable[..., Any],
    fake: Callable[..., Any],
) -> None:
    """The kernel, the fake, vmap and autocast of an overload."""
    library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"burnt::{name}", fake, lib=library)
    for key in ("FuncTorchBatched", "AutocastCPU", "AutocastCUDA"):
        library.impl(name, reference, key)


def _of_values(op: AnyOp) -> Callable[..., Any]:
    known: dict[tuple[Any, ...], Strides | None] = {}

    def strides(args: Sequence[Any]) -> Strides | None:
        key = tuple(
            (a.shape, a.stride(), a.dtype, a.device) if isinstance(a, Tensor) else _hashable(a) for a in args
        )
        if key not in known:
            if len(known) >= _MOST_STRIDES:
                known.clear()
            known[key] = _faked_strides(op, args)
        return known[key]

    def run(*args: Any) -> Any:
        with _torch.normal_dispatch(), torch.no_grad():
            full = op.bound(args, {})
            made = _owned_all(op.run(full), args)
            # Of rows, whatever runs makes rows. Elsewhere kernels differ, and compilers rely on the fake.
            if all(a.layout is not torch.strided or a.is_contiguous() for a in args if isinstance(a, Tensor)):
                return made
            expected = strides(full)
            if expected is None:
                return made
            if isinstance(made, Tensor):
                return _laid_out(made, expected[0])
            return type(made)(_laid_out(t, s) for t, s in zip(made, expected, strict=True))

    return run


def _hashable(value: Any) -> Any:
    return (type(value), tuple(value) if isinstance(value, list) else value)


def _faked_strides(op: AnyOp, args: Sequence[Any]) -> Strides | None:
    """The strides of an op's results as its fake has them; None where the reference wants values."""
    try:
        found = _torch.fake_results(lambda *given: _owned_all(op.reference(*given), given), args)
    except Exception:  # of any kind: then there is no fake whose strides could be expected
        return None
    return [t.stride() for t in found]


def _owned_all(made: Any, args: Sequence[Any]) -> Any:
    if isinstance(made, tuple | list):
        return type(made)(_owned(t, args) for t in made)
    return _owned(made, args)


def _owned(made: Tensor, args: Sequence[Any]) -> Tensor:
    shared = any(a is made or _torch.share_memory(made, a) for a in args if isinstance(a, Tensor))
    return made.clone() if shared else made


def _like(args: Sequence[Any], wanted: Sequence[bool], **where: Any) -> list[Tensor]:
    """Gradients without values: they lie in memory as their arguments do."""
    return [torch.empty_like(a, **where) for a, w in zip(args, wanted, strict=True) if w]


def _laid_out(tensor: Tensor, strides: Sequence[int]) -> Tensor:
    if tensor.stride() == strides:
        return tensor
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _gradients(
    reference: Callable[..., Any], cotangents: Sequence[Tensor], args: Sequence[Any], wanted: Sequence[bool]
) -> list[Tensor]:
    """The gradients of the arguments that are wanted, as torch derives them."""
    return list(Vjp(reference, len(cotangents), wanted)(*cotangents, *args))


def _autograd(op: AnyOp, overload: Any, backward: Any) -> Callable[..., Any]:
    class Differentiated(torch.autograd.Function):
        """An op in the autograd graph."""

        @staticmethod
        def forward(*args: Any) -> Any:
            with _torch.below_autograd():
                return overload(*args)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            ctx.save_for_backward(*[a for a in inputs if isinstance(a, Tensor)])
            ctx.rest = [_HERE if isinstance(a, Tensor) else a for a in inputs]
            outputs = output if isinstance(output, tuple) else (output,)
            ctx.mark_non_differentiable(*[o for o in outputs if not o.is_floating_point()])

        @staticmethod
        def backward(ctx: Any, *cotangents: Tensor) -> Any:
            saved = iter(ctx.saved_tensors)
            args = [next(saved) if a is _HERE else a for a in ctx.rest]
            wanted = list(ctx.needs_input_grad)
            made = iter(backward(list(cotangents), *args, wanted))
            return tuple(next(made) if w else None for w in wanted)

    return _at_autograd(overload, Differentiated.apply, op.reference)


def _at_autograd(
    overload: Any, differentiated: Callable[..., Any], reference: Callable[..., Any]
) -> Callable[..., Any]:
    arguments = overload._schema.arguments

    def kernel(*args: Any) -> Any:
        # The dispatcher leaves out what equals its default.
        args = (*args, *(a.default_value for a in arguments[len(args) :]))
        if _torch.in_forward_ad():
            return reference(*args)
        # Cotangents are a list of tensors.
        leaves = [t for a in args for t in (a if isinstance(a, list) else [a]) if isinstance(t, Tensor)]
        if torch.is_grad_enabled() and any(t.requires_grad for t in leaves):
            # A transform's level of autograd knows no Python functions but those it has called itself.
            return (reference if _torch.in_transform() else differentiated)(*args)
        with _torch.below_autograd():
            return overload(*args)

    return kernel


def _autograd_of_backward(overload: Any, plain: Callable[..., Any]) -> Callable[..., Any]:
    """Second derivatives: torch's, of the reference."""
    return _at_autograd(overload, plain, plain)


_HERE = object()
