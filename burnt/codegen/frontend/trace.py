"""Tracing: from a Python function of tensors to a graph of aten ops.

Float arguments stay inputs of the graph. They are traced as stand-ins, instances of a float subclass that
refuses comparisons and conversions. Tracing again with different stand-ins shows where a number has entered
Python arithmetic. A function that compares numbers or computes with them is traced for their values instead.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, NoReturn, cast

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from burnt import _torch
from burnt.codegen.frontend.overlap import STRIDE_OPS, Aliases, OverlapWatch, find_aliases, is_attention
from burnt.codegen.frontend.refusals import RealResults, RefusalWatch, decompose_unless_unsupported
from burnt.errors import UnsupportedError

PLANNING_LOCK = threading.RLock()
"""Held while a plan is built: torch's tracing state and the table of interned expressions are global."""
if hasattr(os, "register_at_fork"):  # in a forked child, no thread would release it
    os.register_at_fork(after_in_child=PLANNING_LOCK._at_fork_reinit)  # type: ignore[attr-defined]

aten = torch.ops.aten

# Composite ops to decompose by torch's definitions; `burnt.codegen.lower` has lowerings for the other ops.
_COMPOSITE = (
    "_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data", "logsumexp",
    "native_layer_norm", "native_layer_norm_backward", "native_group_norm", "native_group_norm_backward",
    "gelu", "gelu_backward", "silu", "silu_backward", "sigmoid_backward", "tanh_backward",
    "threshold_backward", "leaky_relu", "leaky_relu_backward", "elu", "softplus",
    "softplus_backward", "celu", "hardtanh", "hardswish",
    "hardsigmoid", "hardsigmoid_backward", "relu6", "log_sigmoid_forward", "log_sigmoid_backward", "mish",
    "mish_backward", "softshrink", "softshrink_backward", "hardshrink", "mse_loss", "mse_loss_backward",
    "smooth_l1_loss", "smooth_l1_loss_backward", "huber_loss", "huber_loss_backward", "addcmul", "addcdiv",
    "lerp", "square", "frac", "logaddexp", "xlogy", "masked_fill", "glu", "glu_backward",
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
    "_batch_norm_with_update_functional", "_unsafe_masked_index", "isinf", "isposinf", "isneginf", "unbind",
    "unbind_copy", "aminmax", "new_full", "clamp_min", "clamp_max",
)  # fmt: skip


