"""Printing kernels as Triton: programs that each take a tile of rows and columns.

The outer loops of a kernel are *rows*, what its folds and stores walk along are *columns*. A program takes
`ROWS` rows and `COLS` columns at once, as blocks of shape ``[ROWS, 1]``, ``[1, COLS]`` and ``[ROWS, COLS]``;
without rows blocks are of one dimension. Steps that walk equally far share a tile, so what they load is
loaded once. Where a walk is longer than `COLS`, it is a loop, and folds keep an accumulator of the tile's
shape. Where there are few rows, `CHUNKS` programs share them: each folds a part, and the next kernel folds
the parts. A sum that needs another fold's result in the same loop (`OnlineReduction`) is about what its own
lane has come to, and moves to the whole's in the end.

Integers that come from shapes are arguments, so that one text serves many shapes. Indices are int32 unless
something reaches beyond. Arithmetic is torch's: 16-bit floats are computed in float32, quotients and roots
are rounded as IEEE wants it, extremes hand NaN on.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch

from burnt.codegen.ir import (
    Buffer,
    Index,
    Kernel,
    OnlineReduction,
    Reduction,
    ReductionStep,
    ScanStep,
    Store,
    Var,
)
from burnt.codegen.render.triton.configs import AnyConfig, AnyStructure
from burnt.codegen.render.triton.expr import TL, Elements, TileValue
from burnt.codegen.render.triton.layout import Layout, Space, computed
from burnt.codegen.render.triton.matmul import matmul_structure, print_matmul
from burnt.codegen.render.triton.matmul_config import MatmulConfig
from burnt.codegen.render.triton.source import DeviceFunction, FailedFlag, ScalarArg, TritonSource, Workspace
from burnt.codegen.render.triton.tile_config import TileConfig, next_power_of_two

__all__ = [
    "DeviceFunction",
    "FailedFlag",
    "ScalarArg",
    "TritonSource",
    "Workspace",
    "print_kernel",
    "structure_of",
]


def structure_of(kernel: Kernel) -> AnyStructure:
    """What the choice of a kernel's block sizes depends on."""
    return matmul_structure(kernel) if kernel.matmul is not None else Layout(kernel).form()


def print_kernel(kernel: Kernel, config: AnyConfig) -> TritonSource:
    """A kernel as Triton, for these block sizes.

    Args:
        kernel: what to print; its name is that of the last function, ``_part0`` and so on of those before.
        config: a text holds for all block sizes that need the same loops.
    """
    if isinstance(config, MatmulConfig):
        return print_matmul(kernel, config)
    layout = Layout(kernel)
    groups = layout.groups(config)
    if config.chunks > 1 and layout.divisible:
        phases, last = [], []
        for group in groups:
            if isinstance(group[0], ReductionStep) and group[0].inner:
                phases.append(group)
            else:
                last += group
        stages = [[group] for group in phases] + [layout.regrouped(last)]
    else:
        config = dataclasses.replace(config, chunks=1)
        stages = [groups]
    texts, functions, helpers = [], [], set[str]()
    for i, stage in enumerate(stages):
        name = kernel.name if i == len(stages) - 1 else f"{kernel.name}_part{i}"
        earlier = [step for before in stages[:i] for group in before for step in group]
        printer = _Printer(layout, config, name, last=i == len(stages) - 1)
        printer.body(stage, [step for step in earlier if isinstance(step, ReductionStep)])
        texts.append(printer.text())
        functions.append(printer.function())
        helpers |= printer.helpers
    head = "import triton\nimport triton.language as tl\n"
    if helpers:
        names = ", ".join(sorted(helpers))
        head += f"from burnt.codegen.render.triton.device_math import {names}\n"
    return TritonSource("\n\n".join([head, *texts]), tuple(functions), config)


