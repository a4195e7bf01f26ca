"""How the tensors of a source fit those of a module, with guesses for those that do not."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from types import MappingProxyType

from burnt.errors import nearest

Shape = tuple[int, ...]

MOST_LINES = 12
"""How many tensors of a kind are printed; guesses are made for these alone."""

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