class InlinedWhenTraced:
    """A callable, such as a fused function or an op, that runs eagerly while another function is traced.

    So its computation is fused with the ops around the call.
    """

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickle and copy by reference, as functions are, where a name of its module leads here."""
        name = getattr(self, "__qualname__", "")
        found: Any = sys.modules.get(self.__module__)
        for part in name.split("."):
            found = getattr(found, part, None)
        return name if found is self else self.rebuild_arguments()

    def rebuild_arguments(self) -> tuple[Any, ...]:
        """Return what `pickle` and `copy` make another one of: a callable and its arguments."""
        name = getattr(self, "__qualname__", "its name")
        raise TypeError(f"cannot pickle {self!r}: it is not {self.__module__}.{name}")


_tracing = threading.local()


def is_tracing() -> bool:
    """Whether this thread is tracing a function to generate kernels for it."""
    return getattr(_tracing, "active", False)


class _NumberInspected(BaseException):
    """The function inspected the value of a stand-in. A BaseException, so that its own handlers miss it."""


class _Refused(BaseException):
    """The function did what a trace would lose; the argument is the reason. It, too, must not be handled."""


class _StandIn(float):
    """A float argument whose value must not be inspected while tracing."""

    def _refuse(self, *_: object) -> NoReturn:
        raise _NumberInspected

    __bool__ = __int__ = __index__ = __round__ = __floor__ = __ceil__ = __trunc__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __hash__ = _refuse
    __abs__ = __neg__ = __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = __divmod__ = __rdivmod__ = _refuse
    __str__ = __repr__ = __format__ = is_integer = hex = as_integer_ratio = _refuse


class ResultLayout(NamedTuple):
    """How the eager function returns a tensor: its strides, and whether it requires a gradient."""

    strides: tuple[int, ...]
    requires_grad: bool


@dataclasses.dataclass(frozen=True)
class Traced:
    """A traced function."""

    # The aten graph with the ops that the function calls. It is the one to differentiate: the derivative of
    # an op is not always that of its decomposition (at 0 the derivative of std's decomposition is not finite,
    # torch returns 0).
    composite_graph: torch.fx.GraphModule
    # The same with composite ops decomposed. Its placeholders are the tensors and numbers in order, its
    # output is flat.
    graph: torch.fx.GraphModule
    # Stand-in value -> position in the arguments, for the numbers that are inputs.
    stand_in_positions: dict[float, int]
    # Names of the graph module's attributes that hold captured tensors, in order of use.
    captured: tuple[str, ...]
    # For each result that is a tensor, its strides and whether it requires a gradient, as in the eager
    # function: decompositions may return other strides. None for a result that is not a tensor.
    results: tuple[ResultLayout | None, ...] = ()
    # Positions, among the tensor arguments, of those that are modified in place. Their new values are the
    # graph's last outputs, after the function's results.
    mutated: tuple[int, ...] = ()
    unsupported_reason: str | None = None  # why no plan can be built, if tracing has shown that
    # The results that are other results or views of them in the eager function.
    aliases: Aliases = dataclasses.field(default_factory=lambda: Aliases({}))
    # Position of a number -> its largest absolute value, apart from infinity, that torch takes.
    number_limits: dict[int, float] = dataclasses.field(default_factory=dict)

    def without_aliases(self) -> Traced:
        """Return the trace without the results that are aliases of others; its graphs are changed."""
        aliases = self.aliases.by_position
        if not aliases:
            return self
        count = len(self.results) - len(self.mutated)  # the new values of arguments come after the results
        for graph in {id(graph): graph for graph in (self.composite_graph, self.graph)}.values():
            output = graph.graph.output_node()
            (results,) = cast("tuple[Sequence[Any]]", output.args)
            kept = [r for i, r in enumerate(results[:count]) if i not in aliases]
            output.args = ([*kept, *results[count:]],)
            _eliminate_dead_code(graph)
        layouts = [r for i, r in enumerate(self.results[:count]) if i not in aliases]
        left = {str(node.target) for node in self.graph.graph.nodes if node.op == "get_attr"}
        return dataclasses.replace(
            self,
            results=(*layouts, *self.results[count:]),
            captured=tuple(name for name in self.captured if name in left),
        )

    def with_aliases(self, results: Sequence[Any]) -> list[Any]:
        """Return all results, given this trace's, which is one `without_aliases`."""
        aliases = self.aliases.by_position
        remaining = iter(results)
        count = len(results) + len(aliases)
        found: list[Any] = [None if i in aliases else next(remaining) for i in range(count)]
        for i, alias in aliases.items():
            found[i] = alias.of(found[alias.base])
        return found

    @functools.cached_property
    def inputs_with_grad(self) -> frozenset[int]:
        """Positions, among the tensor arguments and then the captured tensors, that gradients can reach.

        For the others torch returns None, while the derivative of the graph would be zeros.
        """
        placeholders = [node for node in self.composite_graph.graph.nodes if node.op == "placeholder"]
        # The graphs of a trace each have their own names for captured tensors: compare the objects.
        captured_ids = [id(getattr(self.graph, name)) for name in self.captured]
        positions = {node: i for i, node in enumerate(placeholders)}
        stack = [n for n in self.composite_graph.graph.output_node().all_input_nodes if _is_differentiable(n)]
        reached: set[int] = set()
        seen = set(stack)
        while stack:
            node = stack.pop()
            if node.op == "placeholder":
                reached.add(positions[node])
            elif node.op == "get_attr":
                captured = id(getattr(self.composite_graph, str(node.target)))
                reached |= {len(placeholders) + i for i, id_ in enumerate(captured_ids) if id_ == captured}
            elif node.target is not aten.detach.default:
                new = [n for n in node.all_input_nodes if n not in seen and _is_differentiable(n)]
                seen.update(new)
                stack += new
        return frozenset(reached)


def _is_differentiable(node: torch.fx.Node) -> bool:
    value = node.meta.get("val", getattr(node.graph.owning_module, str(node.target), None))
    return not isinstance(value, Tensor) or value.is_floating_point() or value.is_complex()


