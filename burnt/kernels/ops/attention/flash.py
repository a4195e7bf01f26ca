"""The candidate ``flash`` of attention: launches the kernels of `flash_triton`, with gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from burnt.codegen.precision import dot_precision, precision
from burnt.codegen.runtime.targets import target_of
from burnt.kernels.interface.launch import Launch, bind_launches, compile_all, on_meta, run_all
from burnt.kernels.interface.tuning_key import wants_gradient
from burnt.kernels.ops.attention.flash_config import KERNELS, FlashConfig, configs
from burnt.kernels.ops.attention.reference import Options, dot_product_attention, intervals, run_candidate

if TYPE_CHECKING:
    from burnt.kernels.ops.attention.flash_triton import Problem


_MAX_HEAD_SIZE = 256
Blocks = Mapping[str, FlashConfig]


def make_problem(q: Tensor, k: Tensor, *rest: Any, **keyword_options: Any) -> Problem:
    """Convert the op's arguments to the kernels' `Problem`."""
    from burnt.kernels.ops.attention import flash_triton as kernels

    options = Options(*rest, **keyword_options)
    mask, before, after, _, _, softcap, slopes, *_ = options
    shift = k.shape[2] - q.shape[2] if options.bottom_right else 0
    score, score_grad = None, None
    if softcap is not None:
        score, score_grad = kernels.softcap_score, kernels.softcap_score_grad
    if slopes is not None:
        score = kernels.alibi_score if softcap is None else kernels.softcap_alibi_score
        score_grad = score_grad or kernels.unit_score_grad
    tables = None
    if options.lengths is not None or options.q_starts is not None:
        tables = interval_tables(q, k, options)
    if mask is not None:
        mask = mask.detach().expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    return kernels.Problem(
        scale=q.shape[3] ** -0.5 if options.scale is None else options.scale,
        low=None if before is None or tables is not None else shift - before,
        high=None if after is None or tables is not None else shift + after + 1,
        tables=tables,
        mask=mask,
        score=score,
        score_grad=score_grad,
        args=(0,) if score is None else (softcap or 1.0, q if slopes is None else slopes.detach(), shift),
        dropout=options.dropout,
        seed=options.seed,
        precision=_precision(),
    )


def _precision() -> str:
    """Return the precision of products now; scores need more than bfloat16's."""
    return dot_precision("tf32" if (name := precision()) == "flex32" else name)


def interval_tables(q: Tensor, k: Tensor, options: Options) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return begin and end of the keys that each query sees, and of the queries that see each key.

    These are ``[B or 1, L]`` and ``[B or 1, S]``; int32.
    """
    _, begin, end = (t.contiguous() for t in intervals(q, k, options))
    # Both bounds are non-decreasing in the query, so the queries that see key j are an interval too.
    key = torch.arange(k.shape[2], device=k.device).expand(len(begin), -1).contiguous()
    return (
        begin.to(torch.int32),
        end.to(torch.int32),
        torch.searchsorted(end, key, right=True, out_int32=True),
        torch.searchsorted(begin, key, right=True, out_int32=True),
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
    options = Options(*rest)
    slopes = options.slopes
    if 0 in (q.numel(), k.numel(), v.numel()):
        return "an empty tensor"
    if max(q.shape[3], v.shape[3]) > _MAX_HEAD_SIZE:
        return f"a head size above {_MAX_HEAD_SIZE}"
    if wants_gradient(options.mask, slopes):
        return "mask or slopes require a gradient"
    aligned_late = options.lengths is not None and options.bottom_right
    if slopes is not None and (options.q_starts is not None or aligned_late):
        return "slopes with packed sequences, or with lengths and bottom_right"
    return None


def _configs(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Sequence[dict[str, str]]:
    return candidate_configs(q, k, v, Options(*rest))


def candidate_configs(q: Tensor, k: Tensor, v: Tensor, options: Options) -> list[dict[str, str]]:
    """Return the block sizes worth measuring on the tensors' device."""
    from burnt.codegen.runtime.triton_compile_pool import limits_of

    kernels = ["forward"]
    if wants_gradient(q, k, v):
        kernels += ["keys"] * (k.requires_grad or v.requires_grad) + ["queries"] * q.requires_grad
    mask, scores = options.mask, (options.softcap, options.slopes, options.score)
    has_score = any(score is not None for score in scores)
    if len(kernels) == 3 and mask is None and options.seed is None and not has_score:
        kernels.append("both")
    return configs(
        max(q.shape[3], v.shape[3]),
        q.element_size(),
        limits_of(q.device),
        kernels,
        has_additive_mask=mask is not None and mask.dtype != torch.bool,
        has_score=has_score,
    )


def _start_compiling(config: Mapping[str, str], q: Tensor, *rest: Any) -> Future[None]:
    return compile_all(call_launches(parse_blocks(config), q, *rest), q.device)


