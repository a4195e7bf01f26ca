"""Folds in C: what holds a fold's result so far, and how an element, or another part, is added to it.

A fold has up to three levels. Elements go into a *part* of a few hundred, which the compiler keeps in a
vector; parts go into the *whole*, in double for sums and products; and where a fold is cut into chunks for
the threads, the wholes of the chunks are merged in their order, so that the result does not depend on which
thread was the first.

A sum that needs another fold's result in the same pass (`OnlineReduction`) moves from reference to reference.
That of exponentials goes through each part once more, when the largest element of all so far is known.
Squares of a part are about the mean of all before it, which loses nothing: what they are too large by is the
whole's then. Before the first part its own elements are summed.
"""

from __future__ import annotations

from collections.abc import Sequence

from burnt.codegen.ir import OnlineReduction, ReductionStep, walk
from burnt.codegen.render.c.dtypes import C_TYPES, highest, lowest
from burnt.codegen.render.shape_params import mark_size

__all__ = ["MOVES", "Accumulator", "Exponentials", "Squares", "accumulators"]

MOVES = """
static inline double moved_exp(double sum, double from, double to)
{
    const double scale = exp_term_f64(from - to);
    return from < to ? sum * scale : sum;
}
static inline double of_infinity(double sum, double peak, double otherwise)
{
    return __builtin_isfinite(peak) ? sum : otherwise;
}
static inline double moved_squares(double squares, double sum, double turns, double by)
{
    return squares - by * (2 * sum - turns * by);
}
"""
"""What online sums come to about another reference, and where the largest element is not finite."""

_FMA = {"float": "fma_f32", "double": "fma_f64"}
_OPS = {"sum": "+", "prod": "*", "any": "|", "all": "&"}
_STARTS = {"sum": "0", "prod": "1", "any": "0", "all": "1"}


