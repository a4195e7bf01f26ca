"""`burnt explain`: the kernels of a function or model in several languages, and for GPUs that are not here.

Imports torch.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from burnt.cli.output import Cell, Page, UsageError, check_target, print_json, usage_errors
from burnt.cli.run_model import named_call
from burnt.errors import ConfigError, UnsupportedError

if TYPE_CHECKING:
    from burnt.codegen import Explanation
    from burnt.codegen.printing import Step

_LANGUAGES = {"c": "C", "triton": "Triton", "metal": "Metal"}
_OUTSIDE = ("library", "view", "torch")  # kinds of steps that are no kernels
# What is in assembly for debuggers: lines about lines of the source, and sections at the end.
_DEBUG = re.compile(
    r"^(?:\s*\.(?:loc|file|cfi_\w+)\b.*|\.L(?:tmp|func)\w+:.*|\s*)\n|^\s*\.section\s+\.debug[^\0]*", re.M
)


class Row(NamedTuple):
    """Steps of several targets that compute the same, as far as each has one."""

    part: str  # ``"forward"`` or ``"backward"``
    name: str  # of a kernel in one of them, with the graphs of a model counted from 0; else of a library call
    steps: dict[str, Step]  # by target


def run(args: argparse.Namespace) -> int:
    """Explain a function or model for each target, and print or write it."""
    import torch

    import burnt
    from burnt.codegen.explanation import source_only

    targets = list(dict.fromkeys(["c", *(name.strip() for name in args.target.split(","))]))
    with usage_errors(ConfigError, UnsupportedError, where="--target"):
        for target in targets:
            source_only(target)
    if args.html is not None:
        check_target(Path(args.html))
    function, batch = named_call(args.function, args.input)
    named = batch if isinstance(batch, dict) else {}
    inputs = batch if isinstance(batch, tuple | list) else [batch] * (not named)
    try:
        with torch.no_grad():
            function(*inputs, **named)
    except Exception as error:
        raise UsageError(
            f"{args.function} cannot be called with these inputs", found=f"{type(error).__name__}: {error}"
        ) from error
    if args.backward:
        inputs = [v.requires_grad_() if getattr(v, "is_floating_point", bool)() else v for v in inputs]
    found = {t: burnt.explain(function, *inputs, timed=False, target=t, **named) for t in targets}
    if args.json:
        print_json({target: explanation.as_dict() for target, explanation in found.items()})
        return 0
    rows = align(found)
    sources = {row.name: texts for row in rows if (texts := _sources(row, found))}
    page, (columns, cells) = Page(), _table(rows, found)
    reasons = {target: explanation.fallback_reason for target, explanation in found.items()}
    notes = [f"{target}: the eager function runs: {reason}" for target, reason in reasons.items() if reason]
    notes += [f"Dynamo split the model: {reason}" for reason in found["c"].graph_breaks]
    if args.html is not None:
        Path(args.html).write_text(_render(args.function, notes, columns, cells, sources), encoding="utf-8")
        page.line(f"{args.html}: open it in a browser")
        return 0
    page.table(columns, cells, align_right=columns[2:-1])
    for note in notes:
        page.line(Cell(note, "yellow"))
    for name, texts in sources.items() if args.source else ():
        for column, text in texts.items():
            page.heading(f"{name}: {column}")
            print(text)
    return 0


def align(found: Mapping[str, Explanation]) -> list[Row]:
    """Return the steps of all targets as rows; steps with the same ops are in the same row."""
    rows: list[Row] = []
    for part in ("forward", "backward"):
        merged: list[dict[str, Step]] = []
        for target, explanation in found.items():
            own = explanation if part == "forward" else explanation.backward
            steps = [step for step in own.steps if step.kind != "view"] if own is not None else []
            keys = [next(iter(row.values())).ops for row in merged]
            matcher = SequenceMatcher(None, keys, [step.ops for step in steps], autojunk=False)
            merged, before = [], merged
            for _, start, end, first, last in matcher.get_opcodes():
                for i in range(max(end - start, last - first)):
                    row = before[start + i] if start + i < end else {}
                    merged.append(row | ({target: steps[first + i]} if first + i < last else {}))
        for row in merged:
            kernels = {target: step for target, step in row.items() if step.kind not in _OUTSIDE}
            target, step = next(iter((kernels or row).items()))
            name = _own_name(step, found[target].steps)
            is_taken = kernels and any(name == other.name for other in rows)
            rows.append(Row(part, f"{name}_{target}" if is_taken else name, row))
    return rows


def _own_name(step: Step, steps: Sequence[Step]) -> str:
    """Return a step's name with the graphs of its model counted from 0."""
    first = min((int(other.graph[5:].partition("_")[0]) for other in steps if other.graph), default=0)
    return re.sub(r"^graph(\d+)", lambda match: f"graph{int(match[1]) - first}", step.name)


