"""Build: from an onnx_ir graph to a program, by the handlers of its nodes.

A value of the graph is an expression of the program: the name of a tensor, or for what computes shapes,
integers (`Ints`) of sizes and constants.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from burnt.errors import RecordError, UnsupportedError, quantity
from burnt.onnx.importer.dtypes import to_array, to_tensor, torch_dtype
from burnt.onnx.importer.expand import expand, version_of
from burnt.onnx.importer.integers import Ints, compute
from burnt.onnx.importer.matching import shape_of
from burnt.onnx.importer.node import (
    Node,
    attribute_defaults,
    find_handler,
    place_of,
    refuse_attribute,
    shortest_decimal,
    to_text,
)
from burnt.onnx.importer.paths import Paths, layer_path, tensor_hint, unique_name
from burnt.onnx.importer.patterns import rewrite_patterns
from burnt.onnx.importer.program import (
    Call,
    Define,
    Device,
    Leaf,
    Name,
    Program,
    Size,
    Statement,
    names_in,
    run_program,
)
from burnt.onnx.importer.source import MAX_NODES, ConstantLimit
from burnt.onnx.importer.symbols import Sizes

if TYPE_CHECKING:
    import onnx_ir as ir


_BUFFERS = ("running_mean", "running_var", "inv_freq")
"""Ends of names of tensors that PyTorch models compute with, and do not train."""


@dataclass(eq=False)
class Dequantized:
    """The result of a DequantizeLinear: a layer that reads it may compute with the quantized values."""

    node: Node
    build: Build  # of the graph that it is in
    emit: Callable[[Build], Name]  # adds its statement, for readers that need the tensor
    source: Any = None  # for an input that was quantized by the same scale just before, the tensor that was
    name: Name | None = None  # of the tensor, once there is one


@dataclass
class Build:
    """A program that grows, and what is known of the values of the graph."""

    program: Program  # the statements so far
    # layers, parameters and buffers of the module, by path.
    members: dict[str, torch.nn.Module | Tensor] = field(default_factory=dict)
    parent: Build | None = None  # the build of the graph around this one, for bodies of loops and branches
    values: dict[Any, Any] = field(default_factory=dict)  # expressions of values of the graph
    # arrays of values that are constant.
    constants: dict[Any, np.ndarray[Any, Any]] = field(default_factory=dict)
    # of variables and functions of the program, for `unique_name`.
    used_names: dict[str, int] = field(default_factory=dict)
    paths: Paths = field(default_factory=Paths)
    calls_of: dict[Name, Call] = field(default_factory=dict)  # the call that made each result
    # nodes that an earlier node has computed too (the bias of a linear layer), with their result.
    absorbed: dict[Any, Any] = field(default_factory=dict)
    shared_layers: dict[Any, str] = field(default_factory=dict)  # paths of layers by op and weights
    node: ir.Node | None = None  # whose statements are being added
    model_inputs: set[Any] = field(default_factory=set)  # values of the graph that the program takes
    main_input: str = ""  # the first input that is a tensor; empty if there is none
    # sizes of tensors, numbers and names, where their shapes are read.
    shapes: dict[Name, list[Any]] = field(default_factory=dict)
    # tensors of known elements that statements have made already.
    sizes: dict[Any, Name] = field(default_factory=dict)
    # the sizes that weights fix, of values whose shapes are read.
    fixed: dict[Any, Sizes] = field(default_factory=dict)
    # for results of Reshape, the tensor before, its sizes in the file, and those of the result.
    reshaped: dict[Name, tuple[Name, list[Any], list[Any]]] = field(default_factory=dict)
    # for constants, whether all nodes that read them have the same op and weights.
    weights: dict[Any, bool] = field(default_factory=dict)
    # how often nodes that are still to come read a large constant.
    unread: dict[Any, int] = field(default_factory=dict)
    limit: ConstantLimit | None = None  # of the bytes of constants; None if they are not counted

    # --- what handlers read -------------------------------------------------------------------------------

    def value(self, node: Node, index: int) -> Any:
        """Return the expression of an input: None if it is not given, `Ints` for known integers."""
        if not node.has(index):
            return None
        return self.find(node.node.inputs[index])

    def tensor(self, node: Node, index: int) -> Any:
        """Return an input as the name of a tensor; None if it is not given."""
        value = self.value(node, index)
        return self.as_tensor(value)

    def tensors_of(self, node: Node, count: int | None = None) -> list[Any]:
        """Return all inputs, or the first ones, as tensors; None for those that are not given."""
        return [self.tensor(node, i) for i in range(node.num_inputs if count is None else count)]

    def tensor_or_number(self, node: Node, index: int) -> Any:
        """Return an input as a Python number where it is a constant of one element, else as a tensor."""
        array = self.constant(node, index)
        if array is not None and array.size == 1 and array.dtype.kind in "iuf":
            return shortest_decimal(array.item()) if array.dtype == np.float32 else array.item()
        return self.tensor(node, index)

    def known(self, node: Node, index: int) -> Any:
        """Return the expression that an input has already; None for a constant that is not used yet."""
        value = node.node.inputs[index] if node.has(index) else None
        return next((build.values[value] for build in self._around() if value in build.values), None)

    def constant(self, node: Node, index: int) -> np.ndarray[Any, Any] | None:
        """Return an input's value where it is constant, else None."""
        if not node.has(index):
            return None
        value = node.node.inputs[index]
        for build in self._around():
            if value in build.constants or value in build.values:
                return build.constants.get(value)
        return None

    def ints(self, node: Node, index: int) -> list[Any] | None:
        """Return an input as a list of integer expressions, where they are known; else None."""
        constant = self.constant(node, index)
        if (
            constant is not None
            and constant.dtype.kind in "iu"
            and constant.ndim <= 1
            and constant.size <= 64
        ):
            return [int(v) for v in np.atleast_1d(constant)]
        value = self.known(node, index)
        if isinstance(value, Ints) and value.values.ndim <= 1 and value.dtype in (torch.int64, torch.int32):
            return list(value.values.reshape(-1))
        return None

    def integers(self, node: Node, index: int, attribute: str = "") -> Any:
        """Return integers of an attribute or an input: a list if known, else a tensor; None if absent."""
        given = node.attr(attribute) if attribute else None
        if given is not None or not node.has(index):
            return given
        known = self.ints(node, index)
        return self.tensor(node, index) if known is None else known

    def integer(self, node: Node, index: int) -> Any:
        """Return an input of one integer: an expression if it is known, else a tensor."""
        known = self.ints(node, index)
        return known[0] if known else self.tensor(node, index)

    def known_ints(self, node: Node, index: int) -> Ints | None:
        """Return an input whose elements are known: constants, or expressions of sizes; else None."""
        constant = self.constant(node, index)
        if constant is not None:
            return Ints.constant(constant)
        value = self.known(node, index)
        return value if isinstance(value, Ints) else None

    def rank(self, node: Node, index: int) -> int | None:
        """Return the number of axes of an input, where it is known."""
        value = node.node.inputs[index]
        shape = value.shape if value is not None else None
        return None if shape is None else len(shape)

    def is_size(self, size: Any, x: Name, axis: int, sizes: Sequence[Any]) -> bool:
        """Whether an expression is the size of an axis of a tensor: by its number, its name or as it is.

        `sizes` are the tensor's in the file: numbers, names, or None for those that are not known.
        """
        if size == Size(x, axis):
            return True
        if isinstance(size, Size) and size.axis is not None:
            known = self.root.shapes.get(size.tensor)
            size = None if known is None else known[size.axis]
        return size is not None and type(size) is type(sizes[axis]) and bool(size == sizes[axis])

    def size_of(self, name: Any) -> Any:
        """Return a size as an expression, by its name in the file: that of the first input with such an axis.

        A number is returned as it is; None if no input has such an axis.
        """
        if not isinstance(name, str):
            return name
        root = self.root
        for value, expr in root.values.items():
            if value not in root.model_inputs:
                return None  # the inputs come first
            if name in (sizes := shape_of(value)):
                root.shapes.setdefault(expr, sizes)
                return Size(expr, sizes.index(name))
        return None

    def sizes_of_inputs(self) -> dict[Size, Size]:
        """Return for sizes of results the sizes of the inputs whose axes have their names in the file."""
        found: dict[Size, Size] = {}

        def leaf(one: Leaf) -> Leaf:
            if isinstance(one, Size) and one.axis is not None:
                sizes = self.shapes.get(one.tensor, [])
                size = self.size_of(sizes[one.axis]) if one.axis < len(sizes) else None
                if isinstance(size, Size) and size != one:
                    found[one] = size
            return one

        self.program.replaced(leaf)
        return found

    def is_shape(self, shape: Sequence[Any], x: Name, sizes: Sequence[Any]) -> bool:
        """Whether sizes to reshape to, of which one may be -1, are a tensor's sizes."""
        is_other = (
            size not in (-1, 0) and not self.is_size(size, x, axis, sizes) for axis, size in enumerate(shape)
        )
        return len(shape) == len(sizes) and list(shape).count(-1) <= 1 and not any(is_other)

    def is_weight(self, node: Node, index: int) -> bool:
        """Whether a constant input is read only by this node, or by nodes of the same weights.

        What other nodes read too stays a parameter of the module, so that it is trained as one.
        """
        value = node.node.inputs[index] if node.has(index) else None
        if value is None or value.is_graph_output():
            return False
        weights = self.root.weights
        if value not in weights:
            weights[value] = _call_one_layer([use.node for use in value.uses()])
        return weights[value]

    def may_be_trained(self, node: Node, index: int) -> bool:
        """Whether a constant input may be a weight, and not a number of a computation."""
        value = node.node.inputs[index]
        return value is not None and _may_be_trained(value)

    def dtype(self, node: Node, index: int) -> torch.dtype | None:
        """Return the dtype of an input, where it is known."""
        value = node.node.inputs[index] if node.has(index) else None
        return None if value is None or value.dtype is None else torch_dtype(value.dtype.value)

    # --- what handlers add --------------------------------------------------------------------------------

    def call(self, function: str, *args: Any, hint: str = "x", **kwargs: Any) -> Name:
        """Add a statement that calls a function, and return the name of its result."""
        (name,) = self.calls(function, *args, count=1, hint=hint, **kwargs)
        return name

    def calls(
        self, function: str, *args: Any, count: int, hint: str = "x", **kwargs: Any
    ) -> tuple[Name, ...]:
        """Add a statement that calls a function with several results, and return their names."""
        names = tuple(self.new_name(hint) for _ in range(count))
        arguments = tuple(self.as_expr(arg) for arg in args)
        keywords = {key: self.as_expr(value) for key, value in kwargs.items()}
        call = Call(function, arguments, keywords)
        self.program.statements.append(Statement(names, call))
        self.calls_of |= dict.fromkeys(map(Name, names), call) if count == 1 else {}
        return tuple(map(Name, names))

    def unsqueeze(self, x: Name, axes: list[int], rank: int, *, is_only_use: bool = True) -> Name:
        """Add a statement that inserts axes of size 1; a chain of them is one call.

        `axes` are in order and count in the result, which has `rank` axes.
        """
        if is_only_use and (known := self.unsqueezed(x)) is not None:
            x, before = known
            rest = [axis for axis in range(rank) if axis not in axes]
            axes = sorted([*axes, *(rest[axis] for axis in before)])
        function, where = ("torch.unsqueeze", axes[0]) if len(axes) == 1 else ("ops.unsqueeze", axes)
        return self.call(function, x, where, hint="x")

    def permute(self, x: Any, axes: Sequence[int], *, is_only_use: bool = True) -> Any:
        """Add a statement that permutes axes; a chain of them is one call."""
        if is_only_use and (known := self.permuted(x, len(axes))) is not None:
            x, before = known
            axes = [before[axis] for axis in axes]
        axes = list(axes)
        swapped = [i for i, axis in enumerate(axes) if i != axis]
        if not swapped:
            return x
        if len(swapped) == 2:
            return self.call("torch.transpose", x, *swapped, hint="transposed")
        return self.call("torch.permute", x, tuple(axes), hint="transposed")

    # --- what was added before ----------------------------------------------------------------------------

    def maker(self, x: Any, *functions: str) -> Call | None:
        """Return the call of one of some functions that made a tensor."""
        call = self.calls_of.get(x) if isinstance(x, Name) else None
        return call if call is not None and call.function in functions else None

    def unsqueezed(self, x: Any) -> tuple[Any, list[int]] | None:
        """Return the tensor before axes of size 1 were inserted, and these axes."""
        call = self.maker(x, "torch.unsqueeze", "ops.unsqueeze")
        axes: Any = None if call is None else call.args[1]
        axes = [axes] if type(axes) is int else axes
        is_known = isinstance(axes, list) and all(type(axis) is int and axis >= 0 for axis in axes)
        return (call.args[0], axes) if call is not None and is_known else None

    def permuted(self, x: Any, rank: int) -> tuple[Any, list[int]] | None:
        """Return the tensor before its axes were permuted, and the order of its axes."""
        call = self.maker(x, "torch.transpose", "torch.permute")
        if call is None:
            return None
        source, *axes = call.args
        if call.function == "torch.permute":
            return source, list(axes[0])  # type: ignore[arg-type]
        order: list[Any] = list(range(rank))
        order[axes[0]], order[axes[1]] = axes[1], axes[0]  # type: ignore[index]
        return source, order

    def slices(self, x: Any, rank: int) -> tuple[Any, dict[int, tuple[Any, Any, Any]]] | None:
        """Return the tensor before axes were cut, and start, end and step by axis."""
        call = self.maker(x, "ops.slice_")
        if call is None or "axes" not in call.kwargs:
            return None
        starts: Any
        ends: Any
        source, starts, ends = call.args
        axes: Any = call.kwargs["axes"]
        steps: Any = call.kwargs.get("steps", [1] * len(axes) if isinstance(axes, list) else None)
        if not all(isinstance(one, list) and len(one) == len(axes) for one in (starts, ends, axes, steps)):
            return None
        bounds = zip(starts, ends, steps, strict=True)
        return source, {axis % rank: bound for axis, bound in zip(axes, bounds, strict=True)}

    def device(self, *values: Any) -> Device:
        """Return the device of a tensor that is created from expressions.

        It is the device of the first tensor among them, else of the model's first input or weight.
        """
        for name in names_in(list(values)):
            return Device(Name(name))
        return Device(Name(self.root.main_input))

    def layer(self, module: torch.nn.Module, *args: Any, hint: str) -> Name:
        """Add a layer to the module, and a statement that calls it.

        It is named after its weights in the file. Nodes of the same weights share one layer.
        """
        root = self.root
        node, weights = self.node, () if self.node is None else tuple(self.node.inputs[1:])
        has_weights = any(weights) and any(True for _ in (*module.parameters(), *module.buffers()))
        key = None if node is None or not has_weights else (node.op_type, weights)
        path = None if node is None else layer_path(node)
        name = None if key is None else root.shared_layers.get(key)
        if name is None:
            name = root.paths.new(hint if path is None else path)
            root.members[name] = module
            self.take(sum(tensor.nbytes for tensor in module.state_dict().values()), node)
            if key is not None:
                root.shared_layers[key] = name
        words = [word for word in re.split(r"[./]", path or "") if not word.isdigit()]
        return self.call(f"self.{name}", *args, hint=words[-1] if words and words[-1] else hint)

    def parameter(self, array: Any, hint: str, *, is_trained: bool | None = None) -> Name:
        """Add an array or tensor to the module: a parameter or a buffer.

        With `is_trained` None, floating-point tensors with axes are parameters unless their names are those
        of buffers.
        """
        root = self.root
        name = root.paths.new(tensor_hint(hint))
        tensor = array if isinstance(array, Tensor) else to_tensor(array)
        self.take(tensor.nbytes, self.node)
        if is_trained is None:
            is_trained = tensor.is_floating_point() and tensor.dtype.itemsize > 1 and tensor.dim() > 0
            is_trained = is_trained and not hint.endswith(_BUFFERS)
        root.members[name] = torch.nn.Parameter(tensor) if is_trained else tensor
        return Name(f"self.{name}")

    def body(self, graph: Any, hint: str) -> Name:
        """Add the body of a loop or branch as a nested function, and return its name.

        Its outputs are always returned as a tuple.
        """
        inner = Build(Program([]), parent=self, used_names=self.used_names)
        inner.add_graph(graph)
        name = self.new_name(hint)
        inner.program.outputs = [tuple(inner.program.outputs)]
        self.program.statements.append(Define(name, inner.program))
        return Name(name)

    def as_tensor(self, value: Any) -> Any:
        """Return a value as the name of a tensor."""
        if isinstance(value, Ints):
            key = (value.dtype, value.values.shape, *value.values.flat)
            if key not in self.sizes:
                self.sizes[key] = self._sizes(value)
            return self.sizes[key]
        if isinstance(value, Dequantized):
            if value.build is not self:  # a name of a nested function is not seen outside of it
                return value.name or value.emit(self)
            value.name = value.name or value.emit(self)
            return value.name
        return value

    def _sizes(self, value: Ints) -> Name:
        elements, device = value.values.tolist(), self.device(*value.values.flat)
        if value.dtype == torch.int64:
            return self.call("ops.integers", elements, device=device, hint="sizes")
        return self.call("torch.tensor", elements, dtype=value.dtype, device=device, hint="sizes")

    def as_expr(self, value: Any) -> Any:
        """Return an argument as an expression; numpy numbers become Python's."""
        if isinstance(value, Ints | Dequantized):
            return self.as_tensor(value)
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, list | tuple):
            shape = self._shape_of(value)
            if shape is not None:
                return shape
            parts = [self.as_expr(part) for part in value]
            return parts if isinstance(value, list) else tuple(parts)
        return value

    def _shape_of(self, sizes: Sequence[Any]) -> Size | None:
        """Return all sizes of a tensor, in order, as its shape."""
        first = sizes[0] if sizes else None
        if not isinstance(first, Size) or len(self.root.shapes.get(first.tensor, ())) != len(sizes):
            return None
        is_shape = all(size == Size(first.tensor, axis) for axis, size in enumerate(sizes))
        return Size(first.tensor, None) if is_shape else None

    def new_name(self, hint: str) -> str:
        """Return a new name: an identifier made from text of any kind."""
        return unique_name(hint, self.used_names)

    def _around(self) -> Iterator[Build]:
        """Yield the build, and the builds of the graphs around it."""
        yield self
        if self.parent is not None:
            yield from self.parent._around()

    @property
    def root(self) -> Build:
        """The build of the whole model."""
        return self if self.parent is None else self.parent.root

    def remove_unused(self) -> None:
        """Remove statements that nothing reads, and members that no statement reads."""
        self.program.remove_unused()
        read = self.program.free_names()
        self.members = {path: member for path, member in self.members.items() if f"self.{path}" in read}

    # --- the graph ----------------------------------------------------------------------------------------

    def add_graph(self, graph: ir.Graph) -> None:
        """Add inputs, constants, nodes and outputs of a graph."""
        for value in graph.initializers.values():
            if value.const_value is None:
                raise RecordError(
                    "an initializer has no values",
                    where=value.name or "",
                    expected="a tensor",
                    found="nothing",
                )
            self.constants[value] = value.const_value.numpy()
        for value in graph.inputs:
            if value in self.constants:
                continue  # an input with a default: of the first IR versions
            name = self.new_name(value.name or "x")
            self.program.inputs.append(name)
            self.values[value] = Name(name)
            self.model_inputs.add(value)
            if self.parent is None and not self.main_input and is_tensor_value(value):
                self.main_input = name
        for node in graph:
            self.add_node(node)
            self._free_weights(node)
        self.program.outputs = [self.as_tensor(self.find(value)) for value in graph.outputs]

    def add_node(self, node: ir.Node) -> None:
        """Add the statements of a node, or its results where they can be computed now."""
        if node in self.absorbed:
            self.values[node.outputs[0]] = self.absorbed[node]
            return
        version = version_of(node)
        found = find_handler(node.domain, node.op_type, version)
        assert found is not None, "unsupported ops were refused before"
        wrapped = Node(node, version)
        self.node = node
        if node.op_type in _MOVING and wrapped.is_text(0):
            results = self._move_strings(found, wrapped)
        elif self._is_foldable(wrapped):
            results = self._fold(found, wrapped)
        elif (known := self._compute(wrapped)) is not None:
            results = known
        else:
            results = found(self, wrapped)
        wrapped.check_read()
        for output, result in zip(node.outputs, _as_tuple(results), strict=False):
            if isinstance(result, np.ndarray):
                self.constants[output] = result
                if node.op_type != "Constant":  # those are in the file
                    self.take(result.nbytes, node)
            else:
                self.values[output] = result

    def take(self, nbytes: int, node: ir.Node | None) -> None:
        """Count bytes of constants that the import makes."""
        if (limit := self.root.limit) is not None:
            limit.take(nbytes, "weights" if node is None else place_of(node))

    def _move_strings(self, found: Any, node: Node) -> tuple[Any, ...]:
        """Move strings, which torch does not have: move their positions, and look the strings up there."""
        value, strings = node.node.inputs[0], self.tensor(node, 0)
        self.values[value] = self.call("ops.positions", strings, device=self.device(), hint="positions")
        results = _as_tuple(found(self, node))
        self.values[value] = strings
        return tuple(self.call("ops.take_strings", strings, result, hint="text") for result in results)

    def _free_weights(self, node: ir.Node) -> None:
        """Forget the large constants that no later node reads: parameters and layers have copies of them.

        Those of nodes that quantize stay, since the layer after such a node reads them, and those of nested
        graphs.
        """
        if node.op_type in ("DequantizeLinear", "QuantizeLinear"):
            return
        for value in node.inputs:
            array = self.constants.get(value)
            if value is None or array is None or array.nbytes < _MIN_FREED or value.is_graph_output():
                continue
            self.unread[value] = self.unread.get(value, len(value.uses())) - 1
            if not self.unread[value] and array.dtype.kind not in "iubOSU":
                del self.constants[value]
                value.const_value = None

    def _is_foldable(self, node: Node) -> bool:
        """Whether all inputs are constant and few, and the op computes the same each time."""
        if not node.num_inputs or node.op in _NOT_FOLDED or node.node.domain not in ("", "ai.onnx"):
            return False
        if any(a.type.name in ("GRAPH", "GRAPHS") for a in node.node.attributes.values()):
            return False
        given = [i for i in range(node.num_inputs) if node.has(i)]
        arrays = [array for array in (self.constant(node, i) for i in given) if array is not None]
        if not arrays or len(arrays) < len(given):
            return False
        made = _largest_size(node.op, arrays)
        if made > (_MAX_FOLDED if node.op in (*_SIZED, "Range", "OneHot") else _MAX_MADE):
            return False
        if node.op == "Transpose":  # of a weight, which is stored as it is used
            return node.is_only_use(0)
        floats = [
            (i, array) for i, array in zip(given, arrays, strict=True) if array.dtype.kind not in "iubOSU"
        ]
        if any(array.size > 1 and not node.is_only_use(i) for i, array in floats):
            return False  # what others read too stays one parameter
        return sum(array.size for array in arrays) <= (_MAX_FOLDED_FLOATS if floats else _MAX_FOLDED)

    def _fold(self, found: Any, node: Node) -> tuple[Any, ...]:
        """Return the results of a node with constant inputs as arrays, computed by its statements."""
        build = Build(Program([]), constants=self._constants_of(node))
        results = _as_tuple(found(build, node))
        if all(isinstance(result, np.ndarray) for result in results):
            return results
        build.program.outputs = [build.as_tensor(result) for result in results]
        _set_devices(build.program, None)
        names = {f"self.{path}": member for path, member in build.members.items()}
        with torch.inference_mode():
            outputs = run_program(build.program, (), names.__getitem__)
        if all(
            isinstance(output, Tensor | np.ndarray)
            and (_size(output) <= _MAX_FOLDED or node.op == "Transpose")
            for output in outputs
        ):
            return tuple(to_array(output) for output in outputs)
        return _as_tuple(found(self, node))  # a sequence, or large: computed when the model is

    def _compute(self, node: Node) -> tuple[Any, ...] | None:
        """Return the results of arithmetic on sizes, where all inputs are known."""
        if node.node.domain not in ("", "ai.onnx") or not all(node.has(i) for i in range(node.num_inputs)):
            return None
        if not any(isinstance(self.known(node, i), Ints) for i in range(node.num_inputs)):
            return None
        inputs = [self.known_ints(node, i) for i in range(node.num_inputs)]
        known = [value for value in inputs if value is not None]
        return compute(node, known) if len(known) == len(inputs) else None

    def _constants_of(self, node: Node) -> dict[Any, np.ndarray[Any, Any]]:
        arrays = {value: self.constant(node, i) for i, value in enumerate(node.node.inputs)}
        return {value: array for value, array in arrays.items() if array is not None}

    def find(self, value: Any) -> Any:
        """Return the expression of a value of the graph; constants become literals, parameters or buffers."""
        for build in self._around():
            if value not in build.values and value in build.constants:
                build.values[value] = self.root._constant(value, build.constants[value])
            if value in build.values:
                return build.values[value]
        raise RecordError(
            "a node reads a value that nothing computes",
            where=str(value.name),
            expected="a graph input, an initializer, or the output of an earlier node",
            found="none of these",
            hint="the file is damaged, or its nodes form a cycle",
        )

    def _constant(self, value: ir.Value, array: np.ndarray[Any, Any]) -> Any:
        hint = value.name or "constant"
        if array.dtype == object or array.dtype.kind in "US":
            return self.strings(array, hint)
        return self.parameter(array, hint, is_trained=None if _may_be_trained(value) else False)

    def strings(self, array: np.ndarray[Any, Any], hint: str) -> Any:
        """Add an array of strings, which is a literal of the program."""
        nested = np.vectorize(to_text, otypes=[object])(array).tolist() if array.size else array.tolist()
        return self.call("ops.strings", nested, list(array.shape), hint=hint)


