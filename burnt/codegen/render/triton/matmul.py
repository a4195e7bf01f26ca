"""Print matmul kernels: operands and epilogue as functions that `matmul_template` calls."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from burnt.codegen.ir import (
    Buffer,
    Expr,
    Index,
    IndexExpr,
    Kernel,
    Matmul,
    PartialSum,
    PooledMatmul,
    Reduction,
    ReductionStep,
    Var,
    depends_on,
    walk,
)
from burnt.codegen.ir.loops import max_index
from burnt.codegen.precision import dot_precision
from burnt.codegen.render.triton.expr import NO_GUARD, ExprPrinter, TileValue, union_axes
from burnt.codegen.render.triton.layout import INT32_INDEX_LIMIT, loop_overrun
from burnt.codegen.render.triton.matmul_config import MatmulConfig, MatmulStructure
from burnt.codegen.render.triton.source import DeviceFunction, FailedFlag, ScalarArg, TritonSource, Workspace
from burnt.codegen.schedule.matmul_column_sums import ROWS_PER_CHUNK

_HALF_DTYPES = {torch.bfloat16: "tl.bfloat16", torch.float16: "tl.float16"}
_EPILOGUE_ELEMENTS = 32  # elements of a tile that a thread's epilogue handles at a time
_MAX_BATCH_AXES = 3  # a descriptor has 5 axes, two of them the tile's
_SPLIT_K_TILE = 16, 32  # rows and columns of a tile whose split-K partial sums are added


class _TmaOperand(NamedTuple):
    """An operand that a tensor descriptor can address, and its memory layout."""

    buffer: Buffer  # the tensor's memory
    offset: int  # of the first element, in elements
    # The batch axes and the non-contiguous matrix axis, with their strides, outermost first.
    strided_axes: Sequence[tuple[Var, int]]
    contiguous_axis: Var  # the axis of stride 1
    is_transposed: bool  # whether that is the axis of rows


class _MatmulLayout:
    """The matmul of a kernel: its operands, and the loops of each of its axes."""

    def __init__(self, kernel: Kernel) -> None:
        step = kernel.matmul
        assert step is not None
        self.kernel, self.step = kernel, step
        *batch_index, row, column = step.index
        self.rows = self._loops([row])
        self.columns = self._loops([column])
        self.batches = self._loops(batch_index)
        self.terms = step.inner
        # An operand that needed no conversion is the bare element.
        self.left, self.right = step.body.args
        assert isinstance(step.reduction, Matmul)
        self.operand_dtype, self.precision = (
            step.reduction.stored_dtype,
            dot_precision(step.reduction.precision),
        )
        # The sum is over taps and channels, or positions: indices are divided by their sizes.
        self.is_convolution = len(step.reduction.extents) > 1
        self.column_sums = [s for s in kernel.stores if isinstance(s, PartialSum)]
        reductions = kernel.reductions.values()
        self.pool = next((s for s in reductions if isinstance(s.reduction, PooledMatmul)), None)
        stores = [s for s in kernel.stores if s not in self.column_sums]
        pooled_stores = [s for s in stores if self.pool is not None and depends_on(s, self.pool)]
        self.stores, self.pooled_stores = [s for s in stores if s not in pooled_stores], pooled_stores

    def _loops(self, index: Sequence[IndexExpr]) -> tuple[Var, ...]:
        """Return the outer loops that an index depends on."""
        variables = {v for ix in index for v in ix.variables()}
        return tuple(v for v in self.kernel.outer if v in variables)

    def operands(self) -> tuple[tuple[str, Expr, tuple[Var, ...], tuple[Var, ...]], ...]:
        """Return for both operands the side, the element, and the loops of its rows and of its columns."""
        return (("left", self.left, self.rows, self.terms), ("right", self.right, self.terms, self.columns))

    def tma_operand(
        self, expr: Expr, row_loops: Sequence[Var], column_loops: Sequence[Var]
    ) -> _TmaOperand | None:
        """Return the operand's memory layout if a tensor descriptor can address it, else None."""
        expr = self.strip_casts(expr)
        if (
            expr.op != "load"
            or expr.dtype != self.operand_dtype
            or len(row_loops) != 1
            or len(column_loops) != 1
        ):
            return None
        buffer, index = expr.extra
        loops = [*self.batches, *row_loops, *column_loops]
        if any(v not in loops for v in index.terms):
            return None  # a gather, or a quotient or remainder
        strides = {v: index.terms.get(v, 0) for v in loops}
        is_transposed = strides[row_loops[0]] == 1
        contiguous, strided = (
            (row_loops[0], column_loops[0]) if is_transposed else (column_loops[0], row_loops[0])
        )
        batch_axes = [v for v in self.batches if strides[v]]
        # Addresses and strides of a descriptor are multiples of 16 bytes.
        alignment = 16 // self.operand_dtype.itemsize
        aligned_values = [index.const, *(strides[v] for v in (*batch_axes, strided))]
        fits = strides[contiguous] == 1 and strides[strided] > 0 and len(batch_axes) <= _MAX_BATCH_AXES
        if not fits or any(value < 0 or value % alignment for value in aligned_values):
            return None
        return _TmaOperand(
            buffer, index.const, [(v, strides[v]) for v in (*batch_axes, strided)], contiguous, is_transposed
        )

    def strip_casts(self, expr: Expr) -> Expr:
        """Return an operand without the casts to the dtype that it is multiplied in."""
        dtype = expr.dtype
        while expr.op in ("cast", "as") and {expr.dtype, expr.args[0].dtype} <= {dtype, self.operand_dtype}:
            (expr,) = expr.args
        return expr

    def sizes(self) -> tuple[int, int, int, int]:
        """Return the numbers of batches, rows, columns and terms."""
        batches, rows, columns, terms = (
            math.prod(v.extent for v in loops)
            for loops in (self.batches, self.rows, self.columns, self.terms)
        )
        return batches, rows, columns, terms

    def needs_int64(self, config: MatmulConfig) -> bool:
        """Whether an index exceeds int32, including in the lanes of a tile beyond the end."""
        _, rows, columns, terms = self.sizes()
        split_k_blocks = (
            [*_SPLIT_K_TILE, ROWS_PER_CHUNK]
            if config.split > 1
            else [ROWS_PER_CHUNK] * bool(self.column_sums)
        )
        blocks = [config.block_m, *split_k_blocks], [config.block_n, *split_k_blocks], [config.block_k]
        overrun = loop_overrun(list(zip((self.rows, self.columns, self.terms), blocks, strict=True)))
        largest = [rows * columns, terms + config.split * config.block_k]
        largest += [max_index(index, overrun) for index in self.kernel.indices]
        return max(largest) > INT32_INDEX_LIMIT


