"""Kernels spill as many registers as `spills.txt` lists."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton exists for Linux alone")

import triton

from tests.codegen.render.triton import spills
from tests.codegen.render.triton.ahead import SHARED, TARGETS
from tests.codegen.render.triton.spills import LIST, Entry, Spill, entries, format_list, parse

TEXT = LIST.read_text(encoding="utf-8")
LISTED = parse(TEXT)
SAMPLE = [
    Entry("forward", "causal", "bf16", "128", "sm_90"),
    Entry("keys", "softcap", "bf16", "128", "sm_90"),
    Entry("queries", "causal", "bf16", "256", "sm_90"),
    Entry("keys", "causal", "f32", "128", "gfx1100"),
    Entry("forward", "mask, added", "bf16", "128", "gfx942"),
]
pytestmark = pytest.mark.filterwarnings("ignore")


def check(chosen: list[Entry], folder: Path) -> None:
    """Compiled entries match the list, fit into shared memory and have no float64 instructions."""
    assert chosen
    if (version := spills.version_of(TEXT)) != triton.__version__:
        pytest.skip(f"{LIST.name} is of Triton {version}, whose assembler spills other registers")
    spilled = {}
    for entry in chosen:
        config, functions = spills.compiled_entry(entry, folder)
        for function in functions:
            assert function.shared <= SHARED[entry.target], entry
            assert not function.doubles, (entry, function.doubles)
        nbytes = max(function.spilled for function in functions)
        if nbytes:
            spilled[entry] = Spill(config, nbytes)
    listed = {entry: LISTED[entry] for entry in chosen if entry in LISTED}
    assert spilled == listed, "python -m tests.codegen.render.triton.spills"


@pytest.mark.full
def test_a_sample_matches_the_list(tmp_path: Path) -> None:
    assert set(SAMPLE) <= set(entries())
    assert set(SAMPLE) & set(LISTED)
    check(SAMPLE, tmp_path)


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("target", TARGETS)
def test_all_entries_match_the_list(target: str, tmp_path: Path) -> None:
    check([entry for entry in entries() if entry.target == target], tmp_path)


def test_the_list_contains_only_known_entries() -> None:
    assert set(LISTED) <= set(entries())
    assert all(spill.nbytes > 0 for spill in LISTED.values())
    assert format_list(LISTED).replace(triton.__version__, spills.version_of(TEXT)) == TEXT


def test_the_command_keeps_what_it_does_not_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bytes_of = {"forward": 0, "keys": 24, "queries": 8}
    known = {kernel: Entry(kernel, "plain", "bf16", "64", "sm_90") for kernel in bytes_of}
    monkeypatch.setattr(spills, "LIST", tmp_path / "spills.txt")
    monkeypatch.setattr(spills, "entries", lambda: list(known.values()))
    monkeypatch.setattr(spills, "spill_of", lambda entry, folder: Spill("64x64", bytes_of[entry.kernel]))
    spills.LIST.write_text(format_list({}))
    spills.main()
    assert parse(spills.LIST.read_text()) == {
        known["keys"]: Spill("64x64", 24), known["queries"]: Spill("64x64", 8)
    }  # fmt: skip
    bytes_of |= {"keys": 0, "queries": 16}
    spills.main("^keys")
    assert parse(spills.LIST.read_text()) == {known["queries"]: Spill("64x64", 8)}
