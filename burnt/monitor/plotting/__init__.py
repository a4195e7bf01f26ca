"""Plots in a terminal.

chart_widget  the chart widget: zoom, pan, crosshair
plot          layout of a plot as lines of styled text
curves        curves: downsampling, smoothing, axis units, styles
run_curves    the metrics of a run as curves

Braille lines, ticks and colours come from `burnt.plot`.
"""
