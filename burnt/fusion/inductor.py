"""burnt's choice of libraries as a pass of Inductor, torch.compile's own backend."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph

from burnt import _torch
from burnt._version import __version__
from burnt.device import processor
from burnt.fusion.passes import run_passes
from burnt.kernels.ops.matmul import onednn_addmm, onednn_mm


def inductor_pass() -> Callable[[Graph], None]:
    """Return a pass for Inductor, with which torch.compile's own backend calls the library that burnt would.

    Products run by oneDNN where that is faster than torch's call, and short attention in bfloat16 is
    differentiated in float32, as in `burnt.compile`. Products of sizes that vary stay torch's.

    Returns:
        A ``torch._inductor.custom_graph_pass.CustomGraphPass``, whose ``uuid()`` changes with the version of
        burnt and with the processor.

    >>> from torch._inductor import config
    >>> with config.patch(post_grad_custom_post_pass=inductor_pass()):
    ...     compiled = torch.compile(torch.nn.Linear(2, 2))  # its first call is made in here, too
    """
    base = _torch.inductor_pass_class()
    products = _ops()  # now: a graph from Inductor's cache calls them without a run of the pass

    class LibraryPass(base):  # type: ignore[misc, valid-type]
        def __call__(self, graph: Graph) -> None:
            run_passes(graph, products)

        def uuid(self) -> Any:
            return "burnt", __version__, repr(processor())

    return LibraryPass()


@functools.cache
def _ops() -> tuple[Any, Any]:
    """Register products by oneDNN as ops, as Inductor takes no Python functions."""
    library: Any = torch.library.Library("burnt", "FRAGMENT")  # type: ignore[no-untyped-call]
    _ops.library = library  # type: ignore[attr-defined]  # the ops live as long as it does
    kinds = (("onednn_mm", "", onednn_mm), ("onednn_addmm", "Tensor bias, ", onednn_addmm))
    for name, bias, fn in kinds:
        library.define(f"{name}({bias}Tensor a, Tensor b) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
        library.impl(name, fn, "CPU")
        torch.library.register_fake(
            f"burnt::{name}",
            lambda *args: args[-2].new_empty(args[-2].shape[0], args[-1].shape[1]),
            lib=library,
        )
    return tuple(getattr(torch.ops.burnt, name).default for name, *_ in kinds)
