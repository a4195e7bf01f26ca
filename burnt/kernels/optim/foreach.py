"""Common parts of optimizer steps over lists of tensors: input checks, norm, clipping, choice of candidate.

A step by burnt's kernels goes through `HostPasses`, or on a GPU `DevicePasses` (`foreach_triton`): the
constructor computes the norm of the gradients, `apply_update` runs an update over all tensors, once or more
per step. On the host it is known at once whether the step is skipped; on a GPU the norm stays on the device.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from burnt import _torch
from burnt.codegen.runtime.targets import target_of
from burnt.errors import InputRuntimeError, InputUnsupportedError
from burnt.kernels.interface.checks import describe
from burnt.kernels.interface.launch import on_device_of
from burnt.kernels.optim import foreach_c
from burnt.kernels.optim.formula import Lists, Options, Update
from burnt.kernels.optim.request import CLIP_EPS, Request, StepResult

if TYPE_CHECKING:
    from burnt.kernels.optim.foreach_triton import DevicePasses, Tables

Passes: TypeAlias = "HostPasses | DevicePasses"
_FUSED = frozenset({"cpu", "cuda", "mps", "xpu"})  # device types with fused steps in torch


class BoundParams(list[Tensor]):
    """The parameters of an optimizer, with what its last step found out: a next one need not check again.

    The tensors of the state are the optimizer's own, so that nothing about them changes while they are the
    same objects. Of parameters, gradients and averages everything is compared but their addresses, which
    `DevicePasses` does.
    """

    def __init__(self, params: Iterable[Tensor]) -> None:
        super().__init__(params)
        self._count = -1  # of tensors that were compared
        self.strided: list[int] = []  # indices of gradients with other strides than their parameters
        self.tables: dict[int, Tables] = {}  # on a GPU, by stream

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle only the parameters: the copy's tensors have other addresses."""
        return BoundParams, (list(self),)

    def matches(self, tensors: Sequence[Tensor], states: Sequence[Tensor | None]) -> bool:
        """Whether the tensors of a step are as in the step that was remembered."""
        return (
            len(tensors) == self._count
            and len(states) == len(self._states)
            and self._are_alike(*tensors)
            and all(map(operator.is_, states, self._states))
        )

    def remember(self, tensors: Sequence[Tensor], states: list[Tensor | None], strided: list[int]) -> None:
        """Remember the tensors of a step that passed all checks."""
        self._are_alike, self._count = _torch.build_tensor_guard(tensors), len(tensors)
        self._states, self.strided, self.tables = states, strided, {}


class HostPasses:
    """The passes of burnt's kernels over the tensors of one step, on the CPU."""

    def __init__(self, request: Request, grads: Sequence[Tensor], tables: dict[int, Tables]) -> None:
        self._grad_factor, self._is_skipped = 1.0, False
        norm_tensor = None
        if request.needs_norm:
            has_float64 = any(g.dtype == torch.float64 for g in grads)
            squared_norm = sum(
                foreach_c.sum_of_squares([grads[i] for i in indices]) for indices in _group_by_dtype(grads)
            )
            scale = 1.0 if request.grad_scale is None else float(request.grad_scale)
            norm = math.sqrt(squared_norm) / scale
            if request.grad_scale is not None and not math.isfinite(squared_norm):
                # The squares of finite elements overflow a double only in float64.
                self._is_skipped = not (has_float64 and all(bool(g.isfinite().all()) for g in grads))
            self._grad_factor = clip_factor(norm, request.max_norm) / scale
            norm_tensor = torch.tensor(norm, dtype=torch.float64 if has_float64 else torch.float32)
        self.result = StepResult(norm_tensor, torch.full((), self._is_skipped), "burnt")

    def is_skipped(self, *, wait: bool) -> bool:
        """Whether the step is skipped. On a GPU it is False without `wait`, which synchronizes."""
        return self._is_skipped

    def apply_update(self, update: Update, elements: Lists, options: Options, scalars: Lists) -> None:
        """Apply an update to the tensors in place, one call per dtype, unless the step is skipped."""
        if self._is_skipped:
            return
        options = {**options, "grad_factor": self._grad_factor}
        groups = _group_by_dtype(next(iter(elements.values())))
        if len(groups) == 1:
            foreach_c.apply_update(update, elements, options, scalars)
            return
        for indices in groups:
            foreach_c.apply_update(
                update,
                {name: [column[i] for i in indices] for name, column in elements.items()},
                options,
                {name: [column[i] for i in indices] for name, column in scalars.items()},
            )


def clip_factor(norm: float, max_norm: float | None) -> float:
    """Return the factor that clips gradients of this norm, as in torch's `clip_grad_norm_`."""
    if max_norm is None or max_norm == math.inf:
        return 1.0
    factor = max_norm / (norm + CLIP_EPS)
    return 1.0 if factor > 1.0 else factor


