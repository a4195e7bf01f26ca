"""Printing kernels with a matrix product: its factors and its tail as functions for `triton_product`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from burnt.codegen.ir import (
    Buffer,
    Expr,
    Fold,
    Index,
    Ix,
    Kernel,
    Product,
    Reduction,
    Store,
    Var,
    places,
    walk,
)
from burnt.codegen.precision import dot_precision
from burnt.codegen.print_triton_elements import Elements, Value, union
from burnt.codegen.product_blocks import ProductConfig, ProductForm
from burnt.codegen.triton_layout import FAR, reach
from burnt.codegen.triton_printed import Failed, Function, Number, Printed, Work

__all__ = ["print_product", "product_form"]

_SHORT = {torch.bfloat16: "tl.bfloat16", torch.float16: "tl.float16"}
_TAIL = 32  # elements of a tile that a thread finishes at a time
_ADDED = 32, 128  # rows and columns of a tile whose parts are added up


class _Product:
    """A kernel's product: the loops of each of its axes, and its factors.

    Args:
        kernel: one that has a product.
    """

    def __init__(self, kernel: Kernel) -> None:
        step = kernel.product
        assert step is not None
        self.kernel, self.step = kernel, step
        *lead, row, column = step.index
        self.rows = self._loops([row])
        self.columns = self._loops([column])
        self.batches = self._loops(lead)
        self.terms = step.inner
        # A factor that needed no conversion is the bare element.
        self.left, self.right = step.body.args
        assert isinstance(step.reduction, Product)
        self.stored, self.precision = step.reduction.stored, dot_precision(step.reduction.precision)
        self.stores = [s for s in kernel.steps if isinstance(s, Store)]

    def _loops(self, index: Sequence[Ix]) -> tuple[Var, ...]:
        found = {v for ix in index for v in ix.variables()}
        return tuple(v for v in self.kernel.outer if v in found)

    def sizes(self) -> tuple[int, int, int, int]:
        """Batches, rows, columns and terms."""
        batches, rows, columns, terms = (
            math.prod(v.extent for v in loops)
            for loops in (self.batches, self.rows, self.columns, self.terms)
        )
        return batches, rows, columns, terms

    @property
    def wide(self) -> bool:
        """Whether an index reaches beyond int32."""
        found = [math.prod(self.sizes()[1:3])]
        for expr in walk(self.kernel.exprs):
            found += [reach(place) for place in places(expr)]
        found += [reach(s.place) for s in self.stores]
        return max(found) > FAR


def product_form(kernel: Kernel) -> ProductForm:
    """What the choice of a kernel's block sizes depends on."""
    product = _Product(kernel)
    read = {e.extra[0] for e in walk([product.step.body]) if e.op == "load"}
    return ProductForm(*product.sizes(), product.stored.itemsize, len(read))


def print_product(kernel: Kernel, config: ProductConfig) -> Printed:
    """A kernel with a matrix product as Triton.

    Args:
        kernel: what to print.
        config: its block sizes.
    """
    product = _Product(kernel)
    shared = _Shared(product)
    left = _Piece(shared, f"{kernel.name}_left")
    left.factor(product.left, product.rows, product.terms)
    right = _Piece(shared, f"{kernel.name}_right")
    right.factor(product.right, product.terms, product.columns)
    tail = _Piece(shared, f"{kernel.name}_tail")
    tail.tail()
    sizes = [left.size(n) for n in product.sizes()]
    return shared.printed([left, right, tail], config, sizes)