def _as_tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def _call_one_layer(nodes: Sequence[ir.Node]) -> bool:
    """Whether nodes have the same op and attributes, and the same inputs after the first."""
    first = nodes[0]
    inputs, attributes = list(first.inputs[1:]), str(first.attributes)
    return all(
        node.op_identifier() == first.op_identifier()
        and list(node.inputs[1:]) == inputs
        and str(node.attributes) == attributes
        for node in nodes[1:]
    )


def _may_be_trained(value: ir.Value) -> bool:
    """Whether a constant is a weight: an initializer with a name of its own, or what layers take as weights.

    Masks and frequencies are not: nodes of Constant, or what torch's exporter folded, named after its reader.
    """
    if value.is_initializer() and not (value.name or "").startswith("onnx::"):
        return True
    return any(use.node.op_type in _WITH_WEIGHTS for use in value.uses())


_WITH_WEIGHTS = {
    *("MatMul", "Gemm", "Conv", "ConvTranspose", "Gather", "RNN", "GRU", "LSTM", "PRelu", "Einsum"),
    *("BatchNormalization", "InstanceNormalization", "LayerNormalization", "GroupNormalization"),
    *("RMSNormalization", "SimplifiedLayerNormalization"),
}


_MIN_FREED = 1024  # bytes
_MAX_FOLDED = 4096  # elements of integers, truth values and strings
_MAX_FOLDED_FLOATS = 64  # of floating-point numbers: more are weights
_NOT_FOLDED = {
    *("Bernoulli", "Dropout", "Multinomial", "RandomNormalLike", "RandomUniformLike"),
    *("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"),  # become quantized layers
    *("Loop", "Scan", "If", "Identity"),
}

