"""The CPU table as text, as Markdown and as a picture; and how it compares with an earlier one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any
from xml.sax.saxutils import escape

from kernel_table.rows import SAME, SHIPPED

Results = dict[str, Any]
TOLERANCE = 0.8
"""A ratio that falls below as much of what it was has become worse: rows vary by a tenth between runs."""
OWN = (
    "Own: where the op takes a call of torch's or oneDNN's, our own candidate in the same rounds; nothing is "
    "aimed at. * It makes no kernel of this on a CPU: its product is torch's call."
)


def columns(rivals: Sequence[str]) -> list[tuple[str, str]]:
    return [(column, rival) for column in (SAME, SHIPPED) for rival in rivals]


def cell(found: Results | None) -> str:
    """``3.1 (3.0-3.3) / 3 ✓``: ratio, quartiles, what is aimed at, and whether it is met."""
    if found is None:
        return "-"
    low, high = found["quartiles"]
    text = f"{found['ratio']:.2f} ({low:.2f}-{high:.2f})"
    return text if found["target"] is None else f"{text} / {found['target']:g} {mark(found['met'])}"


def mark(met: bool) -> str:
    return "✓" if met else "✗"


def share(found: Results) -> str:
    text = f"{found['ratio']:.0%}"
    return text if found["target"] is None else f"{text} / {found['target']:.0%} {mark(found['met'])}"


def head(results: Results) -> list[str]:
    return ["", "burnt ms", *(f"x {r}, {c}" for c, r in columns(results["rivals"])), "of copy"]


def own_cell(found: Results | None) -> str:
    """``0.95 (0.94-0.97) tiled``: eager's time by that of our own candidate; without eager, its time."""
    if found is None:
        return "-"
    plain = "*" if found["plain"] else ""
    if "ratio" not in found:
        return f"{found['ms']:.3g} ms {found['candidate']}{plain}"
    low, high = found["quartiles"]
    return f"{found['ratio']:.2f} ({low:.2f}-{high:.2f}) {found['candidate']}{plain}"


def has_own(results: Results) -> bool:
    """Whether a library's candidate was chosen in a row; results written before this was noted have none."""
    return any("own" in row for row in results["rows"].values())


def line(name: str, row: Results, rivals: Sequence[str]) -> list[str]:
    noisy = "" if row["burnt"]["calm"] >= 5 else " (disturbed)"
    ratios = [cell(row[column].get(rival)) for column, rival in columns(rivals)]
    return [name, f"{row['burnt']['ms']:.3g}{noisy}", *ratios, share(row["share"])]


def step_lines(results: Results) -> list[list[str]]:
    """Steps of optimizers: rivals' times by burnt's."""
    made = [["optimizer step", "burnt ms", "x torch, fused", "x torch, lists"]]
    for name, row in results.get("steps", {}).items():
        if "error" in row["burnt"]:
            made.append([name, row["burnt"]["error"], "-", "-"])
            continue
        noisy = "" if row["burnt"]["calm"] >= 5 else " (disturbed)"
        cells = [cell(row.get(rival)) for rival in ("torch", "lists")]
        made.append([name, f"{row['burnt']['ms']:.3g}{noisy}", *cells])
    return made


def overhead_lines(results: Results) -> list[list[str]]:
    made = [["", "burnt", "aim", *results["rivals"]]]
    for name, row in results.get("overheads", {}).items():
        others = [f"{row[r]:.1f}" if r in row else "-" for r in results["rivals"]]
        made.append([name, f"{row['burnt']:.2f}", f"{row['target']:g} {mark(row['met'])}", *others])
    return made


