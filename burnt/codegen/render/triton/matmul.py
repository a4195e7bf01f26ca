"""Printing kernels with a matrix product: its factors and its tail as functions for `triton_product`."""

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
    Store,
    Var,
    depends_on,
    index_exprs,
    walk,
)
from burnt.codegen.precision import dot_precision
from burnt.codegen.render.triton.expr import EVERYWHERE, Elements, TileValue, union
from burnt.codegen.render.triton.layout import FAR, padding, reach
from burnt.codegen.render.triton.matmul_config import MatmulConfig, MatmulStructure
from burnt.codegen.render.triton.source import DeviceFunction, FailedFlag, ScalarArg, TritonSource, Workspace
from burnt.codegen.schedule.matmul_column_sums import ROWS_PER_CHUNK

__all__ = ["matmul_structure", "print_matmul"]

_SHORT = {torch.bfloat16: "tl.bfloat16", torch.float16: "tl.float16"}
_TAIL = 32  # elements of a tile that a thread finishes at a time
_MOST_BATCHES = 3  # axes of a descriptor, beside the two of a tile
_ADDED = 32, 128  # rows and columns of a tile whose parts are added up


class _Tensor(NamedTuple):
    """How a factor lies in memory.

    Args:
        buffer: whose memory.
        start: where in it, in elements.
        apart: axes and their strides, the batch's and the one of rows or columns, the outermost first.
        near: the axis whose elements are neighbours.
        turned: whether these are rows.
    """

    buffer: Buffer
    start: int
    apart: Sequence[tuple[Var, int]]
    near: Var
    turned: bool


class _Product:
    """A kernel's product: the loops of each of its axes, and its factors.

    Args:
        kernel: one that has a product.
    """

    def __init__(self, kernel: Kernel) -> None:
        step = kernel.matmul
        assert step is not None
        self.kernel, self.step = kernel, step
        *lead, row, column = step.index
        self.rows = self._loops([row])
        self.columns = self._loops([column])
        self.batches = self._loops(lead)
        self.terms = step.inner
        # A factor that needed no conversion is the bare element.
        self.left, self.right = step.body.args
        assert isinstance(step.reduction, Matmul)
        self.stored, self.precision = step.reduction.stored_dtype, dot_precision(step.reduction.precision)
        self.sums = [s for s in kernel.steps if isinstance(s, PartialSum)]
        folds = [s for s in kernel.steps if isinstance(s, ReductionStep)]
        self.pool = next((s for s in folds if isinstance(s.reduction, PooledMatmul)), None)
        stores = [s for s in kernel.steps if isinstance(s, Store) and s not in self.sums]
        pooled = [s for s in stores if self.pool is not None and depends_on(s, self.pool)]
        self.stores, self.pooled = [s for s in stores if s not in pooled], pooled

    def _loops(self, index: Sequence[IndexExpr]) -> tuple[Var, ...]:
        found = {v for ix in index for v in ix.variables()}
        return tuple(v for v in self.kernel.outer if v in found)

    def factors(self) -> tuple[tuple[str, Expr, tuple[Var, ...], tuple[Var, ...]], ...]:
        """Both factors: on which side, the element, the loops of its rows and of its columns."""
        return (
            ("left", self.left, self.rows, self.terms),
            ("right", self.right, self.terms, self.columns),
        )

    def described(self, expr: Expr, down: Sequence[Var], across: Sequence[Var]) -> _Tensor | None:
        """The tensor that a factor is, where a descriptor can tell how it lies in memory."""
        expr = self.stripped(expr)
        if expr.op != "load" or expr.dtype != self.stored or len(down) != 1 or len(across) != 1:
            return None
        buffer, place = expr.extra
        assert isinstance(buffer, Buffer)
        assert isinstance(place, IndexExpr)
        loops = [*self.batches, *down, *across]
        if any(v not in loops for v in place.terms):
            return None  # computed, or through quotients
        steps = {v: place.terms.get(v, 0) for v in loops}
        turned = steps[down[0]] == 1
        near, far = (down[0], across[0]) if turned else (across[0], down[0])
        held = [v for v in self.batches if steps[v]]
        whole = 16 // self.stored.itemsize  # elements, that addresses are multiples of
        apart = [place.const, *(steps[v] for v in (*held, far))]
        fits = steps[near] == 1 and steps[far] > 0 and len(held) <= _MOST_BATCHES
        if not fits or any(step < 0 or step % whole for step in apart):
            return None
        return _Tensor(buffer, place.const, [(v, steps[v]) for v in (*held, far)], near, turned)

    def stripped(self, expr: Expr) -> Expr:
        """A factor without what only gives it the dtype that it is multiplied in."""
        inside = expr.dtype
        while expr.op in ("cast", "as") and {expr.dtype, expr.args[0].dtype} <= {inside, self.stored}:
            (expr,) = expr.args
        return expr

    def sizes(self) -> tuple[int, int, int, int]:
        """Batches, rows, columns and terms."""
        batches, rows, columns, terms = (
            math.prod(v.extent for v in loops)
            for loops in (self.batches, self.rows, self.columns, self.terms)
        )
        return batches, rows, columns, terms

    def wide(self, config: MatmulConfig) -> bool:
        """Whether an index reaches beyond int32, also in a tile that is partly beyond the end."""
        _, rows, columns, terms = self.sizes()
        added = [*_ADDED, ROWS_PER_CHUNK] if config.split > 1 else [ROWS_PER_CHUNK] * bool(self.sums)
        blocks = [config.bm, *added], [config.bn, *added], [config.bk]
        beyond = padding(list(zip((self.rows, self.columns, self.terms), blocks, strict=True)))
        found = [rows * columns, terms + config.split * config.bk]
        for expr in walk(self.kernel.exprs):
            found += [reach(place, beyond) for place in index_exprs(expr)]
        found += [reach(s.offset, beyond) for s in (*self.stores, *self.pooled)]
        return max(found) > FAR


