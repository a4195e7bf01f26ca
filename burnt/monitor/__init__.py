"""The terminal monitor: a full-screen app, in its own process, that shows, compares and controls runs.

It reads run stores and writes command files, nothing else, and never imports torch. `data/` and what draws
lines of text in `plotting/` and `artefacts/` do not import Textual.
"""

import logging

# Errors are shown in the app; their tracebacks go to the log, for applications that configure one.
logging.getLogger(__name__).addHandler(logging.NullHandler())
