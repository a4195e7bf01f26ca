"""The terminal monitor: a full-screen app that watches, compares and steers runs, in a process of its own.

It reads run stores and writes command files, nothing else, and never imports torch.

==================  =================================================================================
without Textual
`model.py`          `RunView` and `Library`: what is known of runs, read as they grow
`trace.py`          the course of a series at a bounded size
`course.py`         the metrics of a run as curves of a chart
`curves.py`         reducing and smoothing curves, axes
`plot.py`           a plot as lines of text; `braille.py` and `ticks.py` are its parts
`pictures.py`       confusion matrices, histograms, images as text; `png.py` reads PNG files
`steering.py`       commands that were given here, and what became of them
`refresher.py`      the thread that reads
`filters.py`        what a person types to filter
`words.py`          numbers, sizes and states in words
`events.py`         what events say, in words
`once.py`           the snapshot in plain text, and as data

the app
`app.py`            `MonitorApp`
`runs.py`           the list of runs
`run.py`            a run's screen; its panes are in `panes/`
`compare.py`        several runs in one chart
`chart.py`          the chart
`rows.py`           the table
`viewer.py`         the picture and the slider of recorded artefacts
`dialogs.py`        help, questions, the end of a training, no room
`keys.py`           the keys of every place; `keybar.py` shows them
`line.py`           lines of facts
`field.py`          a line to type a filter in
`look.py`           themes, and how states look
`host.py`           what screens may ask of the app
`attached.py`       the monitor as the child of a training
`picture.py`        the app as an SVG file
==================  =================================================================================
"""

import logging

# What is wrong with a run is said where the run is shown; its traceback is for a log that somebody keeps.
logging.getLogger(__name__).addHandler(logging.NullHandler())
