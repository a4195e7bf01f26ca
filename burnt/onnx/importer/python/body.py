"""The body of a function: a program's statements as lines of Python, with short results written in place."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from burnt.onnx.importer.paths import unique_name
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
    name_of,
    names_in,
    parts,
    replace_leaves,
)
from burnt.onnx.importer.python.expressions import METHODS, Code, bracketed, broken, code_of, is_index
from burnt.onnx.importer.python.kinds import Kinds, is_tensor, kind_of
from burnt.onnx.importer.python.variables import is_named_after_argument, plain_name, variable_name

_MOST_CALLS = 4  # of a line into which results are written in place
_MOST_DEPTH = 2
_MOST_ROUNDS = 6
_TARGET = 14  # characters of a name and an assignment
_FAR = 50  # lines over which an index is moved
_MOST_REUSED = 64  # numbered names of one word that are tried before a new one is given


@dataclass(frozen=True)
class _Inlined(Call):
    """A call that is written in place of its result."""

    hint: str = ""  # the name of the result in the program


@dataclass
class _Line:
    """A statement: of a call, a nested function, a loop, or ``return``."""

    outputs: tuple[str, ...] = ()  # names of its results in the program
    tree: Any = None  # the call with what is written in place, or the value that is returned
    statement: Define | Repeat | None = None  # a nested function or a loop
    is_return: bool = False

    def reads(self) -> Iterator[str]:
        """Yield the names of variables that it reads, as often as it does."""
        if self.statement is not None:
            yield from self.statement.reads.elements()
        else:
            yield from (event for event in _events(self.tree) if event)


def body_lines(
    program: Program,
    kinds: Kinds,
    width: int,
    names: Mapping[str, str],
    axes: Mapping[str, tuple[str, ...]] | None = None,
    arguments: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[str]:
    """Yield the lines of a program's body, with ``return``, none longer than `width` where it can be.

    `names` are the names of its inputs, `axes` what their axes are called, and `arguments` the names of the
    arguments of blocks and of lists of blocks that it calls.
    """
    program, sizes = with_named_sizes(arranged(program), names, axes or {})
    more = [name for found in sizes.values() for name in found]
    for value, found in sizes.items():
        yield f"{', '.join(found)} = {value}"
    inputs = {**names, **dict(zip(more, more, strict=True))}
    body = _Body({**kinds, **dict.fromkeys(more, "int")}, width, arguments or {})
    yield from body.function(program, inputs, {}, has_docstring=True)


@dataclass
class _Body:
    kinds: Kinds
    width: int
    arguments: Mapping[str, Sequence[str]] = field(default_factory=dict)
    apart: set[str] = field(default_factory=set)  # results that are not written in place
    too_long: set[str] = field(default_factory=set)  # those to be added

    def function(
        self,
        program: Program,
        inputs: Mapping[str, str],
        outer: Mapping[str, str],
        *,
        has_docstring: bool = False,
    ) -> list[str]:
        """Return the lines of a function, with single blank lines around nested functions.

        Where a line turns out to be too long, it is written again with a result less in place.
        """
        for _ in range(_MOST_ROUNDS):
            lines = self.written_in_place(program)
            names = _Names(lines, self.kinds, inputs, outer, self.arguments)
            self.too_long = set()
            texts: list[str] = []
            for line in lines:
                names.add(line)
                for text in self.printed(line, names):
                    if text or (texts[-1] if texts else has_docstring):
                        texts.append(text)
            if not self.too_long:
                break
            self.apart |= self.too_long
        return texts

    def printed(self, line: _Line, names: _Names) -> Iterator[str]:
        if isinstance(line.statement, Define):
            yield from self.defined(line.statement, names)
        elif isinstance(line.statement, Repeat):
            yield from self.repeated(line.statement, names)
        elif line.is_return:
            code = code_of(line.tree, names.before, self.kinds)
            if isinstance(line.tree, list):
                parts = [code_of(part, names.before, self.kinds) for part in line.tree]
                code = bracketed("(", parts, ")", is_display=True)
                code = replace(code, text=code.text[1:-1] if parts else code.text)
            self.check_length(line.tree, len("return ") + len(code.text), names)
            yield from broken(code, self.width, "return ")
        else:
            code = code_of(line.tree, names.before, self.kinds)
            targets = ", ".join(names.of[name] for name in line.outputs)
            self.check_length(line.tree, len(f"{targets} = {code.text}"), names)
            yield from self.assigned(line.outputs, code, names)

    def check_length(self, tree: Any, length: int, names: _Names) -> None:
        """Note what is not to be written in place, where a line is too long.

        That is a call other than a method whose line and the rest both fit, if there is one.
        """
        if length <= self.width:
            return
        parts = list(_evaluated_first(tree))
        sizes = [len(code_of(part, names.before, self.kinds).text) for part in parts]
        fitting = [
            (part.function.removeprefix("torch.") not in METHODS, size, part.hint)
            for part, size in zip(parts, sizes, strict=True)
            if size + _TARGET <= self.width and length - size + _TARGET <= self.width
        ]
        if parts:
            self.too_long.add(max(fitting)[2] if fitting else parts[0].hint)

    def defined(self, define: Define, names: _Names) -> Iterator[str]:
        """Yield a nested function."""
        program = define.program
        free = {name: names.of[name] for name in program.free_names() if name in names.of}
        inputs: dict[str, str] = {}
        for name in program.inputs:
            inputs[name] = _unused(plain_name(name), {*free.values(), *inputs.values()})
        inner = _Body(self.kinds, self.width - 4)
        yield ""
        head = bracketed(f"{names.of[define.name]}(", list(map(Code, inputs.values())), ")")
        yield from broken(head, self.width, "def ", ":")
        body = inner.function(program, inputs, free)
        yield from (f"    {text}" if text else text for text in body)
        yield ""

    def assigned(self, outputs: tuple[str, ...], code: Code, names: _Names) -> Iterator[str]:
        """Yield an assignment, with a line for each target where there are too many for one."""
        targets = [names.of[name] for name in outputs]
        prefix = ", ".join(targets) + (" = " if targets else "")
        if len(prefix) + len(code.head or code.text) <= self.width or len(targets) < 2:
            yield from broken(code, self.width, prefix)
            return
        yield "("
        yield from (f"    {target}," for target in targets)
        yield from broken(code, self.width, ") = ")

    def repeated(self, repeat: Repeat, names: _Names) -> Iterator[str]:
        """Yield a loop over the blocks of a list."""
        outputs = [names.of[name] for name in repeat.outputs]
        for output, initial in zip(outputs, repeat.initial, strict=True):
            code = code_of(initial, names.before, self.kinds)
            if code.text != output:
                yield f"{output} = {code.text}"
        if repeat.count is None:
            block = _unused("block", {*names.of.values()})
            yield f"for {block} in {repeat.modules}:"
        else:
            block = repeat.modules
            yield f"for _ in range({repeat.count}):"
        results = {f"<{i}>": output for i, output in enumerate(outputs)}
        call = Call(block, (*map(Name, results), *repeat.args))
        code = code_of(call, {**names.before, **results}, self.kinds)
        yield from (f"    {text}" for text in broken(code, self.width - 4, f"{', '.join(outputs)} = "))

    # --- results that are written in place ----------------------------------------------------------------

    def written_in_place(self, program: Program) -> list[_Line]:
        """Return the lines of a program, with results in place where only the next line reads them, once."""
        reads = Reads(program).total
        lines: list[_Line] = []
        for statement in program.statements:
            if isinstance(statement, Statement):
                lines.append(_Line(statement.outputs, self.absorb(lines, statement.call, reads)))
            else:
                lines.append(_Line(statement.outputs, None, statement))
        outputs = program.outputs
        tree = self.absorb(lines, outputs[0] if len(outputs) == 1 else outputs, reads)
        lines.append(_Line((), tree, is_return=True))
        return lines

    def absorb(self, lines: list[_Line], tree: Any, reads: Counter[str]) -> Any:
        """Return an expression with results of the last lines in place, and remove these lines.

        Indices are removed from anywhere: ``x[:, 0]`` is the same wherever it is computed.
        """
        while lines:
            once = {name for name in _events(tree) if reads[name] == 1} - self.apart
            places = [
                i
                for i in range(len(lines) - 1, max(-1, len(lines) - 1 - _FAR), -1)
                if len(lines[i].outputs) == 1
                and lines[i].outputs[0] in once
                and isinstance(lines[i].tree, Call)
                and (i == len(lines) - 1 or _is_index(lines[i].tree))
            ]
            for i in places:
                found = self.with_line(tree, lines[i])
                if found is not None:
                    del lines[i]
                    tree = found
                    break
            else:
                break
        return tree

    def with_line(self, tree: Any, line: _Line) -> Any:
        """Return an expression with the result of a line in place; None where it is not to be there."""
        name, call = line.outputs[0], line.tree
        if not _is_index(call) and not _is_read_first(tree, name):
            return None
        inlined = _Inlined(call.function, call.args, call.kwargs, name)
        found = replace_leaves(tree, lambda leaf: inlined if leaf == Name(name) else leaf)
        if name in _events(found):  # its size or its device is read
            return None
        is_whole = isinstance(tree, Name)
        if not is_whole and (list(_events(found)).count("") > _MOST_CALLS or _depth(found) > _MOST_DEPTH):
            return None
        return found


def _is_index(tree: Any) -> bool:
    """Whether an expression is written as ``x[:, 0]``."""
    return isinstance(tree, Call) and bool(tree.args) and isinstance(tree.args[0], Name) and is_index(tree)


def _evaluated_first(tree: Any) -> Iterator[_Inlined]:
    """Yield the calls in place of results that are evaluated before all others, from the outside."""
    part = next(_inlined(tree), None)
    while part is not None:
        yield part
        part = next(_inlined(part), None)


def _inlined(tree: Any) -> Iterator[_Inlined]:
    """Yield the outermost calls in an expression that are written in place of results."""
    for part in parts(tree):
        yield from [part] if isinstance(part, _Inlined) else _inlined(part)


def _events(tree: Any) -> Iterator[str]:
    """Yield what happens when an expression is evaluated: the names that are read, and "" for a call.

    Indices are not calls, as nothing depends on when they are evaluated.
    """
    if isinstance(tree, Name | Size | Device):
        yield name_of(tree).name
    for part in parts(tree):
        yield from _events(part)
    if isinstance(tree, Call) and not _is_index(tree):
        yield ""


def _is_read_first(tree: Any, name: str) -> bool:
    """Whether an expression reads a name before it calls anything."""
    for event in _events(tree):
        if event in (name, ""):
            return event == name
    return False


_FLAT = {
    *("torch.add", "torch.sub", "torch.mul", "torch.div", "torch.matmul", "torch.neg", "torch.pow"),
    *("torch.eq", "torch.lt", "torch.le", "torch.gt", "torch.ge", "ops.slice_"),
    *("torch.logical_and", "torch.logical_or", "torch.logical_not"),
}


def _depth(tree: Any) -> int:
    """Return how deep calls are nested; operators and the objects of methods are not."""
    inner = list(map(_depth, parts(tree)))
    if not isinstance(tree, Call):
        return max(inner, default=0)
    if tree.function in _FLAT:
        return max(inner)
    if tree.function.removeprefix("torch.") in METHODS:
        return max(inner[0], 1 + max(inner[1:], default=0))
    return 1 + max(inner, default=0)


def _unused(name: str, used: Container[str]) -> str:
    """Return a name that is not used, with a number at its end if need be."""
    found, number = name, 1
    while found in used:
        number += 1
        found = f"{name}_{number}"
    return found


# --- variables --------------------------------------------------------------------------------------------


class _Names:
    """The names of variables, given line after line: what is not read any more leaves its name to others.

    `inputs` has the names of the function's arguments, `outer` the names of variables around it.
    """

    def __init__(
        self,
        lines: list[_Line],
        kinds: Kinds,
        inputs: Mapping[str, str],
        outer: Mapping[str, str],
        arguments: Mapping[str, Sequence[str]],
    ) -> None:
        self.kinds = kinds
        self.of = {**outer, **inputs}
        self.before: dict[str, str] = {}
        self.plain = {name: plain_name(new) for name, new in inputs.items()}
        self.position = -1
        self.wanted = _wanted(lines, arguments)
        self.returned = set(_events(lines[-1].tree))
        self.last_read = {name: i for i, line in enumerate(lines) for name in line.reads()}
        self.kept = set(outer)  # what nested functions read, when they are called
        for line in lines:
            if isinstance(line.statement, Define):
                self.kept |= {line.statement.name, *line.statement.program.free_names()}
        self.holder = {new: old for old, new in self.of.items()}
        self.numbers: Counter[str] = Counter()  # the largest one after each plain name

    def add(self, line: _Line) -> None:
        """Name the results of the next line; `before` has the names that it reads."""
        self.position += 1
        self.before = {name: self.of[name] for name in line.reads() if name in self.of}
        for i, output in enumerate(line.outputs):
            if line.statement is None and len(line.outputs) > 1 and output not in self.last_read:
                self.of[output] = "_"
            elif isinstance(line.statement, Repeat):
                repeat = line.statement
                first = repeat.initial[i]
                initial = {self.before.get(name) for name in names_in(repeat.initial)}
                args = {self.before.get(name) for name in names_in(repeat.args)}
                own = {self.before.get(first.name) if isinstance(first, Name) else None}
                self.name(output, "hidden", args | (initial - own), line)
            elif isinstance(line.statement, Define):
                self.name(output, plain_name(output), set(), line)
            else:
                plain = self.wanted.get(output) or variable_name(line.tree, output, self.plain, self.kinds)
                if plain == "weights" and output in self.returned:
                    plain = "probabilities"
                self.name(output, plain, set(), line)

    def name(self, output: str, plain: str, refused: set[str | None], line: _Line) -> None:
        """Give a result its name."""
        others = {self.of[name] for name in line.outputs if name in self.of and name != output}
        taken = refused | others
        name, number = plain, 1
        while name in taken or not self.is_free(name, output):
            number += 1
            if number > _MOST_REUSED:
                number = max(number, self.numbers[plain] + 1)
            name = f"{plain}_{number}"
        self.numbers[plain] = max(number, self.numbers[plain])
        self.of[output], self.plain[output] = name, plain
        self.holder[name] = output

    def is_free(self, name: str, output: str) -> bool:
        """Whether a result may have a name: nobody has it, or a tensor that is not read after this line."""
        holder = self.holder.get(name)
        if holder is None or (holder == output and self.of[holder] == name):
            return True
        if holder in self.kept or output in self.kept:
            return False
        both = kind_of(Name(holder), self.kinds), kind_of(Name(output), self.kinds)
        return all(map(is_tensor, both)) and self.last_read.get(holder, -1) <= self.position


_ROLES: dict[str, tuple[str, ...]] = {
    "F.scaled_dot_product_attention": ("query", "key", "value", "mask"),
    "torch.cos": ("angles",),
    "torch.sin": ("angles",),
    "ops.rotate": ("", "cos", "sin"),
}
"""What arguments of functions are called."""


def _wanted(lines: list[_Line], arguments: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return better names of variables by what reads them."""
    wanted: dict[str, str] = {}
    last_read = {name: i for i, line in enumerate(lines) for name in line.reads()}
    for i in reversed(range(len(lines))):
        line = lines[i]
        if isinstance(line.statement, Repeat):
            repeat = line.statement
            for initial, output in zip(repeat.initial, repeat.outputs, strict=True):
                if isinstance(initial, Name) and last_read[initial.name] == i:
                    _want(initial, "hidden", wanted)
                wanted[output] = "hidden"
            given = arguments.get(repeat.modules.partition("[")[0]) or arguments.get(repeat.modules, ())
            _want_roles(repeat.args, given[len(repeat.initial) :], wanted)
        if len(line.outputs) == 1 and wanted.get(line.outputs[0]):
            _want(line.tree, wanted[line.outputs[0]], wanted)
        for call in _calls(line.tree):
            _want_roles(call.args, _ROLES.get(call.function, ()), wanted)
            _want_roles(call.args, arguments.get(call.function, ()), wanted)
            if re.search("position_?emb|embed_positions|wpe", call.function):
                _want_roles(call.args, ("positions",), wanted)
    return wanted


