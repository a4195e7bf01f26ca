"""Paths of layers, parameters and buffers: those of the file, as modules within modules.

``bert.encoder.layer.0.attention.self.query.weight`` is a weight of a layer in a module in a list, as in the
source.
"""

from __future__ import annotations

import itertools
import keyword
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from burnt.module import Module

if TYPE_CHECKING:
    import onnx_ir as ir

import builtins
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir

_RESERVED = {*dir(Module), *dir(torch.nn.ModuleList), "training", "program", "signature", "sizes", "members"}
_RESERVED |= {"flat_names", "input_names", "output_names"}
"""Attributes of modules and lists, and of ImportedModule."""
_OF_LAYER = r"(\.(weights?|bias|scale|gamma|beta|kernel|w|b)(_\w+)?|\.running_\w+|_weight|_bias)$"
"""What the names of a layer's weights end with."""
_MOST_DEPTH = 32
_MOST_COMMON = 4  # modules around all weights, which older imports left out
_MOST_GAPS = 16  # of the numbers in a list, more than twice its length


class Paths:
    """The paths of a module's members: all differ, and no member lies below another one.

    >>> paths = Paths()
    >>> paths.new("encoder.layer.0"), paths.new("encoder.layer.0"), paths.new("encoder.layer.0.scale")
    ('encoder.layer.0', 'encoder.layer.0_2', 'encoder.layer.0_scale')
    """

    def __init__(self) -> None:
        self.members: set[str] = set()
        self.above: set[str] = set()
        self.numbers: dict[str, int] = {}  # the last one after each path, as thousands may be equal

    def new(self, hint: str) -> str:
        """Return a path that is not used yet, made from text of any kind."""
        parts = [_attribute(part) for part in hint.split(".") if part] or ["x"]
        parts[_MOST_DEPTH:] = ["_".join(parts[_MOST_DEPTH:])[:64]] if len(parts) > _MOST_DEPTH else []
        below = next((i for i in range(1, len(parts)) if ".".join(parts[:i]) in self.members), 0)
        if below:
            parts[below - 1 :] = ["_".join(parts[below - 1 :])]
        stem = path = ".".join(parts)
        number = self.numbers.get(stem, 1)
        while path in self.members or path in self.above:
            number += 1
            path = f"{stem.rstrip('_')}_{number}"
        self.numbers[stem] = number
        self.members.add(path)
        self.above.update(itertools.accumulate(path.split(".")[:-1], lambda a, b: f"{a}.{b}"))
        return path


def _attribute(text: str) -> str:
    """Return one name of a path: as it is if it may be an attribute's name, or is a number.

    A class changes names that begin with two underscores.
    """
    if text[:2] != "__" and text.isascii() and (text.isidentifier() or text.isdigit()) and len(text) <= 64:
        return f"{text}_" if keyword.iskeyword(text) or text in _RESERVED else text
    words = re.sub(r"[\W_]+", "_", text.encode("ascii", "ignore").decode()).strip("_")[:64].rstrip("_") or "x"
    return _attribute(f"x_{words}"[:64] if words[0].isdigit() and not words.isdigit() else words)


def tensor_hint(name: str) -> str:
    """Return a short path for a tensor that an exporter named after a node and all modules around it.

    >>> tensor_hint("/model/rotary_emb/Constant_1_output_0"), tensor_hint("encoder.layer.0.weight")
    ('rotary_emb_constant', 'encoder.layer.0.weight')
    """
    found = re.fullmatch(r"/?(.*?)/?([A-Za-z]+)(_\d+)?_output_\d+", name)
    if found is None:
        return name
    modules = [module for module in found[1].split("/") if re.search(r"[A-Za-z]", module)]
    inner = re.sub(r"\.\d+", "", modules[-1]) if modules and modules[-1] != modules[0] else ""
    return f"{inner}_{found[2].lower()}".strip("_").replace(".", "_")


def layer_path(node: ir.Node) -> str | None:
    """Return the path of the module that a node was, by the names of its weights or its own, else None."""
    readers = [use.node for output in node.outputs for use in output.uses()]
    added = [value for reader in readers[:1] if reader.op_type == "Add" for value in reader.inputs]
    own = [value for value in added if value is not None and len(value.uses()) == 1]
    for value in (*node.inputs[1:], *own):
        before = None if value is None else value.producer()
        if before is not None and before.op_type == "DequantizeLinear":
            value = before.inputs[0]
        if value is not None and value.is_initializer() and value.name and "." in value.name:
            # MultiheadAttention has `in_proj_weight`, LSTM `weight_ih_l0`; others a matrix of some name.
            return re.sub(_OF_LAYER, "", value.name, flags=re.IGNORECASE)
    scopes = node.metadata_props.get("pkg.torch.onnx.name_scopes", "")  # a list as text, of torch's exporter
    found = re.findall(r"'((?:\w|\.)+)'", scopes)
    if len(found) > 1:
        return str(found[-2])
    parts = (node.name or "").strip("/").split("/")[:-1]
    # A Sequential named `stem` has the scopes `stem` and `stem.0`.
    inner = [part for part, after in itertools.pairwise([*parts, ""]) if not after.startswith(f"{part}.")]
    return ".".join(inner) if inner else None


# --- modules within modules -------------------------------------------------------------------------------


def children_of(paths: Iterable[str]) -> dict[str, list[str]]:
    """Return the names below each path that is not a member, in order; "" is the module itself."""
    found: dict[str, dict[str, None]] = {"": {}}
    for path in paths:
        parts = path.split(".")
        for i, part in enumerate(parts):
            found.setdefault(".".join(parts[:i]), {})[part] = None
    return {path: list(names) for path, names in found.items()}


