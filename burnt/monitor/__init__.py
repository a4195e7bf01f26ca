"""The terminal monitor: a full-screen app, in its own process, that shows, compares and controls runs.

It reads run stores and writes command files, nothing else, and never imports torch.

=====================  =================================================================================
`app.py`               `MonitorApp`, the Textual app
`screens/`             the list of runs, one run and its `panes/`, the comparison of several runs
`ui/`                  widgets the screens share: table, dialogs, key bar, filter input, themes
`data/`                reading runs as they grow, the reader thread, sending commands; no Textual
`plotting/`            curves, axes and braille drawing; the chart widget
`artefacts/`           confusion matrices, histograms and images as text; the artefact widgets
`format.py`            numbers, sizes, ages and states as text
`snapshot_text.py`     one snapshot as plain text or JSON data, without Textual
`snapshot_svg.py`      a screenshot of the app as an SVG file
`terminal_handoff.py`  running as the child process of a training, in its terminal
=====================  =================================================================================
"""

import logging

# Errors are shown in the app; their tracebacks go to the log, for applications that configure one.
logging.getLogger(__name__).addHandler(logging.NullHandler())
