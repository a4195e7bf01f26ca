"""Colours and dash patterns of curves."""

from __future__ import annotations

# Paul Tol's bright and vibrant schemes, ordered so that neighbours also differ for colour-blind readers. All
# have medium lightness; the monitor's chart blends them towards black or white for contrast with the
# background.
PALETTE = ("#4477aa", "#ee7733", "#228833", "#cc3377", "#66ccee", "#aa4499", "#ccbb44", "#999999")

# Dash patterns, as alternating numbers of dots on and off.
DASH_PATTERNS: dict[str, tuple[int, ...]] = {
    "solid": (),
    "dashed": (2, 2),
    "dotted": (1, 3),
    "dashdot": (5, 2, 1, 2),
}
