"""The benchmark of loaders runs, and compares loaders that give the same batches."""

import pytest

from tests.benchmarks.running import run


@pytest.mark.full
def test_every_row_is_printed() -> None:
    done = run("loader.py", "--quick")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    names = [
        "JPEGs, 2 processes",
        "JPEGs, 2 threads",
        "JPEGs, no",
        "copies, 2",
        "copies, no",
        "tensors in memory",
    ]
    assert all(line.startswith(name) for line, name in zip(lines[2:], names, strict=False))
    names = ["shuffled ", "shuffled, 2", "weighted", "buckets"]
    assert all(
        line.startswith(name) and line.endswith(" ms") for line, name in zip(lines[-4:], names, strict=True)
    )