class _DetachUnderNoGrad(TorchFunctionMode):
    """Detaches what the function computes with gradients disabled: the graph does not record that mode.

    A tensor that is changed in place has no gradient (see `OverlapWatch`) and gets none from other arguments.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.is_grad_enabled():
            return func(*args, **kwargs)
        given = {id(leaf) for leaf in tree_leaves((args, kwargs))}
        if _is_in_place(func) or kwargs.get("out") is not None:
            first = int(kwargs.get("out") is None)
            args = (*args[:first], *_detached(args[first:]))
            kwargs = {k: v if k == "out" or not args else _detached(v) for k, v in kwargs.items()}
        result = func(*args, **kwargs)
        return tree_map_only(Tensor, lambda t: t if id(t) in given else t.detach(), result)


class _LayoutLog(TorchFunctionMode):
    """Logs the strides that the function reads, and which calls return views of their arguments.

    Tensors of a trace may have other strides than the eager function's: an op in place stores the
    result of the op that creates a new tensor. They also decide whether ``reshape`` or ``contiguous`` copy.
    """

    def __init__(self) -> None:
        super().__init__()
        self.strides: list[Any] = []
        self.views: list[bool] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _STRIDE_READS:
            self.strides.append(result)
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.views.append(any(_torch.share_memory(leaf, tensor) for tensor in given))
        return result


_STRIDE_READS = frozenset({Tensor.stride, Tensor.is_contiguous, Tensor.dim_order})


def _detached(values: Any) -> Any:
    return tree_map_only(Tensor, Tensor.detach, values)


# Attributes that a tensor does not have, or has with another value, while a function is traced.
_HIDDEN_ATTRIBUTES: dict[Any, str] = {
    getattr(Tensor, name).__get__: name
    for name in ("requires_grad", "grad", "is_leaf", "grad_fn", "_version", "_base")
} | {
    getattr(Tensor, name): name
    for name in ("storage_offset", "data_ptr", "storage", "untyped_storage", "is_set_to", "_is_view")
}

_GET_DATA: Any = Tensor.data.__get__  # type: ignore[attr-defined]


def _is_called_by_user_code() -> bool:
    frame = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back  # type: ignore[assignment]
    package = (frame.f_globals.get("__name__") or "").split(".")[0]
    return package not in ("torch", "burnt")


_IN_PLACE_OPERATORS = frozenset({
    "__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__", "__imod__",
    "__ipow__", "__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__",
})  # fmt: skip


# Torch does not functionalize the ops of these operators.
_BITWISE_OPERATORS: dict[Any, Any] = {
    Tensor.__iand__: Tensor.bitwise_and_,
    Tensor.__ior__: Tensor.bitwise_or_,
    Tensor.__ixor__: Tensor.bitwise_xor_,
    Tensor.__ilshift__: Tensor.bitwise_left_shift_,
    Tensor.__irshift__: Tensor.bitwise_right_shift_,
}


def _is_in_place(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    return name in _IN_PLACE_OPERATORS or (name.endswith("_") and not name.endswith("__"))


def _is_captured(value: Any) -> bool:
    """Whether a value is a tensor that the traced function captured, and none of the trace."""
    is_plain = type(value) is Tensor or type(value) is torch.nn.Parameter
    return is_plain and not _torch.is_wrapped(value)


class _Overrides(TorchFunctionMode):
    """Replaces functions whose decomposition by torch would lose something, and refuses what a trace loses.

    dropout becomes one op: on a CPU, torch decomposes it into in-place ops. one_hot becomes a scatter, whose
    indices are checked: torch decomposes it into comparisons, in which an invalid class equals none.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _HIDDEN_ATTRIBUTES and _is_called_by_user_code():
            name = _HIDDEN_ATTRIBUTES[func]
            raise _Refused(f"it reads a tensor's {name}, which is not available while tracing")
        if _is_in_place(func) and args and _is_captured(args[0]):
            # torch would modify the tensor itself, if it has a single element
            raise _Refused("it modifies a captured tensor in place: pass it as an argument")
        if func == _GET_DATA:  # torch has no op for it, so a trace would not show that it is detached
            return Tensor.detach(*args)
        if func in _BITWISE_OPERATORS:
            return _BITWISE_OPERATORS[func](*args)
        if func is torch.nn.functional.dropout:
            return self.dropout(*args, **kwargs)
        if func is torch.nn.functional.one_hot:
            return self.one_hot(*args, **kwargs)
        return func(*args, **kwargs)

    @staticmethod
    def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        """torch.nn.functional.dropout as `native_dropout`, where that applies."""
        if inplace or not training or not 0 < p <= 1 or not x.is_floating_point():
            return torch.nn.functional.dropout(x, p, training, inplace)
        result: Tensor = aten.native_dropout(x, p, True)[0]
        return result

    @staticmethod
    def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
        """torch.nn.functional.one_hot as a scatter, where the number of classes is given."""
        if num_classes < 1 or tensor.dtype != torch.int64:
            return torch.nn.functional.one_hot(tensor, num_classes)
        return tensor.new_zeros(*tensor.shape, num_classes).scatter(-1, tensor.unsqueeze(-1), 1)


