"""torchvision, where it is installed, also next to a torch that its operators cannot run with."""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
import torch

_LIBRARIES = []


@pytest.fixture(scope="session")
def torchvision() -> ModuleType:
    """`torchvision.transforms.v2`, which needs none of torchvision's compiled operators.

    Its wheels for Linux load CUDA's libraries. Next to a torch for CPUs its operators stay unknown, and the
    import fails where it refers to their schemas, which are therefore declared here.
    """
    folder = Path(sys.prefix) / "torchvision"  # of scripts/test
    if find_spec("torchvision") is None and folder.is_dir():
        sys.path.append(str(folder))
    if find_spec("torchvision") is None:
        pytest.skip("not installed: scripts/test installs it")
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _LIBRARIES.append(library)  # its end would take the schemas away
    return importlib.import_module("torchvision.transforms.v2")
