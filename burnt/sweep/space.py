"""The space that a sweep searches, from words such as ``lr=1e-4..1e-1:log`` and ``hidden=8|32``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from burnt.config import Config
from burnt.errors import ConfigError
from burnt.store.sweeps import Parameter, Value, assignment

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})(?::(\w*))?")


def parse_space(words: Iterable[str]) -> tuple[tuple[Parameter, ...], tuple[str, ...]]:
    """Return the parameters that words of a command line vary, and the words that set one value.

    Raises:
        ConfigError: a range is empty, or its ends do not suit a logarithmic scale.

    >>> space, fixed = parse_space(["lr=1e-4..1e-1:log", "hidden=8|32", "epochs=5"])
    >>> [parameter.key for parameter in space], space[1].choices, fixed
    (['lr', 'hidden'], (8, 32), ('epochs=5',))
    """
    space: dict[str, Parameter] = {}
    fixed = []
    for word in words:
        key, _, text = word.partition("=")
        if found := _RANGE.fullmatch(text):
            parameter = _parse_range(key, text, *found.groups())
        elif "|" in text and text[0] not in '"[{':
            choices = tuple(_number(choice) for choice in text.split("|"))
            if len(set(choices)) < len(choices) or "" in choices:
                raise ConfigError(
                    f"the choices of {key} are invalid", expected="different values", found=text
                )
            parameter = Parameter(key=key, kind="choice", choices=choices)
        else:
            fixed.append(word)
            continue
        if key in space:
            raise ConfigError(f"{key} is given twice", found=word)
        space[key] = parameter
    for word in fixed:
        if word.partition("=")[0] in space:
            raise ConfigError(f"{word.partition('=')[0]} is given twice", found=word)
    if not space:
        raise ConfigError(
            "no setting is searched",
            expected="a range or choices",
            found=" ".join(fixed) or "no settings",
            hint="such as lr=1e-4..1e-1:log, layers=1..4 or 'hidden=8|32'",
        )
    return tuple(space.values()), tuple(fixed)


def _parse_range(key: str, text: str, low_text: str, high_text: str, scale: str | None) -> Parameter:
    low, high = float(low_text), float(high_text)
    is_valid = scale in (None, "log") and -math.inf < low < high < math.inf and (low > 0 or not scale)
    if not is_valid or "..." in text:  # 1...5 could be 1 to 5 or 1 to .5
        expected = "low..high with two dots, or low..high:log with low above 0"
        raise ConfigError(f"the range of {key} is invalid", expected=expected, found=text)
    if re.search("[.eE]", low_text + high_text):
        return Parameter(key=key, kind="float", low=low, high=high, log=bool(scale))
    return Parameter(key=key, kind="int", low=int(low), high=int(high), log=bool(scale))


def _number(text: str) -> Value:
    """Return the number that a text is, unless it would be written in another way: 007 stays a text."""
    if not re.fullmatch(_NUMBER, text) or re.match(r"[+]|-?0\d", text):
        return text
    return float(text) if re.search("[.eE]", text) else int(text)


def check_space(
    space: Sequence[Parameter], fixed: Sequence[str], build: Callable[[list[str]], Config]
) -> tuple[Parameter, ...]:
    """Build a Config with each end and choice; return the parameters, whole numbers where the field has them.

    Args:
        space: the parameters.
        fixed: assignments of other settings.
        build: returns the Config of assignments, or raises a ConfigError.
    """
    defaults = {p.key: assignment(p.key, p.choices[0] if p.choices else p.low) for p in space}
    checked = []
    for parameter in space:
        key = parameter.key
        for value in parameter.choices or (parameter.low, parameter.high):
            config = build([*fixed, *(defaults | {key: assignment(key, value)}).values()])
            found = _look_up(config.to_dict(), key)
            if parameter.choices:
                continue
            if isinstance(found, bool) or not isinstance(found, int | float):
                raise ConfigError(
                    f"{key} has no range",
                    where=key,
                    expected="a field that is a number",
                    found=f"{found!r} ({type(found).__name__})",
                    hint=f"choices are written {key}=A|B",
                )
            if isinstance(found, float):
                low, high = float(parameter.low), float(parameter.high)
                parameter = parameter.replace(kind="float", low=low, high=high)
        checked.append(parameter)
    return tuple(checked)


def _look_up(data: Any, key: str) -> Any:
    for part in key.split("."):
        data = data[int(part)] if isinstance(data, list) else data[part]
    return data
