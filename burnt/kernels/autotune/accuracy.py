"""The accuracy check: compare a candidate's results and gradients with the reference in float64.

The tolerance is four times the error of the library candidate in the same dtype, plus four ulp of the largest
intermediate value, at the matmul precision in effect. A candidate must not modify its arguments or the
gradients of its results.

A reference may need far more memory than a candidate: attention's holds all scores. Such an op says how it is
computed in parts (`Op`, ``in_parts=``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from burnt.codegen.precision import matmul_eps
from burnt.errors import DefinitionError
from burnt.kernels.interface.binding import (
    aliases,
    as_list,
    default_grad_out,
    results_and_gradients,
    structure_of,
)

if TYPE_CHECKING:
    from burnt.kernels.interface.candidate import AnyOp


_MATMULS = frozenset(
    f"aten::{name}"
    for name in ("mm", "bmm", "addmm", "baddbmm", "mv", "dot", "linear", "convolution", "lstm", "gru")
)

# Their results are uninitialized memory.
_UNINITIALIZED = frozenset(
    f"aten::{name}"
    for name in (
        *("empty", "empty_like", "empty_permuted", "empty_strided"),
        *("new_empty", "new_empty_strided"),
    )
)


class _ValueRange(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the largest finite magnitude in inputs and results of all ops, and whether one is a matmul."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.largest, self.has_matmul = 0.0, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func._schema.name in _UNINITIALIZED:
            # Zeroed, not just skipped: later ops may see views of it before all of it is written.
            return result.zero_()
        self.has_matmul = self.has_matmul or func._schema.name in _MATMULS
        for tensor in pytree.tree_leaves((result, args)):
            if isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.numel():
                self.largest = max(self.largest, float(tensor.detach().abs().nan_to_num(0, 0, 0).max()))
        return result


def _wide_leaf(value: Any) -> Any:
    """Return a tensor as a new leaf, in float64 if it is floating-point."""
    if not isinstance(value, Tensor):
        return value
    wide = value.detach().double() if value.is_floating_point() else value
    return wide.detach().requires_grad_(value.requires_grad)


class _LastCall:
    """A function that remembers the arguments and the result of its last call."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call
        self.args: Sequence[Any] = ()
        self.result: Any = None

    def __call__(self, *args: Any) -> Any:
        self.args, self.result = args, self.call(*args)
        return self.result


class ReferenceResult:
    """The results and gradients of an op for some arguments, and the tolerance for candidates.

    The memory of the tensors in `args` must not be used elsewhere.
    """

    def __init__(self, op: AnyOp, args: Sequence[Any]) -> None:
        self.random = op.random
        self.args = args
        tensors = {name: a for name, a in zip(op.positions, args, strict=True) if isinstance(a, Tensor)}
        self.memory = [(name, _storage_bytes(a), _storage_bytes(a).clone()) for name, a in tensors.items()]
        calls: list[Callable[..., Any]] = [op.reference, op.candidates["library"]]
        if op.in_parts is not None:
            calls = [functools.partial(op.in_parts, call) for call in calls]
        exact, eager = map(_LastCall, calls)
        with _ValueRange() as value_range:
            self.exact = results_and_gradients(exact, [_wide_leaf(a) for a in args])
        self.eager = results_and_gradients(eager, args)
        self.names, self.structure = list(op.positions), structure_of(eager.result)
        self.aliased_results = {
            i for last in (exact, eager) for i in aliases(last.result, last.args, self.names)
        }
        self.largest, self.has_matmul = value_range.largest, value_range.has_matmul

    def find_error(self, call: Callable[..., Any]) -> str | None:
        """Run a candidate once; return what is wrong with it. Arguments that it modifies are restored."""
        grad_outs: list[Tensor] = []
        definition_fault: str | None = None

        def checked(*args: Any) -> Any:
            results = call(*args)
            structure_error = self.find_structure_error(results)
            if structure_error is not None:
                raise DefinitionError(structure_error)
            return results

        try:
            results = results_and_gradients(checked, self.args, grad_outs)
        except DefinitionError as error:  # reported below, unless the candidate modifies its inputs, too
            definition_fault = error.what if error.found is None else f"{error.what}: {error.found}"
        finally:
            modified = self.restore_arguments()
        if modified is not None:
            return f"modifies its argument {modified}"
        for i, grad_out in enumerate(grad_outs):
            if not torch.equal(grad_out, default_grad_out(grad_out)):
                return f"its backward modifies grad_outs[{i}]"
        if definition_fault is not None:
            return definition_fault
        return self.find_value_error(results)

    def find_structure_error(self, results: Any) -> str | None:
        """Check the number, types, devices and aliasing of a candidate's results, but not their values."""
        if structure_of(results) != self.structure:
            return f"returns {structure_of(results)}, expected {self.structure}"
        for i, result in enumerate(as_list(results)):
            if not isinstance(result, Tensor):
                return f"result {i} is not a tensor: {type(result).__name__}"
            if result.device != self.eager[i].device:
                return f"result {i}: device {result.device}, expected {self.eager[i].device}"
        for i, name in aliases(results, self.args, self.names).items():
            if i not in self.aliased_results:
                return f"result {i} is the argument {name}, or a view of it"
        return None

    def restore_arguments(self) -> str | None:
        """Restore modified arguments; return the name of the first, or None."""
        modified = None
        for name, memory, original in self.memory:
            if not torch.equal(memory, original):
                memory.copy_(original)
                modified = modified or name
        return modified

    def find_value_error(self, results: Sequence[Tensor]) -> str | None:
        """Check the shapes, dtypes and values of a candidate's results and gradients."""
        if len(results) != len(self.eager):
            return f"{len(results)} results and gradients, expected {len(self.eager)}"
        for i, (ours, theirs, exact) in enumerate(zip(results, self.eager, self.exact, strict=True)):
            for what in ("shape", "dtype"):
                if getattr(ours, what) != getattr(theirs, what):
                    return f"result {i}: {what} {getattr(ours, what)}, expected {getattr(theirs, what)}"
            if self.random or not ours.numel():
                continue
            if not ours.is_floating_point():
                # Rounding decides ties and near-ties, so the library and float64 may differ: accept either.
                if not torch.equal(ours, theirs) and not torch.equal(ours, exact):
                    return f"result {i}: integers differ from the reference's"
                continue
            finite = theirs.isfinite() & exact.isfinite()
            error = (theirs.double() - exact.double()).abs()[finite]
            ulp = matmul_eps(ours.dtype) if self.has_matmul else torch.finfo(ours.dtype).eps
            slack = 4 * ulp * self.largest
            tolerance = (4 * float(error.max()) if error.numel() else 0.0) + slack
            difference = (ours.double() - exact.double()).abs()[finite]
            if difference.numel() and not float(difference.max()) <= tolerance:
                return f"result {i}: off by {float(difference.max()):.3g}, tolerance {tolerance:.3g}"
            differs = ~(ours.isnan() == theirs.isnan()) | (ours.isinf() & theirs.isinf() & (ours != theirs))
            if bool((differs & ~finite).any()):
                return f"result {i}: infinities or NaNs differ from torch's"
        return None


def _storage_bytes(tensor: Tensor) -> Tensor:
    """View a tensor's storage as bytes: NaNs compare equal, and writes do not change its version."""
    memory = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return memory.set_(tensor.untyped_storage())