_MAX_MADE = 2**22  # elements of a result that is then found to be too large
_SIZED = {"ConstantOfShape", "Expand", "Tile"}
_SIZED_OTHERWISE = {
    *("AffineGrid", "AveragePool", "Col2Im", "Conv", "ConvInteger", "ConvTranspose", "DFT"),
    *("DeformConv", "Einsum", "LpPool", "MaxPool", "MaxRoiPool", "MaxUnpool", "MelWeightMatrix", "Pad"),
    *("QLinearConv", "Resize", "RoiAlign", "STFT", "TfIdfVectorizer", "Upsample"),
}
"""Ops that numbers in their inputs or attributes let make any number of elements; these are not folded."""
_BROADCASTING = {"Max", "Mean", "Min", "Sum", "Where"}

_MOVING = {
    *("Compress", "Expand", "GatherElements", "GatherND", "ReverseSequence", "Slice", "Split", "Squeeze"),
    *("Tile", "Transpose", "Unsqueeze"),
}
"""Ops that only move elements, and whose handlers take only tensors."""


def _largest_size(op: str, inputs: list[np.ndarray[Any, Any]]) -> Any:
    """Return how many elements an op may make of constants, before it makes them."""
    numbers = [array.reshape(-1).tolist() for array in inputs if array.dtype.kind in "iuf"]
    sizes, last = [array.size for array in inputs], numbers[-1] if numbers else []
    if op in _SIZED:
        return math.prod(max(1, abs(n)) for n in last) * max(1, sizes[0] if len(sizes) > 1 else 1)
    if op == "Range":
        start, end, step = (part[0] for part in numbers)
        return abs((end - start) / step) if step else math.inf
    if op == "OneHot":
        return sizes[0] * abs(numbers[1][0])
    if op in ("Concat", "Slice", "ScatterElements", "ScatterND"):
        return sum(sizes)
    if op in _BROADCASTING:
        return math.prod(
            max(array.shape[-i] if i <= array.ndim else 1 for array in inputs)
            for i in range(1, 1 + max(array.ndim for array in inputs))
        )
    return math.inf if op in _SIZED_OTHERWISE else math.prod(max(1, size) for size in sizes)


