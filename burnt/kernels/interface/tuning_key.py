"""The tuning key of a call, and the text form of a candidate with its configuration."""

from __future__ import annotations

import hashlib
import inspect
import json
import types
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from burnt import _torch
from burnt.codegen.precision import precision
from burnt.device import Processor, device_info, processor
from burnt.errors import DefinitionError

if TYPE_CHECKING:
    from burnt.kernels.interface.candidate import AnyOp, Candidate


def runnable_candidates(
    op: AnyOp, args: Sequence[Any], broken: dict[str, str] | None = None
) -> list[Candidate]:
    """Return the candidates that can run with these arguments.

    A candidate with an invalid ``when=``, ``configs=`` or ``best=`` is skipped and its error message added to
    `broken`; if that is None, the `DefinitionError` is raised.
    """
    runnable = []
    for candidate in op.candidates.values():
        try:
            can_run = candidate.why_not(args) is None
            if can_run and broken is not None and candidate.name not in ("library", "generated"):
                candidate.alternatives(args)
                candidate.is_best(args)
        except DefinitionError as error:
            if broken is None:
                raise
            broken[candidate.name] = f"{error.what}: {error.found}"
        else:
            runnable += [candidate] if can_run else []
    return runnable


def wants_gradient(*args: Any) -> bool:
    """Whether a gradient is required for any of the arguments."""
    return torch.is_grad_enabled() and any(isinstance(a, Tensor) and a.requires_grad for a in args)


def format_choice(candidate: Candidate, config: dict[str, Any] | None) -> str:
    """Format a candidate and its configuration: ``generated``, ``mine {"BLOCK": 128}``."""
    return candidate.name if config is None else f"{candidate.name} {json.dumps(config, sort_keys=True)}"


def parse_choice(
    candidates: Sequence[Candidate], args: Sequence[Any], text: str
) -> tuple[Candidate, dict[str, Any] | None] | None:
    """Parse the output of `format_choice`; return None if the candidate cannot run this configuration."""
    for candidate in candidates:
        rest = text.removeprefix(candidate.name)
        if text.startswith(candidate.name) and rest[:2] in ("", " {"):
            try:
                config = json.loads(rest) if rest else None
            except ValueError:
                continue  # a candidate with a longer name, or a table edited by hand
            if candidate.accepts(config, args):
                return candidate, config
    return None


def tuning_key(op: AnyOp, args: Sequence[Any]) -> str:
    """Return the key under which measurements are stored; calls with the same key use the same candidate.

    It consists of the op and a hash of its sources, the machine and its compiler, whether gradients are
    required, autocast, the matmul precision, and for each argument its dtype, layout, alignment and size
    buckets, or its value.
    """
    tensors = [a for a in args if isinstance(a, Tensor)]
    device = tensors[0].device if tensors else torch.device("cpu")
    parts = [op.name, source_hash(op), machine_name(device.type, device.index or 0)]
    parts.append("training" if wants_gradient(*args) else "inference")
    if _torch.is_autocast():
        parts.append(f"autocast {torch.get_autocast_dtype('cpu')} {torch.get_autocast_dtype('cuda')}")
    if (matmul_precision := precision()) != "ieee":
        parts.append(matmul_precision)
    parts += [
        f"{name}={_format_argument(value)}"
        for name, value in zip(op.positions, args, strict=True)
        if value is not None
    ]
    return "|".join(parts)


def _format_argument(value: Any) -> str:
    if isinstance(value, float):
        return "float"
    if not isinstance(value, Tensor):
        return str(list(value)) if isinstance(value, tuple) else str(value)
    rows, columns = value.numel() // max(value.shape[-1], 1) if value.dim() else 1, 1
    if value.dim():
        columns = value.shape[-1]
    # Meta and fake tensors have no address.
    aligned = value.device.type != "meta" and value.data_ptr() % 16 == 0
    grad = " grad" if torch.is_grad_enabled() and value.requires_grad else ""
    return (
        f"{str(value.dtype).removeprefix('torch.')} {value.dim()}d {_layout_name(value)}"
        f"{'' if aligned else ' unaligned'} {bucket(rows)}x{bucket(columns)}{grad}"
    )


def _layout_name(tensor: Tensor) -> str:
    if tensor.is_contiguous():
        return "row"
    if tensor.dim() in (4, 5) and tensor.is_contiguous(
        memory_format=torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d
    ):
        return "channels last"
    if tensor.dim() >= 2 and tensor.transpose(-1, -2).is_contiguous():
        return "column"
    return "expanded" if 0 in tensor.stride() else "strided"


def bucket(size: int) -> int:
    """Round a size up to its bucket: a power of two or, above 32, halfway between two powers of two.

    >>> [bucket(n) for n in (0, 1, 3, 30, 40, 100, 5000)]
    [0, 1, 4, 32, 48, 128, 6144]
    """
    if size <= 2:
        return size
    power_of_two = 1 << (size - 1).bit_length()
    halfway = power_of_two * 3 // 4
    return halfway if power_of_two > 32 and size <= halfway else power_of_two


def source_hash(op: AnyOp) -> str:
    """Return a hash of the sources of the op's reference and of the candidates registered by users."""
    texts = [_source_text(op.reference)]
    texts += [_source_text(c.call) for c in op.candidates.values() if c.name not in ("library", "generated")]
    return _digest("\n".join(texts))


def _source_text(fn: Any) -> str:
    try:
        return inspect.getsource(fn)
    except (OSError, TypeError):  # no source file: use the bytecode, else the name
        code = getattr(fn, "__code__", None)
        return repr(getattr(fn, "__qualname__", type(fn))) if code is None else _code_text(code)


def _code_text(code: types.CodeType) -> str:
    """Return bytecode, names and constants as text that is the same in every process."""
    names = [*code.co_names, *code.co_varnames, *code.co_freevars]
    return " ".join([code.co_code.hex(), *names, *map(_constant_text, code.co_consts)])


def _constant_text(value: object) -> str:
    if isinstance(value, types.CodeType):
        return _code_text(value)
    # A set's order differs between processes: `x in {"a", "b"}` has one as a constant.
    return str(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


@cache
def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def machine_name(kind: str, index: int = 0) -> str:
    """Return the name of a device and of its compiler, as far as timings and kernels depend on them."""
    if kind == "cpu":
        return _cpu_key_text(processor(), torch.get_num_threads())
    return _accelerator_name(kind, index)


@cache
def _cpu_key_text(cpu: Processor, threads: int) -> str:
    from burnt.codegen.runtime.c_compiler import find_compiler

    compiler = find_compiler()
    compiler_version = compiler.version if compiler is not None else "no compiler"
    return f"cpu {cpu.name} {cpu.capability}, {threads} threads, {compiler_version}"


@cache
def _accelerator_name(kind: str, index: int) -> str:
    if kind == "meta":
        return "meta"
    info = device_info(f"{kind}:{index}" if kind == "cuda" else kind)
    return f"{kind} {info.name} {info.architecture}, {_triton_version()}"


def _triton_version() -> str:
    from importlib import metadata

    try:
        return "triton " + ".".join(metadata.version("triton").split(".")[:2])
    except metadata.PackageNotFoundError:
        return "no triton"