class Accumulator:
    """The C of one fold.

    Args:
        step: the fold.
        name: what its variables' names begin with.
        lanes: how many folds side by side, at ``[u + l]``; 0 for a single one.
        part_lanes: how many of them a part has, at ``[l]``.
    """

    def __init__(self, step: ReductionStep, name: str, lanes: int = 0, part_lanes: int = 0) -> None:
        self.step = step
        self.name = name
        self.lanes = lanes
        self.sizes = {"part": part_lanes, "whole": lanes, "parts": lanes}
        kind, inside = step.reduction.kind, step.body.dtype
        floating = inside.is_floating_point
        self.is_arg = kind.startswith("arg")
        self.sign = "" if kind in _OPS else ">" if kind.endswith("max") else "<"
        self.op = _OPS.get(kind, "")
        self.start = _STARTS.get(kind) or (lowest(inside) if self.sign == ">" else highest(inside))
        self.result = C_TYPES[step.reduction.dtype]
        if kind in ("sum", "prod") and floating:
            self.type = "double"
        else:
            self.type = "int64_t" if kind == "sum" else C_TYPES[inside]
        in_double = kind == "prod" or (kind == "sum" and not lanes and not _as_vectors(step))
        self.part_type = (
            self.type if in_double or kind != "sum" else C_TYPES[inside] if floating else self.type
        )
        # A vector's maximum does not see NaN; lanes do, one by one.
        self.flagged = bool(self.sign) and floating and not lanes
        self.sees_nan = bool(self.sign) and floating
        self.place_type = "int32_t" if step.iterations < 2**31 else "int64_t"

    def declared(self, level: str, chunks: int = 0) -> list[str]:
        """Variables of a level; arrays over chunks, or lanes, are not set yet."""
        size = (f"[{chunks}]" if chunks else "") + (f"[{self.sizes[level]}]" if self.lanes else "")
        kind = self.part_type if level == "part" else self.type
        made = [(kind, f"{self.name}_{level}", self.start)]
        if self.flagged:
            made.append(("int", f"{self.name}_{level}_nan", "0"))
        if self.is_arg and (self.lanes or level == "parts"):
            made.append((self.place_type, f"{self.name}_{level}_at", "0"))
        if size:
            return [f"{kind} {name}{size};" for kind, name, _ in made]
        return [f"{kind} {name} = {start};" for kind, name, start in made]

    def at(self, level: str) -> str:
        """The lane of a level."""
        return "" if not self.lanes else "[l]" if level == "part" else "[u + l]"

    def reset(self, level: str) -> list[str]:
        """Set the lanes of a level to where they start."""
        at = self.at(level)
        lines = [f"{self.name}_{level}{at} = {self.start};"]
        if self.is_arg:
            lines.append(f"{self.name}_{level}_at{at} = 0;")
        return lines

    def clauses(self, level: str) -> str:
        """What the loop over a level's elements says to the compiler."""
        name, op = f"{self.name}_{level}", {">": "max", "<": "min"}.get(self.sign, self.op)
        return f" reduction({op}:{name})" + (f" reduction(|:{name}_nan)" if self.flagged else "")

    def takes_products(self, level: str) -> bool:
        """Whether an element of a level is a product, which goes into the sum unrounded."""
        body, into = self.step.body, self.part_type if level == "part" else self.type
        plain = self.op == "+" and not isinstance(self.step, OnlineReduction)
        return plain and body.op == "mul" and into in _FMA and into == C_TYPES[body.dtype]

    def add_product(self, left: str, right: str, level: str) -> list[str]:
        """A product into a level."""
        into = f"{self.name}_{level}{self.at(level)}"
        return [f"{into} = {_FMA[C_TYPES[self.step.body.dtype]]}({left}, {right}, {into});"]

    def add(self, value: str, level: str, place: str = "") -> list[str]:
        """An element into a level."""
        into = f"{self.name}_{level}{self.at(level)}"
        if not self.sign:
            return [f"{into} {self.op}= {value};"]
        if self.flagged:
            lines = [f"{into} = {value} {self.sign} {into} ? {value} : {into};"]
            return [*lines, f"{self.name}_{level}_nan |= {value} != {value};"]
        nan = f" || ({value} != {value} && {into} == {into})" if self.sees_nan else ""
        if not self.is_arg or not self.lanes:
            return [f"{into} = {value} {self.sign} {into}{nan} ? {value} : {into};"]
        better, at = f"{self.name}_better", f"{self.name}_{level}_at{self.at(level)}"
        return [
            f"const int {better} = {value} {self.sign} {into}{nan};",
            f"{into} = {better} ? {value} : {into};",
            f"{at} = {better} ? {place} : {at};",
        ]

    def merge(self, source: str, index: str, level: str = "whole") -> list[str]:
        """Another level's result into a level.

        Args:
            source: the other level.
            index: of it, as in ``[chunk]``, or nothing.
            level: the level it is merged into.
        """
        at, index = self.at(level), index + self.at(source)
        into, other = f"{self.name}_{level}{at}", f"{self.name}_{source}{index}"
        if not self.sign:
            return [f"{into} {self.op}= {other};"]
        into_at, other_at = f"{self.name}_{level}_at{at}", f"{self.name}_{source}_at{index}"
        if self.flagged:
            nan, other_nan = f"{self.name}_{level}_nan", f"{self.name}_{source}_nan{index}"
            if not self.is_arg:
                return [
                    f"{into} = {other} {self.sign} {into} ? {other} : {into};",
                    f"{nan} |= {other_nan};",
                ]
            test = (
                f"{nan} ? {other_nan} && {other_at} < {into_at} : {other_nan} || "
                f"{other} {self.sign} {into} || ({other} == {into} && {other_at} < {into_at})"
            )
            keep = [f"{into} = {other};", f"{into_at} = {other_at};", f"{nan} = {other_nan};"]
            return [f"if ({test}) {{", *[f"    {line}" for line in keep], "}"]
        better = f"{other} {self.sign} {into}"
        if self.sees_nan:
            better += f" || ({other} != {other} && {into} == {into})"
        if not self.is_arg:
            return [f"{into} = {better} ? {other} : {into};"]
        same = f"{other} == {into}"
        if self.sees_nan:
            same = f"({same} || ({other} != {other} && {into} != {into}))"
        return [
            f"const int {self.name}_better = {better} || ({same} && {other_at} < {into_at});",
            f"{into} = {self.name}_better ? {other} : {into};",
            f"{into_at} = {self.name}_better ? {other_at} : {into_at};",
        ]

    def improved(self) -> str:
        """Whether the part of a block beats the whole, for the block to be remembered."""
        whole, part = f"{self.name}_whole", f"{self.name}_part"
        test = f"{part} {self.sign} {whole}"
        return f"!{whole}_nan && ({part}_nan || {test})" if self.flagged else test

    def take_part(self) -> list[str]:
        """The part in place of the whole."""
        lines = [f"{self.name}_whole = {self.name}_part;"]
        return [*lines, f"{self.name}_whole_nan = {self.name}_part_nan;"] if self.flagged else lines

    def copied(self, index: str) -> list[str]:
        """The whole of a chunk to where it is merged from."""
        suffixes = ["", "_nan"] if self.flagged else [""]
        if self.is_arg:
            suffixes.append("_at")
        at = self.at("whole")
        return [f"{self.name}_parts{s}{index}{at} = {self.name}_whole{s}{at};" for s in suffixes]

    def ended(self) -> list[str]:
        """The result of a fold without lanes, under the fold's own name."""
        lines = []
        if self.is_arg:
            return [f"const {self.result} {self.name} = {self.name}_whole_at;"]
        if self.flagged:
            lines.append(f'if ({self.name}_whole_nan) {self.name}_whole = __builtin_nanf("");')
        return [*lines, f"const {self.result} {self.name} = {self.name}_whole;"]

    def text(self) -> str:
        """The result, where others read it."""
        if not self.lanes:
            return self.name
        return f"({self.result}){self.name}_whole{'_at' if self.is_arg else ''}[u + l]"


