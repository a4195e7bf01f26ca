"""What variables are called in written Python."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from burnt.onnx.importer.paths import is_reserved
from burnt.onnx.importer.program import Call, Name
from burnt.onnx.importer.python.kinds import Kinds, is_tensor, kind_of

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
        "expanded",
        "flat",
        "gemm",
        "linear",
        "matmul",
        "pooled",
    ),
    *("reshaped", "squeezed", "transposed", "x"),
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


_NORM = re.compile(r"(layer_?norm|(?<![a-z])(rms_?)?norm|(?<![a-z])ln)\d*(_|\b)", re.IGNORECASE)


def is_named_after_argument(call: Call) -> bool:
    """Whether the result of a call is called what its first argument is."""
    if not call.args or not isinstance(call.args[0], Name | Call) or call.function in _OWN_NAMES:
        return False
    return call.function not in _ARITHMETIC and (
        call.function.startswith(("torch.", "F.")) or call.function in _AFTER_ARGUMENT
    )
