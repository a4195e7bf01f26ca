"""Tracing: a Python function of tensors as a graph of aten ops, forward and backward.

Python numbers stay inputs. They are traced as stand-ins, numbers of a class of their own that refuses to be
compared or turned into something else; tracing twice with different stand-ins shows where a number has gone
into Python arithmetic. A function that does so is traced for the number's value instead.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from burnt import _torch

__all__ = ["PLANNING", "Traced", "is_random", "trace", "unsuited"]

PLANNING = threading.RLock()
"""Held while a plan is made: torch's tracing and the table of expressions are one for all threads."""

aten = torch.ops.aten

# Composite ops that torch defines in simpler ones; what is left is the table of `burnt.codegen.lower`.
_COMPOSITE = (
    "_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data", "logsumexp",
    "native_layer_norm", "native_layer_norm_backward", "native_group_norm", "native_group_norm_backward",
    "gelu", "gelu_backward", "silu", "silu_backward", "sigmoid_backward", "tanh_backward",
    "threshold_backward", "leaky_relu", "leaky_relu_backward", "elu", "elu_backward", "softplus",
    "softplus_backward", "celu", "hardtanh", "hardtanh_backward", "hardswish", "hardswish_backward",
    "hardsigmoid", "hardsigmoid_backward", "relu6", "log_sigmoid_forward", "log_sigmoid_backward", "mish",
    "mish_backward", "softshrink", "softshrink_backward", "hardshrink", "mse_loss", "mse_loss_backward",
    "smooth_l1_loss", "smooth_l1_loss_backward", "huber_loss", "huber_loss_backward", "addcmul", "addcdiv",
    "lerp", "std", "std_mean", "square", "frac", "logaddexp", "xlogy", "masked_fill", "glu", "glu_backward",
    "nan_to_num", "rsub", "native_dropout_backward",
)  # fmt: skip


class _Specialise(Exception):
    """A number was looked at while tracing."""


class _StandIn(float):
    """A number whose value may not be known yet."""

    def _refuse(self, *_: object) -> NoReturn:
        raise _Specialise

    __bool__ = __int__ = __index__ = __round__ = __floor__ = __ceil__ = __trunc__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _refuse
    __hash__ = float.__hash__


@dataclasses.dataclass(frozen=True)
class Traced:
    """A traced function.

    Args:
        whole: the aten graph as the function calls it: what is differentiated, since the derivative of an op
            is not always that of what it is made of (std has none at 0, torch says 0).
        graph: the same in simpler ops; its placeholders are the tensors and numbers in order, its output is
            flat.
        structure: what the function returns, as torch's pytrees describe it.
        numbers: stand-in value -> position in the arguments, of the numbers that are inputs.
        results: for each result that is a tensor, its strides and whether it requires a gradient, as the
            function itself would give them: the ops that others are made of may lay theirs out otherwise.
        captured: names of the graph module's attributes that hold captured tensors, in order of use.
    """

    whole: torch.fx.GraphModule
    graph: torch.fx.GraphModule
    structure: Any
    numbers: dict[float, int]
    captured: tuple[str, ...]
    results: tuple[tuple[tuple[int, ...], bool] | None, ...] = ()


class _GradientsOff(TorchFunctionMode):
    """Makes what is computed with gradients off a constant: a graph does not hold the mode."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if torch.is_grad_enabled():
            return made
        return torch.utils._pytree.tree_map_only(Tensor, Tensor.detach, made)


class _Dropout(TorchFunctionMode):
    """Makes dropout one op: on a CPU torch takes it apart into changes in place."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.nn.functional.dropout:
            return self.dropout(*args, **kwargs)
        return func(*args, **kwargs)

    @staticmethod
    def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        """torch.nn.functional.dropout in ops that can be planned, where there are any."""
        if inplace or not training or not 0 < p <= 1 or not x.is_floating_point():
            return torch.nn.functional.dropout(x, p, training, inplace)
        made: Tensor = aten.native_dropout(x, p, True)[0]
        return made


def trace(fn: Callable[..., Any], args: Sequence[Any]) -> tuple[Traced, bool]:
    """Trace a function at example arguments.

    Args:
        fn: a function of tensors and numbers.
        args: tensors (their values are not used) and numbers.

    Returns:
        the trace, and whether float arguments are inputs of it; else their values are built in.
    """
    floats = [i for i, arg in enumerate(args) if type(arg) is float]
    if floats:
        # Values that no sane program contains, each exact in float32: below 1; above, since torch may have
        # made an integer of a number without asking; and 0, since it may have made a truth of it.
        chosen = [
            {i: (700001 + 2 * n) / 2.0**20 for n, i in enumerate(floats)},
            {i: (800003 + 2 * n) / 2.0**18 for n, i in enumerate(floats)},
            dict.fromkeys(floats, 0.0),
        ]
        try:
            one = _trace(fn, args, chosen[0])
            others = [_graphed(fn, args, stand_ins)[0] for stand_ins in chosen[1:]]
        except Exception:  # of any kind: the numbers themselves may do, and if not, say why
            return _trace(fn, args, {}), False
        back = {value: i for i, value in chosen[0].items()}
        for other, stand_ins in zip(others, chosen[1:], strict=True):
            if not _alike(one.graph, other, {value: stand_ins[i] for value, i in back.items()}):
                return _trace(fn, args, {}), False
        return one, True
    return _trace(fn, args, {}), True


