"""What optimizer steps over lists of tensors share: the request, checks, the choice of who does it, clipping.

A step of burnt's goes through `Passes`: the norm when it is made, and then as many updates as the optimizer
has. `HostPasses` knows on the spot what came out; on a GPU the norm stays there
(`burnt.kernels.optim.foreach_triton`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from burnt import _torch
from burnt.codegen.runtime.targets import target_of
from burnt.errors import InputRuntimeError, InputUnsupportedError
from burnt.kernels.interface.checks import describe
from burnt.kernels.optim import foreach_c
from burnt.kernels.optim.foreach_c import Update
from burnt.kernels.optim.request import TINY, Request, StepResult

__all__ = ["HostPasses", "Passes", "check", "check_steps", "fused", "stepped"]

_FUSED = frozenset({"cpu", "cuda", "mps", "xpu"})  # where torch has one kernel for the whole step


class Passes(Protocol):
    """Burnt's passes over the tensors of one step."""

    result: StepResult

    def skips(self, *, wait: bool) -> bool:
        """Whether nothing is to be changed; False where only a GPU knows, unless it is waited for."""

    def advance(
        self,
        update: Update,
        columns: Sequence[Sequence[Tensor] | None],
        numbers: Sequence[float],
        options: Sequence[tuple[str, int]] = (),
        *,
        steps: Sequence[Tensor] | None = None,
        extras: Sequence[int | float] | None = None,
    ) -> None:
        """Change tensors, unless the step is skipped; `optimizer_c.advance` has the arguments.

        `numbers` lack the factor of gradients, which an update that takes gradients has first.
        """


class HostPasses:
    """Passes on the CPU."""

    def __init__(self, request: Request, grads: Sequence[Tensor]) -> None:
        self._factor, self._skips = 1.0, False
        norm = None
        if request.measures:
            exact = any(g.dtype == torch.float64 for g in grads)
            total = sum(foreach_c.squares([grads[i] for i in part]) for part in _by_dtype(grads))
            scale = 1.0 if request.grad_scale is None else float(request.grad_scale)
            length = math.sqrt(total) / scale
            if request.grad_scale is not None and not math.isfinite(total):
                # Only squares of float64 overflow a double where their roots are finite.
                self._skips = not (exact and all(bool(g.isfinite().all()) for g in grads))
            self._factor = clip_factor(length, request.max_norm) / scale
            norm = torch.tensor(length, dtype=torch.float64 if exact else torch.float32)
        self.result = StepResult(norm, _flag(self._skips), "burnt")

    def skips(self, *, wait: bool) -> bool:
        """As `Passes`; it is known."""
        return self._skips

    def advance(
        self,
        update: Update,
        columns: Sequence[Sequence[Tensor] | None],
        numbers: Sequence[float],
        options: Sequence[tuple[str, int]] = (),
        *,
        steps: Sequence[Tensor] | None = None,
        extras: Sequence[int | float] | None = None,
    ) -> None:
        """As `Passes`."""
        if self._skips:
            return
        numbers = [self._factor, *numbers] if update.takes_gradients else numbers
        parts = _by_dtype(next(c for c in columns if c is not None))
        if len(parts) == 1:
            foreach_c.advance(update, columns, numbers, options, steps=steps, extras=extras)
            return
        for part in parts:
            foreach_c.advance(
                update,
                [None if c is None else [c[i] for i in part] for c in columns],
                numbers,
                options,
                steps=None if steps is None else [steps[i] for i in part],
                extras=None if extras is None else [extras[i] for i in part],
            )


def _flag(value: bool) -> Tensor:
    return torch.ones((), dtype=torch.bool) if value else torch.zeros((), dtype=torch.bool)


def clip_factor(norm: float, max_norm: float | None) -> float:
    """What gradients are multiplied by to be clipped, as torch's `clip_grad_norm_` has it."""
    if max_norm is None or max_norm == math.inf:
        return 1.0
    factor = max_norm / (norm + TINY)
    return 1.0 if factor > 1.0 else factor


