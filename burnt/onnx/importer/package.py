"""An imported model as a Python file, a burnt Module with its layers, and a file with the weights."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from burnt._files import replacing
from burnt.onnx.importer.blocks.lists import Block, Members, group_lists, grouped
from burnt.onnx.importer.blocks.repeats import number_repeats
from burnt.onnx.importer.blocks.structure import Constructor, constructor, with_attributes
from burnt.onnx.importer.module import ImportedModule
from burnt.onnx.importer.paths import children_of, list_length, unique_name
from burnt.onnx.importer.program import Leaf, Name, Program, Size, name_of
from burnt.onnx.importer.python.body import body_lines
from burnt.onnx.importer.python.expressions import Code, bracketed, broken, code_of, prefixed
from burnt.onnx.importer.python.kinds import Kind, common_kind, kind_of, program_kinds
from burnt.onnx.importer.python.layers import layer_code, tensor_code

WEIGHTS = "weights.safetensors"
"""The name of the file with the weights, next to the Python file."""

_WIDTH = 110
_MOST_LISTED = 88  # characters of the names of outputs in a docstring of one line
_LEAST_RUN = 3  # equal elements of a list that are written as one

_IMPORTS = (
    (("burnt",), "import burnt"),
    (("torch",), "import torch"),
    (("QuantScheme", "nn"), "from burnt import {}"),
    (("ops",), "from burnt.onnx import functions as ops"),
    (("Tensor",), "from torch import Tensor"),
    (("F",), "from torch.nn import functional as F"),
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
        weights: the file of the weights, by default `{weights}` next to this one.
    """
    model = {name}()
    burnt.load_weights(model, Path(__file__).with_name("{weights}") if weights is None else weights)
    return model.eval()
