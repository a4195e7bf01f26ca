"""Targets: what a plan is printed for, and how its kernels are built and launched.

A target is chosen by the device of the tensors; `Target.build` turns kernels into source and callables.
Nothing is imported here before it is needed: a Mac has no Triton.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from burnt.codegen import toolchain
from burnt.codegen.ir import Buffer, Check, Kernel
from burnt.codegen.lower.products import why_torch
from burnt.codegen.lower.vendor import torch_is_best
from burnt.codegen.passes import Joins
from burnt.codegen.sizes import Forms, parameters, plain

if TYPE_CHECKING:
    from burnt.codegen.print_metal import Dispatch

__all__ = [
    "BY_DEVICE",
    "METAL",
    "TARGETS",
    "TRITON",
    "Built",
    "C",
    "Target",
    "are_blocks",
    "build_metal",
    "target_of",
    "with_blocks",
]

Launch = Callable[[Sequence[torch.Tensor | None], Sequence[float]], None]


@dataclasses.dataclass(frozen=True)
class Built:
    """Kernels that can run.

    Args:
        source: the text of all of them, for people.
        texts: the text of each.
        launch: for each kernel, a callable of all buffers in their order (None for one that is not there
            yet) and the run-time numbers.
    """

    source: str
    texts: dict[Kernel, str]
    launch: dict[Kernel, Launch]


@dataclasses.dataclass(frozen=True)
class Target:
    """What kernels are printed for.

    Args:
        name: ``"c"``, ``"triton"`` or ``"metal"``.
        build: makes kernels run: ``build(kernels, buffers, numbers)``, the buffers and the positions of
            run-time numbers in the order in which launches get them.
        missing: why it cannot be used on this machine, or None.
        scratch: bytes of local buffers that a turn of a kernel's outer loops may have; 0 where rows are
            kept in registers, or not at all.
        runs: into how many runs of turns a kernel may be cut for sums over turns; 0 where it cannot.
        cuts: whether each pass of a kernel may be cut for all threads. Where not, few long rows are folded in
            kernels of their own.
        joins: from when on folds share a pass with one that they need; None for never.
        torch_is_best: why a node that is lowered is better torch's own call, or None.
        products: why a matrix product is better torch's own call, or None where it is a kernel; None for a
            target that has no such kernels.
        show: the text of each kernel, also where none can be built: ``show(kernels, numbers)``.
    """

    name: str
    build: Callable[[Sequence[Kernel], Sequence[Buffer], Sequence[int]], Built]
    missing: Callable[[], str | None]
    scratch: int = 0
    runs: int = 0
    cuts: bool = False
    joins: Joins | None = None
    torch_is_best: Callable[[torch.fx.Node], str | None] = lambda node: None
    products: Callable[[torch.fx.Node], str | None] | None = None
    show: Callable[[Sequence[Kernel], Sequence[int]], dict[Kernel, str]] = lambda kernels, numbers: {}


def _build_c(kernels: Sequence[Kernel], buffers: Sequence[Buffer], numbers: Sequence[int]) -> Built:
    from burnt.codegen.print_c import print_kernels

    marked = print_kernels(kernels, buffers, numbers)
    general = _forms.is_general(marked)
    pointers = len(buffers) + any(kernel.checks for kernel in kernels)
    source, values = _with_parameters(marked, pointers + len(numbers)) if general else (plain(marked), ())
    library = toolchain.load(toolchain.PREAMBLE + source, [kernel.name for kernel in kernels])

    def launch(kernel: Kernel) -> Launch:
        call = toolchain.launcher(library[kernel.name], pointers=pointers, floats=len(numbers), sizes=values)
        if pointers == len(buffers):
            return lambda memory, given: call(*[0 if t is None else t.data_ptr() for t in memory], *given)
        return _with_checks(call, kernel.checks)

    texts = {kernel: _function(source, kernel.name) for kernel in kernels}
    return Built(source, texts, {kernel: launch(kernel) for kernel in kernels})


def _function(source: str, name: str) -> str:
    """A function of generated C: from its name to the brace that closes it."""
    start = source.index(f"void {name}(")
    return source[start : source.index("\n}\n", start) + 2]


def _with_checks(call: Callable[..., None], checks: Sequence[Check]) -> Launch:
    """A launch that raises what the kernel's checks say."""
    words = ctypes.c_int64 * max(len(checks), 1)

    def launch(memory: Sequence[torch.Tensor | None], given: Sequence[float]) -> None:
        failed = words()
        call(*[0 if t is None else t.data_ptr() for t in memory], ctypes.addressof(failed), *given)
        _raise(checks, failed)

    return launch


def _raise(checks: Sequence[Check], failed: Iterable[int]) -> None:
    """Raise what the first check says that has failed: its word is then not 0."""
    for check, word in zip(checks, failed, strict=False):
        if word:
            raise check.error(word >> 1)


_forms = Forms()