def text_table(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = []
    for first, *rest in lines:
        cells = (text.rjust(width) for text, width in zip(rest, widths[1:], strict=True))
        rows.append("  ".join([first.ljust(widths[0]), *cells]))
    return "\n".join(rows)


def markdown_table(lines: Sequence[Sequence[str]]) -> str:
    rows = ["| " + " | ".join(row) + " |" for row in lines]
    return "\n".join([rows[0], "|" + "---|" * len(lines[0]), *rows[1:]])


def tables(results: Results) -> list[list[list[str]]]:
    rows = [line(name, row, results["rivals"]) for name, row in results["rows"].items()]
    made = [[head(results), *rows]] if rows else []
    if has_own(results):
        cells = [own_cell(row.get("own")) for row in results["rows"].values()]
        made = [[[*row, text] for row, text in zip(made[0], ["own, x eager", *cells], strict=True)]]
    made += [step_lines(results)] if results.get("steps") else []
    return made + ([overhead_lines(results)] if results.get("overheads") else [])


def machine(results: Results) -> str:
    return ", ".join(f"{name} {value}" for name, value in results["machine"].items())


def markdown(results: Results) -> str:
    parts = [
        "# Kernels on the CPU",
        "`python benchmarks/kernels.py --save`: medians of alternating rounds, float32. A ratio is a rival's "
        "time by burnt's, with the quartiles of the rounds, then what is aimed at. The share is of the "
        "bandwidth of a copy in the same rounds, each input and output counted once.",
        *([OWN] if has_own(results) else []),
        machine(results),
        "![ratios to eager](cpu-kernels.svg)",
        *(markdown_table(table) for table in tables(results)),
    ]
    return "\n\n".join(parts) + "\n"


def bars(row: Results, rivals: Sequence[str]) -> list[tuple[str, float]]:
    """Ratios of rivals with the same allocator, then of eager to our own candidate where that is timed."""
    own = row.get("own", {}).get("ratio")
    return [(rival, row[SAME][rival]["ratio"]) for rival in rivals] + ([] if own is None else [("own", own)])


def picture(results: Results) -> str:
    """Bars on a logarithmic scale: how many times as long rivals take, with the same allocator."""
    left, right, bar, gap = 340, 460, 9, 10
    colours = {"eager": "#4878a8", "inductor": "#d08a3c", "own": "#a8a8a8"}
    rows = {name: bars(row, results["rivals"]) for name, row in results["rows"].items()}
    ratios = [ratio for row in rows.values() for _, ratio in row]
    top = math.log2(max(2.0, *ratios)) + 0.3
    bottom = math.log2(min(1.0, *ratios)) - 0.3

    def at(ratio: float) -> float:
        return left + (math.log2(ratio) - bottom) / (top - bottom) * right

    parts, y = [], 34
    for name, row in rows.items():
        parts.append(f'<text x="{left - 8}" y="{y + bar}" text-anchor="end">{escape(name)}</text>')
        for rival, ratio in row:
            start, end = sorted((at(1), at(ratio)))
            shown = f"{ratio:.1f}" if ratio >= 10 else f"{ratio:.2f}"
            parts.append(
                f'<rect x="{start:.1f}" y="{y}" width="{end - start:.1f}" height="{bar}" '
                f'fill="{colours.get(rival, "#888")}"/>'
                f'<text x="{max(end, at(1)) + 4:.1f}" y="{y + bar - 1}">{shown}</text>'
            )
            y += bar + 1
        y += gap
    lines = [
        f'<line x1="{at(2**k):.1f}" x2="{at(2**k):.1f}" y1="26" y2="{y}" stroke="#ccc"/>'
        f'<text x="{at(2**k):.1f}" y="20" text-anchor="middle">{2**k}x</text>'
        for k in range(int(top) + 1)
    ]
    legend = "".join(
        f'<rect x="{8 + 90 * i}" y="10" width="{bar}" height="{bar}" fill="{colours.get(rival, "#888")}"/>'
        f'<text x="{22 + 90 * i}" y="19">{escape(rival)}</text>'
        for i, rival in enumerate([*results["rivals"], *(["own"] if has_own(results) else [])])
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right + 50}" height="{y + 8}" '
        'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>'
        + "".join((legend, *lines, *parts))
        + "</svg>\n"
    )


def worse(now: Results, before: Results) -> list[str]:
    """Ratios that fell below `TOLERANCE` of what they were, a line each; seconds are never compared."""
    found = []
    for name, row in now["rows"].items():
        old = before["rows"].get(name)
        for column, rival in columns(now["rivals"]) if old is not None else ():
            was, is_ = old[column].get(rival), row[column][rival]
            if was is not None and is_["ratio"] < TOLERANCE * was["ratio"]:
                found.append(f"{name}: {is_['ratio']:.2f} x {rival}, {column}; it was {was['ratio']:.2f}")
    for name, row in now.get("steps", {}).items():
        old = before.get("steps", {}).get(name, {})
        for rival in old.keys() & row.keys() - {"burnt"}:
            was, is_ = old[rival]["ratio"], row[rival]["ratio"]
            if is_ < TOLERANCE * was:
                found.append(f"{name}: {is_:.2f} x {rival}; it was {was:.2f}")
    return found
