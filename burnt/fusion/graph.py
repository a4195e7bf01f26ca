"""From an aten graph of AOTAutograd to what codegen traces of a function: a `Traced`."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from burnt import _torch
from burnt.codegen.frontend.overlap import find_aliases
from burnt.codegen.frontend.trace import ResultLayout, Traced, clean_up, why_unsupported
from burnt.codegen.lower import LOWERINGS
from burnt.errors import UnsupportedError

aten = torch.ops.aten

# Kernels read memory: in place of a tensor that is conjugated or negated lazily stands what it would be.
_LAZY_OPS = {aten._conj.default: aten._conj_physical.default, aten._neg_view.default: aten.neg.default}


def traced_of(graph: torch.fx.GraphModule, device: torch.device) -> Traced:
    """Return the trace that a graph is; it is not changed.

    Raises:
        UnsupportedError: no plan can be built, with the reason.
    """
    graph = torch.fx.GraphModule(graph, copy.deepcopy(graph.graph))
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    for node in inputs:
        if not isinstance(node.meta.get("val"), Tensor):
            raise UnsupportedError(
                f"its argument {node.name} is no tensor, {type(node.meta.get('val')).__name__}"
            )
    output = graph.graph.output_node()
    results = list(output.args[0]) if isinstance(output.args[0], tuple | list) else [output.args[0]]
    count = len(results)
    mutated = _take_copies(graph, inputs, results)
    if any(_torch.is_lazy(inputs[i].meta["val"]) for i in mutated):
        raise UnsupportedError("it changes an argument in place that is conjugated or negated lazily")
    output.args = (results,)
    clean_up(graph)
    _seed_replayed_draws(graph, device)
    for node in graph.graph.nodes:
        if _has_open_sizes(node):
            raise UnsupportedError(f"sizes depend on data: those of {node.name}, of {node.target}")
        node.target = _LAZY_OPS.get(node.target, node.target)
    fakes = [_fake(r) for r in results]
    aliases = find_aliases(fakes[:count])
    layouts = [
        ResultLayout(tuple(f.stride()), False) if isinstance(f, Tensor) else None for f in fakes[:count]
    ]
    layouts += [ResultLayout(tuple(inputs[i].meta["val"].stride()), False) for i in mutated]
    captured = tuple(dict.fromkeys(str(node.target) for node in graph.graph.nodes if node.op == "get_attr"))
    for name in captured:
        part = getattr(graph, name)
        if isinstance(part, torch.fx.GraphModule):
            calls = [n for n in graph.graph.nodes if any(str(i.target) == name for i in n.all_input_nodes)]
            raise UnsupportedError(f"it has control flow, torch.ops.higher_order.{calls[0].target}")
        if not isinstance(part, Tensor):
            raise UnsupportedError(f"it has a part that is no tensor, {type(part).__name__}")
    traced = Traced(graph, graph, {}, captured, tuple(layouts), mutated, aliases.unsupported_reason, aliases)
    reason = why_unsupported(traced, device)
    if reason is not None:
        raise UnsupportedError(reason)
    return traced


def _has_open_sizes(node: torch.fx.Node) -> bool:
    values = tree_leaves(node.meta.get("val"))
    sizes = [size for v in values for size in (v.shape if isinstance(v, Tensor) else (v,))]
    return any(isinstance(size, torch.SymInt | torch.SymFloat | torch.SymBool) for size in sizes)


def _fake(result: Any) -> Any:
    return result.meta["val"] if isinstance(result, torch.fx.Node) else result


def _take_copies(
    graph: torch.fx.GraphModule, inputs: Sequence[torch.fx.Node], results: list[Any]
) -> tuple[int, ...]:
    """Append to the results the values that are copied to arguments; return the arguments' positions."""
    copies = {}
    for node in list(graph.graph.nodes):
        if node.target is aten.copy_.default and node.args[0] in inputs:
            target, value = node.args[:2]
            copies[inputs.index(target)] = value
            results[:] = [target if r is node else r for r in results]
            node.replace_all_uses_with(value)
            graph.graph.erase_node(node)
    results += copies.values()
    return tuple(copies)


def _seed_replayed_draws(graph: torch.fx.GraphModule, device: torch.device) -> None:
    """Give each op whose random numbers are drawn again a seed of its own, in place of torch's state."""
    for node in list(graph.graph.nodes):
        kind = _torch.replayed_draw(node)
        if kind is None:
            continue
        with graph.graph.inserting_before(node):
            if kind == "save":
                op, *arguments = node.args
                first = next(other for other in graph.graph.nodes if other.op != "placeholder")
                with graph.graph.inserting_before(first):  # a call between others would part their kernels
                    seed = graph.graph.call_function(draw_seed, (device,))
            else:
                seed, op, *arguments = node.args
            if op not in LOWERINGS:
                raise UnsupportedError(f"{op} draws random numbers again in the backward, and has no kernel")
            seed.meta["val"] = _torch.fake_result(torch.empty, 1, dtype=torch.int64, device=device)
            drawn = graph.graph.call_function(op, tuple(arguments), node.kwargs)
        fakes = torch.fx.node.map_arg((drawn.args, drawn.kwargs), lambda n: n.meta["val"])
        drawn.meta |= {"val": _torch.fake_result(op, *fakes[0], **fakes[1]), "seed": seed, "stream": 0}
        if kind == "load":
            node.replace_all_uses_with(drawn)
        else:
            for part in list(node.users):
                part.replace_all_uses_with((seed, drawn)[part.args[1]])
                graph.graph.erase_node(part)
        graph.graph.erase_node(node)


def draw_seed(device: torch.device) -> Tensor:
    """Return a seed of the op whose numbers are drawn again in the backward, ``[1]`` of int64."""
    return torch.empty(1, dtype=torch.int64, device=device).random_()


def lazy_inputs(graph: torch.fx.GraphModule) -> list[int]:
    """Return the positions of arguments whose memory does not hold their elements."""
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    return [i for i, node in enumerate(inputs) if _torch.is_lazy(node.meta["val"])]


def host_inputs(graph: torch.fx.GraphModule, device: torch.device) -> list[int]:
    """Return the positions of arguments that are numbers on the CPU, where a plan is for another device."""
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    return [i for i, node in enumerate(inputs) if node.meta["val"].device != device]


def device_of(graph: torch.fx.GraphModule) -> torch.device:
    """Return the device that all tensors of a graph are on, but for numbers on the CPU.

    Raises:
        UnsupportedError: there are several.
    """
    values = [
        node.meta.get("val") for node in graph.graph.nodes if node.op in ("placeholder", "call_function")
    ]
    devices = {v.device for v in values if isinstance(v, Tensor) and (v.dim() or v.device.type != "cpu")}
    if len(devices) > 1:
        raise UnsupportedError(f"it has tensors on {', '.join(sorted(map(str, devices)))}")
    return devices.pop() if devices else torch.device("cpu")
