"""An imported model as a Python file: a burnt Module with its layers, and the weights beside it."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from burnt import nn
from burnt._files import replacing
from burnt.config import qualified_name
from burnt.errors import UnsupportedError
from burnt.nn.quantized import Quantized
from burnt.onnx.importer.body import body_lines
from burnt.onnx.importer.kinds import Kind, called_blocks, kind_of, program_kinds
from burnt.onnx.importer.module import Block, ImportedModule
from burnt.onnx.importer.names import unique_kind
from burnt.onnx.importer.node import shortest_decimal
from burnt.onnx.importer.printing import Code, bracketed, broken, code_of, prefixed
from burnt.onnx.importer.program import Define, Program, Repeat, names_read

__all__ = ["WEIGHTS", "layer_source", "module_source", "write_package"]

WEIGHTS = "weights.safetensors"
"""The name of the file with the weights, beside the Python file."""

_WIDTH = 110
_MOST_LISTED = 88  # characters of the names of outputs in a docstring of one line
_MAX_CONSTANT = 4  # elements of a buffer that is written with its values

_IMPORTS = (
    ("burnt", "import burnt"),
    ("torch", "import torch"),
    ("QuantScheme", "from burnt import QuantScheme"),
    ("nn", "from burnt import nn"),
    ("ops", "from burnt.onnx import functions as ops"),
    ("Tensor", "from torch import Tensor"),
    ("F", "from torch.nn import functional as F"),
)
"""Names that a file may use, and their imports, in the order that ruff wants."""

_HEADER = '''\
"""{docstring}
"""

from __future__ import annotations

{standard}

{imports}

__all__ = ["{name}", "load"]
'''

_CLASS = '''

class {name}(burnt.Module):
    """{title}"""

    def __init__(self) -> None:
        super().__init__()
'''

_FOOTER = '''

def load(weights: str | Path | None = None) -> {name}:
    """Return the model with its weights, in evaluation mode.

    Args:
        weights: the file of the weights, by default `{weights}` beside this one.
    """
    model = {name}()
    burnt.load_weights(model, Path(__file__).with_name("{weights}") if weights is None else weights)
    return model.eval()
'''


def write_package(module: ImportedModule, folder: Path, *, name: str, title: str) -> Path:
    """Write an imported module as ``__init__.py`` and `WEIGHTS` into a folder; return the Python file.

    Args:
        module: what `burnt.onnx.load` returned.
        folder: is created; existing files are replaced.
        name: of the class.
        title: the first line of the file's docstring.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    module.into_record().save(folder / WEIGHTS)
    path = folder / "__init__.py"
    with replacing(path) as temporary:
        Path(temporary).write_text(module_source(module, name, title), encoding="utf-8")
    return path


def module_source(module: ImportedModule, name: str, title: str) -> str:
    """Return the Python of an imported module: a class with its layers, and ``load``.

    It is formatted as ruff does it, with lines of at most 110 characters.
    """
    signature = module.signature
    inputs: list[Kind] = ["any"] * len(module.program.inputs)
    if signature is not None:
        inputs = ["tensor" if given else "any" for given in signature.tensors]
    classes = _Classes({name})
    own = classes.text(module, f"Return {_listed(module.output_names)}.", inputs)
    text = ""
    for body, kind in classes.kinds.items():
        text += _CLASS.format(name=kind, title="A block of the model.") + body
    text += _CLASS.format(name=name, title=_one_line(title)) + own
    text += _FOOTER.format(name=name, weights=WEIGHTS)
    used = {
        node.id
        for node in ast.walk(ast.parse(f"from __future__ import annotations\n{text}"))
        if isinstance(node, ast.Name)
    }
    standard = ["from pathlib import Path", *(["from typing import Any"] if "Any" in used else [])]
    return (
        _HEADER.format(
            docstring="\n".join(_details(module, title)),
            standard="\n".join(standard),
            imports="\n".join(_import_lines(used)),
            name=name,
        )
        + text
    )


def _import_lines(used: set[str]) -> Iterator[str]:
    both = {"QuantScheme", "nn"} <= used
    for name, line in _IMPORTS:
        if both and name == "QuantScheme":
            yield "from burnt import QuantScheme, nn"
        elif name in used and not (both and name == "nn"):
            yield line


