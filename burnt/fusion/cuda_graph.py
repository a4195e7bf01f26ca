"""``burnt.compile(graph=True)``: calls of a plan are captured as CUDA graphs, and replayed by one launch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from burnt.errors import FusionError
from burnt.kernels.autotune.timers import NotCapturedError, capture_graph

_Run = Callable[[list[Any]], Sequence[Any]]

_MAX_GRAPHS = 8


def replayed(
    run: _Run, name: str, device: torch.device, fixed: frozenset[int], changed: Sequence[int]
) -> _Run:
    """Return a function of a list of tensors, which it empties, that captures what `run` does and replays it.

    Arguments in `fixed` are read where they are, and so are those in `changed`, which `run` changes: at
    another address a call is captured again, and the last 8 graphs are kept. Other arguments are copied to
    where the graph reads them, and results from where it writes them. Threads replay one at a time.
    """
    in_place = sorted(fixed.union(changed))
    graphs: dict[tuple[int, ...], _Run] = {}
    lock = threading.Lock()

    def call(arguments: list[Any]) -> Sequence[Any]:
        addresses = tuple(arguments[i].data_ptr() for i in in_place)
        with lock, torch.cuda.device(device):
            if addresses not in graphs:
                while len(graphs) >= _MAX_GRAPHS:
                    graphs.pop(next(iter(graphs)))
                graphs[addresses] = _captured(run, name, arguments, in_place, changed)
            return graphs[addresses](arguments)

    return call


def _captured(
    run: _Run, name: str, arguments: Sequence[Tensor], in_place: Sequence[int], changed: Sequence[int]
) -> _Run:
    copied = [i for i in range(len(arguments)) if i not in in_place]
    static = [_copy(a) if i in copied else a for i, a in enumerate(arguments)]
    results: list[Any] = []

    def call() -> None:
        results[:] = run(list(static))

    before = [_copy(arguments[i]) for i in changed]
    try:
        graph = capture_graph([call])  # after calls to warm up
    except NotCapturedError as error:
        raise FusionError(
            f"{name} cannot be captured as a CUDA graph",
            where="burnt.compile(graph=True)",
            expected="work of the GPU that the host does not wait for",
            found=str(error),
            hint="compile without graph=True",
        ) from error
    for i, value in zip(changed, before, strict=True):
        _flat(arguments[i]).copy_(_flat(value))
    places = [(i, _flat(static[i])) for i in copied]

    def replay(given: list[Any]) -> Sequence[Any]:
        for i, place in places:
            place.copy_(_flat(given[i]))
        given.clear()
        graph.replay()
        return tuple(_copy(r) if isinstance(r, Tensor) else r for r in results)

    return replay


def _flat(tensor: Tensor) -> Tensor:
    """Return the memory between a tensor's first element and its last as a vector."""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.detach().as_strided((last + 1 if tensor.numel() else 0,), (1,))


def _copy(tensor: Tensor) -> Tensor:
    return _flat(tensor).clone().as_strided(tensor.shape, tensor.stride())
