"""Print reductions as C: the accumulator of a reduction, and how elements and partial results are added.

A reduction has up to three levels. Elements are added to the result of a *block* of a few hundred, which the
compiler keeps in a vector register; blocks are added to the *total*, in double for sums and products. Where a
reduction is cut into *chunks* for the threads, the chunks' totals are merged in order, so that the result
does not depend on the order in which threads finish.

A sum that needs another reduction's result in the same pass (`OnlineReduction`) is computed relative to a
reference, and corrected when the reference changes. A sum of exponentials reads each block twice: first the
running maximum is updated, then the exponentials are added. A sum of squares takes differences from the mean
of all previous blocks, and corrects the total for the new mean; the correction is exact. The first reference
is the first block's own mean.
"""

from __future__ import annotations

from collections.abc import Sequence

from burnt.codegen.ir import Kernel, OnlineReduction, ReductionStep, ScanStep, Var, walk
from burnt.codegen.render.c.prelude import C_TYPES, highest, lowest
from burnt.codegen.render.printer import most_contiguous_loop
from burnt.codegen.render.shape_params import mark_size

ONLINE_HELPERS = """
static inline double rescale_exp_sum(double sum, double old_max, double new_max)
{
    const double scale = exp_term_f64(old_max - new_max);
    return old_max < new_max ? sum * scale : sum;
}
static inline double sum_or_limit(double sum, double maximum, double limit)
{
    return __builtin_isfinite(maximum) ? sum : limit;
}
static inline double shift_square_sum(double squares, double sum, double count, double shift)
{
    return squares - shift * (2 * sum - count * shift);
}
"""
"""C functions that convert online sums to a new reference, and handle a maximum that is not finite."""

_FMA = {"float": "fma_f32", "double": "fma_f64"}
_OPERATORS = {"sum": "+", "prod": "*", "any": "|", "all": "&"}
_INITIAL_VALUES = {"sum": "0", "prod": "1", "any": "0", "all": "1"}


