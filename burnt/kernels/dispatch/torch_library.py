"""Register ops under ``torch.ops.burnt``, where dispatch modes, transforms, compilers and export see them.

Each op ``burnt::f`` is defined from the Python signature of its reference. It has

- a kernel for every device, which selects a candidate as a Python call of the op does;
- a fake: the reference on fake tensors. The kernel returns results with the fake's strides, whichever
  candidate runs;
- gradients at the Autograd key, computed by the op ``burnt::f_backward``, which compilers see; its own
  gradients are the reference's, computed by torch. For an op that draws random numbers, autograd
  differentiates the reference instead, since another op would draw other numbers;
- vmap and autocast, which run the reference: torch's own ops inside it are batched and cast.

Results of these ops never share memory with arguments: where a reference returns its argument, it is cloned.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from burnt import _torch
from burnt.codegen.backward import grad_by_torch
from burnt.errors import DefinitionError
from burnt.kernels.interface.binding import Vjp, reference_gradient

if TYPE_CHECKING:
    from burnt.kernels.interface.candidate import AnyOp


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
    int | Sequence[int]: "SymInt[]",  # a single number becomes a list: see `Op.as_schema_args`
    str | int | Sequence[int]: "SymInt[]",  # the op replaces strings by numbers in `Op.bind`
}

_references: dict[Any, Callable[..., Any]] = {}
_MAX_CACHED_STRIDES = 4096  # per op: bounds the memory of programs whose shapes keep changing

Strides = Sequence[tuple[int, ...]]


class Registration(NamedTuple):
    """The registration of an op with torch, which ends when `library` is destroyed.

    `overloads` are the overload that returns a tensor and the one that returns a pair; the same twice if the
    number of results is fixed.
    """

    overloads: tuple[Any, Any]
    library: Any


def register(op: AnyOp) -> Registration:
    """Register ``burnt::f`` and ``burnt::f_backward``; a DefinitionError for unsupported annotations."""
    arguments, results = _schema(op)
    library: Any = torch.library.Library("burnt", "FRAGMENT")  # type: ignore[no-untyped-call]
    if op.pair is None:
        overload = _define_overload(library, op, "", arguments, results)
        return Registration((overload, overload), library)
    # The overload that returns a pair is the one called with the optional argument `pair`.
    pair_arguments = [a if i != op.pair else _make_required(a) for i, a in enumerate(arguments)]
    name = list(op.positions)[op.pair]
    single = _define_overload(library, op, "", arguments, "Tensor")
    return Registration(
        (single, _define_overload(library, op, name, pair_arguments, "(Tensor, Tensor)")), library
    )


def unregister(registration: Registration) -> None:
    """Undo `register`."""
    for overload in registration.overloads:
        _references.pop(overload, None)
    _torch.destroy(registration.library)


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the references of all ops, for `torch.export.ExportedProgram.run_decompositions` and `make_fx`.

    >>> from burnt import kernels
    >>> torch.ops.burnt.softmax.default in kernels.decompositions()
    True
    """
    return dict(_references)


def _schema(op: AnyOp) -> tuple[list[str], str]:
    """Return the schema's arguments and results; the results are empty where they depend on an argument."""
    hints = typing.get_type_hints(op.reference)
    arguments = []
    for name, parameter in op.signature.parameters.items():
        text = _schema_type(op, name, hints.get(name))
        if parameter.default is not parameter.empty:
            default = parameter.default
            default = f'"{default}"' if isinstance(default, str) else default
            if "[]" in text and default is not None:
                default = [default] if isinstance(default, int) else list(default)
            arguments.append(f"{text} {name}={default}")
        else:
            arguments.append(f"{text} {name}")
    result = hints.get("return")
    if op.pair is None:
        if result is Tensor:
            return arguments, "Tensor"
        if typing.get_origin(result) is tuple and set(typing.get_args(result)) == {Tensor}:
            return arguments, f"({', '.join('Tensor' for _ in typing.get_args(result))})"
        raise DefinitionError(
            f"the result of the op {op.name} is not annotated as a tensor or a tuple of tensors",
            where=op.reference.__module__,
            expected="-> Tensor, or -> tuple[Tensor, Tensor] with one Tensor for each result",
            found="no annotation" if result is None else result,
        )
    return arguments, ""


