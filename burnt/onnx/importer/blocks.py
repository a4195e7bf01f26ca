"""Blocks: what a program repeats, each time with weights of its own, becomes calls of one class of modules.

The twelve layers of a BERT come out of an exporter as one long list of statements. repeats.py finds the
longest sequence that follows itself, families.py what the names of the weights show. Here `Block` modules
take the layers, and a loop over them takes the place of the statements::

    for layer in self.encoder_layer:
        hidden = layer(hidden, mask)
"""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from burnt.onnx.importer.families import CLASS_LINES, Element, Family, find_family
from burnt.onnx.importer.module import Block
from burnt.onnx.importer.names import unique_kind, unique_name
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
    Size,
    Statement,
    members_read,
    name_of,
    names_in,
    replace_leaves,
)
from burnt.onnx.importer.repeats import Found, find_repeat, gather_turn, signatures, split_counted
from burnt.onnx.importer.templates import block_structure

_MOST_STATEMENTS = 50_000
_MOST_READ = 500_000  # statements of all rounds: about 20 seconds

_T = TypeVar("_T")

# What arguments of a block are called, after the arguments of functions that they become.
_ROLES = {
    ("F.scaled_dot_product_attention", 3): "mask",
    ("ops.rotate", 1): "cos",
    ("ops.rotate", 2): "sin",
}


def group_blocks(
    program: Program,
    tensors: dict[str, Tensor],
    layers: dict[str, torch.nn.Module],
    used_names: dict[str, int],
) -> None:
    """Replace what a program repeats by calls of blocks, in place.

    Args:
        program: of the module; its results stay the same to the bit.
        tensors: of the module, by name; those of blocks are moved into them.
        layers: likewise; a ``ModuleList`` for each sequence of blocks is added. Both get the order of use.
        used_names: of its variables.
    """
    grouping = _Grouping(program, dict(tensors), dict(layers), dict(used_names))
    other = grouping.copied()
    is_mixed = other.group_families(only_mixed=True)
    for one in (grouping, other) if is_mixed else (grouping,):
        one.group_repeats()
        one.group_families(only_mixed=False)
    best = min(grouping, other, key=_Grouping.lines) if is_mixed else grouping
    program.statements, program.outputs = best.program.statements, best.program.outputs
    used_names.update(best.used_names)
    used = list(dict.fromkeys(members_read(program)))
    _set(tensors, best.tensors, used)
    _set(layers, best.layers, used)
    _name_classes(best.paths)


def _set(members: dict[str, _T], found: Mapping[str, _T], order: Sequence[str]) -> None:
    """Replace members by those that were found, in the order of their use."""
    members.clear()
    members.update({name: found[name] for name in order if name in found})
    members.update({name: member for name, member in found.items() if name not in members})