def _given(args: Sequence[Any], stand_ins: dict[int, float]) -> list[Any]:
    return [_StandIn(stand_ins[i]) if i in stand_ins else arg for i, arg in enumerate(args)]


def _graphed(
    fn: Callable[..., Any], args: Sequence[Any], stand_ins: dict[int, float], *, apart: bool = True
) -> tuple[torch.fx.GraphModule, Any]:
    """The graph with floats for numbers, its composite ops taken apart or not, and what it returns."""
    inputs = _given(args, stand_ins)
    tensors = [i for i, arg in enumerate(args) if isinstance(arg, Tensor)]

    def of_tensors(*given: Tensor) -> Any:
        full = list(inputs)
        for i, tensor in zip(tensors, given, strict=True):
            full[i] = tensor
        with _Dropout():
            if not torch.is_grad_enabled():
                return fn(*full)
            with _GradientsOff():
                return fn(*full)

    plain = [args[i].detach() for i in tensors]
    table = _torch.decompositions(_COMPOSITE) if apart else {}
    graph, structure = _torch.trace_to_aten(of_tensors, plain, table)
    return _tidied(graph), structure


def _trace(fn: Callable[..., Any], args: Sequence[Any], stand_ins: dict[int, float]) -> Traced:
    graph, structure = _graphed(fn, args, stand_ins)
    # Without gradients nothing is derived.
    whole = _graphed(fn, args, stand_ins, apart=False)[0] if torch.is_grad_enabled() else graph
    captured = [str(node.target) for node in graph.graph.nodes if node.op == "get_attr"]
    results = tuple(
        (tuple(r.stride()), r.requires_grad) if isinstance(r, Tensor) else None
        for r in _torch.fake_results(fn, _given(args, stand_ins))
    )
    return Traced(
        whole,
        graph,
        structure,
        {value: i for i, value in stand_ins.items()},
        tuple(dict.fromkeys(captured)),
        results,
    )


def _tidied(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Without dead nodes, and without the one change in place that torch's own matmul makes, of a shape."""
    for node in graph.graph.nodes:
        if node.target is aten.squeeze_.dim and len(node.args[0].users) == 1:
            node.target = aten.squeeze.dim
    # An op that draws random numbers is never dead: the ones after it would be others.
    graph.graph.eliminate_dead_code(lambda node: node.is_impure() or is_random(node))
    for stream, node in enumerate(filter(is_random, graph.graph.nodes)):
        node.meta["stream"] = stream
    return graph


def is_random(node: torch.fx.Node) -> bool:
    """Whether a node draws random numbers. Its `meta` has which of these nodes it is, as `stream`."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _alike(one: torch.fx.GraphModule, two: torch.fx.GraphModule, stand_ins: dict[float, float]) -> bool:
    """Whether two traces differ in their stand-ins alone, of which the first's are given the second's for."""
    left, right = list(one.graph.nodes), list(two.graph.nodes)
    if len(left) != len(right):
        return False
    twins = dict(zip(left, right, strict=True))

    def translated(value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            return twins[value]
        return stand_ins.get(float(value), value) if isinstance(value, float) else value

    for a, b in zip(left, right, strict=True):
        ours = torch.fx.node.map_aggregate((a.args, a.kwargs), translated)
        theirs = torch.fx.node.map_aggregate((b.args, b.kwargs), lambda v: v)
        if a.target != b.target and a.op != "placeholder":
            return False
        if a.op == "get_attr":
            held, made = getattr(one, str(a.target)), getattr(two, str(b.target))
            # A tensor that the function makes of a number is a constant of the graph.
            if held is not made and not (held.dtype == made.dtype and torch.equal(held, made)):
                return False
        if not _equal(ours, theirs):
            return False
    return True


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(a[k], b[k]) for k in a)
    if isinstance(a, float) and isinstance(b, float):
        return a.hex() == b.hex()
    return bool(a == b)


def unsuited(traced: Traced) -> str | None:
    """Why a graph cannot be planned: it changes what it was given, or something in it is empty or nothing."""
    for node in traced.graph.graph.nodes:
        if node.op != "call_function":
            continue
        if "val" not in node.meta:
            return f"{node.target} returns nothing"
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
            return f"{node.target} changes a tensor in place"
        if isinstance(node.meta["val"], Tensor) and node.meta["val"].numel() == 0:
            return "an empty tensor inside"
    return None
