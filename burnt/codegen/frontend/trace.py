"""Tracing: a Python function of tensors as a graph of aten ops, forward and backward.

Python numbers stay inputs. They are traced as stand-ins, numbers of a class of their own that refuses to be
compared or turned into something else; tracing twice with different stand-ins shows where a number has gone
into Python arithmetic. A function that does so is traced for the number's value instead.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NoReturn, cast

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from burnt import _torch
from burnt.codegen.frontend.dtype_support import call_unless_unsupported
from burnt.errors import UnsupportedError

__all__ = [
    "PLANNING",
    "InlinedWhenTraced",
    "Traced",
    "is_random",
    "is_tracing",
    "trace",
    "trace_composite_calls",
    "why_unsupported",
]

PLANNING = threading.RLock()
"""Held while a plan is made: torch's tracing and the table of expressions are one for all threads."""
if hasattr(os, "register_at_fork"):  # a child has no thread that would let go of it
    os.register_at_fork(after_in_child=PLANNING._at_fork_reinit)  # type: ignore[attr-defined]

aten = torch.ops.aten

# Composite ops that torch defines in simpler ones; what is left is the table of `burnt.codegen.lower`.
_COMPOSITE = (
    "_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data", "logsumexp",
    "native_layer_norm", "native_layer_norm_backward", "native_group_norm", "native_group_norm_backward",
    "gelu", "gelu_backward", "silu", "silu_backward", "sigmoid_backward", "tanh_backward",
    "threshold_backward", "leaky_relu", "leaky_relu_backward", "elu", "softplus",
    "softplus_backward", "celu", "hardtanh", "hardswish",
    "hardsigmoid", "hardsigmoid_backward", "relu6", "log_sigmoid_forward", "log_sigmoid_backward", "mish",
    "mish_backward", "softshrink", "softshrink_backward", "hardshrink", "mse_loss", "mse_loss_backward",
    "smooth_l1_loss", "smooth_l1_loss_backward", "huber_loss", "huber_loss_backward", "addcmul", "addcdiv",
    "lerp", "std", "std_mean", "square", "frac", "logaddexp", "xlogy", "masked_fill", "glu", "glu_backward",
    "nan_to_num", "rsub", "native_dropout_backward", "addr", "_safe_softmax", "binary_cross_entropy",
    "binary_cross_entropy_backward", "binary_cross_entropy_with_logits", "block_diag", "count_nonzero",
    "deg2rad", "rad2deg", "dist", "heaviside", "ldexp", "logspace", "logaddexp2", "logit",
    "logit_backward", "multi_margin_loss", "nansum", "norm", "pixel_shuffle", "pixel_unshuffle",
    "channel_shuffle", "_prelu_kernel", "_prelu_kernel_backward", "rot90", "sgn", "sinc",
    "soft_margin_loss", "soft_margin_loss_backward", "special_entr", "special_log_ndtr", "special_xlog1py",
    "threshold", "trace", "eye", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d",
    "replication_pad1d", "replication_pad2d", "replication_pad3d", "renorm", "linalg_vector_norm",
    "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training", "native_batch_norm_backward", "_batch_norm_with_update",
    "_batch_norm_with_update_functional", "_unsafe_masked_index",
)  # fmt: skip


class InlinedWhenTraced:
    """A callable that is its eager function while another one is traced: a fused function, an op.

    So what it computes is fused with what is around the call.
    """


_tracing = threading.local()


def is_tracing() -> bool:
    """Whether this thread traces a function to make kernels of it."""
    return getattr(_tracing, "now", False)


class _Specialise(BaseException):
    """A number was looked at while tracing. No handler of the function's own is to catch it."""


class _ReadError(BaseException):
    """Something of a tensor was looked at that it does not have while tracing."""