def stepped(
    request: Request,
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    states: Sequence[Sequence[Tensor]],
    ours: Callable[[Passes, Sequence[Tensor]], None],
    torchs: Callable[[list[Tensor]], None],
    steps: Sequence[Tensor] = (),
) -> StepResult:
    """Do a step by whoever serves.

    Args:
        request: what is asked for besides.
        params: and
        grads: of the step.
        states: the optimizer's tensors, a list per kind.
        ours: the step by `Passes`, for gradients that lie as their parameters do.
        torchs: the step by torch, for gradients that are scaled and clipped.
        steps: counters.

    Raises:
        InputUnsupportedError: ``candidate="burnt"`` cannot serve.
    """
    why = "asked for" if request.candidate == "torch" else _why_not(params, grads, states, steps, request)
    if why is not None and request.candidate == "burnt":
        raise InputUnsupportedError(
            f"burnt's {request.name} cannot serve",
            where=f"burnt.kernels.{request.name}",
            found=why,
            hint="candidate=None takes torch's instead",
        )
    with torch.no_grad():
        if why is not None:
            return _by_torch(request, params, grads, torchs, why)
        laid_out = [_as_parameter(g, p) for g, p in zip(grads, params, strict=True)]
        passes = _passes(request, laid_out)
        ours(passes, laid_out)
        return passes.result


def _passes(request: Request, grads: Sequence[Tensor]) -> Passes:
    if grads and grads[0].is_cuda:
        from burnt.kernels.optim.foreach_triton import DevicePasses

        return DevicePasses(request, grads)
    return HostPasses(request, grads)


def _by_torch(
    request: Request,
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    torchs: Callable[[list[Tensor]], None],
    why: str,
) -> StepResult:
    """A step by torch's functions. With a scale it waits for the device, as torch's scaler does."""
    device = params[0].device if params else torch.device("cpu")
    skipped, norm, moved = torch.zeros((), dtype=torch.bool, device=device), None, list(grads)
    if request.measures and grads:
        norm = torch.nn.utils.get_total_norm(grads)
        norm = norm if norm.dtype == torch.float64 else norm.float()
        factor: Tensor | None = None
        if request.grad_scale is not None:
            norm = norm / request.grad_scale
            if not norm.isfinite() and not all(bool(g.isfinite().all()) for g in grads):
                return StepResult(norm, torch.ones_like(skipped), f"torch: {why}")
        if request.max_norm is not None and request.max_norm != math.inf:
            factor = (request.max_norm / (norm + TINY)).clamp(max=1.0)
        if request.grad_scale is not None:
            scale = torch.as_tensor(request.grad_scale, dtype=norm.dtype, device=device)
            factor = (1.0 if factor is None else factor) / scale
        if factor is not None:
            moved = [(g * factor.to(g.device)).to(g.dtype) for g in grads]
    elif request.measures:
        norm = torch.zeros(())
    if params:
        torchs(moved)
        if request.ema is not None:
            torch._foreach_lerp_(list(request.ema), list(params), 1 - request.ema_decay)
    return StepResult(norm, skipped, f"torch: {why}")


# --- who can serve ----------------------------------------------------------------------------------------


def fused(*columns: Sequence[Tensor | None]) -> bool:
    """Whether torch has one kernel for a step of these. On a CPU it takes memory for contiguous, unasked."""
    return all(
        t is None or (t.is_floating_point() and t.device.type in _FUSED and t.is_contiguous())
        for column in columns
        for t in column
    )


def _why_not(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    states: Sequence[Sequence[Tensor]],
    steps: Sequence[Tensor],
    request: Request,
) -> str | None:
    """Why burnt's passes cannot serve; None where they can."""
    if torch.compiler.is_compiling() or not _torch.is_plain_call():
        return "the step is recorded or transformed"
    if not params:
        return None
    device = params[0].device
    target = target_of(device) if device.type in ("cpu", "cuda") else f"tensors on {device.type}"
    if isinstance(target, str):
        return target
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return "a CUDA graph is captured, which cannot hold where gradients will be"
    others = [*states, *(() if request.ema is None else (request.ema,))]
    for i, p in enumerate(params):
        if p.device != device:
            return f"tensors on {device} and on {p.device}"
        if p.dtype not in foreach_c.DTYPES or (device.type == "cuda" and p.dtype == torch.float64):
            return f"parameters of {str(p.dtype).removeprefix('torch.')} on {device.type}"
        if type(p) not in (Tensor, torch.nn.Parameter) or type(grads[i]) is not Tensor:
            return (
                f"a tensor of the class {(type(p) if type(grads[i]) is Tensor else type(grads[i])).__name__}"
            )
        dense = p.is_contiguous()
        if not dense and not _is_dense(p):
            return "a parameter that is a view of a larger tensor, with gaps"
        for column in others:
            if not (dense and column[i].is_contiguous()) and column[i].stride() != p.stride():
                return "a state that lies in memory in another order than its parameter"
    for step in steps:
        if step.dtype != torch.float32 or step.device != device:
            return f"a counter of steps that is {describe(step)}"
    return None


