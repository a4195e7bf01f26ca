"""What is picked for a kernel, without a GPU to ask."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from burnt.codegen.render.triton.tile_config import (
    Limits,
    TileStructure,
    neighbouring_configs,
    next_power_of_two,
    select_config,
    why_too_large,
)
from burnt.codegen.render.triton.tile_config import (
    TileConfig as Config,
)

SIZES = [1, 2, 3, 7, 16, 64, 100, 1000, 1024, 4096, 16_384, 40_000, 1_000_003, 1 << 31]


def form(rows, cols, **more):
    usual = {"programs": 1, "folds": True, "across": False, "tiles": 1, "itemsize": 4, "chunks": True}
    return TileStructure(rows, cols, **{**usual, **more})


def test_tiles_are_powers_of_two_of_a_sane_size():
    kinds = itertools.product((True, False), (True, False), (1, 4, 9), (1, 2, 4, 8), (1, 300))
    for folds, across, tiles, itemsize, programs in kinds:
        for rows, cols in itertools.product(SIZES, SIZES):
            chosen = select_config(
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
    chosen = select_config(given)
    assert (chosen.rows, chosen.cols, chosen.warps, chosen.chunks) == (rows, cols, warps, chunks)


# --- other block sizes ------------------------------------------------------------------------------------

H200 = Limits(132, shared=227 << 10)
KINDS = list(itertools.product((True, False), (True, False), (1, 4, 9), (1, 2, 4, 8), (1, 300)))


def forms():
    for folds, across, tiles, itemsize, programs in KINDS:
        for rows, cols in itertools.product(SIZES[::2], SIZES[1::2]):
            yield form(
                rows, cols, folds=folds, across=across, tiles=tiles, itemsize=itemsize, programs=programs,
                chunks=folds and cols > 7,
            )  # fmt: skip


def test_variants_are_block_sizes_that_fit():
    for given in itertools.islice(forms(), 0, None, 5):
        found = neighbouring_configs(given)
        assert found[0] == select_config(given)
        assert len(found) == len(set(found)) < 80
        for config in found:
            assert Config.of(str(config)) == dataclasses.replace(config, stages=2)
            assert config.rows <= max(next_power_of_two(given.rows), found[0].rows)
            assert config.cols <= max(next_power_of_two(given.cols), found[0].cols)
            assert config.chunks == 1 or (given.chunks and config.cols * config.chunks <= given.cols)


def test_the_nearest_variants_come_first():
    def steps(one, other):
        sizes = [(getattr(one, n), getattr(other, n)) for n in ("rows", "cols", "warps", "chunks")]
        return sum(a != b for a, b in sizes)

    found = neighbouring_configs(form(4096, 100_000))
    changed = [steps(found[0], config) for config in found]
    assert changed == sorted(changed)
    assert changed[:5] == [0, 1, 1, 1, 1]
    assert max(changed) == 2


def test_what_is_picked_has_room():
    """Where it has not, nothing near it would be measured: that is seen, and counted."""
    refused = [given for given in forms() if why_too_large(given, select_config(given), H200)]
    wide = [given for given in refused if given.tiles * max(given.itemsize // 4, 1) < 8]
    assert wide == []


@pytest.mark.parametrize(
    ("given", "config", "reason"),
    [
        (form(4096, 16_384, tiles=3), Config(1, 16_384, 4), "272 registers a thread, where there are 255"),
        (form(4096, 16_384, tiles=3), Config(1, 16_384, 16), None),
        # 16 warps leave a thread 128 registers.
        (form(16, 1 << 16, tiles=3), Config(4, 16_384, 16), "272 registers a thread, where there are 128"),
        (form(16, 4096, tiles=2, itemsize=8), Config(1, 4096, 1),
         "400 registers a thread, where there are 255"),
        # Less is walked than a tile could hold.
        (form(4096, 100, tiles=3), Config(1, 16_384, 4), None),
        (form(4096, 4096, folds=False, across=True), Config(64, 64, 8), None),
        (form(256, 4096), Config(2, 4096, 8), "128 programs for 132 multiprocessors"),
        (form(264, 4096), Config(2, 4096, 8), None),
        # There are no more programs to be had.
        (form(64, 1000, chunks=False), Config(1, 1024, 8), None),
        (form(64, 1000, chunks=False), Config(2, 1024, 8), "32 programs for 132 multiprocessors"),
        (form(1, 1 << 24), Config(1, 4096, 8, chunks=64), "64 programs for 132 multiprocessors"),
    ],
)  # fmt: skip
def test_what_is_left_out(given, config, reason):
    assert why_too_large(given, config, H200) == reason


def test_a_tile_that_is_turned_around_needs_shared_memory():
    given = form(1 << 16, 1 << 16, folds=False, across=True)
    assert why_too_large(given, Config(128, 256, 32), H200) is None
    small = dataclasses.replace(H200, shared=99 << 10)
    expected = "131072 bytes of shared memory, where there are 101376"
    assert why_too_large(given, Config(128, 256, 32), small) == expected


def test_a_wavefront_has_other_limits():
    mi300 = Limits(304, 2048 * 64, 256, 64 << 10, 64)
    assert (
        why_too_large(form(4096, 16_384), Config(1, 16_384, 32), mi300)
        == "2048 threads, where there are 1024"
    )
    assert why_too_large(form(4096, 16_384), Config(1, 16_384, 16), mi300) is None


def test_texts_that_are_no_block_sizes():
    assert Config.of("8x128 w4 c2") == Config(8, 128, 4, chunks=2)
    for text in ("", "8", "8x128", "8x128 w3", "0x128 w4", "8x128 w64", "8x128 w4 c", "8x128 w4 c256",
                 "2048x1024 w4", "8x128 w4 s2", " 8x128 w4"):  # fmt: skip
        with pytest.raises(ValueError, match="block sizes"):
            Config.of(text)
