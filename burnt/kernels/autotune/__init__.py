"""Tuning: checking and timing candidates, and storing the measurements.

tuner     times the candidates of an op against each other; the tuning policies
timers    clocks that time a call: the host's clock, CUDA events, CUDA graph replays
accuracy  the accuracy check: a candidate compared with the reference in float64
database  the table of measurements, and the tables shipped in `tuned/`
"""
