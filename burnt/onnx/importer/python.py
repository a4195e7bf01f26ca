"""An imported model as a Python file: a burnt Module with its layers, and the weights beside it."""

from __future__ import annotations

import inspect
import math
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from burnt._files import replacing
from burnt.config import qualified_name
from burnt.errors import UnsupportedError
from burnt.nn.quantized import Quantized
from burnt.onnx.importer.module import Block, ImportedModule
from burnt.onnx.importer.names import unique_kind
from burnt.onnx.importer.program import Call, Define, Name, Program, Repeat, call_source, source

__all__ = ["WEIGHTS", "layer_source", "module_source", "write_package"]

WEIGHTS = "weights.safetensors"
"""The name of the file with the weights, beside the Python file."""

_WIDTH = 110

_HEADER = '''\
"""{title}

{details}
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

import burnt
from burnt import QuantScheme, nn
from burnt.onnx import functions as ops

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
    """Return the Python of an imported module: a class with its layers, and ``load``."""
    details = "\n".join(_details(module))
    text = _HEADER.format(name=name, title=_one_line(title), details=details)
    kinds: dict[str, str] = {}  # names of classes, by their text
    outputs = ", ".join(map(_one_line, module.output_names)) or "nothing"
    own = _class_text(module, f"Return {outputs}.", {name}, kinds)
    for body, kind in kinds.items():
        text += _CLASS.format(name=kind, title="A block of the model.") + body
    text += _CLASS.format(name=name, title=_one_line(title)) + own
    return text + _FOOTER.format(name=name, weights=WEIGHTS)


def _class_text(module: Block, returns: str, taken: set[str], kinds: dict[str, str]) -> str:
    """Return the lines of a class after ``super().__init__()``; its blocks' classes are added to `kinds`.

    Args:
        module: with its program.
        returns: the docstring of ``forward``.
        taken: names of classes that others have.
        kinds: names of the classes of blocks, by their text.
    """

    def kind(block: Block) -> str:
        text = _class_text(block, "Return what the next block or the model reads.", taken, kinds)
        if text not in kinds:
            kinds[text] = unique_kind(block.kind, taken)
        return kinds[text]

    lines = [f"        {line}" for line in _init_lines(module, kind)]
    arguments = "".join(f", {argument}: Any" for argument in module.program.inputs)
    lines += ["", f"    def forward(self{arguments}) -> Any:", f'        """{returns}"""']
    lines += [f"        {line}" for line in program_lines(module.program, _WIDTH - 8)]
    return "\n".join(lines) + "\n"


def _details(module: ImportedModule) -> Iterator[str]:
    yield "Inputs: " + (", ".join(map(_one_line, module.input_names)) or "none") + "."
    yield "Outputs: " + (", ".join(map(_one_line, module.output_names)) or "none") + "."


def _one_line(text: str) -> str:
    """Return text of a file as it may stand in a docstring."""
    printable = "".join(c if c.isprintable() else "?" for c in text)
    return printable.replace("\\", "/").replace('"', "'")[:80]


def _init_lines(module: Block, kind: Callable[[Block], str]) -> Iterator[str]:
    for name, layer in module._modules.items():
        if isinstance(layer, torch.nn.ModuleList):
            calls = [
                f"{kind(block)}()" if isinstance(block, Block) else layer_source(block) for block in layer
            ]
            same = len(set(calls)) == 1
            inner = f"{calls[0]} for _ in range({len(calls)})" if same else f"[{', '.join(calls)}]"
            yield from _wrapped(f"self.{name} = torch.nn.ModuleList({inner})", _WIDTH - 8)
        elif isinstance(layer, Block):
            yield f"self.{name} = {kind(layer)}()"
        elif layer is not None:
            yield from _wrapped(f"self.{name} = {layer_source(layer)}", _WIDTH - 8)
    for name, parameter in module._parameters.items():
        if parameter is not None:
            yield f"self.{name} = torch.nn.Parameter({_empty(parameter)})"
    for name, buffer in module._buffers.items():
        if buffer is not None:
            yield f'self.register_buffer("{name}", {_empty(buffer)})'


def _empty(tensor: torch.Tensor) -> str:
    dtype = "" if tensor.dtype == torch.float32 else f", dtype={tensor.dtype}"
    return f"torch.empty({tuple(tensor.shape)}{dtype})"


def layer_source(layer: torch.nn.Module) -> str:
    """Return the call that builds a layer of burnt.nn, with the arguments that differ from their defaults.

    Raises:
        UnsupportedError: an argument of the layer is not among its attributes.

    >>> from burnt import nn
    >>> layer_source(nn.Conv2d(3, 8, 3, padding=1, bias=False))
    'nn.Conv2d(3, 8, (3, 3), padding=(1, 1), bias=False)'
    """
    if isinstance(layer, Quantized):
        kind = type(layer).__name__
        return (
            f"nn.quantized.{kind}({layer_source(layer.restore())}, QuantScheme.parse({layer.scheme.name!r}))"
        )
    cls = type(layer)
    prefix = "nn" if cls.__module__.startswith("burnt.nn") else "torch.nn"
    positional, keywords = [], []
    for parameter in inspect.signature(cls.__init__).parameters.values():
        if parameter.name in ("self", "device", "dtype"):
            continue
        value = _attribute(layer, parameter.name)
        if parameter.default is parameter.empty:
            positional.append(_literal(value))
        elif value != parameter.default and value != _spread(parameter.default, value):
            keywords.append(f"{parameter.name}={_literal(value)}")
    weight = next(layer.parameters(), None)
    if weight is not None and weight.dtype != torch.float32:
        keywords.append(f"dtype={weight.dtype}")
    return f"{prefix}.{cls.__name__}({', '.join([*positional, *keywords])})"


def _attribute(layer: torch.nn.Module, name: str) -> Any:
    value = getattr(layer, name, inspect.Parameter.empty)
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


def _literal(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    return repr(value)


def program_lines(program: Program, width: int) -> Iterator[str]:
    """Yield the lines of a program's body as Python, with ``return``, wrapped at a width."""
    for statement in program.statements:
        if isinstance(statement, Define):
            yield f"def {statement.name}({', '.join(statement.program.inputs)}):"
            for line in program_lines(statement.program, width - 4):
                yield f"    {line}"
        elif isinstance(statement, Repeat):
            yield from _repeat_lines(statement, width)
        else:
            outputs = ", ".join(statement.outputs)
            call = call_source(statement.call)
            yield from _wrapped(f"{outputs} = {call}" if outputs else call, width)
    yield from _wrapped(f"return {', '.join(map(source, program.outputs)) or '()'}", width)


def _repeat_lines(repeat: Repeat, width: int) -> Iterator[str]:
    """Yield a loop over the blocks of a list."""
    for output, initial in zip(repeat.outputs, map(source, repeat.initial), strict=True):
        if output != initial:
            yield f"{output} = {initial}"
    results = tuple(map(Name, repeat.outputs))
    block = "block" if repeat.count is None else repeat.modules
    each = f"for block in {repeat.modules}" if repeat.count is None else f"for _ in range({repeat.count})"
    call = call_source(Call(block, (*results, *repeat.args)))
    yield f"{each}:"
    yield from (f"    {line}" for line in _wrapped(f"{', '.join(repeat.outputs)} = {call}", width - 4))


def _wrapped(line: str, width: int) -> Iterator[str]:
    """Yield a line, broken between arguments where it is too long; strings are not broken."""
    if len(line) <= width or "(" not in line or re.search(r"['\"]", line):
        yield line
        return
    head, _, rest = line.partition("(")
    inner, _, tail = rest.rpartition(")")
    yield f"{head}("
    yield from textwrap.wrap(
        inner,
        width,
        initial_indent="    ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    yield f"){tail}"
