"""Lists: the statements of each element of a list become a block, which a loop calls where it can.

The twelve layers of a BERT come out of an exporter as one sequence of statements. The paths of weights say
which belong to ``encoder.layer.0``, and where one element ends and the next one begins is where the fewest
values are handed on::

    for block in self.encoder.layer:
        hidden = block(hidden, mask)
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from burnt.onnx.importer.blocks.structure import Structure, structure_of
from burnt.onnx.importer.paths import children_of, is_list
from burnt.onnx.importer.program import (
    Call,
    Define,
    Device,
    Expr,
    Leaf,
    Name,
    Program,
    Reads,
    Repeat,
    Statement,
    leaves,
    name_of,
    names_in,
    renaming,
)

_LEAST_STATEMENTS = 4  # of a class
_MOST_GAP = 24  # statements without layers between two blocks, or at the ends of one
_MOST_LENGTH = 1000  # statements of a block
_MOST_READ = 100_000  # statements of all blocks that are tried: some seconds
_CLASS_LINES = 5  # of Python, in addition to the statements of a class

_T = TypeVar("_T")

Members = Mapping[str, torch.nn.Module | Tensor]


@dataclass
class Block:
    """The statements of an element of a list."""

    path: str
    start: int
    end: int
    statements: list[Statement]  # these, with the paths of members in the block
    inputs: list[Leaf]  # what it reads from around it
    members: dict[str, torch.nn.Module | Tensor]  # the layers and tensors that belong to it, by path in it
    structure: Structure  # without numbers
    outputs: list[str] = field(default_factory=list)  # the names of its results
    carried: int = 0  # how many of the inputs the block before computes; they come first

    @property
    def list_path(self) -> str:
        """The path of the list."""
        return self.path.rpartition(".")[0]

    @property
    def number(self) -> int:
        """The place in the list."""
        return int(self.path.rpartition(".")[2])

    @property
    def is_large(self) -> bool:
        """Whether it is worth a class."""
        has_layers = any(isinstance(member, torch.nn.Module) for member in self.members.values())
        return has_layers and len(self.statements) >= _LEAST_STATEMENTS

    def program(self, names: Sequence[str]) -> Program:
        """Return the program of the block, given the names of its inputs."""
        renamed: dict[Expr, Name] = {one: Name(name) for one, name in zip(self.inputs, names, strict=True)}

        def leaf(one: Leaf) -> Expr:
            if one in renamed:
                return renamed[one]
            base = renamed.get(name_of(one), name_of(one))
            if isinstance(one, Device):
                is_known = base != one.tensor or one.tensor.name in made
                return Device(base if is_known else Name(names[0]))
            return type(one)(base, one.axis) if not isinstance(one, Name) else one

        made = {name for statement in self.statements for name in statement.outputs}
        body = [statement.replaced(leaf) for statement in self.statements]
        return Program(list(names), list(map(Name, self.outputs)), [*body])


def group_lists(program: Program, members: Members) -> tuple[Program, list[Block]]:
    """Return a program that calls blocks, whose results are the same to the bit, and the blocks."""
    program = Program(list(program.inputs), list(program.outputs), _hoisted(program, members))
    blocks: list[Block] = []
    left = _MOST_READ
    while True:
        search = _Search(program, members)
        best: list[Block] = []
        for family in search.families():
            left -= sum(places[-1] + 1 - places[0] for places in family.values())
            found = search.blocks(family) if left > 0 else []
            best = max(best, found, key=_worth)
        if not best:
            return program, blocks
        _order_values(best, search)
        _call(program, best, search)
        blocks += best


def grouped(items: Iterable[_T], key: Callable[[_T], Hashable]) -> dict[Hashable, list[_T]]:
    """Return items by what a function returns for them."""
    groups: dict[Hashable, list[_T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def _worth(blocks: Sequence[Block]) -> tuple[bool, bool, int, int]:
    """Return what is largest for the lists to take first: those around others, unless their elements differ.

    Lists that save no lines of Python are worth as little as none.
    """
    lengths = [(block.structure.key, len(block.statements) + len(block.members)) for block in blocks]
    classes = {key: length + _CLASS_LINES for key, length in lengths}
    saved = sum(length for _, length in lengths) - sum(classes.values())
    if saved <= 0:
        return False, False, 0, 0
    exact = {(block.structure.key, repr(block.structure.numbers)) for block in blocks}
    is_uniform = 2 * len(exact) <= len(blocks) + 1
    return True, is_uniform, -blocks[0].path.count(".") if is_uniform else 0, saved


def _elements(program: Program, members: Members) -> dict[str, list[int]]:
    """Return the statements that read members of an element of a list, by its path."""
    children = children_of(members)
    found: dict[str, list[int]] = {}
    for i, statement in enumerate(program.statements):
        for path in (name[5:] for name in statement.reads if name.startswith("self.")):
            parts = path.split(".") if path in members else []
            for n in range(1, len(parts) - 1):
                above = ".".join(parts[:n])
                if parts[n].isdecimal() and is_list(above, children, members):
                    places = found.setdefault(f"{above}.{parts[n]}", [])
                    if places[-1:] != [i]:
                        places.append(i)
    return found


def _hoisted(program: Program, members: Members) -> list[Statement | Define | Repeat]:
    """Return statements with those before an element that stand in it, and that others read too.

    What all layers read is often computed in the first one, such as the angles of a rotary embedding.
    """
    statements = list(program.statements)
    elements = _elements(program, members)
    outer = [path for path in elements if not elements.keys() & {*itertools.accumulate(_above(path))}]
    spans = sorted((elements[path][0], elements[path][-1], f"self.{path}.") for path in outer)
    gap = min((b[0] - a[1] for a, b in itertools.pairwise(spans) if b[0] > a[1]), default=1)
    last_read: dict[str, int] = {}
    for i, statement in enumerate(statements):
        last_read |= dict.fromkeys(statement.reads, i)
    last_read |= dict.fromkeys(names_in(program.outputs), len(statements))
    within: set[str] = set()  # what depends on the elements so far
    hoisted: list[Statement | Define | Repeat] = []
    for (first, last, prefix), after in itertools.pairwise([*spans, (len(statements), 0, "")]):
        last = min(last, after[0] - 1)
        own: set[str] = set()
        wanted: set[str] = set()
        for statement in statements[first : after[0]]:
            if any(name in own or name.startswith(prefix) for name in statement.reads):
                own.update(statement.outputs)
        within |= own
        kept: list[Statement | Define | Repeat] = []
        moved: list[Statement | Define | Repeat] = []
        for statement in reversed(statements[first : last + 1]):
            is_free = within.isdisjoint((*statement.outputs, *statement.reads))
            is_read = any(
                name in wanted or last_read.get(name, 0) >= min(after[0], last + gap)
                for name in statement.outputs
            )
            (moved if is_free and is_read else kept).append(statement)
            wanted |= statement.reads.keys() if is_free and is_read else set()
        statements[first : last + 1] = [*moved[::-1], *kept[::-1]]
        hoisted += moved[::-1]
    if not hoisted:
        return statements
    known = {id(statement) for statement in hoisted}
    rest = [statement for statement in statements if id(statement) not in known]
    return [*rest[: spans[0][0]], *hoisted, *rest[spans[0][0] :]]


def _above(path: str) -> list[str]:
    """Return the parts of the paths of the modules around a module."""
    first, *rest = path.split(".")[:-1]
    return [first, *(f".{part}" for part in rest)]


@dataclass
class _Span:
    """Statements that read the members of an element, and how far it may reach."""

    path: str
    first: int  # the first statement that reads a member
    last: int  # the last one
    start: int | None = None  # the first statement of the block; None where that is open
    end: int | None = None  # the one after the last, likewise
    least: int = 0  # how far the block may begin before `first`
    most: int = 0  # how far it may end after `last`

    @property
    def list_path(self) -> str:
        """The path of the list."""
        return self.path.rpartition(".")[0]


class _Search:
    def __init__(self, program: Program, members: Members) -> None:
        self.statements = program.statements
        self.members = members
        self.reads = Reads(program)
        self.elements = _elements(program, members)

    def families(self) -> Iterator[dict[str, list[int]]]:
        """Yield the elements whose paths are equal apart from numbers, the largest families first."""
        found: dict[str, dict[str, list[int]]] = {}
        for path, places in self.elements.items():
            if places[-1] - places[0] < _MOST_LENGTH:
                found.setdefault(re.sub(r"\d+(?=\.|$)", "#", path), {})[path] = places
        yield from sorted(found.values(), key=lambda family: -sum(map(len, family.values())))

    def blocks(self, family: Mapping[str, list[int]]) -> list[Block]:
        """Return the blocks of a family; none if they overlap, or too few are of one structure."""
        spans = sorted(
            (span for path, places in family.items() for span in self.spans(path, places)),
            key=lambda span: span.first,
        )
        if len(spans) < 2 or any(a.last >= b.first for a, b in itertools.pairwise(spans)):
            return []
        self.bound(spans)
        found = self.decide(spans)
        counts = Counter(block.structure.key for block in found if block is not None)
        lists = grouped(zip(spans, found, strict=True), lambda pair: pair[0].list_path)
        chosen: list[Block] = []
        for blocks in ([block for _, block in pairs] for pairs in lists.values()):
            whole = [block for block in blocks if block is not None]
            repeated = [block for block in whole if counts[block.structure.key] > 1 and block.is_large]
            if len(whole) == len(blocks) and 2 * len(repeated) >= len(whole):
                chosen += whole
        return chosen

    def spans(self, path: str, places: list[int]) -> Iterator[_Span]:
        """Yield the places of an element: one, or one for each time that all of it is called."""
        names = {
            name for i in places for name in self.statements[i].reads if name.startswith(f"self.{path}.")
        }
        times = {name: [i for i in places if name in self.statements[i].reads] for name in names}
        if len({len(found) for found in times.values()}) == 1:
            starts = next(found for name, found in times.items() if found[0] == places[0])
        else:
            starts = places[:1]
        for start, after in itertools.pairwise([*starts, places[-1] + 1]):
            inside = [i for i in places if start <= i < after]
            yield _Span(path, inside[0], inside[-1])

    def bound(self, spans: list[_Span]) -> None:
        """Decide where spans meet, and how far the others may reach."""
        for before, span in itertools.pairwise([None, *spans, None]):
            start = 0 if before is None else before.last + 1
            end = len(self.statements) if span is None else span.first
            layers = [i for i in range(start, end) if self.calls_layer(i)]
            if before is not None and span is not None and not layers and end - start <= _MOST_GAP:
                before.end = span.start = self.cut(before, span)
                continue
            if before is not None:
                before.most = min([*layers[:1], end, start + _MOST_GAP])
            if span is not None:
                span.least = max([*(i + 1 for i in layers[-1:]), start, end - _MOST_GAP])

    def calls_layer(self, i: int) -> bool:
        """Whether a statement calls a layer or a block, or is not a call."""
        statement = self.statements[i]
        return not isinstance(statement, Statement) or statement.call.function.startswith("self.")

    def cut(self, before: _Span, span: _Span) -> int:
        """Return the last place between two blocks where the fewest values are handed on."""

        def handed_on(i: int) -> int:
            made = {name for statement in self.statements[before.first : i] for name in statement.outputs}
            return len(made & self.reads.within(i, span.last + 1).keys())

        return max(range(before.last + 1, span.first + 1), key=lambda i: (-handed_on(i), i))

    def results(self, start: int, end: int) -> list[str]:
        """Return results of statements that are read outside of them."""
        inside = self.reads.within(start, end)
        names = (name for statement in self.statements[start:end] for name in statement.outputs)
        return [name for name in names if self.reads.total[name] > inside[name]]

    def decide(self, spans: Sequence[_Span]) -> list[Block | None]:
        """Return the blocks; where one begins or ends is open, it becomes equal to the others if it can."""
        known: set[Hashable] = set()
        found: dict[int, Block | None] = {}
        heads = Counter(span.first - span.start for span in spans if span.start is not None)
        tails = Counter(span.end - 1 - span.last for span in spans if span.end is not None)
        for span in sorted(spans, key=lambda span: (span.start is None) + (span.end is None)):
            starts = [span.first - n for n, _ in heads.most_common() if span.first - n >= span.least]
            ends = [span.last + 1 + n for n, _ in tails.most_common() if span.last + 1 + n <= span.most]
            starts = [*starts, span.first] if span.start is None else [span.start]
            if span.end is not None:
                ends = [span.end]
            elif not ends:
                last = range(span.last + 1, max(span.last + 1, span.most) + 1)
                ends = [min(last, key=lambda i: (len(self.results(span.first, i)), i))]
            places = [(start, end) for start in starts for end in ends]
            tried = [self.block(span.path, *place, apart) for apart in (False, True) for place in places]
            block = next((one for one in tried if one and one.structure.key in known), tried[0])
            known |= set() if block is None else {block.structure.key}
            found[span.first] = block
        return [found[span.first] for span in spans]

    def block(self, path: str, start: int, end: int, sizes_apart: bool = False) -> Block | None:
        """Return the block of statements `start` to `end`; None if they cannot be one.

        With `sizes_apart` sizes of an input are inputs too, as in blocks that read those of others.
        """
        prefix = f"self.{path}."
        statements = [s for s in self.statements[start:end] if isinstance(s, Statement)]
        if len(statements) < end - start or not self.results(start, end):
            return None
        made = {name for statement in statements for name in statement.outputs}
        own: dict[str, torch.nn.Module | Tensor] = {}
        outer: dict[Leaf, None] = {}
        for statement in statements:
            function = statement.call.function
            if function.startswith("self.") and not (
                function.startswith(prefix) and function[5:] in self.members
            ):
                return None  # a layer that belongs to another module, or a block
            read = leaves(statement.call)
            for leaf in (Name(function), *read) if function.startswith("self.") else read:
                name = name_of(leaf).name
                if name.startswith(prefix) and name[5:] in self.members:
                    own[name.removeprefix(prefix)] = self.members[name[5:]]
                elif name not in made and not isinstance(leaf, Device):
                    outer[leaf] = None
        used = sum(name.startswith(prefix) for name in self.reads.within(start, end))
        if used < sum(name.startswith(prefix) for name in self.reads.total):
            return None  # others read its weights
        inputs = [one for one in outer if sizes_apart or isinstance(one, Name) or name_of(one) not in outer]
        if not any(isinstance(leaf, Name) and not leaf.name.startswith("self.") for leaf in inputs):
            return None

        def rename(name: str) -> str:
            return f"self.{name.removeprefix(prefix)}" if name.startswith(prefix) else name

        body = [statement.replaced(renaming(rename), rename) for statement in statements]
        return Block(path, start, end, body, inputs, own, structure_of(inputs, body, own))


# --- calls ------------------------------------------------------------------------------------------------


def _order_values(blocks: Sequence[Block], search: _Search) -> None:
    """Give blocks of one structure the same results, and what the block before hands on as first inputs."""
    groups = grouped(blocks, lambda block: block.structure.key)
    results: dict[Hashable, list[tuple[int, int]]] = {}
    for key, group in groups.items():
        found: set[tuple[int, int]] = set()
        for block in group:
            read = {*search.results(block.start, block.end)}
            outputs = [statement.outputs for statement in block.statements]
            found |= {
                (i, j) for i, names in enumerate(outputs) for j, name in enumerate(names) if name in read
            }
        results[key] = sorted(found)
        for block in group:
            block.outputs = [block.statements[i].outputs[j] for i, j in results[key]]
    before = {id(b): a for a, b in itertools.pairwise(blocks) if a.list_path == b.list_path}
    for group in groups.values():
        pairs = [(before[id(block)], block) for block in group if id(block) in before]
        places = [dict(_handed_on(*pair)) for pair in pairs]
        carried = {i: one for i, one in places[0].items() if all(i in p for p in places)} if places else {}
        ranks = [(i not in carried, carried.get(i, 0), _rank(leaf)) for i, leaf in enumerate(group[0].inputs)]
        order = sorted(range(len(ranks)), key=ranks.__getitem__)
        for block in group:
            block.inputs = [block.inputs[i] for i in order]
            block.carried = len(carried)


def _handed_on(before: Block, block: Block) -> Iterator[tuple[int, int]]:
    """Yield the inputs of a block that the one before computes, and which of its results they are."""
    given = list(map(Name, before.outputs))
    yield from ((i, given.index(leaf)) for i, leaf in enumerate(block.inputs) if leaf in given)


def _rank(leaf: Leaf) -> bool:
    """Return what sorts inputs: results of other statements come before weights and sizes."""
    return not isinstance(leaf, Name) or leaf.name.startswith("self.")


def _call(program: Program, blocks: Sequence[Block], search: _Search) -> None:
    """Put calls of blocks, and loops over lists, in the place of their statements."""
    runs: list[list[Block]] = []
    for block in blocks:
        if runs and _follows(runs[-1], block, search.reads):
            runs[-1].append(block)
        else:
            runs.append([block])
    lengths = Counter(block.list_path for block in {block.path: block for block in blocks}.values())
    for run in reversed(runs):
        first, last = run[0], run[-1]
        new: Statement | Repeat
        if len(run) == 1:
            new = Statement(tuple(last.outputs), Call(f"self.{first.path}", tuple(first.inputs)))
        else:
            count, is_single = len(first.outputs), first.path == last.path
            start, stop = first.number, last.number
            bounds = f"[{start or ''}:{stop + 1 if stop + 1 < lengths[first.list_path] else ''}]"
            is_whole = (start, stop + 1) == (0, lengths[first.list_path])
            modules = first.path if is_single else first.list_path + ("" if is_whole else bounds)
            initial, args = tuple(first.inputs[:count]), tuple(first.inputs[count:])
            new = Repeat(
                tuple(last.outputs), f"self.{modules}", initial, args, len(run) if is_single else None
            )
        program.statements[first.start : last.end] = [new]


def _follows(run: Sequence[Block], block: Block, reads: Reads) -> bool:
    """Whether a loop can call a block after others: they hand on their results, which nothing else reads."""
    first, last, paths, count = run[0], run[-1], {one.path for one in run}, len(run[-1].outputs)
    is_next = len(paths) == len(run) and block.number == last.number + 1
    if block.list_path != last.list_path or not (is_next or paths == {block.path}) or block.start != last.end:
        return False
    if block.inputs[:count] != list(map(Name, last.outputs)) or block.inputs[count:] != first.inputs[count:]:
        return False
    inside = reads.within(last.start, block.end)
    return count == len(block.outputs) and all(reads.total[name] == inside[name] for name in last.outputs)
