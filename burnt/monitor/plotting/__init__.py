"""Plots in a terminal.

chart_widget  the widget: zoom, pan, crosshair
plot          a plot as text
curves        curves: smoothing, reduction, styles
run_curves    the curves of runs
braille       lines as braille characters
ticks         axis ticks and their labels
"""
