"""Names of the variables, layers and tensors of a program: identifiers made from text of any kind."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Mapping
from typing import Any

from burnt.module import Module
from burnt.onnx.importer.kinds import Kinds, is_tensor, kind_of
from burnt.onnx.importer.program import Call, Name

_RESERVED = (
    {"self", "ops", "torch", "F", "nn", "burnt", "forward", "training", "f"}
    | {"axes", "input_names", "kind", "output_names", "program", "signature"}  # of ImportedModule
    | set(dir(Module))
    | set(dir(builtins))
)


def is_reserved(name: str) -> bool:
    """Whether a variable or an attribute cannot have a name."""
    return keyword.iskeyword(name) or name in _RESERVED


def unique_name(hint: str, used: dict[str, int]) -> str:
    """Return an identifier that is not used yet, and add it to those that are.

    Args:
        hint: text of any kind.
        used: identifiers, each with the last number that was put after it, so that thousands of equal hints
            are not all counted again.

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


def tensor_hint(name: str) -> str:
    """Return a short name for a tensor that an exporter named after a node and all modules around it.

    >>> tensor_hint("/model/rotary_emb/Constant_1_output_0"), tensor_hint("encoder.layer.0.weight")
    ('rotary_emb_constant', 'encoder.layer.0.weight')
    """
    found = re.fullmatch(r"/?(.*?)/?([A-Za-z]+)(_\d+)?_output_\d+", name)
    if found is None:
        return name
    modules = [module for module in found[1].split("/") if re.search(r"[A-Za-z]", module)]
    inner = re.sub(r"\.\d+", "", modules[-1]) if modules and modules[-1] != modules[0] else ""
    return f"{inner}_{found[2].lower()}".strip("_")


_IMPORTED = {"Any", "F", "Path", "QuantScheme", "Tensor"}


def unique_kind(hint: str, used: set[str]) -> str:
    """Return a name of a class that is not used yet, nor imported by written Python, and add it.

    >>> used = set()
    >>> unique_kind("Layer", used), unique_kind("Layer", used), unique_kind("Path", used)
    ('Layer', 'Layer2', 'Path2')
    """
    name, number = hint, 1
    while name in used | _IMPORTED:
        number += 1
        name = f"{hint}{number}"
    used.add(name)
    return name


# --- variables of written Python --------------------------------------------------------------------------

_OWN_NAMES = {
    "torch.amax": "largest",
    "torch.amin": "smallest",
    "torch.arange": "positions",
    "torch.argmax": "indices",
    "torch.argmin": "indices",
    "torch.cat": "joined",
    "torch.chunk": "part",
    "torch.cos": "cos",
    "torch.einsum": "x",
    "torch.full": "filled",
    "torch.log_softmax": "scores",
    "torch.maximum": "largest",
    "torch.mean": "mean",
    "torch.minimum": "smallest",
    "torch.sin": "sin",
    "torch.softmax": "weights",
    "torch.split": "part",
    "torch.sum": "total",
    "torch.where": "selected",
    "torch.zeros": "filled",
    "F.scaled_dot_product_attention": "attention",
    "ops.concat": "joined",
    "ops.full": "filled",
    "ops.arange": "positions",
}
"""What results of functions are called; those of other functions of torch are named after their argument."""

_AFTER_ARGUMENT = {
    *("ops.cast", "ops.cast_like", "ops.expand", "ops.flatten", "ops.pad", "ops.permute", "ops.prelu"),
    *("ops.quick_gelu", "ops.reshape", "ops.rotate", "ops.rotary", "ops.slice_", "ops.squeeze", "ops.swish"),
    *("ops.tile", "ops.unsqueeze", "ops.wrap_indices", "ops.hard_sigmoid", "ops.power"),
}
_ARITHMETIC = ("torch.add", "torch.sub", "torch.mul", "torch.div", "torch.matmul", "torch.addmm")
_GENERIC = {
    *(
        "batch_norm",
        "batchnorm",
        "conv",
        "embedding",
        "flat",
        "gemm",
        "linear",
        "matmul",
        "pooled",
        "reshaped",
    ),
    *("transposed", "squeezed", "expanded", "x"),
}
_LONG = 32
_GENERIC_WORDS = {"constant", "model", "output", "self", "val", "onnx", "weight"}


def plain_name(name: str) -> str:
    """Return the last words of a name without the numbers at its end: ``mask_2`` is a ``mask``."""
    plain = re.sub(r"(_\d+)+$", "", name).strip("_")
    while len(plain) > _LONG and re.search(r"_[a-z]", plain):
        plain = re.split(r"_(?=[a-z])", plain, maxsplit=1)[1]
    return "x" if not plain or is_reserved(plain) else plain


def variable_name(tree: Any, hint: str, variables: Mapping[str, str], kinds: Kinds) -> str:
    """Return what a result is called in written Python, without the number that makes it unique.

    Args:
        tree: the expression, often a call.
        hint: the name that the program has for it.
        variables: what other variables are called.
        kinds: of names.

    >>> variable_name(Call("torch.lt", (Name("x"), Name("y"))), "less_3", {}, {})
    'mask'
    """
    if isinstance(tree, Name):
        if not tree.name.startswith("self."):
            return variables.get(tree.name, plain_name(tree.name))
        words = [word for word in re.split(r"[._]", tree.name) if not word.isdigit()]
        return plain_name("_".join([word for word in words if word not in _GENERIC_WORDS][-2:]))
    if not isinstance(tree, Call):
        return "x"
    if _is_windows(tree):
        return "windows"
    function, hint = tree.function, plain_name(getattr(tree, "hint", "") or hint)
    if kind_of(tree, kinds) == "bool":
        return "mask"
    if function.startswith("self."):
        if _NORM.search(function) and "batch" not in function:
            return "normed"
        return "x" if hint in _GENERIC else hint
    if function in _ARITHMETIC:
        tensors = [arg for arg in tree.args if is_tensor(kind_of(arg, kinds))]
        names = [variable_name(arg, "x", variables, kinds) for arg in tensors]
        if len(tensors) == 1:
            return names[0]
        return next((name for name in names if name in ("x", "hidden")), "x")
    if is_named_after_argument(tree):
        return variable_name(tree.args[0], "x", variables, kinds)
    return _OWN_NAMES.get(function, "x" if hint in _GENERIC else hint)


def _is_windows(call: Call) -> bool:
    """Whether a call is the last of those that cut images ``[n, h, w, c]`` into windows ``[-1, size, c]``."""
    tree: Any = call
    shapes: list[Any] = []
    for function in ("torch.reshape", "torch.transpose", "torch.reshape"):
        if not isinstance(tree, Call) or tree.function != function:
            return False
        shapes.append(tree.args[1:])
        tree = tree.args[0]
    (after,), axes, (before,) = shapes
    if axes != (2, 3) or not isinstance(after, tuple) or not isinstance(before, tuple):
        return False
    if (len(after), len(before)) != (3, 6) or not all(type(size) is int for size in (*after, *before[1:])):
        return False
    return after[1:] == (before[2] * before[4], before[5]) and before[2] > 1


_NORM = re.compile(r"(layer_?norm|(?<![a-z])(rms_?)?norm|(?<![a-z])ln)\d*(_|\b)")


def is_named_after_argument(call: Call) -> bool:
    """Whether the result of a call is called what its first argument is."""
    if not call.args or not isinstance(call.args[0], Name | Call) or call.function in _OWN_NAMES:
        return False
    return call.function not in _ARITHMETIC and (
        call.function.startswith(("torch.", "F.")) or call.function in _AFTER_ARGUMENT
    )
