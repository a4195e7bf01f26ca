"""The body of a function: a program's statements as lines of Python, with short results written in place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from burnt.onnx.importer.kinds import Kinds, is_tensor, kind_of
from burnt.onnx.importer.names import is_named_after_argument, plain_name, variable_name
from burnt.onnx.importer.printing import METHODS, Code, bracketed, broken, code_of
from burnt.onnx.importer.program import (
    Arithmetic,
    Call,
    Define,
    Device,
    Name,
    Program,
    Repeat,
    Size,
    Statement,
    names_in,
    names_read,
)

__all__ = ["body_lines"]

_SHORT = 88
_MOST_CALLS = 4  # of a line into which results are written in place
_MOST_DEPTH = 2
_MOST_REUSED = 64  # numbered names of one word that are tried before a new one is given


@dataclass(frozen=True)
class _Inlined(Call):
    """A call that is written in place of its result.

    Args:
        hint: the name of the result in the program.
    """

    hint: str = ""


@dataclass
class _Line:
    """A statement: of a call, a nested function, a loop, or ``return``.

    Args:
        outputs: names of its results in the program.
        tree: the call with what is written in place, or the value that is returned.
        statement: a nested function or a loop.
    """

    outputs: tuple[str, ...] = ()
    tree: Any = None
    statement: Define | Repeat | None = None
    is_return: bool = False

    def reads(self) -> Iterator[str]:
        """Yield the names of variables that it reads, as often as it does."""
        if isinstance(self.statement, Define):
            yield from self.statement.program.free_names()
        elif isinstance(self.statement, Repeat):
            yield from names_read(self.statement)
        else:
            yield from (event for event in _events(self.tree) if event)


def body_lines(program: Program, kinds: Kinds, width: int, indent: int) -> Iterator[str]:
    """Yield the lines of a program's body, with ``return``.

    Args:
        program: is not changed; its variables get other names.
        kinds: of its names.
        width: how long a line may be.
        indent: how far the lines are indented by the caller.
    """
    yield from _Body(kinds, width - indent, _SHORT - indent).lines(program, {})


@dataclass
class _Body:
    kinds: Kinds
    width: int
    short: int

    def lines(self, program: Program, outer: Mapping[str, str]) -> Iterator[str]:
        """Yield the lines of a function.

        Args:
            program: of the function.
            outer: the names of variables around it that it reads.
        """
        lines = self.written_in_place(program)
        names = _Names(lines, self.kinds, {name: name for name in program.inputs}, outer)
        yield from self.function(lines, names, has_docstring=True)

    def function(self, lines: list[_Line], names: _Names, *, has_docstring: bool = False) -> Iterator[str]:
        """Yield the lines of a function, with single blank lines around nested functions."""
        blank = not has_docstring
        for line in lines:
            names.add(line)
            for text in self.printed(line, names):
                if text or not blank:
                    yield text
                blank = not text

    def printed(self, line: _Line, names: _Names) -> Iterator[str]:
        statement = line.statement
        if isinstance(statement, Define):
            yield from self.defined(statement, names)
        elif isinstance(statement, Repeat):
            yield from self.repeated(statement, names)
        else:
            code = code_of(line.tree, names.before, self.kinds)
            if line.is_return:
                if isinstance(line.tree, list):
                    parts = [code_of(part, names.before, self.kinds) for part in line.tree]
                    code = bracketed("(", parts, ")", is_display=True)
                    code = replace(code, text=code.text[1:-1] if parts else code.text)
                yield from broken(code, self.width, "return ")
            else:
                yield from self.assigned(line.outputs, code, names)

    def defined(self, define: Define, names: _Names) -> Iterator[str]:
        """Yield a nested function."""
        program = define.program
        free = {name: names.of[name] for name in program.free_names() if name in names.of}
        inputs: dict[str, str] = {}
        for name in program.inputs:
            inputs[name] = _unused(plain_name(name), {*free.values(), *inputs.values()})
        inner = _Body(self.kinds, self.width - 4, self.short - 4)
        lines = inner.written_in_place(program)
        yield ""
        head = bracketed(f"{names.of[define.name]}(", list(map(Code, inputs.values())), ")")
        yield from broken(head, self.width, "def ", ":")
        body = inner.function(lines, _Names(lines, self.kinds, inputs, free))
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
        reads: Counter[str] = Counter(names_in(tuple(program.outputs)))
        for statement in program.statements:
            if isinstance(statement, Define):
                reads.update(statement.program.free_names())
            else:
                reads.update(names_read(statement))
        lines: list[_Line] = []
        for statement in program.statements:
            if isinstance(statement, Statement):
                tree = self.absorb(lines, statement.call, reads, statement.outputs)
                lines.append(_Line(statement.outputs, tree))
            elif isinstance(statement, Repeat):
                lines.append(_Line(statement.outputs, None, statement))
            else:
                lines.append(_Line((statement.name,), None, statement))
        outputs = program.outputs
        tree = self.absorb(lines, outputs[0] if len(outputs) == 1 else outputs, reads, ("return",))
        lines.append(_Line((), tree, is_return=True))
        return lines

    def absorb(self, lines: list[_Line], tree: Any, reads: Counter[str], targets: tuple[str, ...]) -> Any:
        """Return an expression with results of the last lines in place, and remove these lines."""
        prefix = f"{', '.join(map(plain_name, targets))} = "
        while lines:
            last = lines[-1]
            if not isinstance(last.tree, Call) or len(last.outputs) != 1 or reads[last.outputs[0]] != 1:
                break
            name = last.outputs[0]
            if not _is_read_first(tree, name):
                break
            inner = _Inlined(last.tree.function, last.tree.args, last.tree.kwargs, name)
            found = _with_call(tree, name, inner)
            if name in _events(found):  # its size or its device is read
                break
            is_whole = isinstance(tree, Name)
            if not is_whole and (_count(found) > _MOST_CALLS or _depth(found) > _MOST_DEPTH):
                break
            plain = {name: plain_name(name) for name in _events(found) if not name.startswith("self.")}
            if not is_whole and len(prefix) + len(code_of(found, plain, self.kinds).text) > self.short:
                break
            numbered = {name: f"{other}_22" for name, other in plain.items()}  # as long as names may become
            if not is_whole and len(prefix) + len(code_of(found, numbered, self.kinds).text) > self.width - 3:
                break
            tree = found
            del lines[-1]
        return tree


def _events(tree: Any) -> Iterator[str]:
    """Yield what happens when an expression is evaluated: the names that are read, and "" for a call."""
    if isinstance(tree, Name):
        yield tree.name
    elif isinstance(tree, Size | Device):
        yield tree.tensor.name
    elif isinstance(tree, Arithmetic):
        yield from _events(tree.left)
        yield from _events(tree.right)
    elif isinstance(tree, tuple | list):
        for part in tree:
            yield from _events(part)
    elif isinstance(tree, Call):
        for part in (*tree.args, *tree.kwargs.values()):
            yield from _events(part)
        yield ""


def _is_read_first(tree: Any, name: str) -> bool:
    """Whether an expression reads a name before it calls anything."""
    for event in _events(tree):
        if event in (name, ""):
            return event == name
    return False


def _with_call(tree: Any, name: str, call: Call) -> Any:
    """Return an expression with a call in the place of a name."""
    if isinstance(tree, Name):
        return call if tree.name == name else tree
    if isinstance(tree, tuple):
        return tuple(_with_call(part, name, call) for part in tree)
    if isinstance(tree, list):
        return [_with_call(part, name, call) for part in tree]
    if isinstance(tree, Call):
        kwargs = {key: _with_call(value, name, call) for key, value in tree.kwargs.items()}
        return replace(tree, args=_with_call(tree.args, name, call), kwargs=kwargs)
    return tree


def _count(tree: Any) -> int:
    return sum(event == "" for event in _events(tree))


_FLAT = {
    *("torch.add", "torch.sub", "torch.mul", "torch.div", "torch.matmul", "torch.neg", "torch.pow"),
    *("torch.eq", "torch.lt", "torch.le", "torch.gt", "torch.ge", "ops.slice_"),
    *("torch.logical_and", "torch.logical_or", "torch.logical_not"),
}


def _depth(tree: Any) -> int:
    """Return how deep calls are nested; operators and the objects of methods are not."""
    if isinstance(tree, tuple | list):
        return max(map(_depth, tree), default=0)
    if not isinstance(tree, Call):
        return 0
    inner = [_depth(part) for part in (*tree.args, *tree.kwargs.values())]
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

    Args:
        lines: of the function.
        kinds: of the program's names.
        inputs: the names of the function's arguments.
        outer: names of variables around the function.
    """

    def __init__(
        self, lines: list[_Line], kinds: Kinds, inputs: Mapping[str, str], outer: Mapping[str, str]
    ) -> None:
        self.kinds = kinds
        self.of = {**outer, **inputs}
        self.before: dict[str, str] = {}
        self.plain = {name: plain_name(name) for name in inputs}
        self.position = -1
        self.wanted = _wanted(lines)
        self.carried = _carried(lines)
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
                self.name(output, plain_name(output), args | (initial - own), line)
            elif isinstance(line.statement, Define):
                self.name(output, plain_name(output), set(), line)
            else:
                plain = variable_name(line.tree, output, self.plain, self.kinds)
                if plain in ("x", "selected", "part"):
                    plain = self.wanted.get(output, plain)
                elif plain == "weights" and output in self.returned:
                    plain = "probabilities"
                plain = self.carried.get(output, plain)
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


