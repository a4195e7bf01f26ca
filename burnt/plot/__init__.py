"""Curves and points as text and SVG, for all packages above.

drawing  Plot: a drawing of a few curves, as text for a terminal and as SVG
scatter  Scatter: a drawing of named points on logarithmic axes, likewise
axes     the axes of both
styles   colours and dash patterns
braille  drawing lines in braille characters
ticks    axis ticks and their labels
"""

from __future__ import annotations

from burnt.plot.drawing import Line, Plot
from burnt.plot.scatter import Points, Scatter

__all__ = ["Line", "Plot", "Points", "Scatter"]