def _want_roles(args: Sequence[Any], names: Sequence[str], wanted: dict[str, str]) -> None:
    """Name arguments after what a function or a block calls them, where that is a role."""
    for arg, name in zip(args, names, strict=False):
        if name in ("query", "key", "value", "mask", "cos", "sin", "angles", "positions"):
            _want(arg, name, wanted)


def _want(tree: Any, name: str, wanted: dict[str, str]) -> None:
    """Name the variable that an expression rearranges or scales; "" where two names fit."""
    while isinstance(tree, Call):
        parts = tree.args[0] if tree.function == "torch.cat" else ()
        is_scaled = tree.function in ("torch.mul", "torch.div") and isinstance(tree.args[1], int | float)
        if isinstance(parts, list) and len({str(part) for part in parts}) == 1:
            tree = parts[0]
        elif is_named_after_argument(tree) or is_scaled:
            tree = tree.args[0]
        else:
            return
    if isinstance(tree, Name) and not tree.name.startswith("self."):
        wanted[tree.name] = name if wanted.get(tree.name, name) == name else ""


def _calls(tree: Any) -> Iterator[Call]:
    if isinstance(tree, Call):
        yield tree
    for part in parts(tree):
        yield from _calls(part)


# Statements in the order in which one would write them, before they are printed. What only selects or
# rearranges elements may be computed anywhere between what makes its argument and what reads it: nothing
# else changes, to the bit.

