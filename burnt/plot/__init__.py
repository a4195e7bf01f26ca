"""Curves and points as text and SVG, for all packages above."""

from __future__ import annotations

from burnt.plot.drawing import Line, Plot
from burnt.plot.scatter import Points, Scatter

__all__ = ["Line", "Plot", "Points", "Scatter"]