class _StandIn(float):
    """A number whose value may not be known yet."""

    def _refuse(self, *_: object) -> NoReturn:
        raise _Specialise

    __bool__ = __int__ = __index__ = __round__ = __floor__ = __ceil__ = __trunc__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __hash__ = _refuse
    __abs__ = __neg__ = __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = __divmod__ = __rdivmod__ = _refuse
    __str__ = __repr__ = __format__ = is_integer = hex = as_integer_ratio = _refuse


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
        changed: positions among the tensors given of those that are changed in place. What becomes of them
            are the graph's last outputs, after those that the function returns.
        odd: why it cannot be planned, as far as that shows while tracing.
    """

    whole: torch.fx.GraphModule
    graph: torch.fx.GraphModule
    structure: Any
    numbers: dict[float, int]
    captured: tuple[str, ...]
    results: tuple[tuple[tuple[int, ...], bool] | None, ...] = ()
    changed: tuple[int, ...] = ()
    odd: str | None = None

    @functools.cached_property
    def reached(self) -> frozenset[int]:
        """Positions, among tensors and then captured ones, of those that a result's gradient reaches.

        To the others torch gives no gradient, where a derivative of the graph would be zeros.
        """
        nodes = [node for node in self.whole.graph.nodes if node.op == "placeholder"]
        # The graphs of a trace name what they captured each on its own.
        order = [id(getattr(self.graph, name)) for name in self.captured]
        places = {node: i for i, node in enumerate(nodes)}
        left = [node for node in self.whole.graph.output_node().all_input_nodes if _has_gradient(node)]
        found: set[int] = set()
        seen = set(left)
        while left:
            node = left.pop()
            if node.op == "placeholder":
                found.add(places[node])
            elif node.op == "get_attr":
                held = id(getattr(self.whole, str(node.target)))
                found |= {len(nodes) + i for i, each in enumerate(order) if each == held}
            elif node.target is not aten.detach.default:
                fresh = [n for n in node.all_input_nodes if n not in seen and _has_gradient(n)]
                seen.update(fresh)
                left += fresh
        return frozenset(found)


def _has_gradient(node: torch.fx.Node) -> bool:
    value = node.meta.get("val", getattr(node.graph.owning_module, str(node.target), None))
    return not isinstance(value, Tensor) or value.is_floating_point() or value.is_complex()


class _GradientsOff(TorchFunctionMode):
    """Makes what is computed with gradients off a constant: a graph does not hold the mode."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if torch.is_grad_enabled():
            return made
        return torch.utils._pytree.tree_map_only(Tensor, Tensor.detach, made)


# What a tensor does not have, or has otherwise, while a function is traced.
_HIDDEN: dict[Any, str] = {
    getattr(Tensor, name).__get__: name
    for name in ("requires_grad", "grad", "is_leaf", "grad_fn", "_version")
} | {Tensor.storage_offset: "storage_offset"}


def _asked_by_the_function() -> bool:
    """Whether what is called is asked for by other code than torch's and ours."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back  # type: ignore[assignment]
    package = (frame.f_globals.get("__name__") or "").split(".")[0]
    return package not in ("torch", "burnt")


class _Kept(TorchFunctionMode):
    """Keeps what torch's taking apart would lose.

    Dropout becomes one op: on a CPU torch makes changes in place of it. one_hot becomes a scatter, which has
    its indices checked: in the comparisons that torch makes of it, a bad class just equals none.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _HIDDEN and _asked_by_the_function():
            raise _ReadError(_HIDDEN[func])
        if func is torch.nn.functional.dropout:
            return self.dropout(*args, **kwargs)
        if func is torch.nn.functional.one_hot:
            return self.one_hot(*args, **kwargs)
        return func(*args, **kwargs)

    @staticmethod
    def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        """torch.nn.functional.dropout in ops that can be planned, where there are any."""
        if inplace or not training or not 0 < p <= 1 or not x.is_floating_point():
            return torch.nn.functional.dropout(x, p, training, inplace)
        made: Tensor = aten.native_dropout(x, p, True)[0]
        return made

    @staticmethod
    def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
        """torch.nn.functional.one_hot, where the number of classes is known."""
        if num_classes < 1 or tensor.dtype != torch.int64:
            return torch.nn.functional.one_hot(tensor, num_classes)
        return tensor.new_zeros(*tensor.shape, num_classes).scatter(-1, tensor.unsqueeze(-1), 1)