def is_tensor_value(value: ir.Value) -> bool:
    """Whether an input is a tensor, not strings, a sequence or an optional."""
    import onnx_ir as ir

    return isinstance(value.type, ir.TensorType) and value.dtype != ir.DataType.STRING


def _size(value: Any) -> int:
    return int(value.numel() if isinstance(value, Tensor) else value.size)


def build_program(model: ir.Model, where: str, limit: ConstantLimit) -> Build:
    """Return the program of a model, which is changed; ops without a handler are refused together."""
    _check_attributes(model)
    expand(model, where, MAX_NODES)
    rewrite_patterns(model)
    missing = unsupported_nodes(model)
    if missing:
        lines = [
            f"{op} (domain {domain or 'ai.onnx'}, version {version}): {names}"
            for (domain, op, version), names in missing.items()
        ]
        raise UnsupportedError(
            f"the model has {quantity(len(missing), 'op')} that burnt does not support",
            where=where,
            expected="ops in the table of docs/import-export.md",
            found="\n".join(lines),
            hint="export it again with another opset, or without operators of the exporter's own",
        )
    build = Build(Program([]), limit=limit)
    build.add_graph(model.graph)
    build.remove_unused()
    if not build.main_input:  # no input has a device: use the weights'
        first = next((path for path, member in build.members.items() if isinstance(member, Tensor)), None)
        _set_devices(build.program, None if first is None else Device(Name(f"self.{first}")))
    return build


