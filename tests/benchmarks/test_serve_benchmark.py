"""The benchmark of the server runs, and prints a row for every server and number of connections."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from tests.benchmarks.running import output_of


@pytest.mark.full
def test_every_server_has_a_row_for_each_number_of_connections(tmp_path: Path) -> None:
    printed = output_of("serve.py", "--quick", "--json", tmp_path / "results.json")
    results = json.loads((tmp_path / "results.json").read_text())["connections"]
    assert list(results) == ["1", "16", "64"]
    servers = ["burnt"]
    if importlib.util.find_spec("litserve") is None:
        assert "litserve is not installed" in printed
    else:
        servers += ["litserve, 5 ms", "litserve, no window"]
    for connections, rows in results.items():
        assert list(rows) == servers
        for name, row in rows.items():
            assert 0 < row["p50"] <= row["p99"]
            assert row["ratios"]["per_second"] > 0
            assert f"{connections:<12}{name:<22}{row['per_second']:>9.0f}" in printed
