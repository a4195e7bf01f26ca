"""`burnt.explain` of compiled models: each graph of Dynamo that runs, forward and backward."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from burnt import _torch
from burnt.codegen import explanation
from burnt.codegen.explanation import Explanation, explain_plan
from burnt.codegen.frontend.containers import flatten
from burnt.codegen.printing import Step, measure
from burnt.errors import UnsupportedError
from burnt.fusion.backend import Compiled, Options, backend, compile, recorded


def explain(
    fn: Callable[..., Any], *args: Any, timed: bool = True, target: str | None = None, **kwargs: Any
) -> Explanation:
    """Explain what a function or model runs for these arguments: kernels, library calls, bytes and times.

    It is called once, and its backward if a result requires a gradient. Of a model, gradients, buffers, the
    arguments and torch's random state are as before.

    Args:
        fn: a model or function compiled by `compile`, a module, which is compiled, a function returned by
            `fuse`, or a plain function, which is fused.
        args: its positional arguments.
        timed: measure every step, for 0.2 seconds in each graph.
        target: ``"c"``, ``"triton"`` or ``"metal"``: show the kernels as generated for such a device. Neither
            the device nor a compiler for it is needed, and torch runs the model. For an architecture, such as
            ``"sm_90"`` or ``"gfx942"``, Triton compiles them: with assembly, registers and spills.
        kwargs: its keyword arguments.

    Returns:
        an `Explanation`, which prints as a table. For a model, `steps` are those of all graphs of its
        forward in the order in which they run, and `graph_breaks` says where and why Dynamo split it.

    Raises:
        ConfigError: there is no such target.
        UnsupportedError: no graph compiled by burnt ran, such as in a model of another compiler; or there is
            no Triton to compile for an architecture.
        CompileError: a kernel does not compile for an architecture.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU())
    >>> found = explain(model, torch.ones(2, 4), timed=False)
    >>> [step.ops for step in found.steps if step.kind == "elementwise"]
    [('mul', 'erf', 'add')]
    """
    plain = _torch.uncompiled(fn)
    if plain is fn and not isinstance(fn, nn.Module):
        return explanation.explain(fn, *args, timed=timed, target=target, **kwargs)
    call = fn
    if target is not None:
        explanation.source_only(target)  # raises if there is none
        call = torch.compile(plain, backend=_shown_backend(target))
    elif plain is fn:
        call = compile(fn)
    given: list[Any] = []
    flatten((args, kwargs), given)
    owner = fn if isinstance(fn, nn.Module) else getattr(plain, "__self__", None)
    own = [*owner.parameters(), *owner.buffers()] if isinstance(owner, nn.Module) else []
    tensors = list({id(t): t for t in (*own, *given) if isinstance(t, Tensor)}.values())
    with recorded() as graphs, _preserved(tensors):
        explanation.differentiate(call(*args, **kwargs), tensors)
    graphs = list(dict.fromkeys(graphs))
    if not graphs:
        raise UnsupportedError(
            "no graph that burnt compiled ran",
            where="burnt.explain",
            expected="a model or function with ops on tensors, compiled by burnt or not compiled yet",
            hint="burnt.explain(burnt.compile(model), ...). If burnt compiles it, Dynamo left the whole "
            "function to Python, as for torch's RNN, GRU and LSTM: TORCH_LOGS=graph_breaks says why",
        )
    forward = [graph for graph in graphs if not graph.is_backward]
    backward = [graph for graph in graphs if graph.is_backward]
    found = _explain_graphs(forward, timed and target is None)
    return dataclasses.replace(
        found,
        backward=_explain_graphs(backward, timed and target is None) if backward else None,
        graph_breaks=tuple(graph.break_reason for graph in forward if graph.break_reason is not None),
    )


@functools.cache  # the same object each time, or Dynamo would compile again
def _shown_backend(target: str) -> Callable[..., Any]:
    return functools.partial(backend, options=Options(shown=target))


@contextlib.contextmanager
def _preserved(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Context after which tensors and torch's random state are as before."""
    before = [(t, _torch.version_of(t), t.detach().clone()) for t in tensors]
    devices = {t.device for t in tensors if t.device.type == "cuda"}
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            with torch.no_grad():
                for tensor, version, values in before:
                    if _torch.version_of(tensor) != version:
                        tensor.copy_(values)


def _explain_graphs(graphs: Sequence[Compiled], timed: bool) -> Explanation:
    steps: list[Step] = []
    texts: dict[str, str] = {}
    assembly: dict[str, str] = {}
    for graph in graphs:
        if graph.plan is None:
            found = Explanation((Step(graph.name, "torch", graph.ops, 0, graph.reason),))
        else:
            found = explain_plan(graph.plan, measure(graph.plan) if timed else None)
        steps += [dataclasses.replace(step, graph=graph.name) for step in found.steps]
        texts |= found.texts
        assembly |= found.assembly
    return Explanation(tuple(steps), texts=texts, assembly=assembly)