def run_step(
    request: Request,
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    states: Mapping[str, Sequence[Tensor | None]],
    burnt_step: Callable[[Passes, Sequence[Tensor]], None] | None,
    torch_step: Callable[[list[Tensor]], None],
    steps: Sequence[Sequence[Tensor]] = (),
    wide_steps: Sequence[Sequence[Tensor]] = (),
) -> StepResult:
    """Check a step, and run it by burnt's kernels or, if they do not support the arguments, by torch.

    `states` has lists of tensors by the name of one; `steps` has lists of step counters and other
    scalars, `wide_steps` those in float64. `burnt_step` gets gradients with the strides of their parameters
    (None if there is no kernel), `torch_step` gets them unscaled and clipped.
    """
    tensors = [*params, *grads, *(request.ema or ())]
    own = [*chain.from_iterable((*states.values(), *steps, *wide_steps))]
    bound = params if isinstance(params, BoundParams) else None
    is_known = bound is not None and bound.matches(tensors, own)
    if not is_known and params is not grads:
        _check_lists(request, params, {"grad": grads, **states}, [*steps, *wide_steps])
    reason = (
        "it has no kernel"
        if burnt_step is None
        else "requested"
        if request.candidate == "torch"
        else _fallback_reason(params, grads, states, steps, wide_steps, request, is_known)
    )
    if reason is not None and request.candidate == "burnt":
        raise InputUnsupportedError(
            f"the candidate 'burnt' of {request.name} does not support these arguments",
            where=request.where,
            found=reason,
            hint="with candidate=None torch runs the step instead",
        )
    with torch.no_grad():
        if reason is not None or burnt_step is None:
            return _run_torch_step(request, params, grads, torch_step, str(reason))
        aligned = list(grads)
        for i in bound.strided if bound is not None and is_known else range(len(aligned)):
            aligned[i] = _match_strides(grads[i], params[i])
        if bound is not None and not is_known:
            bound.remember(tensors, own, [i for i, grad in enumerate(grads) if grad is not aligned[i]])
        with on_device_of(aligned[0]) if aligned else contextlib.nullcontext():
            passes = _make_passes(request, aligned, {} if bound is None else bound.tables)
            burnt_step(passes, aligned)
        return passes.result


def measure_gradients(
    grads: Sequence[Tensor], *, max_norm: float | None, grad_scale: float | Tensor | None
) -> StepResult:
    """Return what a step with these gradients would return; nothing is changed."""
    request = Request("measure_gradients", grad_scale, max_norm, None, 0.0, None)
    return run_step(request, grads, grads, {}, lambda passes, grads: None, lambda grads: None)


def _make_passes(request: Request, grads: Sequence[Tensor], tables: dict[int, Tables]) -> Passes:
    if grads and grads[0].is_cuda:
        from burnt.kernels.optim.foreach_triton import DevicePasses

        return DevicePasses(request, grads, tables)
    return HostPasses(request, grads, tables)


def _run_torch_step(
    request: Request,
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    torch_step: Callable[[list[Tensor]], None],
    reason: str,
) -> StepResult:
    """Run a step by torch's functions. With `grad_scale` it synchronizes, as torch's `GradScaler` does."""
    device = params[0].device if params else torch.device("cpu")
    skipped, norm, clipped = torch.zeros((), dtype=torch.bool, device=device), None, list(grads)
    if request.needs_norm and grads:
        norm = torch.nn.utils.get_total_norm(grads)
        norm = norm if norm.dtype == torch.float64 else norm.float()
        factor: Tensor | None = None
        if request.grad_scale is not None:
            scale = torch.as_tensor(request.grad_scale, dtype=norm.dtype, device=norm.device)
            norm = norm / scale
            if not norm.isfinite() and not all(bool(g.isfinite().all()) for g in grads):
                return StepResult(norm, torch.ones_like(skipped), f"torch: {reason}")
        if request.max_norm is not None and request.max_norm != math.inf:
            factor = (request.max_norm / (norm + CLIP_EPS)).clamp(max=1.0)
        if request.grad_scale is not None:
            factor = (1.0 if factor is None else factor) / scale
        if factor is not None:
            factors = {place: factor.to(place) for place in {g.device for g in grads}}
            clipped = [(g * factors[g.device]).to(g.dtype) for g in grads]
    elif request.needs_norm:
        norm = torch.zeros(())
    if params:
        torch_step(clipped)
        if request.ema is not None:
            torch._foreach_lerp_(list(request.ema), list(params), 1 - request.ema_decay)
    return StepResult(norm, skipped, f"torch: {reason}")


# --- choice of candidate ----------------------------------------------------------------------------------


def can_fuse(*columns: Sequence[Tensor | None]) -> bool:
    """Whether torch's fused steps support these tensors. On a CPU they treat any tensor as contiguous."""
    return all(
        t is None or (t.is_floating_point() and t.device.type in _FUSED and t.is_contiguous())
        for column in columns
        for t in column
    )


