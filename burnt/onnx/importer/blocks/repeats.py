"""Repeats: where the names of weights say nothing, a sequence of statements that follows itself is a list.

Its layers and tensors get the paths that those of a list have, ``blocks.0.linear``.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from burnt.onnx.importer.paths import Paths
from burnt.onnx.importer.program import Name, Program, Reads, Size, Statement, leaves, name_of
from burnt.onnx.importer.python.layers import layer_code

_LEAST_PERIOD = 4  # statements of a block
_MOST_PERIOD = 400
_MOST_CANDIDATES = 16
_CLASS_LINES = 5  # of Python, in addition to the statements and layers of a class

Members = Mapping[str, torch.nn.Module | Tensor]


class _Turns(NamedTuple):
    """Statements that follow themselves: the first one, how many are a turn, and how many turns there are."""

    start: int
    period: int
    times: int


def number_repeats(program: Program, members: Members) -> dict[str, str]:
    """Return other paths for layers and tensors that belong to a repetition and are in no list yet."""
    paths, reads = {path: path for path in members}, Reads(program)
    taken: set[int] = set()
    lists = Paths()
    for path in members:
        lists.new(path.split(".")[0])
    ids = _signatures(program, members)
    for start, length, period in _repetitions(ids)[:_MOST_CANDIDATES]:
        counts = [_handed_on(reads, program, start, start + shift + period) for shift in range(period)]
        shifts = range(min(period, length - 2 * period + 1))
        for shift in sorted(shifts, key=lambda s: (counts[s], -((length - s) // period), s)):
            turns = _Turns(start + shift, period, (length - shift) // period)
            span = range(turns.start, turns.start + turns.period * turns.times)
            own = _own(program, reads, members, turns)
            saved = (turns.times - 1) * (period + len(own)) - _CLASS_LINES
            if own and saved > 0 and taken.isdisjoint(span):
                taken.update(span)
                paths |= _numbered(own, lists)
                break
    return {old: new for old, new in paths.items() if old != new}


def _signatures(program: Program, members: Members) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return a number for each statement: equal for those that do the same on other values."""
    numbers: dict[Hashable, int] = {}
    kinds: dict[str, Hashable] = {}

    def kind(name: str) -> Hashable:
        """Return what counts of a name: of a layer or tensor, what it is."""
        path = name.removeprefix("self.")
        if path == name or path not in members:
            return ""
        if path not in kinds:
            member = members[path]
            if re.search(r"(^|\.)\d+(\.|$)", path):
                kinds[path] = path  # the file says where it belongs
            elif isinstance(member, Tensor):
                kinds[path] = tuple(member.shape), member.dtype, isinstance(member, torch.nn.Parameter)
            else:
                kinds[path] = layer_code(member).text
        return kinds[path]

    def signature(statement: object) -> Hashable:
        if not isinstance(statement, Statement):
            return id(statement)
        call = statement.call
        read = [*leaves(call)]
        constants = repr((call.args, sorted(call.kwargs.items())))
        for one in read:
            constants = constants.replace(repr(name_of(one)), "_")
        parts = [(kind(name_of(one).name), isinstance(one, Size)) for one in read]
        is_layer = call.function.startswith("self.")
        function = kind(call.function) if is_layer else call.function
        return function, is_layer, len(statement.outputs), constants, tuple(parts)

    found = [numbers.setdefault(signature(statement), len(numbers)) for statement in program.statements]
    return np.array(found, dtype=np.int64)


def _repetitions(ids: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[tuple[int, int, int]]:
    """Return start, length and period of sequences that follow themselves, the most repeated first."""
    found = []
    for period in range(_LEAST_PERIOD, min(len(ids) // 2, _MOST_PERIOD) + 1):
        same = np.concatenate([[False], ids[:-period] == ids[period:], [False]])
        edges = np.flatnonzero(same[1:] != same[:-1])
        for start, end in edges.reshape(-1, 2).tolist():
            if end - start >= period:
                found.append((start, end - start + period, period))
    return sorted(found, key=lambda one: (one[2] * (1 - one[1] // one[2]), one[2]))


def _handed_on(reads: Reads, program: Program, start: int, end: int) -> int:
    """Return how many results of statements are read after them."""
    inside = reads.within(start, end)
    made = (name for statement in program.statements[start:end] for name in statement.outputs)
    return sum(reads.total[name] > inside[name] for name in made)


def _own(program: Program, reads: Reads, members: Members, turns: _Turns) -> list[tuple[str, ...]]:
    """Return the layers and tensors that are others in each turn; none if one layer is in several turns."""
    found: dict[tuple[str, ...], None] = {}
    starts = [turns.start + k * turns.period for k in range(turns.times)]
    inside = [reads.within(start, start + turns.period) for start in starts]
    for i in range(turns.period):
        same = [program.statements[start + i] for start in starts]
        for names in zip(*(_members_of(one, members) for one in same), strict=True):
            is_own = len(set(names)) == turns.times and all(
                reads.total[f"self.{name}"] == within[f"self.{name}"]
                for name, within in zip(names, inside, strict=True)
            )
            if is_own:
                found[names] = None
            elif not isinstance(members[names[0]], Tensor):
                return []
    is_layer = any(not isinstance(members[names[0]], Tensor) for names in found)
    is_once = len({name for names in found for name in names}) == turns.times * len(found)
    return list(found) if is_layer and is_once and _does_the_same(program, turns) else []


def _members_of(statement: object, members: Members) -> list[str]:
    assert isinstance(statement, Statement)
    call = statement.call
    read = [Name(call.function), *map(name_of, leaves(call))]
    paths = [one.name.removeprefix("self.") for one in read if one.name.startswith("self.")]
    return [path for path in paths if path in members]


def _does_the_same(program: Program, turns: _Turns) -> bool:
    """Whether what is read within a turn was computed by the same statement of each turn."""
    made: dict[str, tuple[int, int]] = {}
    wiring: list[list[object]] = []
    for k in range(turns.times):
        found: list[object] = []
        for i in range(turns.period):
            statement = program.statements[turns.start + k * turns.period + i]
            found += [made[name][1] if made.get(name, (-1, 0))[0] == k else None for name in statement.reads]
            made |= dict.fromkeys(statement.outputs, (k, i))
        wiring.append(found)
    return all(found == wiring[0] for found in wiring)


def _numbered(own: list[tuple[str, ...]], lists: Paths) -> dict[str, str]:
    """Return the paths in a list of layers and tensors, a tuple for those of each turn."""
    path, inside = lists.new("blocks"), Paths()
    found: dict[str, str] = {}
    for names in own:
        member = inside.new(re.sub(r"_\d+$", "", names[0].rpartition(".")[2]))
        found |= {name: f"{path}.{k}.{member}" for k, name in enumerate(names)}
    return found