@_torch.without_saved_tensor_hooks()
def trace(fn: Callable[..., Any], args: Sequence[Any]) -> tuple[Traced, bool]:
    """Trace a function at example arguments.

    Args:
        fn: a function of tensors and numbers.
        args: tensors (their values are not used) and numbers.

    Returns:
        the trace, and whether float arguments are inputs of it; else their values are built in.

    Raises:
        UnsupportedError: it looks at something of a tensor that no trace has.
    """
    try:
        return _traced(fn, args)
    except _ReadError as asked:
        raise UnsupportedError(f"it asks a tensor for {asked}, which no plan knows") from None


def _traced(fn: Callable[..., Any], args: Sequence[Any]) -> tuple[Traced, bool]:
    floats = [i for i, arg in enumerate(args) if type(arg) is float]
    if floats:
        # Values that no sane program contains, exact in float32. Code in C does not ask a stand-in: it may
        # have made an integer of it, a truth, taken its sign away, or found that it is finite, which shows
        # where plain numbers are given that are large and below 0, 0, infinite, and none.
        chosen = [
            {i: (700001 + 2 * n) / 2.0**20 for n, i in enumerate(floats)},
            {i: -(2.0**20) - n - 0.5 for n, i in enumerate(floats)},
            *(dict.fromkeys(floats, value) for value in (0.0, math.inf, math.nan)),
        ]
        try:
            one = _trace(fn, args, {i: _StandIn(value) for i, value in chosen[0].items()})
            others = [_graphed(fn, args, numbers)[0] for numbers in chosen[1:]]
        except (Exception, _Specialise):  # of any kind: the numbers themselves may do, and if not, say why
            return _trace(fn, args, {}), False
        back = {value: i for i, value in chosen[0].items()}
        (results,) = one.graph.graph.output_node().args
        if any(isinstance(made, float) and float(made) in back for made in cast("Sequence[Any]", results)):
            return _trace(fn, args, {}), False  # a result is one of the numbers
        for other, stand_ins in zip(others, chosen[1:], strict=True):
            if not _alike(one.graph, other, {value: stand_ins[i] for value, i in back.items()}):
                return _trace(fn, args, {}), False
        return one, True
    return _trace(fn, args, {}), True


def _given(args: Sequence[Any], numbers: dict[int, float]) -> list[Any]:
    return [numbers.get(i, arg) for i, arg in enumerate(args)]


@functools.cache
def _table() -> dict[Any, Callable[..., Any]]:
    """The definitions that composite ops are taken apart by."""
    return {op: call_unless_unsupported(op, made) for op, made in _torch.decompositions(_COMPOSITE).items()}


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
        before, _tracing.now = is_tracing(), True
        try:
            with _Kept(), _GradientsOff() if torch.is_grad_enabled() else nullcontext():
                return fn(*full)
        finally:
            _tracing.now = before

    plain = [args[i].detach() for i in tensors]
    table = _table() if apart else {}
    graph, structure = _torch.trace_to_aten(of_tensors, plain, table)
    return _tidied(graph), structure


