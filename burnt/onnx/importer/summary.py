"""What an ONNX model holds, without importing it; the table of ops in docs/import-export.md."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from burnt.onnx.importer import ops  # noqa: F401  # registers the handlers
from burnt.onnx.importer.build import unsupported_nodes
from burnt.onnx.importer.expand import expand
from burnt.onnx.importer.source import MAPS, MAX_NODES, read_model

if TYPE_CHECKING:
    import onnx_ir as ir

import textwrap
from pathlib import Path

from burnt.onnx.importer.node import supported_ops
from burnt.onnx.importer.qoperators import MS, OPS


@dataclass(frozen=True)
class Summary:
    """What an ONNX model holds; ops and functions of other domains than ONNX's own as ``domain.Op``."""

    ir_version: int
    producer: str  # the program that wrote it, with its version
    opsets: dict[str, int]  # version by domain
    inputs: dict[str, str]  # type by name, such as ``float32[batch, 3]``
    outputs: dict[str, str]
    ops: dict[str, int]  # the number of nodes by op, the most frequent first
    functions: list[str]  # those that the model defines
    tensors: int  # constant ones: weights and others
    parameters: int  # elements of floating-point tensors
    nbytes: int  # of the constant tensors
    unsupported: dict[str, str]  # names of nodes by op, for ops that burnt cannot import


def summarize(model: object, max_constant_bytes: int | None = None) -> Summary:
    """Return what an ONNX model (a path, bytes, or an ``onnx.ModelProto``) holds; nothing is computed.

    `max_constant_bytes` limits the constants that are made of sparse ones, as in `burnt.onnx.load`.
    """
    parsed, where, _ = read_model(model, max_constant_bytes)
    graph = parsed.graph
    nodes = [*graph.all_nodes(), *(node for f in parsed.functions.values() for node in f.all_nodes())]
    counts = Counter(_op(node.domain, node.op_type) for node in nodes)
    tensors = [value.const_value for value in graph.initializers.values() if value.const_value is not None]
    opsets = {
        domain or "ai.onnx": version for domain, version in graph.opset_imports.items() if domain != MAPS
    }
    functions = [_op(f.domain, f.name) for f in parsed.functions.values()]
    inputs = {v.name or "": _type(v) for v in graph.inputs if not v.is_initializer()}
    outputs = {v.name or "": _type(v) for v in graph.outputs}
    expand(parsed, where, MAX_NODES)
    return Summary(
        ir_version=parsed.ir_version or 0,
        producer=" ".join(filter(None, (parsed.producer_name, parsed.producer_version))),
        opsets=opsets,
        inputs=inputs,
        outputs=outputs,
        ops=dict(counts.most_common()),
        functions=functions,
        tensors=len(tensors),
        parameters=sum(math.prod(t.shape.numpy()) for t in tensors if t.dtype.is_floating_point()),
        nbytes=sum(t.nbytes for t in tensors),
        unsupported={
            f"{_op(domain, op)} (version {version})": names
            for (domain, op, version), names in unsupported_nodes(parsed).items()
        },
    )


def _op(domain: str, op: str) -> str:
    domain = "ai.onnx.ml" if domain == MAPS else domain
    return op if domain in ("", "ai.onnx") else f"{domain}.{op}"


def _type(value: ir.Value) -> str:
    if value.type is None:
        return "unknown"
    kind: Any = value.type
    wrapped = ""
    while hasattr(kind, "elem_type") and type(kind).__name__ in ("SequenceType", "OptionalType"):
        wrapped += "sequence of " if type(kind).__name__ == "SequenceType" else "optional "
        kind = kind.elem_type
    dtype = str(getattr(kind, "dtype", kind)).lower()
    dtype = {"float": "float32", "double": "float64"}.get(dtype, dtype)
    if value.shape is None:
        return f"{wrapped}{dtype}"
    sizes = ", ".join(str(size) if isinstance(size, int) else str(size.value or "?") for size in value.shape)
    return f"{wrapped}{dtype}[{sizes}]"


START, END = "<!-- ops: start -->", "<!-- ops: end -->"


def ops_table() -> str:
    """Return the supported ops by domain, as Markdown; ``Clip (1, 11)``: where a handler begins."""
    domains: dict[str, list[str]] = {}
    rewritten = {(MS, op): [1] for op in OPS}
    for (domain, op), versions in sorted({**supported_ops(), **rewritten}.items()):
        if domain.split(".")[0] == "burnt":  # what the importer writes itself
            continue
        since = "" if versions == [1] else f" ({', '.join(map(str, versions))})"
        domains.setdefault(domain or "ai.onnx", []).append(f"{op}{since}")
    parts = []
    for domain, names in sorted(domains.items(), key=lambda item: (item[0] != "ai.onnx", item[0])):
        lines = textwrap.fill(", ".join(names), 138, break_long_words=False, break_on_hyphens=False)
        parts.append(f"**{domain}**, {len(names)} ops:\n\n{lines}")
    return "\n\n".join(parts)


def write_table(path: Path) -> None:
    """Replace the table in a file."""
    before, _, rest = path.read_text(encoding="utf-8").partition(START)
    _, _, after = rest.partition(END)
    path.write_text(f"{before}{START}\n\n{ops_table()}\n\n{END}{after}", encoding="utf-8")
