"""Whether a candidate computes what an op means: its results and gradients beside the reference in float64.

The error may be four times that of torch's own call in the same dtype, plus four ulp of the largest number on
the way there, in the precision that products may have. What a candidate is given it must leave alone:
arguments, and the gradients of results.

A reference may need far more memory than a candidate, as attention's does, which holds all scores. Its op
says how arguments and results are cut into parts, which the reference and torch's own call go through one by
one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from burnt.codegen.precision import rounding
from burnt.errors import DefinitionError
from burnt.kernels.interface.results import (
    aliases,
    as_list,
    default_grad_out,
    exact_numbers,
    results_and_gradients,
    structure_of,
)

if TYPE_CHECKING:
    from burnt.kernels.interface.op_protocol import AnyOp

__all__ = ["Part", "ReferenceResult"]


_PRODUCTS = frozenset(
    f"aten::{name}"
    for name in ("mm", "bmm", "addmm", "baddbmm", "mv", "dot", "linear", "convolution", "lstm", "gru")
)

# They return memory as it was left: its numbers are nobody's.
_UNWRITTEN = frozenset(
    f"aten::{name}"
    for name in (
        *("empty", "empty_like", "empty_permuted", "empty_strided"),
        *("new_empty", "new_empty_strided"),
    )
)


class _Watched(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the largest finite number that any op makes, and whether one multiplies matrices."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.largest, self.multiplied = 0.0, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func._schema.name in _UNWRITTEN:
            # Not only left out: views of it are seen too, before all of it is written.
            return made.zero_()
        self.multiplied = self.multiplied or func._schema.name in _PRODUCTS
        for tensor in pytree.tree_leaves((made, args)):
            if isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.numel():
                self.largest = max(self.largest, float(tensor.detach().abs().nan_to_num(0, 0, 0).max()))
        return made


class Part(NamedTuple):
    """A part of a call that can be computed alone.

    Args:
        arguments: for each argument of the op a slice of each of its first axes, or None for all of it.
        results: the same for each result. All parts' make up the results; the gradient of an argument is the
            sum of those of its parts.
    """

    arguments: tuple[tuple[slice, ...] | None, ...]
    results: tuple[tuple[slice, ...], ...]


def results_in_parts(
    call: Callable[..., Any], args: Sequence[Any], parts: Sequence[Part], *, wide: bool
) -> list[Tensor]:
    """As `results_and_gradients`, part by part.

    Args:
        call: the function.
        args: its arguments.
        parts: of them, at least one.
        wide: floating-point arguments become float64.
    """
    results: list[Tensor] = []
    cotangents: dict[int, Tensor] = {}
    sums = {
        i: torch.zeros(a.shape, dtype=torch.float64, device=a.device)
        for i, a in enumerate(args)
        if isinstance(a, Tensor) and a.requires_grad
    }
    pulled = False
    for part in parts:
        given = [_cut(a, index, wide) for a, index in zip(args, part.arguments, strict=True)]

        def shape_of(i: int, result: Tensor) -> list[int]:
            ends = [max(each.results[i][d].stop for each in parts) for d in range(len(parts[0].results[i]))]
            return [*ends, *result.shape[len(ends) :]]

        def cotangent(i: int, result: Tensor, part: Part = part) -> Tensor:
            if i not in cotangents:
                cotangents[i] = exact_numbers(shape_of(i, result), result.device)
            return torch.empty_like(result, requires_grad=False).copy_(cotangents[i][part.results[i]])

        made = results_and_gradients(call, given, cotangent=cotangent)
        count = len(part.results)
        for i, result in enumerate(made[:count]):
            if i == len(results):
                results.append(result.new_empty(shape_of(i, result)))
            results[i][part.results[i]] = result
        pulled = len(made) > count
        for i, gradient in zip(sums if pulled else (), made[count:], strict=True):
            index = part.arguments[i]
            sums[i][() if index is None else index] += gradient
    if not pulled:
        return results
    return [*results, *(g if wide else g.to(args[i].dtype) for i, g in sums.items())]


def _cut(value: Any, index: tuple[slice, ...] | None, wide: bool) -> Any:
    """A part of an argument, as a leaf of a graph of its own."""
    if not isinstance(value, Tensor):
        return value
    part = value.detach() if index is None else value.detach()[index]
    part = part.double() if wide and part.is_floating_point() else part
    return part.detach().requires_grad_(value.requires_grad)


class _Noted:
    """A function that keeps what it was given and returned last."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call
        self.args: Sequence[Any] = ()
        self.made: Any = None

    def __call__(self, *args: Any) -> Any:
        self.args, self.made = args, self.call(*args)
        return self.made