def _trace(fn: Callable[..., Any], args: Sequence[Any], stand_ins: dict[int, float]) -> Traced:
    graph, structure = _graphed(fn, args, stand_ins)
    # Without gradients nothing is derived.
    whole = graph
    if torch.is_grad_enabled():
        whole = _differentiable(_graphed(fn, args, stand_ins, apart=False)[0])
    given, made = _torch.fake_call(fn, _given(args, stand_ins))
    changed, odd = _changes(graph, [g for g in given if isinstance(g, Tensor)], made)
    tensors = [arg for arg in args if isinstance(arg, Tensor)]
    for now, before in zip([g for g in given if isinstance(g, Tensor)], tensors, strict=True):
        if now.shape != before.shape or now.stride() != before.stride():
            odd = "it changes the shape of an argument in place"
    captured = [str(node.target) for node in graph.graph.nodes if node.op == "get_attr"]
    results = [(tuple(r.stride()), r.requires_grad) if isinstance(r, Tensor) else None for r in made]
    results += [(tuple(tensors[position].stride()), False) for position in changed]
    return Traced(
        whole,
        graph,
        structure,
        {float(value): i for i, value in stand_ins.items()},
        tuple(dict.fromkeys(captured)),
        tuple(results),
        changed,
        odd,
    )


@_torch.without_saved_tensor_hooks()
def trace_composite_calls(
    fn: Callable[..., Any], args: Sequence[Any], traced: Traced
) -> torch.fx.GraphModule:
    """The graph of what a function calls, as `Traced.whole` is where gradients are on.

    Args:
        fn: the function.
        args: its arguments.
        traced: its trace for these.
    """
    if torch.is_grad_enabled():
        return traced.whole
    return _graphed(fn, args, {i: value for value, i in traced.numbers.items()}, apart=False)[0]


def _changes(
    graph: torch.fx.GraphModule, given: Sequence[Tensor], made: Sequence[Any]
) -> tuple[tuple[int, ...], str | None]:
    """Turn the copies into arguments at the end of a graph into outputs.

    Args:
        graph: the trace.
        given: the tensors that the function was called with without memory.
        made: what it returned.

    Returns:
        which of them are changed, and why that cannot be planned, if it cannot.
    """
    nodes = list(graph.graph.nodes)
    placeholders = [node for node in nodes if node.op == "placeholder"]
    last = nodes[-1]
    copies = {
        placeholders.index(node.args[0]): node
        for node in nodes
        if node.target is aten.copy_.default and node.args[0] in placeholders
    }
    if not copies:
        return (), None
    outputs = list(last.args[0])
    for i, result in enumerate(made):
        for position in copies:
            if result is given[position]:
                outputs[i] = placeholders[position]
            elif isinstance(result, Tensor) and _one_memory(result, given[position]):
                return (), "it returns a view of an argument that it changes"
    for node in copies.values():
        outputs.append(node.args[1])
        node.replace_all_uses_with(node.args[1])
        graph.graph.erase_node(node)
    last.args = (outputs,)
    odd = None
    for position in copies:
        tensor = given[position]
        if tensor.numel() and any(
            size > 1 and not stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
        ):
            odd = "it changes an argument whose elements share memory"
    return tuple(copies), odd


def _differentiable(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """With ops that torch has derivatives of in place of what changes in place were made of."""
    for node in graph.graph.nodes:
        if node.target is aten.zero.default:
            node.target = aten.zeros_like.default
        elif node.target is aten.copy.default:
            made, source = node.meta["val"], node.args[1]
            with graph.graph.inserting_before(node):
                wide = graph.graph.call_function(aten.expand.default, (source, list(made.shape)))
            node.target, node.args, node.kwargs = aten._to_copy.default, (wide,), {"dtype": made.dtype}
    return graph


def _one_memory(a: Tensor, b: Tensor) -> bool:
    return bool(a.untyped_storage()._cdata == b.untyped_storage()._cdata)


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


def why_unsupported(traced: Traced) -> str | None:
    """Why a graph cannot be planned: it changes what it captured, or something in it is nothing."""
    if traced.odd is not None:
        return traced.odd
    for node in traced.graph.graph.nodes:
        if node.op != "call_function":
            continue
        if "val" not in node.meta:
            return f"{node.target} returns nothing"
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
            return f"{node.target} changes a tensor in place"
    return None
