"""benchmarks/ops.py runs, and lists every candidate."""

import pytest

from burnt.codegen.runtime.c_compiler import find_compiler
from tests.benchmarks.running import output_of


@pytest.mark.full
@pytest.mark.skipif(find_compiler() is None, reason="no C compiler works here: the library has no rival")
def test_candidates_are_listed_beside_each_other() -> None:
    printed = output_of("ops.py", "embedding", "--quick")
    rows = [line for line in printed.splitlines() if line.startswith("embedding ")]
    assert len(rows) == 12
    assert sum("sorted " in row for row in rows if " training " in row) == 6
    assert not any("sorted " in row for row in rows if " inference " in row)
    assert "microseconds a call" in printed
