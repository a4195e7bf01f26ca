"""A server: serve the run, ask it for the test images over HTTP, and stop it.

python examples/ship/to_server.py runs/digits-<date>
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

import numpy as np
from _digits import test_images, verdict


def is_ready(address: str) -> bool:
    """Whether the server answers that its model has run."""
    try:
        with urllib.request.urlopen(f"{address}/readyz", timeout=10):
            return True
    except urllib.error.HTTPError:
        return False


def predict(address: str, images: np.ndarray) -> np.ndarray:
    """Return the logits [n, 10] of images [n, 1, 8, 8]."""
    body = json.dumps({"inputs": {"images": images.tolist()}}).encode()
    request = urllib.request.Request(f"{address}/v1/predict", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return np.array(json.load(response)["outputs"]["output"])


images, labels = test_images()
command = [sys.executable, "-u", "-m", "burnt", "serve", sys.argv[1], "--port", "0"]
with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
    assert server.stdout is not None
    try:
        # It prints where it listens as soon as it does, and is ready once the model has run.
        address = next(match[0] for line in server.stdout if (match := re.search(r"http://\S+", line)))
        while not is_ready(address):
            time.sleep(0.1)
        logits = [predict(address, batch) for batch in np.split(images, 12)]
    finally:
        server.send_signal(signal.SIGTERM)
verdict(np.concatenate(logits).argmax(1), labels)
