"""Kernels spill as many registers as `spills.txt` lists."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton exists for Linux alone")

import triton

from tests.codegen.render.triton import spills
from tests.codegen.render.triton.ahead import SHARED, TARGETS
from tests.codegen.render.triton.spills import LIST, Entry, Spill, differences, entries, format_list, parse

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
    assert not differences(spilled, LISTED, chosen), "python -m tests.codegen.render.triton.spills --write"


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


def test_differences_are_reported_both_ways() -> None:
    a, b, c, d = (Entry("keys", "plain", "bf16", size, "sm_90") for size in ("16", "32", "64", "128"))
    some, more, other = Spill("64x64 w4 s2", 8), Spill("64x64 w4 s2", 16), Spill("64x64 w8 s2", 8)
    assert differences({a: some}, {a: some, d: some}, [a, b]) == []  # the last was not compiled
    assert differences({b: some}, {}, [a, b]) == [
        "keys | plain | bf16 | 32 | sm_90: 8 bytes (64x64 w4 s2), the list: no spills"
    ]
    assert differences({}, {c: some}, [c]) == [
        "keys | plain | bf16 | 64 | sm_90: no spills, the list: 8 bytes (64x64 w4 s2)"
    ]
    assert len(differences({a: more, b: other}, {a: some, b: some}, [a, b])) == 2


def test_the_command_writes_and_compares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bytes_of = {"forward": 0, "keys": 24, "queries": 8}
    known = [Entry(kernel, "plain", "bf16", "64", "sm_90") for kernel in bytes_of]
    monkeypatch.setattr(spills, "LIST", tmp_path / "spills.txt")
    monkeypatch.setattr(spills, "entries", lambda: known)
    monkeypatch.setattr(
        spills, "spill_of", lambda entry, folder: Spill("64x64 w4 s2", bytes_of[entry.kernel])
    )
    assert spills.main(["--write"]) == 0
    assert list(parse(spills.LIST.read_text()).values()) == [
        Spill("64x64 w4 s2", 24),
        Spill("64x64 w4 s2", 8),
    ]
    assert spills.main([]) == 0
    bytes_of |= {"forward": 4, "keys": 0}
    capsys.readouterr()
    assert spills.main([]) == 1
    assert "keys | plain | bf16 | 64 | sm_90: no spills, the list: 24 bytes" in capsys.readouterr().out
    assert spills.main(["--write", "--only", "^keys"]) == 0  # the others stay as they are listed
    assert [entry.kernel for entry in parse(spills.LIST.read_text())] == ["queries"]
    assert spills.main(["--only", "^(keys|queries)"]) == 0
