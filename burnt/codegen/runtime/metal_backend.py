"""The Metal target: generate shaders, and compile and launch them with `torch.mps`."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from burnt.codegen.ir import Buffer, Kernel
from burnt.codegen.render.shape_params import sizes_as_parameters, with_constant_sizes
from burnt.codegen.runtime.host_code import raise_failed_check
from burnt.codegen.runtime.target import BuiltKernels, Launcher, Target, launcher_of, size_templates
from burnt.codegen.schedule.capabilities import OnlineThresholds

if TYPE_CHECKING:
    from burnt.codegen.render.metal.kernel import Dispatch


def build_metal(
    compile_source: Callable[[str], Any],
    kernels: Sequence[Kernel],
    buffers: Sequence[Buffer],
    number_positions: Sequence[int],
) -> BuiltKernels:
    """Generate and compile kernels in Metal.

    `compile_source` compiles source into a library, as `torch.mps.compile_shader` does. Kernels are its
    attributes, called with their arguments and `threads`, `group_size` and `arg_casts`.

    Raises:
        UnsupportedError: a kernel needs a dtype that Metal lacks, or more buffers than Metal can bind.
    """
    from burnt.codegen.render.metal import prelude
    from burnt.codegen.render.metal.kernel import PREAMBLE, print_kernel

    printed = {kernel: print_kernel(kernel, number_positions) for kernel in kernels}
    as_parameters = size_templates.needs_parameters(
        "\n".join(d.text for dispatches in printed.values() for d in dispatches)
    )
    texts: dict[Dispatch, str] = {}
    sizes: dict[Dispatch, tuple[int, ...]] = {}
    for dispatch in itertools.chain(*printed.values()):
        texts[dispatch], sizes[dispatch] = _metal_text(dispatch, as_parameters=as_parameters)
    body = "\n".join(texts.values())
    library = compile_source(f"{PREAMBLE}\n{prelude.source(body)}{body}")
    slots = {buffer: i for i, buffer in enumerate(buffers)}

    def dispatch_caller(dispatch: Dispatch) -> Callable[..., None]:
        kernel = getattr(library, dispatch.name)
        places = [slots[m] if isinstance(m, Buffer) else m.name for m in dispatch.buffers]
        values = [list(sizes[dispatch])] if sizes[dispatch] else []
        options: dict[str, Any] = {"threads": dispatch.threads, "group_size": dispatch.group}
        if values and not dispatch.wide:
            # torch passes integers as 64 bits, which are slower on the device than 32.
            options["arg_casts"] = {len(places) + dispatch.numbers: "int32"}

        def call(
            slot_tensors: Sequence[torch.Tensor | None],
            temporaries: dict[str, torch.Tensor],
            scalars: Sequence[float],
        ) -> None:
            tensors = [temporaries[p] if isinstance(p, str) else slot_tensors[p] for p in places]
            kernel(*tensors, *([list(scalars)] if dispatch.numbers else []), *values, **options)

        return call

    def launch(kernel: Kernel, dispatches: Sequence[Dispatch]) -> Launcher:
        scratch = {m.name: m for d in dispatches for m in d.buffers if not isinstance(m, Buffer)}
        calls = [dispatch_caller(dispatch) for dispatch in dispatches]

        def run(slot_tensors: Sequence[torch.Tensor | None], scalars: Sequence[float]) -> None:
            device = next(t.device for t in slot_tensors if t is not None)
            temporaries = {
                name: (torch.zeros if m.zeros else torch.empty)(m.count, dtype=m.dtype, device=device)
                for name, m in scratch.items()
            }
            for call in calls:
                call(slot_tensors, temporaries, scalars)
            if kernel.checks:
                # Wait for the device, so that the error is raised by this call and not by a later one.
                raise_failed_check(kernel.checks, temporaries["failed"].tolist())

        return launcher_of(run)

    whole = {kernel: "\n".join(texts[d] for d in dispatches) for kernel, dispatches in printed.items()}
    return BuiltKernels(whole, {kernel: launch(kernel, dispatches) for kernel, dispatches in printed.items()})


def _metal_text(dispatch: Dispatch, *, as_parameters: bool) -> tuple[str, tuple[int, ...]]:
    """Return the code of a dispatch and the sizes it takes as arguments: none unless `as_parameters`."""
    if not as_parameters:
        return with_constant_sizes(dispatch.text), ()
    text, sizes = sizes_as_parameters(dispatch.text, lambda k: f"n[{k}]")
    if sizes:
        position = len(dispatch.buffers) + dispatch.numbers
        parameter = f"    constant {'long' if dispatch.wide else 'int'} *n [[buffer({position})]],\n"
        text = text.replace("    uint3 at ", f"{parameter}    uint3 at ", 1)
    return text, sizes


def _show_metal(kernels: Sequence[Kernel], number_positions: Sequence[int]) -> dict[Kernel, str]:
    from burnt.codegen.render.metal.kernel import print_kernel

    printed = {kernel: print_kernel(kernel, number_positions) for kernel in kernels}
    return {
        kernel: with_constant_sizes("\n".join(d.text for d in ds)).rstrip("\n")
        for kernel, ds in printed.items()
    }


@functools.cache
def _compile_shader(source: str) -> Any:
    return torch.mps.compile_shader(source)


def _why_no_metal() -> str | None:
    return None if torch.backends.mps.is_available() else "torch has no Metal device here"


# About twice the memory next to a core of Apple's GPUs. Not measured.
_ONLINE_THRESHOLDS = OnlineThresholds(
    exp_row_bytes=1 << 15, squares_row_bytes=1 << 15, column_tile_bytes=1 << 17
)


METAL = Target(
    "metal",
    functools.partial(build_metal, _compile_shader),
    _why_no_metal,
    online_thresholds=_ONLINE_THRESHOLDS,
    show=_show_metal,
)