def _with_parameters(marked: str, first: int) -> tuple[str, tuple[int, ...]]:
    """The text with its sizes as arguments from place `first` on, read once at the top of each kernel."""
    texts: list[str] = []
    values: list[int] = []
    for text in re.split(r"(?=^void )", marked, flags=re.M):
        start = len(values)
        text, found = parameters(text, lambda k, start=start: f"n{start + k}")  # type: ignore[misc]
        values += found
        head, brace, body = text.partition("{\n")
        reads = [f"    const int64_t n{k} = a[{first + k}].i;\n" for k in range(start, len(values))]
        texts.append("".join([head, brace, *reads, body]))
    return "".join(texts), tuple(values)


def _show_c(kernels: Sequence[Kernel], numbers: Sequence[int]) -> dict[Kernel, str]:
    from burnt.codegen.print_c import print_kernels

    buffers = dict.fromkeys(b for kernel in kernels for b in (*kernel.read, *kernel.written))
    source = plain(print_kernels(kernels, list(buffers), numbers))
    return {kernel: _function(source, kernel.name) for kernel in kernels}


def _no_compiler() -> str | None:
    return f"no C compiler: {toolchain.why_no_compiler()}" if toolchain.find_compiler() is None else None


# Of the 8 MiB of a thread's stack, and such that a row stays in a core's second cache beside what is read.
_SCRATCH = 1 << 19
# Even for as many threads, and few beside the rows that are summed.
_RUNS = 64

# Measured with one thread. A sum of exponentials alone takes cheaper ones: 1.2 times as fast for rows of 256
# float32, 1.7 times for 32000. Squares are two instructions, and as fast in two passes while all rows are in
# a cache; 1.2 to 1.4 times as fast where they come from memory. Columns: 1.1 to 4 times from 2000 float32 on.
_JOINS = Joins(exp=1 << 9, squares=1 << 14, total=1 << 25, columns=120_000)

C = Target(
    "c",
    _build_c,
    _no_compiler,
    scratch=_SCRATCH,
    runs=_RUNS,
    cuts=True,
    joins=_JOINS,
    torch_is_best=torch_is_best,
    show=_show_c,
)


def build_metal(
    compiled: Callable[[str], Any],
    kernels: Sequence[Kernel],
    buffers: Sequence[Buffer],
    numbers: Sequence[int],
) -> Built:
    """Kernels in Metal.

    Args:
        compiled: makes a library of a source, as `torch.mps.compile_shader` does: its kernels are attributes,
            called with what is bound to their buffers and `threads`, `group_size` and `arg_casts`.
        kernels: what to build.
        buffers: in the order in which launches get them.
        numbers: positions of run-time numbers, in the order in which launches get them.

    Raises:
        UnsupportedError: Metal has no such dtype, or binds fewer buffers.
    """
    from burnt.codegen import prelude_metal
    from burnt.codegen.print_metal import HEAD, print_kernel

    made = {kernel: print_kernel(kernel, numbers) for kernel in kernels}
    general = _forms.is_general("\n".join(d.text for dispatches in made.values() for d in dispatches))
    texts: dict[Dispatch, str] = {}
    sizes: dict[Dispatch, tuple[int, ...]] = {}
    for dispatch in itertools.chain(*made.values()):
        texts[dispatch], sizes[dispatch] = _metal_text(dispatch, general=general)
    body = "\n".join(texts.values())
    library = compiled(f"{HEAD}\n{prelude_metal.source(body)}{body}")
    slots = {buffer: i for i, buffer in enumerate(buffers)}

    def call_of(dispatch: Dispatch) -> Callable[..., None]:
        kernel = getattr(library, dispatch.name)
        places = [slots[m] if isinstance(m, Buffer) else m.name for m in dispatch.memory]
        values = [list(sizes[dispatch])] if sizes[dispatch] else []
        options: dict[str, Any] = {"threads": dispatch.threads, "group_size": dispatch.group}
        if values and not dispatch.wide:
            # torch passes integers with 64 bits, which are slow where 32 do.
            options["arg_casts"] = {len(places) + dispatch.numbers: "int32"}

        def call(
            memory: Sequence[torch.Tensor | None], own: dict[str, torch.Tensor], given: Sequence[float]
        ) -> None:
            tensors = [own[p] if isinstance(p, str) else memory[p] for p in places]
            kernel(*tensors, *([list(given)] if dispatch.numbers else []), *values, **options)

        return call

    def launch(kernel: Kernel, dispatches: Sequence[Dispatch]) -> Launch:
        scratch = {m.name: m for d in dispatches for m in d.memory if not isinstance(m, Buffer)}
        calls = [call_of(dispatch) for dispatch in dispatches]

        def run(memory: Sequence[torch.Tensor | None], given: Sequence[float]) -> None:
            device = next(t.device for t in memory if t is not None)
            own = {
                name: (torch.zeros if m.zeros else torch.empty)(m.count, dtype=m.dtype, device=device)
                for name, m in scratch.items()
            }
            for call in calls:
                call(memory, own, given)
            if kernel.checks:
                # This waits for the device, which is what it takes to raise here and not later.
                _raise(kernel.checks, own["failed"].tolist())

        return run

    whole = {kernel: "\n".join(texts[d] for d in dispatches) for kernel, dispatches in made.items()}
    return Built(body, whole, {kernel: launch(kernel, dispatches) for kernel, dispatches in made.items()})


