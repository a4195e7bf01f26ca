"""The Metal target: kernels printed as shaders, compiled and launched by `torch.mps`."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from burnt.codegen.ir import Buffer, Kernel
from burnt.codegen.render.shape_params import sizes_as_parameters, with_constant_sizes
from burnt.codegen.runtime.target import Built, Launch, Target, raise_failed_check, size_templates
from burnt.codegen.schedule.passes import OnlineThresholds

if TYPE_CHECKING:
    from burnt.codegen.render.metal.kernel import Dispatch

__all__ = ["METAL", "build_metal"]


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
    from burnt.codegen.render.metal import prelude
    from burnt.codegen.render.metal.kernel import PREAMBLE, print_kernel

    made = {kernel: print_kernel(kernel, numbers) for kernel in kernels}
    general = size_templates.needs_parameters(
        "\n".join(d.text for dispatches in made.values() for d in dispatches)
    )
    texts: dict[Dispatch, str] = {}
    sizes: dict[Dispatch, tuple[int, ...]] = {}
    for dispatch in itertools.chain(*made.values()):
        texts[dispatch], sizes[dispatch] = _metal_text(dispatch, general=general)
    body = "\n".join(texts.values())
    library = compiled(f"{PREAMBLE}\n{prelude.source(body)}{body}")
    slots = {buffer: i for i, buffer in enumerate(buffers)}

    def call_of(dispatch: Dispatch) -> Callable[..., None]:
        kernel = getattr(library, dispatch.name)
        places = [slots[m] if isinstance(m, Buffer) else m.name for m in dispatch.buffers]
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
        scratch = {m.name: m for d in dispatches for m in d.buffers if not isinstance(m, Buffer)}
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
                raise_failed_check(kernel.checks, own["failed"].tolist())

        return run

    whole = {kernel: "\n".join(texts[d] for d in dispatches) for kernel, dispatches in made.items()}
    return Built(body, whole, {kernel: launch(kernel, dispatches) for kernel, dispatches in made.items()})


def _metal_text(dispatch: Dispatch, *, general: bool) -> tuple[str, tuple[int, ...]]:
    """The text of a dispatch, and the sizes that it takes: all of them if it is to be general."""
    if not general:
        return with_constant_sizes(dispatch.text), ()
    text, sizes = sizes_as_parameters(dispatch.text, lambda k: f"n[{k}]")
    if sizes:
        place = len(dispatch.buffers) + dispatch.numbers
        parameter = f"    constant {'long' if dispatch.wide else 'int'} *n [[buffer({place})]],\n"
        text = text.replace("    uint3 at ", f"{parameter}    uint3 at ", 1)
    return text, sizes


def _show_metal(kernels: Sequence[Kernel], numbers: Sequence[int]) -> dict[Kernel, str]:
    from burnt.codegen.render.metal.kernel import print_kernel

    made = {kernel: print_kernel(kernel, numbers) for kernel in kernels}
    return {
        kernel: with_constant_sizes("\n".join(d.text for d in ds)).rstrip("\n") for kernel, ds in made.items()
    }


@functools.cache
def _shader(source: str) -> Any:
    return torch.mps.compile_shader(source)


def _no_metal() -> str | None:
    return None if torch.backends.mps.is_available() else "torch has no Metal device here"


# Twice what is next to a core of Apple's GPUs, or about: this has not been measured.
_JOINS_OF_METAL = OnlineThresholds(exp=1 << 15, squares=1 << 15, columns=1 << 17)


METAL = Target(
    "metal",
    functools.partial(build_metal, _shader),
    _no_metal,
    joins=_JOINS_OF_METAL,
    show=_show_metal,
)
