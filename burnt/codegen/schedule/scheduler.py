"""Scheduling: turn a traced graph into a plan, the kernels and torch calls that compute it.

Each node is lowered to a `Value`: a function from an index to an expression. Views and elementwise ops are
computed where they are read. Only these tensors are stored in memory: the function's results, inputs and
outputs of torch's own calls, what a rule of `burnt.codegen.schedule.placement` names, and intermediates that
`burnt.codegen.schedule.fusion` cannot compute in the kernel that reads them. The plan must be correct first,
and then move as few bytes as possible.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Sequence
from typing import Any

import torch

from burnt.codegen.frontend.refusals import is_dtype_unsupported
from burnt.codegen.frontend.trace import Traced, is_random, skip_views
from burnt.codegen.ir import (
    DTYPES,
    Buffer,
    Expr,
    Index,
    IndexExpr,
    Kernel,
    Reduction,
    Value,
    Var,
    load,
    rebuild,
    substitute,
    unravel,
    walk,
)
from burnt.codegen.ir.loops import contiguous_strides, merge_splits, new_index, split_loops
from burnt.codegen.lower import LOWERINGS, Scalar, Unlowered
from burnt.codegen.lower.elementwise import FLOAT8_FORMATS, find_float8_nodes
from burnt.codegen.lower.matmul import (
    MATMUL_LOWERINGS,
    MM_OPS,
    count_reads,
    expensive_row_parts,
    is_cheap_operand,
    operands_of,
)
from burnt.codegen.lower.random import RandomSource
from burnt.codegen.lower.reduction import FLOAT64_OPS
from burnt.codegen.schedule.capabilities import Capabilities
from burnt.codegen.schedule.fusion import KernelBuilder, reductions_of
from burnt.codegen.schedule.passes import is_cheap
from burnt.codegen.schedule.placement import (
    ALIAS_OPS,
    PERMUTE_OPS,
    RESHAPE_OPS,
    VIEW_OPS,
    skip_reshapes,
    stored_nodes,
)
from burnt.codegen.schedule.rounding_hazards import find_equality_sensitive_sums
from burnt.errors import DefinitionError, UnsupportedError

# An expression with more nodes, or a longer chain of them, is materialized instead of inlined.
_MAX_EXPRS, _MAX_DEPTH = 2000, 200
# A value is small if its reductions read this many times more elements, as a norm's statistics do.
_SMALL_RATIO = 8


@dataclasses.dataclass(eq=False)
class TorchCall:
    """A step that calls torch's op for a node instead of a generated kernel."""

    node: torch.fx.Node  # the op with its arguments; `inputs` holds the tensors among them
    inputs: dict[torch.fx.Node, Buffer]  # FX node -> buffer that holds its value
    outputs: list[Buffer | None]  # the buffer of each result; None for a result that is not a tensor
    reason: str = "not lowered"


@dataclasses.dataclass(eq=False)
class Plan:
    """The steps that compute a traced function, and the buffers between them."""

    # The function's tensor arguments, then the captured tensors, then the seed if there is one.
    inputs: list[Buffer]
    outputs: list[Buffer | Any]  # for each result, the buffer that holds it, or a constant
    steps: list[Kernel | TorchCall]  # kernels and torch calls, in execution order
    # Positions, among the function's arguments, of the run-time numbers for the kernels.
    number_positions: list[int]
    seed: Buffer | None = None  # the seed of the random numbers; None if the function draws none
    # The shape of each result that kernels write under another shape; both are contiguous.
    result_shapes: dict[Buffer, tuple[int, ...]] = dataclasses.field(default_factory=dict)


def schedule(traced: Traced, captured: Sequence[torch.Tensor], target: Capabilities) -> Plan:
    """Return the plan of a traced function, with the tensors that it captured in order."""
    return _Scheduler(traced, captured, target).build_plan()


def _check_lowering(node: torch.fx.Node, result: Any) -> None:
    """Check a lowering's result against torch's shape and dtype: a larger one would be read past its end."""
    expected = node.meta["val"]
    pairs = (
        zip(result, expected, strict=False) if isinstance(expected, tuple | list) else [(result, expected)]
    )
    for value, meta in pairs:
        if not isinstance(meta, torch.Tensor):
            continue
        if not isinstance(value, Value) or (value.shape, value.dtype) != (tuple(meta.shape), meta.dtype):
            found = f"{value.shape} of {value.dtype}" if isinstance(value, Value) else repr(value)
            raise DefinitionError(
                f"the lowering of {node.target} returns another shape or dtype than the op",
                where=node.name,
                expected=f"a Value of shape {tuple(meta.shape)} of {meta.dtype}",
                found=found,
            )


