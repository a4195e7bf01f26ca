"""LoadReport: what `load_weights` did, or why it did not, as a table with guesses."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import torch

from burnt.errors import nearest, quantity

Shape = tuple[int, ...]

_MOST_LINES = 12
"""How many tensors of a kind are printed; guesses are made for these alone."""

_MOST_CANDIDATES = 300
"""How many names are compared with a missing one: some 20 ms."""


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

    def __str__(self) -> str:
        head = f"{quantity(len(self.applied), 'tensor')} loaded"
        head += f" from {self.source}" if self.source else ""
        head += f", {len(self.skipped):,} skipped" if self.skipped else ""
        casts: dict[tuple[torch.dtype, torch.dtype], list[str]] = {}
        for path, dtypes in self.cast.items():
            casts.setdefault(dtypes, []).append(path)
        rows = [("note", note) for note in self.notes]
        rows += _rows("tied", (f"{path} is {source}" for path, source in self.tied.items()), len(self.tied))
        rows += _rows(
            "missing", (path + _question(self.guesses.get(path)) for path in self.missing), len(self.missing)
        )
        rows += _rows("unexpected", self.unexpected, len(self.unexpected))
        for (old, new), paths in casts.items():
            more = f" and {len(paths) - 1:,} more" if len(paths) > 1 else ""
            rows.append(("cast", f"{paths[0]}{more}: from {old} to {new}"))
        rows += [
            ("static", f"{path}: {old!r} in the record, {new!r} here")
            for path, (old, new) in self.static.items()
        ]
        rows += _rows("on meta", self.meta, len(self.meta))
        width = max((len(kind) for kind, _ in rows), default=0)
        return "\n".join([head, *(f"  {kind:<{width}}  {text}" for kind, text in rows)])


def problem_lines(
    own: Mapping[str, Shape],
    found: Mapping[str, Shape],
    mismatched: Iterable[str],
    missing: list[str],
    unexpected: list[str],
    noun: str,
) -> tuple[list[str], int]:
    """Describe why weights do not fit a module.

    Returns:
        a line for each of the first tensors; how many tensors are concerned.
    """
    lines = [_mismatch_line(path, own[path], found[path], noun) for path in mismatched]
    guesses = guess_names(own, found, missing, unexpected)
    for path in missing:
        line = f"{path}: {own[path]} in the module, nothing in the {noun}"
        lines.append(line + _question(guesses.get(path)))
    guessed = set(guesses.values())
    lines += [f"{name}: in the {noun}, not in the module" for name in unexpected if name not in guessed]
    more = len(lines) - _MOST_LINES
    return lines[:_MOST_LINES] + ([f"and {more:,} more"] if more > 0 else []), len(lines)


def guess_names(
    own: Mapping[str, Shape], found: Mapping[str, Shape], missing: list[str], unexpected: list[str]
) -> dict[str, str]:
    """Guess, for the first missing paths, under which name a source has them."""
    guesses: dict[str, str] = {}
    known = found.keys() - own.keys()
    for path in missing[:_MOST_LINES]:
        shapes = (own[path], own[path][::-1])
        longer = next((name for name in unexpected if name.endswith(f".{path}") and name in known), None)
        parts = path.split(".")
        tails = (".".join(parts[first:]) for first in range(1, len(parts)))
        guess = longer or next((tail for tail in tails if tail in known), None)
        if guess is None:
            left = [name for name in unexpected if name in known]
            alike = islice((name for name in left if found[name] in shapes), _MOST_CANDIDATES)
            guess = nearest(path, alike) or nearest(path, left[:_MOST_CANDIDATES])
        if guess is not None:
            guesses[path] = guess
            known.discard(guess)
    return guesses


def rename_hint(missing: list[str], unexpected: list[str]) -> str | None:
    """Suggest the `rename=` that makes most of the missing paths fit, if a prefix is all that differs."""
    names = set(unexpected)
    for path in missing[:_MOST_LINES]:
        for name in unexpected:
            if name.endswith(f".{path}"):
                prefix = name.removesuffix(path)
                if 2 * sum(prefix + other in names for other in missing) > len(missing):
                    pattern = "^" + prefix.replace(".", r"\.")
                    return f'rename=[(r"{pattern}", "")] takes away the prefix {prefix!r}'
                break
        parts = path.split(".")
        for first in range(1, len(parts)):
            if ".".join(parts[first:]) in names:
                prefix = ".".join(parts[:first]) + "."
                if 2 * sum(prefix + name in missing for name in names) > len(names):
                    return f'rename=[(r"^", "{prefix}")] adds the prefix {prefix!r}'
                break
    return None


def _rows(kind: str, texts: Iterable[str], count: int) -> list[tuple[str, str]]:
    rows = [(kind, text) for text in islice(texts, _MOST_LINES)]
    return rows + ([(kind, f"and {count - _MOST_LINES:,} more")] if count > _MOST_LINES else [])


def _question(guess: str | None) -> str:
    return f" (is {guess!r} it?)" if guess else ""


def _mismatch_line(path: str, own: Shape, found: Shape, noun: str) -> str:
    line = f"{path}: {own} in the module, {found} in the {noun}"
    if len(own) == 2 and own == found[::-1]:
        line += " (transposed?)"
    return line
