"""Inference: what depends on parameters alone is computed once, and again when a parameter has changed.

A graph is rewritten for constant parameters: a batch norm becomes part of the convolution or product before
it, weights are packed for oneDNN, whose calls compute activations too, and convolutions run channels-last.
What depends on parameters alone is then a graph of its own; its results are arguments of the other.
"""

from __future__ import annotations

import operator
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from burnt import _torch
from burnt.codegen.frontend.overlap import STRIDE_OPS, find_aliases
from burnt.codegen.frontend.trace import PLANNING_LOCK, decompositions, is_random, skip_views
from burnt.codegen.schedule.placement import RESHAPE_OPS, VIEW_OPS
from burnt.device import processor
from burnt.errors import FusionWarning
from burnt.kernels.ops.conv.conv import EPILOGUES as CONV_EPILOGUES
from burnt.kernels.ops.conv.conv import folded_norm
from burnt.kernels.ops.matmul import ONEDNN_EPILOGUES as LINEAR_EPILOGUES
from burnt.kernels.ops.matmul import is_onednn_best

aten, mkldnn = torch.ops.aten, torch.ops.mkldnn
_Node = torch.fx.Node
_Boxed = Callable[[list[Any]], Any]
_Plan = Callable[[torch.fx.GraphModule, frozenset[int]], _Boxed]

_BATCH_NORM = aten._native_batch_norm_legit_no_training.default
# A value is computed once if it takes no more bytes than what it is computed from, or no more than these.
_FEW_BYTES = 1 << 20

COMPOSITE = (_BATCH_NORM, aten.gelu.default, aten.silu.default, aten.hardswish.default)
"""Ops that must not be decomposed before a graph is rewritten."""


class Constants:
    """Values computed from parameters: for each set of parameters, until one of them changes or is freed."""

    def __init__(self) -> None:
        self.entries: dict[tuple[int, ...], tuple[list[Any], list[Any], dict[object, list[Tensor]]]] = {}
        self.has_warned = False

    def of(
        self, sources: Sequence[Tensor], key: object, compute: Callable[[], list[Tensor]]
    ) -> Sequence[Tensor]:
        """Return what `compute` returns, kept under a key."""
        ids = tuple(map(id, sources))
        try:
            state = [(source._version, source.data_ptr()) for source in sources]
        except RuntimeError:  # they have no version
            if not self.has_warned:
                self.has_warned = True
                warnings.warn(
                    'burnt.compile(mode="infer"): parameters were made in inference mode, where torch does '
                    "not count changes: what depends on them is computed at every call",
                    FusionWarning,
                    stacklevel=2,
                )
            return _in_normal_mode(compute)
        entry = self.entries.get(ids)
        if entry is None or entry[0] != state:
            entries = self.entries
            # Of the storages, too: another one may get the address of one that is freed.
            owners: list[Any] = [owner for t in sources for owner in (t, t.untyped_storage())]
            references = [weakref.ref(owner, lambda _: entries.pop(ids, None)) for owner in owners]
            entry = entries[ids] = state, references, {}
        values = entry[2].get(key)
        if values is None:
            values = entry[2][key] = _in_normal_mode(compute)
        return values


def _in_normal_mode(compute: Callable[[], list[Tensor]]) -> list[Tensor]:
    with torch.inference_mode(False), torch.no_grad(), _torch.without_autocast():
        return compute()


def compile_with_constants(
    graph: torch.fx.GraphModule, parameters: frozenset[int], constants: Constants, plan: _Plan
) -> _Boxed:
    """Return a function of a graph's arguments for which some of them, `parameters`, are constant.

    `plan` compiles what is left of the graph; it takes the positions of arguments that are constant.
    """
    strides = [
        tuple(r.meta["val"].stride()) if isinstance(r, _Node) and _is_tensor(r) else None
        for r in _results(graph.graph)
    ]
    with PLANNING_LOCK:
        rest, arguments, constant, sources, key = _split(graph, parameters)
        count = len(rest.graph.find_nodes(op="placeholder"))
        fixed = frozenset(n for n in range(count) if n >= len(arguments) or arguments[n] in parameters)
        call = plan(_retraced(rest, strides), fixed)

    def run(given: list[Any]) -> Any:
        of = [given[i] for i in sources]
        values = constants.of(of, key, lambda: torch.fx.Interpreter(constant).run(*of))
        taken = [*(given[i] for i in arguments), *values]
        given.clear()
        return call(taken)

    return _torch.boxed(run, takes_list=True)