class Accumulator:
    """The C variables of one reduction, and the statements that update them.

    `lanes` reductions are computed side by side, indexed by ``[u + l]``; 0 for a single one. A block has
    `block_lanes` of them, indexed by ``[l]``.
    """

    def __init__(self, step: ReductionStep, name: str, lanes: int = 0, block_lanes: int = 0) -> None:
        self.step = step
        self.name = name
        self.lanes = lanes
        self.sizes = {"block": block_lanes, "total": lanes, "chunks": lanes}
        kind, element_dtype = step.reduction.kind, step.body.dtype
        is_floating = element_dtype.is_floating_point
        self.is_arg = kind.startswith("arg")
        self.comparison = "" if kind in _OPERATORS else ">" if kind.endswith("max") else "<"
        self.op = _OPERATORS.get(kind, "")
        self.start = _INITIAL_VALUES.get(kind) or (
            lowest(element_dtype) if self.comparison == ">" else highest(element_dtype)
        )
        self.result_type = C_TYPES[step.reduction.dtype]
        if kind in ("sum", "prod") and is_floating:
            self.type = "double"
        else:
            self.type = "int64_t" if kind == "sum" else C_TYPES[element_dtype]
        in_double = kind == "prod" or (kind == "sum" and not lanes and not _is_vectorizable(step))
        self.block_type = (
            self.type if in_double or kind != "sum" else C_TYPES[element_dtype] if is_floating else self.type
        )
        # A vectorised max reduction ignores NaN, so a flag records it. Lanes compare elements one by one.
        self.has_nan_flag = bool(self.comparison) and is_floating and not lanes
        self.propagates_nan = bool(self.comparison) and is_floating
        self.index_type = "int32_t" if step.iterations < 2**31 else "int64_t"

    def declarations(self, level: str, chunks: int = 0) -> list[str]:
        """Return the declarations of a level's variables; arrays over chunks or lanes are uninitialized."""
        suffix = (f"[{chunks}]" if chunks else "") + (f"[{self.sizes[level]}]" if self.lanes else "")
        ctype = self.block_type if level == "block" else self.type
        variables = [(ctype, f"{self.name}_{level}", self.start)]
        if self.has_nan_flag:
            variables.append(("int", f"{self.name}_{level}_nan", "0"))
        if self.is_arg and (self.lanes or level == "chunks"):
            variables.append((self.index_type, f"{self.name}_{level}_at", "0"))
        if suffix:
            return [f"{ctype} {name}{suffix};" for ctype, name, _ in variables]
        return [f"{ctype} {name} = {start};" for ctype, name, start in variables]

    def lane_index(self, level: str) -> str:
        """Return the subscript of the current lane in a level's variables."""
        return "" if not self.lanes else "[l]" if level == "block" else "[u + l]"

    def reset(self, level: str) -> list[str]:
        """Return the lines that set the current lane of a level to its initial value."""
        lane = self.lane_index(level)
        lines = [f"{self.name}_{level}{lane} = {self.start};"]
        if self.is_arg:
            lines.append(f"{self.name}_{level}_at{lane} = 0;")
        return lines

    def omp_clauses(self, level: str) -> str:
        """Return the OpenMP reduction clauses of a loop that adds elements to a level."""
        name, op = f"{self.name}_{level}", {">": "max", "<": "min"}.get(self.comparison, self.op)
        return f" reduction({op}:{name})" + (f" reduction(|:{name}_nan)" if self.has_nan_flag else "")

    def uses_fma(self, level: str) -> bool:
        """Whether elements are products that are added to the level's sum without rounding, by an fma."""
        body, sum_type = self.step.body, self.block_type if level == "block" else self.type
        is_plain_sum = self.op == "+" and not isinstance(self.step, OnlineReduction)
        return is_plain_sum and body.op == "mul" and sum_type in _FMA and sum_type == C_TYPES[body.dtype]

    def add_with_fma(self, left: str, right: str, level: str) -> list[str]:
        """Return the lines that add a product to a level."""
        into = f"{self.name}_{level}{self.lane_index(level)}"
        return [f"{into} = {_FMA[C_TYPES[self.step.body.dtype]]}({left}, {right}, {into});"]

    def add(self, value: str, level: str, flat_index: str = "") -> list[str]:
        """Return the lines that add an element to a level; `flat_index` is what argmax and argmin return."""
        into = f"{self.name}_{level}{self.lane_index(level)}"
        if not self.comparison:
            return [f"{into} {self.op}= {value};"]
        if self.has_nan_flag:
            lines = [f"{into} = {value} {self.comparison} {into} ? {value} : {into};"]
            return [*lines, f"{self.name}_{level}_nan |= {value} != {value};"]
        nan_test = f" || ({value} != {value} && {into} == {into})" if self.propagates_nan else ""
        if not self.is_arg or not self.lanes:
            return [f"{into} = {value} {self.comparison} {into}{nan_test} ? {value} : {into};"]
        better, at = f"{self.name}_better", f"{self.name}_{level}_at{self.lane_index(level)}"
        return [
            f"const int {better} = {value} {self.comparison} {into}{nan_test};",
            f"{into} = {better} ? {value} : {into};",
            f"{at} = {better} ? {flat_index} : {at};",
        ]

    def merge(self, source: str, index: str, level: str = "total") -> list[str]:
        """Return the lines that add one level, with a subscript as in ``[chunk]``, to another level."""
        lane, index = self.lane_index(level), index + self.lane_index(source)
        into, other = f"{self.name}_{level}{lane}", f"{self.name}_{source}{index}"
        if not self.comparison:
            return [f"{into} {self.op}= {other};"]
        into_at, other_at = f"{self.name}_{level}_at{lane}", f"{self.name}_{source}_at{index}"
        if self.has_nan_flag:
            flag, other_flag = f"{self.name}_{level}_nan", f"{self.name}_{source}_nan{index}"
            if not self.is_arg:
                return [
                    f"{into} = {other} {self.comparison} {into} ? {other} : {into};",
                    f"{flag} |= {other_flag};",
                ]
            test = (
                f"{flag} ? {other_flag} && {other_at} < {into_at} : {other_flag} || "
                f"{other} {self.comparison} {into} || ({other} == {into} && {other_at} < {into_at})"
            )
            keep = [f"{into} = {other};", f"{into_at} = {other_at};", f"{flag} = {other_flag};"]
            return [f"if ({test}) {{", *[f"    {line}" for line in keep], "}"]
        better = f"{other} {self.comparison} {into}"
        if self.propagates_nan:
            better += f" || ({other} != {other} && {into} == {into})"
        if not self.is_arg:
            return [f"{into} = {better} ? {other} : {into};"]
        same = f"{other} == {into}"
        if self.propagates_nan:
            same = f"({same} || ({other} != {other} && {into} != {into}))"
        return [
            f"const int {self.name}_better = {better} || ({same} && {other_at} < {into_at});",
            f"{into} = {self.name}_better ? {other} : {into};",
            f"{into_at} = {self.name}_better ? {other_at} : {into_at};",
        ]

    def improvement_test(self) -> str:
        """Return the test whether the block's extreme beats the total's."""
        total, block = f"{self.name}_total", f"{self.name}_block"
        test = f"{block} {self.comparison} {total}"
        return f"!{total}_nan && ({block}_nan || {test})" if self.has_nan_flag else test

    def take_block(self) -> list[str]:
        """Return the lines that replace the total by the block's result."""
        lines = [f"{self.name}_total = {self.name}_block;"]
        return [*lines, f"{self.name}_total_nan = {self.name}_block_nan;"] if self.has_nan_flag else lines

    def copy_to_chunk(self, index: str) -> list[str]:
        """Return the lines that save the total of a chunk in the array over chunks."""
        suffixes = ["", "_nan"] if self.has_nan_flag else [""]
        if self.is_arg:
            suffixes.append("_at")
        lane = self.lane_index("total")
        return [f"{self.name}_chunks{s}{index}{lane} = {self.name}_total{s}{lane};" for s in suffixes]

    def result_definition(self) -> list[str]:
        """Return the lines that define the reduction's own name as its result, where there are no lanes."""
        lines = []
        if self.is_arg:
            return [f"const {self.result_type} {self.name} = {self.name}_total_at;"]
        if self.has_nan_flag:
            lines.append(f'if ({self.name}_total_nan) {self.name}_total = __builtin_nanf("");')
        return [*lines, f"const {self.result_type} {self.name} = {self.name}_total;"]

    def result_text(self) -> str:
        """Return the C expression by which other code reads the result."""
        if not self.lanes:
            return self.name
        return f"({self.result_type}){self.name}_total{'_at' if self.is_arg else ''}[u + l]"


