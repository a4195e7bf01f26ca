"""`grouped_matmul` in Triton, and its gradients: one product whose tiles lie in groups of rows, or of terms.

The ends of the groups are read on the device. The rows after the last end are a group without terms, so that
their results are 0.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from burnt.codegen.precision import dot_precision, precision
from burnt.codegen.render.triton.matmul_config import MatmulConfig, select_config
from burnt.codegen.render.triton.matmul_template import tile_index
from burnt.codegen.render.triton.tile_config import Limits
from burnt.kernels.interface.launch import Launch
from burnt.kernels.ops.matmul_gpu import rows_structure, run_launches
from burnt.kernels.ops.matmul_triton import matmul_launches


@triton.jit
def _load_left(row, term, in_row, in_term, batch, args):  # type: ignore[no-untyped-def]
    left, row_stride, term_stride = args[0]
    return tl.load(left + row * row_stride + term * term_stride, mask=in_row & in_term, other=0.0)


@triton.jit
def _load_right(term, column, in_term, in_column, batch, args):  # type: ignore[no-untyped-def]
    right, batch_stride, term_stride, column_stride = args[1]
    place = batch * batch_stride + term * term_stride + column * column_stride
    return tl.load(right + place, mask=in_term & in_column, other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _describe_rows(args, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    _, _, rows, _, terms = args[3]
    return tl.make_tensor_descriptor(args[0][0], [rows, terms], [args[0][1], 1], [ROWS, COLUMNS])


@triton.jit  # type: ignore[untyped-decorator]
def _load_rows(descriptor, row, term, batch, args, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    return descriptor.load([row, term])


@triton.jit  # type: ignore[untyped-decorator]
def _describe_matrices(args, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    right, batch_stride, stride, _ = args[1]
    _, groups, _, columns, terms = args[3]
    return tl.make_tensor_descriptor(
        right, [groups, terms, columns], [batch_stride, stride, 1], [1, ROWS, COLUMNS]
    )


@triton.jit  # type: ignore[untyped-decorator]
def _load_matrix(descriptor, term, column, batch, args, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    return descriptor.load([tl.cast(batch, tl.int32), term, column]).reshape(ROWS, COLUMNS)


@triton.jit  # type: ignore[untyped-decorator]
def _describe_transposed(args, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    right, batch_stride, _, stride = args[1]
    _, groups, _, columns, terms = args[3]
    return tl.make_tensor_descriptor(
        right, [groups, columns, terms], [batch_stride, stride, 1], [1, COLUMNS, ROWS]
    )


@triton.jit  # type: ignore[untyped-decorator]
def _load_transposed(descriptor, term, column, batch, args, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    return descriptor.load([tl.cast(batch, tl.int32), column, term]).reshape(COLUMNS, ROWS).T


@triton.jit
def _store(sums, row, column, in_row, in_column, batch, args):  # type: ignore[no-untyped-def]
    out, batch_stride, row_stride = args[2]
    place = out + batch * batch_stride + row * row_stride + column
    tl.store(place, sums.to(out.dtype.element_ty), mask=in_row & in_column)


@triton.jit
def _bounds(ends, group, groups, rows):  # type: ignore[no-untyped-def]
    """The first row of each group and the row after its last one; rows after the last end are a group."""
    before = tl.load(ends + tl.minimum(tl.maximum(group - 1, 0), groups - 1)).to(tl.int32)
    start = tl.where(group == 0, 0, tl.where(group > groups, rows, before))
    end = tl.where(group < groups, tl.load(ends + tl.minimum(group, groups - 1)).to(tl.int32), rows)
    return tl.minimum(tl.maximum(start, 0), rows), tl.minimum(tl.maximum(end, start), rows)


@triton.jit  # type: ignore[untyped-decorator]
def _locate_rows(  # type: ignore[no-untyped-def]
    pid, args, GROUPS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr
):
    """A tile of a group of rows: tiles are numbered group by group."""
    ends, groups, rows, columns, terms = args[3]
    group = tl.arange(0, GROUPS)
    start, end = _bounds(ends, group, groups, rows)
    last = tl.cumsum(tl.cdiv(end - start, BLOCK_M), 0)
    is_before = last * tl.cdiv(columns, BLOCK_N) <= pid
    found = tl.sum(is_before.to(tl.int32), 0)
    pid -= tl.max(tl.where(is_before, last, 0), 0) * tl.cdiv(columns, BLOCK_N)
    first = tl.sum(tl.where(group == found, start, 0), 0)
    row_end = tl.sum(tl.where(group == found, end, 0), 0)
    m, n, _ = tile_index(pid, tl.maximum(row_end - first, 1), columns, BLOCK_M, BLOCK_N, GROUP, 1)
    batch, term_end = tl.minimum(found, groups - 1), tl.where(found < groups, terms, 0)
    return first + m * BLOCK_M, row_end, n, batch, 0, term_end


@triton.jit  # type: ignore[untyped-decorator]
def _locate_terms(  # type: ignore[no-untyped-def]
    pid, args, GROUPS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr
):
    """A tile of a product whose terms are the rows of a group."""
    ends, groups, rows, columns, terms = args[3]
    m, n, batch = tile_index(pid, rows, columns, BLOCK_M, BLOCK_N, GROUP, groups)
    start, end = _bounds(ends, batch, groups, terms)
    return m * BLOCK_M, rows, n, batch, start, end


def rows_launches(a: Tensor, b: Tensor, ends: Tensor, config: MatmulConfig) -> tuple[list[Launch], Tensor]:
    """Return the launches that multiply ``[rows, k]`` by the ``[k, n]`` of a row's group, and the result."""
    config = dataclasses.replace(config, split=1)
    (rows, terms), (groups, _, columns) = a.shape, b.shape
    out = a.new_empty(rows, columns)
    args = (a, *a.stride()), (b, *b.stride()), (out, 0, columns), (ends, groups, rows, columns, terms)
    # Each group, and the rows after the last one, may have a tile more than all rows in tiles.
    sizes = 1, rows + groups * config.block_m, columns, terms
    loads, mode = (_load_left, _load_right), dot_precision(precision())
    constants: dict[str, Any] = {"locate": _locate_rows, "GROUPS": triton.next_power_of_2(groups + 1)}
    if config.descriptors and rows_structure(a, b).num_tma_operands == 2:
        is_transposed = b.stride(2) != 1
        loads = _load_rows, _load_transposed if is_transposed else _load_matrix
        constants["describe_left"] = _describe_rows
        constants["describe_right"] = _describe_transposed if is_transposed else _describe_matrices
    return matmul_launches(args, out, sizes, config, *loads, _store, None, mode, {}, **constants), out


