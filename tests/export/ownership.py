"""A simulation of the arena of a generated program: who wrote each element that a call reads."""

from __future__ import annotations

import math
import re

from burnt.export import CSource

_FUNCTION = re.compile(r"^EMX_NODE_FN void (node\w+)\((.*)\) \{$", re.MULTILINE)
_PARAMETER = re.compile(r"(const )?(\w+) \w+((?:\[\d+\])+)")


def check_arena(source: CSource) -> int:
    """Assert that calls read results as they were written; return the largest number of bytes in use."""
    functions = {
        name: [(const != "", kind, _count(dims)) for const, kind, dims in _PARAMETER.findall(parameters)]
        for name, parameters in _FUNCTION.findall(source.text)
    }
    body = source.text[source.text.index(f"\nvoid {source.name}(") :]
    places = {
        name: (array, int(offset))
        for name, array, offset in re.findall(r"void \*const (tmp\w+) = (\w+) \+ (\d+);", body)
    }
    lengths = {name: int(n) for name, n in re.findall(r"^static \w+ (\w+)\[(\d+)\];", source.text, re.M)}
    owners: dict[tuple[str, int], str] = {}
    calls = re.findall(r"^    (node\w+)\((.*)\);$", body, re.MULTILINE)
    assert calls
    for name, text in calls:
        arguments = text.split(", ")
        assert len(arguments) == len(functions[name])
        given = dict(zip(arguments, functions[name], strict=True))
        own = [
            (places[argument][0], element)
            for argument, (*_, count) in given.items()
            if argument in places
            for element in range(places[argument][1], places[argument][1] + count)
        ]
        assert len(own) == len(set(own)), f"arguments of {name} overlap"
        for reads in (True, False):
            for argument, (is_const, _, count) in given.items():
                if argument in places and is_const == reads:
                    array, offset = places[argument]
                    assert offset + count <= lengths[array]
                    for element in range(offset, offset + count):
                        if reads:
                            assert owners[array, element] == argument, f"{name} reads {argument}"
                        else:
                            owners[array, element] = argument
    return sum(lengths.values())


def _count(dims: str) -> int:
    return math.prod(int(size) for size in re.findall(r"\d+", dims))