class _OnlineSum(Accumulator):
    """A sum relative to a reference, which is corrected when it is read."""

    step: OnlineReduction

    def __init__(self, step: OnlineReduction, name: str, lanes: int, block_lanes: int) -> None:
        super().__init__(step, name, lanes, block_lanes)
        self.element_type = C_TYPES[step.body.dtype]

    def final_text(self) -> str:
        """Return the C of the corrected sum."""
        raise NotImplementedError

    def result_definition(self) -> list[str]:
        """Return the lines that define the reduction's own name as its result, where there are no lanes."""
        return [f"const {self.result_type} {self.name} = {self.final_text()};"]

    def result_text(self) -> str:
        """Return the C expression by which other code reads the result."""
        return f"({self.result_type})({self.final_text()})" if self.lanes else self.name


class OnlineExpSum(_OnlineSum):
    """A sum of exponentials in the same pass as the maximum, which is updated before each block is added."""

    def __init__(
        self, step: OnlineReduction, name: str, lanes: int, block_lanes: int, maximum: Accumulator
    ) -> None:
        super().__init__(step, name, lanes, block_lanes)
        self.maximum = maximum

    def declarations(self, level: str, chunks: int = 0) -> list[str]:
        """Return the declarations of a level's variables, with the maximum that the sum is relative to."""
        lines = super().declarations(level, chunks)
        name, lanes = self.name, f"[{self.sizes[level]}]" if self.lanes else ""
        if level == "block":
            reference = f"{name}_ref{lanes};" if lanes else f"{name}_ref = {self.reference_text()};"
            return [*lines, f"{self.element_type} {reference}"]
        if level == "total":
            return [*lines, f"double {name}_max{lanes or ' = -__builtin_inf()'};"]
        return lines

    def reset(self, level: str) -> list[str]:
        """Return the lines that set the current lane of a level to its initial value."""
        lane = self.lane_index(level)
        if level == "block":
            return [*super().reset(level), f"{self.name}_ref{lane} = {self.reference_text()};"]
        return [*super().reset(level), f"{self.name}_max{lane} = -__builtin_inf();"]

    def reference_text(self) -> str:
        """Return the maximum that the exponentials of the next block are relative to; 0 if it is infinite."""
        reference = f"{self.name}_max{self.lane_index('total')}"
        return f"__builtin_isinf({reference}) ? 0 : {reference}"

    def rescale(self) -> list[str]:
        """Return the lines that rescale the total to the maximum that includes the next block."""
        lane = self.lane_index("total")
        into, old, new = (
            f"{self.name}_total{lane}",
            f"{self.name}_max{lane}",
            f"{self.maximum.name}_total{lane}",
        )
        return [f"{into} = rescale_exp_sum({into}, {old}, {new});", f"{old} = {new};"]

    def add(self, value: str, level: str, flat_index: str = "") -> list[str]:
        """Return the line that adds the exponential of an element to a block."""
        lane = self.lane_index(level)
        term = "exp_term_f32" if self.element_type == "float" else "exp_term_f64"
        return [f"{self.name}_{level}{lane} += {term}({value} - {self.name}_ref{lane});"]

    def merge(self, source: str, index: str, level: str = "total") -> list[str]:
        """Return the lines that add one level's result to another; a chunk's has its own maximum."""
        if source == "block":
            return super().merge(source, index, level)
        lane = self.lane_index("total")
        new_max, chunk_max = f"{self.maximum.name}_total{lane}", f"{self.maximum.name}_chunks{index}{lane}"
        return [
            f"{self.name}_total{lane} += "
            f"rescale_exp_sum({self.name}_chunks{index}{lane}, {chunk_max}, {new_max});"
        ]

    def final_text(self) -> str:
        """Return the total, or its limit where the maximum is infinite or NaN."""
        maximum = self.maximum.result_text()
        limit = f"exp_f64({maximum})" if self.step.ignores_infinite_max else f"(double){maximum} - {maximum}"
        return f"sum_or_limit({self.name}_total{self.lane_index('total')}, {maximum}, {limit})"


