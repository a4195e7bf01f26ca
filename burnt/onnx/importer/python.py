"""An imported model as a Python file: a burnt Module with its layers, and the weights beside it."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from burnt._files import replacing
from burnt.onnx.importer.body import body_lines
from burnt.onnx.importer.kinds import Kind, called_blocks, kind_of, program_kinds
from burnt.onnx.importer.members import layer_code, layer_source, tensor_code
from burnt.onnx.importer.module import Block, ImportedModule
from burnt.onnx.importer.names import unique_kind
from burnt.onnx.importer.printing import Code, bracketed, broken, code_of, prefixed
from burnt.onnx.importer.program import members_read
from burnt.onnx.importer.templates import (
    Constructor,
    Structure,
    block_structure,
    constructor,
    with_attributes,
)

WEIGHTS = "weights.safetensors"
"""The name of the file with the weights, beside the Python file."""

_WIDTH = 110
_MOST_LISTED = 88  # characters of the names of outputs in a docstring of one line
_LEAST_RUN = 3  # equal blocks of a list that are written as one

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
    found = classes.add_blocks(module, inputs)
    text = ""
    for kind, body in classes.bodies.items():
        text += _CLASS.format(name=kind, title="A block of the model.") + body
    own = classes.body(found, Constructor(), f"Return {_listed(module.output_names)}.")
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


@dataclass
class _Used:
    """A block with what it is called with.

    Args:
        block: with its program.
        inputs: the kinds of its arguments.
        kinds: of the names of its program.
        height: how deep blocks are nested in it; 0 for one without blocks.
    """

    block: Block
    inputs: Sequence[Kind]
    kinds: dict[str, Kind]
    height: int


class _Classes:
    """The classes of a file.

    Args:
        taken: names that other classes have.
    """

    def __init__(self, taken: set[str]) -> None:
        self.taken = taken
        self.bodies: dict[str, str] = {}  # the text of each class, by its name
        self.calls: dict[int, Code] = {}  # what creates a block, by its id

    def add_blocks(self, module: Block, inputs: Sequence[Kind]) -> _Used:
        """Add the classes of the blocks in a module; blocks that differ in numbers alone have one."""
        used: dict[int, _Used] = {}
        found = _add_used(module, inputs, used)
        for height in range(found.height):
            groups: dict[Hashable, list[tuple[_Used, Structure]]] = {}
            for one in used.values():
                if one.height == height:
                    structure = block_structure(one.block, self.nested)
                    key = tuple(one.inputs), structure.members, structure.key
                    groups.setdefault(key, []).append((one, structure))
            for group in groups.values():
                self.add_class(group)
        return found

    def nested(self, module: torch.nn.Module) -> Hashable:
        """Return what counts of a block in another one: the call that creates it."""
        return self.calls[id(module)].text if isinstance(module, Block) else id(module)

    def add_class(self, group: list[tuple[_Used, Structure]]) -> None:
        """Add one class for blocks of a structure, or several where one took too many arguments."""
        found = constructor([structure for _, structure in group], group[0][1].members)
        if found is None:
            parts: dict[Hashable, list[tuple[_Used, Structure]]] = {}
            for one, structure in group:
                of_forward = [repr(n.value) for n in structure.numbers if not n.member]
                parts.setdefault(tuple(of_forward), []).append((one, structure))
            if len(parts) == 1:
                parts = {}
                for one, structure in group:
                    parts.setdefault(structure.exact, []).append((one, structure))
            for part in parts.values():
                self.add_class(part)
            return
        first = group[0][0]
        kind = unique_kind(_common_name([one.block.kind for one, _ in group]), self.taken)
        self.bodies[kind] = self.body(first, found, "Return what the next block or the model reads.")
        for i, (one, _) in enumerate(group):
            arguments = []
            for parameter in found.parameters:
                code = code_of(parameter.values[i])
                arguments.append(code if parameter.is_width else prefixed(f"{parameter.name}=", code))
            self.calls[id(one.block)] = bracketed(f"{kind}(", arguments, ")")

    def body(self, used: _Used, given: Constructor, returns: str) -> str:
        """Return the lines of a class after its docstring.

        Args:
            used: the module or one of the blocks.
            given: the arguments of the constructor.
            returns: the docstring of ``forward``.
        """
        program, kinds = used.block.program, used.kinds
        if given.attributes():
            program = with_attributes(program, given.of_forward())
            hints: dict[str, Kind] = {"int": "int", "float": "float"}
            kinds = kinds | {f"self.{p.name}": hints[p.hint] for p in given.parameters if p.hint in hints}
        parameters = [Code(f"{parameter.name}: {parameter.hint}") for parameter in given.parameters]
        created = bracketed("__init__(", [Code("self"), *parameters], ")")
        arguments = [
            Code(f"{name}: {_HINTS[kind]}") for name, kind in zip(program.inputs, used.inputs, strict=True)
        ]
        found = [_HINTS[kind_of(output, kinds)] for output in program.outputs]
        hint = found[0] if len(found) == 1 else "tuple[Any, ...]"
        if len(found) > 1:
            hint = "tuple[Tensor, ...]" if set(found) == {"Tensor"} else f"tuple[{', '.join(found)}]"
        called = {name: block.program.inputs for name, block in called_blocks(used.block).items()}
        body = body_lines(program, kinds, _WIDTH, 8, used.block.axes, called)
        definition = bracketed("forward(", [Code("self"), *arguments], ")")
        lines = [f"    {line}" for line in broken(created, _WIDTH - 4, "def ", " -> None:")]
        lines += ["        super().__init__()"]
        lines += [f"        self.{name} = {name}" for name in given.attributes()]
        lines += [f"        {line}" for line in self.init_lines(used.block, given)]
        lines += ["", *(f"    {line}" for line in broken(definition, _WIDTH - 4, "def ", f" -> {hint}:"))]
        lines += [f'        """{returns}"""']
        lines += [f"        {line}" if line else "" for line in body]
        return "\n".join(lines) + "\n"

    def init_lines(self, module: Block, given: Constructor) -> Iterator[str]:
        """Yield the lines that create layers, parameters and buffers, in the order of their use."""
        order = {name: i for i, name in enumerate(dict.fromkeys(members_read(module.program)))}

        def by_use(members: dict[str, Any]) -> list[tuple[str, Any]]:
            found = [(name, member) for name, member in members.items() if member is not None]
            return sorted(found, key=lambda item: order.get(item[0], len(order)))

        for name, layer in by_use(module._modules):
            if isinstance(layer, torch.nn.ModuleList):
                code = self.list_code(layer)
            elif isinstance(layer, Block):
                code = self.calls[id(layer)]
            else:
                code = layer_code(layer, {key: Code(value) for key, value in given.of_layer(name).items()})
            yield from broken(code, _WIDTH - 8, f"self.{name} = ")
        for name, tensor in (*by_use(module._parameters), *by_use(module._buffers)):
            code = tensor_code(tensor, {axis: Code(value) for axis, value in given.of_tensor(name).items()})
            yield from broken(code, _WIDTH - 8, f"self.{name} = ")

    def list_code(self, layers: torch.nn.ModuleList) -> Code:
        """Return the call that creates a list, with equal blocks in a row written once."""
        calls = [self.calls[id(x)] if isinstance(x, Block) else Code(layer_source(x)) for x in layers]
        runs = [list(run) for _, run in itertools.groupby(calls, key=lambda call: call.text)]
        several = [Code(f"{run[0].text} for _ in range({len(run)})") for run in runs]
        if len(runs) == 1:
            return bracketed("torch.nn.ModuleList(", several, ")")
        items: list[Code] = []
        for run, loop in zip(runs, several, strict=True):
            items += [bracketed("*(", [loop], ")")] if len(run) >= _LEAST_RUN else run
        display = bracketed("[", items, "]", is_display=True)
        return bracketed("torch.nn.ModuleList(", [display], ")")


def _common_name(kinds: Sequence[str]) -> str:
    """Return the words that all names end with, or the first name where these are none."""
    words = [re.findall(r"[A-Z][^A-Z]*", kind)[::-1] for kind in dict.fromkeys(kinds)]
    columns = itertools.takewhile(lambda column: len(set(column)) == 1, zip(*words, strict=False))
    return "".join(column[0] for column in list(columns)[::-1]) or kinds[0]


def _add_used(block: Block, inputs: Sequence[Kind], used: dict[int, _Used]) -> _Used:
    """Add the blocks in a module, in the order of their use, and return the module itself."""
    kinds, given = program_kinds(block, inputs)
    names = dict.fromkeys([*members_read(block.program), *block._modules])
    height = 0
    for layer in (block._modules.get(name) for name in names):
        for child in layer if isinstance(layer, torch.nn.ModuleList) else [layer]:
            if not isinstance(child, Block):
                continue
            unknown: list[Kind] = ["any"] * len(child.program.inputs)
            one = used.get(id(child)) or _add_used(child, given.get(id(child), unknown), used)
            used[id(child)] = one
            height = max(height, one.height + 1)
    return _Used(block, inputs, kinds, height)


_HINTS: dict[Kind, str] = {"tensor": "Tensor", "bool": "Tensor", "int": "int", "float": "float", "any": "Any"}
