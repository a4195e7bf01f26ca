"""write_page: a model as one HTML file that runs it in the browser, without a server or a network."""

from __future__ import annotations

import base64
import html
import json
import math
import os
import re
import tempfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import nn

from burnt._files import replacing
from burnt.data.description import TableDescription
from burnt.errors import InputValueError, UnsupportedError
from burnt.export.c_source import MissingOpsError, c_source
from burnt.export.columns import form
from burnt.export.wasm import OnnxRuntimeWeb, compile_wasm
from burnt.inspect.signature import Signature, TensorInfo
from burnt.onnx import export
from burnt.onnx.comparison import rounded_copy

_WEIGHTS = ("float32", "float16", "bfloat16")
_DTYPES = ("float32", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")
_SMALLEST_IMAGE = 4  # [1, 1, 2, 2] is rather a list of numbers

# The browser refuses all connections; onnxruntime-web is a module of its own, read from the page as a blob.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'wasm-unsafe-eval'{}; style-src 'unsafe-inline'; "
    "img-src data:"
)


@dataclass(frozen=True)
class Page:
    """The result of `write_page`.

    Args:
        path: the file.
        size: the file's size in bytes.
        signature: what the model takes and returns.
        runtime: what runs the model: ``"WebAssembly"``, or onnxruntime-web with its version.
        reason: why the page needs onnxruntime-web.
    """

    path: Path
    size: int
    signature: Signature
    runtime: str = "WebAssembly"
    reason: str | None = None


def write_page(
    model: nn.Module,
    example: Any,
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    classes: Sequence[str] | None = None,
    fields: Sequence[str] | None = None,
    table: bool = False,
    is_multi_label: bool = False,
    columns: TableDescription | None = None,
    weights: str = "float32",
    onnxruntime_web: str | os.PathLike[str] | None = None,
) -> Page:
    """Write a model as one HTML file with the model inside, compiled to WebAssembly.

    An input ``[1, 1 or 3, height, width]`` of floating point or uint8 gets a canvas to draw on and a file
    picker, any other a field for each number, or for each column of its table. A single output ``[1, n]``
    of floating point with n > 1 is taken for the logits or probabilities of classes and drawn as bars, and so
    is one number with two `classes`; other outputs as tables.

    Where the C generator lacks an op of the model, the page holds onnxruntime-web, which runs it instead.

    Args:
        model: any module, taken in evaluation mode; one item per call.
        example: its inputs as `burnt.onnx.export` takes them. The ranges of a `Signature` decide what black
            and white on the canvas mean; without them 0 and 1.
        path: the file to write.
        title: the page's title, by default the name of the model's class.
        classes: the names of the classes.
        fields: the names of all numbers in the inputs that get fields, in order.
        table: show a single output ``[1, n]`` as a table, too, as for a regression with several targets.
        is_multi_label: an item may have several of the classes.
        columns: what encodes the columns of a table as the inputs, which are its entries; `fields` win.
        weights: how matrices are stored: ``"float32"``, ``"float16"`` or ``"bfloat16"``.
        onnxruntime_web: the package of that name, a folder or the archive that ``npm pack`` makes; by default
            it is fetched by npm where it is needed.

    Raises:
        UnsupportedError: a package or clang is missing, the model cannot be exported, or the page has no
            array for the dtype of an input or output.
        InputValueError: `weights` is unknown, a weight does not fit the dtype, or `classes` or `fields` are
            not as many as there are in the model.
        OSError: the file cannot be written.

    >>> write_page(model, torch.rand(1, 4), "iris.html", classes=["setosa", "other"])  # doctest: +SKIP
    """
    if weights not in _WEIGHTS:
        expected = " or ".join(map(repr, _WEIGHTS))
        raise InputValueError("weights= is invalid", expected=expected, found=repr(weights))
    target = Path(path)
    with replacing(target) as temporary:  # first of all, so that a path that cannot be written fails at once
        runtime, reason = None, None
        try:
            signature, code = _compiled(model, example, weights)
        except MissingOpsError as error:
            reason = f"{error.what}: {error.found}"
            runtime = (
                OnnxRuntimeWeb.from_npm() if onnxruntime_web is None else OnnxRuntimeWeb.read(onnxruntime_web)
            )
            signature, code = _exported(model, example, weights)
        text = _fill(
            {
                "policy": _POLICY.format("" if runtime is None else " blob:"),
                "title": html.escape(title or type(model).__name__),
                "subtitle": html.escape(f"{type(model).__name__}: {signature}"),
                "model": _script_json(
                    description(signature, classes, fields, table, columns, is_multi_label)
                ),
                "code": _packed(code),
                "runtime": json.dumps(runtime and [_packed(runtime.script), _packed(runtime.wasm)]),
                "script": _minified(files("burnt.export").joinpath("page.js").read_text(encoding="utf-8")),
            }
        )
        temporary.write_text(text, encoding="utf-8")
    name = "WebAssembly" if runtime is None else f"onnxruntime-web {runtime.version}"
    return Page(target, target.stat().st_size, signature, name, reason)


