"""How the tensors of a source fit a module's; LoadReport: what `load_weights` did, as a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from types import MappingProxyType
from typing import Any

import torch

from burnt.errors import nearest, quantity

Shape = tuple[int, ...]

MOST_LINES = 12
"""How many tensors of a kind are printed; guesses are made only for these."""

_OTHER_NAMES = {"weight": ("gamma", "kernel"), "bias": ("beta",)}
"""What TensorFlow and Burn call weights and biases."""

_MOST_CANDIDATES = 300
"""How many names are compared with a missing one: some 20 ms."""


class Fit:
    """The shapes in a module and in a source, compared.

    `own` has the shapes in the module by path, `found` those in the source by name; paths in `tied` need no
    tensor of their own. `partial` allows tensors to be missing on either side, as long as any fits. Where a
    layout has changed names, `origins` are those in the file, `absent` the parts of a missing path that the
    file lacks, and `fragments` what it has of such a path.

    >>> fit = Fit({"a.weight": (2, 3), "bias": (2,)}, {"a.wieght": (2, 3), "bias": (3,)})
    >>> fit.missing, fit.unexpected, fit.mismatched
    (['a.weight'], ['a.wieght'], ['bias'])
    >>> fit.guesses
    {'a.weight': 'a.wieght'}
    """

    def __init__(
        self,
        own: Mapping[str, Shape],
        found: Mapping[str, Shape],
        *,
        tied: Iterable[str] = (),
        partial: bool = False,
        origins: Mapping[str, Sequence[str]] = MappingProxyType({}),
        absent: Mapping[str, Sequence[str]] = MappingProxyType({}),
        fragments: Collection[str] = (),
    ) -> None:
        tied = set(tied)
        self.origins = origins
        self.absent = absent
        self.fragments = fragments
        self.own = own
        self.found = found
        self.shared = [path for path in own if path in found]
        self.missing = [path for path in own if path not in found and path not in tied]
        self.unexpected = [name for name in found if name not in own]
        self.mismatched = [path for path in self.shared if own[path] != found[path]]
        # A source of which nothing fits is another model's.
        self.partial = partial and bool(self.shared or not own or not found)

    @property
    def is_good(self) -> bool:
        """Whether the tensors may be loaded."""
        return not self.mismatched and (self.partial or not (self.missing or self.unexpected))

    def problems(self, noun: str) -> tuple[list[str], int]:
        """Return a line for each of the first tensors that do not fit, and the number of all of them."""
        lines = []
        for path in self.mismatched:
            own, found = self.own[path], self.found[path]
            transposed = " (transposed?)" if len(own) == 2 and own == found[::-1] else ""
            origin = f" as {_names(self.origins[path])}" if path in self.origins else ""
            lines.append(f"{path}: {own} in the module, {found} in the {noun}{origin}{transposed}")
        for path in () if self.partial else self.missing:
            guess = question(self.guesses.get(path))
            nothing = f"no {_names(self.absent[path])}" if path in self.absent else "nothing"
            lines.append(f"{path}: {self.own[path]} in the module, {nothing} in the {noun}{guess}")
        left_out = {*self.guesses.values(), *self.fragments}
        for name in () if self.partial else self.unexpected:
            if name not in left_out:
                origin = f" as {_names(self.origins[name])}" if name in self.origins else ""
                lines.append(f"{name}: in the {noun}{origin}, not in the module")
        more = len(lines) - MOST_LINES
        return lines[:MOST_LINES] + ([f"and {more:,} more"] if more > 0 else []), len(lines)

    @cached_property
    def guesses(self) -> dict[str, str]:
        """The names that the first missing paths may have in the source."""
        guesses: dict[str, str] = {}
        left = dict.fromkeys(name for name in self.unexpected if name not in self.fragments)
        for path in self.missing[:MOST_LINES]:
            parts = path.split(".")
            shorter = (".".join(parts[first:]) for first in range(1, len(parts)))
            guess = next((name for name in left if name.endswith(f".{path}")), None)
            guess = guess or next((name for name in shorter if name in left), None)
            others = _OTHER_NAMES.get(parts[-1], ())
            guess = guess or next(
                (n for n in (".".join([*parts[:-1], o]) for o in others) if n in left), None
            )
            if guess is None:
                shapes = (self.own[path], self.own[path][::-1])
                same_shape = islice((name for name in left if self.found[name] in shapes), _MOST_CANDIDATES)
                guess = nearest(path, same_shape) or nearest(path, islice(left, _MOST_CANDIDATES))
            if guess is not None:
                guesses[path] = guess
                del left[guess]
        return guesses

    @cached_property
    def rename_hint(self) -> str | None:
        """The `rename=` with which most tensors would fit, if a prefix is all that differs."""
        missing, unexpected = set(self.missing), set(self.unexpected)
        for path, name in self.guesses.items():
            if name.endswith(f".{path}"):
                prefix = name.removesuffix(path)
                if 2 * sum(prefix + other in unexpected for other in missing) > len(missing):
                    pattern = "^" + prefix.replace(".", r"\.")
                    return f'rename=[(r"{pattern}", "")] takes away the prefix {prefix!r}'
            elif path.endswith(f".{name}"):
                prefix = path.removesuffix(name)
                if 2 * sum(prefix + other in missing for other in unexpected) > len(unexpected):
                    return f'rename=[(r"^", "{prefix}")] adds the prefix {prefix!r}'
        return None


def _names(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


def question(guess: str | None) -> str:
    """Return how a guess is printed after a missing path."""
    return f" (is {guess!r} it?)" if guess else ""


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """The result of loading weights into a module.

    Args:
        applied: paths that were loaded.
        missing: paths of the module that the source lacks.
        unexpected: names in the source, after renaming, that the module lacks.
        cast: path -> (dtype in the source, dtype in the module).
        static: path of a static field -> (value in the record, value in the module), where they differ.
        tied: paths that the source lacks -> the loaded path that has the same tensor.
        skipped: what `only=` and `skip=` left out, in the module or the source.
        meta: paths of parameters and buffers that are still on the meta device.
        notes: what was found out about the source: a nested key, a prefix.
        source: the file or folder, or the kind of object.
        guesses: missing path -> the unexpected name that it may be.
        absent: missing path -> the names in the source that it would come from, where a layout was used.
    """

    applied: tuple[str, ...]
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    cast: Mapping[str, tuple[torch.dtype, torch.dtype]] = dataclasses.field(default_factory=dict)
    static: Mapping[str, tuple[Any, Any]] = dataclasses.field(default_factory=dict)
    tied: Mapping[str, str] = dataclasses.field(default_factory=dict)
    skipped: tuple[str, ...] = ()
    meta: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    source: str = ""
    guesses: Mapping[str, str] = dataclasses.field(default_factory=dict)
    absent: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        head = f"{quantity(len(self.applied), 'tensor')} loaded"
        head += f" from {self.source}" if self.source else ""
        head += f", {len(self.skipped):,} skipped" if self.skipped else ""
        rows = [("note", note) for note in self.notes]
        rows += _rows("tied", (f"{path} is {source}" for path, source in self.tied.items()), len(self.tied))
        rows += _rows("missing", map(self.describe_missing, self.missing), len(self.missing))
        rows += _rows("unexpected", self.unexpected, len(self.unexpected))
        rows += cast_rows(self.cast)
        rows += [
            ("static", f"{path}: {old!r} in the record, {new!r} here")
            for path, (old, new) in self.static.items()
        ]
        rows += _rows("on meta", self.meta, len(self.meta))
        return as_table(head, rows)

    def describe_missing(self, path: str) -> str:
        """Return a missing path with the names that the source would have for it, and with a guess."""
        absent = f": no {', '.join(map(repr, self.absent[path]))}" if path in self.absent else ""
        return path + absent + question(self.guesses.get(path))


def _rows(kind: str, texts: Iterable[str], count: int) -> list[tuple[str, str]]:
    rows = [(kind, text) for text in islice(texts, MOST_LINES)]
    return rows + ([(kind, f"and {count - MOST_LINES:,} more")] if count > MOST_LINES else [])


def cast_rows(cast: Mapping[str, tuple[torch.dtype, torch.dtype]]) -> list[tuple[str, str]]:
    """Return a row for each pair of dtypes that tensors were converted from and to."""
    names: dict[tuple[torch.dtype, torch.dtype], list[str]] = {}
    for name, dtypes in cast.items():
        names.setdefault(dtypes, []).append(name)
    return [("cast", f"{first_of(found)}: from {old} to {new}") for (old, new), found in names.items()]


def first_of(names: Sequence[str]) -> str:
    """Return the first name, and how many more there are."""
    return names[0] + (f" and {len(names) - 1:,} more" if len(names) > 1 else "")


def as_table(head: str, rows: Sequence[tuple[str, str]]) -> str:
    """Return a line and, below it, rows of a kind and a text."""
    width = max((len(kind) for kind, _ in rows), default=0)
    return "\n".join([head, *(f"  {kind:<{width}}  {text}" for kind, text in rows)])
