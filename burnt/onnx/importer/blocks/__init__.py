"""Blocks of written Python: what a model repeats, each time with weights of its own, is one class and a loop.

repeats.py    where names say nothing, a sequence of statements that follows itself is numbered as a list
lists.py      the statements of each element of a list become a block, and calls or loops take their place
structure.py  blocks that differ only in numbers are one class, whose constructor takes the numbers
"""
