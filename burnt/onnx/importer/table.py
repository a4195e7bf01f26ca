"""The table of ops in docs/import-export.md, from the handlers."""

from __future__ import annotations

import textwrap
from pathlib import Path

from burnt.onnx.importer import ops  # noqa: F401  # registers the handlers
from burnt.onnx.importer.qoperators import MS, OPS
from burnt.onnx.importer.registry import supported_ops

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