def _table(rows: Sequence[Row], found: Mapping[str, Explanation]) -> tuple[list[str], list[list[str]]]:
    """Return the columns and cells of a table: what each target runs, and of architectures what it needs."""
    from burnt.codegen.printing import MACHINE

    columns, cells = ["kernel", "", "bytes"], []
    for target in found:
        columns += [target] if target in _LANGUAGES else [f"{target} {field}" for field in MACHINE]
    for row in rows:
        line = [row.name, row.part, f"{max(step.bytes for step in row.steps.values()):,}"]
        for target in found:
            step = row.steps.get(target)
            what = "" if step is None else step.name if step.kind in _OUTSIDE else step.kind
            figures = [getattr(step, field, None) for field in MACHINE]
            if target in _LANGUAGES:
                line.append(what)
            else:
                line += [what, "", ""] if figures[0] is None else [f"{figure:,}" for figure in figures]
        cells.append([*line, " ".join(next(iter(row.steps.values())).ops)])
    return [*columns, "ops"], cells


def _sources(row: Row, found: Mapping[str, Explanation]) -> dict[str, str]:
    """Return the sources of a row's kernels by column; Triton that architectures share is there once."""
    texts: dict[str, str] = {}
    for target, step in row.steps.items():
        if step.kind in _OUTSIDE:
            continue
        text = found[target].source(step.name).replace(step.name, row.name).strip("\n")
        if target in _LANGUAGES:
            texts[_LANGUAGES[target]] = text
            continue
        if texts.setdefault("Triton", text) != text:
            texts[f"Triton, {target}"] = text
        assembly = found[target].source(step.name, assembly=True).replace(step.name, row.name)
        texts[f"{'PTX' if target.startswith('sm') else 'AMDGCN'}, {target}"] = _DEBUG.sub("", assembly)
    return texts


def _render(
    title: str,
    notes: Sequence[str],
    columns: Sequence[str],
    cells: Sequence[Sequence[str]],
    sources: Mapping[str, Mapping[str, str]],
) -> str:
    """Return a page without external resources: the table, then the sources of each kernel side by side."""
    kernels: dict[str, list[str]] = {}  # names by the sources without the name: equal kernels are shown once
    for name, texts in sources.items():
        kernels.setdefault(repr(texts).replace(name, ""), []).append(name)
    links = {name: f"<a href='#{same[0]}'>{name}</a>" for same in kernels.values() for name in same}
    sections = []
    for name, *others in kernels.values():
        equal = f"<p>the same: {', '.join(others)}</p>" if others else ""
        sections.append(f"<section id='{name}'><h2>{name}</h2>{equal}<div class=columns>")
        for column, text in sources[name].items():
            sections.append(f"<div data-column='{column}'><h3>{column}</h3><pre>{escape(text)}</pre></div>")
        sections.append("</div></section>")
    values = {
        "title": escape(title),
        "notes": "".join(f"<p class=note>{escape(note)}</p>" for note in notes),
        "columns": f"<th>{'<th>'.join(columns)}",
        "rows": "\n".join(
            f"<tr><td>{'<td>'.join([links.get(name, escape(name)), *map(escape, row)])}"
            for name, *row in cells
        ),
        "sections": "\n".join(sections),
    }
    page = files("burnt.cli").joinpath("explain.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], page)