def matmul_structure(kernel: Kernel) -> MatmulStructure:
    """Return what the choice of a matmul kernel's block sizes depends on."""
    matmul = _MatmulLayout(kernel)
    tensors = {e.extra[0] for e in walk([matmul.step.body]) if e.op == "load"}
    tma_operands = [
        matmul.tma_operand(expr, row_loops, column_loops)
        for _, expr, row_loops, column_loops in matmul.operands()
    ]
    itemsize = matmul.operand_dtype.itemsize
    return MatmulStructure(
        *matmul.sizes(),
        itemsize,
        len(tensors),
        sum(d is not None for d in tma_operands),
        is_exact=itemsize >= 4 and matmul.precision == "ieee",
        is_convolution=matmul.is_convolution,
    )


def print_matmul(kernel: Kernel, config: MatmulConfig) -> TritonSource:
    """Print a kernel with a matmul as Triton."""
    matmul = _MatmulLayout(kernel)
    if matmul.column_sums and config.block_m < ROWS_PER_CHUNK:
        # The config was selected for another kernel.
        config = dataclasses.replace(config, block_m=ROWS_PER_CHUNK)
    printer = _MatmulPrinter(matmul)
    operands = []
    for side, expr, row_loops, column_loops in matmul.operands():
        function = _FunctionPrinter(printer, f"{kernel.name}_{side}")
        tensor = matmul.tma_operand(expr, row_loops, column_loops) if config.descriptors else None
        if tensor is None:
            function.emit_operand(expr, row_loops, column_loops)
        else:
            function.emit_tma_operand(tensor)
        operands.append(function)
    epilogues = [_FunctionPrinter(printer, f"{kernel.name}_epilogue")]
    if matmul.pool is not None:
        epilogues.insert(0, _FunctionPrinter(printer, f"{kernel.name}_pooled_epilogue"))
        epilogues[0].emit_pooled_epilogue(matmul.pool)
    epilogues[-1].emit_epilogue()
    # Of a convolution, images are counted by the rows or the terms: their number is not a constant.
    are_arguments = False, True, False, True
    pairs = zip(matmul.sizes(), are_arguments, strict=True)
    sizes = [epilogues[-1].size_arg(size, is_argument=argument) for size, argument in pairs]
    return printer.print_source([*operands, *epilogues], config, sizes)


