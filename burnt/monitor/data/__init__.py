"""What the monitor knows of runs, read from run folders as they grow.

runs                the runs of a folder, and one run
refresher           reading them in a thread
downsampled_series  a series reduced to what a screen shows
event_text          events as text
commands            commands sent to a run
"""