def _details(module: ImportedModule, title: str) -> Iterator[str]:
    """Yield the lines of the file's docstring."""
    yield _one_line(title)
    signature = module.signature
    inputs = module.input_names if signature is None else signature.inputs
    outputs = module.output_names if signature is None else signature.outputs
    for what, values in (("Inputs", inputs), ("Outputs", outputs)):
        yield ""
        yield f"{what}:" + ("" if values else " none.")
        yield from (f"    {_one_line(value)}" for value in values)
    if signature is not None and signature.origin:
        yield ""
        yield f"{_one_line(signature.origin)}."


def _listed(names: Sequence[str]) -> str:
    """Return names as they may stand in one line of a docstring, the first of them where there are many."""
    shown = list(map(_one_line, names))
    for count in range(len(shown), 0, -1):
        rest = f" and {len(shown) - count} more" if count < len(shown) else ""
        text = ", ".join(shown[:count]) + rest
        if len(text) <= _MOST_LISTED:
            return text
    return shown[0] if shown else "nothing"


def _one_line(text: str) -> str:
    """Return text of a file as it may stand in a docstring."""
    printable = "".join(c if c.isprintable() else "?" for c in text)
    return printable.replace("\\", "/").replace('"', "'")[:80].rstrip()


class _Classes:
    """The classes of a file.

    Args:
        taken: names that other classes have.
    """

    def __init__(self, taken: set[str]) -> None:
        self.taken = taken
        self.kinds: dict[str, str] = {}  # names of the classes of blocks, by their text

    def text(self, module: Block, returns: str, inputs: Sequence[Kind]) -> str:
        """Return the lines of a class after ``super().__init__()``, and add the classes of its blocks.

        Args:
            module: with its program.
            returns: the docstring of ``forward``.
            inputs: the kinds of its arguments.
        """
        kinds, blocks = program_kinds(module, inputs)

        def name_of(block: Block) -> str:
            unknown: list[Kind] = ["any"] * len(block.program.inputs)
            given = blocks.get(id(block), unknown)
            text = self.text(block, "Return what the next block or the model reads.", given)
            if text not in self.kinds:
                self.kinds[text] = unique_kind(block.kind, self.taken)
            return self.kinds[text]

        program = module.program
        arguments = [
            Code(f"{name}: {_HINTS[kind]}") for name, kind in zip(program.inputs, inputs, strict=True)
        ]
        found = [_HINTS[kind_of(output, kinds)] for output in program.outputs]
        hint = found[0] if len(found) == 1 else "tuple[Any, ...]"
        if len(found) > 1:
            hint = "tuple[Tensor, ...]" if set(found) == {"Tensor"} else f"tuple[{', '.join(found)}]"
        called = {name: block.program.inputs for name, block in called_blocks(module).items()}
        body = body_lines(program, kinds, _WIDTH, 8, module.axes, called)
        definition = bracketed("forward(", [Code("self"), *arguments], ")")
        lines = [f"        {line}" for line in _init_lines(module, name_of)]
        lines += ["", *(f"    {line}" for line in broken(definition, _WIDTH - 4, "def ", f" -> {hint}:"))]
        lines += [f'        """{returns}"""']
        lines += [f"        {line}" if line else "" for line in body]
        return "\n".join(lines) + "\n"


_HINTS: dict[Kind, str] = {"tensor": "Tensor", "bool": "Tensor", "int": "int", "float": "float", "any": "Any"}


def _init_lines(module: Block, kind: Callable[[Block], str]) -> Iterator[str]:
    """Yield the lines that create layers, parameters and buffers, in the order of their use."""
    order = {name: i for i, name in enumerate(dict.fromkeys(_members_read(module.program)))}

    def by_use(members: dict[str, Any]) -> list[tuple[str, Any]]:
        given = [(name, member) for name, member in members.items() if member is not None]
        return sorted(given, key=lambda item: order.get(item[0], len(order)))

    for name, layer in by_use(module._modules):
        if isinstance(layer, torch.nn.ModuleList):
            calls = [
                f"{kind(block)}()" if isinstance(block, Block) else layer_source(block) for block in layer
            ]
            same = len(set(calls)) == 1
            items = [Code(f"{calls[0]} for _ in range({len(calls)})")]
            if not same:
                items = [bracketed("[", list(map(Code, calls)), "]", is_display=True)]
            code = bracketed("torch.nn.ModuleList(", items, ")")
        else:
            code = Code(f"{kind(layer)}()") if isinstance(layer, Block) else _layer_code(layer)
        yield from broken(code, _WIDTH - 8, f"self.{name} = ")
    for name, parameter in by_use(module._parameters):
        code = bracketed("torch.nn.Parameter(", [_empty(parameter)], ")")
        yield from broken(code, _WIDTH - 8, f"self.{name} = ")
    for name, buffer in by_use(module._buffers):
        code = bracketed("torch.nn.Buffer(", [_constant(buffer)], ")")
        yield from broken(code, _WIDTH - 8, f"self.{name} = ")


