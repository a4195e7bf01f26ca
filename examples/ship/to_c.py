"""Bare metal: the model as C99 for a microcontroller; compile it here, and read the test images with it.

python examples/ship/to_c.py runs/digits-<date> [firmware]
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import numpy as np
from _digits import test_images, verdict

run, out = [*sys.argv[1:], "firmware"][:2]
limits = ["--ram", "64k", "--flash", "512k"]
subprocess.run([sys.executable, "-m", "burnt", "c", run, "-o", out, "--name", "digits", *limits], check=True)
subprocess.run(["make", "-C", out, "test"], check=True)

# The same C as a library that Python can call.
library = Path(out).resolve() / "digits.so"
subprocess.run(
    ["cc", "-std=c99", "-O2", "-fPIC", "-shared", f"{out}/digits.c", "-o", library, "-lm"], check=True
)
digits = ctypes.CDLL(str(library)).digits
images, labels = test_images()
logits = np.zeros((len(images), 10), np.float32)
pointer = ctypes.POINTER(ctypes.c_float)
for image, result in zip(images, logits, strict=True):
    digits(np.ascontiguousarray(image).ctypes.data_as(pointer), result.ctypes.data_as(pointer))
verdict(logits.argmax(1), labels)