@_torch.without_saved_tensor_hooks()
def trace(fn: Callable[..., Any], args: Sequence[Any]) -> tuple[Traced, bool]:
    """Trace a function at example tensors, whose values are not used, and numbers.

    Also return whether the trace is general: float arguments are inputs of it. Otherwise it has their values
    built in.

    Raises:
        UnsupportedError: the function reads a tensor attribute that is not available while tracing, or
            modifies a captured tensor in place.
    """
    try:
        return _trace_with_float_inputs(fn, args)
    except _Refused as reason:
        raise UnsupportedError(str(reason)) from None


def _trace_with_float_inputs(fn: Callable[..., Any], args: Sequence[Any]) -> tuple[Traced, bool]:
    """Trace with floats as inputs; if the graph depends on their values, trace with the values built in."""
    floats = [i for i, arg in enumerate(args) if type(arg) is float]
    if floats:
        # The first set has values that real programs do not contain, exact in float32. C code bypasses the
        # stand-in's methods: it may convert it to an integer or a bool, take its absolute value or test
        # whether it is finite. Graphs traced with plain numbers that are large and negative, 0, infinite
        # and NaN differ then.
        stand_in_sets = [
            {i: (700001 + 2 * n) / 2.0**20 for n, i in enumerate(floats)},
            {i: -(2.0**20) - n - 0.5 for n, i in enumerate(floats)},
            *(dict.fromkeys(floats, value) for value in (0.0, math.inf, math.nan)),
        ]
        try:
            first = _trace(fn, args, {i: _StandIn(value) for i, value in stand_in_sets[0].items()})
            others = [_trace_graph(fn, args, numbers) for numbers in stand_in_sets[1:]]
        except (Exception, _NumberInspected):  # of any kind: with the actual values it may work, or says why
            return _trace(fn, args, {}), False
        positions = {value: i for i, value in stand_in_sets[0].items()}
        (results,) = first.graph.graph.output_node().args
        if any(isinstance(r, float) and float(r) in positions for r in cast("Sequence[Any]", results)):
            return _trace(fn, args, {}), False  # a result is one of the numbers
        for other, stand_ins in zip(others, stand_in_sets[1:], strict=True):
            if not _is_same_graph(
                first.graph, other, {value: stand_ins[i] for value, i in positions.items()}
            ):
                return _trace(fn, args, {}), False
        return first, True
    return _trace(fn, args, {}), True