def _is_dense(tensor: Tensor) -> bool:
    """Whether elements lie side by side, in whatever order of the axes."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _as_parameter(grad: Tensor, param: Tensor) -> Tensor:
    """A gradient with its elements in the parameter's order: autograd may expand or turn it."""
    alike = (grad.is_contiguous() and param.is_contiguous()) or grad.stride() == param.stride()
    return grad if alike and not grad.is_neg() else torch.empty_like(param).copy_(grad)


# --- checks -----------------------------------------------------------------------------------------------


def check(request: Request, params: Sequence[Tensor], **lists: Sequence[Tensor | None] | None) -> None:
    """That lists of tensors fit the parameters, one by one.

    Raises:
        InputRuntimeError: they do not.
        InputUnsupportedError: parameters or gradients of a kind that no step here takes.
    """
    where = f"burnt.kernels.{request.name}"
    if request.ema is not None:
        lists["ema"] = request.ema
    for name, column in lists.items():
        if column is not None and len(column) != len(params):
            raise InputRuntimeError(
                f"{name} of {request.name} are not as many as the parameters",
                where=where,
                expected=f"{len(params)} tensors, one for each of params",
                found=f"{len(column)} tensors",
            )
    present = [(name, column) for name, column in lists.items() if column is not None]
    for i, p in enumerate(params):
        shape, dtype, device = p.shape, p.dtype, p.device
        if not dtype.is_floating_point:
            raise InputUnsupportedError(
                f"{request.name} is not defined for {str(dtype).removeprefix('torch.')}",
                where=where,
                expected="parameters of a floating-point dtype",
                found=f"params[{i}]: {describe(p)}",
                hint="torch.view_as_real of them, and of all their lists" if dtype.is_complex else None,
            )
        for name, column in present:
            t = column[i]
            if t is None:
                continue
            if t.layout is not torch.strided:
                raise InputUnsupportedError(
                    f"{request.name} takes dense tensors",
                    where=where,
                    found=f"{name}[{i}]: {t.layout}",
                    hint=f"{name}[{i}].to_dense()",
                )
            if t.shape != shape or t.dtype != dtype or t.device != device:
                raise InputRuntimeError(
                    f"{name} of {request.name} do not fit the parameters",
                    where=where,
                    expected=f"{name}[{i}]: {describe(p)}, as params[{i}]",
                    found=describe(t),
                )


def check_steps(request: Request, params: Sequence[Tensor], steps: Sequence[Tensor]) -> None:
    """That there is a counter for each parameter.

    Raises:
        InputRuntimeError: there is not.
    """
    wrong = next((i for i, s in enumerate(steps) if s.numel() != 1 or not s.is_floating_point()), None)
    if len(steps) != len(params) or wrong is not None:
        raise InputRuntimeError(
            f"steps of {request.name} do not count the parameters' steps",
            where=f"burnt.kernels.{request.name}",
            expected=f"{len(params)} tensors of one number each, float32",
            found=f"{len(steps)} tensors" if wrong is None else f"steps[{wrong}]: {describe(steps[wrong])}",
        )


def _by_dtype(tensors: Sequence[Tensor]) -> list[list[int]]:
    """Places of tensors of one dtype each, in order of appearance."""
    if len({t.dtype for t in tensors}) == 1:
        return [list(range(len(tensors)))]
    parts: dict[torch.dtype, list[int]] = {}
    for i, t in enumerate(tensors):
        parts.setdefault(t.dtype, []).append(i)
    return list(parts.values())