def _compiled(model: nn.Module, example: Any, weights: str) -> tuple[Signature, bytes]:
    if weights != "float32":
        model = rounded_copy(model, getattr(torch, weights))
    # Folded weights would no longer be representable in 16 bits.
    source = c_source(model, example, "model", fold=weights == "float32")
    return source.signature, compile_wasm(source, weights)


def _exported(model: nn.Module, example: Any, weights: str) -> tuple[Signature, bytes]:
    with tempfile.TemporaryDirectory(prefix="burnt-page-") as folder:
        file = Path(folder, "model.onnx")
        exported = export(model, example, file, batch=1, weights=weights)
        return exported.signature, file.read_bytes()


def description(
    signature: Signature,
    classes: Sequence[str] | None,
    fields: Sequence[str] | None,
    table: bool,
    columns: TableDescription | None = None,
    is_multi_label: bool = False,
) -> dict[str, Any]:
    """Return what the page's script needs to know of the inputs and outputs."""
    numbers = sum(math.prod(info.shape) for info in signature.inputs if not _is_image(info))
    _require_names("fields", fields, numbers, "number in the inputs that get fields")
    scores = None if table else _number_of_classes(signature, classes)
    _require_names("classes", classes, scores or 0, "class")
    names = iter(fields or ())
    inputs = []
    for info in signature.inputs:
        described: dict[str, Any] = _tensor(info)
        if _is_image(info):
            described |= {"isImage": True, "range": _black_and_white(info)}
        else:
            described |= {
                "start": _middle(info),
                "fields": fields and [next(names) for _ in range(math.prod(info.shape))],
            }
        inputs.append(described)
    return {
        "inputs": inputs,
        "form": form(columns, [info.name for info in signature.inputs])
        if columns is not None and fields is None
        else None,
        "outputs": [_tensor(info) for info in signature.outputs],
        "classes": classes and list(classes),
        "isClassifier": scores is not None,
        "isMultiLabel": is_multi_label and scores == math.prod(signature.outputs[0].shape),
        "isProbability": [info.range for info in signature.outputs] == [(0, 1)],
    }


def _tensor(info: TensorInfo) -> dict[str, Any]:
    if info.dtype not in _DTYPES:
        raise UnsupportedError(
            "a page has no array for the dtype of an input or output",
            where=info.name,
            expected=", ".join(_DTYPES),
            found=info.dtype,
        )
    return {"name": info.name, "dtype": info.dtype, "shape": info.shape}


def _require_names(name: str, given: Sequence[str] | None, count: int, of: str) -> None:
    if given is not None and len(given) != count:
        raise InputValueError(
            f"{name}= has one name for each {of}", expected=str(count), found=str(len(given))
        )


def _number_of_classes(signature: Signature, classes: Sequence[str] | None) -> int | None:
    """Return n if the model returns a single ``[1, n]`` of floating point with n > 1; 2 for one's score."""
    if len(signature.outputs) != 1:
        return None
    (info,) = signature.outputs
    if info.torch_dtype.is_floating_point and classes and len(classes) == 2 and math.prod(info.shape) == 1:
        return 2
    is_scores = info.torch_dtype.is_floating_point and len(info.shape) == 2 and info.shape[0] == 1
    return info.shape[1] if is_scores and info.shape[1] > 1 else None


def _is_image(info: TensorInfo) -> bool:
    if len(info.shape) != 4 or not (info.torch_dtype.is_floating_point or info.dtype == "uint8"):
        return False
    items, channels, height, width = info.shape
    return items == 1 and channels in (1, 3) and min(height, width) >= _SMALLEST_IMAGE


def _black_and_white(info: TensorInfo) -> tuple[float, float]:
    if info.range is not None and info.range[0] < info.range[1]:
        return info.range
    return (0, 255) if info.dtype == "uint8" else (0, 1)


def _middle(info: TensorInfo) -> float:
    middle = sum(info.range) / 2 if info.range is not None else 0.0
    return float(f"{middle:.3g}") if info.torch_dtype.is_floating_point else int(middle)


def _packed(data: bytes) -> str:
    """Compress with raw deflate, which browsers expand, and encode in base64."""
    compressor = zlib.compressobj(level=9, wbits=-zlib.MAX_WBITS)
    return base64.b64encode(compressor.compress(data) + compressor.flush()).decode()


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