'''


def write_package(module: ImportedModule, folder: Path, *, name: str, title: str) -> Path:
    """Write an imported module as ``__init__.py`` and `WEIGHTS` into a folder; return the Python file.

    Existing files are replaced. `name` is the class's name, `title` the first line of the file's docstring.
    """
    folder.mkdir(parents=True, exist_ok=True)
    module = with_numbered_repeats(module)
    module.into_record().save(folder / WEIGHTS)
    path = folder / "__init__.py"
    with replacing(path) as temporary:
        Path(temporary).write_text(module_source(module, name, title), encoding="utf-8")
    return path


def with_numbered_repeats(module: ImportedModule) -> ImportedModule:
    """Return a module of the same layers, with the paths of lists where the file names nothing."""
    paths = number_repeats(module.program, module.members)
    if not paths:
        return module
    program = module.program.renamed(lambda name: f"self.{paths[name[5:]]}" if name[5:] in paths else name)
    members = {paths.get(path, path): member for path, member in module.members.items()}
    names = module.input_names, module.output_names
    return ImportedModule(program, members, names, module.signature, module.sizes)


def module_source(module: ImportedModule, name: str, title: str) -> str:
    """Return the Python of an imported module: a class with its layers, and ``load``.

    It is formatted as ruff does it, with lines of at most 110 characters.
    """
    module = with_numbered_repeats(module)
    classes = _Classes(module, name)
    own = classes.model(f"Return {_listed(module.output_names)}.")
    text = ""
    for kind, body in classes.bodies.items():
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
    for names, line in _IMPORTS:
        if found := [name for name in names if name in used]:
            yield line.format(", ".join(found))


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


# --- classes ----------------------------------------------------------------------------------------------

_HINTS: dict[Kind, str] = {"tensor": "Tensor", "bool": "Tensor", "int": "int", "float": "float", "any": "Any"}
_ROLES = {("F.scaled_dot_product_attention", 3): "mask", ("ops.rotate", 1): "cos", ("ops.rotate", 2): "sin"}
"""What arguments of a block are called, after the arguments of functions that they become."""


class _Classes:
    """The classes of a file."""

    def __init__(self, module: ImportedModule, name: str) -> None:
        self.module = module
        self.taken = {name, "Any", "F", "Path", "QuantScheme", "Tensor"}
        self.bodies: dict[str, str] = {}  # the text of each class, by its name
        axes = () if module.signature is None else module.signature.described_axes
        self.axes = dict(zip(module.program.inputs, axes, strict=False))

    def model(self, returns: str) -> str:
        """Return the body of the model's class, and add the bodies of blocks."""
        module, program, members = self.module, self.module.program, self.module.members
        inputs: list[Kind] = ["any"] * len(program.inputs)
        if module.signature is not None:
            inputs = ["tensor" if given else "any" for given in module.signature.tensors]
        kinds = program_kinds(program, members, inputs)
        program, blocks = group_lists(program, members)
        calls, arguments = self.add_blocks(blocks, kinds)
        program = program.replaced(self.size)
        names = dict(zip(program.inputs, program.inputs, strict=True))
        scope = _Members(members, calls, Constructor())
        return self.body(program, names, kinds, scope, arguments, returns)

    def size(self, leaf: Leaf) -> Leaf:
        """Return a size as the size of an input which the file calls the same."""
        return self.module.sizes.get(leaf, leaf) if isinstance(leaf, Size) else leaf

    def add_blocks(
        self, blocks: Sequence[Block], kinds: dict[str, Kind]
    ) -> tuple[dict[str, Code], dict[str, list[str]]]:
        """Add the classes of blocks; return what creates each of them, and the names of its arguments."""
        groups = grouped(blocks, lambda block: block.structure.key)
        names = _class_names({block.list_path for block in blocks})
        calls: dict[str, Code] = {}
        arguments: dict[str, list[str]] = {}
        for group in groups.values():
            same = [block for block in blocks if block.list_path == group[0].list_path]
            is_first = all(block.path.endswith(".0") for block in group) and not {*map(id, same)} <= {
                *map(id, group)
            }
            name = ("First" if is_first else "") + names[group[0].list_path]
            inputs = self.input_names(group)
            arguments |= {path: inputs for block in group for path in (block.path, block.list_path)}
            self.add_class(group, name, inputs, kinds, calls)
            for block in group:
                kinds[f"self.{block.path}"] = kinds[block.outputs[0]] if len(block.outputs) == 1 else "any"
        return calls, arguments

    def input_names(self, group: Sequence[Block]) -> list[str]:
        """Return the names of the arguments of blocks, whose order is the same."""
        block, used = group[0], {name.partition(".")[0]: 1 for name in ("self.x",)}
        roles: dict[Any, str] = {
            argument: role
            for statement in block.statements
            for (function, position), role in _ROLES.items()
            if statement.call.function == function
            for argument in statement.call.args[position : position + 1]
            if isinstance(argument, Name)
        }
        names = []
        for i, leaf in enumerate(block.inputs):
            hints = {self.hint(one.inputs[i]) for one in group}
            hint = hints.pop() if len(hints) == 1 else "size" if isinstance(leaf, Size) else self.hint(leaf)
            is_hidden = i < max(1, block.carried) and isinstance(leaf, Name)
            names.append(unique_name("hidden" if is_hidden else roles.get(leaf, hint), used))
        return names

    def hint(self, leaf: Leaf) -> str:
        """Return what an argument is called where nothing says it better."""
        leaf = self.size(leaf)
        if isinstance(leaf, Size) and leaf.axis is not None:
            names = self.axes.get(leaf.tensor.name, ())
            name = names[leaf.axis] if leaf.axis < len(names) else ""
            return name or ("batch_size" if leaf.axis == 0 else "size")
        words = name_of(leaf).name.rpartition(".")[2]
        return re.sub(r"_\d+(?=_|$)", "", words)  # past_0_key and past_1_key are past_key in the block

    def add_class(
        self,
        group: list[Block],
        name: str,
        inputs: list[str],
        kinds: Mapping[str, Kind],
        calls: dict[str, Code],
    ) -> None:
        """Add one class for blocks of a structure, or several where one took too many arguments."""
        first = group[0]
        found = constructor(
            [block.structure for block in group], {path.partition(".")[0] for path in first.members}
        )
        if found is None:
            parts = grouped(
                group, lambda block: repr([n.value for n in block.structure.numbers if not n.member])
            )
            if len(parts) == 1:
                parts = grouped(group, lambda block: repr([n.value for n in block.structure.numbers]))
            for part in parts.values():
                self.add_class(part, name, inputs, kinds, calls)
            return
        given = {f"<{i}>": given for i, given in enumerate(inputs)}
        own = {name: kind for name, kind in kinds.items() if not name.startswith("self.")}
        own |= {f"self.{path}": kinds.get(f"self.{first.path}.{path}", "any") for path in first.members}
        for i, place in enumerate(given):
            own[place] = common_kind(kind_of(block.inputs[i], kinds) for block in group)
        program = first.program(list(given))
        if found.of_forward():
            program = with_attributes(program, found.of_forward())
        inner: dict[str, Code] = {}
        arguments: dict[str, list[str]] = {}
        if not found.parameters:  # else those of a list in it would differ too
            program, blocks = group_lists(program, first.members)
            inner, arguments = self.add_blocks(blocks, own)
        scope = _Members(first.members, inner, found)
        body = self.body(
            program, given, own, scope, arguments, "Return what the next block or the model reads."
        )
        same = next((kind for kind, other in self.bodies.items() if other == body), None)
        kind = same or _unique(name, self.taken)
        self.bodies[kind] = body
        for i, block in enumerate(group):
            values = [(one, code_of(one.values[i])) for one in found.parameters]
            items = [code if one.is_width else prefixed(f"{one.name}=", code) for one, code in values]
            calls[block.path] = bracketed(f"{kind}(", items, ")")

    def body(
        self,
        program: Program,
        names: Mapping[str, str],
        kinds: Mapping[str, Kind],
        scope: _Members,
        arguments: Mapping[str, list[str]],
        returns: str,
    ) -> str:
        """Return the lines of a class after its docstring."""
        hints: dict[str, Kind] = {"int": "int", "float": "float"}
        parameters = scope.given.parameters
        kinds = {**kinds, **{f"self.{p.name}": hints[p.hint] for p in parameters if p.hint in hints}}
        taken = [Code(f"{names[name]}: {_HINTS[kinds[name]]}") for name in program.inputs]
        found = [_HINTS[kind_of(output, kinds)] for output in program.outputs]
        hint = found[0] if len(found) == 1 else "tuple[Any, ...]"
        if len(found) > 1:
            hint = "tuple[Tensor, ...]" if set(found) == {"Tensor"} else f"tuple[{', '.join(found)}]"
        kinds = {scope.code(name): kind for name, kind in kinds.items()}
        called = {scope.code(f"self.{path}"): list(given) for path, given in arguments.items()}
        lines = body_lines(program.renamed(scope.code), kinds, _WIDTH - 8, names, self.axes, called)
        created = bracketed(
            "__init__(", [Code("self"), *(Code(f"{p.name}: {p.hint}") for p in parameters)], ")"
        )
        definition = bracketed("forward(", [Code("self"), *taken], ")")
        attributes = dict.fromkeys(scope.given.of_forward().values())
        text = [f"    {line}" for line in broken(created, _WIDTH - 4, "def ", " -> None:")]
        text += ["        super().__init__()"]
        text += [f"        self.{name} = {name}" for name in attributes]
        text += [f"        {line}" for line in scope.lines()]
        text += ["", *(f"    {line}" for line in broken(definition, _WIDTH - 4, "def ", f" -> {hint}:"))]
        text += [f'        """{returns}"""']
        text += [f"        {line}" if line else "" for line in lines]
        return "\n".join(text) + "\n"


class _Members:
    """The layers and tensors of a class by path, what creates blocks in it, and its constructor."""

    def __init__(self, members: Members, calls: Mapping[str, Code], given: Constructor) -> None:
        self.members, self.calls, self.given = members, calls, given
        self.children = children_of(members)

    def code(self, name: str) -> str:
        """Return what a member of a program is called in Python: ``self.layers[0].norm``."""
        path, bracket, index = name.removeprefix("self.").partition("[")
        if not name.startswith("self.") or (path not in self.members and path not in self.children):
            return name
        code, above = "self", ""
        for part in path.split("."):
            if list_length(above, self.children, self.members) is not None:
                code += f"[{part}]"
            else:
                code = f"{code}.{part}" if part.isidentifier() else f'getattr({code}, "{part}")'
            above = f"{above}.{part}".lstrip(".")
        return code + bracket + index

    def lines(self) -> Iterator[str]:
        """Yield the lines that create them, in the order of the module."""
        left = [f"{name}" for name in self.children[""]]
        while left:
            path = left.pop(0)
            created, inner = self.created(path)
            left = inner + left
            above, _, name = path.rpartition(".")
            if list_length(above, self.children, self.members) is not None:
                continue  # created with the list
            if name.isidentifier():
                yield from broken(created, _WIDTH - 8, f"{self.code(f'self.{path}')} = ")
            else:
                owner = Code(self.code(f"self.{above}") if above else "self")
                yield from broken(bracketed("setattr(", [owner, Code(f'"{name}"'), created], ")"), _WIDTH - 8)

    def created(self, path: str) -> tuple[Code, list[str]]:
        """Return the expression that creates a member, block, list or module, and what to create after it."""
        if path in self.calls:
            return self.calls[path], []
        if path in self.members:
            member = self.members[path]
            given = {key: Code(value) for key, value in self.given.of_member(path).items()}
            if isinstance(member, torch.Tensor):
                return tensor_code(member, given), []
            return layer_code(member, given), []
        inner = [f"{path}.{name}" for name in self.children[path]]
        length = list_length(path, self.children, self.members)
        if length is None:
            return Code("torch.nn.Module()"), inner
        elements = [f"{path}.{i}" for i in range(length)]
        codes = [self.created(one)[0] if one in inner else Code("torch.nn.Identity()") for one in elements]
        return _list_code(codes), [one for one in elements if one in inner]


def _list_code(elements: Sequence[Code]) -> Code:
    """Return the call that creates a list, with equal elements in a row written once."""
    runs = [list(run) for _, run in itertools.groupby(elements, key=lambda code: code.text)]
    several = [Code(f"{run[0].text} for _ in range({len(run)})") for run in runs]
    if len(runs) == 1 and len(elements) > 1:
        return bracketed("torch.nn.ModuleList(", several, ")")
    items: list[Code] = []
    for run, loop in zip(runs, several, strict=True):
        items += [bracketed("*(", [loop], ")")] if len(run) >= _LEAST_RUN else run
    return bracketed("torch.nn.ModuleList(", [bracketed("[", items, "]", is_display=True)], ")")


def _class_names(paths: set[str]) -> dict[str, str]:
    """Return names of classes after the ends of the paths of lists, as long as they have to differ.

    >>> _class_names({"encoder.layers", "decoder.layers"})["encoder.layers"]
    'EncoderLayer'
    """
    words = {path: [word for word in re.split(r"[._]", path) if not word.isdecimal()] for path in paths}
    words = {path: [*found[:-1], re.sub(r"(?<=[a-z]{2})s$", "", found[-1])] for path, found in words.items()}
    names = {}
    for path, own in words.items():
        others = [other for other in words.values() if other != own]
        size = next(
            (n for n in range(1, len(own)) if all(own[-n:] != other[-n:] for other in others)), len(own)
        )
        name = "".join(word[:1].upper() + word[1:] for word in own[-size:])
        names[path] = name if name.isidentifier() and len(name) > 1 else f"Block{name}"
    return names


def _unique(hint: str, taken: set[str]) -> str:
    name = next(name for i in itertools.count(1) if (name := hint if i == 1 else f"{hint}{i}") not in taken)
    taken.add(name)
    return name