def _schema_type(op: AnyOp, name: str, hint: Any) -> str:
    schema_type = _TYPES.get(hint)
    if schema_type is not None:
        return schema_type
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        members = [a for a in typing.get_args(hint) if a is not type(None)]
        if len(members) < len(typing.get_args(hint)):
            without_none = members[0]
            for member in members[1:]:
                without_none = without_none | member
            return f"{_schema_type(op, name, without_none)}?"
    raise DefinitionError(
        f"the argument {name} of the op {op.name} has no type that torch's schemas support",
        where=op.reference.__module__,
        expected="Tensor, int, float, bool, str, torch.dtype, Sequence[int], or one of them `| None`",
        found="no annotation" if hint is None else hint.__qualname__ if isinstance(hint, type) else hint,
    )


def _make_required(argument: str) -> str:
    """Turn an optional tensor argument of a schema into a required one."""
    kind, rest = argument.split(" ", 1)
    return f"{kind.removesuffix('?')} {rest.partition('=')[0]}" if kind == "Tensor?" else argument


def _define_overload(library: Any, op: AnyOp, overload: str, arguments: Sequence[str], results: str) -> Any:
    """Define an overload of an op and of its backward, with all their kernels; return the op's."""
    name = op.name
    tags = _RANDOM_TAGS if op.random else _TAGS
    full = f"{name}.{overload}" if overload else name
    # A required argument cannot follow an optional one: make all arguments before the last required one
    # required.
    ordered = list(arguments)
    last = max((i for i, a in enumerate(ordered) if "=" not in a), default=-1)
    ordered = [a.partition("=")[0] if i < last else a for i, a in enumerate(ordered)]
    library.define(f"{full}({', '.join(ordered)}) -> {results}", tags=tags)
    forward = getattr(getattr(torch.ops.burnt, name), overload or "default")

    def run_reference(*args: Any) -> Any:
        return _clone_aliased_results(op.reference(*args), args)

    _register_kernels(library, full, _device_kernel(op), op.reference, run_reference)
    _references[forward] = op.reference
    if op.random:
        library.impl(full, _autograd_kernel(forward, run_reference, run_reference), "Autograd")
        return forward

    back = f"{name}_backward"
    required = [a.partition("=")[0] for a in ordered]
    full_back = f"{back}.{overload}" if overload else back
    library.define(
        f"{full_back}(Tensor[] grad_outs, {', '.join(required)}, bool[] needs_grad) -> Tensor[]", tags=tags
    )
    backward = getattr(getattr(torch.ops.burnt, back), overload or "default")

    def eager_gradients(grad_outs: Sequence[Tensor], *rest: Any) -> list[Tensor]:
        return list(Vjp(op.reference, len(grad_outs), rest[-1])(*grad_outs, *rest[:-1]))

    def generated_gradients(grad_outs: Sequence[Tensor], *rest: Any) -> list[Tensor]:
        with _torch.normal_dispatch(), torch.no_grad():
            gradients = reference_gradient(op, grad_outs, rest[:-1], rest[-1])
            expected = _empty_gradients(rest[:-1], rest[-1], device="meta")
            return [
                _with_strides(_clone_if_aliased(t, rest), e.stride())
                for t, e in zip(gradients, expected, strict=True)
            ]

    def fake_gradients(grad_outs: Sequence[Tensor], *rest: Any) -> list[Tensor]:
        return _empty_gradients(rest[:-1], rest[-1])

    _register_kernels(library, full_back, generated_gradients, eager_gradients, fake_gradients)
    _references[backward] = eager_gradients
    library.impl(full, _differentiable_kernel(op, forward, backward), "Autograd")
    # torch computes second derivatives from the reference.
    library.impl(full_back, _autograd_kernel(backward, eager_gradients, eager_gradients), "Autograd")
    return forward


def _register_kernels(
    library: Any, name: str, run: Callable[..., Any], reference: Callable[..., Any], fake: Callable[..., Any]
) -> None:
    """Register the kernel, the fake, vmap and autocast of an overload."""
    library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"burnt::{name}", fake, lib=library)
    for key in ("FuncTorchBatched", "AutocastCPU", "AutocastCUDA"):
        library.impl(name, reference, key)


