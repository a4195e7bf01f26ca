"""Programs as Python.

layers.py       the calls that create layers, parameters and buffers
body.py         the lines of `forward`: short results are written in place
arrange.py      statements in the order in which one would write them
variables.py    what variables are called; kinds.py: what is certainly a tensor
expressions.py  operators, methods, and long lines broken as ruff does
"""
