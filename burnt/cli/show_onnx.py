"""`burnt show model.onnx`: what an ONNX model holds, and whether burnt can import it. Imports torch."""

from __future__ import annotations

from dataclasses import asdict

from burnt.cli.output import Page, print_json
from burnt.errors import quantity
from burnt.monitor.format import size_text


def run(path: str, as_json: bool, max_constant_bytes: int | None = None) -> int:
    """Print inputs, outputs, operator sets, ops by count, parameters, and what is not supported."""
    from burnt.onnx.importer.summary import summarize

    summary = summarize(path, max_constant_bytes)
    if as_json:
        print_json({"path": path, "format": "onnx", **asdict(summary)})
        return 0
    page = Page()
    opsets = ", ".join(f"{domain} {version}" for domain, version in summary.opsets.items())
    page.line(f"{path}: ONNX, IR version {summary.ir_version}, opset {opsets}")
    if summary.producer:
        page.line(f"written by {summary.producer}")
    parameters = quantity(summary.parameters, "parameter")
    page.line(f"{parameters} in {quantity(summary.tensors, 'tensor')}, {size_text(summary.nbytes)}")
    for title, values in (("inputs", summary.inputs), ("outputs", summary.outputs)):
        page.heading(title)
        page.pairs(values)
    page.heading(f"{quantity(sum(summary.ops.values()), 'node')}")
    page.pairs({op: f"{count:,}" for op, count in summary.ops.items()})
    if summary.functions:
        page.line(f"functions: {', '.join(summary.functions)}")
    if summary.unsupported:
        page.heading("not supported by `burnt import`")
        page.pairs(summary.unsupported)
    else:
        page.line("`burnt import` supports all of them.")
    return 0