class _Shared:
    """What the functions of a kernel share: its arguments."""

    def __init__(self, product: _Product) -> None:
        self.product = product
        self.buffers: dict[Buffer, None] = {}
        self.numbers: dict[int, bool] = {}
        self.sizes: dict[int, str] = {}
        self.helpers: set[str] = set()

    def printed(self, pieces: Sequence[_Piece], config: ProductConfig, sizes: Sequence[str]) -> Printed:
        """The pieces, and what is launched: one function, or two where sums come in parts.

        Args:
            pieces: both factors and the tail.
            config: the block sizes.
            sizes: the names of batches, rows, columns and terms.
        """
        product, name = self.product, self.product.kernel.name
        batches, rows, columns, terms = product.sizes()
        parts = [Work("parts", config.split * batches * rows * columns, torch.float32)] * (config.split > 1)
        # In the order in which launches give them.
        given: dict[str, Buffer | Work | Failed | Number | int] = {b.name: b for b in self.buffers}
        given |= {work.name: work for work in parts}
        given |= {"failed": Failed()} if any(piece.may_fail for piece in pieces) else {}
        given |= {f"f{n}": Number(n) for n in self.numbers}
        given |= {text: size for size, text in self.sizes.items()}
        args, memory = f"({', '.join(given)},)", "parts" if parts else next(iter(given))
        left, right, tail = (piece.name for piece in pieces)
        blocks = {"BM": config.bm, "BN": config.bn, "BK": config.bk}
        width = max(_TAIL * 32 * config.warps // config.bm, 16)
        constants = f"{config.group}, {config.split}, {config.programs}, {width}, {terms % config.bk == 0}"
        texts = [piece.text(list(given)) for piece in pieces]

        def function(name: str, call: str, programs: int, blocks: dict[str, int]) -> Function:
            names = [*given, *(f"{block}: tl.constexpr" for block in blocks)]
            texts.append("\n".join(["@triton.jit", f"def {name}({', '.join(names)}):", f"    {call}", ""]))
            return Function(name, tuple(given.values()), blocks, programs)

        tiles = config.split * batches * -(-rows // config.bm) * -(-columns // config.bn)
        functions = [
            function(
                f"{name}_part0" if parts else name,
                f"multiply({args}, {memory}, {', '.join(sizes)}, {left}, {right}, {tail}, BM, BN, BK, "
                f'{constants}, "{product.precision}", {product.wide})',
                min(config.programs or tiles, tiles),
                blocks,
            )
        ]
        if parts:
            height, width = _ADDED
            call = f"add_parts({args}, parts, {', '.join(sizes[:3])}, {tail}, {config.split}, HEIGHT, WIDTH, "
            programs = batches * -(-rows // height) * -(-columns // width)
            blocks = {"HEIGHT": height, "WIDTH": width}
            functions.append(function(name, f"{call}{product.wide})", programs, blocks))
        head = "import triton\nimport triton.language as tl\n"
        head += f"from burnt.codegen.triton_product import {'add_parts, ' if parts else ''}multiply\n"
        if self.helpers:
            head += f"from burnt.codegen.triton_math import {', '.join(sorted(self.helpers))}\n"
        return Printed("\n\n".join([head, *texts]), tuple(functions), config)


class _Piece(Elements):
    """A function of a tile: of a factor, or of sums."""

    def __init__(self, shared: _Shared, name: str) -> None:
        super().__init__(shared.product, name)  # type: ignore[arg-type]
        self.product = shared.product
        self.bare = False  # what is loaded stays in the dtype that it has in memory
        self.buffers, self.numbers = shared.buffers, shared.numbers
        self.sizes, self.helpers = shared.sizes, shared.helpers
        self.masks = {"R": "in_row", "C": "in_column"}
        self.given = "row, column, in_row, in_column, batch, args"

    def gathered(self, key: tuple[Reduction, Index]) -> Value:
        raise AssertionError("a product has no parts of folds")

    def shape(self, axes: str) -> str:
        return f"[{'row.shape[0]' if 'R' in axes else '1'}, {'column.shape[1]' if 'C' in axes else '1'}]"

    def widened(self, buffer: Buffer) -> str:
        return "" if self.bare else super().widened(buffer)

    def text(self, given: Sequence[str]) -> str:
        """The function: its arguments are all of the kernel's."""
        unpacked = f"    {', '.join(given)}, = args" if len(given) == 1 else f"    {', '.join(given)} = args"
        return "\n".join(["@triton.jit", f"def {self.name}({self.given}):", unpacked, *self.lines, ""])

    def factor(self, expr: Expr, rows: Sequence[Var], columns: Sequence[Var]) -> None:
        """A tile of a factor, in the dtype that it is multiplied in."""
        self._named(rows, columns)
        stored = self.product.stored
        inside = expr.dtype
        while expr.op in ("cast", "as") and {expr.dtype, expr.args[0].dtype} <= {inside, stored}:
            (expr,) = expr.args
        inner, tests = expr, []
        while inner.op == "masked" and inner.args[2].op == "const" and inner.args[2].extra[0] == 0:
            tests.append(inner.args[0])
            inner = inner.args[1]
        loaded = inner.op == "load" and inner.dtype == stored
        self.bare = loaded
        if loaded and tests:
            # What a load leaves out is 0 already.
            found = [self.visit(test) for test in tests]
            guard = Value(" & ".join(v.text for v in found), union(*found))
            value = self.visit(inner, guard)
        else:
            value = self.visit(expr)
        if value.axes != "RC":
            value = Value(f"tl.broadcast_to({self.typed(value, expr.dtype)}, {self.shape('RC')})", "RC")
        text = value.text
        if not loaded or value.text.startswith("tl."):
            # What lies outside of the product adds nothing, whatever the factor makes of zeros.
            text = f"tl.where(in_row & in_column, {text}, 0.0)"
        if stored in _SHORT and not loaded:
            text += f".to({_SHORT[stored]})"
        self.line(f"return {text}")

    def tail(self) -> None:
        """What is made of a tile of sums, and stored."""
        self.given = "sums, " + self.given
        self._named(self.product.rows, self.product.columns)
        step: Fold = self.product.step
        self.folds[step.reduction, step.index] = Value("sums", "RC")
        for store, value in [(s, self.visit(s.value)) for s in self.product.stores]:
            self.put(store, value)

    def _named(self, rows: Sequence[Var], columns: Sequence[Var]) -> None:
        for flat, loops, axis in (
            ("row", rows, "R"), ("column", columns, "C"), ("batch", self.product.batches, "")
        ):  # fmt: skip
            for k, v in enumerate(loops):
                below = math.prod(u.extent for u in loops[k + 1 :])
                text = flat if below == 1 else f"{flat} // {self.size(below)}"
                text = f"{text} % {self.size(v.extent)}" if k else text
                if text == flat:
                    self.names[v] = Value(flat, axis)
                    continue
                name = f"i{len(self.names)}"
                self.line(f"{name} = {text}")
                self.names[v] = Value(name, axis)