def terms_launches(
    a: Tensor, grad_out: Tensor, ends: Tensor, config: MatmulConfig
) -> tuple[list[Launch], Tensor]:
    """Return the launches that multiply ``[rows, k]`` and ``[rows, n]`` group by group, and the result
    ``[groups, k, n]``.
    """
    config = dataclasses.replace(config, split=1)
    (terms, rows), groups, columns = a.shape, ends.shape[0], grad_out.shape[1]
    out = a.new_empty(groups, rows, columns)
    right = grad_out, 0, *grad_out.stride()
    args = (a, *a.stride()[::-1]), right, (out, rows * columns, columns), (ends, groups, rows, columns, terms)
    sizes, constants = (groups, rows, columns, terms), {"locate": _locate_terms, "EVEN_K": False}
    functions, mode = (_load_left, _load_right, _store), dot_precision(precision())
    return matmul_launches(args, out, sizes, config, *functions, None, mode, {}, **constants), out


def gradients(
    grad_out: Tensor, a: Tensor, b: Tensor, ends: Tensor, limits: Limits
) -> tuple[Tensor | None, Tensor | None, None]:
    """Return the gradients of a and b that are needed."""
    grad_a = grad_b = None
    if a.requires_grad:
        config = select_config(rows_structure(grad_out, b.mT), limits)
        grad_a = run_launches(*rows_launches(grad_out, b.mT, ends, config))
    if b.requires_grad:
        structure = rows_structure(a, b)
        rows, terms = structure.terms, structure.rows
        structure = dataclasses.replace(structure, rows=rows, terms=terms, num_tma_operands=0)
        grad_b = run_launches(*terms_launches(a, grad_out, ends, select_config(structure, limits)))
    return grad_a, grad_b, None