def _device_kernel(op: AnyOp) -> Callable[..., Any]:
    """Return the kernel that runs the selected candidate and returns results with the fake's strides."""
    cached_strides: dict[tuple[Any, ...], Strides | None] = {}

    def expected_strides(args: Sequence[Any]) -> Strides | None:
        key = tuple(
            (a.shape, a.stride(), a.dtype, a.device) if isinstance(a, Tensor) else _hashable(a) for a in args
        )
        if key not in cached_strides:
            if len(cached_strides) >= _MAX_CACHED_STRIDES:
                cached_strides.clear()
            cached_strides[key] = _fake_strides(op, args)
        return cached_strides[key]

    def run(*args: Any) -> Any:
        with _torch.normal_dispatch(), torch.no_grad():
            full = op.bind(args, {})
            results = _clone_aliased_results(op.run(full), args)
            # Contiguous arguments give contiguous results with every candidate. For other layouts candidates
            # differ, but compilers rely on the fake's strides.
            if all(a.layout is not torch.strided or a.is_contiguous() for a in args if isinstance(a, Tensor)):
                return results
            expected = expected_strides(full)
            if expected is None:
                return results
            if isinstance(results, Tensor):
                return _with_strides(results, expected[0])
            return type(results)(_with_strides(t, s) for t, s in zip(results, expected, strict=True))

    return run


def _hashable(value: Any) -> Any:
    return (type(value), tuple(value) if isinstance(value, list) else value)


def _fake_strides(op: AnyOp, args: Sequence[Any]) -> Strides | None:
    """Return the strides of the fake's results, or None if the reference needs the tensors' values."""
    try:
        results = _torch.fake_results(
            lambda *fakes: _clone_aliased_results(op.reference(*fakes), fakes), args
        )
    except Exception:  # the reference may raise anything; without a fake no strides are expected
        return None
    return [t.stride() for t in results]


def _clone_aliased_results(results: Any, args: Sequence[Any]) -> Any:
    if isinstance(results, tuple | list):
        return type(results)(_clone_if_aliased(t, args) for t in results)
    return _clone_if_aliased(results, args)


def _clone_if_aliased(result: Tensor, args: Sequence[Any]) -> Tensor:
    is_aliased = any(a is result or _torch.share_memory(result, a) for a in args if isinstance(a, Tensor))
    return result.clone() if is_aliased else result


def _empty_gradients(args: Sequence[Any], needs_grad: Sequence[bool], **options: Any) -> list[Tensor]:
    """Return uninitialized gradients, with the strides of their arguments."""
    return [torch.empty_like(a, **options) for a, n in zip(args, needs_grad, strict=True) if n]


def _with_strides(tensor: Tensor, strides: Sequence[int]) -> Tensor:
    if tensor.stride() == strides:
        return tensor
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _differentiable_kernel(op: AnyOp, overload: Any, backward: Any) -> Callable[..., Any]:
    class OpFunction(torch.autograd.Function):
        """A call of an op in the autograd graph."""

        @staticmethod
        def forward(*args: Any) -> Any:
            with _torch.below_autograd():
                return overload(*args)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            ctx.save_for_backward(*[a for a in inputs if isinstance(a, Tensor)])
            ctx.args = [_TENSOR if isinstance(a, Tensor) else a for a in inputs]
            outputs = output if isinstance(output, tuple) else (output,)
            ctx.mark_non_differentiable(*[o for o in outputs if not o.is_floating_point()])

        @staticmethod
        def backward(ctx: Any, *grad_outs: Tensor) -> Any:
            saved = iter(ctx.saved_tensors)
            args = [next(saved) if a is _TENSOR else a for a in ctx.args]
            needs_grad = list(ctx.needs_input_grad)
            if _torch.in_transform():  # batched gradients
                return tuple(grad_by_torch(op.reference, args, needs_grad, grad_outs))
            gradients = iter(backward(list(grad_outs), *args, needs_grad))
            return tuple(next(gradients) if needed else None for needed in needs_grad)

    return _autograd_kernel(overload, OpFunction.apply, op.reference)


def _autograd_kernel(
    overload: Any, differentiated: Callable[..., Any], reference: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a kernel for the Autograd key.

    It calls `overload` below autograd if no gradient is required, else `differentiated`; in forward-mode AD
    and within transforms of `torch.func` it calls `reference`.
    """
    arguments = overload._schema.arguments

    def kernel(*args: Any) -> Any:
        # The dispatcher omits trailing arguments that equal their defaults.
        args = (*args, *(a.default_value for a in arguments[len(args) :]))
        if _torch.in_forward_ad():
            return reference(*args)
        # The grad_outs of a backward are a list of tensors.
        tensors = [t for a in args for t in (a if isinstance(a, list) else [a]) if isinstance(t, Tensor)]
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            # A transform does not differentiate an autograd.Function that it has not called itself.
            return (reference if _torch.in_transform() else differentiated)(*args)
        with _torch.below_autograd():
            return overload(*args)

    return kernel


_TENSOR = object()  # stands for a saved tensor among the arguments