def _check_attributes(model: ir.Model) -> None:
    """Check that ops have no attributes that ONNX, or the function that they call, does not know."""
    graphs: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for graph in graphs:
        for node in graph.all_nodes():
            if node.attributes:
                function = model.functions.get(node.op_identifier())
                version = graph.opset_imports.get(node.domain, graph.opset_imports.get("ai.onnx", 1))
                known: Any = attribute_defaults(node.domain, node.op_type, version)
                known = known if function is None else function.attributes
                for name in () if known is None else sorted(node.attributes.keys() - set(known)):
                    raise refuse_attribute(
                        node, name, f"one of {', '.join(known)}" if known else "no attributes"
                    )


def _set_devices(program: Program, device: Device | None) -> None:
    """Replace the devices of an input that does not exist, in place."""
    for i, statement in enumerate(program.statements):
        if isinstance(statement, Define):
            _set_devices(statement.program, device)
        elif isinstance(statement, Statement) and statement.call.kwargs.get("device") == Device(Name("")):
            others = {key: value for key, value in statement.call.kwargs.items() if key != "device"}
            kwargs = others if device is None else others | {"device": device}
            program.statements[i] = Statement(
                statement.outputs, Call(statement.call.function, statement.call.args, kwargs)
            )


def unsupported_nodes(model: ir.Model) -> dict[tuple[str, str, int], str]:
    """Return the ops without a handler, each with the names of its nodes."""
    missing: dict[tuple[str, str, int], list[str]] = {}
    for node in model.graph.all_nodes():
        version = version_of(node)
        if find_handler(node.domain, node.op_type, version) is None:
            missing.setdefault((node.domain, node.op_type, version), []).append(place_of(node))
    return {
        key: ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        for key, names in missing.items()
    }
