"""c_source: a module as C99 that allocates nothing: no heap, no threads, no files.

emx-onnx-cgen prints the ONNX export of the module as C. What it prints keeps every intermediate result on the
stack; here they move to a static arena, in which results that are not needed at the same time share memory.
"""

from __future__ import annotations

import ast
import importlib.util
import math
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from burnt.errors import UnsupportedError
from burnt.inspect.signature import Signature
from burnt.onnx import export

_BYTES = {"float": 4, "double": 8, "int64_t": 8, "int32_t": 4, "int16_t": 2, "int8_t": 1}
_BYTES |= {"uint64_t": 8, "uint32_t": 4, "uint16_t": 2, "uint8_t": 1, "_Bool": 1, "bool": 1, "_Float16": 2}
_C_TYPES = {"float32": "float", "float64": "double", "bool": "_Bool"}
_C_TYPES |= {name: f"{name}_t" for name in ("int64", "int32", "int16", "int8", "uint8")}

_TEMPORARY = re.compile(r"^    (\w+) (tmp\d+\w*)((?:\[\d+\])+);$", re.MULTILINE)

# The keywords of C99 and C++17, since C++ programs include the header, and main.
_WORDS = """
    _Bool _Complex _Imaginary alignas alignof and and_eq asm auto bitand bitor bool break case catch char
    char16_t char32_t class compl const const_cast constexpr continue decltype default delete do double
    dynamic_cast else enum explicit export extern false float for friend goto if inline int long main
    mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public register
    reinterpret_cast restrict return short signed sizeof static static_assert static_cast struct switch
    template this thread_local throw true try typedef typeid typename union unsigned using virtual void
    volatile wchar_t while xor xor_eq
"""
_KEYWORDS = frozenset(_WORDS.split())
# Functions of the generator, types and macros such as NAN.
_USED_BY_GENERATOR = re.compile(r"node\d\w*|\w+_t|[A-Z][A-Z0-9_]+")


class MissingOpsError(UnsupportedError):
    """The C generator cannot print ops of a model."""


@dataclass(frozen=True)
class Layer:
    """What a layer of the model needs in the C program."""

    path: str  # in the module
    weights: int  # bytes, in flash
    result: int  # bytes of its largest result, in RAM


@dataclass(frozen=True)
class Parameter:
    """A parameter of the C function."""

    kind: str
    name: str
    dims: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}{self.dims}"


@dataclass(frozen=True)
class CSource:
    """A module as C.

    Args:
        text: a translation unit of C99.
        name: its only public function, ``void NAME(const T input[...], ..., T output[...])``.
        signature: what it takes and returns, for the fixed batch.
        inputs: the function's parameters for the inputs.
        outputs: the function's parameters for the outputs, which follow.
        arena: bytes of the static memory for results between layers.
        layers: the layers with what they need, in the order of the call.
    """

    text: str
    name: str
    signature: Signature
    inputs: Sequence[Parameter]
    outputs: Sequence[Parameter]
    arena: int
    layers: Sequence[Layer]

    @property
    def weights(self) -> int:
        """Bytes of all weights."""
        return sum(layer.weights for layer in self.layers)

    def declaration(self) -> str:
        """Return the declaration of the function for a header, without the semicolon."""
        parameters = [f"const {parameter}" for parameter in self.inputs] + [*map(str, self.outputs)]
        return f"void {self.name}({', '.join(parameters)})"


def c_source(
    model: nn.Module, example: Any, name: str = "model", *, batch: int = 1, fold: bool = True
) -> CSource:
    """Return a module in evaluation mode as C99, for a fixed number of items.

    `example` is as in `burnt.onnx.export`, and so is `fold`; `name` is the C function's, a C identifier.

    >>> import torch
    >>> source = c_source(torch.nn.Linear(3, 2), torch.zeros(1, 3), "linear")
    >>> source.declaration(), source.weights
    ('void linear(const float input[1][3], float output[1][2])', 32)
    """
    if importlib.util.find_spec("emx_onnx_cgen") is None:
        raise UnsupportedError(
            "exporting to C needs a further package", expected="emx-onnx-cgen", hint="pip install burnt[c]"
        )
    if c_name(name) != name:
        raise UnsupportedError("the name is not a C identifier", found=repr(name), hint=f"{c_name(name)!r}")
    with tempfile.TemporaryDirectory(prefix="burnt-c-") as folder:
        file = Path(folder, "model.onnx")
        exported = export(model, example, file, batch=batch, fold=fold)
        graph = _load(file)
    _require_lowerings(graph)
    layers = _layers(graph)
    signature = exported.signature  # with the sizes of this batch
    inputs, outputs = _rename(graph, signature, name)
    text = _use_parameters(_generate(graph, name), name, inputs, outputs)
    text, arena = _move_temporaries(text, name)
    return CSource(text, name, signature, inputs, outputs, arena, layers)