class _MatmulPrinter:
    """Print a matmul kernel; holds the arguments that its functions share."""

    def __init__(self, matmul: _MatmulLayout) -> None:
        self.matmul = matmul
        self.buffers: dict[Buffer, None] = {}
        self.scalar_args: dict[int, bool] = {}
        self.sizes: dict[int, str] = {}
        self.helpers: set[str] = set()

    def print_source(
        self, functions: Sequence[_FunctionPrinter], config: MatmulConfig, sizes: Sequence[str]
    ) -> TritonSource:
        """Join the functions, operands first, and add those to launch: one, or two with split-K.

        The template calls the last of the epilogues. `sizes` are the texts of the numbers of batches, rows,
        columns and terms.
        """
        matmul, name = self.matmul, self.matmul.kernel.name
        batches, rows, columns, terms = matmul.sizes()
        workspaces = [Workspace("parts", config.split * batches * rows * columns, torch.float32)] * (
            config.split > 1
        )
        # In the order of the launch arguments.
        arguments: dict[str, Buffer | Workspace | FailedFlag | ScalarArg | int] = {
            b.name: b for b in self.buffers
        }
        arguments |= {work.name: work for work in workspaces}
        arguments |= {"failed": FailedFlag()} if any(function.can_fail for function in functions) else {}
        arguments |= {f"f{n}": ScalarArg(n) for n in self.scalar_args}
        arguments |= {text: size for size, text in self.sizes.items()}
        args_text, memory = f"({', '.join(arguments)},)", "parts" if workspaces else next(iter(arguments))
        epilogue = functions[-1].name
        function_names = ", ".join(
            [*(p.name for p in functions[:2]), epilogue, *(str(p.descriptor_function) for p in functions[:2])]
        )
        blocks = {"BLOCK_M": config.block_m, "BLOCK_N": config.block_n, "BLOCK_K": config.block_k}
        # A convolution's residual takes as many registers again, and three programs fit with few.
        elements = _EPILOGUE_ELEMENTS // 2 if matmul.is_convolution else _EPILOGUE_ELEMENTS
        width = max(elements * 32 * config.warps // config.block_m, 16)
        constants = (
            f"{config.group}, {config.split}, {config.programs}, {width}, {terms % config.block_k == 0}"
        )
        texts = [function.text(list(arguments)) for function in functions]

        def add_function(name: str, call: str, programs: int, blocks: dict[str, int]) -> DeviceFunction:
            names = [*arguments, *(f"{block}: tl.constexpr" for block in blocks)]
            texts.append("\n".join(["@triton.jit", f"def {name}({', '.join(names)}):", f"    {call}", ""]))
            return DeviceFunction(name, tuple(arguments.values()), blocks, programs)

        wide = matmul.needs_int64(config)
        tiles = config.split * batches * -(-rows // config.block_m) * -(-columns // config.block_n)
        launched = [
            add_function(
                f"{name}_part0" if workspaces else name,
                f"matmul({args_text}, {memory}, {', '.join(sizes)}, {function_names}, "
                f'BLOCK_M, BLOCK_N, BLOCK_K, {constants}, "{matmul.precision}", {wide})',
                min(config.programs or tiles, tiles),
                blocks,
            )
        ]
        if workspaces:
            height, width = (ROWS_PER_CHUNK, 64) if matmul.column_sums else _SPLIT_K_TILE
            call = (
                f"reduce_split_k({args_text}, parts, {', '.join(sizes[:3])}, {epilogue}, {config.split}, "
                "HEIGHT, WIDTH, "
            )
            programs = batches * -(-rows // height) * -(-columns // width)
            blocks = {"HEIGHT": height, "WIDTH": width}
            launched.append(add_function(name, f"{call}{wide})", programs, blocks))
        header = "import triton\nimport triton.language as tl\n"
        imported = ["reduce_split_k"] * bool(workspaces) + ["store_row_sums"] * bool(matmul.column_sums)
        imported += ["group_index", "group_rows", "matmul"] if matmul.pool is not None else ["matmul"]
        header += f"from burnt.codegen.render.triton.matmul_template import {', '.join(imported)}\n"
        if self.helpers:
            names = ", ".join(sorted(self.helpers))
            header += f"from burnt.codegen.render.triton.device_math import {names}\n"
        return TritonSource("\n\n".join([header, *texts]), tuple(launched), config)


class _FunctionPrinter(ExprPrinter):
    """Print one function of a tile: an operand, or an epilogue."""

    def __init__(self, printer: _MatmulPrinter, name: str) -> None:
        super().__init__(printer.matmul, name)  # type: ignore[arg-type]
        self.matmul = printer.matmul
        self.keeps_storage_dtype = False  # do not widen loaded 16-bit floats
        self.buffers, self.scalar_args = printer.buffers, printer.scalar_args
        self.sizes, self.helpers = printer.sizes, printer.helpers
        self.masks = {"R": "in_row", "C": "in_column"}
        self.descriptor_expr: str | None = None
        self.parameters = "row, column, in_row, in_column, batch, args"

    def combine_partials(self, key: tuple[Reduction, Index]) -> TileValue:
        raise AssertionError("a matmul has no partial results of reductions")

    def block_shape(self, axes: str) -> str:
        return f"[{'row.shape[0]' if 'R' in axes else '1'}, {'column.shape[1]' if 'C' in axes else '1'}]"

    def is_literal(self, value: int) -> bool:
        # A division by a constant is a multiplication; by an argument, it is 20 instructions.
        return self.matmul.is_convolution or super().is_literal(value)

    def widening_cast(self, buffer: Buffer) -> str:
        return "" if self.keeps_storage_dtype else super().widening_cast(buffer)

    def text(self, arguments: Sequence[str]) -> str:
        """Return the function's text; `arguments` are the whole kernel's."""
        unpacked = (
            f"    {', '.join(arguments)}, = args"
            if len(arguments) == 1
            else f"    {', '.join(arguments)} = args"
        )
        lines = ["@triton.jit", f"def {self.name}({self.parameters}):", unpacked, *self.lines, ""]
        if self.descriptor_expr is not None:
            signature = f"def {self.descriptor_function}(args, ROWS: tl.constexpr, COLUMNS: tl.constexpr):"
            lines += ["", "@triton.jit", signature, unpacked, f"    {self.descriptor_expr}", ""]
        return "\n".join(lines)

    @property
    def descriptor_function(self) -> str | None:
        """The name of the function that makes the operand's tensor descriptor; None without one."""
        return None if self.descriptor_expr is None else f"{self.name}_descriptor"

    def emit_operand(self, expr: Expr, rows: Sequence[Var], columns: Sequence[Var]) -> None:
        """Emit a tile of an operand, in the dtype that it is multiplied in."""
        self.emit_loop_indices(rows, columns)
        operand_dtype = self.matmul.operand_dtype
        expr = self.matmul.strip_casts(expr)
        value_expr, conditions = expr, []
        while (
            value_expr.op == "masked"
            and value_expr.args[2].op == "const"
            and value_expr.args[2].extra[0] == 0
        ):
            conditions.append(value_expr.args[0])
            value_expr = value_expr.args[1]
        is_load = value_expr.op == "load" and value_expr.dtype == operand_dtype
        self.keeps_storage_dtype = is_load
        if is_load and conditions:
            # Masked-out lanes of a load are 0 already.
            values = [self.visit(condition) for condition in conditions]
            guard = TileValue(" & ".join(v.text for v in values), union_axes(*values))
            value = self.visit(value_expr, guard)
        else:
            value = self.visit(expr)
        if value.axes != "RC":
            value = TileValue(
                f"tl.broadcast_to({self.as_typed(value, expr.dtype)}, {self.block_shape('RC')})", "RC"
            )
        text = value.text
        if not is_load or value.text.startswith("tl."):
            # Lanes outside of the matmul must be 0, whatever the operand's expression computes from zeros.
            text = f"tl.where(in_row & in_column, {text}, 0.0)"
        if operand_dtype in _HALF_DTYPES and not is_load:
            text += f".to({_HALF_DTYPES[operand_dtype]})"
        self.emit(f"return {text}")

    def emit_tma_operand(self, tensor: _TmaOperand) -> None:
        """Emit the load of an operand's tile by tensor descriptor (TMA), and the descriptor."""
        self.emit_loop_indices((), ())
        self.buffers[tensor.buffer] = None
        base = tensor.buffer.name + (f" + {self.size_arg(tensor.offset)}" if tensor.offset else "")
        tile = ["COLUMNS", "ROWS"] if tensor.is_transposed else ["ROWS", "COLUMNS"]
        ones = ["1"] * (len(tensor.strided_axes) - 1)
        # A descriptor's extents have 32 bits.
        shape = [
            f"({self.size_arg(v.extent)}).to(tl.int32)"
            if v.extent > INT32_INDEX_LIMIT
            else self.size_arg(v.extent)
            for v in (*(v for v, _ in tensor.strided_axes), tensor.contiguous_axis)
        ]
        strides = [*(self.size_arg(stride) for _, stride in tensor.strided_axes), "1"]
        arguments = [f"[{', '.join(values)}]" for values in (shape, strides, [*ones, *tile])]
        self.descriptor_expr = f"return tl.make_tensor_descriptor({base}, {', '.join(arguments)})"
        self.parameters = "descriptor, row, column, batch, args, ROWS: tl.constexpr, COLUMNS: tl.constexpr"
        tile_index = ["column", "row"] if tensor.is_transposed else ["row", "column"]
        batch = [f"({self.loop_values[v].text}).to(tl.int32)" for v, _ in tensor.strided_axes[:-1]]
        self.emit(f"tile = descriptor.load([{', '.join([*batch, *tile_index])}]).reshape({', '.join(tile)})")
        self.emit(f"return tile{'.T' if tensor.is_transposed else ''}")

    def emit_epilogue(self) -> None:
        """Emit what is computed from a tile of sums, and its stores."""
        self.parameters = "sums, " + self.parameters
        self.emit_loop_indices(self.matmul.rows, self.matmul.columns)
        step: ReductionStep = self.matmul.step
        self.reductions[step.reduction, step.index] = TileValue("sums", "RC")
        stored_values = [(s, self.visit(s.body)) for s in self.matmul.stores]
        sum_values = [(s, self.visit(s.body)) for s in self.matmul.column_sums]
        for store, value in stored_values:
            self.store(store, value)
        for column_sum, value in sum_values:
            self.store_column_sum(column_sum, value)
        if self.matmul.pool is not None:
            self.emit_pooling(self.matmul.pool)

    def emit_pooling(self, pool: ReductionStep) -> None:
        """Emit the reduction of the pooling windows of a tile, which are consecutive rows."""
        size = math.prod(v.extent for v in pool.inner)
        value = self.visit(pool.body)
        text = f"tl.broadcast_to({self.as_typed(value, pool.body.dtype)}, {self.block_shape('RC')})"
        grouped = f"group_rows({text}, {size}), 1"
        kind = pool.reduction.kind
        pooled = f"tl.sum({grouped})" if kind == "sum" else f"tl.reduce({grouped}, {self.helper('maximum')})"
        self.emit(f"pooled = {pooled}")
        self.emit(f"window, in_window = group_index(row, in_row, {size})")
        name = f"{self.matmul.kernel.name}_pooled_epilogue"
        self.emit(f"{name}(pooled, window, column, in_window, in_column, batch, args)")

    def emit_pooled_epilogue(self, pool: ReductionStep) -> None:
        """Emit what is computed from a tile's pooled rows, and its stores."""
        self.parameters = "sums, " + self.parameters
        self.emit_loop_indices([v for v in self.matmul.rows if v not in pool.inner], self.matmul.columns)
        self.reductions[pool.reduction, pool.index] = TileValue("sums", "RC")
        for store, value in [(s, self.visit(s.body)) for s in self.matmul.pooled_stores]:
            self.store(store, value)

    def store_column_sum(self, step: PartialSum, value: TileValue) -> None:
        """Emit the sums over each chunk of rows."""
        self.buffers[step.buffer] = None
        index, width = self.index_text(step.offset, NO_GUARD), self.size_arg(step.buffer.shape[1])
        arguments = f"{self.as_typed(value, step.body.dtype)}, row, in_row, in_column, {step.buffer.name}"
        constants = f"{ROWS_PER_CHUNK}, {step.kind == 'squares'}"
        self.emit(f"store_row_sums({arguments}, {index.text}, {width}, {constants})")

    def emit_loop_indices(self, rows: Sequence[Var], columns: Sequence[Var]) -> None:
        """Emit the index of each loop of the flattened rows, columns and batches."""
        for flat, loops, axis in (
            ("row", rows, "R"), ("column", columns, "C"), ("batch", self.matmul.batches, "")
        ):  # fmt: skip
            for k, v in enumerate(loops):
                inner_size = math.prod(u.extent for u in loops[k + 1 :])
                text = flat if inner_size == 1 else f"{flat} // {self.size_arg(inner_size)}"
                text = f"{text} % {self.size_arg(v.extent)}" if k else text
                if text == flat:
                    self.loop_values[v] = TileValue(flat, axis)
                    continue
                name = f"i{len(self.loop_values)}"
                self.emit(f"{name} = {text}")
                self.loop_values[v] = TileValue(name, axis)
