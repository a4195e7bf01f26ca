"""Reading ONNX models safely: from a file, bytes or a ModelProto to an onnx_ir model.

Nothing is read outside of the model's folder, and nothing in a file is executed.
"""

from __future__ import annotations

import math
import os
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from burnt.errors import RecordError

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["MAPS", "MAX_DEPTH", "MAX_NODES", "OPSET", "read_model"]

MAX_NODES = 200_000
"""Nodes of a model, those of inlined functions and bodies included."""

MAX_DEPTH = 32
"""How deep bodies of loops and branches may be nested."""

OPSET = 28
"""The newest version of ONNX's operator set that is known."""

MAPS = "burnt.maps"
"""The domain of nodes that return maps, which onnx_ir does not have."""

_MAX_BYTES = 2**31  # protobuf's limit for a message


def read_model(model: object) -> tuple[ir.Model, str]:
    """Return a model and what messages call it.

    Args:
        model: the path of a file, its bytes, or an ``onnx.ModelProto``.

    Raises:
        RecordError: it is not an ONNX model, damaged, too large, or refers to files outside of its folder.
        OSError: the file does not exist or cannot be read.
    """
    import onnx
    import onnx_ir as ir

    where, folder = "an ONNX model", None
    if isinstance(model, str | os.PathLike):
        where = os.fspath(model)
        path = Path(where)
        folder = path.resolve().parent
        if path.stat().st_size > _MAX_BYTES:
            raise RecordError(
                "the file is too large for an ONNX model",
                where=where,
                expected=f"at most {_MAX_BYTES:,} bytes; larger weights are external data",
                found=f"{path.stat().st_size:,} bytes",
            )
        model = path.read_bytes()
    if isinstance(model, bytes | bytearray | memoryview):
        proto = onnx.ModelProto()
        try:
            proto.ParseFromString(bytes(model))
        except Exception as error:  # protobuf's DecodeError, and what its C++ parts raise
            raise _damaged(where, bytes(model), str(error)) from None
        model = None  # frees a file's bytes: weights are held twice below, as the message and as tensors
    elif isinstance(model, onnx.ModelProto):
        proto = model
    else:
        raise _not_onnx(where, f"an object of class {type(model).__name__}")
    _check_proto(proto, where, folder)
    values = [*proto.graph.output, *proto.graph.value_info]
    if any(_has_map(value.type) for value in values):
        own = onnx.ModelProto()  # onnx_ir has no maps, which ZipMap of ai.onnx.ml returns
        own.CopyFrom(proto)
        for value in (*own.graph.output, *own.graph.value_info):
            if _has_map(value.type):
                value.ClearField("type")
        for node in own.graph.node:
            if node.op_type == "ZipMap":
                node.domain = MAPS  # shape inference does not know it, and so infers no map
        own.opset_import.add(domain=MAPS, version=1)
        proto = own
    try:
        parsed = ir.from_proto(proto)
    except (ir.serde.SerdeError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise _not_onnx(where, str(error)) from None
    _detach(parsed)
    if folder is not None:
        ir.external_data.set_base_dir(parsed.graph, folder)
    return parsed, where


def _has_map(kind: Any) -> bool:
    """Whether a type is a map, or a sequence of maps."""
    return bool(kind.HasField("map_type") or kind.sequence_type.elem_type.HasField("map_type"))


def _detach(model: ir.Model) -> None:
    """Copy tensors out of the parsed file, whose memory is then freed: each access would copy them again."""
    import onnx_ir as ir

    for value in model.graph.initializers.values():
        if isinstance(value.const_value, ir.TensorProtoTensor):
            value.const_value = ir.Tensor(
                value.const_value.numpy(), dtype=value.const_value.dtype, name=value.name
            )
    graphs: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for graph in graphs:
        for node in graph.all_nodes():
            for name, attribute in node.attributes.items():
                if isinstance(attribute.value, ir.TensorProtoTensor):
                    tensor = attribute.value
                    node.attributes[name] = ir.AttrTensor(
                        name, ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=tensor.name)
                    )


