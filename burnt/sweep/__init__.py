"""Sweeps: trainings with other settings, each in a process of its own, chosen by what the earlier ones gave.

Nothing here imports torch. `space` reads ranges, `sampling` chooses the next trial, `pruning` says which ones
are not worth going on with, `engine` starts, watches and ends their processes. What is on the disk is in
`burnt.store.sweeps`.
"""

from __future__ import annotations