_REARRANGING = {
    f"torch.{name}"
    for name in ("flatten", "permute", "reshape", "squeeze", "t", "transpose", "unflatten", "unsqueeze")
}


_LONGEST_WAIT = 200  # statements over which one is moved


def arranged(program: Program) -> Program:
    """Return a program where what rearranges a result that nothing else reads follows directly after it."""
    reads = Reads(program).total
    ordered: list[Statement | Define | Repeat] = []
    place: dict[str, Statement] = {}
    for statement in program.statements:
        at = len(ordered)
        if isinstance(statement, Statement) and len(statement.outputs) == 1:
            call = statement.call
            source = call.args[0] if call.args else None
            if call.function in _REARRANGING and isinstance(source, Name) and source.name in place:
                maker = place[source.name]
                before = next(
                    (i + 1 for i in range(at - 1, max(-1, at - _LONGEST_WAIT), -1) if ordered[i] is maker), at
                )
                made = {name for other in ordered[before:] for name in other.outputs}
                if reads[source.name] == 1 and made.isdisjoint(statement.reads):
                    at = before
            place[statement.outputs[0]] = statement
        ordered.insert(at, statement)
    return Program(list(program.inputs), list(program.outputs), ordered)


def with_named_sizes(
    program: Program, names: Mapping[str, str], axes: Mapping[str, tuple[str, ...]]
) -> tuple[Program, dict[str, list[str]]]:
    """Return a program that reads variables for the sizes of arguments that it reads several times.

    The names of these variables are returned by the code of their values, ``x.shape[:2]``.
    """
    reads: Counter[Size] = Counter()

    def count(one: Leaf) -> Expr:
        if isinstance(one, Size) and one.axis is not None:
            reads[one] += 1
        return one

    program.replaced(count)
    variables: dict[Size, str] = {}
    assigned: dict[str, list[str]] = {}
    used = dict.fromkeys((*names.values(), *program.free_names()), 1)
    for tensor in program.inputs:
        sizes = sorted((size for size in reads if size.tensor.name == tensor), key=lambda one: one.axis or 0)
        if not any(reads[size] > 1 for size in sizes) or not all(_axis(size, axes) for size in sizes):
            continue
        new = [unique_name(_axis(size, axes), used) for size in sizes]
        variables.update(zip(sizes, new, strict=True))
        found, shape = [size.axis for size in sizes], f"{names[tensor]}.shape"
        if found == list(range(len(found))) and len(found) > 1:
            assigned[shape if len(found) == len(axes[tensor]) else f"{shape}[:{len(found)}]"] = new
        else:
            assigned |= {f"{shape}[{axis}]": [name] for axis, name in zip(found, new, strict=True)}
    if not variables:
        return program, {}
    return program.replaced(
        lambda one: Name(variables[one]) if isinstance(one, Size) and one in variables else one
    ), assigned


def _axis(size: Size, axes: Mapping[str, tuple[str, ...]]) -> str:
    names = axes.get(size.tensor.name, ())
    return names[size.axis] if size.axis is not None and 0 <= size.axis < len(names) else ""
