"""Print kernels as Triton programs that each take a tile of rows and columns.

The outer loops of a kernel are *rows*, the inner loops of its reductions and stores are *columns*. A program
takes `ROWS` rows and `COLS` columns at once, as blocks of shape ``[ROWS, 1]``, ``[1, COLS]`` and
``[ROWS, COLS]``; without rows, blocks are one-dimensional. Steps with equally many columns share a tile, so
what they load is loaded once. If there are more columns than `COLS`, they are a loop, and reductions keep an
accumulator of the tile's shape. If there are few rows, `CHUNKS` programs share them: each reduces a chunk,
and the next function combines the partial results. A sum that depends on another reduction in the same loop
(`OnlineReduction`) is relative to that lane's current value of the other, and is rescaled to the final value
after the loop.

Integers that come from shapes are arguments, so one text serves many shapes. Indices are int32 unless one
exceeds it. Arithmetic is torch's: 16-bit floats are computed in float32, division and square root are
correctly rounded, maximum and minimum propagate NaN.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import torch

from burnt.codegen.ir import (
    Buffer,
    Index,
    Kernel,
    OnlineReduction,
    PartialSum,
    Reduction,
    ReductionStep,
    ScanStep,
    Store,
    Var,
)
from burnt.codegen.ir.expr import extreme, walk
from burnt.codegen.render.triton.expr import NO_GUARD, TL_DTYPES, ExprPrinter, TileValue, literal
from burnt.codegen.render.triton.layout import ColumnSpace, Layout
from burnt.codegen.render.triton.matmul import matmul_structure, print_matmul
from burnt.codegen.render.triton.matmul_config import MatmulConfig
from burnt.codegen.render.triton.source import (
    AnyConfig,
    AnyStructure,
    DeviceFunction,
    FailedFlag,
    ScalarArg,
    TritonSource,
    Workspace,
)
from burnt.codegen.render.triton.tile_config import TileConfig, next_power_of_two


def structure_of(kernel: Kernel) -> AnyStructure:
    """Return what the choice of a kernel's block sizes depends on."""
    return matmul_structure(kernel) if kernel.matmul is not None else Layout(kernel).structure()


def print_kernel(kernel: Kernel, config: AnyConfig) -> TritonSource:
    """Print a kernel as Triton; the text is the same for all block sizes that need the same loops.

    The last function has the kernel's name; those before it are ``NAME_part0`` and so on.
    """
    if isinstance(config, MatmulConfig):
        return print_matmul(kernel, config)
    layout = Layout(kernel)
    if kernel.num_chunks:  # a program holds whole rows
        config = dataclasses.replace(config, cols=next_power_of_two(layout.structure().cols), chunks=1)
    groups = layout.group_steps(config)
    if config.chunks > 1 and layout.can_chunk:
        chunked_groups, remaining = [], []
        for group in groups:
            if isinstance(group[0], ReductionStep) and group[0].inner:
                chunked_groups.append(group)
            else:
                remaining += group
        stages = [[group] for group in chunked_groups] + [layout.regroup_after_chunks(remaining)]
    else:
        config = dataclasses.replace(config, chunks=1)
        stages = [groups]
    texts, functions, helpers = [], [], set[str]()
    for i, stage in enumerate(stages):
        name = kernel.name if i == len(stages) - 1 else f"{kernel.name}_part{i}"
        earlier = [step for before in stages[:i] for group in before for step in group]
        printer = _TilePrinter(layout, config, name, last=i == len(stages) - 1)
        printer.emit_body(stage, [step for step in earlier if isinstance(step, ReductionStep)])
        texts.append(printer.text())
        functions.append(printer.function())
        helpers |= printer.helpers
    header = "import triton\nimport triton.language as tl\n"
    if helpers:
        names = ", ".join(sorted(helpers))
        header += f"from burnt.codegen.render.triton.device_math import {names}\n"
    return TritonSource("\n\n".join([header, *texts]), tuple(functions), config)