def matmul_structure(kernel: Kernel) -> MatmulStructure:
    """What the choice of a kernel's block sizes depends on."""
    product = _Product(kernel)
    read = {e.extra[0] for e in walk([product.step.body]) if e.op == "load"}
    described = [product.described(expr, down, across) for _, expr, down, across in product.factors()]
    itemsize = product.stored.itemsize
    return MatmulStructure(
        *product.sizes(),
        itemsize,
        len(read),
        sum(d is not None for d in described),
        exact=itemsize >= 4 and product.precision == "ieee",
    )


def print_matmul(kernel: Kernel, config: MatmulConfig) -> TritonSource:
    """A kernel with a matrix product as Triton.

    Args:
        kernel: what to print.
        config: its block sizes.
    """
    product = _Product(kernel)
    if product.sums and config.bm < ROWS_PER_CHUNK:
        config = dataclasses.replace(config, bm=ROWS_PER_CHUNK)  # it was another kernel's
    shared = _Shared(product)
    factors = []
    for side, expr, down, across in product.factors():
        piece = _Piece(shared, f"{kernel.name}_{side}")
        tensor = product.described(expr, down, across) if config.descriptors else None
        if tensor is None:
            piece.factor(expr, down, across)
        else:
            piece.copied(tensor)
        factors.append(piece)
    tails = [_Piece(shared, f"{kernel.name}_tail")]
    if product.pool is not None:
        tails.insert(0, _Piece(shared, f"{kernel.name}_windows"))
        tails[0].windows(product.pool)
    tails[-1].tail()
    sizes = [tails[-1].size(n) for n in product.sizes()]
    return shared.printed([*factors, *tails], config, sizes)