def c_name(name: str) -> str:
    """Return a name as a C identifier that is free in generated code.

    >>> c_name("batch.images"), c_name("float")
    ('batch_images', 'float_')
    """
    cleaned = re.sub(r"\W", "_", name, flags=re.ASCII)
    if not cleaned or cleaned[0].isdigit():
        cleaned = f"_{cleaned}"
    return f"{cleaned}_" if cleaned in _KEYWORDS or _USED_BY_GENERATOR.fullmatch(cleaned) else cleaned


def _rename(model: Any, signature: Signature, function: str) -> tuple[list[Parameter], list[Parameter]]:
    """Give everything in a graph a name that C takes; return its inputs and outputs as parameters.

    The generator would rename parameters that are equal in C, and writes the other names in comments.
    """
    graph = model.graph
    infos = (*signature.inputs, *signature.outputs)
    renamed: dict[str, str] = {"": ""}  # an input that is left out
    taken = {function}

    def rename(name: str, base: str) -> None:
        renamed[name], number = base, 2
        while renamed[name] in taken:
            renamed[name], number = f"{base}_{number}", number + 1
        taken.add(renamed[name])

    for info in infos:
        rename(info.name, c_name(info.name))
    used = (name for node in graph.node for name in (*node.input, *node.output))
    for name in (*used, *(tensor.name for tensor in graph.initializer)):
        if name not in renamed:
            rename(name, _ascii(name))
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = renamed.get(value.name, value.name)
    for node in graph.node:
        node.name = _ascii(node.name)
        node.input[:] = [renamed[name] for name in node.input]
        node.output[:] = [renamed[name] for name in node.output]
    graph.name = _ascii(graph.name)
    parameters = [Parameter(_c_type(info.dtype), renamed[info.name], _dims(info.shape)) for info in infos]
    return parameters[: len(signature.inputs)], parameters[len(signature.inputs) :]


def _ascii(name: str) -> str:
    return re.sub(r"[^\w.]", "_", name, flags=re.ASCII)


def _load(file: Path) -> Any:
    import onnx

    model = onnx.load(file)
    # The generator copies the metadata into a comment, which texts of the user could end.
    del model.metadata_props[:]
    for node in model.graph.node:
        # Its GRU refuses the attribute even with the default value.
        kept = [a for a in node.attribute if not (a.name == "direction" and a.s == b"forward")]
        del node.attribute[:]
        node.attribute.extend(kept)
    # It leaves an output that is a constant unwritten.
    outputs = {value.name for value in model.graph.output}
    for tensor in model.graph.initializer:
        if tensor.name in outputs:
            output, tensor.name = tensor.name, f"{tensor.name}.constant"
            for node in model.graph.node:
                node.input[:] = [tensor.name if name == output else name for name in node.input]
            model.graph.node.append(onnx.helper.make_node("Identity", [tensor.name], [output]))
    return model


def _require_lowerings(model: Any) -> None:
    from emx_onnx_cgen.lowering import get_lowering

    missing = sorted({node.op_type for node in model.graph.node if get_lowering(node.op_type) is None})
    if missing:
        raise MissingOpsError(
            "the C generator lacks ops of the model",
            expected="ops that emx-onnx-cgen prints",
            found=", ".join(missing),
            hint="`burnt export` writes an ONNX file for ONNX Runtime instead",
        )


def _generate(model: Any, name: str) -> str:
    from emx_onnx_cgen import Compiler
    from emx_onnx_cgen.compiler import CompilerOptions
    from emx_onnx_cgen.errors import CompilerError

    # By default it allocates results above 1 kB and writes weights above 100 kB to a file.
    options = CompilerOptions(model_name=name, large_temp_threshold_bytes=0, large_weight_threshold=0)
    try:
        text: str = Compiler(options).compile(model)
    except CompilerError as error:
        raise MissingOpsError(
            "the C generator cannot print an op of the model",
            found=_reason(error),
            hint="`burnt export` writes an ONNX file for ONNX Runtime instead",
        ) from error
    # Of the reverse direction of an LSTM it stores the steps in the order of computation.
    text = text.replace("output_y[step][dir][b][h] = h_new;", "output_y[t][dir][b][h] = h_new;")
    # What the generator prints for weights in a file; here it has nothing to do.
    return re.sub(rf"^_Bool {name}_load\(.*?^\}}\n\n", "", text, flags=re.MULTILINE | re.DOTALL)


def _reason(error: Exception) -> str:
    """Return the generator's message, of the op's inputs and outputs with only the first one's dtype."""
    message = str(error).splitlines()[0]
    match = re.match(r"(.*?) \(while lowering .*?op_type=(\w+), name=([^,]*).*?dtype=(\w+)", message)
    return f"{match[1]} ({match[2]} of {match[4]}, {match[3]})" if match else message


