"""Flash attention kernels compiled for GPUs that need not be present, and the selection of block sizes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton exists for Linux alone")

from burnt.codegen.runtime import triton_compile_pool
from burnt.kernels.ops.attention.flash_config import FlashConfig, configs, select_config
from burnt.kernels.ops.attention.reference import dot_product_attention
from tests.codegen.render.triton.ahead import SHARED, TARGETS, limits_of
from tests.codegen.render.triton.attention import DTYPES, VARIANTS, compiled

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.sample(3)
@pytest.mark.parametrize("kernel", ["forward", "keys", "queries"])
@pytest.mark.parametrize(("target", "variant"), [("sm_90", "causal"), ("gfx942", "plain")])
def test_a_sample(kernel: str, target: str, variant: str, tmp_path: Path) -> None:
    """What spills: `spills.py`."""
    blocks = select_config(128, 2, limits_of(target))[kernel]
    result = compiled(kernel, blocks, DTYPES["bf16"], 128, variant, target, tmp_path)
    assert ("wgmma.mma_async" if target == "sm_90" else "v_mfma") in result.assembly
    assert result.shared <= SHARED[target]
    assert not result.doubles


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kernel", ["forward", "keys", "queries"])
def test_all_options(kernel: str, variant: str, target: str, tmp_path: Path) -> None:
    """float16 and heads of 64, which the list of spills does not have: none is allowed."""
    carried = {"has_additive_mask": variant == "mask, added", "has_score": variant in ("softcap", "slopes")}
    blocks = select_config(64, 2, limits_of(target), **carried)[kernel]
    result = compiled(kernel, blocks, torch.float16, 64, variant, target, tmp_path)
    assert result.spilled == 0, f"{blocks}: {result.spilled} bytes spilled"
    assert result.shared <= SHARED[target]
    assert not result.doubles


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("size", [64, 128, 256])
def test_all_configurations_compile(size: int, tmp_path: Path) -> None:
    limits = dataclasses.replace(limits_of("sm_90"), has_tma=True)
    listed = [*configs(size, 2, limits_of("sm_90")), *configs(size, 2, limits, ("both",))]
    for kernel, text in dict.fromkeys(item for config in listed for item in config.items()):
        if kernel != "dots":
            result = compiled(kernel, FlashConfig.of(text), torch.bfloat16, size, "plain", "sm_90", tmp_path)
            assert result.shared <= SHARED["sm_90"], (kernel, text)


@pytest.mark.parametrize("size", [64, 128])
def test_first_configs_cover_all_kernels(size: int) -> None:
    """As many as the tuner tries in its quick mode."""
    listed = configs(size, 2, limits_of("sm_90"))
    changed = [[name for name in c if c[name] != listed[0][name]] for c in listed[1:]]
    assert all(len(names) == 1 for names in changed)
    for first in (3, 6, 9, 12):
        counts = [changed[: first - 1].count([name]) for name in ("forward", "keys", "queries")]
        assert max(counts) - min(counts) <= 1, (first, counts)
    of_forward = configs(size, 2, limits_of("sm_90"), ["forward"])
    assert of_forward == [
        c for c in listed if c["keys"] == listed[0]["keys"] and c["queries"] == listed[0]["queries"]
    ]


def test_configs_of_one_pass_vary_it_or_leave_it_out() -> None:
    limits = dataclasses.replace(limits_of("sm_90"), has_tma=True)
    listed = configs(128, 2, limits, ["forward", "keys", "queries", "both"])
    assert listed[0]["both"] == "64x128 w8 s2"
    assert listed[1] == {name: text for name, text in listed[0].items() if name != "both"}
    changed = [[name for name in c if c[name] != listed[0][name]] for c in listed[2:]]
    assert {name for names in changed for name in names} == {"forward", "both"}
    assert {"64x64 w8 s2", "64x64 w4 s2"} <= {c.get("both") for c in listed}  # one size, and two
    assert "both" not in configs(128, 2, limits_of("sm_80"), ["forward", "keys", "queries", "both"])[0]


def test_selected_config_fits_and_comes_first() -> None:
    for target in TARGETS:
        for size in (1, 64, 65, 128, 200, 256):
            for itemsize in (2, 4):
                limits = limits_of(target)
                picked = select_config(size, itemsize, limits)
                for carried in (
                    {"has_additive_mask": True},
                    {"has_score": True},
                    {"has_additive_mask": True, "has_score": True},
                ):
                    also = select_config(size, itemsize, limits, **carried)
                    assert configs(size, itemsize, limits, **carried)[0] == {
                        n: str(b) for n, b in also.items()
                    }
                    assert set(also) == set(picked)
                listed = configs(size, itemsize, limits)
                assert listed[0] == {name: str(blocks) for name, blocks in picked.items()}
                assert len({tuple(c.items()) for c in listed}) == len(listed)
                assert all(FlashConfig.of(text) is not None for config in listed for text in config.values())
    with pytest.raises(ValueError, match="expected a text such as"):
        FlashConfig.of("64 w4")


def test_tiles_that_exceed_the_registers_are_excluded() -> None:
    """256 keys at 128 are 65,536 sums for 256 threads, which may have 255 registers each."""
    offered = {config["keys"] for config in configs(128, 2, limits_of("sm_90"))}
    assert "32x256 w8 s2" not in offered
    assert {"32x64 w8 s2", "64x128 w8 s2", "32x128 w16 s2"} <= offered
    assert "64x256 w8 s2" in {config["keys"] for config in configs(64, 2, limits_of("sm_90"))}


def test_selection_depends_on_mask_and_score(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the op's arguments: a mask that is added, a soft cap or slopes; a boolean mask changes nothing."""
    op = dot_product_attention
    x = torch.empty(1, 2, 64, 64, dtype=torch.bfloat16)
    mask = torch.zeros(64, 64, dtype=torch.bfloat16)

    def config(target: str, **options: Any) -> dict[str, Any]:
        monkeypatch.setattr(triton_compile_pool, "limits_of", lambda device: limits_of(target))
        found = op.candidates["flash"].alternatives(op.bind((x, x, x), options))[0].config
        assert found is not None
        return found

    plain = config("sm_80")
    assert config("sm_80", mask=mask) == {**plain, "forward": "128x32 w8 s3"}
    assert config("sm_80", mask=mask.bool()) == config("sm_80", softcap=20.0) == plain
    plain = config("gfx1100")
    assert config("gfx1100", softcap=20.0) == {**plain, "keys": "16x32 w8 s1"}
    assert config("gfx1100", slopes=torch.ones(2)) == {**plain, "keys": "16x32 w8 s1"}
