"""QuantReport: what `burnt.quantize` did with each layer, as objects, a table and JSON."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from typing import Any

from burnt.errors import quantity

__all__ = ["LayerReport", "QuantReport"]


@dataclasses.dataclass(frozen=True)
class LayerReport:
    """One layer of a model that was quantized.

    Args:
        path: of the layer.
        layer: its class.
        shape: of its weight.
        scheme: the name of the scheme; None if it was skipped.
        bytes_before: of its weight and bias.
        bytes_after: of its values, scales, zero points and bias.
        sqnr: signal-to-quantization-noise ratio of the weight, in dB; None if it was skipped.
        output_error: the norm of the output's error divided by that of the output, on the calibration set;
            None without one.
        why_skipped: why it was not quantized, or None.
    """

    path: str
    layer: str
    shape: tuple[int, ...]
    scheme: str | None
    bytes_before: int
    bytes_after: int
    sqnr: float | None = None
    output_error: float | None = None
    why_skipped: str | None = None


@dataclasses.dataclass(frozen=True)
class QuantReport:
    """The layers that `burnt.quantize` quantized or skipped, in the model's order.

    Args:
        layers: a report for each layer with parameters.
        notes: what was done besides, such as batch norms that were folded.
    """

    layers: tuple[LayerReport, ...]
    notes: tuple[str, ...] = ()

    @property
    def quantized(self) -> tuple[LayerReport, ...]:
        """The layers that were quantized."""
        return tuple(layer for layer in self.layers if layer.scheme is not None)

    @property
    def skipped(self) -> tuple[LayerReport, ...]:
        """The layers that were not, each with its reason."""
        return tuple(layer for layer in self.layers if layer.scheme is None)

    @property
    def bytes_before(self) -> int:
        """Bytes of all parameters before."""
        return sum(layer.bytes_before for layer in self.layers)

    @property
    def bytes_after(self) -> int:
        """Bytes of all parameters and quantized values after."""
        return sum(layer.bytes_after for layer in self.layers)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "layers": [dataclasses.asdict(layer) for layer in self.layers],
            "notes": list(self.notes),
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
        }

    def to_json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(self.to_dict(), indent=2)

    def __str__(self) -> str:
        part = self.bytes_after / self.bytes_before if self.bytes_before else 1.0
        total = f"{_size(self.bytes_before)} -> {_size(self.bytes_after)} ({part:.1%})"
        lines = [f"{quantity(len(self.quantized), 'layer')} quantized, {total}"]
        rows = [("layer", "class", "scheme", "bytes", "SQNR", "output error")]
        for layer in self.quantized:
            sizes = f"{_size(layer.bytes_before)} -> {_size(layer.bytes_after)}"
            sqnr = "" if layer.sqnr is None else f"{layer.sqnr:.1f} dB"
            error = "" if layer.output_error is None else f"{layer.output_error:.2%}"
            rows.append((layer.path, layer.layer, layer.scheme or "", sizes, sqnr, error))
        columns = [i for i in range(len(rows[0])) if any(row[i] for row in rows[1:])]
        widths = {i: max(len(row[i]) for row in rows) for i in columns}
        if self.quantized:
            lines += ["  " + "  ".join(row[i].ljust(widths[i]) for i in columns).rstrip() for row in rows]
        reasons = Counter((layer.layer, layer.why_skipped) for layer in self.skipped)
        if reasons:
            lines.append(f"{quantity(len(self.skipped), 'layer')} skipped")
        for (kind, why), count in reasons.items():
            first = next(s.path for s in self.skipped if (s.layer, s.why_skipped) == (kind, why))
            named = first if count == 1 else f"{first} and {count - 1} more"
            lines.append(f"  {kind}: {why}  ({named})")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def _size(count: int) -> str:
    """Format a number of bytes: ``1.5 MB``."""
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} GB"
