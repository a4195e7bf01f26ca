"""What the kernels of a target can do, and where torch is faster, as far as scheduling depends on it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

from torch.fx import Node


class OnlineThresholds(NamedTuple):
    """Minimum bytes read for which an online sum, in the pass of its maximum or sum, is faster."""

    exp_row_bytes: int = 0  # along the innermost loop, for a sum of exponentials
    squares_row_bytes: int = 0  # along the innermost loop, for a sum of squares
    squares_total_bytes: int = 0  # of all rows together, for a sum of squares
    # Of `passes.LANES` adjacent columns, in a column kernel (see `passes.lane_loop`).
    column_tile_bytes: int = 0


class PartialSumLimits(NamedTuple):
    """When column sums are computed by the kernel that processes the same rows, chunk by chunk."""

    max_chunks: int  # chunks of rows; each has a partial sum of every column
    min_chunk_rows: int  # with fewer rows per chunk, partial sums are a large part of the memory traffic
    min_columns: int  # of a row
    max_columns: int  # for which the partial sums of a chunk fit where they are added up


@dataclasses.dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What kernels can do."""

    # Maximum bytes of local buffers per iteration of a kernel's outer loops; 0 for none.
    scratch_bytes: int = 0
    partial_sums: PartialSumLimits | None = None  # over the outer loops; None if unsupported
    # Whether a pass over one row can be split across all threads. If not, reductions of few long rows get
    # kernels of their own.
    splits_passes: bool = False
    has_fast_float64: bool = False  # whether float32 ops may compute in float64 where they need its range
    # Sizes from which a reduction is computed online, in the same pass as the reduction that it depends on;
    # None for never.
    online_thresholds: OnlineThresholds | None = None
    # Returns why a node that can be lowered is faster as torch's own call, or None.
    why_torch_call: Callable[[Node], str | None] = lambda node: None
    # The same for a matmul; a matmul that is lowered is a kernel fused with its epilogue. None for a target
    # without matmul kernels.
    why_torch_matmul: Callable[[Node], str | None] | None = None