def _metal_text(dispatch: Dispatch, *, general: bool) -> tuple[str, tuple[int, ...]]:
    """The text of a dispatch, and the sizes that it takes: all of them if it is to be general."""
    if not general:
        return plain(dispatch.text), ()
    text, sizes = parameters(dispatch.text, lambda k: f"n[{k}]")
    if sizes:
        place = len(dispatch.memory) + dispatch.numbers
        parameter = f"    constant {'long' if dispatch.wide else 'int'} *n [[buffer({place})]],\n"
        text = text.replace("    uint3 at ", f"{parameter}    uint3 at ", 1)
    return text, sizes


def _show_metal(kernels: Sequence[Kernel], numbers: Sequence[int]) -> dict[Kernel, str]:
    from burnt.codegen.print_metal import print_kernel

    made = {kernel: print_kernel(kernel, numbers) for kernel in kernels}
    return {kernel: plain("\n".join(d.text for d in ds)).rstrip("\n") for kernel, ds in made.items()}


@functools.cache
def _shader(source: str) -> Any:
    return torch.mps.compile_shader(source)


def _no_metal() -> str | None:
    return None if torch.backends.mps.is_available() else "torch has no Metal device here"


# Twice what is next to a core of Apple's GPUs, or about: this has not been measured.
_JOINS_OF_METAL = Joins(exp=1 << 15, squares=1 << 15, columns=1 << 17)

METAL = Target(
    "metal",
    functools.partial(build_metal, _shader),
    _no_metal,
    joins=_JOINS_OF_METAL,
    show=_show_metal,
)


def _build_triton(
    kernels: Sequence[Kernel],
    buffers: Sequence[Buffer],
    numbers: Sequence[int],
    blocks: Mapping[str, str] | None = None,
) -> Built:
    from burnt.codegen.block_sizes import config_of, pick
    from burnt.codegen.triton_compile import limits_of
    from burnt.codegen.triton_launch import build

    given = {name: config_of(text) for name, text in (blocks or {}).items()}
    if not torch.cuda.is_available():
        return build(kernels, buffers, numbers, blocks=given)
    limits = limits_of(torch.device("cuda", torch.cuda.current_device()))
    return build(kernels, buffers, numbers, choose=lambda form: pick(form, limits), blocks=given)


def with_blocks(blocks: Mapping[str, str]) -> Target:
    """Triton, with block sizes of its own for kernels of these names: ``{"softmax_0": "1x2048 w8"}``.

    Raises:
        ValueError: when it builds: a text names no block sizes.
    """
    return dataclasses.replace(TRITON, build=functools.partial(_build_triton, blocks=dict(blocks)))


def are_blocks(blocks: Mapping[Any, Any]) -> bool:
    """Whether something that was read from a table or a file is what `with_blocks` takes.

    >>> are_blocks({"softmax_0": "1x2048 w8"}), are_blocks({"softmax_0": "1x3"}), are_blocks({"BLOCK": 64})
    (True, False, False)
    """
    from burnt.codegen.block_sizes import config_of

    try:
        return all(
            isinstance(name, str) and isinstance(text, str) and bool(config_of(text))
            for name, text in blocks.items()
        )
    except ValueError:
        return False


def _show_triton(kernels: Sequence[Kernel], numbers: Sequence[int]) -> dict[Kernel, str]:
    from burnt.codegen.block_sizes import pick
    from burnt.codegen.print_triton import form_of, print_kernel

    return {kernel: print_kernel(kernel, pick(form_of(kernel))).text.rstrip("\n") for kernel in kernels}


def _no_triton() -> str | None:
    try:
        import triton  # noqa: F401 - Linux alone has it
    except ImportError as error:
        return f"no Triton: {error}"
    return None


# Of a row that is held whole, the printer makes two passes of it again.
TRITON = Target("triton", _build_triton, _no_triton, joins=Joins(), products=why_torch, show=_show_triton)


TARGETS = {target.name: target for target in (C, TRITON, METAL)}
BY_DEVICE = {"cpu": C, "cuda": TRITON, "mps": METAL}


def target_of(device: torch.device) -> Target | str:
    """The target for tensors of a device, or why there is none."""
    target = BY_DEVICE.get(device.type)
    if target is None:
        return f"a tensor on {device}: kernels are printed for {', '.join(BY_DEVICE)} only"
    return target.missing() or target
