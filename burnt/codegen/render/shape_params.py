"""Sizes in generated text: numbers for the first shape, parameters once another shape has the same text.

A printer writes every integer that comes from a shape as a mark (`mark_size`). What is left of the text
without the marked numbers is its *form*. A form that is met for the first time is compiled with its numbers
in place, which is what a compiler makes the most of. When it is met with other numbers they become
parameters, and that one library serves every further shape of the form: a new shape costs a trace and a plan,
but no compiler. Whatever a plan does differently for a shape shows in its form, so a shape class needs no
rules of its own.

Small steps between elements, those of strided windows, of channels that come last or of flips, are no marks
(`mark_step`): the compiler has to know them, or it gathers elements one by one where it could shuffle
vectors.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable

__all__ = ["SizeTemplates", "mark_size", "mark_step", "sizes_as_parameters", "with_constant_sizes"]

_MARK = re.compile(r"@(-?\d+)@")
_LARGEST_STEP = 8


def mark_size(size: int) -> str:
    """An integer that comes from a shape, to be written into generated text.

    >>> f"for (int64_t i = 0; i < {mark_size(7)}; i++)"
    'for (int64_t i = 0; i < @7@; i++)'
    """
    return f"@{size}@"


def mark_step(size: int) -> str:
    """How far apart elements are, or what an index is divided by: a mark, unless it is small.

    A maximum over 5 x 5 with stride 2 takes twice the time where the stride is a parameter.

    >>> mark_step(2), mark_step(-1), mark_step(512)
    ('2', '(-1)', '@512@')
    """
    return mark_size(size) if abs(size) > _LARGEST_STEP else with_constant_sizes(mark_size(size))


def with_constant_sizes(text: str) -> str:
    """The text with its numbers in place.

    >>> with_constant_sizes("i < @7@ * @-2@")
    'i < 7 * (-2)'
    """
    return _MARK.sub(lambda m: m[1] if m[1][0] != "-" else f"({m[1]})", text)


def sizes_as_parameters(text: str, name: Callable[[int], str]) -> tuple[str, tuple[int, ...]]:
    """The text with names in place of its numbers, and the numbers in the order of the names.

    Args:
        text: with marks.
        name: what stands for the k-th mark.

    >>> sizes_as_parameters("i < @7@ && j < @9@", lambda k: f"n{k}")
    ('i < n0 && j < n1', (7, 9))
    """
    values: list[int] = []

    def named(found: re.Match[str]) -> str:
        values.append(int(found[1]))
        return name(len(values) - 1)

    return _MARK.sub(named, text), tuple(values)


class SizeTemplates:
    """The forms of generated text that this process has met."""

    def __init__(self) -> None:
        self._met: dict[bytes, tuple[int, ...]] = {}

    def is_general(self, text: str) -> bool:
        """Whether to compile a text with parameters: its form was met before with other numbers.

        >>> forms = SizeTemplates()
        >>> [forms.is_general(text) for text in ("f(@1@)", "f(@1@)", "f(@2@)", "f(@1@)", "g(@2@)")]
        [False, False, True, False, False]
        """
        form, values = sizes_as_parameters(text, lambda k: "@")
        return self._met.setdefault(hashlib.sha256(form.encode()).digest(), values) != values
