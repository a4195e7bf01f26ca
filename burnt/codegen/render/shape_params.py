"""Sizes in generated source: constants for the first shape, parameters once only the sizes differ.

A printer marks every integer that comes from a shape (`mark_size`). The source without the marked numbers is
its *template*. The first time a template occurs, it is compiled with its sizes as constants, which gives the
fastest code. When it occurs again with other sizes, it is compiled with sizes as parameters, and that library
serves all further shapes: a new shape then costs a trace and a plan, but no compilation. Whatever a plan does
differently for a shape shows in the template, so no separate rules decide which shapes share a library.

Small strides, such as those of pooling windows, channels-last tensors or flips, are not marked (`mark_step`):
if the compiler does not know them, it gathers elements one by one instead of shuffling vectors.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable

_MARK = re.compile(r"@(-?\d+)@")
_MAX_CONSTANT_STEP = 8


def mark_size(size: int) -> str:
    """Return the marked text of an integer that comes from a shape, for generated source.

    >>> f"for (int64_t i = 0; i < {mark_size(7)}; i++)"
    'for (int64_t i = 0; i < @7@; i++)'
    """
    return f"@{size}@"


def mark_step(size: int) -> str:
    """Return the text of a stride or a divisor of an index: marked, unless it is small.

    Max pooling over 5 x 5 with stride 2 takes twice the time if the stride is a parameter.

    >>> mark_step(2), mark_step(-1), mark_step(512)
    ('2', '(-1)', '@512@')
    """
    return mark_size(size) if abs(size) > _MAX_CONSTANT_STEP else with_constant_sizes(mark_size(size))


def with_constant_sizes(text: str) -> str:
    """Return the text with its marked sizes as constants.

    >>> with_constant_sizes("i < @7@ * @-2@")
    'i < 7 * (-2)'
    """
    return _MARK.sub(lambda m: m[1] if m[1][0] != "-" else f"({m[1]})", text)


def sizes_as_parameters(text: str, name: Callable[[int], str]) -> tuple[str, tuple[int, ...]]:
    """Return the text with its marked sizes replaced by parameter names, and the sizes in the same order.

    >>> sizes_as_parameters("i < @7@ && j < @9@", lambda k: f"n{k}")
    ('i < n0 && j < n1', (7, 9))
    """
    values: list[int] = []

    def parameter(match: re.Match[str]) -> str:
        values.append(int(match[1]))
        return name(len(values) - 1)

    return _MARK.sub(parameter, text), tuple(values)


class SizeTemplates:
    """The templates of generated source seen in this process, each with the sizes it was first seen with."""

    def __init__(self) -> None:
        self._first_sizes: dict[bytes, tuple[int, ...]] = {}

    def needs_parameters(self, text: str) -> bool:
        """Whether to compile with sizes as parameters: the template was first seen with other sizes.

        >>> templates = SizeTemplates()
        >>> [templates.needs_parameters(text) for text in ("f(@1@)", "f(@1@)", "f(@2@)", "f(@1@)", "g(@2@)")]
        [False, False, True, False, False]
        """
        template, values = sizes_as_parameters(text, lambda k: "@")
        return self._first_sizes.setdefault(hashlib.sha256(template.encode()).digest(), values) != values
