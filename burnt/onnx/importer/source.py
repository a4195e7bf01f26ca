"""Reading ONNX models safely: from a file, bytes or a ModelProto to an onnx_ir model.

Nothing is read outside of the model's folder, and nothing in a file is executed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from burnt.errors import RecordError

if TYPE_CHECKING:
    import onnx_ir as ir


MAX_NODES = 200_000
"""Nodes of a model, including inlined functions and bodies."""

MAX_DEPTH = 32
"""How deep bodies of loops and branches may be nested."""

OPSET = 28
"""The newest version of ONNX's operator set that is known."""

MAPS = "burnt.maps"
"""The domain of nodes that return maps, which onnx_ir does not have."""

_MAX_BYTES = 2**31  # protobuf's limit for a message


_MIN_CONSTANTS = 2**26  # bytes
_MAX_GROWTH = 16


@dataclass
class ConstantLimit:
    """The bytes of constants that an import may make: a file of 1 KB can describe any number."""

    nbytes: int  # the limit
    where: str
    used: int  # so far; negative by the bytes of the file, which the module holds too

    def take(self, nbytes: int, what: str) -> None:
        """Count bytes before they are allocated, or kept."""
        self.used += nbytes
        if self.used > self.nbytes:
            raise RecordError(
                "the constants of the model are too large to compute",
                where=f"{self.where}: {what}",
                expected=f"at most {self.nbytes:,} bytes more than the file has",
                found=f"{self.used:,} bytes or more",
                hint="for a file that you trust: max_constant_bytes= or --max-constant-bytes",
            )


def read_model(model: object, max_constant_bytes: int | None = None) -> tuple[ir.Model, str, ConstantLimit]:
    """Return a model, what messages call it, and the limit of its constants.

    The limit is by default 16 times the bytes of the file and its external data, and at least 64 MiB.
    """
    import onnx
    import onnx_ir as ir

    where, folder, is_own = "an ONNX model", None, not isinstance(model, onnx.ModelProto)
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
    external = _check_proto(proto, where, folder)
    size = proto.ByteSize() + external
    if max_constant_bytes is None:
        max_constant_bytes = max(_MIN_CONSTANTS, _MAX_GROWTH * size)
    limit = ConstantLimit(max_constant_bytes, where, used=-size)
    if any(_sparse_tensors(proto)):
        if not is_own:
            own = onnx.ModelProto()
            own.CopyFrom(proto)
            proto = own
        _densify(proto, limit)
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
    return parsed, where, limit


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


def _graphs(proto: Any) -> Iterator[tuple[Any, int]]:
    """Yield the graph and functions of a model and the bodies in them, each with its depth."""
    stack = [(proto.graph, 0), *((function, 0) for function in proto.functions)]
    while stack:
        graph, depth = stack.pop()
        yield graph, depth
        for node in graph.node:
            for attribute in node.attribute:
                stack += [(attribute.g, depth + 1)] if attribute.HasField("g") else []
                stack += [(body, depth + 1) for body in attribute.graphs]


def _sparse_tensors(proto: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the sparse tensors of a model: the graph and the initializer, or None and the attribute."""
    for graph, _ in _graphs(proto):
        yield from ((graph, sparse) for sparse in getattr(graph, "sparse_initializer", ()))
        for node in graph.node:
            yield from ((None, a) for a in node.attribute if a.HasField("sparse_tensor"))


def _densify(proto: Any, limit: ConstantLimit) -> None:
    """Replace sparse tensors by dense ones, in place."""
    for graph, sparse in list(_sparse_tensors(proto)):
        if graph is None:
            sparse.t.CopyFrom(_dense(sparse.sparse_tensor, limit))
            sparse.name, sparse.type = "value", sparse.TENSOR
            sparse.ClearField("sparse_tensor")
        else:
            graph.initializer.append(_dense(sparse, limit))
    for graph, _ in _graphs(proto):
        if hasattr(graph, "sparse_initializer"):
            del graph.sparse_initializer[:]


def _dense(sparse: Any, limit: ConstantLimit) -> Any:
    """Return the dense tensor of a sparse one, whose indices are linear, or one for each axis."""
    import onnx

    name, dims = sparse.values.name or "a sparse constant", tuple(sparse.dims)
    inner = sparse.values, sparse.indices
    size, bits = math.prod(dims), _num_bytes(sparse.values)
    try:
        if onnx.TensorProto.EXTERNAL in (tensor.data_location for tensor in inner):
            raise ValueError("external data")
        if min(dims, default=0) < 0:
            raise ValueError(f"the shape {dims}")
        limit.take(size * max(1, (bits or 8) // max(1, math.prod(sparse.values.dims))), name)
        values, indices = (onnx.numpy_helper.to_array(tensor) for tensor in inner)
        if indices.dtype != np.int64 or indices.shape not in ((values.size,), (values.size, len(dims))):
            raise ValueError(f"{indices.dtype} indices of shape {indices.shape} for {values.size} values")
        flat = indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), dims)
        if values.size and not 0 <= int(flat.min()) <= int(flat.max()) < size:
            raise ValueError(f"indices from {flat.min()} to {flat.max()} for {size} elements")
        if bool((np.diff(flat) <= 0).any()):
            raise ValueError("indices that are not in ascending order, each once")
    except RecordError:  # beyond the limit
        raise
    except (ValueError, TypeError) as error:
        raise RecordError(
            "a sparse tensor is damaged",
            where=f"{limit.where}: {name}",
            expected="values in the file, and int64 indices in its shape, in ascending order",
            found=str(error)[:200],
        ) from None
    dense = np.full(size, b"" if values.dtype == object else 0, values.dtype)
    dense[flat] = values.reshape(-1)
    return onnx.numpy_helper.from_array(dense.reshape(dims), sparse.values.name)


def _check_proto(proto: Any, where: str, folder: Path | None) -> int:
    """Check what can be seen before parsing: versions, sizes, nesting, paths of external data.

    Returns the bytes of the files with external data.
    """
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
    nodes, files = 0, set()
    for graph, depth in _graphs(proto):
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
        for tensor in tensors:
            files.add(_check_tensor(tensor, where, folder))
    return sum(path.stat().st_size for path in files if path is not None)


def _check_tensor(tensor: Any, where: str, folder: Path | None) -> Path | None:
    """Check a tensor, and return the file of its external data."""
    import onnx

    if any(size < 0 for size in tensor.dims):
        raise _wrong_size(tensor, where, "sizes of at least 0", str(tuple(tensor.dims)))
    size = _num_bytes(tensor)
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        if size is not None and tensor.HasField("raw_data") and len(tensor.raw_data) != size:
            raise _wrong_size(tensor, where, f"{size:,} bytes", f"{len(tensor.raw_data):,}")
        return None
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
            problem, found = "a file next to the model", f"no file {found}"
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
    return path


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