class _Shared:
    """What the functions of a kernel share: its arguments."""

    def __init__(self, product: _Product) -> None:
        self.product = product
        self.buffers: dict[Buffer, None] = {}
        self.numbers: dict[int, bool] = {}
        self.sizes: dict[int, str] = {}
        self.helpers: set[str] = set()

    def printed(self, pieces: Sequence[_Piece], config: MatmulConfig, sizes: Sequence[str]) -> TritonSource:
        """The pieces, and what is launched: one function, or two where sums come in parts.

        Args:
            pieces: both factors and the tail, which is the last, after what it calls.
            config: the block sizes.
            sizes: the names of batches, rows, columns and terms.
        """
        product, name = self.product, self.product.kernel.name
        batches, rows, columns, terms = product.sizes()
        parts = [Workspace("parts", config.split * batches * rows * columns, torch.float32)] * (
            config.split > 1
        )
        # In the order in which launches give them.
        given: dict[str, Buffer | Workspace | FailedFlag | ScalarArg | int] = {
            b.name: b for b in self.buffers
        }
        given |= {work.name: work for work in parts}
        given |= {"failed": FailedFlag()} if any(piece.may_fail for piece in pieces) else {}
        given |= {f"f{n}": ScalarArg(n) for n in self.numbers}
        given |= {text: size for size, text in self.sizes.items()}
        args, memory = f"({', '.join(given)},)", "parts" if parts else next(iter(given))
        # Triton specializes warps of loops that copy all that they multiply.
        specialized = config.specialized and all(piece.describes for piece in pieces[:2])
        tail = pieces[-1].name
        functions_given = ", ".join(
            [*(p.name for p in pieces[:2]), tail, *(str(p.describes) for p in pieces[:2])]
        )
        blocks = {"BM": config.bm, "BN": config.bn, "BK": config.bk}
        width = max(_TAIL * 32 * config.warps // config.bm, 16)
        constants = f"{config.group}, {config.split}, {config.programs}, {width}, {terms % config.bk == 0}"
        texts = [piece.text(list(given)) for piece in pieces]

        def function(name: str, call: str, programs: int, blocks: dict[str, int]) -> DeviceFunction:
            names = [*given, *(f"{block}: tl.constexpr" for block in blocks)]
            texts.append("\n".join(["@triton.jit", f"def {name}({', '.join(names)}):", f"    {call}", ""]))
            return DeviceFunction(name, tuple(given.values()), blocks, programs)

        wide = product.wide(config)
        tiles = config.split * batches * -(-rows // config.bm) * -(-columns // config.bn)
        functions = [
            function(
                f"{name}_part0" if parts else name,
                f"multiply({args}, {memory}, {', '.join(sizes)}, {functions_given}, BM, BN, BK, "
                f'{constants}, "{product.precision}", {wide}, {specialized})',
                min(config.programs or tiles, tiles),
                blocks,
            )
        ]
        if parts:
            height, width = (ROWS_PER_CHUNK, _ADDED[1] // 2) if product.sums else _ADDED
            call = f"add_parts({args}, parts, {', '.join(sizes[:3])}, {tail}, {config.split}, HEIGHT, WIDTH, "
            programs = batches * -(-rows // height) * -(-columns // width)
            blocks = {"HEIGHT": height, "WIDTH": width}
            functions.append(function(name, f"{call}{wide})", programs, blocks))
        head = "import triton\nimport triton.language as tl\n"
        used = ["add_parts"] * bool(parts) + ["add_runs"] * bool(product.sums)
        used += ["by_window", "multiply", "window_of"] if product.pool is not None else ["multiply"]
        head += f"from burnt.codegen.render.triton.matmul_template import {', '.join(used)}\n"
        if self.helpers:
            head += f"from burnt.codegen.render.triton.device_math import {', '.join(sorted(self.helpers))}\n"
        return TritonSource("\n\n".join([head, *texts]), tuple(functions), config)


class _Piece(Elements):
    """A function of a tile: of a factor, or of sums."""

    def __init__(self, shared: _Shared, name: str) -> None:
        super().__init__(shared.product, name)  # type: ignore[arg-type]
        self.product = shared.product
        self.bare = False  # what is loaded stays in the dtype that it has in memory
        self.buffers, self.numbers = shared.buffers, shared.numbers
        self.sizes, self.helpers = shared.sizes, shared.helpers
        self.masks = {"R": "in_row", "C": "in_column"}
        self.description: str | None = None
        self.given = "row, column, in_row, in_column, batch, args"

    def gathered(self, key: tuple[Reduction, Index]) -> TileValue:
        raise AssertionError("a product has no parts of folds")

    def shape(self, axes: str) -> str:
        return f"[{'row.shape[0]' if 'R' in axes else '1'}, {'column.shape[1]' if 'C' in axes else '1'}]"

    def widened(self, buffer: Buffer) -> str:
        return "" if self.bare else super().widened(buffer)

    def text(self, given: Sequence[str]) -> str:
        """The function: its arguments are all of the kernel's."""
        unpacked = f"    {', '.join(given)}, = args" if len(given) == 1 else f"    {', '.join(given)} = args"
        lines = ["@triton.jit", f"def {self.name}({self.given}):", unpacked, *self.lines, ""]
        if self.description is not None:
            head = f"def {self.describes}(args, ROWS: tl.constexpr, COLUMNS: tl.constexpr):"
            lines += ["", "@triton.jit", head, unpacked, f"    {self.description}", ""]
        return "\n".join(lines)

    @property
    def describes(self) -> str | None:
        """The name of the function that describes what is copied."""
        return None if self.description is None else f"{self.name}_tensor"

    def factor(self, expr: Expr, rows: Sequence[Var], columns: Sequence[Var]) -> None:
        """A tile of a factor, in the dtype that it is multiplied in."""
        self._named(rows, columns)
        stored = self.product.stored
        expr = self.product.stripped(expr)
        inner, tests = expr, []
        while inner.op == "masked" and inner.args[2].op == "const" and inner.args[2].extra[0] == 0:
            tests.append(inner.args[0])
            inner = inner.args[1]
        loaded = inner.op == "load" and inner.dtype == stored
        self.bare = loaded
        if loaded and tests:
            # What a load leaves out is 0 already.
            found = [self.visit(test) for test in tests]
            guard = TileValue(" & ".join(v.text for v in found), union(*found))
            value = self.visit(inner, guard)
        else:
            value = self.visit(expr)
        if value.axes != "RC":
            value = TileValue(f"tl.broadcast_to({self.typed(value, expr.dtype)}, {self.shape('RC')})", "RC")
        text = value.text
        if not loaded or value.text.startswith("tl."):
            # What lies outside of the product adds nothing, whatever the factor makes of zeros.
            text = f"tl.where(in_row & in_column, {text}, 0.0)"
        if stored in _SHORT and not loaded:
            text += f".to({_SHORT[stored]})"
        self.line(f"return {text}")

    def copied(self, tensor: _Tensor) -> None:
        """A tile of a factor that the device's own units copy, and the tensor's descriptor."""
        self._named((), ())
        self.buffers[tensor.buffer] = None
        base = tensor.buffer.name + (f" + {self.size(tensor.start)}" if tensor.start else "")
        tile = ["COLUMNS", "ROWS"] if tensor.turned else ["ROWS", "COLUMNS"]
        ones = ["1"] * (len(tensor.apart) - 1)
        # A descriptor's extents have 32 bits.
        shape = [
            f"({self.size(v.extent)}).to(tl.int32)" if v.extent > FAR else self.size(v.extent)
            for v in (*(v for v, _ in tensor.apart), tensor.near)
        ]
        strides = [*(self.size(step) for _, step in tensor.apart), "1"]
        given = [f"[{', '.join(each)}]" for each in (shape, strides, [*ones, *tile])]
        self.description = f"return tl.make_tensor_descriptor({base}, {', '.join(given)})"
        self.given = "descriptor, row, column, batch, args, ROWS: tl.constexpr, COLUMNS: tl.constexpr"
        flat = ["column", "row"] if tensor.turned else ["row", "column"]
        batch = [f"({self.names[v].text}).to(tl.int32)" for v, _ in tensor.apart[:-1]]
        self.line(f"tile = descriptor.load([{', '.join([*batch, *flat])}]).reshape({', '.join(tile)})")
        self.line(f"return tile{'.T' if tensor.turned else ''}")

    def tail(self) -> None:
        """What is made of a tile of sums, and stored."""
        self.given = "sums, " + self.given
        self._named(self.product.rows, self.product.columns)
        step: ReductionStep = self.product.step
        self.folds[step.reduction, step.index] = TileValue("sums", "RC")
        made = [(s, self.visit(s.value)) for s in self.product.stores]
        parts = [(s, self.visit(s.value)) for s in self.product.sums]
        for store, value in made:
            self.put(store, value)
        for part, value in parts:
            self.put_part(part, value)
        if self.product.pool is not None:
            self.pool(self.product.pool)

    def pool(self, pool: ReductionStep) -> None:
        """Lines that fold the windows of a tile, which are neighbours among its rows."""
        size = math.prod(v.extent for v in pool.inner)
        value = self.visit(pool.body)
        text = f"tl.broadcast_to({self.typed(value, pool.body.dtype)}, {self.shape('RC')})"
        apart = f"by_window({text}, {size}), 1"
        kind = pool.reduction.kind
        made = f"tl.sum({apart})" if kind == "sum" else f"tl.reduce({apart}, {self.helper('maximum')})"
        self.line(f"folded = {made}")
        self.line(f"window, in_window = window_of(row, in_row, {size})")
        name = f"{self.product.kernel.name}_windows"
        self.line(f"{name}(folded, window, column, in_window, in_column, batch, args)")

    def windows(self, pool: ReductionStep) -> None:
        """What is made of a tile's folded windows, and stored."""
        self.given = "sums, " + self.given
        self._named([v for v in self.product.rows if v not in pool.inner], self.product.columns)
        self.folds[pool.reduction, pool.index] = TileValue("sums", "RC")
        for store, value in [(s, self.visit(s.value)) for s in self.product.pooled]:
            self.put(store, value)

    def put_part(self, step: PartialSum, value: TileValue) -> None:
        """Lines that store the sums of runs of rows."""
        self.buffers[step.buffer] = None
        place, width = self.place(step.offset, EVERYWHERE), self.size(step.buffer.shape[1])
        given = f"{self.typed(value, step.value.dtype)}, row, in_row, in_column, {step.buffer.name}"
        self.line(f"add_runs({given}, {place.text}, {width}, {ROWS_PER_CHUNK}, {step.kind == 'squares'})")

    def _named(self, rows: Sequence[Var], columns: Sequence[Var]) -> None:
        for flat, loops, axis in (
            ("row", rows, "R"), ("column", columns, "C"), ("batch", self.product.batches, "")
        ):  # fmt: skip
            for k, v in enumerate(loops):
                below = math.prod(u.extent for u in loops[k + 1 :])
                text = flat if below == 1 else f"{flat} // {self.size(below)}"
                text = f"{text} % {self.size(v.extent)}" if k else text
                if text == flat:
                    self.names[v] = TileValue(flat, axis)
                    continue
                name = f"i{len(self.names)}"
                self.line(f"{name} = {text}")
                self.names[v] = TileValue(name, axis)
