"""Reading runs while they grow, and sending commands to them. Nothing here imports Textual.

runs                views of one run and of all runs below some folders
refresher           the thread that reads them
downsampled_series  a metric series at a bounded number of points
series_order        the order of metrics and splits
event_text          events as text
preferences         what the monitor remembers between sessions
commands            commands sent to a run, and their answers
"""