class Exponentials(Accumulator):
    """The C of a sum of exponentials beside the largest element, which is known before each part is added.

    Args:
        step: the sum.
        name, lanes, part_lanes: as those of any fold.
        beside: the largest element.
    """

    step: OnlineReduction

    def __init__(
        self, step: OnlineReduction, name: str, lanes: int, part_lanes: int, beside: Accumulator
    ) -> None:
        super().__init__(step, name, lanes, part_lanes)
        self.beside = beside
        self.inside = C_TYPES[step.body.dtype]

    def declared(self, level: str, chunks: int = 0) -> list[str]:
        """Variables of a level, with what the whole and the elements of a part are about."""
        lines = super().declared(level, chunks)
        name, room = self.name, f"[{self.sizes[level]}]" if self.lanes else ""
        if level == "part":
            about = f"{name}_about{room};" if room else f"{name}_about = {self.about()};"
            return [*lines, f"{self.inside} {about}"]
        if level == "whole":
            return [*lines, f"double {name}_from{room or ' = -__builtin_inf()'};"]
        return lines

    def reset(self, level: str) -> list[str]:
        """Set the lanes of a level to where they start."""
        at = self.at(level)
        if level == "part":
            return [*super().reset(level), f"{self.name}_about{at} = {self.about()};"]
        return [*super().reset(level), f"{self.name}_from{at} = -__builtin_inf();"]

    def about(self) -> str:
        """What the elements of the next part are about."""
        at = f"{self.name}_from{self.at('whole')}"
        return f"__builtin_isinf({at}) ? 0 : {at}"

    def moved(self) -> list[str]:
        """The whole so far, about what it and the elements of the next part are about."""
        at = self.at("whole")
        into, old, new = f"{self.name}_whole{at}", f"{self.name}_from{at}", f"{self.beside.name}_whole{at}"
        return [f"{into} = moved_exp({into}, {old}, {new});", f"{old} = {new};"]

    def add(self, value: str, level: str, place: str = "") -> list[str]:
        """An element into a part."""
        at = self.at(level)
        term = "exp_term_f32" if self.inside == "float" else "exp_term_f64"
        return [f"{self.name}_{level}{at} += {term}({value} - {self.name}_about{at});"]

    def merge(self, source: str, index: str, level: str = "whole") -> list[str]:
        """Another level's result into a level; that of a chunk is about the chunk's own largest element."""
        if source == "part":
            return super().merge(source, index, level)
        at = self.at("whole")
        whole, other = f"{self.beside.name}_whole{at}", f"{self.beside.name}_parts{index}{at}"
        return [f"{self.name}_whole{at} += moved_exp({self.name}_parts{index}{at}, {other}, {whole});"]

    def settled(self) -> str:
        """The whole, where the largest element may be infinite or NaN."""
        peak = self.beside.text()
        otherwise = f"exp_f64({peak})" if self.step.ignores_infinite_max else f"(double){peak} - {peak}"
        return f"of_infinity({self.name}_whole{self.at('whole')}, {peak}, {otherwise})"

    def ended(self) -> list[str]:
        """The result of a fold without lanes, under the fold's own name."""
        return [f"const {self.result} {self.name} = {self.settled()};"]

    def text(self) -> str:
        """The result, where others read it."""
        return f"({self.result}){self.settled()}" if self.lanes else self.name