def _members_read(program: Program) -> Iterator[str]:
    """Yield the names of layers, parameters and buffers in the order of their use."""
    for statement in program.statements:
        if isinstance(statement, Define):
            yield from _members_read(statement.program)
        else:
            call = [statement.modules] if isinstance(statement, Repeat) else [statement.call.function]
            for name in (*call, *names_read(statement)):
                if name.startswith("self."):
                    yield re.sub(r"\[\d+\]$", "", name.removeprefix("self."))


def _empty(tensor: torch.Tensor) -> Code:
    items = list(map(code_of, tensor.shape)) or [Code("()")]
    if tensor.dtype != torch.float32:
        items.append(Code(f"dtype={tensor.dtype}"))
    return bracketed("torch.empty(", items, ")")


def _constant(buffer: torch.Tensor) -> Code:
    """Return a buffer of few elements with its values, which hold in a block that is added, too."""
    is_plain = buffer.dtype in (torch.float32, torch.float64, torch.int32, torch.int64, torch.bool)
    if not is_plain or not 1 <= buffer.numel() <= _MAX_CONSTANT or buffer.isnan().any():
        return _empty(buffer)
    items = [code_of(_decimals(buffer.tolist()) if buffer.dtype == torch.float32 else buffer.tolist())]
    if buffer.dtype in (torch.float64, torch.int32):
        items.append(Code(f"dtype={buffer.dtype}"))
    return bracketed("torch.tensor(", items, ")")


def _decimals(values: Any) -> Any:
    """Return nested lists of float32 numbers with the shortest decimals."""
    return list(map(_decimals, values)) if isinstance(values, list) else shortest_decimal(values)


def layer_source(layer: torch.nn.Module) -> str:
    """Return the call that builds a layer of burnt.nn, with the arguments that differ from their defaults.

    Raises:
        UnsupportedError: an argument of the layer is not among its attributes.

    >>> from burnt import nn
    >>> layer_source(nn.Conv2d(3, 8, 3, padding=1, bias=False))
    'nn.Conv2d(3, 8, (3, 3), padding=(1, 1), bias=False)'
    """
    return _layer_code(layer).text


def _layer_code(layer: torch.nn.Module) -> Code:
    if isinstance(layer, Quantized):
        scheme = bracketed("QuantScheme.parse(", [code_of(layer.scheme.name)], ")")
        return bracketed(f"nn.quantized.{type(layer).__name__}(", [_layer_code(layer.restore()), scheme], ")")
    cls = type(layer)
    prefix = "nn" if cls.__module__.startswith("burnt.nn") else "torch.nn"
    positional, keywords = [], []
    for parameter in inspect.signature(cls.__init__).parameters.values():
        if parameter.name in ("self", "device", "dtype"):
            continue
        if parameter.name == "bias" and not getattr(layer, "elementwise_affine", True):
            continue
        value = _attribute(layer, parameter.name)
        if parameter.default is parameter.empty:
            positional.append(code_of(value))
        elif value != parameter.default and value != _spread(parameter.default, value):
            keywords.append(prefixed(f"{parameter.name}=", code_of(value)))
    weight = next(layer.parameters(), None)
    if weight is not None and weight.dtype != torch.float32:
        keywords.append(Code(f"dtype={weight.dtype}"))
    return bracketed(f"{prefix}.{cls.__name__}(", [*positional, *keywords], ")")


def _attribute(layer: torch.nn.Module, name: str) -> Any:
    value = getattr(layer, name, inspect.Parameter.empty)
    if isinstance(value, torch.nn.Dropout):
        return value.p
    if name == "bias" and isinstance(layer, nn.GatedFeedForward):
        return layer.gate_proj.bias is not None
    if name in ("bias", "affine", "elementwise_affine") and not isinstance(value, bool):
        return value is not None and value is not inspect.Parameter.empty
    if value is inspect.Parameter.empty:
        raise UnsupportedError(
            f"{qualified_name(type(layer))} cannot be written as Python",
            expected=f"an attribute {name!r}, as its argument",
            found="none",
        )
    return value


def _spread(default: Any, value: Any) -> Any:
    """Return a default number as the tuple that a layer keeps of it: 1 as (1, 1)."""
    return (default,) * len(value) if isinstance(value, tuple) and not isinstance(default, tuple) else default
