"""Measuring candidates.

tuner     candidates raced against each other
timers    timing a call: by the host, by events, by replaying a CUDA graph
accuracy  the accuracy check: a candidate beside the reference in float64
database  the table of measurements, and tables shipped in `tuned/`
"""
