"""A file: export the run's best checkpoint to ONNX, and run it with ONNX Runtime alone.

python examples/ship/to_file.py runs/digits-<date> [digits.onnx]
"""

from __future__ import annotations

import subprocess
import sys

import onnxruntime
from _digits import test_images, verdict

run, out = [*sys.argv[1:], "digits.onnx"][:2]
subprocess.run([sys.executable, "-m", "burnt", "export", run, "-o", out], check=True)

images, labels = test_images()
session = onnxruntime.InferenceSession(out)
(logits,) = session.run(None, {"images": images})
verdict(logits.argmax(1), labels)
