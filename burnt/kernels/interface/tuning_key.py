"""The tuning key of a call, and a candidate with its configuration as text."""

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
    from burnt.kernels.interface.candidate import Candidate
    from burnt.kernels.interface.op_protocol import AnyOp

__all__ = ["parse_choice", "runnable_candidates", "source_hash", "tuning_key", "wants_gradient"]


def runnable_candidates(
    op: AnyOp, args: Sequence[Any], broken: dict[str, str] | None = None
) -> list[Candidate]:
    """The candidates that can run for these arguments.

    Args:
        op: the op.
        args: all its arguments.
        broken: where to note those whose limits cannot be used, and why; without it, the first is raised.

    Raises:
        DefinitionError: a limit of a candidate raises, or answers something else than it must.
    """
    found = []
    for candidate in op.candidates.values():
        try:
            able = candidate.why_not(args) is None
            if able and broken is not None and candidate.name not in ("library", "generated"):
                candidate.alternatives(args)
                candidate.is_best(args)
        except DefinitionError as error:
            if broken is None:
                raise
            broken[candidate.name] = f"{error.what}: {error.found}"
        else:
            found += [candidate] if able else []
    return found


def wants_gradient(*args: Any) -> bool:
    """Whether a gradient is wanted for one of the arguments."""
    return torch.is_grad_enabled() and any(isinstance(a, Tensor) and a.requires_grad for a in args)


def format_choice(candidate: Candidate, config: dict[str, Any] | None) -> str:
    """A candidate and its configuration as text: ``generated``, ``mine {"BLOCK": 128}``."""
    return candidate.name if config is None else f"{candidate.name} {json.dumps(config, sort_keys=True)}"


def parse_choice(
    able: Sequence[Candidate], args: Sequence[Any], text: str
) -> tuple[Candidate, dict[str, Any] | None] | None:
    """The candidate and the configuration that `format_choice` made this of; None where they cannot run."""
    for candidate in able:
        rest = text.removeprefix(candidate.name)
        if text.startswith(candidate.name) and rest[:2] in ("", " {"):
            try:
                config = json.loads(rest) if rest else None
            except ValueError:
                continue  # a candidate of another name, or a table that somebody wrote by hand
            if candidate.accepts(config, args):
                return candidate, config
    return None


def tuning_key(op: AnyOp, args: Sequence[Any]) -> str:
    """What a measurement is kept under: two calls with one key are taken to want the same candidate.

    The op and a hash of its sources, the machine and its compiler, gradients, autocast and the precision of
    products, and for each argument its dtype, layout class, alignment and size buckets, or its value.
    """
    tensors = [a for a in args if isinstance(a, Tensor)]
    device = tensors[0].device if tensors else torch.device("cpu")
    parts = [op.name, source_hash(op), machine_name(device.type, device.index or 0)]
    parts.append("training" if wants_gradient(*args) else "inference")
    if _torch.is_autocast():
        parts.append(f"autocast {torch.get_autocast_dtype('cpu')} {torch.get_autocast_dtype('cuda')}")
    if (multiplied := precision()) != "ieee":
        parts.append(multiplied)
    parts += [
        f"{name}={_argument(value)}"
        for name, value in zip(op.positions, args, strict=True)
        if value is not None
    ]
    return "|".join(parts)


def _argument(value: Any) -> str:
    if isinstance(value, float):
        return "float"
    if not isinstance(value, Tensor):
        return str(list(value)) if isinstance(value, tuple) else str(value)
    rows, columns = value.numel() // max(value.shape[-1], 1) if value.dim() else 1, 1
    if value.dim():
        columns = value.shape[-1]
    # On meta and in fakes there is no address.
    aligned = value.device.type != "meta" and value.data_ptr() % 16 == 0
    grad = " grad" if torch.is_grad_enabled() and value.requires_grad else ""
    return (
        f"{str(value.dtype).removeprefix('torch.')} {value.dim()}d {_layout(value)}"
        f"{'' if aligned else ' unaligned'} {bucket(rows)}x{bucket(columns)}{grad}"
    )


def _layout(tensor: Tensor) -> str:
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
    """The size that stands for this one: powers of two, and halfway between them from 32 on.

    >>> [bucket(n) for n in (0, 1, 3, 30, 40, 100, 5000)]
    [0, 1, 4, 32, 48, 128, 6144]
    """
    if size <= 2:
        return size
    whole = 1 << (size - 1).bit_length()
    half = whole * 3 // 4
    return half if whole > 32 and size <= half else whole


def source_hash(op: AnyOp) -> str:
    """A hash of the sources of its reference and of the candidates that somebody registered."""
    texts = [_text(op.reference)]
    texts += [_text(c.call) for c in op.candidates.values() if c.name not in ("library", "generated")]
    return _digest("\n".join(texts))


def _text(fn: Any) -> str:
    try:
        return inspect.getsource(fn)
    except (OSError, TypeError):  # typed in, or made at run time: what was compiled, else its name, has to do
        code = getattr(fn, "__code__", None)
        return repr(getattr(fn, "__qualname__", type(fn))) if code is None else _code_text(code)


def _code_text(code: types.CodeType) -> str:
    """What a function does, as a text that is the same in every process."""
    parts = [code.co_code.hex(), *code.co_names, *code.co_varnames, *code.co_freevars]
    return " ".join([*parts, *map(_constant_text, code.co_consts)])


def _constant_text(value: object) -> str:
    if isinstance(value, types.CodeType):
        return _code_text(value)
    return str(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


@cache
def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def machine_name(kind: str, index: int = 0) -> str:
    """A device and what compiles for it, as far as timings and kernels depend on it."""
    return _cpu(processor()) if kind == "cpu" else _accelerator(kind, index)


@cache
def _cpu(of: Processor) -> str:
    from burnt.codegen.runtime.c_compiler import find_compiler

    compiler = find_compiler()
    made = compiler.version if compiler is not None else "no compiler"
    return f"cpu {of.name} {of.capability}, {torch.get_num_threads()} threads, {made}"


@cache
def _accelerator(kind: str, index: int) -> str:
    if kind == "meta":
        return "meta"
    info = device_info(f"{kind}:{index}" if kind == "cuda" else kind)
    return f"{kind} {info.name} {info.architecture}, {_triton()}"


def _triton() -> str:
    from importlib import metadata

    try:
        return "triton " + ".".join(metadata.version("triton").split(".")[:2])
    except metadata.PackageNotFoundError:
        return "no triton"