def call_launches(blocks: Blocks, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> list[Launch]:
    """Return all launches of a call, including its backward if inputs require gradients, to compile them."""
    from burnt.kernels.ops.attention import flash_triton as kernels

    problem, needs_grad = make_problem(q, k, *rest), (q.requires_grad, k.requires_grad or v.requires_grad)
    q_meta, k_meta, v_meta = on_meta(*(unit_last_stride(t.detach()) for t in (q, k, v)))
    gradients = wants_gradient(q, k, v)
    launches = kernels.launches(
        q_meta, k_meta, v_meta, problem, blocks, gradients=gradients, needs_grad=needs_grad
    )
    return list(launches.values())


def _bind(config: Mapping[str, str], *given: Any) -> Callable[..., Tensor] | None:
    """Return a call for arguments like these, whose launches are built once, those of the backward too.

    A backward in one pass is not bound: torch clears and converts its dq.
    """
    from burnt.kernels.ops.attention import flash_triton as kernels

    blocks, device, needs_gradient = parse_blocks(config), given[0].device, wants_gradient(*given[:3])
    first_precision = _precision()

    def run_forward(*args: Any, run: Any) -> Any:
        q, k, v = map(unit_last_stride, args[:3])
        problem = make_problem(q, k, *args[3:])._replace(precision=first_precision)
        results = kernels.forward(q, k, v, problem, blocks, run)
        return results if needs_gradient else results[0]

    def run_backward(needed: tuple[bool, ...], *args: Any, run: Any = run_all) -> Any:
        problem = make_problem(*args[1:3], *args[6:])._replace(precision=first_precision)
        return kernels.backward(*args[:6], problem, blocks, needed, run)  # type: ignore[call-arg]

    def collect(compute: Callable[..., Any], *args: Any) -> Any:
        launches = list[Launch]()
        return launches, compute(*args, run=lambda found, _: launches.extend(found))

    forward = bind_launches(functools.partial(collect, run_forward), given, device)
    if forward is None or not needs_gradient:
        return forward
    backwards: dict[Any, Callable[..., Any]] = {}

    def call(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
        def backward(grad_out: Tensor, *saved: Any) -> Any:
            args = (unit_last_stride(grad_out), *saved[:5], *rest)
            # Hooks of saved tensors may return them with other strides.
            key = saved[5], torch.are_deterministic_algorithms_enabled(), *(t.stride() for t in args[:6])
            if key not in backwards:
                run = functools.partial(run_backward, saved[5])
                backwards[key] = bind_launches(functools.partial(collect, run), args, device) or run
            return backwards[key](*args)

        def eager(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return dot_product_attention.reference(q, k, v, *rest)

        return run_candidate(q, k, v, lambda *tensors: forward(*tensors, *rest), backward, eager)

    return call


def parse_blocks(config: Mapping[str, str]) -> dict[str, FlashConfig]:
    """Parse the block sizes of each kernel from a configuration."""
    return {name: FlashConfig.of(config[name]) for name in KERNELS if name in config}


@dot_product_attention.candidate(
    "flash",
    devices=["cuda"],
    dtypes=[torch.float16, torch.bfloat16, torch.float32],
    when=_unsupported_reason,
    best=lambda q, k, v, *rest: not Options(*rest).is_torchs(q, k),  # torch's take 0.7 of the time on an H100
    configs=_configs,
    compiles=_start_compiling,
    binds=_bind,
    differentiable=True,
)
def _(*args: Any, config: Mapping[str, str]) -> Tensor:
    return flash_attention(*args, blocks=parse_blocks(config))


def flash_attention(q: Tensor, k: Tensor, v: Tensor, *rest: Any, blocks: Blocks, **options: Any) -> Tensor:
    """Compute `dot_product_attention` with the Triton kernels; q, k and v must not be empty."""

    def eager(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return dot_product_attention.reference(q, k, v, *rest, **options)

    return run_flash(q, k, v, make_problem(q, k, *rest, **options), blocks, eager)


def run_flash(
    q: Tensor, k: Tensor, v: Tensor, problem: Problem, blocks: Blocks, eager: Callable[..., Tensor]
) -> Tensor:
    """Compute a problem with the Triton kernels; `eager` is the same in eager torch."""
    from burnt.kernels.ops.attention import flash_triton as kernels

    def backward(grad_out: Tensor, *saved: Any) -> Any:
        return kernels.backward(unit_last_stride(grad_out), *saved[:5], problem, blocks, saved[5])  # type: ignore[call-arg]

    q, k, v = map(unit_last_stride, (q, k, v))
    return run_candidate(q, k, v, lambda q, k, v: kernels.forward(q, k, v, problem, blocks), backward, eager)
