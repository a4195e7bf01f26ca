"""Families: blocks that are found by the names of their weights, which are equal apart from numbers.

The first layer of each stage of a ResNet has a shortcut and a stride, the others have none: no sequence of
statements follows itself there. But the weights of all are called ``stages_#_layers_#``. Here the statements
of each such prefix are found, and where one ends and the next one begins: where a single value is handed on.
Blocks of one structure (see templates.py) become one class, whatever their numbers are.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from burnt.onnx.importer.module import Block
from burnt.onnx.importer.program import (
    Device,
    Leaf,
    Name,
    Program,
    Reads,
    Statement,
    leaves,
    name_of,
)
from burnt.onnx.importer.templates import Structure, structure_of

_LEAST_STATEMENTS = 4  # of a block that is no element of a list
_LEAST_LAYERS = 2  # of a block
_MOST_GAP = 24  # statements without layers between two blocks that follow each other
_MOST_EXTENSION = 16  # statements without layers that a block may begin or end with
CLASS_LINES = 8
"""Of Python, beside the statements of a class and its layers."""
_MOST_LENGTH = 1000  # statements of a block
_MOST_READ = 60_000  # statements of all families that are tried: a few seconds

Prefix = tuple[str, ...]


@dataclass
class Element:
    """The statements of a block.

    Args:
        prefix: the words that the names of its weights begin with.
        start: the first statement.
        end: the one after the last.
        inputs: what it reads from around it; what the element before computed comes first.
        output: its result.
        num_layers: how many layers it calls.
        structure: without numbers.
    """

    prefix: Prefix
    start: int
    end: int
    inputs: list[Leaf]
    output: str
    num_layers: int
    structure: Structure

    @property
    def members(self) -> tuple[str, ...]:
        """Names of its layers and tensors, in the order of use, ``self.`` left out."""
        return self.structure.members


@dataclass
class Family:
    """Blocks whose prefixes are equal apart from numbers.

    Args:
        lists: elements with the numbers 0, 1, 2 ... at the end of their prefixes, in this order.
        single: other elements.
    """

    lists: list[list[Element]] = field(default_factory=list)
    single: list[Element] = field(default_factory=list)

    @property
    def elements(self) -> list[Element]:
        """All elements in the order of the program."""
        return sorted([*itertools.chain(*self.lists), *self.single], key=lambda element: element.start)

    @property
    def saved(self) -> int:
        """How many lines of Python the family saves, about."""
        lengths = {element.structure.key: element.end - element.start for element in self.elements}
        whole = sum(element.end - element.start for element in self.elements)
        return whole - sum(lengths.values()) - CLASS_LINES * len(lengths)


def find_family(
    program: Program,
    tensors: Mapping[str, Tensor],
    layers: Mapping[str, torch.nn.Module],
    *,
    only_mixed: bool,
) -> Family | None:
    """Return the family that shortens the program most; None if none does.

    Args:
        program: of the module.
        tensors: of the module, by name.
        layers: likewise.
        only_mixed: whether to find only lists whose elements are not all the same.
    """
    search = _Search(program, tensors, layers)
    best: Family | None = None
    left = _MOST_READ
    for spans in search.candidates(only_lists=only_mixed):
        left -= sum(span.last + 1 - span.first for span in spans)
        if left < 0:
            break
        found = search.family(spans, only_mixed=only_mixed)
        if found is not None and found.saved > (-1 if best is None else best.saved):
            best = found
    return best


@dataclass
class _Span:
    """The statements of a prefix, which may be extended by others without layers.

    Args:
        prefix: words.
        is_whole: whether no longer prefix has the same weights.
        first: the first statement that reads a weight.
        last: the last one.
        start: the first statement of the block, as far as it is decided.
        end: the one after the last.
        least_start: how far the block may begin before `start`; None if that is decided.
        most_end: likewise.
        follows: whether it begins where the span before ends.
    """

    prefix: Prefix
    is_whole: bool
    first: int
    last: int
    start: int = 0
    end: int = 0
    least_start: int | None = None
    most_end: int | None = None
    follows: bool = False


class _Search:
    def __init__(
        self, program: Program, tensors: Mapping[str, Tensor], layers: Mapping[str, torch.nn.Module]
    ) -> None:
        self.statements = program.statements
        self.layers = {n: m for n, m in layers.items() if not isinstance(m, Block | torch.nn.ModuleList)}
        self.members: dict[str, torch.nn.Module | Tensor] = {**tensors, **self.layers}
        self.reads = Reads(program)

    # --- prefixes -----------------------------------------------------------------------------------------

    def candidates(self, *, only_lists: bool) -> list[list[_Span]]:
        """Return the spans of prefixes that are equal apart from numbers, the longest first."""
        positions: dict[Prefix, list[int]] = {}
        names: dict[Prefix, set[str]] = {}
        for i, read in enumerate(self.reads.of_statement):
            for name in read:
                member = name.removeprefix("self.")
                if member == name or member not in self.members:
                    continue
                words = tuple(member.split("_"))
                for size in range(1, len(words)):
                    positions.setdefault(words[:size], []).append(i)
                    names.setdefault(words[:size], set()).add(member)
        families: dict[Prefix, list[_Span]] = {}
        longest: dict[Prefix, int] = {}
        for prefix, found in names.items():
            longest[prefix[:-1]] = max(len(found), longest.get(prefix[:-1], 0))
        for prefix, found in names.items():
            pattern = tuple(re.sub(r"\d+$", "#", word) for word in prefix)  # layer1 and layer2, too
            is_list = prefix[-1].isdecimal()
            is_whole = longest.get(prefix, 0) < len(found)
            if pattern == prefix or not (is_list or (is_whole and not only_lists)):
                continue
            if only_lists and len(prefix) < 2:
                continue
            num_layers = sum(name in self.layers for name in found)
            if num_layers >= _LEAST_LAYERS and positions[prefix][-1] - positions[prefix][0] < _MOST_LENGTH:
                span = _Span(prefix, is_whole, positions[prefix][0], positions[prefix][-1])
                families.setdefault(pattern, []).append(span)
        several = [spans for spans in families.values() if len(spans) > 1]
        return sorted(several, key=lambda spans: -sum(span.last + 1 - span.first for span in spans))

    # --- where blocks begin and end -----------------------------------------------------------------------

    def family(self, spans: list[_Span], *, only_mixed: bool) -> Family | None:
        """Return the blocks of prefixes; None if they overlap, or too few are of one structure."""
        spans = sorted(spans, key=lambda span: span.first)
        if any(a.last >= b.first for a, b in itertools.pairwise(spans)):
            return None
        self.bound(spans)
        self.decide(spans)
        elements: list[Element | None] = []
        for span in spans:
            previous = elements[-1].output if span.follows and elements and elements[-1] else None
            elements.append(self.element(span.prefix, span.start, span.end, previous))
        return _chosen(spans, elements, only_mixed=only_mixed)

    def bound(self, spans: list[_Span]) -> None:
        """Decide where spans meet, and how far the others may be extended."""
        for before, span in itertools.pairwise([None, *spans]):
            assert span is not None
            span.start, span.end = span.first, span.last + 1
            least = span.first
            lowest = 0 if before is None else before.last + 1
            while least > lowest and not self.has_layer(least - 1):
                least -= 1
            if before is None or least > before.last + 1 or span.first - least > _MOST_GAP:
                span.least_start = max(least, span.first - _MOST_EXTENSION)
            else:
                before.end = span.start = self.cut(before.start, before.last + 1, span.first)
                before.most_end = None
                span.follows = True
            most = span.end
            while most < len(self.statements) and not self.has_layer(most):
                most += 1
            span.most_end = min(most, span.end + _MOST_EXTENSION)
        for before, span in itertools.pairwise(spans):
            if not span.follows and before.most_end is not None and span.least_start is not None:
                before.most_end = min(before.most_end, span.least_start)

    def has_layer(self, i: int) -> bool:
        """Whether a statement calls a layer, or is no call of a function."""
        statement = self.statements[i]
        return not isinstance(statement, Statement) or statement.call.function.startswith("self.")

    def cut(self, start: int, least: int, most: int) -> int:
        """Return the last place between two blocks where the fewest values are handed on."""
        counts = {i: len(self.outputs(start, i)) for i in range(least, most + 1)}
        return max(counts, key=lambda i: (-counts[i], i))

    def outputs(self, start: int, end: int) -> list[str]:
        """Return results of statements that are read outside of them."""
        inside = self.reads.within(start, end)
        names = (name for s in self.statements[start:end] if isinstance(s, Statement) for name in s.outputs)
        return [name for name in names if self.reads.total[name] > inside[name]]

    def decide(self, spans: list[_Span]) -> None:
        """Decide where spans begin and end that no other span follows, or that follow none.

        They become equal to those between others; or else, all together, as long as they can with one input
        and one output.
        """
        known: dict[Hashable, int] = {}
        open_spans: dict[Hashable, list[_Span]] = {}
        for span in sorted(spans, key=lambda span: (span.most_end or -1, span.least_start or -1)):
            starts = range(span.start, (span.start if span.least_start is None else span.least_start) - 1, -1)
            ends = range(span.end if span.most_end is None else span.most_end, span.end - 1, -1)
            places = [(a, b) for a in starts for b in ends if b - a in known.values()]
            place = next((p for p in places if self.key(span.prefix, *p) in known), None)
            if place is not None:
                span.start, span.end = place
            elif span.most_end is None:
                key = self.key(span.prefix, span.start, span.end)
                known |= {} if key is None else {key: span.end - span.start}
            else:
                core = self.key(span.prefix, span.start, span.last + 1, anything=True)
                open_spans.setdefault((core, span.least_start is None), []).append(span)
        for group in open_spans.values():
            if len(group) > 1:
                self.extend(group)
            else:
                (span,) = group
                ends = range(span.end, (span.most_end or span.end) + 1)
                span.end = next((i for i in ends if len(self.outputs(span.start, i)) == 1), span.end)

    def extend(self, spans: list[_Span]) -> None:
        """Extend spans in common, first at their ends."""
        most = min((span.most_end or span.end) - span.end for span in spans)
        best = self.best(spans, [(0, i) for i in range(most + 1)])
        for span in spans:
            span.end += best[1]
        if spans[0].least_start is not None:
            most = min(
                span.start - (span.start if span.least_start is None else span.least_start) for span in spans
            )
            best = self.best(spans, [(i, 0) for i in range(most + 1)])
            for span in spans:
                span.start -= best[0]

    def best(self, spans: list[_Span], extensions: list[tuple[int, int]]) -> tuple[int, int]:
        """Return how far spans are extended before and after them: with the fewest inputs, the farthest."""
        found, fewest = extensions[0], 1_000_000
        for before, after in extensions:
            elements = [self.element(s.prefix, s.start - before, s.end + after, anything=True) for s in spans]
            keys = {None if element is None else element.structure.key for element in elements}
            first = elements[0]
            if len(keys) > 1 or first is None:
                break
            if first.output and len(first.inputs) <= fewest:
                found, fewest = (before, after), len(first.inputs)
        return found

    def key(self, prefix: Prefix, start: int, end: int, *, anything: bool = False) -> Hashable:
        element = self.element(prefix, start, end, anything=anything)
        return None if element is None else element.structure.key

    def element(
        self, prefix: Prefix, start: int, end: int, previous: str | None = None, *, anything: bool = False
    ) -> Element | None:
        """Return the block of statements; None if it cannot be one.

        Args:
            prefix: of its weights.
            start: the first statement.
            end: the one after the last.
            previous: the result of the block before, which is its first input.
            anything: whether it may have any number of results; `output` is empty if it is not one.
        """
        statements = [s for s in self.statements[start:end] if isinstance(s, Statement)]
        outputs = self.outputs(start, end)
        if len(statements) < end - start or (len(outputs) != 1 and not anything):
            return None
        inside = self.reads.within(start, end)
        made = {name for statement in statements for name in statement.outputs}
        own: dict[str, None] = {}
        outer: dict[Leaf, None] = {}
        for statement in statements:
            function = Name(statement.call.function)
            read = leaves((*statement.call.args, *statement.call.kwargs.values()))
            for leaf in (function, *read) if function.name.startswith("self.") else read:
                name = name_of(leaf).name
                member = name.removeprefix("self.")
                is_member = member != name and member in self.members
                if is_member and self.reads.total[name] == inside[name]:
                    own[member] = None
                elif leaf is function:
                    return None  # a layer that others use too, or a block
                elif name not in made and not isinstance(leaf, Device):
                    outer[leaf] = None
        inputs = [leaf for leaf in outer if isinstance(leaf, Name) or name_of(leaf) not in outer]
        if previous is not None and Name(previous) in inputs:
            inputs.sort(key=lambda leaf: leaf != Name(previous))
        if not inputs or not isinstance(inputs[0], Name) or inputs[0].name.startswith("self."):
            return None
        members = {name: self.members[name] for name in own}
        structure = structure_of(inputs, statements, list(map(Name, outputs)), members)
        output = outputs[0] if len(outputs) == 1 else ""
        num_layers = sum(name in self.layers for name in own)
        return Element(prefix, start, end, inputs, output, num_layers, structure)


# --- which blocks are worth it ----------------------------------------------------------------------------


def _chosen(spans: Sequence[_Span], elements: Sequence[Element | None], *, only_mixed: bool) -> Family | None:
    """Return the elements of which at least two have one structure; None if there are none.

    A list is taken as a whole, where at least half of its elements are such.
    """
    stems: dict[Prefix, list[tuple[_Span, Element | None]]] = {}
    for span, element in zip(spans, elements, strict=True):
        stem = span.prefix[:-1] if span.prefix[-1].isdecimal() else span.prefix
        stems.setdefault(stem, []).append((span, element))
    lists: list[list[Element]] = []
    single: list[Element] = []
    for stem, group in stems.items():
        found = [element for _, element in group if element is not None]
        numbers = [element.prefix[len(stem) :] for element in found]
        if stem and len(found) == len(group) and numbers == [(str(i),) for i in range(len(group))]:
            lists.append(found)
        else:
            single += [element for span, element in group if element is not None and span.is_whole]
    if only_mixed:
        single = []
        if all(len({element.structure.exact for element in found}) == 1 for found in lists):
            return None
    while True:
        counts = Counter(element.structure.key for element in [*itertools.chain(*lists), *single])
        repeated = {
            element.structure.key
            for element in [*itertools.chain(*lists), *single]
            if counts[element.structure.key] > 1
            and element.end - element.start >= _LEAST_STATEMENTS
            and element.num_layers >= _LEAST_LAYERS
        }
        size = len(lists) + len(single)
        lists = [
            found
            for found in lists
            if 2 * sum(element.structure.key in repeated for element in found) >= len(found)
        ]
        single = [element for element in single if element.structure.key in repeated]
        if len(lists) + len(single) == size:
            return Family(lists, single) if size else None
