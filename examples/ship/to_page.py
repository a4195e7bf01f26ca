"""A web page: one HTML file that runs the model in a browser; read the test images in Node, if it is there.

python examples/ship/to_page.py runs/digits-<date> [digits.html]
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import numpy as np
from _digits import test_images, verdict

# What the page computes with, without what it draws with.
READ = """
const page = require("fs").readFileSync(process.argv[1], "utf8");
const code = page.match(/const CODE = "([^"]*)"/)[1];
const bytes = require("zlib").inflateRawSync(Buffer.from(code, "base64"));
const model = new WebAssembly.Instance(new WebAssembly.Module(bytes), {}).exports;
model.init();
const images = JSON.parse(require("fs").readFileSync(0, "utf8"));
console.log(JSON.stringify(images.map(image => {
  new Float32Array(model.memory.buffer, model.input_0(), 64).set(image);
  model.run();
  return Array.from(new Float32Array(model.memory.buffer, model.output_0(), 10));
})));
"""

run, out = [*sys.argv[1:], "digits.html"][:2]
subprocess.run([sys.executable, "-m", "burnt", "page", run, "-o", out, "--weights", "float16"], check=True)
print(f"open {out} in a browser, and draw a digit")

node = shutil.which("node")
if node is None:
    sys.exit("Node is not installed, so the page was written and not tried")
images, labels = test_images()
given = json.dumps(images.reshape(len(images), 64).tolist())
done = subprocess.run([node, "-e", READ, out], input=given, capture_output=True, text=True, check=True)
verdict(np.array(json.loads(done.stdout)).argmax(1), labels)
