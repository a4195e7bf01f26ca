"""The candidate ``flash`` of attention: the kernels of `flash_triton`, with gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from burnt import _torch
from burnt.codegen.precision import dot_precision, precision
from burnt.codegen.runtime.targets import target_of
from burnt.kernels.interface.tuning_key import wants_gradient
from burnt.kernels.ops.attention.flash_config import KERNELS, FlashConfig, configs
from burnt.kernels.ops.attention.reference import dot_product_attention, intervals

if TYPE_CHECKING:
    from burnt.codegen.runtime.triton_compile_pool import Job
    from burnt.kernels.ops.attention.flash_triton import Problem

__all__ = [
    "Flash",
    "configs_of",
    "dense",
    "flash",
    "jobs_of",
    "problem_of",
    "tables_of",
    "unsupported_reason",
]

_MOST = 256  # of a head's size


def problem_of(
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
    """What the kernels are told, of the op's arguments."""
    from burnt.kernels.ops.attention import flash_triton as kernels

    shift = k.shape[2] - q.shape[2] if bottom_right else 0
    score, slope = None, None
    if softcap is not None:
        score, slope = kernels.capped, kernels.capped_slope
    if slopes is not None:
        score = kernels.sloped if softcap is None else kernels.capped_sloped
        slope = slope or kernels.one
    tables = None
    if lengths is not None or q_starts is not None:
        tables = tables_of(q, k, before, after, bottom_right, lengths, q_starts, k_starts)
    if mask is not None:
        mask = mask.detach().expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    return kernels.Problem(
        scale=q.shape[3] ** -0.5 if scale is None else scale,
        low=None if before is None or tables is not None else shift - before,
        high=None if after is None or tables is not None else shift + after + 1,
        tables=tables,
        mask=mask,
        score=score,
        slope=slope,
        args=(0,) if score is None else (softcap or 1.0, q if slopes is None else slopes.detach(), shift),
        dropout=dropout,
        seed=seed,
        # Scores are too sensitive for the precision of bfloat16.
        precision=dot_precision("tf32" if (multiplied := precision()) == "flex32" else multiplied),
    )