@dataclass
class _Grouping:
    program: Program
    tensors: dict[str, Tensor]
    layers: dict[str, torch.nn.Module]
    used_names: dict[str, int]
    paths: list[tuple[str, str, list[Block]]] = field(default_factory=list)
    left: int = _MOST_READ

    def copied(self) -> _Grouping:
        """Return a copy that can be grouped in another way, of the same tensors and layers."""
        program = Program(self.program.inputs, list(self.program.outputs))
        program.statements = [
            copy.deepcopy(s) if isinstance(s, Define) else s for s in self.program.statements
        ]
        return _Grouping(program, dict(self.tensors), dict(self.layers), dict(self.used_names))

    def lines(self) -> int:
        """Return about how many lines of Python the module takes."""
        classes: dict[Hashable, int] = {}
        for block in itertools.chain(*(found for _, _, found in self.paths)):
            structure = block_structure(block)
            lines = CLASS_LINES + len(block.program.statements) + len(block._modules)
            classes[structure.members, structure.key] = lines
        return len(self.program.statements) + len(self.layers) + sum(classes.values())

    def reads_again(self) -> bool:
        """Whether the program may be read in another round."""
        size = len(self.program.statements)
        self.left -= size
        return self.left >= 0 and size <= _MOST_STATEMENTS

    # --- repeats ------------------------------------------------------------------------------------------

    def group_repeats(self) -> None:
        """Replace sequences that follow themselves."""
        known: dict[int, tuple[object, Hashable]] = {}
        while self.reads_again():
            ids = signatures(self.program, self.tensors, self.layers, known)
            found = find_repeat(self.program, ids, self.layers)
            if found is None:
                return
            if not gather_turn(self.program, ids, found):
                self.replace_repeat(found)

    def replace_repeat(self, found: Found) -> None:
        """Put calls of blocks in the place of a repetition."""
        program = self.program
        span = slice(found.start, found.start + found.period * found.count)
        statements = [s for s in program.statements[span] if isinstance(s, Statement)]
        used: dict[str, int] = {}
        members = [unique_name(member, used) for member in found.members]
        # In the last turn every value that comes from the turn before has a name of its own.
        body = _body(
            statements[-found.period :],
            {names[-1]: member for names, member in zip(found.own, members, strict=True)},
            [one[-1] for one in found.arguments],
            ["hidden" if i in found.carried else _hint(*one) for i, one in enumerate(found.arguments)],
            found.outputs,
        )
        blocks = []
        for k in range(1 if found.is_single else found.count):
            own = {
                names[k].removeprefix("self."): member
                for names, member in zip(found.own, members, strict=True)
            }
            blocks.append(self.block(body, own))
        hint = "block" if found.is_single else found.path or "blocks"
        name = self.add(hint, blocks[0] if found.is_single else torch.nn.ModuleList(blocks))
        self.paths.append((name, "", blocks))
        module = f"self.{name}"

        def made(k: int) -> tuple[str, ...]:
            return tuple(statements[k * found.period + i].outputs[j] for i, j in found.outputs)

        if not found.is_chain:
            program.statements[span] = [
                Statement(
                    made(k),
                    Call(
                        module if found.is_single else f"{module}[{k}]",
                        tuple(one[k] for one in found.arguments),
                    ),
                )
                for k in range(found.count)
            ]
            return
        carried = len(found.carried)
        repeat = Repeat(
            made(found.count - 1),
            module,
            tuple(one[0] for one in found.arguments[:carried]),
            tuple(one[0] for one in found.arguments[carried:]),
            found.count if found.is_single else None,
        )
        program.statements[span] = [repeat]
        _name_carried(program, found.start, repeat, self.used_names)

    # --- families -----------------------------------------------------------------------------------------

    def group_families(self, *, only_mixed: bool) -> bool:
        """Replace blocks that the names of their weights show; return whether there are any."""
        is_found = False
        while self.reads_again():
            found = find_family(self.program, self.tensors, self.layers, only_mixed=only_mixed)
            if found is None:
                break
            self.replace_family(found)
            is_found = True
        return is_found

    def replace_family(self, family: Family) -> None:
        """Put calls of blocks, and loops over lists of them, in the place of a family."""
        blocks = self.family_blocks(family)
        reads = Reads(self.program)
        chains = {id(found): _is_chain(found, reads) for found in family.lists}
        replaced: list[tuple[int, int, Statement | Repeat]] = []
        for found in family.lists:
            name = self.add(
                "_".join(found[0].prefix[:-1]), torch.nn.ModuleList(blocks[e.start] for e in found)
            )
            first, last = found[0], found[-1]
            if chains[id(found)]:
                repeat = Repeat(
                    (last.output,), f"self.{name}", tuple(first.inputs[:1]), tuple(first.inputs[1:])
                )
                replaced.append((first.start, last.end, repeat))
            else:
                for i, element in enumerate(found):
                    call = Call(f"self.{name}[{i}]", tuple(element.inputs))
                    replaced.append((element.start, element.end, Statement((element.output,), call)))
        for element in family.single:
            name = self.add("_".join(element.prefix), blocks[element.start])
            call = Call(f"self.{name}", tuple(element.inputs))
            replaced.append((element.start, element.end, Statement((element.output,), call)))
        statements = self.program.statements
        for start, end, statement in sorted(replaced, key=lambda one: -one[0]):
            statements[start:end] = [statement]
        for _, _, replacement in replaced:
            if isinstance(replacement, Repeat):
                at, repeat = next(
                    (i, other)
                    for i, other in enumerate(statements)
                    if isinstance(other, Repeat) and other.modules == replacement.modules
                )
                _name_carried(self.program, at, repeat, self.used_names)

    def family_blocks(self, family: Family) -> dict[int, Block]:
        """Return the blocks of a family, by the number of their first statement."""
        groups: dict[Hashable, list[Element]] = {}
        for element in family.elements:
            groups.setdefault(element.structure.key, []).append(element)
        heads = {id(found[0]) for found in family.lists}
        words = [re.sub(r"\d+$", "", word) for word in family.elements[0].prefix if not word.isdecimal()]
        blocks = {}
        for group in groups.values():
            members = _member_names_of(group)
            for element in group:
                own = dict(zip(element.members, members, strict=True))
                statements = self.program.statements[element.start : element.end]
                turn = [s for s in statements if isinstance(s, Statement)]
                place = next(
                    (i, j)
                    for i, s in enumerate(turn)
                    for j, name in enumerate(s.outputs)
                    if name == element.output
                )
                renamed = {f"self.{name}": member for name, member in own.items()}
                hints = ["hidden", *map(_hint, element.inputs[1:])]
                blocks[element.start] = self.block(_body(turn, renamed, element.inputs, hints, [place]), own)
            is_first = len(groups) > 1 and all(id(element) in heads for element in group)
            path = "_".join(words)
            self.paths.append((path, "First" if is_first else "", [blocks[e.start] for e in group]))
        return blocks

    # --- modules ------------------------------------------------------------------------------------------

    def block(self, program: Program, own: Mapping[str, str]) -> Block:
        """Return a block that takes layers and tensors, given the names that they have in it."""
        return Block(
            program,
            {member: self.tensors.pop(name) for name, member in own.items() if name in self.tensors},
            {member: self.layers.pop(name) for name, member in own.items() if name in self.layers},
        )

    def add(self, hint: str, module: torch.nn.Module) -> str:
        """Add a block or a list of blocks to the module, and return its name."""
        name = unique_name(hint, dict.fromkeys((*self.tensors, *self.layers), 1))
        self.layers[name] = module
        return name


