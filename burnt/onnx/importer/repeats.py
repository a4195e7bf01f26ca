"""Repeats: the longest sequence of statements that follows itself, and what flows between its turns."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from burnt.onnx.importer.members import layer_source
from burnt.onnx.importer.module import Block
from burnt.onnx.importer.program import (
    Define,
    Device,
    Leaf,
    Name,
    Program,
    Reads,
    Repeat,
    Size,
    Statement,
    leaves,
    name_of,
    sum_reads,
)

_LEAST_PERIOD = 4  # statements of a block
_MOST_PERIOD = 400
_MOST_CANDIDATES = 16  # of a round
_FIRST_TURNS = 3  # by which the places where a turn may begin are compared


@dataclass
class Found:
    """A sequence of statements that follows itself, and what flows between its turns.

    Args:
        start: the first statement.
        period: the number of statements of a turn.
        count: the number of turns.
        arguments: what a turn reads from around it: an expression for each turn.
        carried: arguments that the turn before computed: the statement in the turn, and which of its results.
        outputs: results that are read outside of their turn, the carried ones first.
        own: names of layers and tensors that a block takes: one for each turn.
        is_chain: whether a loop can call the turns, as each hands on its outputs and nothing else is read.
        is_single: whether all turns have the same layers.
        path: what the names of the layers begin with, before the number of the turn.
        members: the names of layers and tensors in their block.
        begins_with_layer: whether a layer is called first.
    """

    start: int
    period: int
    count: int
    arguments: list[tuple[Leaf, ...]] = field(default_factory=list)
    carried: dict[int, tuple[int, int]] = field(default_factory=dict)
    outputs: list[tuple[int, int]] = field(default_factory=list)
    own: list[tuple[str, ...]] = field(default_factory=list)
    is_chain: bool = True
    is_single: bool = False
    path: str = ""
    members: list[str] = field(default_factory=list)
    begins_with_layer: bool = False

    def cost(self, count: int) -> tuple[Any, ...]:
        """Return what is to be least among the places where a turn may begin, given the number of turns."""
        return (
            not self.path,
            not self.is_chain,
            len(self.outputs),
            -count,
            not self.begins_with_layer,
            len(self.arguments),
            self.start,
        )


# --- where a program repeats itself -----------------------------------------------------------------------


def signatures(
    program: Program,
    tensors: dict[str, Tensor],
    layers: dict[str, torch.nn.Module],
    known: dict[int, tuple[object, Hashable]],
) -> np.ndarray[Any, Any]:
    """Return a number for each statement: equal for those that do the same on other values.

    Args:
        program: of the module.
        tensors: of the module, by name.
        layers: likewise.
        known: statements and what they have in common with others, by ``id(statement)``: those of the calls
            before, to which those of this one are added.
    """
    numbers: dict[Hashable, int] = {}
    sources: dict[str, str] = {}

    def layer(name: str) -> str:
        if name not in sources:
            module = layers[name]
            is_list = isinstance(module, Block | torch.nn.ModuleList)
            sources[name] = str(id(module)) if is_list else layer_source(module)
        return sources[name]

    for statement in program.statements:
        if id(statement) not in known:
            known[id(statement)] = statement, _signature(statement, tensors, layers, layer)
    found = (known[id(statement)][1] for statement in program.statements)
    return np.array([numbers.setdefault(signature, len(numbers)) for signature in found])


def find_repeat(
    program: Program,
    ids: np.ndarray[Any, Any],
    layers: dict[str, torch.nn.Module],
) -> Found | None:
    """Return the repetition that shortens the program most."""
    reads = Reads(program)
    for start, length, period in _repetitions(ids)[:_MOST_CANDIDATES]:
        places = []
        for shift in range(min(period, length - 2 * period + 1)):
            count = (length - shift) // period
            first = Found(start + shift, period, min(count, _FIRST_TURNS))
            if _flow(program, reads, layers, first) is not None:
                places.append((first.cost(count), Found(start + shift, period, count)))
        for _, place in sorted(places, key=lambda one: one[0]):
            found = _flow(program, reads, layers, place)
            if found is not None:
                return found
    return None


def gather_turn(program: Program, ids: np.ndarray[Any, Any], found: Found) -> bool:
    """Move what lies among the statements of the turn before a repetition, or after it, out of there.

    What all layers read is often computed in the first one: the angles of a rotary embedding, or the bias of
    relative positions. Returns whether anything was moved.
    """
    turn = ids[found.start : found.start + found.period].tolist()
    statements = program.statements

    def split(positions: list[int], wanted: list[int]) -> tuple[list[int], list[int]] | None:
        """Return positions of the turn's statements and of others among them, None if it is not there."""
        own: list[int] = []
        others: list[int] = []
        for position in positions:
            if len(own) == len(wanted) or len(others) > 4 * found.period:
                break
            (own if ids[position] == wanted[len(own)] else others).append(position)
        others = [position for position in others if own and min(own) < position < max(own)]
        return (own, others) if len(own) == len(wanted) and others else None

    before = split(list(range(found.start - 1, -1, -1)), turn[::-1])
    if before is not None and not _is_read(statements, *before):
        order = [*sorted(before[1]), *sorted(before[0])]
        statements[min(order) : max(order) + 1] = [statements[i] for i in order]
        return True
    after = split(list(range(found.start + found.period * found.count, len(statements))), turn)
    if after is not None and not _is_read(statements, after[1], after[0]):
        order = [*sorted(after[0]), *sorted(after[1])]
        statements[min(order) : max(order) + 1] = [statements[i] for i in order]
        return True
    return False


