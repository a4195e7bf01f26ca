"""Training: the run store and the system sampler. Public names are imported when first used.

Neither this package nor `burnt.train.store` imports torch, so that viewers open at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from burnt._lazy import attach

if TYPE_CHECKING:
    from burnt.train import store
    from burnt.train.store import RunReader, RunWriter, find_runs
    from burnt.train.system import SystemSampler

_HOMES = {
    "RunReader": "burnt.train.store",
    "RunWriter": "burnt.train.store",
    "SystemSampler": "burnt.train.system",
    "find_runs": "burnt.train.store",
    "store": "burnt.train.store",
}
__getattr__, __dir__ = attach(globals(), _HOMES)

__all__ = ["RunReader", "RunWriter", "SystemSampler", "find_runs", "store"]
