"""What `burnt.codegen.stages` prints is what the page shows, and what the compiler makes."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest
import torch

from burnt.codegen import explain
from burnt.codegen.runtime.targets import TARGETS
from burnt.codegen.stages import Stages, main, softmax, stages
from burnt.errors import ConfigError
from tests import forked

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "softmax-to-c.md").read_text()


def test_the_page_shows_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    printed = capsys.readouterr().out
    parts = dict(re.findall(r"^--- (\w+)\n(.*?)\n\n(?=---|\Z)", printed, re.M | re.S))
    assert tuple(parts) == Stages._fields
    shown = re.findall(r"^```(?:text|c)\n(.*?)\n```", PAGE, re.M | re.S)
    assert shown == list(parts.values())


@pytest.mark.parametrize("target", TARGETS)
def test_the_source_is_that_of_a_fused_function(target: str) -> None:
    x = torch.randn(4, 1000)
    result = explain(softmax, x, target=target, timed=False)
    assert list(result.texts.values()) == [stages(softmax, x, target=target).source]


def test_a_target_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no target 'cuda'(.|\n)*c, triton, metal"):
        stages(softmax, torch.randn(4, 10), target="cuda")


def test_the_command_names_the_targets() -> None:
    done = forked.run(
        "import runpy, sys; sys.argv = ['stages', 'cuda']; "
        "runpy.run_module('burnt.codegen.stages', run_name='__main__')"
    )
    assert done.returncode == 1
    assert "no target 'cuda'\n  expected  c, triton, metal" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_callable_without_a_name_is_named_after_its_type() -> None:
    assert "void partial_0(" in stages(functools.partial(torch.mul, 2.0), torch.randn(4)).source


def test_steps_are_shown() -> None:
    """A scan, a call of torch's own, several kernels, and a number that is given at run time."""

    def several(x: torch.Tensor, scale: float) -> torch.Tensor:
        return torch.sort((x * scale).cumsum(-1))[0] + 1

    found = stages(several, torch.randn(3, 50), 2.0)
    assert "torch's own call: aten.sort.default" in found.kernels
    assert found.kernels.count("kernel, ") == 2
    assert "r0 = sum for i1 < 50 of mul(x0[50*i0 + i1], cast(number " in found.kernels