class _Accumulator:
    """How a reduction or scan is computed: its identity, its combining function and its result."""

    def __init__(self, step: ReductionStep | ScanStep, needs_int64: bool) -> None:
        reduction = step.reduction if isinstance(step, ReductionStep) else step.scan
        kind, self.dtype = reduction.kind, step.body.dtype
        self.kind, self.result_dtype = kind, reduction.dtype
        self.is_arg = kind.startswith("arg")
        self.index_dtype = torch.int64 if needs_int64 else torch.int32
        self.no_index = str(torch.iinfo(self.index_dtype).max)
        self.is_bool = self.dtype == torch.bool
        self.compute_dtype = torch.int32 if self.is_bool else self.dtype
        if kind in ("sum", "any"):
            self.identity = "0"
        elif kind in ("prod", "all"):
            self.identity = "1"
        else:
            self.identity = literal(
                extreme(self.compute_dtype, lowest=not kind.endswith("min")), self.compute_dtype
            )
        # Sums keep to torch's dtype, which `tl.sum` would make wider.
        self.combine = {
            "sum": "", "prod": "multiply", "any": "bitwise_or", "all": "bitwise_and", "max": "maximum",
            "min": "minimum", "argmax": "argmax", "argmin": "argmin",
            "logsumexp": "log_add_exp",
        }[kind]  # fmt: skip
        if isinstance(step, ScanStep) and self.is_arg:
            self.combine, self.no_index = self.combine.replace("arg", "last_"), "-1"

    @property
    def blocks(self) -> list[tuple[str, str, torch.dtype]]:
        """Return the suffix of the name, the initial value and the dtype of each block of the accumulator."""
        first = [("", self.identity, self.compute_dtype)]
        return [*first, ("_at", self.no_index, self.index_dtype)] if self.is_arg else first