def _check_proto(proto: Any, where: str, folder: Path | None) -> None:
    """Check what can be seen before parsing: versions, sizes, nesting, paths of external data."""
    if not proto.ir_version or not proto.HasField("graph"):
        raise RecordError(
            "this is not an ONNX model",
            where=where,
            expected="a model with an IR version and a graph",
            found="no graph" if proto.ir_version else "no IR version",
        )
    import onnx

    if proto.ir_version > onnx.IR_VERSION:
        raise RecordError(
            "the model's IR version is newer than this onnx package",
            where=where,
            expected=f"at most {onnx.IR_VERSION}",
            found=proto.ir_version,
            hint="pip install --upgrade onnx",
        )
    latest = onnx.defs.onnx_opset_version()
    opset = max((entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")), default=0)
    if opset > latest:  # handlers of older versions would run, though the ops may have changed
        raise RecordError(
            "the model's operator set is newer than this onnx package",
            where=where,
            expected=f"at most {latest}",
            found=opset,
            hint="pip install --upgrade onnx",
        )
    nodes = 0
    stack = [(proto.graph, 0), *((function, 0) for function in proto.functions)]
    while stack:
        graph, depth = stack.pop()
        nodes += len(graph.node)
        if nodes > MAX_NODES or depth > MAX_DEPTH:
            raise RecordError(
                "the model is too large to import",
                where=where,
                expected=f"at most {MAX_NODES:,} nodes, bodies nested {MAX_DEPTH} deep",
                found=f"{nodes:,} nodes or more, {depth} deep",
            )
        tensors = [*getattr(graph, "initializer", ())]
        for node in graph.node:
            for attribute in node.attribute:
                tensors += [attribute.t] if attribute.HasField("t") else []
                tensors += attribute.tensors
                stack += [(attribute.g, depth + 1)] if attribute.HasField("g") else []
                stack += [(body, depth + 1) for body in attribute.graphs]
        for tensor in tensors:
            _check_tensor(tensor, where, folder)


def _check_tensor(tensor: Any, where: str, folder: Path | None) -> None:
    import onnx

    if any(size < 0 for size in tensor.dims):
        raise _wrong_size(tensor, where, "sizes of at least 0", str(tuple(tensor.dims)))
    size = _num_bytes(tensor)
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        if size is not None and tensor.HasField("raw_data") and len(tensor.raw_data) != size:
            raise _wrong_size(tensor, where, f"{size:,} bytes", f"{len(tensor.raw_data):,}")
        return
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    parts = PurePosixPath(location.replace("\\", "/"))
    problem, found, hint = None, repr(location[:200]), None
    if folder is None:
        problem = "tensors in the model: one in memory has no folder"
        hint = "load it by its path, or onnx.load(path), which reads the tensors"
    elif not location or parts.is_absolute() or ".." in parts.parts or ":" in location:
        problem = "a path in the model's own folder"
    else:
        path = (folder / parts).resolve()
        if not path.is_relative_to(folder):
            problem = "a path in the model's own folder; this one is a link out of it"
        elif not path.is_file():
            problem, found = "a file beside the model", f"no file {found}"
            hint = f"copy it to {path}"
        else:
            numbers = [entries.get(key, "") or "0" for key in ("offset", "length")]
            offset, length = (int(n) if n.isascii() and n.isdigit() else -1 for n in numbers)
            if length > 0 and size is not None and length != size:
                raise _wrong_size(tensor, where, f"{size:,} bytes", f"{length:,}")
            if offset < 0 or length < 0 or offset + max(length, size or 0) > path.stat().st_size:
                problem = f"offset and length within the {path.stat().st_size:,} bytes of the file"
    if problem is not None:
        raise RecordError(
            "external data of the model cannot be read",
            where=f"{where}: {tensor.name}",
            expected=problem,
            found=found,
            hint=hint,
        )


def _num_bytes(tensor: Any) -> int | None:
    """Return the bytes that a tensor of its shape has; None for strings and types that are not known."""
    import onnx_ir as ir

    try:
        bits = round(8 * ir.DataType(tensor.data_type).itemsize)
    except (ValueError, TypeError):
        return None
    return int(math.prod(tensor.dims) * bits + 7) // 8


def _wrong_size(tensor: Any, where: str, expected: str, found: str) -> RecordError:
    return RecordError(
        "a tensor does not have the size of its shape",
        where=f"{where}: {tensor.name}",
        expected=f"{expected} for the shape {tuple(tensor.dims)}",
        found=found,
    )


def _damaged(where: str, data: bytes, problem: str) -> RecordError:
    if data.startswith(b"version https://git-lfs"):
        found, hint = "a pointer of Git LFS", "git lfs pull"
    elif data.lstrip()[:14].lower().startswith((b"<!doctype html", b"<html")):
        found, hint = "a web page", "download the file itself, not the page that shows it"
    elif data.startswith(b"PK\x03\x04"):
        found = "a zip archive, as torch.save writes"
        hint = "burnt.load_weights reads weights; for ONNX, torch.onnx.export the model"
    else:
        found, hint = f"{problem[:200]}, in {len(data):,} bytes", "was it downloaded or copied as a whole?"
    return RecordError(
        "this is not an ONNX model", where=where, expected="an ONNX model", found=found, hint=hint
    )


def _not_onnx(where: str, found: str) -> RecordError:
    return RecordError(
        "this is not an ONNX model",
        where=where,
        expected="the path of an .onnx file, its bytes, or an onnx.ModelProto",
        found=found[:200],
    )