def _is_read(statements: list[Statement | Define | Repeat], makers: list[int], readers: list[int]) -> bool:
    """Whether some statements read results of others."""
    made: set[str] = set()
    for i in makers:
        statement = statements[i]
        made |= {statement.name} if isinstance(statement, Define) else set(statement.outputs)
    return not all(made.isdisjoint(statements[i].reads) for i in readers)


def _repetitions(ids: np.ndarray[Any, Any]) -> list[tuple[int, int, int]]:
    """Return start, length and period of sequences that follow themselves, the most repeated first."""
    found = []
    for period in range(_LEAST_PERIOD, min(len(ids) // 2, _MOST_PERIOD) + 1):
        same = np.concatenate([[False], ids[:-period] == ids[period:], [False]])
        edges = np.flatnonzero(same[1:] != same[:-1])
        for start, end in edges.reshape(-1, 2).tolist():
            if end - start >= period:
                found.append((start, end - start + period, period))
    return sorted(found, key=lambda one: (one[2] * (1 - one[1] // one[2]), one[2]))


def _signature(
    statement: Statement | Define | Repeat,
    tensors: dict[str, Tensor],
    layers: dict[str, torch.nn.Module],
    layer: Any,
) -> Hashable:
    """Return what a statement has in common with those that do the same on other values."""
    if not isinstance(statement, Statement):
        return id(statement)

    def leaf(one: Leaf) -> Hashable:
        name = name_of(one).name.removeprefix("self.")
        kind = (type(one).__name__, one.axis if isinstance(one, Size) else None)
        if name != name_of(one).name and name in tensors:
            tensor = tensors[name]
            return (*kind, tuple(tensor.shape), tensor.dtype, isinstance(tensor, torch.nn.Parameter))
        return kind

    call = statement.call
    name = call.function.removeprefix("self.")
    function = layer(name) if name != call.function and name in layers else call.function
    constants = repr((call.args, sorted(call.kwargs.items(), key=lambda item: item[0])))
    for one in leaves((*call.args, *call.kwargs.values())):
        constants = constants.replace(repr(name_of(one)), "_")
    parts = tuple(leaf(one) for one in leaves((*call.args, *call.kwargs.values())))
    return function, len(statement.outputs), constants, parts


def is_member(name: str, members: Mapping[str, object]) -> bool:
    """Whether a name is that of a layer or tensor; a variable may have the same one without ``self``."""
    return name.startswith("self.") and name.removeprefix("self.") in members


# --- what flows between the turns -------------------------------------------------------------------------


def _slots(statement: Statement) -> list[Leaf]:
    """Return the leaves of a statement; the layer that it calls is the first."""
    call = statement.call
    function = [Name(call.function)] if call.function.startswith("self.") else []
    return [*function, *leaves((*call.args, *call.kwargs.values()))]


def _flow(
    program: Program,
    reads: Reads,
    layers: dict[str, torch.nn.Module],
    found: Found,
) -> Found | None:
    """Complete a repetition by what its turns read and hand on; None if they do not do the same."""
    statements = program.statements[found.start : found.start + found.period * found.count]
    turns = [statements[k * found.period : (k + 1) * found.period] for k in range(found.count)]
    made: dict[str, tuple[int, int, int]] = {}
    for k, turn in enumerate(turns):
        for i, statement in enumerate(turn):
            assert isinstance(statement, Statement)
            made |= {name: (k, i, j) for j, name in enumerate(statement.outputs)}

    first = turns[0][0]
    assert isinstance(first, Statement)
    found.begins_with_layer = is_member(first.call.function, layers)
    own: dict[tuple[str, ...], None] = {}
    arguments: dict[tuple[Leaf, ...], tuple[int, int] | None] = {}
    for same in zip(*turns, strict=True):
        for one in zip(*(_slots(s) for s in same if isinstance(s, Statement)), strict=True):
            names = tuple(name_of(leaf).name for leaf in one)
            places = [made.get(name) for name in names]
            is_layer = is_member(names[0], layers)
            if is_layer or (names[0].startswith("self.") and len(set(names)) == found.count):
                own[names] = None
            elif all(place is not None and place[0] == k for k, place in enumerate(places)):
                if len({place[1:] for place in places if place is not None}) > 1:
                    return None
            elif places[0] is None and all(p is not None and p[0] == k for k, p in enumerate(places[1:])):
                sources = {place[1:] for place in places if place is not None}
                if len(sources) > 1:
                    return None
                arguments[tuple(map(Name, names))] = sources.pop()
            elif any(place is not None for place in places):
                return None
            elif not isinstance(one[0], Device):
                arguments.setdefault(one)
    if not any(source is not None for source in arguments.values()):
        return None
    outputs = [[s.outputs for s in turn if isinstance(s, Statement)] for turn in turns]
    return _complete(found, own, arguments, reads, layers, outputs)


def _complete(
    found: Found,
    own: dict[tuple[str, ...], None],
    arguments: dict[tuple[Leaf, ...], tuple[int, int] | None],
    reads: Reads,
    layers: dict[str, torch.nn.Module],
    made: list[list[tuple[str, ...]]],
) -> Found | None:
    """Decide which layers, arguments and outputs blocks have; None if layers are used elsewhere too."""
    start, period, count = found.start, found.period, found.count
    inside = [reads.within(start + k * period, start + (k + 1) * period) for k in range(count)]
    spanned = sum_reads(inside)
    is_layer = {names: is_member(names[0], layers) for names in own}
    if not any(is_layer.values()):
        return None
    if len({name for names in own for name in names}) < sum(len(set(names)) for names in own):
        return None  # one layer in two places of a turn, where another turn has two layers
    found.is_single = all(len(set(names)) == 1 for names in own)
    for names in own:
        if found.is_single:
            taken = reads.total[names[0]] == spanned[names[0]]
        else:
            taken = len(set(names)) == count and all(
                reads.total[name] == within[name] for name, within in zip(names, inside, strict=True)
            )
        if taken:
            found.own.append(names)
        elif is_layer[names]:
            return None
        else:
            arguments.setdefault(tuple(map(Name, names)))

    ordered = sorted(arguments.items(), key=lambda item: (item[1] is None, item[1] or (0, 0)))
    passed = {one for one, _ in ordered if isinstance(one[0], Name)}
    sizes = {one for one, _ in ordered if isinstance(one[0], Size)}
    of_passed = {one for one in sizes if tuple(map(name_of, one)) in passed}
    ordered = [(one, source) for one, source in ordered if one not in of_passed]
    found.arguments = [one for one, _ in ordered]
    if len({one[-1] for one in found.arguments}) < len(ordered):
        return None  # what is one value in the last turn are several in another
    if {one[-1] for one in of_passed} & {one[-1] for one in found.arguments}:
        return None  # likewise, of the size of an argument and of what all turns read
    found.carried = {i: source for i, (_, source) in enumerate(ordered) if source is not None}
    sources = list(found.carried.values())
    later: set[tuple[int, int]] = set()
    for k, turn in enumerate(made):
        for i, names in enumerate(turn):
            for j, name in enumerate(names):
                following = inside[k + 1][name] if k + 1 < count and (i, j) in sources else 0
                if reads.total[name] > inside[k][name] + following:
                    later.add((i, j))
                    found.is_chain &= k == count - 1
    found.outputs = [*dict.fromkeys(sources), *sorted(later - set(sources))]
    found.is_chain &= found.outputs == sources and all(
        len(set(one)) == 1 for i, one in enumerate(found.arguments) if i not in found.carried
    )
    found.path, found.members = _member_names(found.own, found.is_single)
    return found


def _member_names(own: list[tuple[str, ...]], is_single: bool) -> tuple[str, list[str]]:
    """Return the path of a list of blocks, and the names in a block, from names such as ``layers_3_norm``.

    Layers whose names have no such number keep those in the first block; if most are such, there is no path.
    """
    plain = [re.sub(r"_\d+$", "", names[0].removeprefix("self.")) for names in own]
    splits = [None if is_single else split_counted(names) for names in own]
    counted = [split for split in splits if split is not None and split[2]]
    kinds = Counter((path, step) for path, _, _, step in counted)
    if not kinds:
        return "", plain
    (path, step), times = kinds.most_common(1)[0]
    firsts = [first for _, first, _, other in counted if other == step]
    if not path or 2 * times < len(own) or max(firsts) - min(firsts) >= step:
        return "", plain
    members = []
    for split, name in zip(splits, plain, strict=True):
        if split is None or not split[2] or split[3] != step:
            members.append(name)
        else:
            members.append(split[2] if step == 1 else f"{split[2]}_{split[1] - min(firsts)}")
    return path, members


def split_counted(names: tuple[str, ...]) -> tuple[str, int, str, int] | None:
    """Return the path before the number that counts up, its first value, what follows, and its step."""
    words = [name.removeprefix("self.").split("_") for name in names]
    if len({len(one) for one in words}) > 1:
        return None
    varying = [t for t, column in enumerate(zip(*words, strict=True)) if len(set(column)) > 1]
    if len(varying) != 1:
        return None
    t = varying[0]
    column = [one[t] for one in words]
    if not all(word.isdecimal() for word in column):
        return None
    values = [int(word) for word in column]
    steps = {b - a for a, b in itertools.pairwise(values)}
    if len(steps) != 1 or (step := steps.pop()) < 1:
        return None
    return "_".join(words[0][:t]), values[0], "_".join(words[0][t + 1 :]), step