class _Accumulator:
    """How a fold or scan is taken: what it begins with, how two are one, what becomes of the last.

    Args:
        step: the fold or scan.
        wide: whether places along it have 64 bits.
    """

    def __init__(self, step: ReductionStep | ScanStep, wide: bool) -> None:
        fold = step.reduction if isinstance(step, ReductionStep) else step.scan
        kind, self.dtype = fold.kind, step.body.dtype
        self.kind, self.result = kind, fold.dtype
        self.arg = kind.startswith("arg")
        self.place = torch.int64 if wide else torch.int32
        self.nowhere = str(torch.iinfo(self.place).max)
        self.truth = self.dtype == torch.bool
        self.inside = torch.int32 if self.truth else self.dtype
        if kind in ("sum", "any"):
            self.start = "0"
        elif kind in ("prod", "all"):
            self.start = "1"
        else:
            self.start = _extreme(self.inside, lowest=not kind.endswith("min"))
        # Sums keep to torch's dtype, which `tl.sum` would make wider.
        self.combine = {
            "sum": "", "prod": "multiply", "any": "either", "all": "both", "max": "maximum",
            "min": "minimum", "argmax": "argmax", "argmin": "argmin",
            "logsumexp": "log_add_exp",
        }[kind]  # fmt: skip
        if isinstance(step, ScanStep) and self.arg:
            self.combine, self.nowhere = self.combine.replace("arg", "last_"), "-1"

    @property
    def parts(self) -> list[tuple[str, str, torch.dtype]]:
        """For each block that is kept: what its name ends in, what it begins with, its dtype."""
        whole = [("", self.start, self.inside)]
        return [*whole, ("_at", self.nowhere, self.place)] if self.arg else whole


