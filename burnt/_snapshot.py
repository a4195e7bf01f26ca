"""Snapshots of what containers hold, by reference: to find what some code changed, and to undo it.

The state that Python code may change is in containers: the ``__dict__`` of an object, a module's tables of
parameters, buffers and modules, lists, sets and deques. Take a snapshot of those that the code can reach, run
it, then ask for `Snapshot.changes` or call `Snapshot.restore`. The values of tensors are not looked at.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

_MISSING: Any = object()


class Snapshot:
    """What some containers hold at one time; keys of dicts that `ignores` are neither compared nor put back.

    >>> settings = {"scale": 2}
    >>> snapshot = Snapshot()
    >>> snapshot.add(settings, owner="model")
    >>> settings["bias"] = 1
    >>> list(snapshot.changes())
    [('model', 'bias')]
    >>> snapshot.restore()
    >>> settings
    {'scale': 2}
    """

    def __init__(self, ignores: Callable[[Any], bool] = lambda key: False) -> None:
        self._ignores = ignores
        self._before: list[tuple[Any, Any, dict[Any, Any]]] = []

    def add(self, container: Any, owner: object = None) -> None:
        """Add a dict, list, set or deque; `changes` reports it by its owner."""
        self._before.append((owner, container, self._contents(container)))

    def changes(self) -> Iterator[tuple[Any, Any]]:
        """Yield the owner and the key, or position, of each value that is another object now."""
        for owner, container, before in self._before:
            now = self._contents(container)
            for key in {**before, **now}:
                if before.get(key, _MISSING) is not now.get(key, _MISSING):
                    yield owner, key

    def restore(self) -> None:
        """Put back what the containers held, in its order; those that have not changed are not written to."""
        for _, container, before in self._before:
            if _ids(self._contents(container)) == _ids(before):
                continue
            if isinstance(container, dict):
                # In place: another thread may read attributes meanwhile.
                for key in self._contents(container).keys() - before.keys():
                    del container[key]
                container.update(before)
                if [*self._contents(container)] == [*before]:
                    continue
                ignored = {key: value for key, value in container.items() if self._ignores(key)}
                container.clear()
                container.update({**before, **ignored})
            else:
                container.clear()
                (container.extend if isinstance(container, list | deque) else container.update)(
                    before.values()
                )

    def _contents(self, container: Any) -> dict[Any, Any]:
        if isinstance(container, dict):
            return {key: value for key, value in container.items() if not self._ignores(key)}
        return dict(enumerate(container))


def _ids(contents: dict[Any, Any]) -> list[Any]:
    return [(key, id(value)) for key, value in contents.items()]