def _use_parameters(text: str, name: str, inputs: Sequence[Parameter], outputs: Sequence[Parameter]) -> str:
    """Mend what compilers find in the function: unused parameters, and outputs that are read, too."""
    head, opening, body = re.split(rf"(^void {name}\(.*\{{\n)", text, maxsplit=1, flags=re.MULTILINE)
    used = set(re.findall(r"\w+", body))
    unused = [parameter.name for parameter in inputs if parameter.name not in used]
    for parameter in outputs:
        # C99 has no conversion from float (*)[8] to const float (*)[8].
        body = re.sub(rf"\b{parameter.name}\b", f"(void *){parameter.name}", body)
    return head + opening + "".join(f"    (void){parameter};\n" for parameter in unused) + body


def _move_temporaries(text: str, name: str) -> tuple[str, int]:
    """Replace the results on the stack by parts of one static array per C type; return their bytes too.

    Two results share memory if the last call that uses one is before the first call that uses the other.
    """
    start = text.index(f"\nvoid {name}(")
    head, body = text[:start], text[start:]
    temporaries = {match[2]: (match[1], math.prod(_sizes(match[3]))) for match in _TEMPORARY.finditer(body)}
    uses: dict[str, list[int]] = {temporary: [] for temporary in temporaries}
    for number, line in enumerate(_TEMPORARY.sub("", body).splitlines()):
        for word in re.findall(r"\btmp\w+", line):
            if word in uses:
                uses[word].append(number)
    arrays, arena = [], 0
    for kind in dict.fromkeys(kind for kind, _ in temporaries.values()):
        spans = {
            temporary: (length, min(uses[temporary]), max(uses[temporary]))
            for temporary, (its_kind, length) in temporaries.items()
            if its_kind == kind
        }
        offsets, length = _pack(spans)
        array = f"{name}_arena_{kind}"
        arrays.append(f"static {kind} {array}[{length}];")
        arena += length * _BYTES[kind]
        for temporary, offset in offsets.items():
            # C99 has no conversion from float (*)[8] to const float (*)[8], but has one from void *.
            moved = f"    void *const {temporary} = {array} + {offset};"
            body = re.sub(rf"^    {kind} {temporary}\[.*;$", moved, body, count=1, flags=re.MULTILINE)
    return "\n".join([head, *arrays, body]), arena


def _pack(spans: Mapping[str, tuple[int, int, int]]) -> tuple[dict[str, int], int]:
    """Place arrays of (length, first use, last use) in one: the largest first, each as low as possible."""
    offsets: dict[str, int] = {}
    for name in sorted(spans, key=lambda name: -spans[name][0]):
        length, first, last = spans[name]
        taken = sorted(
            (offsets[other], offsets[other] + spans[other][0])
            for other in offsets
            if spans[other][1] <= last and first <= spans[other][2]
        )
        offset = 0
        for begin, end in taken:
            if offset + length <= begin:
                break
            offset = max(offset, end)
        offsets[name] = offset
    return offsets, max((offsets[name] + spans[name][0] for name in offsets), default=0)


def _layers(model: Any) -> list[Layer]:
    """Return what each layer needs, from the ONNX graph: weights by their path, results by their node's."""
    import onnx

    inferred = onnx.shape_inference.infer_shapes(model)
    results = {value.name: _value_bytes(value) for value in [*inferred.graph.value_info, *model.graph.output]}
    weights: dict[str, int] = {}
    largest: dict[str, int] = {}
    owners: dict[str, str] = {}
    for node in model.graph.node:
        scopes = next((p.value for p in node.metadata_props if p.key.endswith("name_scopes")), "[]")
        # ['', 'model', 'model.blocks.0', ..., the op's own name]
        path = next((scope for scope in reversed(ast.literal_eval(scopes)[:-1]) if scope), "model")
        path = path.removeprefix("model").removeprefix(".") or "model"
        largest[path] = max([largest.get(path, 0), *(results.get(name, 0) for name in node.output)])
        owners |= dict.fromkeys(node.input, path)
    for tensor in model.graph.initializer:
        path = tensor.name.rpartition(".")[0] or owners.get(tensor.name, "model")
        size = math.prod(tensor.dims) * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
        weights[path] = weights.get(path, 0) + size
    paths = dict.fromkeys([*largest, *weights])
    return [Layer(path, weights.get(path, 0), largest.get(path, 0)) for path in paths]


def _value_bytes(value: Any) -> int:
    import onnx

    tensor = value.type.tensor_type
    if not tensor.elem_type or not tensor.HasField("shape"):
        return 0
    size = math.prod(dim.dim_value for dim in tensor.shape.dim)
    return int(size * onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).itemsize)


def _c_type(dtype: str) -> str:
    if dtype not in _C_TYPES:
        raise UnsupportedError(
            "a dtype of the model's inputs or outputs has no C type",
            expected=", ".join(_C_TYPES),
            found=dtype,
        )
    return _C_TYPES[dtype]


def _dims(shape: Sequence[int]) -> str:
    return "".join(f"[{size}]" for size in shape) or "[1]"


def _sizes(dims: str) -> list[int]:
    return [int(size) for size in re.findall(r"\d+", dims)]