def _fallback_reason(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    states: Mapping[str, Sequence[Tensor | None]],
    steps: Sequence[Sequence[Tensor]],
    wide_steps: Sequence[Sequence[Tensor]],
    request: Request,
    is_known: bool,
) -> str | None:
    """Return why burnt's kernels do not support these arguments; None if they do.

    Those of a step that `is_known` were checked before.
    """
    if torch.compiler.is_compiling() or not _torch.is_plain_call():
        return "the step is traced, compiled or transformed"
    if not params:
        return None
    device = params[0].device
    target = target_of(device) if device.type in ("cpu", "cuda") else f"tensors on {device.type}"
    if isinstance(target, str):
        return target
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return "a CUDA graph is being captured, and it would keep the present addresses of the gradients"
    if is_known:
        return None
    others = [*states.values(), *(() if request.ema is None else (request.ema,))]
    for i, p in enumerate(params):
        if p.device != device:
            return f"parameters on {device} and on {p.device}"
        if p.dtype not in foreach_c.DTYPES or (device.type == "cuda" and p.dtype == torch.float64):
            return f"parameters of {str(p.dtype).removeprefix('torch.')} on {device.type}"
        if type(p) not in (Tensor, torch.nn.Parameter) or type(grads[i]) is not Tensor:
            return f"a tensor subclass, {(type(p) if type(grads[i]) is Tensor else type(grads[i])).__name__}"
        dense = p.is_contiguous()
        if not dense and torch.empty_like(p, device="meta").stride() != p.stride():
            return "a parameter that is a view with gaps between its elements"
        for column in others:
            state = column[i]
            if state is not None and not (dense and state.is_contiguous()) and state.stride() != p.stride():
                return "a state with other strides than its parameter"
    for dtype, scalars in ((torch.float32, steps), (torch.float64, wide_steps)):
        for scalar in chain.from_iterable(scalars):
            if scalar.dtype != dtype or scalar.device != device:
                return f"a step counter that is {describe(scalar)}"
    return None


def _match_strides(grad: Tensor, param: Tensor) -> Tensor:
    """Return the gradient with the strides of its parameter; autograd may return other ones."""
    same_layout = (grad.is_contiguous() and param.is_contiguous()) or grad.stride() == param.stride()
    return grad if same_layout and not _torch.is_lazy(grad) else torch.empty_like(param).copy_(grad)


def tensor_norms(tensors: Sequence[Tensor]) -> Tensor:
    """Return the norm of each tensor, ``[tensors]``, in float32, or in float64 if a tensor is float64."""
    has_float64 = any(t.dtype == torch.float64 for t in tensors)
    norms = torch._foreach_norm(list(tensors), dtype=torch.float64 if has_float64 else torch.float32)
    return torch.stack(norms)


# --- checks -----------------------------------------------------------------------------------------------


def _check_lists(
    request: Request,
    params: Sequence[Tensor],
    lists: dict[str, Sequence[Tensor | None]],
    scalars: Sequence[Sequence[Tensor]],
) -> None:
    """Check that each list has one tensor per parameter, of its shape, dtype and device, or one scalar."""
    where, lists = request.where, {f"{name}s": column for name, column in lists.items()}
    if request.ema is not None:
        lists["ema"] = request.ema
    for name, column in lists.items():
        if len(column) != len(params):
            raise InputRuntimeError(
                f"{name} of {request.name} has the wrong length",
                where=where,
                expected=f"{len(params)} tensors, one for each of params",
                found=f"{len(column)} tensors",
            )
    for i, p in enumerate(params):
        shape, dtype, device = p.shape, p.dtype, p.device
        if not dtype.is_floating_point:
            raise InputUnsupportedError(
                f"{request.name} is not defined for {str(dtype).removeprefix('torch.')}",
                where=where,
                expected="parameters of a floating-point dtype",
                found=f"params[{i}]: {describe(p)}",
                hint="pass torch.view_as_real of all tensors" if dtype.is_complex else None,
            )
        for name, column in lists.items():
            tensor = column[i]
            if tensor is None:
                continue
            if tensor.layout is not torch.strided:
                raise InputUnsupportedError(
                    f"{request.name} supports only dense tensors",
                    where=where,
                    found=f"{name}[{i}]: {tensor.layout}",
                    hint=f"{name}[{i}].to_dense()",
                )
            if tensor.shape != shape or tensor.dtype != dtype or tensor.device != device:
                raise InputRuntimeError(
                    f"{name} of {request.name} does not match the parameters",
                    where=where,
                    expected=f"{name}[{i}]: {describe(p)}, like params[{i}]",
                    found=describe(tensor),
                )
    for steps in scalars:
        invalid = next((i for i, s in enumerate(steps) if s.numel() != 1 or not s.is_floating_point()), None)
        if len(steps) != len(params) or invalid is not None:
            raise InputRuntimeError(
                f"steps of {request.name} does not match the parameters",
                where=where,
                expected=f"{len(params)} float32 tensors of one element each",
                found=f"{len(steps)} tensors"
                if invalid is None
                else f"steps[{invalid}]: {describe(steps[invalid])}",
            )


def _group_by_dtype(tensors: Sequence[Tensor]) -> list[list[int]]:
    """Group the indices of tensors by dtype, in order of appearance."""
    if len({t.dtype for t in tensors}) == 1:
        return [list(range(len(tensors)))]
    groups: dict[torch.dtype, list[int]] = {}
    for i, t in enumerate(tensors):
        groups.setdefault(t.dtype, []).append(i)
    return list(groups.values())