def _retraced(graph: torch.fx.GraphModule, strides: Sequence[tuple[int, ...] | None]) -> torch.fx.GraphModule:
    """Trace a graph again, with its composite ops decomposed, and results of the given strides."""

    def call(*given: Any) -> list[Any]:
        pairs = zip(graph(*given), strides, strict=True)
        return [r if wanted is None else _restrided(r, wanted) for r, wanted in pairs]

    inputs = [node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")]
    copies = [t.new_empty_strided(t.shape, t.stride()) for t in inputs]
    copies = [c.conj() if t.is_conj() else c for c, t in zip(copies, inputs, strict=True)]
    copies = [torch._neg_view(c) if t.is_neg() else c for c, t in zip(copies, inputs, strict=True)]
    return _torch.retraced(call, copies, decompositions())


def _restrided(tensor: Tensor, strides: Sequence[int]) -> Tensor:
    """Return a tensor with these strides, those of a permuted contiguous one; a copy if it has others."""
    if tensor.stride() == tuple(strides):
        return tensor
    order = sorted(range(tensor.dim()), key=lambda axis: (-strides[axis], axis))
    inverse = [order.index(axis) for axis in range(tensor.dim())]
    return tensor.permute(order).contiguous().permute(inverse)


# --- the graph of what depends on parameters alone ---------------------------------------------------------


class _Split(NamedTuple):
    """A graph in two: what depends on parameters alone, and the rest, whose last arguments that computes."""

    rest: torch.fx.GraphModule
    arguments: list[int]  # the arguments of the graph that the rest takes
    constant: torch.fx.GraphModule
    sources: list[int]  # those that `constant` takes
    key: object  # of two graphs with one key, the constants are the same


def _split(graph: torch.fx.GraphModule, parameters: frozenset[int]) -> _Split:
    rest = torch.fx.GraphModule(graph, _copied(graph.graph))
    _erase_dead(rest.graph)  # such as statistics that a batch norm returns
    inputs = rest.graph.find_nodes(op="placeholder")
    rewriter = _Rewriter(rest.graph, [inputs[i] for i in sorted(parameters)])
    rewriter.rewrite()
    _erase_dead(rest.graph)
    folded = [node for node in rest.graph.nodes if node in rewriter.folded]
    kept = [node for node in folded if any(user not in rewriter.folded for user in node.users)]
    constant = torch.fx.Graph()
    values: dict[_Node, _Node] = {}
    needed = set(kept)
    for node in reversed(rest.graph.nodes):
        if node in needed:
            needed.update(node.all_input_nodes)
    for node in rest.graph.nodes:
        if node in needed:
            values[node] = constant.node_copy(node, values.__getitem__)
    constant.output([values[node] for node in kept])
    sources = [i for i, node in enumerate(inputs) if node in needed]
    sizes = "size"  # the layout of a packed weight is chosen for the first
    key = (*sources, *((n.name, n.args, {**n.kwargs, sizes: None}) for n in constant.nodes))
    first = next(node for node in rest.graph.nodes if node.op != "placeholder")
    for i, node in enumerate(kept):
        with rest.graph.inserting_before(first):
            argument = rest.graph.placeholder(f"constant{i}")
        argument.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(argument)
    _erase_dead(rest.graph)
    arguments = [i for i, node in enumerate(inputs) if node.users]
    for node in inputs:
        if not node.users:
            rest.graph.erase_node(node)
    rest.recompile()
    return _Split(rest, arguments, torch.fx.GraphModule(graph, constant), sources, str(key))


def _copied(graph: torch.fx.Graph) -> torch.fx.Graph:
    copy = torch.fx.Graph()
    copy.output(copy.graph_copy(graph, {}))
    return copy


def _erase_dead(graph: torch.fx.Graph) -> None:
    graph.eliminate_dead_code(lambda node: node.is_impure() or is_random(node))


def _results(graph: torch.fx.Graph) -> Sequence[Any]:
    (results,) = graph.output_node().args
    return results if isinstance(results, tuple | list) else (results,)


def _is_tensor(node: _Node) -> bool:
    return isinstance(node.meta.get("val"), Tensor)


class _Rewriter:
    """Rewrites a graph for constant parameters, and knows what can be computed once: `folded`."""

    def __init__(self, graph: torch.fx.Graph, parameters: Sequence[_Node]) -> None:
        self.graph = graph
        results = [r for r in _results(graph) if isinstance(r, _Node)]
        # Other strides of an image must not show.
        self.may_restride = (
            not any(node.target in STRIDE_OPS for node in graph.nodes)
            and not find_aliases([r.meta.get("val") for r in results]).by_position
        )
        # Parameters that the graph does not change, and views of them; what is computed from those.
        self.raw = {p for p in parameters if not any(_torch.writes_to_argument(u.target) for u in p.users)}
        self.folded: set[_Node] = set()
        returned = {skip_views(r) for r in results} | set(results)  # a caller may change them
        for node in graph.nodes:
            if node.op != "call_function" or not node.all_input_nodes or node in returned:
                continue
            if not self.are_constant(node.all_input_nodes):
                continue
            if node.target in VIEW_OPS and self.raw.issuperset(node.all_input_nodes):
                self.raw.add(node)
            elif self.is_worth(node):
                self.folded.add(node)

    def are_constant(self, nodes: Sequence[_Node | None]) -> bool:
        return all(node is None or node in self.raw or node in self.folded for node in nodes)

    def is_worth(self, node: _Node) -> bool:
        """Whether an op of constants may be computed once, and its result be kept."""
        if is_random(node) or _torch.writes_to_argument(node.target) or not _is_tensor(node):
            return not is_random(node) and node.target is operator.getitem
        sources = sum(n.meta["val"].nbytes for n in node.all_input_nodes if _is_tensor(n))
        return bool(node.meta["val"].nbytes <= max(sources, _FEW_BYTES))

    def add(self, target: Callable[..., Any], *arguments: Any, like: Any = None, **options: Any) -> _Node:
        """Add a call before the node that is rewritten; `like` is its value, if it is constant."""
        node = self.graph.call_function(target, arguments, options)
        if like is not None:
            node.meta["val"] = like
            self.folded.add(node)
        return node

    def rewrite(self) -> None:
        for node in list(self.graph.nodes):
            if node.target is aten.convolution.default:
                self.rewrite_conv(node)
            elif node.target in (aten.mm.default, aten.addmm.default):
                self.rewrite_linear(node)
            elif node.target in (aten.view.default, aten._unsafe_view.default):
                node.target = aten.reshape.default  # of an image that is channels-last now

    def rewrite_conv(self, node: _Node) -> None:
        arguments: Any = node.args
        x, weight, bias, stride, padding, dilation, transposed, *_, groups = arguments
        if transposed or not self.are_constant([weight, bias]):
            return
        weight, bias, last = self.with_norm(node, weight, self.contiguous(bias))
        image, sizes = x.meta["val"], (padding, stride, dilation, groups)
        kernel = weight.meta["val"].shape[2:]
        if image.shape[2:].numel() == kernel.numel() == 1 and groups == 1 and not any(padding):
            with self.graph.inserting_before(last):
                new = self.pixel_by_product(x, weight, bias, node.meta["val"].shape)
        elif self.may_restride and image.dim() == 4 and _is_onednn(image, weight.meta["val"]):
            activation, last = self.with_activation(last, CONV_EPILOGUES)
            with self.graph.inserting_before(last):
                packed = self.add(
                    _packed_conv, weight, *sizes, like=weight.meta["val"], size=tuple(image.shape)
                )
                new = self.add(
                    mkldnn._convolution_pointwise.default,
                    x,
                    packed,
                    bias,
                    *sizes,
                    activation[0],
                    [],
                    activation[1],
                )
        elif last is node:
            return
        else:
            with self.graph.inserting_before(last):
                new = self.add(aten.convolution.default, x, weight, bias, *node.args[3:])
        last.replace_all_uses_with(new, propagate_meta=True)

    def contiguous(self, bias: _Node | None) -> _Node | None:
        """Return a contiguous bias, as oneDNN ignores its strides."""
        if bias is None or bias.meta["val"].is_contiguous():
            return bias
        with self.graph.inserting_after(bias):
            plain = bias.meta["val"].contiguous()
            return self.add(aten.clone.default, bias, memory_format=torch.contiguous_format, like=plain)

    def pixel_by_product(self, x: _Node, weight: _Node, bias: _Node | None, shape: Sequence[int]) -> _Node:
        """Convolve images of one pixel as by a linear layer: a convolution costs more than it computes."""
        rows, value = x.meta["val"].flatten(1), weight.meta["val"].flatten(1)
        matrix = self.add(aten.view.default, weight, list(value.shape), like=value)
        arguments = [
            self.add(aten.reshape.default, x, list(rows.shape)),
            self.add(aten.t.default, matrix, like=value.t()),
        ]
        op = aten.mm.default if bias is None else aten.addmm.default
        product = self.add(op, *([] if bias is None else [bias]), *arguments)
        return self.add(aten.reshape.default, product, list(shape))

    def rewrite_linear(self, node: _Node) -> None:
        arguments: Any = node.args
        *biases, x, weight = arguments
        bias = biases[0] if biases else None
        if not self.are_constant([weight, bias]) or node.kwargs:
            return
        if bias and bias.meta["val"].shape != weight.meta["val"].shape[1:]:  # it is broadcast
            return
        bias = self.contiguous(bias)
        rows = x.meta["val"]
        weight, bias, last = self.with_norm(node, weight, bias, is_transposed=True)
        is_packed = rows.is_contiguous() and _is_onednn(rows, weight.meta["val"].t())
        if is_packed and (rows.itemsize == 2 or is_onednn_best(rows, weight.meta["val"].t())):
            activation, last = self.with_activation(last, LINEAR_EPILOGUES)
            with self.graph.inserting_before(last):
                packed = self.add(_packed_linear, weight, like=weight.meta["val"].t(), size=len(rows))
                new = self.add(
                    mkldnn._linear_pointwise.default, x, packed, bias, activation[0], [], activation[1]
                )
        elif last is node:
            if weight.target in VIEW_OPS:  # the view is made once, too
                self.folded.add(weight)
            return
        else:
            with self.graph.inserting_before(last):
                new = self.add(aten.addmm.default, bias, x, weight)
        last.replace_all_uses_with(new, propagate_meta=True)

    def with_norm(
        self, node: _Node, weight: _Node, bias: _Node | None, *, is_transposed: bool = False
    ) -> tuple[_Node, _Node | None, _Node]:
        """Return weight and bias with the batch norm that takes the node's result, and the last node."""
        norm: Any = next(iter(node.users))
        if len(node.users) > 1 or norm.target is not _BATCH_NORM or not self.are_constant(norm.args[1:5]):
            return weight, bias, node
        (result,), value = norm.users, weight.meta["val"]
        axis = -1 if is_transposed else 0
        with self.graph.inserting_before(norm):
            both = self.add(_with_norm, weight, bias, *norm.args[1:5], norm.args[6], axis, like=())
            new = self.add(operator.getitem, both, 0, like=value)
            shift = self.add(operator.getitem, both, 1, like=value.new_empty(value.shape[axis]))
        return new, shift, result

    def with_activation(self, last: _Node, epilogues: Any) -> tuple[tuple[str, str], _Node]:
        """Return the activation, as oneDNN has it, that is the only use of a node, and the last node."""
        user: Any = last
        while len(user.users) == 1:
            user = next(iter(user.users))
            name = _activation(user)
            if name in epilogues and name is not None:
                if user.args[0] is last:
                    return epilogues[name], user
                user.replace_all_uses_with(user.args[0])  # a product may be reshaped before
                return epilogues[name], last
            if user.target not in RESHAPE_OPS:
                break
        return epilogues[None], last


def _activation(node: Any) -> str | None:
    """Return the name of an activation in `burnt.kernels.ACTIVATIONS`."""
    if node.target is aten.gelu.default:
        return "gelu_tanh" if node.kwargs.get("approximate") == "tanh" else "gelu"
    names = {aten.silu.default: "silu", aten.hardswish.default: "hardswish"}
    return names.get(node.target)


def _is_onednn(x: Tensor, weight: Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype in processor().onednn and min(x.numel(), weight.numel()) > 0


# --- what is computed once --------------------------------------------------------------------------------


def _with_norm(
    weight: Tensor, bias: Tensor | None, scale: Tensor | None, shift: Tensor | None, mean: Tensor,
    variance: Tensor, eps: float, axis: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return a weight and bias that do what a batch norm does; `axis` is the one of channels."""
    wide_scale, wide_shift, wide_bias = (None if t is None else t.double() for t in (scale, shift, bias))
    scale, shift = folded_norm(mean.double(), variance.double(), wide_scale, wide_shift, eps, wide_bias)
    by_channel = [1] * weight.dim()
    by_channel[axis] = -1
    return (weight.double() * scale.view(by_channel)).to(weight.dtype), shift.to(weight.dtype)


def _packed_conv(weight: Tensor, *sizes: Any, size: Sequence[int]) -> Tensor:
    plain = weight.detach().contiguous(memory_format=torch.channels_last)
    return _torch.onednn_packed_conv(plain, size, *sizes)


def _packed_linear(weight: Tensor, *, size: int) -> Tensor:
    return _torch.onednn_packed(weight.detach().t(), size)