class _Printer(Elements):
    """One function: `body` writes its lines, `text` puts the head before them."""

    def __init__(self, layout: Layout, config: TileConfig, name: str, *, last: bool) -> None:
        super().__init__(layout, name)
        self.config, self.last = config, last
        self.wide = layout.wide(config)
        self.works: dict[Workspace, None] = {}
        self.constants: dict[str, int] = {}
        self.row = self.column = ""
        self.tiles: dict[int, str] = {}
        self.earlier: dict[tuple[Reduction, Index], tuple[int, ReductionStep]] = {}
        self.loops = 0

    # --- the function -------------------------------------------------------------------------------------

    def text(self) -> str:
        names = [*(b.name for b in self.buffers), *(w.name for w in self.works), *["failed"] * self.may_fail]
        names += [f'f{n}: "fp64"' if wide else f"f{n}" for n, wide in self.numbers.items()]
        names += [*self.sizes.values(), *(f"{name}: tl.constexpr" for name in self.constants)]
        head = f"def {self.name}({', '.join(names)}):"
        return "\n".join(["@triton.jit", head, *self.lines, ""])

    def function(self) -> DeviceFunction:
        layout = self.layout
        rows = math.prod(v.extent for v in layout.rows)
        programs = math.prod(v.extent for v in layout.lead) * -(-rows // self.constants.get("ROWS", 1))
        if layout.grid:
            programs *= -(-layout.spaces[-1].total // self.constants[layout.block(layout.spaces[-1])])
        if self.chunked:
            programs *= self.config.chunks
        arguments: list[Buffer | Workspace | FailedFlag | ScalarArg | int] = [*self.buffers, *self.works]
        arguments += [FailedFlag()] * self.may_fail
        arguments += [*map(ScalarArg, self.numbers), *self.sizes]
        return DeviceFunction(self.name, tuple(arguments), dict(self.constants), programs)

    def body(
        self, groups: Sequence[Sequence[ReductionStep | ScanStep | Store]], earlier: Sequence[ReductionStep]
    ) -> None:
        """The lines of a function.

        Args:
            groups: the steps, those of one tile and loop together.
            earlier: folds of the functions before it, of which there are parts.
        """
        layout = self.layout
        self.earlier = {(step.reduction, step.index): (i, step) for i, step in enumerate(earlier)}
        self.chunked = self.config.chunks > 1 and any(step.inner for group in groups for step in group)
        self.program()
        for group in [[step for several in groups for step in several]] if layout.grid else groups:
            space = layout.space(group[0])
            if space is not None and (self.chunked or space.total > self.config.cols):
                self.loop(space, group)
                continue
            if space is not None:
                if space.number not in self.tiles:
                    self.columns(space, "", self.size(space.total))
                self.enter(space)
            for step in group:
                if isinstance(step, ReductionStep):
                    self.fold(step)
                elif isinstance(step, ScanStep):
                    self.scan(step, [])
            self.put_all(group)

    def program(self) -> None:
        """Which rows and columns this program takes: its number is taken apart, the fastest part first."""
        layout = self.layout
        pid = "tl.program_id(0)" + ".to(tl.int64)" * self.wide
        rows = math.prod(v.extent for v in layout.rows)
        space = layout.spaces.get(-1)
        counts = {}
        if space is not None:
            block = self.tile_of(space)
            counts["start"] = f"tl.cdiv({self.size(space.total)}, {block})"
        if self.chunked:
            self.constants["CHUNKS"] = self.config.chunks
            counts["chunk"] = "CHUNKS"
        if layout.rows:
            self.constants["ROWS"] = min(self.config.rows, next_power_of_two(rows))
            counts["row"] = f"tl.cdiv({self.size(rows)}, ROWS)"
        if layout.lead:
            counts["lead"] = ""
        if not counts:
            return
        taken = {}
        if len(counts) > 1:
            self.line(f"pid = {pid}")
            pid = "pid"
            for part, count in list(counts.items())[:-1]:
                self.line(f"{part} = pid % {count}")
                self.line(f"pid = pid // {count}")
                taken[part] = part
        taken[list(counts)[-1]] = pid
        if list(counts)[-1] == "chunk":
            self.line(f"chunk = {pid}")
        if layout.rows:
            self.flat("row", f"{taken['row']} * ROWS + tl.arange(0, ROWS)[:, None]", layout.rows, "R")
        if layout.lead:
            if pid != "pid":
                self.line(f"pid = {pid}")
            self.peel("pid", layout.lead, "")
        if space is not None:
            self.columns(space, f"{taken['start']} * {self.block}", self.size(space.total))
            self.enter(space)

    def flat(self, name: str, text: str, loops: Sequence[Var], axis: str, end: str = "") -> str:
        """Lines that name a flat place, the mask of what is inside, and the loops that it is made of."""
        if len(loops) == 1:
            name = f"i{len(self.names)}"
            self.names[loops[0]] = TileValue(name, axis)
        self.line(f"{name} = {text}")
        self.line(f"in_{name} = {name} < {end or self.size(math.prod(v.extent for v in loops))}")
        if axis == "R":
            self.row, self.masks["R"] = name, f"in_{name}"
        if len(loops) > 1:
            self.peel(name, loops, axis)
        return name

    def peel(self, flat: str, loops: Sequence[Var], axis: str) -> None:
        """Lines that name the loops of a flat place."""
        for k, v in enumerate(loops):
            below = math.prod(u.extent for u in loops[k + 1 :])
            text = flat if below == 1 else f"{flat} // {self.size(below)}"
            name = f"i{len(self.names)}"
            self.names[v] = TileValue(name, axis)
            self.line(f"{name} = {text} % {self.size(v.extent)}" if k else f"{name} = {text}")

    def tile_of(self, space: Space) -> str:
        self.block = self.layout.block(space)
        self.constants[self.block] = min(self.config.cols, next_power_of_two(space.total))
        return self.block

    def columns(self, space: Space, start: str, end: str) -> None:
        """Lines that name the columns of a tile."""
        text = f"tl.arange(0, {self.tile_of(space)})"
        text += "[None, :]" if self.layout.rows else ""
        text += ".to(tl.int64)" if self.wide else ""
        text = f"{start} + {text}" if start else text
        loops = [self.layout.grid] if self.layout.grid else list(space.loops.values())
        loops.sort(key=len)
        name = f"col{space.number or ''}"
        name = self.flat(name, text, loops[0], "C", end)
        for several in loops[1:]:
            self.peel(name, several, "C")
        self.tiles[space.number] = name

    def enter(self, space: Space) -> None:
        """Make a tile the one that masks are of."""
        self.block = self.layout.block(space)
        self.column = self.tiles[space.number]
        self.masks["C"] = f"in_{self.column}"

    # --- folds --------------------------------------------------------------------------------------------

    def fold(self, step: ReductionStep) -> None:
        """A fold of what a tile holds."""
        key, name = (step.reduction, step.index), f"r{len(self.folds)}"
        value = self.visit(step.element if isinstance(step, OnlineReduction) else step.body)
        if not step.inner:
            kind = step.reduction.kind
            if kind.startswith("arg"):
                value = TileValue("tl.full([], 0, tl.int64)")
            elif kind == "sum" and step.body.dtype.is_floating_point:
                value = TileValue(f"({self.typed(value, step.body.dtype)} + 0.0)", value.axes)  # never -0
            self.folds[key] = value
            return
        how = _Accumulator(step, self.wide)
        self.folds[key] = self.finished(how, self.folded(how, self.masked(how, value), name), name)

    def masked(self, how: _Accumulator, value: TileValue) -> list[str]:
        """Blocks of a tile's shape, or one that broadcasts to it along rows, for a fold."""
        text, column = self.typed(value, how.dtype), self.masks["C"]
        if how.truth:
            text = f"{text}.to(tl.int32)"
        if self.layout.rows and (how.arg or "R" not in value.axes):
            column = f"{self.masks['R']} & {column}"
        blocks = [f"tl.where({column}, {text}, {how.start})"]
        return [*blocks, f"tl.where({column}, {self.column}, {how.nowhere})"] if how.arg else blocks

    def folded(self, how: _Accumulator, blocks: Sequence[str], name: str) -> list[str]:
        """Lines that fold blocks along their columns; the names of what comes out."""
        along = "1, {}keep_dims=True" if self.layout.rows else "0{}"
        names = [name + suffix for suffix, _, _ in how.parts]
        given = blocks[0] if len(blocks) == 1 else f"({', '.join(blocks)})"
        if how.kind == "sum":
            self.line(f"{name} = tl.sum({given}, {along.format('')})")
        else:
            combine = how.combine + (", " if self.layout.rows else "")
            combine = combine if self.layout.rows else f", {combine}"
            self.line(
                f"{', '.join(names)} = tl.reduce({given}, {along.format(self.helper(combine, how.combine))})"
            )
        return names

    def finished(self, how: _Accumulator, names: Sequence[str], name: str) -> TileValue:
        """The result of a fold, in its dtype."""
        text = names[-1]
        if how.truth and not how.arg:
            self.line(f"{name} = {text} != 0")
        elif how.arg or (how.kind == "sum" and not how.dtype.is_floating_point):
            self.line(f"{name} = {text}.to({TL[how.result]})")
        return TileValue(name, "R" if self.layout.rows else "")

    def loop(self, space: Space, group: Sequence[ReductionStep | ScanStep | Store]) -> None:
        """Steps that walk further than a tile, in one loop."""
        folds = [step for step in group if isinstance(step, ReductionStep)]
        self.hoist(map(computed, group), {v for several in space.loops.values() for v in several})
        block, end = self.tile_of(space), self.size(space.total)
        shape = f"[ROWS, {block}]" if self.layout.rows else f"[{block}]"
        hows = [_Accumulator(step, self.wide) for step in folds]
        first = len(self.folds)
        for k, how in enumerate(hows):
            for suffix, start, dtype in how.parts:
                self.line(f"a{first + k}{suffix} = tl.full({shape}, {start}, {TL[dtype]})")
        online = {step: f"a{first + k}" for k, step in enumerate(folds) if isinstance(step, OnlineReduction)}
        for later, name in online.items():
            if later.kind == "squares":
                self.line(f"{name}_turns = tl.full([], 0, {TL[later.body.dtype]})")
        carried = self.carried(group)
        start = f"start{self.loops or ''}"
        self.loops += 1
        if self.chunked:
            self.line(f"length = tl.cdiv(tl.cdiv({end}, {block}), CHUNKS) * {block}")
            self.line(f"end = tl.minimum((chunk + 1) * length, {end})")
            end = "end"
        # A counter goes a block beyond the end, which 32 bits may not hold.
        begin = "chunk * length" if self.chunked else "tl.full([], 0, tl.int64)" if self.wide else "0"
        self.line(f"for {start} in range({begin}, {end}, {block}):")
        self.depth += 1
        kept, names = dict(self.memo), dict(self.names)
        self.columns(space, start, end)
        self.enter(space)
        named = {step: f"a{first + k}" for k, step in enumerate(folds)}
        for later, name in online.items():
            # Before the other fold knows the elements.
            self.accumulate_beside(later, name, named[later.reference])
        for step, how in zip(folds, hows, strict=True):
            if step not in online:
                self.accumulate(how, named[step], self.masked(how, self.visit(step.body)))
        for scan, names_before in carried:
            self.scan(scan, names_before)
        self.put_all(group)
        self.depth -= 1
        self.memo, self.names = kept, names
        results = {step: f"r{first + k}" for k, step in enumerate(folds)}
        for k, (step, how) in enumerate(zip(folds, hows, strict=True)):
            name = results[step]
            if isinstance(step, OnlineReduction):
                self.moved(step, named[step], named[step.reference], results[step.reference])
            made = self.folded(how, [f"a{first + k}{suffix}" for suffix, _, _ in how.parts], name)
            if self.chunked:
                self.leave(how, made, len(self.earlier) + k)
                continue
            if isinstance(step, OnlineReduction):
                self.settled(step, name, results[step.reference])
            self.folds[step.reduction, step.index] = self.finished(how, made, name)

    def accumulate(self, how: _Accumulator, name: str, blocks: Sequence[str]) -> None:
        names = [name + suffix for suffix, _, _ in how.parts]
        if how.kind == "sum":
            text = f"{name} + {blocks[0]}"
            # Narrow integers wrap around, as they do in memory.
            self.line(f"{name} = {text}")
        else:
            self.line(f"{', '.join(names)} = {self.helper(how.combine)}({', '.join([*names, *blocks])})")

    # --- sums beside another fold -------------------------------------------------------------------------

    def accumulate_beside(self, step: OnlineReduction, name: str, beside: str) -> None:
        """A tile's elements into a sum whose lanes are about what the other fold's lanes have come to."""
        other = _Accumulator(step.reference, self.wide)
        (block,) = self.masked(other, self.visit(step.body))
        if step.kind == "exp":
            self.line(f"{name} = {self.helper('add_exp')}({name}, {beside}, {block})")
            return
        added = f"{self.helper('add_square')}({name}, {beside}, {name}_turns, {block})"
        self.line(f"{name} = tl.where({self.masks['C']}, {added}, {name})")
        self.line(f"{name}_turns += 1")

    def moved(self, step: OnlineReduction, name: str, beside: str, whole: str) -> None:
        """Lanes of such a sum, about what the other fold has come to for all of them."""
        if step.kind == "exp":
            self.line(f"{name} = {self.helper('moved_exp')}({name}, {beside}, {whole})")
            return
        first, end = ("chunk * length", "end") if self.chunked else ("0", self.size(step.iterations))
        lanes = f"tl.arange(0, {self.block})" + ("[None, :]" if self.layout.rows else "")
        kind = TL[step.body.dtype]
        self.line(
            f"{name}_lanes = tl.cdiv(tl.maximum({end} - {first} - {lanes}, 0), {self.block}).to({kind})"
        )
        self.line(f"{name}_turns = tl.maximum({end} - {first}, 0).to({kind})")
        moved = self.helper("moved_squares")
        self.line(f"{name} = {moved}({name}, {beside}, {name}_lanes, {whole}, {name}_turns)")

    def settled(self, step: OnlineReduction, name: str, peak: str) -> None:
        """What a sum of exponentials is where the largest element is infinite or NaN."""
        if step.kind == "exp":
            otherwise = f"{self.helper('exp')}({peak})" if step.ignores_infinite_max else f"{peak} - {peak}"
            self.line(f'{name} = tl.where(tl.abs({peak}) < float("inf"), {name}, {otherwise})')

    # --- scans --------------------------------------------------------------------------------------------

    def carried(self, group: Sequence[ReductionStep | ScanStep | Store]) -> list[tuple[ScanStep, list[str]]]:
        """Lines that name what scans have come to before the first tile."""
        shape = "[ROWS, 1]" if self.layout.rows else "[]"
        found = []
        for k, step in enumerate(step for step in group if isinstance(step, ScanStep)):
            parts = _Accumulator(step, self.wide).parts
            for suffix, start, dtype in parts:
                self.line(f"c{k}{suffix} = tl.full({shape}, {start}, {TL[dtype]})")
            found.append((step, [f"c{k}{suffix}" for suffix, _, _ in parts]))
        return found

    def scan(self, step: ScanStep, before: Sequence[str]) -> None:
        """A scan of a tile, after what the tiles before have come to."""
        how, name, axis = _Accumulator(step, self.wide), f"s{len(self.scans)}", 1 if self.layout.rows else 0
        blocks = []
        for (suffix, _, _), text in zip(how.parts, self.masked(how, self.visit(step.body)), strict=True):
            self.line(f"{name}{suffix}_tile = {text}")
            blocks.append(f"{name}{suffix}_tile")
        names = [name + suffix for suffix, _, _ in how.parts]
        if how.kind == "sum":
            self.line(f"{name} = tl.cumsum({blocks[0]}, {axis})")
        else:
            given = blocks[0] if len(blocks) == 1 else f"({', '.join(blocks)})"
            combine = self.helper(how.combine)
            self.line(f"{', '.join(names)} = tl.associative_scan({given}, {axis}, {combine})")
        if before:
            whole = self.folded(how, blocks, f"{name}_whole")
            for into, others in ((names, names), (before, whole)):
                joined = (
                    f"{before[0]} + {others[0]}"
                    if how.kind == "sum"
                    else f"{how.combine}({', '.join([*before, *others])})"
                )
                self.line(f"{', '.join(into)} = {joined}")
        value = TileValue(names[-1], "RC" if self.layout.rows else "C")
        if how.arg or how.inside != how.result:
            value = self.define(f"{names[-1]}.to({TL[how.result]})", value.axes)
        self.scans[step.scan, step.index] = value

    # --- parts of folds -----------------------------------------------------------------------------------

    def works_of(self, how: _Accumulator, number: int) -> list[Workspace]:
        size = math.prod(v.extent for v in self.layout.kernel.outer) * self.config.chunks
        return [Workspace(f"w{number}{suffix}", size, dtype) for suffix, _, dtype in how.parts]

    def place_of_part(self, chunk: str) -> str:
        """Where the parts of the rows are: one chunk's lie together."""
        if not self.layout.rows:
            return chunk
        rows = math.prod(v.extent for v in self.layout.kernel.outer)
        row = self.row
        if self.layout.lead:
            row = f"pid * {self.size(self.layout.rows[0].extent)} + {row}"
        return f"{chunk} * {self.size(rows)} + {row}"

    def leave(self, how: _Accumulator, names: Sequence[str], number: int) -> None:
        """Lines that store a part for the next function."""
        mask = f", mask={self.masks['R']}" if self.layout.rows else ""
        for work, name in zip(self.works_of(how, number), names, strict=True):
            self.works[work] = None
            self.line(f"tl.store({work.name} + {self.place_of_part('chunk')}, {name}{mask})")

    def gathered(self, key: tuple[Reduction, Index]) -> TileValue:
        """Lines that fold the parts of a fold of the function before."""
        number, step = self.earlier[key]
        how, whole = _Accumulator(step, self.wide), ""
        if isinstance(step, OnlineReduction):
            beside = (step.reference.reduction, step.reference.index)
            whole = (self.folds[beside] if beside in self.folds else self.gathered(beside)).text
        blocks, name = self.parts(how, number), f"r{len(self.folds)}"
        if isinstance(step, OnlineReduction):
            (other,) = self.parts(_Accumulator(step.reference, self.wide), self.earlier[beside][0])
            self.line(f"{name}_parts = {blocks[0]}")
            self.line(f"{name}_beside = {other}")
            self.moved_parts(step, name, whole)
            blocks = [f"{name}_parts"]
        made = self.folded(how, blocks, name)
        if isinstance(step, OnlineReduction):
            self.settled(step, name, whole)
        value = self.folds[key] = self.finished(how, made, name)
        return value

    def parts(self, how: _Accumulator, number: int) -> list[str]:
        """What the chunks of a row have left, side by side."""
        self.constants["CHUNKS"] = self.config.chunks
        lanes = "tl.arange(0, CHUNKS)" + ("[None, :]" if self.layout.rows else "")
        mask = f", mask={self.masks['R']}, other=0" if self.layout.rows else ""
        works = self.works_of(how, number)
        self.works |= dict.fromkeys(works)
        return [f"tl.load({work.name} + {self.place_of_part(lanes)}{mask})" for work in works]

    def moved_parts(self, step: OnlineReduction, name: str, whole: str) -> None:
        """Parts about what the other fold has come to for all of them."""
        parts = f"{name}_parts, {name}_beside"
        if step.kind == "exp":
            self.line(f"{name}_parts = {self.helper('moved_exp')}({parts}, {whole})")
            return
        (space,) = self.layout.spaces.values()
        kind, total, block = TL[step.body.dtype], self.size(space.total), self.tile_of(space)
        chunks = "tl.arange(0, CHUNKS)" + ("[None, :]" if self.layout.rows else "")
        self.line(f"length = tl.cdiv(tl.cdiv({total}, {block}), CHUNKS) * {block}")
        self.line(f"turns = tl.minimum(tl.maximum({total} - {chunks} * length, 0), length).to({kind})")
        moved = self.helper("moved_squares")
        self.line(f"{name}_parts = {moved}({parts}, turns, {whole}, tl.full([], {total}, {kind}))")


def _extreme(dtype: torch.dtype, *, lowest: bool) -> str:
    if dtype.is_floating_point:
        return f'float("{"-" * lowest}inf")'
    return str(torch.iinfo(dtype).min if lowest else torch.iinfo(dtype).max)
