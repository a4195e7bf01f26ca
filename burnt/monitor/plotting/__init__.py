"""Plots in a terminal.

chart_widget  the chart widget: zoom, pan, crosshair
chart_grid    charts side by side, in step
text_chart    layout of a chart as lines of styled text
curves        curves: downsampling, smoothing, axis units, styles
run_curves    the metrics of a run as curves

Braille lines, ticks and colours come from `burnt.plot`.
"""
