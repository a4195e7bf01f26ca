"""What is picked for a kernel, without a GPU to ask."""

from __future__ import annotations

import itertools

import pytest

from burnt.codegen.triton_blocks import Form, pick

SIZES = [1, 2, 3, 7, 16, 64, 100, 1000, 1024, 4096, 16_384, 40_000, 1_000_003, 1 << 31]


def form(rows, cols, **more):
    usual = {"programs": 1, "folds": True, "across": False, "tiles": 1, "itemsize": 4, "chunks": True}
    return Form(rows, cols, **{**usual, **more})


def test_tiles_are_powers_of_two_of_a_sane_size():
    kinds = itertools.product((True, False), (True, False), (1, 4, 9), (1, 2, 4, 8), (1, 300))
    for folds, across, tiles, itemsize, programs in kinds:
        for rows, cols in itertools.product(SIZES, SIZES):
            chosen = pick(
                form(
                    rows, cols, folds=folds, across=across, tiles=tiles, itemsize=itemsize, programs=programs
                )
            )
            for size in (chosen.rows, chosen.cols, chosen.warps, chosen.chunks):
                assert size >= 1
                assert size & (size - 1) == 0, chosen
            assert chosen.rows * chosen.cols <= 16_384
            assert chosen.rows < 2 * max(rows, 1)
            assert chosen.cols < 2 * max(cols, 1)
            assert chosen.warps <= 16
            assert chosen.chunks == 1 or chosen.cols * chosen.chunks <= cols


@pytest.mark.parametrize(
    ("given", "rows", "cols", "warps", "chunks"),
    [
        (form(1, 1 << 20, folds=False), 1, 1024, 4, 1),
        (form(4096, 1000), 1, 1024, 4, 1),
        (form(4096, 60), 16, 64, 4, 1),
        (form(4096, 16_384), 1, 16_384, 16, 1),
        (form(4096, 16_384, tiles=4), 1, 2048, 4, 1),
        (form(4096, 100_000), 1, 4096, 8, 1),
        (form(1, 1 << 24), 1, 4096, 8, 128),
        (form(1024, 4096, across=True), 32, 64, 4, 16),
        (form(1024, 4096, across=True, itemsize=2), 64, 32, 4, 32),
        (form(1024, 4096, across=True, chunks=False), 32, 64, 4, 1),
        (form(1000, 2000, folds=False, across=True), 32, 32, 4, 1),
    ],
)
def test_what_is_picked(given, rows, cols, warps, chunks):
    chosen = pick(given)
    assert (chosen.rows, chosen.cols, chosen.warps, chosen.chunks) == (rows, cols, warps, chunks)