class _Scheduler:
    """Schedules one trace: lowers nodes in order, and builds kernels when a call or the end needs them."""

    def __init__(self, traced: Traced, captured: Sequence[torch.Tensor], target: Capabilities) -> None:
        self.traced, self.target = traced, target
        (self.results,) = next(iter(reversed(traced.graph.graph.nodes))).args
        self.builder = KernelBuilder(target)
        self.captured = dict(zip(traced.captured, captured, strict=True))
        self.env: dict[torch.fx.Node, Any] = {}  # the value of each node, as in `torch.fx.Interpreter`
        # One index per shape; expressions at the same index can be compared by identity.
        self.probe_indices: dict[tuple[int, ...], Index] = {}
        self.inputs: list[Buffer] = []
        self.steps: list[Kernel | TorchCall] = []
        self.pending: list[tuple[Buffer, Value]] = []  # stores whose kernels are not built yet
        # By ``id(value)``, a value that is in memory, which is kept alive, and its buffer.
        self.in_memory: dict[int, tuple[Value, Buffer]] = {}
        # By matmul operand and axis, the operand with its row statistics read from memory.
        self.hoisted: dict[tuple[int, int], tuple[Value, Value]] = {}
        self.statistics: dict[Expr, Buffer] = {}  # of rows, by their expression at the probe index
        self.seed: Buffer | None = None
        self.result_shapes: dict[Buffer, tuple[int, ...]] = {}  # as in `Plan`
        self.view_buffers: dict[torch.fx.Node, Buffer] = {}  # of views that torch's own call makes
        self.float8_nodes = find_float8_nodes(traced.graph.graph.nodes)
        self.stored = stored_nodes(traced.graph.graph, lambda node: self.why_call(node) is not None)
        # Of the nodes among them whose stores are pending: with buffer and value.
        self.being_stored: list[tuple[torch.fx.Node, Buffer, Value]] = []
        # Buffers that are results, each with the node whose memory it is (`skip_views`).
        self.returned: dict[Buffer, torch.fx.Node] = {}

    def build_plan(self) -> Plan:
        """Lower all nodes, store the results, and return the plan."""
        nodes = list(self.traced.graph.graph.nodes)
        equality_sensitive = find_equality_sensitive_sums(self.traced.graph.graph).sums
        captured: dict[str, Value] = {}
        for node in nodes:
            if node.op == "placeholder":
                self.env[node] = self.add_input(node.meta["val"])
        for node in nodes:
            if node.op == "get_attr" and node not in self.env:
                # Every use of a captured tensor has a node of its own, for the same tensor.
                name = str(node.target)
                if name not in captured:
                    captured[name] = self.add_input(self.captured[name])
                self.env[node] = captured[name]
            elif node.op == "call_function":
                self.env[node] = self.lower_node(node)
                if node in equality_sensitive and isinstance(self.env[node], Value):
                    self.materialize(self.env[node], node)
                if node in self.stored:
                    self.store(node)
        outputs = [self.output_for(node, i) for i, node in enumerate(self.results)]
        self.flush_pending()
        inputs = [*self.inputs, *([self.seed] if self.seed is not None else [])]
        return Plan(
            inputs,
            outputs,
            self.steps,
            sorted(self.traced.stand_in_positions.values()),
            self.seed,
            self.result_shapes,
        )

    def add_input(self, tensor: torch.Tensor) -> Value:
        """Add an input of the plan, and return the value that loads it."""
        position = len(self.inputs)
        buffer = Buffer(
            f"x{position}", "input", position, tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype
        )
        self.inputs.append(buffer)
        return self.load_buffer(buffer)

    def load_buffer(self, buffer: Buffer) -> Value:
        """Return a value whose elements are loads from a buffer."""

        def at(index: Index) -> Expr:
            offset = buffer.at(index)  # of a reshaped view: quotients and remainders, which often cancel
            return load(
                buffer, merge_splits(offset, {}) if offset.terms.keys() - offset.variables() else offset
            )

        value = Value(buffer.shape, buffer.dtype, at)
        self.in_memory[id(value)] = (value, buffer)
        return value

    def buffer_holding(self, value: Any) -> Buffer | None:
        """Return the buffer that holds a value; None if it is not in memory."""
        entry = self.in_memory.get(id(value))
        return None if entry is None else entry[1]

    def lower_node(self, node: torch.fx.Node) -> Any:
        """Return the value of a node: lowered, or loaded from the output of a torch call."""
        reason = self.why_call(node)
        if reason is not None:
            return self.add_call(node, reason)
        if node.target in MATMUL_LOWERINGS and self.target.why_torch_matmul is not None:
            return self.lower_matmul(node)
        args, kwargs = torch.fx.node.map_aggregate((node.args, node.kwargs), self.lowered_argument)
        if is_random(node):
            kwargs = {**kwargs, "source": self.random_source(node)}  # type: ignore[dict-item]
        if node.target in FLOAT64_OPS:
            kwargs = {**kwargs, "has_fast_float64": self.target.has_fast_float64}
        if "needs_indices" in node.meta:
            kwargs = {**kwargs, "needs_indices": True}
        try:
            result = LOWERINGS[node.target](node.meta["val"], *args, **kwargs)
        except Unlowered:
            # The lowering does not support these arguments: call torch's op.
            return self.add_call(node)
        _check_lowering(node, result)
        return self.materialize_if_large(node, result)

    def why_call(self, node: torch.fx.Node) -> str | None:
        """Return why torch's op is called for a node; None if its lowering makes a kernel of it."""
        lowering = LOWERINGS.get(node.target)
        metas = [node.meta.get("val"), *(n.meta.get("val") for n in node.all_input_nodes)]
        is_supported = node.target is operator.getitem or all(
            not isinstance(m, torch.Tensor)
            or _is_supported(m)
            or (m.dtype in FLOAT8_FORMATS and node in self.float8_nodes)
            for m in metas
        )
        reason = self.target.why_torch_call(node)
        if reason is not None:
            return reason
        if lowering is not None and is_dtype_unsupported(node.target, metas[1:]):
            return "torch refuses this dtype"
        if node.target in MATMUL_LOWERINGS and is_supported and self.target.why_torch_matmul is not None:
            return self.target.why_torch_matmul(node)
        return None if lowering is not None and is_supported else node.meta.get("library", "not lowered")

    def lower_matmul(self, node: torch.fx.Node) -> Any:
        """Lower a matmul to a kernel. Expensive operands are materialized: tiles and taps read them again."""
        hoisted: dict[torch.fx.Node, Value] = {}
        for operand, axis in zip(operands_of(node), (-1, -2), strict=False):
            value = self.env[operand]
            element, num_reads = value.at(new_index(value.shape)), count_reads(node, operand)
            is_stored = operand in self.results  # anyway, so it is read back
            if not is_stored and is_cheap_operand(element, num_reads):
                continue
            can_hoist = node.target in MM_OPS and not is_stored
            cheap = self.hoist_row_statistics(value, len(value.shape) + axis) if can_hoist else None
            if cheap is not None:
                hoisted[operand] = cheap
            else:
                self.materialize(value, operand)

        def argument(arg: Any) -> Any:
            cheap = hoisted.get(arg) if isinstance(arg, torch.fx.Node) else None
            return self.lowered_argument(arg) if cheap is None else cheap

        args, kwargs = torch.fx.node.map_aggregate((node.args, node.kwargs), argument)
        try:
            return self.materialize_if_large(
                node, MATMUL_LOWERINGS[node.target](node.meta["val"], *args, **kwargs)
            )
        except Unlowered:
            return self.add_call(node)

    def hoist_row_statistics(self, value: Value, reduced_axis: int) -> Value | None:
        """Materialize the expensive parts of a matmul operand that are the same for a whole row.

        A norm's statistics are such parts; rows run along the axis that the matmul sums over. Return the
        operand with loads in their place, or None if it is still expensive.
        """
        if not value.numel:
            return None  # an axis without elements has no loop, and would look constant
        known = self.hoisted.get((id(value), reduced_axis))
        if known is not None:
            return known[1]
        index = new_index(value.shape)
        reduced_loops = index[reduced_axis].variables()
        expensive = expensive_row_parts(value.at(index), reduced_loops)
        # Reductions of a reshaped tensor have a loop for each of its axes: use the same loops here.
        parts = split_loops(ix for e in walk(expensive) if e.op == "reduced" for ix in e.extra[1])
        if parts:
            index = tuple(ix.substitute(parts) for ix in index)
            expensive = expensive_row_parts(value.at(index), reduced_loops)
        axes = [tuple(v for v in ix.terms if isinstance(v, Var)) for ix in index]
        loops = [v for axis, each in enumerate(axes) if axis != reduced_axis for v in each]
        if not expensive or not reduced_loops or any(e.dtype != torch.float32 for e in expensive):
            return None
        shape = tuple(v.extent for v in loops)
        loads: dict[Expr, Expr] = {}
        new: list[tuple[Buffer, Value]] = []
        probe = self.probe_indices.setdefault(shape, new_index(shape))
        for e in expensive:

            def at(other: Index, e: Expr = e) -> Expr:
                return substitute(e, dict(zip(loops, other, strict=True)))

            # Several matmuls may read the same value, each through its own view.
            buffer = self.statistics.get(at(probe))
            if buffer is None:
                buffer = self.builder.new_temporary(shape, e.dtype)
                new.append((buffer, Value(shape, e.dtype, at)))
            loads[e] = load(buffer, buffer.at(tuple(map(IndexExpr.of, loops))))
        cheap = rebuild(value.at(index), replace=loads.get)
        if not is_cheap_operand(cheap):
            return None

        def cheap_at(other: Index) -> Expr:
            mapping: dict[Var, IndexExpr] = {}
            for each, ix in zip(axes, other, strict=True):
                mapping |= zip(each, unravel(ix, [v.extent for v in each]), strict=True) if each else {}
            return rebuild(substitute(cheap, mapping), lambda ix: merge_splits(ix, {}))

        self.pending += new
        self.statistics |= {statistic.at(probe): buffer for buffer, statistic in new}
        result = Value(value.shape, value.dtype, cheap_at)
        self.hoisted[id(value), reduced_axis] = value, result
        return result

    def random_source(self, node: torch.fx.Node) -> RandomSource:
        """Return the seed and stream of an op that draws random numbers. The first adds the seed buffer.

        ``meta["seed"]`` is the node whose value is the seed of this op only.
        """
        if "seed" in node.meta:
            buffer = self.materialize(self.env[node.meta["seed"]], node.meta["seed"])
            return RandomSource(load(buffer, IndexExpr()), node.meta["stream"])
        if self.seed is None:
            position = sum(n.op == "placeholder" for n in self.traced.graph.graph.nodes) + len(self.captured)
            self.seed = Buffer("seed", "input", position, (1,), (1,), torch.int64)
        return RandomSource(load(self.seed, IndexExpr()), node.meta["stream"])

    def materialize_if_large(self, node: torch.fx.Node, value: Any) -> Any:
        """Materialize the value when its expression is too large to inline; return what to read instead.

        A gather or a sum of neighbours reads several elements of its input at different indices: a few such
        ops in a row make expressions of thousands of nodes.
        """
        if not isinstance(value, Value) or id(value) in self.in_memory or not value.numel:
            return value
        if value.dtype in FLOAT8_FORMATS:
            return value  # has no memory; what reads it may have
        # One index for all values of a shape, so that expressions are found in the cache.
        index = self.probe_indices.setdefault(value.shape, new_index(value.shape))
        if not _is_too_large(value.at(index)):
            return value
        self.materialize(value, node)
        self.flush_pending()
        return self.env[node]

    def lowered_argument(self, value: Any) -> Any:
        """Return an argument for a lowering: the value of a node, or a `Scalar` for a run-time number."""
        if isinstance(value, torch.fx.Node):
            return self.env[value]
        if isinstance(value, float) and value in self.traced.stand_in_positions:
            return Scalar(self.traced.stand_in_positions[value])
        return value

    def add_call(self, node: torch.fx.Node, reason: str = "not lowered") -> Any:
        """Add a call of torch's op, after the kernels of its inputs; return the value of its output."""
        if "seed" in node.meta:
            raise UnsupportedError(f"torch's {node.target} would not draw the numbers of a seed again")
        inputs = {n: self.materialize(self.env[n], n) for n in node.all_input_nodes if _is_tensor(n)}
        self.add_results_of_same_reductions()
        self.flush_pending()
        meta = node.meta.get("val")
        metas = list(meta) if isinstance(meta, tuple | list) else [meta]
        outputs = [self.new_temporary_like(m) if isinstance(m, torch.Tensor) else None for m in metas]
        self.steps.append(TorchCall(node, inputs, outputs, reason))
        values = [None if buffer is None else self.load_buffer(buffer) for buffer in outputs]
        return values if isinstance(meta, tuple | list) else values[0]

    def new_temporary_like(self, meta: torch.Tensor) -> Buffer:
        """Return a new buffer with the shape, dtype and strides of a meta tensor."""
        return self.builder.new_temporary(meta.shape, meta.dtype, meta.stride())

    def materialize(self, value: Value, node: torch.fx.Node) -> Buffer:
        """Return the buffer that holds a value in the node's strides; a new one has its store pending."""
        if self.is_free_view(node):
            return self.add_view(node)
        stored = self.buffer_holding(value)
        if stored is not None and stored.strides == tuple(node.meta["val"].stride()):
            return stored
        buffer = self.new_temporary_like(node.meta["val"])
        self.pending.append((buffer, value))
        self.env[node] = self.load_buffer(buffer)
        return buffer

    def store(self, node: torch.fx.Node) -> None:
        """Store a value where it is computed; what is lowered after the next call loads it.

        Until then it is computed where it is read, as kernels do not load what they store. If it is expensive
        it is loaded at once.
        """
        value = self.env[node]
        if not isinstance(value, Value) or id(value) in self.in_memory or value.dtype in FLOAT8_FORMATS:
            return
        element = value.at(self.probe_indices.setdefault(value.shape, new_index(value.shape)))
        reduced = max((math.prod(r.shape + r.extents) for r, _ in reductions_of(element)), default=0)
        if not is_cheap(element) and reduced < _SMALL_RATIO * value.numel:
            self.materialize(value, node)
            return
        buffer = self.new_temporary_like(node.meta["val"])
        self.in_memory[id(value)] = value, buffer
        self.being_stored.append((node, buffer, value))

    def load_from(self, node: torch.fx.Node, value: Value) -> None:
        """Let what is lowered from now on read a node's value, and views of it, from memory."""
        self.env[node] = value
        for view in node.users:
            if view in self.env and view.target in (*VIEW_OPS, *ALIAS_OPS):
                self.load_from(view, self.lower_node(view))

    def is_free_view(self, node: torch.fx.Node, *, exclusive: bool = False) -> bool:
        """Whether torch can make the node as a view of what is in memory.

        If `exclusive`, only of a call's output that nothing else uses.
        """
        if (
            node.target not in ((*RESHAPE_OPS, *PERMUTE_OPS) if exclusive else VIEW_OPS)
            or id(self.env[node]) in self.in_memory
        ):
            return False
        (base,) = node.all_input_nodes
        if exclusive and len(base.users) > 1:
            return False
        stored = self.buffer_holding(self.env[base])
        if stored is None:
            return self.is_free_view(base, exclusive=exclusive)
        called = {buffer for step in self.steps if isinstance(step, TorchCall) for buffer in step.outputs}
        return stored in called or not exclusive

    def add_view(self, node: torch.fx.Node) -> Buffer:
        """Return the buffer of a view; a torch call makes the view, without a copy."""
        if node not in self.view_buffers:
            (base,) = node.all_input_nodes
            buffer, stored = self.new_temporary_like(node.meta["val"]), self.materialize(self.env[base], base)
            if any(pending is stored for pending, *_ in (*self.pending, *(s[1:] for s in self.being_stored))):
                self.flush_pending()
            self.steps.append(TorchCall(node, {base: stored}, [buffer]))
            self.view_buffers[node] = buffer
        return self.view_buffers[node]

    def output_for(self, node: Any, position: int) -> Any:
        """Return the buffer that holds result number `position`, or the constant that it is."""
        if not isinstance(node, torch.fx.Node):
            return node
        value, meta = self.env[node], node.meta["val"]
        is_own = position < len(self.traced.results)  # the function's own result, not one saved for backward
        layout = self.traced.results[position] if is_own else None
        strides = tuple(meta.stride()) if layout is None else layout.strides
        stored = self.buffer_holding(value)
        if stored is not None and stored.strides == strides and (not is_own or self.may_return(stored, node)):
            return stored
        if strides == tuple(meta.stride()) and self.may_return_view(node):
            return self.add_view(node)
        shape = tuple(meta.shape)
        if (stored := self.stored_under_other_shape(node)) is not None and strides == contiguous_strides(
            shape
        ):
            self.result_shapes[stored] = shape
            return stored
        while (
            node.target in RESHAPE_OPS
            and strides == contiguous_strides(shape)
            and reductions_of(value.at(new_index(shape)))
        ):
            # Store what the reshape reads: its axes are more likely the rows of its reductions.
            node = node.args[0]
            value, shape = self.env[node], tuple(node.meta["val"].shape)
            strides = contiguous_strides(shape)
        buffer = Buffer(f"y{position}", "output", position, shape, strides, meta.dtype)
        if shape != tuple(meta.shape):
            self.result_shapes[buffer] = tuple(meta.shape)
        self.pending.append((buffer, value))
        return buffer

    def may_return_view(self, node: torch.fx.Node) -> bool:
        """Whether a result may be a view, of a call's output or of what `stored_nodes` names."""
        base = skip_reshapes(node, VIEW_OPS)
        if base not in self.stored or base in self.results or not self.is_free_view(node):
            return self.is_free_view(node, exclusive=True)
        stored = self.buffer_holding(self.env[base])
        return stored is not None and stored.role != "input" and self.may_return(stored, node)

    def stored_under_other_shape(self, node: torch.fx.Node) -> Buffer | None:
        """Return the buffer of what a result is a reshape of, if nothing needs it in its own shape."""
        base = skip_reshapes(node)
        stored = self.buffer_holding(self.env[base])
        if base not in self.stored or base in self.results or stored is None or stored.role == "input":
            return None
        read = [b for step in self.steps if isinstance(step, TorchCall) for b in step.inputs.values()]
        is_plain = stored.strides == contiguous_strides(stored.shape) and stored not in self.result_shapes
        return stored if is_plain and stored not in read and self.may_return(stored, node) else None

    def add_results_of_same_reductions(self) -> None:
        """Add the results that read reductions of the pending stores, which would be computed again later.

        A norm's statistics are saved for the backward, and its weight's gradient needs the sums that the
        input's gradient needs.
        """

        def found(value: Value) -> set[Reduction]:
            element = value.at(self.probe_indices.setdefault(value.shape, new_index(value.shape)))
            return {reduction for reduction, _ in reductions_of(self.builder.resolve(element))}

        pending = {reduction for _, value in self.pending for reduction in found(value)}
        for position, node in enumerate(self.results if pending else ()):
            value = self.env.get(node) if isinstance(node, torch.fx.Node) else None
            if not isinstance(value, Value) or id(value) in self.in_memory or not pending & found(value):
                continue
            layout = self.traced.results[position] if position < len(self.traced.results) else None
            if layout is None or layout.strides == tuple(node.meta["val"].stride()):
                self.materialize(value, node)

    def may_return(self, buffer: Buffer, node: torch.fx.Node) -> bool:
        """Whether a result may be the memory of a buffer that holds its value; otherwise it is a copy.

        A lowering may return its argument unchanged, such as that of ``floor`` for integers, where torch
        returns new memory. A result may share memory only with what it is a view of in torch.
        """
        origin = skip_views(node)
        if buffer.role == "input":
            # A result that was an argument must not show the argument's later in-place change.
            is_changed = buffer.position in self.traced.mutated and node.op != "placeholder"
            return origin.op in ("placeholder", "get_attr") and not is_changed
        return self.returned.setdefault(buffer, origin) is origin

    def flush_pending(self) -> None:
        """Build the kernels of the pending stores."""
        # Elementwise values come last: they are fused into a kernel that reads them and reduces.
        values = sorted(self.being_stored, key=lambda s: not reductions_of(s[2].at(new_index(s[2].shape))))
        pending = [*self.pending, *(each[1:] for each in values)]
        self.pending, self.being_stored = [], []
        self.steps += self.builder.build_kernels(pending, [s for s in self.steps if isinstance(s, Kernel)])
        for node, buffer, _ in values:
            self.load_from(node, self.load_buffer(buffer))


def _is_too_large(expr: Expr) -> bool:
    depth: dict[int, int] = {}
    for e in walk([expr]):
        depth[id(e)] = 1 + max((depth[id(a)] for a in e.args), default=0)
    return len(depth) > _MAX_EXPRS or depth[id(expr)] > _MAX_DEPTH


def _is_tensor(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _is_supported(meta: torch.Tensor) -> bool:
    return meta.layout == torch.strided and meta.dtype in DTYPES and not meta.is_quantized
