"""What the scripts share: the test images of the digits, and the verdict on the classes that were read."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

if len(sys.argv) < 2:
    sys.exit(f"usage: python {sys.argv[0]} RUN, the folder of a run of examples/digits")
sys.path.insert(0, str(Path(__file__).parent.parent / "digits"))


def test_images() -> tuple[np.ndarray, np.ndarray]:
    """Return the test split: images [360, 1, 8, 8] of float32 and labels [360]."""
    from train import load_splits

    test = load_splits()["test"].columns
    return test["images"].numpy(), test["labels"].numpy()


def verdict(read: np.ndarray, labels: np.ndarray) -> None:
    """Print how many digits were read right, and exit with 1 if those are fewer than 9 of 10."""
    right = int((read == labels).sum())
    print(f"{right} of {len(labels)} test images are read right")
    sys.exit(right < 0.9 * len(labels))