def _replace_numbers(args: Sequence[Any], numbers: dict[int, float]) -> list[Any]:
    return [numbers.get(i, arg) for i, arg in enumerate(args)]


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions of the composite ops; each leaves calls with dtypes that torch refuses."""
    return {op: decompose_unless_unsupported(op, fn) for op, fn in _torch.decompositions(_COMPOSITE).items()}


def _trace_graph(
    fn: Callable[..., Any],
    args: Sequence[Any],
    stand_ins: dict[int, float],
    *,
    decompose: bool = True,
    log: _LayoutLog | None = None,
) -> torch.fx.GraphModule:
    """Trace a function with stand-ins for its numbers."""
    inputs = _replace_numbers(args, stand_ins)
    tensor_positions = [i for i, arg in enumerate(args) if isinstance(arg, Tensor)]

    def call_with_tensors(*tensors: Tensor) -> Any:
        full = list(inputs)
        for i, tensor in zip(tensor_positions, tensors, strict=True):
            full[i] = tensor
        was_tracing, _tracing.active = is_tracing(), True
        try:
            detach = _DetachUnderNoGrad() if torch.is_grad_enabled() else nullcontext()
            with RealResults(), _Overrides(), detach, log or nullcontext():
                return fn(*full)
        finally:
            _tracing.active = was_tracing

    examples = [args[i].detach() for i in tensor_positions]
    table = decompositions() if decompose else {}
    return clean_up(_torch.trace_to_aten(call_with_tensors, examples, table))


def _trace(fn: Callable[..., Any], args: Sequence[Any], stand_ins: dict[int, float]) -> Traced:
    """Trace a function with stand-ins as inputs; numbers without a stand-in are built in."""
    logs = [_LayoutLog()]
    graph = _trace_graph(fn, args, stand_ins, log=logs[0])
    # Without gradients nothing is differentiated.
    composite_graph = graph
    if torch.is_grad_enabled():
        logs.append(_LayoutLog())
        composite_graph = _trace_graph(fn, args, stand_ins, decompose=False, log=logs[1])
        composite_graph = _replace_mutation_ops(composite_graph)
    watch, refusals, eager_log = OverlapWatch(), RefusalWatch(stand_ins.values()), _LayoutLog()

    def watched(*inputs: Any) -> Any:
        with refusals, RealResults(), watch, eager_log:
            return fn(*inputs)

    fake_args, fake_results = _torch.fake_call(watched, _replace_numbers(args, stand_ins))
    if refusals.depends_on_number:
        raise _NumberInspected
    mutated, reason = _return_mutations(graph, [a for a in fake_args if isinstance(a, Tensor)], fake_results)
    tensors = [arg for arg in args if isinstance(arg, Tensor)]
    for after, before in zip([a for a in fake_args if isinstance(a, Tensor)], tensors, strict=True):
        if after.shape != before.shape or after.stride() != before.stride():
            reason = "it changes the shape of an argument in place"
    if refusals.refusal is not None:
        reason = f"torch refuses a call in it: {refusals.refusal}"
    if any(log.strides != eager_log.strides for log in logs):
        reason = "it reads the strides of a tensor that has others in a plan"
    if watch.is_changed and any(log.views != eager_log.views for log in logs):
        reason = "it modifies a tensor in place, after a call that returns a copy here and a view in a plan"
    reason = watch.unsupported_reason or reason
    if not watch.has_attention and any(is_attention(node.target) for node in graph.graph.nodes):
        reason = "it computes attention with a mask that needs a gradient"
    for node in graph.graph.nodes:
        if node.target in STRIDE_OPS:
            source = node.all_input_nodes[0]
            value = source.meta.get("val", getattr(graph, str(source.target), None))
            if value is None or (tuple(value.shape), tuple(value.stride())) not in watch.restrided:
                reason = "it reads the memory of a tensor that has other strides in a plan (as_strided)"
        if node.target is torch.ops.aten.as_strided_scatter.default and torch.is_grad_enabled():
            # torch 2.13 loses the gradient of the elements that are not written.
            reason = "it writes through as_strided, of which torch's derivative is wrong in a plan"
    captured = [str(node.target) for node in graph.graph.nodes if node.op == "get_attr"]
    if any(isinstance(getattr(graph, name), torch.Generator) for name in captured):
        raise UnsupportedError("it draws random numbers from a torch.Generator")
    aliases = find_aliases(fake_results)
    results = [
        ResultLayout(tuple(r.stride()), r.requires_grad) if isinstance(r, Tensor) else None
        for r in fake_results
    ]
    results += [ResultLayout(tuple(tensors[position].stride()), False) for position in mutated]
    positions = {float(value): i for i, value in stand_ins.items()}
    limits = {positions[value]: limit for value, limit in refusals.limits.items()}
    used = tuple(dict.fromkeys(captured))
    return Traced(composite_graph, graph, positions, used, tuple(results), mutated, reason, aliases, limits)


@_torch.without_saved_tensor_hooks()
def trace_composite_calls(
    fn: Callable[..., Any], args: Sequence[Any], traced: Traced
) -> torch.fx.GraphModule:
    """Return the graph with composite ops, even where `traced` was traced without gradients."""
    if torch.is_grad_enabled():
        return traced.composite_graph
    stand_ins = {i: value for value, i in traced.stand_in_positions.items()}
    return _trace_graph(fn, args, stand_ins, decompose=False)


def _return_mutations(
    graph: torch.fx.GraphModule, fake_args: Sequence[Tensor], fake_results: Sequence[Any]
) -> tuple[tuple[int, ...], str | None]:
    """Turn the copies into arguments, which end a functionalized graph, into outputs of it.

    Return the positions of the modified tensors, and the reason if no plan can be built. The function was
    called with the fake arguments, and returned the fake results.
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
    for i, result in enumerate(fake_results):
        for position in copies:
            if result is fake_args[position]:
                outputs[i] = placeholders[position]
            elif isinstance(result, Tensor):
                storage, argument = result.untyped_storage(), fake_args[position].untyped_storage()
                if storage._cdata == argument._cdata:
                    return (), "it returns a view of an argument that it modifies in place"
    for node in copies.values():
        outputs.append(node.args[1])
        node.replace_all_uses_with(node.args[1])
        graph.graph.erase_node(node)
    last.args = (outputs,)
    return tuple(copies), None


