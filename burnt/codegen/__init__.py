"""Tensors' math to callables: trace, lower, schedule, print, compile, call.

Stands on torch, numpy and the lowest rooms of burnt alone. Nothing is imported here: each module is imported
where it is used, since they are heavy.
"""
