"""The names that wrappers of modules add to paths."""

from __future__ import annotations

WRAPPERS = {
    "_orig_mod": "torch.compile",
    "_fsdp_wrapped_module": "FullyShardedDataParallel",
    "_checkpoint_wrapped_module": "activation checkpointing",
}
"""The names that wrappers add to the paths of the modules that they wrap, and which of them does."""


def without_wrappers(path: str) -> str:
    """Return a path without the names that torch.compile and other wrappers add.

    >>> without_wrappers("encoder._orig_mod.weight")
    'encoder.weight'
    """
    return ".".join(name for name in path.split(".") if name not in WRAPPERS)
