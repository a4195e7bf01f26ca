"""The candidate ``flash`` of attention: launches the kernels of `flash_triton`, with gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from burnt import _torch
from burnt.codegen.backward import grad_by_torch
from burnt.codegen.precision import dot_precision, precision
from burnt.codegen.runtime.targets import target_of
from burnt.kernels.interface.tuning_key import wants_gradient
from burnt.kernels.ops.attention.flash_config import KERNELS, FlashConfig, configs
from burnt.kernels.ops.attention.reference import dot_product_attention, intervals, is_torchs

if TYPE_CHECKING:
    from burnt.codegen.runtime.triton_compile_pool import Job
    from burnt.kernels.ops.attention.flash_triton import Problem


_MAX_HEAD_SIZE = 256


def make_problem(
    q: Tensor,
    k: Tensor,
    mask: Tensor | None = None,
    before: int | None = None,
    after: int | None = None,
    bottom_right: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    slopes: Tensor | None = None,
    lengths: Tensor | None = None,
    q_starts: Tensor | None = None,
    k_starts: Tensor | None = None,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> Problem:
    """Convert the op's arguments to the kernels' `Problem`."""
    from burnt.kernels.ops.attention import flash_triton as kernels

    shift = k.shape[2] - q.shape[2] if bottom_right else 0
    score, score_grad = None, None
    if softcap is not None:
        score, score_grad = kernels.softcap_score, kernels.softcap_score_grad
    if slopes is not None:
        score = kernels.alibi_score if softcap is None else kernels.softcap_alibi_score
        score_grad = score_grad or kernels.unit_score_grad
    tables = None
    if lengths is not None or q_starts is not None:
        tables = interval_tables(q, k, before, after, bottom_right, lengths, q_starts, k_starts)
    if mask is not None:
        mask = mask.detach().expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    return kernels.Problem(
        scale=q.shape[3] ** -0.5 if scale is None else scale,
        low=None if before is None or tables is not None else shift - before,
        high=None if after is None or tables is not None else shift + after + 1,
        tables=tables,
        mask=mask,
        score=score,
        score_grad=score_grad,
        args=(0,) if score is None else (softcap or 1.0, q if slopes is None else slopes.detach(), shift),
        dropout=dropout,
        seed=seed,
        # Scores need more precision than bfloat16.
        precision=dot_precision(
            "tf32" if (matmul_precision := precision()) == "flex32" else matmul_precision
        ),
    )


def interval_tables(q: Tensor, k: Tensor, *limits: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the interval of keys that each query sees, and the interval of queries that see each key.

    Args:
        q: ``[B, H, L, D]``.
        k: ``[B, K, S, D]``.
        limits: the other arguments of `intervals`.

    Returns:
        Begin and end of the keys, ``[B or 1, L]``, and begin and end of the queries, ``[B or 1, S]``; int32.
    """
    _, begin, end = (t.contiguous() for t in intervals(q, k, *limits))
    # Both bounds are non-decreasing in the query, so the queries that see key j are an interval too.
    key = torch.arange(k.shape[2], device=k.device).expand(len(begin), -1).contiguous()
    return (
        begin.to(torch.int32),
        end.to(torch.int32),
        torch.searchsorted(end, key, right=True, out_int32=True),
        torch.searchsorted(begin, key, right=True, out_int32=True),
    )


class FlashAttention(torch.autograd.Function):
    """The autograd function; it saves q, k, v, the output and the logsumexp of each query."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        problem: Problem,
        blocks: Mapping[str, FlashConfig],
        eager: Any,
    ) -> Tensor:
        """Run the forward kernel. `eager` is the same function of q, k and v in eager torch."""
        from burnt.kernels.ops.attention import flash_triton as kernels

        out, lse = kernels.forward(q, k, v, problem, blocks)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.problem, ctx.blocks, ctx.eager = problem, blocks, eager
        return out

    @staticmethod
    @_torch.kernel_backward
    def backward(ctx: Any, grad_out: Tensor) -> Any:
        """Run the backward kernels; second derivatives are those of `eager`."""
        from burnt.kernels.ops.attention import flash_triton as kernels

        q, k, v, out, lse = ctx.saved_tensors
        needs_grad = ctx.needs_input_grad[:3]
        if not _torch.is_plain_backward():
            return (*grad_by_torch(ctx.eager, (q, k, v), needs_grad, (grad_out,)), None, None, None)
        grads = kernels.backward(
            unit_last_stride(grad_out),
            q,
            k,
            v,
            out,
            lse,
            ctx.problem,
            ctx.blocks,
            (needs_grad[0], needs_grad[1] or needs_grad[2]),
        )
        return (
            *(g if needed else None for g, needed in zip(grads, needs_grad, strict=True)),
            None,
            None,
            None,
        )


def unit_last_stride(tensor: Tensor) -> Tensor:
    """Return the tensor, copied if its last stride is not 1."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _unsupported_reason(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> str | None:
    target = target_of(q.device)
    if isinstance(target, str):
        return target
    return unsupported_reason(q, k, v, *rest)