def list_length(
    path: str, children: Mapping[str, list[str]], members: Mapping[str, torch.nn.Module | Tensor]
) -> int | None:
    """Return the length of the list that a path is; None if it is none.

    The names of its elements are numbers, and none is a tensor. A list may have gaps, where the source has
    what an exporter leaves out. `children` has the names below each path.
    """
    names = children[path]
    if not path or not all(name.isdecimal() and str(int(name)) == name for name in names):
        return None
    length = 1 + max(map(int, names))
    has_tensors = any(isinstance(members.get(f"{path}.{name}"), Tensor) for name in names)
    return None if has_tensors or length > 2 * len(names) + _MOST_GAPS else length


def is_list(
    path: str, children: Mapping[str, list[str]], members: Mapping[str, torch.nn.Module | Tensor]
) -> bool:
    """Whether a path belongs to a list without gaps."""
    return list_length(path, children, members) == len(children[path])


def add_members(root: torch.nn.Module, members: Mapping[str, torch.nn.Module | Tensor]) -> None:
    """Add layers, parameters and buffers to a module, below modules and lists of their paths."""
    children = children_of(members)
    modules = {"": root}
    for path in children:
        if path:
            length = list_length(path, children, members)
            identities = (torch.nn.Identity() for _ in range(length or 0))
            modules[path] = torch.nn.Module() if length is None else torch.nn.ModuleList(identities)
            parent, _, name = path.rpartition(".")
            _add(modules[parent], name, modules[path])
    for path, member in members.items():
        parent, _, name = path.rpartition(".")
        _add(modules[parent], name, member)


def _add(parent: torch.nn.Module, name: str, member: torch.nn.Module | Tensor) -> None:
    if isinstance(member, torch.nn.Parameter):
        parent.register_parameter(name, member)
    elif isinstance(member, Tensor):
        parent.register_buffer(name, member)
    else:
        parent.add_module(name, member)


def find_member(root: torch.nn.Module, path: str) -> torch.nn.Module | Tensor:
    """Return a layer, parameter or buffer by its path in a program, ``self.encoder.norm``."""
    *parents, name = path.split(".")[1:]
    module = root
    for parent in parents:
        module = module._modules[parent]  # type: ignore[assignment]
    return module._modules.get(name) or getattr(module, name)


def flat_names(paths: Iterable[str]) -> dict[str, str]:
    """Return paths by the names that older imports gave them: their words, without a common beginning."""
    found: dict[str, str] = {}
    for path in paths:
        parts = path.split(".")
        for start in range(min(_MOST_COMMON, len(parts))):
            found.setdefault(flat(".".join(parts[start:])), path)
    return found


def flat(path: str) -> str:
    """Return the words of a path."""
    return re.sub(r"[\W_]+", "_", path).lower()


_KEPT_NAMES = {"self", "ops", "torch", "F", "nn", "burnt", "forward", "training", "f"} | set(dir(builtins))


def is_reserved(name: str) -> bool:
    """Whether a variable cannot have a name."""
    return keyword.iskeyword(name) or name in _KEPT_NAMES


def unique_name(hint: str, used: dict[str, int]) -> str:
    """Return an identifier that is not used yet, and add it to those that are.

    `used` has the last number that was put after each, so that thousands of equal hints are not all counted
    again.

    >>> used = {}
    >>> unique_name("encoder/Layer.0", used), unique_name("encoder/Layer.0", used), unique_name("0", used)
    ('encoder_layer_0', 'encoder_layer_0_2', 'x_0')
    """
    words = re.sub(r"[\W_]+", "_", hint.encode("ascii", "ignore").decode())
    base = words.strip("_").lower()[:64].rstrip("_") or "x"
    if base[0].isdigit():
        base = f"x_{base}"
    if is_reserved(base):
        base += "_"
    name, number, stem = base, used.get(base, 1), base.rstrip("_")
    while name in used:
        number += 1
        name = f"{stem}_{number}"
    used[base] = number
    used.setdefault(name, 1)
    return name


_USELESS = re.compile(
    r"none|unnamed|unknown|(s|u|d|dim|axis|sym|symbol|unk|var)_*\d+|.*(_dim_\d+|dynamic_axes_\d+|_d\d+|unk_.*)|\d.*"
)


def axis_names(value: ir.Value) -> tuple[str, ...]:
    """Return what the axes of an input are called, "" for those without a name."""
    sizes = [size if isinstance(size, int) else size.value for size in value.shape or ()]
    dtype = "" if value.dtype is None else value.dtype.name
    return tuple(_axis_name(sizes, axis, dtype) for axis in range(len(sizes)))


def _axis_name(sizes: list[int | str | None], axis: int, dtype: str) -> str:
    """Return the name of an open axis; where the file's says nothing, what it certainly is."""
    symbol = sizes[axis]
    if isinstance(symbol, int):
        return ""
    if symbol and re.fullmatch(r"[\w.\- ]+", symbol, re.ASCII) and not _USELESS.fullmatch(symbol.lower()):
        return unique_name(symbol, {})
    if axis == 0:
        return "batch"
    if len(sizes) == 2 and "INT" in dtype:
        return "length"
    is_image = len(sizes) == 4 and "FLOAT" in dtype and isinstance(sizes[1], int)
    if is_image and not isinstance(sizes[2], int) and not isinstance(sizes[3], int):
        return ("height", "width")[axis - 2]
    return ""
