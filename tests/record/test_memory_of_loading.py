"""Loading takes little memory beyond the model: half a gigabyte into a model on the meta device."""

import subprocess
import sys

import pytest

PROGRAM = """
import json, re, struct, sys
import torch
import burnt
from burnt.record import Layout, Rename, Split

count, size, path, kind = 20, 2560, sys.argv[1], sys.argv[3]
bytes_each = 4 * size * size
header = {
    f"{i}.weight": dict(dtype="F32", shape=[size, size], data_offsets=[i * bytes_each, (i + 1) * bytes_each])
    for i in range(count)
}
layout = None
if kind == "transposed":
    layout = Layout([Rename("*.weight", "*.weight", transpose=True)])
elif kind == "split":
    header = {
        f"pair{i}": dict(
            dtype="F32",
            shape=[2 * size, size],
            data_offsets=[2 * i * bytes_each, 2 * (i + 1) * bytes_each],
        )
        for i in range(count // 2)
    }
    layout = Layout(
        [Split(f"pair{i}", (f"{2 * i}.weight", f"{2 * i + 1}.weight")) for i in range(count // 2)]
    )
text = json.dumps(header).encode()
with open(path, "wb") as file:  # the zeros take no place on the disk
    file.write(struct.pack("<Q", len(text)) + text)
    file.truncate(8 + len(text) + count * bytes_each)


def megabytes(field):
    return int(re.search(rf"{field}:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024


with torch.device("meta"):
    model = torch.nn.Sequential(*[torch.nn.Linear(size, size, bias=False) for _ in range(count)])
before = megabytes("VmRSS")
burnt.load_weights(model, path, layout=layout, dtype=getattr(torch, sys.argv[2]))
print(megabytes("VmHWM") - before - sum(p.nbytes for p in model.parameters()) // 2**20)
"""


@pytest.mark.full
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(
    ("dtype", "layout"),
    [("float32", "none"), ("bfloat16", "none"), ("float32", "split"), ("bfloat16", "transposed")],
)
def test_half_a_gigabyte(tmp_path, dtype, layout):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "m.safetensors"), dtype, layout]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 200