def unsupported_reason(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> str | None:
    """Return why the kernels do not support a call, whatever the device; None if they do."""
    mask, _, _, bottom_right, _, _, slopes, lengths, q_starts, *_ = rest
    if 0 in (q.numel(), k.numel(), v.numel()):
        return "an empty tensor"
    if max(q.shape[3], v.shape[3]) > _MAX_HEAD_SIZE:
        return f"a head size above {_MAX_HEAD_SIZE}"
    if wants_gradient(mask, slopes):
        return "mask or slopes require a gradient"
    if slopes is not None and (q_starts is not None or (lengths is not None and bottom_right)):
        return "slopes with packed sequences, or with lengths and bottom_right"
    return None


def _configs(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Sequence[dict[str, str]]:
    softcap, slopes = rest[5:7]
    return candidate_configs(q, k, v, rest[0], has_score=softcap is not None or slopes is not None)


def candidate_configs(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, has_score: bool
) -> list[dict[str, str]]:
    """Return the block sizes worth measuring on the tensors' device.

    Args:
        q: ``[B, H, L, D]``.
        k: ``[B, K, S, D]``.
        v: ``[B, K, S, E]``.
        mask: as in the op.
        has_score: whether there is a score function.
    """
    from burnt.codegen.runtime.triton_compile_pool import limits_of

    kernels = ["forward"]
    if wants_gradient(q, k, v):
        kernels += ["keys"] * (k.requires_grad or v.requires_grad) + ["queries"] * q.requires_grad
    has_additive_mask = mask is not None and mask.dtype != torch.bool
    width = max(q.shape[3], v.shape[3])
    return configs(
        width,
        q.element_size(),
        limits_of(q.device),
        kernels,
        has_additive_mask=has_additive_mask,
        has_score=has_score,
    )


def _start_compiling(
    config: Mapping[str, str], q: Tensor, k: Tensor, v: Tensor, *rest: Any
) -> Future[None] | None:
    from burnt.codegen.runtime.triton_compile_pool import pool_of

    jobs = compile_jobs({name: FlashConfig.of(config[name]) for name in KERNELS}, q, k, v, *rest)
    return pool_of(torch.cuda.current_device() if q.device.index is None else q.device.index).submit_once(
        jobs
    )


def compile_jobs(blocks: Mapping[str, FlashConfig], q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> list[Job]:
    """Return the compile jobs for all launches of a call, including its backward if inputs require gradients.

    Args:
        blocks: block sizes of all kernels.
        q: as in `flash_attention`.
        k: as in `flash_attention`.
        v: as in `flash_attention`.
        rest: the op's other arguments.
    """
    from burnt.codegen.runtime.triton_compile_pool import job_of
    from burnt.kernels.ops.attention import flash_triton as kernels

    needs_grad = (q.requires_grad, k.requires_grad or v.requires_grad)
    problem = make_problem(q, k, *rest)
    # On the meta device: nothing is allocated for the results.
    inputs = [unit_last_stride(t.detach()) for t in (q, k, v)]
    meta_inputs = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta") for t in inputs]
    launches = kernels.launches(
        meta_inputs[0],
        meta_inputs[1],
        meta_inputs[2],
        problem,
        blocks,
        gradients=wants_gradient(q, k, v),
        needs_grad=needs_grad,
    )
    return [
        job_of(launch.kernel, launch.arguments, launch.constants, launch.options)
        for launch in launches.values()
    ]


@dot_product_attention.candidate(
    "flash",
    devices=["cuda"],
    dtypes=[torch.float16, torch.bfloat16, torch.float32],
    when=_unsupported_reason,
    best=lambda *args: not is_torchs(*args),  # torch's take 0.7 times as long on an H100
    configs=_configs,
    compiles=_start_compiling,
    differentiable=True,
)
def _(*args: Any, config: Mapping[str, str]) -> Tensor:
    return flash_attention(*args, blocks={name: FlashConfig.of(config[name]) for name in KERNELS})


def flash_attention(
    q: Tensor, k: Tensor, v: Tensor, *rest: Any, blocks: Mapping[str, FlashConfig], **options: Any
) -> Tensor:
    """Compute `dot_product_attention` with the Triton kernels.

    Args:
        q: ``[B, H, L, D]``, float16, bfloat16 or float32; q, k and v must not be empty.
        k: ``[B, K, S, D]``.
        v: ``[B, K, S, E]``.
        rest: the op's other arguments.
        blocks: block sizes of all kernels.
        options: the op's other arguments, by name.
    """
    from burnt.kernels.ops.attention import flash_triton as kernels

    problem = make_problem(q, k, *rest, **options)
    q, k, v = unit_last_stride(q), unit_last_stride(k), unit_last_stride(v)
    if not wants_gradient(q, k, v):
        return kernels.forward(q, k, v, problem, blocks)[0]

    def eager(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return dot_product_attention.reference(q, k, v, *rest, **options)

    return FlashAttention.apply(  # type: ignore[no-any-return, no-untyped-call]
        q, k, v, problem, blocks, eager
    )
