"""Servable: what the server asks of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self

from burnt.serve.schema import Arrays, Schema


class Servable(Protocol):
    """A model that can be served. It is only run by the device thread."""

    schema: Schema
    """What the model takes and returns; replaced if its first runs show that requests may not be joined."""

    @property
    def version(self) -> str:
        """Which weights these are: the name of a checkpoint, for example."""
        ...

    def batch_sizes(self, max_batch: int) -> Sequence[int]:
        """Return the sizes that are run before the server is ready, in ascending order.

        If there are more than one, the server pads batches to one of them, so that no request waits for
        what the first call with a new size takes. The last one is `max_batch`.
        """
        ...

    def run(self, arrays: Arrays) -> Arrays:
        """Return the outputs for inputs that fit the schema.

        Raises:
            Exception: anything that the model raises.
        """
        ...

    def newest_version(self) -> str:
        """Return the version that `reloaded` would load now.

        Raises:
            BurntError, OSError: it cannot be found out.
        """
        ...

    def reloaded(self) -> Self:
        """Return the newest version as another object; this one stays usable meanwhile.

        Raises:
            BurntError, OSError: it cannot be loaded.
        """
        ...


def padded_sizes(max_batch: int) -> list[int]:
    """Return the powers of 2 below a size, and the size.

    >>> padded_sizes(24)
    [1, 2, 4, 8, 16, 24]
    """
    sizes = [1]
    while sizes[-1] * 2 < max_batch:
        sizes.append(sizes[-1] * 2)
    return sizes if max_batch == 1 else [*sizes, max_batch]