class ReferenceResult:
    """What an op gives for some arguments, and how far a candidate may be from it.

    Args:
        op: the op.
        args: its arguments; tensors in memory that nothing else needs.
    """

    def __init__(self, op: AnyOp, args: Sequence[Any]) -> None:
        self.random = op.random
        self.args = args
        tensors = {name: a for name, a in zip(op.positions, args, strict=True) if isinstance(a, Tensor)}
        self.memory = [(name, _bytes(a), _bytes(a).clone()) for name, a in tensors.items()]
        parts = None if op.parts is None else op.parts(*args)
        exact, eager = _Noted(op.reference), _Noted(op.candidates["library"])
        with _Watched() as watched:
            if parts is None:
                self.exact = results_and_gradients(exact, [_cut(a, None, True) for a in args])
            else:
                self.exact = results_in_parts(exact, args, parts, wide=True)
        if parts is None:
            self.eager = results_and_gradients(eager, args)
        else:
            self.eager = results_in_parts(eager, args, parts, wide=False)
        self.names, self.form = list(op.positions), structure_of(eager.made)
        self.shared = {i for noted in (exact, eager) for i in aliases(noted.made, noted.args, self.names)}
        self.largest, self.multiplied = watched.largest, watched.multiplied

    def wrong(self, call: Callable[..., Any]) -> str | None:
        """What is wrong with a candidate, or None. It is called once; arguments it changes are put back."""
        given: list[Tensor] = []
        fault: str | None = None

        def checked(*args: Any) -> Any:
            made = call(*args)
            misformed = self.misformed(made)
            if misformed is not None:
                raise DefinitionError(misformed)
            return made

        try:
            results = results_and_gradients(checked, self.args, given)
        except DefinitionError as error:  # what is wrong is known without looking at the results
            fault = error.what if error.found is None else f"{error.what}: {error.found}"
        finally:
            changed = self.restored()
        if changed is not None:
            return f"changes its argument {changed}"
        for i, cotangent in enumerate(given):
            if not torch.equal(cotangent, default_grad_out(cotangent)):
                return f"its backward changes the cotangent {i}"
        if fault is not None:
            return fault
        return self.mismatch(results)

    def misformed(self, made: Any) -> str | None:
        """What is wrong with what a candidate returns, whatever its values, or None."""
        if structure_of(made) != self.form:
            return f"returns {structure_of(made)}, expected {self.form}"
        for i, result in enumerate(as_list(made)):
            if not isinstance(result, Tensor):
                return f"result {i} is no tensor: {type(result).__name__}"
            if result.device != self.eager[i].device:
                return f"result {i}: device {result.device}, expected {self.eager[i].device}"
        for i, name in aliases(made, self.args, self.names).items():
            if i not in self.shared:
                return f"result {i} is the argument {name}, or a view of it"
        return None

    def restored(self) -> str | None:
        """Put back what was changed of the arguments; the name of the first that was."""
        changed = None
        for name, now, before in self.memory:
            if not torch.equal(now, before):
                now.copy_(before)
                changed = changed or name
        return changed

    def mismatch(self, results: Sequence[Tensor]) -> str | None:
        """What is wrong with a candidate's results and gradients, or None."""
        if len(results) != len(self.eager):
            return f"{len(results)} results and gradients, expected {len(self.eager)}"
        for i, (ours, theirs, exact) in enumerate(zip(results, self.eager, self.exact, strict=True)):
            for what in ("shape", "dtype"):
                if getattr(ours, what) != getattr(theirs, what):
                    return f"result {i}: {what} {getattr(ours, what)}, expected {getattr(theirs, what)}"
            if self.random or not ours.numel():
                continue
            if not ours.is_floating_point():
                # A tie, or a value close to one, may go either way.
                if not torch.equal(ours, theirs) and not torch.equal(ours, exact):
                    return f"result {i}: other integers than the reference's"
                continue
            finite = theirs.isfinite() & exact.isfinite()
            error = (theirs.double() - exact.double()).abs()[finite]
            ulp = rounding(ours.dtype) if self.multiplied else torch.finfo(ours.dtype).eps
            slack = 4 * ulp * self.largest
            tolerance = (4 * float(error.max()) if error.numel() else 0.0) + slack
            off = (ours.double() - exact.double()).abs()[finite]
            if off.numel() and not float(off.max()) <= tolerance:
                return f"result {i}: off by {float(off.max()):.3g}, where {tolerance:.3g} is tolerated"
            other = ~(ours.isnan() == theirs.isnan()) | (ours.isinf() & theirs.isinf() & (ours != theirs))
            if bool((other & ~finite).any()):
                return f"result {i}: other infinities or NaNs than torch's"
        return None


def _bytes(tensor: Tensor) -> Tensor:
    """The memory that a tensor lies in: NaNs are equal to themselves, and no version is counted."""
    memory = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return memory.set_(tensor.untyped_storage())