def _is_chain(elements: Sequence[Element], reads: Reads) -> bool:
    """Whether a loop can call the blocks of a list: each hands on its result, and nothing else is read."""
    for before, element in itertools.pairwise(elements):
        others = reads.total[before.output] - reads.within(before.start, element.end)[before.output]
        if element.start != before.end or element.inputs[0] != Name(before.output) or others:
            return False
        if element.inputs[1:] != elements[0].inputs[1:]:
            return False
    return len(elements) > 1


def _member_names_of(group: Sequence[Element]) -> list[str]:
    """Return the names of layers and tensors in blocks of one structure: what follows their prefix."""
    used: dict[str, int] = {}
    first = group[0]
    stem = "_".join(first.prefix) + "_"
    plain = [
        name.removeprefix(stem) if name.startswith(stem) else re.sub(r"_\d+$", "", name)
        for name in first.members
    ]
    plain = [f"{first.prefix[-1]}_{name}" if name[:1].isdigit() else name for name in plain]
    return [unique_name(name, used) for name in plain]


def _hint(*turns: Leaf) -> str:
    """Return what an argument is called where nothing says it better, from what each of the blocks gets."""
    if isinstance(turns[0], Size):
        return "batch_size" if turns[0].axis == 0 else "size"
    names = tuple(name_of(one).name for one in turns)
    split = split_counted(names)  # past_0_key and past_1_key are past_key in the block
    if split is not None and split[2]:
        return f"{split[0]}_{split[2]}"
    return re.sub(r"_\d+$", "", names[0].removeprefix("self."))


