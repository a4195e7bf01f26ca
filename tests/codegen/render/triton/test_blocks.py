"""The block sizes that are selected for a kernel and the candidates for tuning, without a GPU."""

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
from burnt.codegen.render.triton.tile_config import TileConfig as Config

SIZES = [1, 2, 3, 7, 16, 64, 100, 1000, 1024, 4096, 16_384, 40_000, 1_000_003, 1 << 31]


def make_structure(rows, cols, **changes):
    defaults = {
        "programs": 1,
        "has_inner_loop": True,
        "is_column_major": False,
        "num_tensors": 1,
        "itemsize": 4,
        "can_chunk": True,
    }
    return TileStructure(rows, cols, **{**defaults, **changes})


def test_tiles_are_powers_of_two_of_a_reasonable_size():
    kinds = itertools.product((True, False), (True, False), (1, 4, 9), (1, 2, 4, 8), (1, 300))
    for has_inner_loop, is_column_major, num_tensors, itemsize, programs in kinds:
        for rows, cols in itertools.product(SIZES, SIZES):
            config = select_config(
                make_structure(
                    rows,
                    cols,
                    has_inner_loop=has_inner_loop,
                    is_column_major=is_column_major,
                    num_tensors=num_tensors,
                    itemsize=itemsize,
                    programs=programs,
                )
            )
            for size in (config.rows, config.cols, config.warps, config.chunks):
                assert size >= 1
                assert size & (size - 1) == 0, config
            assert config.rows * config.cols <= 16_384
            assert config.rows < 2 * max(rows, 1)
            assert config.cols < 2 * max(cols, 1)
            assert config.warps <= 16
            assert config.chunks == 1 or config.cols * config.chunks <= cols


@pytest.mark.parametrize(
    ("structure", "rows", "cols", "warps", "chunks"),
    [
        (make_structure(1, 1 << 20, has_inner_loop=False), 1, 1024, 4, 1),
        (make_structure(4096, 1000), 1, 1024, 4, 1),
        (make_structure(4096, 60), 16, 64, 4, 1),
        (make_structure(4096, 16_384), 1, 16_384, 16, 1),
        (make_structure(4096, 16_384, num_tensors=4), 1, 2048, 4, 1),
        (make_structure(4096, 100_000), 1, 4096, 8, 1),
        (make_structure(1, 1 << 24), 1, 4096, 8, 128),
        (make_structure(1024, 4096, is_column_major=True), 32, 64, 4, 16),
        (make_structure(1024, 4096, is_column_major=True, itemsize=2), 64, 32, 4, 32),
        (make_structure(1024, 4096, is_column_major=True, can_chunk=False), 32, 64, 4, 1),
        (make_structure(1000, 2000, has_inner_loop=False, is_column_major=True), 32, 32, 4, 1),
    ],
)
def test_selected_config(structure, rows, cols, warps, chunks):
    config = select_config(structure)
    assert (config.rows, config.cols, config.warps, config.chunks) == (rows, cols, warps, chunks)


# --- candidates for tuning --------------------------------------------------------------------------------

H200 = Limits(132, shared_memory=227 << 10)
KINDS = list(itertools.product((True, False), (True, False), (1, 4, 9), (1, 2, 4, 8), (1, 300)))


def all_structures():
    for has_inner_loop, is_column_major, num_tensors, itemsize, programs in KINDS:
        for rows, cols in itertools.product(SIZES[::2], SIZES[1::2]):
            yield make_structure(
                rows, cols, has_inner_loop=has_inner_loop, is_column_major=is_column_major,
                num_tensors=num_tensors, itemsize=itemsize, programs=programs,
                can_chunk=has_inner_loop and cols > 7,
            )  # fmt: skip


def test_neighbouring_configs_fit():
    for structure in itertools.islice(all_structures(), 0, None, 5):
        configs = neighbouring_configs(structure)
        assert configs[0] == select_config(structure)
        assert len(configs) == len(set(configs)) < 80
        for config in configs:
            assert Config.of(str(config)) == dataclasses.replace(config, stages=2)
            assert config.rows <= max(next_power_of_two(structure.rows), configs[0].rows)
            assert config.cols <= max(next_power_of_two(structure.cols), configs[0].cols)
            assert config.chunks == 1 or (
                structure.can_chunk and config.cols * config.chunks <= structure.cols
            )


