"""write_page: a model as one HTML file that runs it in the browser, without a server or a network."""

from __future__ import annotations

import base64
import html
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import nn

from burnt._files import replacing
from burnt.errors import InputValueError
from burnt.export.c_source import c_source
from burnt.export.wasm import compile_wasm
from burnt.inspect.signature import Signature
from burnt.onnx.weights import rounded_copy

__all__ = ["Page", "write_page"]

_WEIGHTS = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Page:
    """The result of `write_page`.

    Args:
        path: the file.
        size: its bytes.
        signature: what the model takes and returns.
    """

    path: Path
    size: int
    signature: Signature


def write_page(
    model: nn.Module,
    example: Any,
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    classes: Sequence[str] | None = None,
    weights: str = "float32",
) -> Page:
    """Write a model as one HTML file with the model inside, compiled to WebAssembly.

    An input ``[1, 1 or 3, height, width]`` of floating point gets a canvas to draw on and a file picker, any
    other a field for each number. A single output ``[1, n]`` of floating point with n > 1 is taken for the
    logits of classes and drawn as bars of their probabilities, other outputs as tables.

    Args:
        model: any module, taken in evaluation mode; one item per call.
        example: its inputs as `burnt.onnx.export` takes them. The ranges of a `Signature` decide what black
            and white on the canvas mean; without them 0 and 1.
        path: the file to write.
        title: the page's title, by default the name of the model's class.
        classes: the names of the classes.
        weights: how matrices are stored: ``"float32"``, ``"float16"`` or ``"bfloat16"``.

    Raises:
        UnsupportedError: a package or clang is missing, or the model cannot be printed as C.
        InputValueError: `weights` is unknown, or a weight does not fit the dtype.
        OSError: the file cannot be written.
    """
    if weights not in _WEIGHTS:
        expected = " or ".join(map(repr, _WEIGHTS))
        raise InputValueError("weights= is invalid", expected=expected, found=repr(weights))
    if weights != "float32":
        model = rounded_copy(model, getattr(torch, weights))
    # Folded weights would no longer be representable in 16 bits.
    source = c_source(model, example, "model", fold=weights == "float32")
    wasm = compile_wasm(source, weights)
    shown = title or type(model).__name__
    text = _fill(
        {
            "title": html.escape(shown),
            "subtitle": html.escape(f"{type(model).__name__}: {source.signature}"),
            "model": _script_json(_description(source.signature, classes)),
            "code": base64.b64encode(wasm.code).decode(),
            "script": _minified(files("burnt.export").joinpath("page.js").read_text(encoding="utf-8")),
        }
    )
    target = Path(path)
    with replacing(target) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return Page(target, target.stat().st_size, source.signature)


def _description(signature: Signature, classes: Sequence[str] | None) -> dict[str, Any]:
    outputs = signature.outputs
    is_classifier = (
        len(outputs) == 1
        and outputs[0].torch_dtype.is_floating_point
        and len(outputs[0].shape) == 2
        and outputs[0].shape[1] > 1
    )
    described = {name: value for name, value in signature.to_dict().items() if name in ("inputs", "outputs")}
    return {**described, "classes": list(classes) if classes else None, "isClassifier": is_classifier}


def _script_json(value: Any) -> str:
    """Return JSON that may stand in a script: no text in it can end the element."""
    return json.dumps(value).replace("<", "\\u003c")


def _fill(values: dict[str, str]) -> str:
    template = files("burnt.export").joinpath("page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], template)


def _minified(script: str) -> str:
    """Return a script without its comment lines and indentation."""
    lines = (line.strip() for line in script.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("//"))