def _body(
    turn: Sequence[Statement],
    members: Mapping[str, str],
    arguments: Sequence[Leaf],
    hints: Sequence[str],
    results: Sequence[tuple[int, int]],
) -> Program:
    """Return the program of a block.

    Args:
        turn: its statements.
        members: the names in the block of its layers and tensors, which are ``self.name``.
        arguments: what it reads from around it.
        hints: what these are called, unless their use says it better.
        results: the statement, and which of its results.
    """
    renamed: dict[Expr, Expr] = {Name(name): Name(f"self.{member}") for name, member in members.items()}
    roles: dict[Expr, str] = {
        argument: role
        for statement in turn
        for (function, position), role in _ROLES.items()
        if statement.call.function == function
        for argument in statement.call.args[position : position + 1]
        if isinstance(argument, Name)
    }
    used: dict[str, int] = {}
    inputs = []
    for argument, hint in zip(arguments, hints, strict=True):
        inputs.append(
            unique_name(hint if hint in ("hidden", "size", "batch_size") else roles.get(argument, hint), used)
        )
        renamed[argument] = Name(inputs[-1])
    device = Device(Name(inputs[0]))

    def leaf(one: Leaf) -> Expr:
        if one in renamed:
            return renamed[one]
        base = renamed.get(name_of(one))
        if isinstance(one, Device):
            return Device(base) if isinstance(base, Name) else device
        assert isinstance(one, Size)
        assert isinstance(base, Name)
        return Size(base, one.axis)

    body: list[Statement | Define | Repeat] = []
    for statement in turn:
        call = statement.call
        function = renamed.get(Name(call.function), Name(call.function))
        assert isinstance(function, Name)
        args = replace_leaves(call.args, leaf)
        kwargs = {key: replace_leaves(value, leaf) for key, value in call.kwargs.items()}
        outputs = tuple(unique_name(re.sub(r"_\d+$", "", name), used) for name in statement.outputs)
        renamed |= {Name(old): Name(new) for old, new in zip(statement.outputs, outputs, strict=True)}
        assert isinstance(args, tuple)
        body.append(Statement(outputs, Call(function.name, args, kwargs)))
    return Program(inputs, [renamed[Name(turn[i].outputs[j])] for i, j in results], body)


def _name_classes(paths: Sequence[tuple[str, str, list[Block]]]) -> None:
    """Name the classes of blocks after the ends of the names of their lists, as long as they have to differ.

    ``encoder_layers`` holds ``Layer``, or ``EncoderLayer`` if there is ``decoder_layers`` too. Numbers do not
    count: ``stages_0_layers`` and ``stages_1_layers`` both hold ``Layer``.

    Args:
        paths: the name of each list, what the name of the class begins with, and the blocks.
    """
    plural: dict[str, tuple[str, ...]] = {}
    singular: dict[str, tuple[str, ...]] = {}
    for path, _, _ in paths:
        words = [word for word in path.split("_") if word and not word.isdecimal()] or ["blocks"]
        plural[path] = tuple(words)
        singular[path] = *words[:-1], re.sub(r"(?<=[a-z]{2})s$", "", words[-1])
    used: set[str] = set()
    kinds: dict[tuple[str, tuple[str, ...]], str] = {}
    for path, first, blocks in paths:
        own = singular[path]
        # A list may have the name for itself: ``layers`` beside ``downsampling_layer``.
        forms = singular if plural[path] == own else plural
        others = [forms[other] for other in singular if singular[other] != own]
        size = next(
            (
                n
                for n in range(1, len(own))
                if len(own[-n]) > 1 and all(forms[path][-n:] != other[-n:] for other in others)
            ),
            len(own),
        )
        name = "".join(word[:1].upper() + word[1:] for word in own[-size:])
        name = first + (name if name.isidentifier() and len(name) > 1 else f"Block{name}")
        kind = kinds.get((first, own)) or unique_kind(name, used)
        kinds[first, own] = kind
        for block in blocks:
            block.kind = kind


def _name_carried(program: Program, at: int, repeat: Repeat, used_names: dict[str, int]) -> None:
    """Give what a loop hands on one name: before it where nothing reads the old one later, and after it."""
    before: dict[str, str] = {}
    after: dict[str, str] = {}
    given = set(names_in(repeat.initial))
    later = set(names_in((*repeat.args, *program.outputs)))
    for statement in program.statements[at + 1 :]:
        later |= given & statement.reads.keys()
    for initial, output in zip(repeat.initial, repeat.outputs, strict=True):
        name = unique_name("hidden", used_names)
        after[output] = name
        is_result = isinstance(initial, Name) and initial.name not in (*program.inputs, *before)
        if isinstance(initial, Name) and is_result and initial.name not in later and "." not in initial.name:
            before[initial.name] = name
    program.rename(before | after)