def test_nearest_configs_come_first():
    def steps(one, other):
        sizes = [(getattr(one, n), getattr(other, n)) for n in ("rows", "cols", "warps", "chunks")]
        return sum(a != b for a, b in sizes)

    configs = neighbouring_configs(make_structure(4096, 100_000))
    changed = [steps(configs[0], config) for config in configs]
    assert changed == sorted(changed)
    assert changed[:5] == [0, 1, 1, 1, 1]
    assert max(changed) == 2


def test_selected_config_is_not_too_large():
    """If it were, the tuner would measure no neighbour either."""
    refused = [
        structure
        for structure in all_structures()
        if why_too_large(structure, select_config(structure), H200)
    ]
    wide = [structure for structure in refused if structure.num_tensors * max(structure.itemsize // 4, 1) < 8]
    assert wide == []


@pytest.mark.parametrize(
    ("structure", "config", "reason"),
    [
        (make_structure(4096, 16_384, num_tensors=3), Config(1, 16_384, 4),
         "272 registers per thread, of 255 available"),
        (make_structure(4096, 16_384, num_tensors=3), Config(1, 16_384, 16), None),
        # 16 warps leave a thread 128 registers.
        (make_structure(16, 1 << 16, num_tensors=3), Config(4, 16_384, 16),
         "272 registers per thread, of 128 available"),
        (make_structure(16, 4096, num_tensors=2, itemsize=8), Config(1, 4096, 1),
         "400 registers per thread, of 255 available"),
        # The rows are shorter than the tile.
        (make_structure(4096, 100, num_tensors=3), Config(1, 16_384, 4), None),
        (make_structure(4096, 4096, has_inner_loop=False, is_column_major=True), Config(64, 64, 8), None),
        (make_structure(256, 4096), Config(2, 4096, 8), "128 programs for 132 multiprocessors"),
        (make_structure(264, 4096), Config(2, 4096, 8), None),
        # More programs are not possible.
        (make_structure(64, 1000, can_chunk=False), Config(1, 1024, 8), None),
        (make_structure(64, 1000, can_chunk=False), Config(2, 1024, 8),
         "32 programs for 132 multiprocessors"),
        (make_structure(1, 1 << 24), Config(1, 4096, 8, chunks=64), "64 programs for 132 multiprocessors"),
    ],
)  # fmt: skip
def test_why_too_large(structure, config, reason):
    assert why_too_large(structure, config, H200) == reason


def test_a_transposed_tile_needs_shared_memory():
    structure = make_structure(1 << 16, 1 << 16, has_inner_loop=False, is_column_major=True)
    assert why_too_large(structure, Config(128, 256, 32), H200) is None
    small = dataclasses.replace(H200, shared_memory=99 << 10)
    expected = "131072 bytes of shared memory, of 101376 available"
    assert why_too_large(structure, Config(128, 256, 32), small) == expected


def test_limits_of_a_wavefront():
    mi300 = Limits(304, 2048 * 64, 256, 64 << 10, 64)
    assert (
        why_too_large(make_structure(4096, 16_384), Config(1, 16_384, 32), mi300)
        == "2048 threads, of 1024 allowed"
    )
    assert why_too_large(make_structure(4096, 16_384), Config(1, 16_384, 16), mi300) is None


def test_invalid_texts():
    assert Config.of("8x128 w4 c2") == Config(8, 128, 4, chunks=2)
    for text in ("", "8", "8x128", "8x128 w3", "0x128 w4", "8x128 w64", "8x128 w4 c", "8x128 w4 c256",
                 "2048x1024 w4", "8x128 w4 s2", " 8x128 w4"):  # fmt: skip
        with pytest.raises(ValueError, match="block sizes"):
            Config.of(text)