class OnlineSquareSum(_OnlineSum):
    """A sum of squared differences from the mean, in the same pass as the mean.

    Differences are taken from a reference close to the mean; both they and their squares are summed.
    """

    def declarations(self, level: str, chunks: int = 0) -> list[str]:
        """Return the declarations of a level's variables: both sums, the reference, and the element count."""
        lines, name = super().declarations(level, chunks), self.name
        lines += [line.replace(f"{name}_{level}", f"{name}_{level}_sum", 1) for line in lines]
        if level == "block":
            return lines
        lanes = f"[{self.lanes}]" if self.lanes else ""
        if level == "chunks":
            return [
                *lines,
                f"{self.element_type} {name}_chunks_ref[{chunks}]{lanes};",
                f"int64_t {name}_chunks_count[{chunks}];",
            ]
        return [*lines, f"{self.element_type} {name}_ref{lanes or ' = 0'};", f"int64_t {name}_count = 0;"]

    def reset(self, level: str) -> list[str]:
        """Return the lines that set the current lane of a level to its initial value."""
        lane = self.lane_index(level)
        lines = [f"{self.name}_{level}{suffix}{lane} = 0;" for suffix in ("", "_sum")]
        return [*lines, f"{self.name}_ref{lane} = 0;"] if level == "total" else lines

    def omp_clauses(self, level: str) -> str:
        """Return the OpenMP reduction clauses of a loop that adds elements to a level."""
        return f" reduction(+:{self.name}_{level}) reduction(+:{self.name}_{level}_sum)"

    def add_to_first_sum(self, value: str) -> list[str]:
        """Return the line that adds an element to the sum of the first block, whose mean is the reference."""
        return [f"{self.name}_block_sum{self.lane_index('block')} += {value};"]

    def set_first_mean(self, count: str) -> list[str]:
        """Return the line that sets the reference to the first block's mean; 0 if the chunk is empty."""
        mean = f"{self.name}_block_sum{self.lane_index('block')} / ({count})"
        return [f"{self.name}_ref{self.lane_index('total')} = {count} ? {mean} : 0;"]

    def add(self, value: str, level: str, flat_index: str = "") -> list[str]:
        """Return the lines that add an element to a block."""
        into, lane, difference = f"{self.name}_{level}", self.lane_index(level), f"{self.name}_diff"
        square = [f"{into}{lane} += {difference} * {difference};"]
        if self.block_type == self.element_type:
            square = self.add_with_fma(difference, difference, level)
        return [
            f"const {self.element_type} {difference} = {value} - {self.name}_ref{self.lane_index('total')};",
            *square,
            f"{into}_sum{lane} += {difference};",
        ]

    def merge(self, source: str, index: str, level: str = "total") -> list[str]:
        """Return the lines that add a block and move the reference, or add a chunk with its own reference."""
        name, lane = self.name, self.lane_index("total")
        squares, diff_sum, ref = f"{name}_total{lane}", f"{name}_total_sum{lane}", f"{name}_ref{lane}"
        if source == "block":
            block_lane = self.lane_index("block")
            return [
                f"{squares} += {name}_block{block_lane};",
                f"{diff_sum} += {name}_block_sum{block_lane};",
                f"const {self.element_type} {name}_new_ref = {ref} + {diff_sum} / {name}_count;",
                f"const double {name}_shift = (double){name}_new_ref - {ref};",
                f"{squares} = shift_square_sum({squares}, {diff_sum}, {name}_count, {name}_shift);",
                f"{diff_sum} -= {name}_count * {name}_shift;",
                f"{ref} = {name}_new_ref;",
            ]
        chunk_state = (
            f"{name}_chunks{index}{lane}, {name}_chunks_sum{index}{lane}, {name}_chunks_count{index}"
        )
        return [
            f"const double {name}_shift = (double){ref} - {name}_chunks_ref{index}{lane};",
            f"{squares} += shift_square_sum({chunk_state}, {name}_shift);",
            f"{diff_sum} += {name}_chunks_sum{index}{lane} - {name}_chunks_count{index} * {name}_shift;",
        ]

    def copy_to_chunk(self, index: str) -> list[str]:
        """Return the lines that save the total of a chunk in the array over chunks."""
        name, lane = self.name, self.lane_index("total")
        levels = ((f"{name}_chunks", f"{name}_total"), (f"{name}_chunks_sum", f"{name}_total_sum"))
        lines = [f"{chunk}{index}{lane} = {total}{lane};" for chunk, total in levels]
        return [
            *lines,
            f"{name}_chunks_ref{index}{lane} = {name}_ref{lane};",
            f"{name}_chunks_count{index} = {name}_count;",
        ]

    def final_text(self) -> str:
        """Return the sum of squared differences from the mean itself."""
        lane = self.lane_index("total")
        diff_sum = f"{self.name}_total_sum{lane}"
        return f"{self.name}_total{lane} - {diff_sum} * {diff_sum} / {mark_size(self.step.iterations)}"