def _wanted(lines: list[_Line]) -> dict[str, str]:
    """Return better names of variables by what reads them: those of an attention."""
    wanted: dict[str, str] = {}
    for line in reversed(lines):
        if len(line.outputs) == 1 and line.outputs[0] in wanted:
            _want(line.tree, wanted[line.outputs[0]], wanted)
        for call in _calls(line.tree):
            if call.function == "F.scaled_dot_product_attention":
                for arg, name in zip(call.args, ("query", "key", "value", "mask"), strict=False):
                    _want(arg, name, wanted)
    return wanted


def _carried(lines: list[_Line]) -> dict[str, str]:
    """Return the names in loops of what enters them, where the program has one name for both."""
    return {
        output: plain_name(output)
        for line in lines
        if isinstance(line.statement, Repeat)
        for output, first in zip(line.statement.outputs, line.statement.initial, strict=True)
        if first == Name(output)
    }


def _want(tree: Any, name: str, wanted: dict[str, str]) -> None:
    """Name the variable that an expression rearranges."""
    while isinstance(tree, Call) and is_named_after_argument(tree):
        tree = tree.args[0]
    if isinstance(tree, Name):
        wanted.setdefault(tree.name, name)


def _calls(tree: Any) -> Iterator[Call]:
    if isinstance(tree, Call):
        yield tree
        yield from _calls((*tree.args, *tree.kwargs.values()))
    elif isinstance(tree, tuple | list):
        for part in tree:
            yield from _calls(part)
