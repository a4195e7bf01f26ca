"""The cost model of products: next to seconds of an H100, and of machine code that is compiled here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton exists for Linux alone")

from burnt.codegen.render.triton.kernel import print_kernel
from burnt.codegen.render.triton.matmul_config import MatmulConfig
from tests.codegen.render.triton.ahead import compiled, planned
from tests.null.cost import Constants, Work, fit, work_of

# Of the kernels that were measured: their code, and milliseconds by the model and by the device.
LINEAR_GELU = Work(1024, 232, 1.0, 11016, 1, 1024, 1024, 65536)
BMM = Work(1024, 246, 1.0, 1274, 1, 2048, 2048, 32768)
FORWARD = Work(1024, 764, 0.0, 2772, 1, 4096, 4096, 262144)
KEYS = Work(1280, 478, 1.0, 2434, 1, 4096, 4096, 524288)
QUERIES = Work(1536, 592, 1.0, 2256, 1, 4096, 4096, 262144)


@pytest.mark.parametrize(
    ("works", "estimated", "measured"),
    [
        ([LINEAR_GELU], 0.440, 0.460),
        ([BMM], 0.217, 0.233),
        ([FORWARD], 2.50, 2.48),
        ([KEYS, QUERIES], 6.27, 8.6),
    ],
)
def test_estimates_are_near_what_an_h100_took(works: list[Work], estimated: float, measured: float) -> None:
    found = sum(work.seconds(Constants()) for work in works) * 1e3
    assert found == pytest.approx(estimated, rel=0.005)
    # Good for a shortlist: the estimate of the backward is 27 % low.
    assert found == pytest.approx(measured, rel=0.08 if len(works) == 1 else 0.28)


def test_machine_code_tells_the_work_of_a_launch(tmp_path: Path) -> None:
    a = torch.empty(64, 1024, 1024).bfloat16()
    (kernel,) = planned(torch.bmm, a, a, products=True)

    def work(config: str, programs: int, threads: int = 256) -> Work:
        (found,) = compiled([print_kernel(kernel, MatmulConfig.of(config))], "sm_90", tmp_path)
        assert found.cubin is not None
        result = work_of(
            found.cubin.read_bytes(), threads, found.shared, programs, a.numel() * 1024, a.numel()
        )
        return result

    plain = work("128x256x64 w8 s3", 2048)
    assert (plain.tensor, plain.hidden, plain.resident, plain.iterations) == (1024, 1.0, 1, 32768)
    assert plain.seconds(Constants()) * 1e3 == pytest.approx(0.233, rel=0.1)
    persistent = work("128x256x64 w8 s3 p132 d", 132)
    assert (persistent.tiles, persistent.iterations) == (2048, 32768)
    assert persistent.issue < 300  # the end of a tile is in the loop, but not in each iteration
    assert persistent.seconds(Constants()) < plain.seconds(Constants())
    small = work("32x64x64 w4 s3", 32768, 128)  # by products of a warp, which are slower
    assert small.iterations == 64 * 1024**3 / (32 * 64 * 64)
    assert small.seconds(Constants()) > 1.3 * plain.seconds(Constants())


def test_constants_are_fitted_to_a_race() -> None:
    picks = {
        "row": [
            {"config": {"n": i}, "works": [w._asdict()]} for i, w in enumerate((LINEAR_GELU, BMM, FORWARD))
        ]
    }
    true = Constants(rate=0.6, latency=3000, clock=1.5e9)
    seconds = {json.dumps(p["config"]): Work(**p["works"][0]).seconds(true) for p in picks["row"]}  # type: ignore[arg-type,index,misc]
    assert fit(picks, {"rows": {"row": {"candidates": seconds, "clock_mhz": 1500}}}) == (true, 1.0)