class Squares(Accumulator):
    """The C of a sum of squares about the mean: of squares, and of elements, about a number close to it."""

    def __init__(self, step: OnlineReduction, name: str, lanes: int, part_lanes: int) -> None:
        super().__init__(step, name, lanes, part_lanes)
        self.inside = C_TYPES[step.body.dtype]

    def declared(self, level: str, chunks: int = 0) -> list[str]:
        """Variables of a level: squares, elements, what they are about, and how many they are."""
        lines, name = super().declared(level, chunks), self.name
        lines += [line.replace(f"{name}_{level}", f"{name}_{level}_sum", 1) for line in lines]
        if level == "part":
            return lines
        room = f"[{self.lanes}]" if self.lanes else ""
        if level == "parts":
            return [
                *lines,
                f"{self.inside} {name}_parts_about[{chunks}]{room};",
                f"int64_t {name}_parts_turns[{chunks}];",
            ]
        return [*lines, f"{self.inside} {name}_about{room or ' = 0'};", f"int64_t {name}_turns = 0;"]

    def reset(self, level: str) -> list[str]:
        """Set the lanes of a level to where they start."""
        at = self.at(level)
        lines = [f"{self.name}_{level}{suffix}{at} = 0;" for suffix in ("", "_sum")]
        return [*lines, f"{self.name}_about{at} = 0;"] if level == "whole" else lines

    def clauses(self, level: str) -> str:
        """What the loop over a level's elements says to the compiler."""
        return f" reduction(+:{self.name}_{level}) reduction(+:{self.name}_{level}_sum)"

    def first(self, value: str) -> list[str]:
        """An element into the sum of the first part, whose mean is its elements' reference."""
        return [f"{self.name}_part_sum{self.at('part')} += {value};"]

    def begun(self, turns: str) -> list[str]:
        """The reference of the first part, which may be of a chunk without elements."""
        mean = f"{self.name}_part_sum{self.at('part')} / ({turns})"
        return [f"{self.name}_about{self.at('whole')} = {turns} ? {mean} : 0;"]

    def add(self, value: str, level: str, place: str = "") -> list[str]:
        """An element into a part."""
        into, at, off = f"{self.name}_{level}", self.at(level), f"{self.name}_off"
        square = [f"{into}{at} += {off} * {off};"]
        if self.part_type == self.inside:
            square = self.add_product(off, off, level)
        return [
            f"const {self.inside} {off} = {value} - {self.name}_about{self.at('whole')};",
            *square,
            f"{into}_sum{at} += {off};",
        ]

    def merge(self, source: str, index: str, level: str = "whole") -> list[str]:
        """A part into the whole, which then moves to the mean so far; or a chunk, moved to the whole's."""
        name, at = self.name, self.at("whole")
        whole, total, about = f"{name}_whole{at}", f"{name}_whole_sum{at}", f"{name}_about{at}"
        if source == "part":
            other = self.at("part")
            return [
                f"{whole} += {name}_part{other};",
                f"{total} += {name}_part_sum{other};",
                f"const {self.inside} {name}_to = {about} + {total} / {name}_turns;",
                f"const double {name}_by = (double){name}_to - {about};",
                f"{whole} = moved_squares({whole}, {total}, {name}_turns, {name}_by);",
                f"{total} -= {name}_turns * {name}_by;",
                f"{about} = {name}_to;",
            ]
        parts = f"{name}_parts{index}{at}, {name}_parts_sum{index}{at}, {name}_parts_turns{index}"
        return [
            f"const double {name}_by = (double){about} - {name}_parts_about{index}{at};",
            f"{whole} += moved_squares({parts}, {name}_by);",
            f"{total} += {name}_parts_sum{index}{at} - {name}_parts_turns{index} * {name}_by;",
        ]

    def copied(self, index: str) -> list[str]:
        """The whole of a chunk to where it is merged from."""
        name, at = self.name, self.at("whole")
        levels = ((f"{name}_parts", f"{name}_whole"), (f"{name}_parts_sum", f"{name}_whole_sum"))
        lines = [f"{part}{index}{at} = {whole}{at};" for part, whole in levels]
        return [
            *lines,
            f"{name}_parts_about{index}{at} = {name}_about{at};",
            f"{name}_parts_turns{index} = {name}_turns;",
        ]

    def settled(self) -> str:
        """The squares about the mean itself."""
        at = self.at("whole")
        total = f"{self.name}_whole_sum{at}"
        return f"{self.name}_whole{at} - {total} * {total} / {mark_size(self.step.iterations)}"

    def ended(self) -> list[str]:
        """The result of a fold without lanes, under the fold's own name."""
        return [f"const {self.result} {self.name} = {self.settled()};"]

    def text(self) -> str:
        """The result, where others read it."""
        return f"({self.result})({self.settled()})" if self.lanes else self.name


def accumulators(
    folds: Sequence[ReductionStep], first: int, lanes: int, part_lanes: int
) -> list[Accumulator]:
    """The C of folds of one pass, named by numbers from `first` on."""
    made: dict[ReductionStep, Accumulator] = {}
    for i, fold in enumerate(folds, first):
        if not isinstance(fold, OnlineReduction):
            made[fold] = Accumulator(fold, f"r{i}", lanes, part_lanes)
        elif fold.kind == "squares":
            made[fold] = Squares(fold, f"r{i}", lanes, part_lanes)
        else:
            made[fold] = Exponentials(fold, f"r{i}", lanes, part_lanes, made[fold.reference])
    return list(made.values())


def _as_vectors(step: ReductionStep) -> bool:
    """Whether a fold reads memory element after element, so that lanes of a vector share its rounding."""
    if not step.inner:
        return True
    last = step.inner[-1]
    for e in walk([step.body]):
        if e.op == "masked" or (e.op == "load" and e.extra[1].stride(last) not in (0, 1)):  # type: ignore[attr-defined]
            return False
    return True