def create_accumulators(
    reductions: Sequence[ReductionStep], first: int, lanes: int, block_lanes: int
) -> list[Accumulator]:
    """Return the accumulators of one pass's reductions, named r0, r1 and so on from number `first`."""
    accs: dict[ReductionStep, Accumulator] = {}
    for i, reduction in enumerate(reductions, first):
        if not isinstance(reduction, OnlineReduction):
            accs[reduction] = Accumulator(reduction, f"r{i}", lanes, block_lanes)
        elif reduction.kind == "squares":
            accs[reduction] = OnlineSquareSum(reduction, f"r{i}", lanes, block_lanes)
        else:
            accs[reduction] = OnlineExpSum(reduction, f"r{i}", lanes, block_lanes, accs[reduction.reference])
    return list(accs.values())


def _is_vectorizable(step: ReductionStep) -> bool:
    """Whether a reduction reads contiguous memory, so that its sum is spread over the lanes of a vector."""
    if not step.inner:
        return True
    last = step.inner[-1]
    for e in walk([step.body]):
        if e.op == "masked" or (e.op == "load" and e.extra[1].stride(last) not in (0, 1)):
            return False
    return True


# Print scans (cumulative sums, maxima and so on) as C: the running value and how an element updates it.
# The inner loop of a scan kernel runs in order. Where memory is contiguous along an outer loop, a tile of
# that loop is scanned at once, with a running value for each lane, and the lanes are vectorised. Sums and
# products are accumulated in double.