def _replace_mutation_ops(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Replace the ops that functionalization makes of in-place ops by ops that torch can differentiate."""
    for node in graph.graph.nodes:
        if node.target is aten.zero.default:
            node.target = aten.zeros_like.default
        elif node.target is aten.copy.default:
            result, source = node.meta["val"], node.args[1]
            with graph.graph.inserting_before(node):
                expanded = graph.graph.call_function(aten.expand.default, (source, list(result.shape)))
            node.target, node.args, node.kwargs = aten._to_copy.default, (expanded,), {"dtype": result.dtype}
    return graph


def clean_up(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Drop dead nodes, replace the in-place squeeze of torch's matmul, and number the random ops."""
    for node in graph.graph.nodes:
        if node.target is aten.squeeze_.dim and len(node.args[0].users) == 1:
            node.target = aten.squeeze.dim
    _eliminate_dead_code(graph)
    for stream, node in enumerate(filter(is_random, graph.graph.nodes)):
        node.meta["stream"] = stream
    return graph


def _eliminate_dead_code(graph: torch.fx.GraphModule) -> None:
    # Random ops are never dead: without one, the ones after it would draw other numbers.
    graph.graph.eliminate_dead_code(lambda node: node.is_impure() or is_random(node))


def skip_views(node: torch.fx.Node) -> torch.fx.Node:
    """Return the node whose memory a node is a view of: itself unless it is a view."""
    while True:
        producer = node.all_input_nodes[0] if node.target is operator.getitem else node
        if not isinstance(producer.target, torch._ops.OpOverload) or not producer.target.is_view:
            return node
        node = producer.all_input_nodes[0]


def is_random(node: torch.fx.Node) -> bool:
    """Whether a node draws random numbers. Its ``meta["stream"]`` counts these nodes in the graph."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    # Ops of attention draw random numbers for dropout only.
    names = [argument.name for argument in cast("Any", node.target)._schema.arguments]
    arguments = dict(zip(names, node.args, strict=False)) | node.kwargs
    return "dropout_p" not in names or arguments.get("dropout_p", 0.0) != 0.0


def _is_same_graph(
    one: torch.fx.GraphModule, two: torch.fx.GraphModule, stand_ins: dict[float, float]
) -> bool:
    """Whether two traces are equal but for their stand-ins; `stand_ins` maps the first's to the second's."""
    left, right = list(one.graph.nodes), list(two.graph.nodes)
    if len(left) != len(right):
        return False
    counterparts = dict(zip(left, right, strict=True))

    def translate(value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            return counterparts[value]
        return stand_ins.get(float(value), value) if isinstance(value, float) else value

    for a, b in zip(left, right, strict=True):
        left_args = torch.fx.node.map_aggregate((a.args, a.kwargs), translate)
        right_args = torch.fx.node.map_aggregate((b.args, b.kwargs), lambda v: v)
        if a.target != b.target and a.op != "placeholder":
            return False
        if a.op == "get_attr":
            x, y = getattr(one, str(a.target)), getattr(two, str(b.target))
            # A tensor that the function creates from a number is a constant of the graph.
            if x is not y and not (x.dtype == y.dtype and torch.equal(x, y)):
                return False
        if not _is_identical(left_args, right_args):
            return False
    return True


def _is_identical(a: Any, b: Any) -> bool:
    """Whether arguments are equal, with floats compared bit by bit."""
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(_is_identical, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_is_identical(a[k], b[k]) for k in a)
    if isinstance(a, float) and isinstance(b, float):
        return a.hex() == b.hex()
    return bool(a == b)


def why_unsupported(traced: Traced, device: torch.device) -> str | None:
    """Return why no plan for arguments on this device can be built; None if one can.

    An op is not supported, say, or writes in place, or makes a tensor on another device.
    """
    if traced.unsupported_reason is not None:
        return traced.unsupported_reason
    results = traced.graph.graph.output_node().all_input_nodes
    for node in traced.graph.graph.nodes:
        if node.op != "call_function":
            continue
        if node.target is aten._assert_async.msg:
            continue  # of one_hot, say; it is called for its error
        if "val" not in node.meta:
            return f"{node.target} returns nothing"
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
            return f"{node.target} modifies a tensor in place"
        for value in tree_leaves(node.meta["val"]):
            # torch keeps numbers of the host's in tensors without axes, which kernels get as numbers.
            is_number = isinstance(value, Tensor) and value.dim() == 0 and node not in results
            if isinstance(value, Tensor) and value.device != device and not is_number:
                return f"{node.target} makes a tensor on {value.device}, and the arguments are on {device}"
    return None