class _TilePrinter(ExprPrinter):
    """Print one function: `emit_body` appends its lines, `text` puts the signature before them."""

    def __init__(self, layout: Layout, config: TileConfig, name: str, *, last: bool) -> None:
        super().__init__(layout, name)
        self.config, self.last = config, last
        self.needs_int64 = layout.needs_int64(config)
        self.workspaces: dict[Workspace, None] = {}
        self.constants: dict[str, int] = {}
        self.row_name = self.column_name = ""
        self.column_names: dict[int, str] = {}
        self.partial_reductions: dict[tuple[Reduction, Index], tuple[int, ReductionStep]] = {}
        self.partial_sums: dict[PartialSum, str] = {}
        self.num_loops = 0

    # --- the function -------------------------------------------------------------------------------------

    def text(self) -> str:
        names = [
            *(b.name for b in self.buffers),
            *(w.name for w in self.workspaces),
            *["failed"] * self.can_fail,
        ]
        names += [f'f{n}: "fp64"' if is_double else f"f{n}" for n, is_double in self.scalar_args.items()]
        names += [*self.sizes.values(), *(f"{name}: tl.constexpr" for name in self.constants)]
        header = f"def {self.name}({', '.join(names)}):"
        return "\n".join(["@triton.jit", header, *self.lines, ""])

    def function(self) -> DeviceFunction:
        layout = self.layout
        rows = math.prod(v.extent for v in layout.row_loops)
        if layout.kernel.num_chunks:
            rows = layout.kernel.num_chunks * self.constants["ROWS"]
        programs = math.prod(v.extent for v in layout.program_loops) * -(
            -rows // self.constants.get("ROWS", 1)
        )
        if layout.column_loops:
            programs *= -(-layout.spaces[-1].total // self.constants[layout.block_name(layout.spaces[-1])])
        if self.is_chunked:
            programs *= self.config.chunks
        arguments: list[Buffer | Workspace | FailedFlag | ScalarArg | int] = [*self.buffers, *self.workspaces]
        arguments += [FailedFlag()] * self.can_fail
        arguments += [*map(ScalarArg, self.scalar_args), *self.sizes]
        return DeviceFunction(self.name, tuple(arguments), dict(self.constants), programs)

    def emit_body(
        self, groups: Sequence[Sequence[ReductionStep | ScanStep | Store]], earlier: Sequence[ReductionStep]
    ) -> None:
        """Emit the lines of the function: steps that share a tile and a loop are grouped together.

        The partial results of `earlier` reductions come from previous functions.
        """
        layout = self.layout
        self.partial_reductions = {(step.reduction, step.index): (i, step) for i, step in enumerate(earlier)}
        self.is_chunked = self.config.chunks > 1 and any(step.inner for group in groups for step in group)
        if layout.kernel.num_chunks:
            self.emit_chunk_of_rows(groups)
            return
        self.emit_program_indices()
        for group in [[step for steps in groups for step in steps]] if layout.column_loops else groups:
            space = layout.space_of(group[0])
            if space is not None and (self.is_chunked or space.total > self.config.cols):
                self.emit_loop(space, group)
                continue
            self.emit_tile(space, group)

    def emit_tile(self, space: ColumnSpace | None, group: Sequence[ReductionStep | ScanStep | Store]) -> None:
        """Emit steps whose columns are all in one tile."""
        if space is not None:
            if space.index not in self.column_names:
                self.emit_columns(space, "", self.size_arg(space.total))
            self.enter_tile(space)
        for step in group:
            if isinstance(step, ReductionStep):
                self.emit_reduction(step)
            elif isinstance(step, ScanStep):
                self.emit_scan(step, [])
        self.store_all(group)

    def emit_chunk_of_rows(self, groups: Sequence[Sequence[ReductionStep | ScanStep | Store]]) -> None:
        """Emit a loop over the rows of one chunk, of which the program stores partial sums."""
        layout, row_vars = self.layout, set(self.layout.row_loops)
        rows, chunks = math.prod(v.extent for v in row_vars), layout.kernel.num_chunks
        self.constants |= {"CHUNKS": chunks, "ROWS": min(self.config.rows, next_power_of_two(rows))}
        self.emit("chunk = tl.program_id(0)" + ".to(tl.int64)" * self.needs_int64)
        for space in layout.spaces.values():
            self.emit_columns(space, "", self.size_arg(space.total))
            self.enter_tile(space)
            self.hoist([step.body for step in layout.steps if layout.space_of(step) is space], row_vars)
        sums = [step for step in layout.steps if isinstance(step, PartialSum)]
        for step in sums:
            name = self.partial_sums[step] = f"p{len(self.partial_sums)}"
            shape = f"[ROWS, {self.tile_width(layout.spaces[math.prod(v.extent for v in step.inner)])}]"
            self.emit(f"{name} = tl.full({shape}, 0, {TL_DTYPES[step.body.dtype]})")
        self.emit(f"length = tl.cdiv(tl.cdiv({self.size_arg(rows)}, ROWS), CHUNKS) * ROWS")
        self.emit(f"end = tl.minimum((chunk + 1) * length, {self.size_arg(rows)})")
        self.emit("for start in tl.range(chunk * length, end, ROWS, num_stages=2):")
        self.depth += 1
        before = dict(self.memo), dict(self.loop_values)
        self.emit_flat_index("row", "start + tl.arange(0, ROWS)[:, None]", layout.row_loops, "R", "end")
        for group in groups:
            self.emit_tile(layout.space_of(group[0]), group)
        self.depth -= 1
        self.memo, self.loop_values = before
        for step in sums:
            name, buffer = self.partial_sums[step], step.buffer
            self.buffers[buffer] = None
            self.enter_tile(layout.spaces[math.prod(v.extent for v in step.inner)])
            offset = f"chunk * {self.size_arg(math.prod(buffer.shape[1:]))}"
            index = self.index_text(step.offset, NO_GUARD).text
            self.emit(f"{name} = tl.sum({name}, 0, keep_dims=True)")
            self.emit(f"tl.store({buffer.name} + {offset} + {index}, {name}, mask={self.masks['C']})")

    def store(self, step: Store, value: TileValue) -> None:
        """Emit the store of a block, or add it to a partial sum."""
        if not isinstance(step, PartialSum):
            super().store(step, value)
            return
        name, masks = self.partial_sums[step], f"{self.masks['R']} & {self.masks['C']}"
        self.emit(f"{name} = {name} + tl.where({masks}, {self.as_typed(value, step.body.dtype)}, 0)")

    def emit_program_indices(self) -> None:
        """Split the program id into the indices of rows and columns, the fastest-varying first."""
        layout = self.layout
        pid = "tl.program_id(0)" + ".to(tl.int64)" * self.needs_int64
        rows = math.prod(v.extent for v in layout.row_loops)
        space = layout.spaces.get(-1)
        part_sizes = {}
        if space is not None:
            block = self.tile_width(space)
            part_sizes["start"] = f"tl.cdiv({self.size_arg(space.total)}, {block})"
        if self.is_chunked:
            self.constants["CHUNKS"] = self.config.chunks
            part_sizes["chunk"] = "CHUNKS"
        if layout.row_loops:
            self.constants["ROWS"] = min(self.config.rows, next_power_of_two(rows))
            part_sizes["row"] = f"tl.cdiv({self.size_arg(rows)}, ROWS)"
        if layout.program_loops:
            part_sizes["lead"] = ""
        if not part_sizes:
            return
        part_texts = {}
        if len(part_sizes) > 1:
            self.emit(f"pid = {pid}")
            pid = "pid"
            for part, count in list(part_sizes.items())[:-1]:
                self.emit(f"{part} = pid % {count}")
                self.emit(f"pid = pid // {count}")
                part_texts[part] = part
        part_texts[list(part_sizes)[-1]] = pid
        if list(part_sizes)[-1] == "chunk":
            self.emit(f"chunk = {pid}")
        if layout.row_loops:
            self.emit_flat_index(
                "row", f"{part_texts['row']} * ROWS + tl.arange(0, ROWS)[:, None]", layout.row_loops, "R"
            )
        if layout.program_loops:
            if pid != "pid":
                self.emit(f"pid = {pid}")
            self.emit_loop_indices("pid", layout.program_loops, "")
        if space is not None:
            self.emit_columns(space, f"{part_texts['start']} * {self.block}", self.size_arg(space.total))
            self.enter_tile(space)

    def emit_flat_index(self, name: str, text: str, loops: Sequence[Var], axis: str, end: str = "") -> str:
        """Emit a flattened index, its mask and the indices of the loops that it combines; return its name."""
        if len(loops) == 1:
            name = f"i{len(self.loop_values)}"
            self.loop_values[loops[0]] = TileValue(name, axis)
        self.emit(f"{name} = {text}")
        self.emit(f"in_{name} = {name} < {end or self.size_arg(math.prod(v.extent for v in loops))}")
        if axis == "R":
            self.row_name, self.masks["R"] = name, f"in_{name}"
        if len(loops) > 1:
            self.emit_loop_indices(name, loops, axis)
        return name

    def emit_loop_indices(self, flat: str, loops: Sequence[Var], axis: str) -> None:
        """Emit the index of each loop of a flattened index."""
        for k, v in enumerate(loops):
            inner_size = math.prod(u.extent for u in loops[k + 1 :])
            text = flat if inner_size == 1 else f"{flat} // {self.size_arg(inner_size)}"
            name = f"i{len(self.loop_values)}"
            self.loop_values[v] = TileValue(name, axis)
            self.emit(f"{name} = {text} % {self.size_arg(v.extent)}" if k else f"{name} = {text}")

    def tile_width(self, space: ColumnSpace) -> str:
        """Make these columns the current block and return the name of its width."""
        self.block = self.layout.block_name(space)
        self.constants[self.block] = min(self.config.cols, next_power_of_two(space.total))
        return self.block

    def emit_columns(self, space: ColumnSpace, start: str, end: str) -> None:
        """Emit the column indices of a tile."""
        text = f"tl.arange(0, {self.tile_width(space)})"
        text += "[None, :]" if self.layout.row_loops else ""
        text += ".to(tl.int64)" if self.needs_int64 else ""
        text = f"{start} + {text}" if start else text
        loops = [self.layout.column_loops] if self.layout.column_loops else list(space.loops.values())
        loops.sort(key=len)
        name = f"col{space.index or ''}"
        name = self.emit_flat_index(name, text, loops[0], "C", end)
        for loops_of_step in loops[1:]:
            self.emit_loop_indices(name, loops_of_step, "C")
        self.column_names[space.index] = name

    def enter_tile(self, space: ColumnSpace) -> None:
        """Make a tile the one whose columns and mask are used."""
        self.block = self.layout.block_name(space)
        self.column_name = self.column_names[space.index]
        self.masks["C"] = f"in_{self.column_name}"

    # --- reductions ---------------------------------------------------------------------------------------

    def emit_reduction(self, step: ReductionStep) -> None:
        """Emit the reduction of a single tile."""
        key, name = (step.reduction, step.index), f"r{len(self.reductions)}"
        value = self.visit(step.element if isinstance(step, OnlineReduction) else step.body)
        if not step.inner:
            kind = step.reduction.kind
            if kind.startswith("arg"):
                value = TileValue("tl.full([], 0, tl.int64)")
            elif kind == "sum" and step.body.dtype.is_floating_point:
                value = TileValue(f"({self.as_typed(value, step.body.dtype)} + 0.0)", value.axes)  # never -0
            self.reductions[key] = value
            return
        accumulator = _Accumulator(step, self.needs_int64)
        self.reductions[key] = self.cast_result(
            accumulator, self.emit_reduce(accumulator, self.masked_blocks(accumulator, value), name), name
        )

    def masked_blocks(self, accumulator: _Accumulator, value: TileValue) -> list[str]:
        """Return the blocks to reduce, with the identity in lanes outside of the tile."""
        text, column = self.as_typed(value, accumulator.dtype), self.masks["C"]
        if accumulator.is_bool:
            text = f"{text}.to(tl.int32)"
        if self.layout.row_loops and (accumulator.is_arg or "R" not in value.axes):
            column = f"{self.masks['R']} & {column}"
        blocks = [f"tl.where({column}, {text}, {accumulator.identity})"]
        return (
            [*blocks, f"tl.where({column}, {self.column_name}, {accumulator.no_index})"]
            if accumulator.is_arg
            else blocks
        )

    def emit_reduce(self, accumulator: _Accumulator, blocks: Sequence[str], name: str) -> list[str]:
        """Emit the reduction of blocks along their columns; return the names of the results."""
        axis_args = "1, {}keep_dims=True" if self.layout.row_loops else "0{}"
        names = [name + suffix for suffix, _, _ in accumulator.blocks]
        operands = blocks[0] if len(blocks) == 1 else f"({', '.join(blocks)})"
        if accumulator.kind == "sum":
            self.emit(f"{name} = tl.sum({operands}, {axis_args.format('')})")
        else:
            combine_arg = accumulator.combine + (", " if self.layout.row_loops else "")
            combine_arg = combine_arg if self.layout.row_loops else f", {combine_arg}"
            arguments = axis_args.format(self.helper(combine_arg, accumulator.combine))
            self.emit(f"{', '.join(names)} = tl.reduce({operands}, {arguments})")
        return names

    def cast_result(self, accumulator: _Accumulator, names: Sequence[str], name: str) -> TileValue:
        """Emit the conversion of a reduction's result to its dtype."""
        text = names[-1]
        if accumulator.is_bool and not accumulator.is_arg:
            self.emit(f"{name} = {text} != 0")
        elif accumulator.is_arg or (accumulator.kind == "sum" and not accumulator.dtype.is_floating_point):
            self.emit(f"{name} = {text}.to({TL_DTYPES[accumulator.result_dtype]})")
        return TileValue(name, "R" if self.layout.row_loops else "")

    def emit_loop(self, space: ColumnSpace, group: Sequence[ReductionStep | ScanStep | Store]) -> None:
        """Emit one loop for steps with more columns than a tile."""
        reductions = [step for step in group if isinstance(step, ReductionStep)]
        self.hoist([step.body for step in group], {v for loops in space.loops.values() for v in loops})
        block, end = self.tile_width(space), self.size_arg(space.total)
        shape = f"[ROWS, {block}]" if self.layout.row_loops else f"[{block}]"
        accumulators = [_Accumulator(step, self.needs_int64) for step in reductions]
        first = len(self.reductions)
        sums = [s for s in reductions if isinstance(s, OnlineReduction) and s.kind == "exp"]
        by_group = {*sums, *(step.reference for step in sums)}  # a maximum for some neighbouring elements
        if by_group:
            self.constants["GROUP"] = self.group_size(sums)
        for k, (step, accumulator) in enumerate(zip(reductions, accumulators, strict=True)):
            own_shape = shape.replace("]", " // GROUP]") if step in by_group else shape
            for suffix, start, dtype in accumulator.blocks:
                self.emit(f"a{first + k}{suffix} = tl.full({own_shape}, {start}, {TL_DTYPES[dtype]})")
        online = {
            step: f"a{first + k}" for k, step in enumerate(reductions) if isinstance(step, OnlineReduction)
        }
        for online_step, name in online.items():
            if online_step.kind == "squares":
                self.emit(f"{name}_count = tl.full([], 0, {TL_DTYPES[online_step.body.dtype]})")
        carried = self.emit_carries(group)
        start = f"start{self.num_loops or ''}"
        self.num_loops += 1
        if self.is_chunked:
            self.emit(f"length = tl.cdiv(tl.cdiv({end}, {block}), CHUNKS) * {block}")
            self.emit(f"end = tl.minimum((chunk + 1) * length, {end})")
            end = "end"
        # The loop variable runs up to a block past the end, which may overflow 32 bits.
        begin = (
            "chunk * length" if self.is_chunked else "tl.full([], 0, tl.int64)" if self.needs_int64 else "0"
        )
        self.emit(f"for {start} in range({begin}, {end}, {block}):")
        self.depth += 1
        memo_before, loop_values_before = dict(self.memo), dict(self.loop_values)
        self.emit_columns(space, start, end)
        self.enter_tile(space)
        accumulator_names = {step: f"a{first + k}" for k, step in enumerate(reductions)}
        # Before the other reduction includes these elements.
        for reference in dict.fromkeys(step.reference for step in sums):
            own = {online[step]: step for step in sums if step.reference == reference}
            self.accumulate_exponentials(own, accumulator_names[reference], shape)
        for online_step, name in online.items():
            if online_step.kind == "squares":
                self.accumulate_squares(online_step, name, accumulator_names[online_step.reference])
        for step, accumulator in zip(reductions, accumulators, strict=True):
            if step not in online and step not in by_group:
                self.accumulate(
                    accumulator,
                    accumulator_names[step],
                    self.masked_blocks(accumulator, self.visit(step.body)),
                )
        for scan, carry in carried:
            self.emit_scan(scan, carry)
        self.store_all(group)
        self.depth -= 1
        self.memo, self.loop_values = memo_before, loop_values_before
        results = {step: f"r{first + k}" for k, step in enumerate(reductions)}
        for k, (step, accumulator) in enumerate(zip(reductions, accumulators, strict=True)):
            name = results[step]
            if isinstance(step, OnlineReduction):
                self.rescale_lanes(
                    step, accumulator_names[step], accumulator_names[step.reference], results[step.reference]
                )
            reduced = self.emit_reduce(
                accumulator, [f"a{first + k}{suffix}" for suffix, _, _ in accumulator.blocks], name
            )
            if self.is_chunked:
                self.store_partials(accumulator, reduced, len(self.partial_reductions) + k)
                continue
            if isinstance(step, OnlineReduction):
                self.replace_nonfinite(step, name, results[step.reference])
            self.reductions[step.reduction, step.index] = self.cast_result(accumulator, reduced, name)

    def accumulate(self, accumulator: _Accumulator, name: str, blocks: Sequence[str]) -> None:
        """Emit the update of an accumulator with a tile."""
        names = [name + suffix for suffix, _, _ in accumulator.blocks]
        if accumulator.kind == "sum":
            text = f"{name} + {blocks[0]}"
            # Narrow integers wrap around, as they do in memory.
            self.emit(f"{name} = {text}")
        else:
            self.emit(
                f"{', '.join(names)} = {self.helper(accumulator.combine)}({', '.join([*names, *blocks])})"
            )

    # --- online reductions --------------------------------------------------------------------------------

    def group_size(self, sums: Sequence[OnlineReduction]) -> int:
        """Return how many neighbouring elements share a maximum: those that a thread reads at once."""
        loads = [e for e in walk([step.body for step in sums]) if e.op == "load"]
        nbytes = min((e.extra[0].dtype.itemsize for e in loads), default=4)
        elements = self.constants[self.block] * self.constants.get("ROWS", 1)
        return max(1, min(16 // nbytes, elements // (32 * self.config.warps), self.constants[self.block]))

    def accumulate_exponentials(
        self, sums: Mapping[str, OnlineReduction], reference: str, shape: str
    ) -> None:
        """Add a tile to sums of exponentials, relative to each group's maximum so far, and to the maximum."""
        for number, (name, step) in enumerate(sums.items()):
            beside = _Accumulator(step.reference, self.needs_int64)
            (block,) = self.masked_blocks(beside, self.visit(step.body))
            self.emit(f"group = tl.reshape({block}, {shape.replace(']', ' // GROUP, GROUP]')})")
            if not number:
                self.emit(f"larger = {self.helper('online_maximum')}({reference}, group)")
            self.emit(f"{name} = {self.helper('online_add_exp')}({name}, {reference}, larger, group)")
        self.emit(f"{reference} = larger")

    def accumulate_squares(self, step: OnlineReduction, name: str, beside: str) -> None:
        """Add a tile to squared deviations, relative to each lane's mean so far."""
        beside_accumulator = _Accumulator(step.reference, self.needs_int64)
        (block,) = self.masked_blocks(beside_accumulator, self.visit(step.body))
        updated = f"{self.helper('online_add_square')}({name}, {beside}, {name}_count, {block})"
        self.emit(f"{name} = tl.where({self.masks['C']}, {updated}, {name})")
        self.emit(f"{name}_count += 1")

    def rescale_lanes(self, step: OnlineReduction, name: str, beside: str, reference: str) -> None:
        """Rescale an online sum from each lane's reference to the final value of the other reduction."""
        if step.kind == "exp":
            self.emit(f"{name} = {self.helper('rescale_exp')}({name}, {beside}, {reference})")
            return
        first, end = ("chunk * length", "end") if self.is_chunked else ("0", self.size_arg(step.iterations))
        lane_indices = f"tl.arange(0, {self.block})" + ("[None, :]" if self.layout.row_loops else "")
        tl_dtype = TL_DTYPES[step.body.dtype]
        remaining = f"tl.maximum({end} - {first} - {lane_indices}, 0)"
        self.emit(f"{name}_counts = tl.cdiv({remaining}, {self.block}).to({tl_dtype})")
        self.emit(f"{name}_count = tl.maximum({end} - {first}, 0).to({tl_dtype})")
        helper = self.helper("rescale_squares")
        self.emit(f"{name} = {helper}({name}, {beside}, {name}_counts, {reference}, {name}_count)")

    def replace_nonfinite(self, step: OnlineReduction, name: str, maximum: str) -> None:
        """Emit the result of a sum of exponentials whose maximum is infinite or NaN."""
        if step.kind == "exp":
            fallback = (
                f"{self.helper('exp')}({maximum})" if step.ignores_infinite_max else f"{maximum} - {maximum}"
            )
            self.emit(f'{name} = tl.where(tl.abs({maximum}) < float("inf"), {name}, {fallback})')

    # --- scans --------------------------------------------------------------------------------------------

    def emit_carries(
        self, group: Sequence[ReductionStep | ScanStep | Store]
    ) -> list[tuple[ScanStep, list[str]]]:
        """Emit the initial values of the results that scans carry from tile to tile."""
        shape = "[ROWS, 1]" if self.layout.row_loops else "[]"
        carries = []
        for k, step in enumerate(step for step in group if isinstance(step, ScanStep)):
            parts = _Accumulator(step, self.needs_int64).blocks
            for suffix, start, dtype in parts:
                self.emit(f"c{k}{suffix} = tl.full({shape}, {start}, {TL_DTYPES[dtype]})")
            carries.append((step, [f"c{k}{suffix}" for suffix, _, _ in parts]))
        return carries

    def emit_scan(self, step: ScanStep, carry: Sequence[str]) -> None:
        """Emit the scan of a tile, continued from the carry of the tiles before."""
        accumulator, name, axis = (
            _Accumulator(step, self.needs_int64),
            f"s{len(self.scans)}",
            1 if self.layout.row_loops else 0,
        )
        blocks = []
        for (suffix, _, _), text in zip(
            accumulator.blocks, self.masked_blocks(accumulator, self.visit(step.body)), strict=True
        ):
            self.emit(f"{name}{suffix}_tile = {text}")
            blocks.append(f"{name}{suffix}_tile")
        names = [name + suffix for suffix, _, _ in accumulator.blocks]
        if accumulator.kind == "sum":
            self.emit(f"{name} = tl.cumsum({blocks[0]}, {axis})")
        else:
            operands = blocks[0] if len(blocks) == 1 else f"({', '.join(blocks)})"
            combine = self.helper(accumulator.combine)
            self.emit(f"{', '.join(names)} = tl.associative_scan({operands}, {axis}, {combine})")
        if carry:
            tile_total = self.emit_reduce(accumulator, blocks, f"{name}_whole")
            for targets, others in ((names, names), (carry, tile_total)):
                combined = (
                    f"{carry[0]} + {others[0]}"
                    if accumulator.kind == "sum"
                    else f"{accumulator.combine}({', '.join([*carry, *others])})"
                )
                self.emit(f"{', '.join(targets)} = {combined}")
        value = TileValue(names[-1], "RC" if self.layout.row_loops else "C")
        if accumulator.is_arg or accumulator.compute_dtype != accumulator.result_dtype:
            value = self.define(f"{names[-1]}.to({TL_DTYPES[accumulator.result_dtype]})", value.axes)
        self.scans[step.scan, step.index] = value

    # --- partial results ----------------------------------------------------------------------------------

    def workspaces_of(self, accumulator: _Accumulator, number: int) -> list[Workspace]:
        """Return the workspaces that hold the partial results of a reduction."""
        size = math.prod(v.extent for v in self.layout.kernel.outer) * self.config.chunks
        return [Workspace(f"w{number}{suffix}", size, dtype) for suffix, _, dtype in accumulator.blocks]

    def partial_offset(self, chunk: str) -> str:
        """Return the offset of a chunk's partial result; one chunk's are contiguous."""
        if not self.layout.row_loops:
            return chunk
        rows = math.prod(v.extent for v in self.layout.kernel.outer)
        row = self.row_name
        if self.layout.program_loops:
            row = f"pid * {self.size_arg(self.layout.row_loops[0].extent)} + {row}"
        return f"{chunk} * {self.size_arg(rows)} + {row}"

    def store_partials(self, accumulator: _Accumulator, names: Sequence[str], number: int) -> None:
        """Store partial results for the next function."""
        mask = f", mask={self.masks['R']}" if self.layout.row_loops else ""
        for workspace, name in zip(self.workspaces_of(accumulator, number), names, strict=True):
            self.workspaces[workspace] = None
            self.emit(f"tl.store({workspace.name} + {self.partial_offset('chunk')}, {name}{mask})")

    def combine_partials(self, key: tuple[Reduction, Index]) -> TileValue:
        """Emit the reduction of a previous function's partial results; return its value."""
        number, step = self.partial_reductions[key]
        accumulator, reference = _Accumulator(step, self.needs_int64), ""
        if isinstance(step, OnlineReduction):
            beside = (step.reference.reduction, step.reference.index)
            reference = (
                self.reductions[beside] if beside in self.reductions else self.combine_partials(beside)
            ).text
        blocks, name = self.load_partials(accumulator, number), f"r{len(self.reductions)}"
        if isinstance(step, OnlineReduction):
            (beside_parts,) = self.load_partials(
                _Accumulator(step.reference, self.needs_int64), self.partial_reductions[beside][0]
            )
            self.emit(f"{name}_parts = {blocks[0]}")
            self.emit(f"{name}_beside = {beside_parts}")
            self.rescale_partials(step, name, reference)
            blocks = [f"{name}_parts"]
        reduced = self.emit_reduce(accumulator, blocks, name)
        if isinstance(step, OnlineReduction):
            self.replace_nonfinite(step, name, reference)
        value = self.reductions[key] = self.cast_result(accumulator, reduced, name)
        return value

    def load_partials(self, accumulator: _Accumulator, number: int) -> list[str]:
        """Return the loads of the partial results of all chunks of a row."""
        self.constants["CHUNKS"] = self.config.chunks
        chunk_indices = "tl.arange(0, CHUNKS)" + ("[None, :]" if self.layout.row_loops else "")
        mask = f", mask={self.masks['R']}, other=0" if self.layout.row_loops else ""
        workspaces = self.workspaces_of(accumulator, number)
        self.workspaces |= dict.fromkeys(workspaces)
        return [
            f"tl.load({workspace.name} + {self.partial_offset(chunk_indices)}{mask})"
            for workspace in workspaces
        ]

    def rescale_partials(self, step: OnlineReduction, name: str, reference: str) -> None:
        """Rescale online partial sums to the final value of the other reduction."""
        parts = f"{name}_parts, {name}_beside"
        if step.kind == "exp":
            self.emit(f"{name}_parts = {self.helper('rescale_exp')}({parts}, {reference})")
            return
        (space,) = self.layout.spaces.values()
        tl_dtype, total, block = (
            TL_DTYPES[step.body.dtype],
            self.size_arg(space.total),
            self.tile_width(space),
        )
        chunk_indices = "tl.arange(0, CHUNKS)" + ("[None, :]" if self.layout.row_loops else "")
        self.emit(f"length = tl.cdiv(tl.cdiv({total}, {block}), CHUNKS) * {block}")
        remaining = f"tl.maximum({total} - {chunk_indices} * length, 0)"
        self.emit(f"counts = tl.minimum({remaining}, length).to({tl_dtype})")
        helper = self.helper("rescale_squares")
        self.emit(f"{name}_parts = {helper}({parts}, counts, {reference}, tl.full([], {total}, {tl_dtype}))")