_MAX_LANES = 512  # lanes of a tile
_NUM_ROWS = 4  # rows that are scanned at once where lanes are not vectorised


class ScanState:
    """The C variables of a scan's running value: of `lanes` values side by side, or 0 for a single one."""

    def __init__(self, step: ScanStep, name: str, lanes: int, is_vectorized: bool) -> None:
        self.step, self.name, self.lanes, self.is_vectorized = step, name, lanes, is_vectorized
        self.kind, self.dtype = step.scan.kind, step.body.dtype
        self.is_arg = self.kind.startswith("arg")
        is_floating = self.dtype.is_floating_point
        is_double = is_floating and self.kind in ("sum", "prod", "logsumexp")
        self.type = "double" if is_double else "int64_t" if self.kind == "sum" else C_TYPES[self.dtype]
        lane = "[l]" if lanes else ""
        self.value, self.index = f"{name}{lane}", f"{name}_at{lane}"

    def declarations(self) -> list[str]:
        """Return the declarations of the variables."""
        lanes = f"[{self.lanes}]" if self.lanes else ""
        return [
            f"{self.type} {self.name}{lanes};",
            *([f"int64_t {self.name}_at{lanes};"] if self.is_arg else []),
        ]

    def initial_values(self) -> list[str]:
        """Return the lines that set the variables before the first element."""
        value = {"sum": "0", "prod": "1", "logsumexp": "-__builtin_inf()"}.get(self.kind)
        if value is None:
            value = lowest(self.dtype) if self.kind.endswith("max") else highest(self.dtype)
        return [f"{self.value} = {value};", *([f"{self.index} = 0;"] if self.is_arg else [])]

    def update(self, value: str, iteration: str) -> list[str]:
        """Return the lines that add an element to the running value."""
        state = self.value
        if self.kind in ("sum", "prod"):
            return [f"{state} {'+' if self.kind == 'sum' else '*'}= {value};"]
        if self.kind == "logsumexp":
            return [f"{state} = log_add_exp_f64({state}, {value});"]
        sign = ">=" if self.kind.endswith("max") else "<="
        nan_test = f" | ({value} != {value})" if self.dtype.is_floating_point else ""
        take = f"{self.name}_take"
        if not self.is_vectorized:
            # A new extreme is rare: a branch costs less than waiting for the comparison every time.
            index_update = f" {self.index} = {iteration};" if self.is_arg else ""
            return [
                f"if (__builtin_expect(({value} {sign} {state}){nan_test}, 0)) {{",
                f"    {state} = {value};{index_update}",
                "}",
            ]
        lines = [
            f"const int {take} = ({value} {sign} {state}){nan_test};",
            f"{state} = {take} ? {value} : {state};",
        ]
        return [*lines, *([f"{self.index} = {take} ? {iteration} : {self.index};"] if self.is_arg else [])]

    def result_text(self) -> str:
        """Return the C expression of the running value."""
        if self.is_arg:
            return self.index
        return f"({C_TYPES[self.step.scan.dtype]}){self.value}"


def select_scan_lane(kernel: Kernel) -> tuple[Var | None, int, bool]:
    """Return the outer loop to scan in tiles, the tile width, and whether the lanes are vectorised.

    This is the loop along which memory is contiguous. If memory is contiguous along the scans, a few rows are
    scanned at once: each has its own dependency chain, so their latencies overlap.
    """
    best = most_contiguous_loop(kernel)
    if best in kernel.outer and best is not None and best.extent >= 8:
        widths = [
            _MAX_LANES >> k for k in range(_MAX_LANES.bit_length()) if 8 <= _MAX_LANES >> k <= best.extent
        ]
        wasting_little = [w for w in widths if -(-best.extent // w) * w <= best.extent * 9 // 8]
        return best, max(wasting_little, default=16 if best.extent >= 16 else 8), True
    rows = next((v for v in reversed(kernel.outer) if v.extent >= _NUM_ROWS), None)
    return rows, _NUM_ROWS, False


def create_scan_states(steps: Sequence[ScanStep], lanes: int, is_vectorized: bool) -> list[ScanState]:
    """Return the running values of a kernel's scans, named s0, s1 and so on."""
    return [ScanState(step, f"s{i}", lanes, is_vectorized) for i, step in enumerate(steps)]