def tables_of(q: Tensor, k: Tensor, *limits: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """From where to where each query sees, and from where to where the queries are that see each key.

    Args:
        q: ``[B, H, L, D]``.
        k: ``[B, K, S, D]``.
        limits: the rest of what `intervals` is given.

    Returns:
        ``[B or 1, L]``, twice, and ``[B or 1, S]``, twice, int32.
    """
    _, first, past = (t.contiguous() for t in intervals(q, k, *limits))
    # Both ends grow with the query: those that see key j are those that end after it, and have begun.
    key = torch.arange(k.shape[2], device=k.device).expand(len(first), -1).contiguous()
    return (
        first.to(torch.int32),
        past.to(torch.int32),
        torch.searchsorted(past, key, right=True, out_int32=True),
        torch.searchsorted(first, key, right=True, out_int32=True),
    )


class Flash(torch.autograd.Function):
    """Attention in the autograd graph; it keeps its arguments, its results and a number for each query."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        problem: Problem,
        blocks: Mapping[str, FlashConfig],
        plain: Any,
    ) -> Tensor:
        """Run the kernel. `plain` is the same of queries, keys and values in plain torch."""
        from burnt.kernels.ops.attention import flash_triton as kernels

        out, lse = kernels.forward(q, k, v, problem, blocks)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.problem, ctx.blocks, ctx.plain = problem, blocks, plain
        return out

    @staticmethod
    @_torch.without_autocast()
    def backward(ctx: Any, pull: Tensor) -> Any:
        """Run its kernels; for second derivatives, those of the definition."""
        from burnt.kernels.ops.attention import flash_triton as kernels

        q, k, v, out, lse = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():
            inputs = [t for t, w in zip((q, k, v), wanted, strict=True) if w]
            found = iter(torch.autograd.grad(ctx.plain(q, k, v), inputs, pull, create_graph=True))
            return (*(next(found) if w else None for w in wanted), None, None, None)
        made = kernels.backward(
            dense(pull), q, k, v, out, lse, ctx.problem, ctx.blocks, (wanted[0], wanted[1] or wanted[2])
        )
        return (*(g if w else None for g, w in zip(made, wanted, strict=True)), None, None, None)


def dense(tensor: Tensor) -> Tensor:
    """The tensor, the elements of a head next to each other."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _why_not(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> str | None:
    target = target_of(q.device)
    if isinstance(target, str):
        return target
    return unsupported_reason(q, k, v, *rest)


def unsupported_reason(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> str | None:
    """Why the kernels cannot compute it, wherever they would run."""
    mask, _, _, bottom_right, _, _, slopes, lengths, q_starts, *_ = rest
    if 0 in (q.numel(), k.numel(), v.numel()):
        return "an empty tensor"
    if max(q.shape[3], v.shape[3]) > _MOST:
        return f"heads of more than {_MOST}"
    if wants_gradient(mask, slopes):
        return "a gradient of mask or slopes is wanted"
    if slopes is not None and (q_starts is not None or (lengths is not None and bottom_right)):
        return "slopes, whose distances are counted anew for each sequence"
    return None


def _configs(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Sequence[dict[str, str]]:
    softcap, slopes = rest[5:7]
    return configs_of(q, k, v, rest[0], scored=softcap is not None or slopes is not None)


def configs_of(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, scored: bool) -> list[dict[str, str]]:
    """Block sizes worth measuring on the device of these.

    Args:
        q: ``[B, H, L, D]``.
        k: ``[B, K, S, D]``.
        v: ``[B, K, S, E]``.
        mask: the op's.
        scored: whether there is a function of the scores.
    """
    from burnt.codegen.runtime.triton_compile_pool import limits_of

    kernels = ["forward"]
    if wants_gradient(q, k, v):
        kernels += ["keys"] * (k.requires_grad or v.requires_grad) + ["queries"] * q.requires_grad
    added = mask is not None and mask.dtype != torch.bool
    width = max(q.shape[3], v.shape[3])
    return configs(width, q.element_size(), limits_of(q.device), kernels, added=added, scored=scored)


def _compiles(config: Mapping[str, str], q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Future[None] | None:
    from burnt.codegen.runtime.triton_compile_pool import pool_of

    jobs = jobs_of({name: FlashConfig.of(config[name]) for name in KERNELS}, q, k, v, *rest)
    return pool_of(torch.cuda.current_device() if q.device.index is None else q.device.index).submit_once(
        jobs
    )


def jobs_of(blocks: Mapping[str, FlashConfig], q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> list[Job]:
    """What `flash` launches for these arguments, and its backward where they want gradients, to be compiled.

    Args:
        blocks: block sizes of all kernels.
        q: as in `flash`.
        k: keys.
        v: values.
        rest: the op's other arguments.
    """
    from burnt.codegen.runtime.triton_compile_pool import job_of
    from burnt.kernels.ops.attention import flash_triton as kernels

    wanted = (q.requires_grad, k.requires_grad or v.requires_grad)
    problem = problem_of(q, k, *rest)
    # Without memory: nothing is allocated for results.
    shapes = [dense(t.detach()) for t in (q, k, v)]
    given = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta") for t in shapes]
    launches = kernels.launches(
        given[0], given[1], given[2], problem, blocks, gradients=wants_gradient(q, k, v), wanted=wanted
    )
    return [
        job_of(launch.kernel, launch.arguments, launch.constants, launch.options)
        for launch in launches.values()
    ]


@dot_product_attention.candidate(
    "flash",
    devices=["cuda"],
    dtypes=[torch.float16, torch.bfloat16, torch.float32],
    when=_why_not,
    configs=_configs,
    compiles=_compiles,
    differentiable=True,
)
def _(*args: Any, config: Mapping[str, str]) -> Tensor:
    return flash(*args, blocks={name: FlashConfig.of(config[name]) for name in KERNELS})


def flash(
    q: Tensor, k: Tensor, v: Tensor, *rest: Any, blocks: Mapping[str, FlashConfig], **options: Any
) -> Tensor:
    """`dot_product_attention` by Triton's kernels.

    Args:
        q: ``[B, H, L, D]``, float16, bfloat16 or float32; none of the three is empty.
        k: ``[B, K, S, D]``.
        v: ``[B, K, S, E]``.
        rest: the op's other arguments.
        blocks: block sizes of all kernels.
        options: the op's other arguments, by name.
    """
    from burnt.kernels.ops.attention import flash_triton as kernels

    problem = problem_of(q, k, *rest, **options)
    q, k, v = dense(q), dense(k), dense(v)
    if not wants_gradient(q, k, v):
        return kernels.forward(q, k, v, problem, blocks)[0]

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return dot_product_attention.reference(q, k, v, *rest, **options)

    return Flash.apply(q, k, v, problem, blocks, plain)  # type: ignore[no-any-return, no-untyped-call]
