"""A second device for machines without a GPU, `second_device.cpp`: compiled once per machine, then loaded.

Registering it changes torch for the whole process (`torch.accelerator` then finds it), so only programs of
`tests.forked` do so.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import types
from pathlib import Path

import torch

SOURCE = Path(__file__).with_suffix(".cpp")
NAME = "twin"


def compiler() -> str | None:
    """The C++ compiler, where the device can be compiled."""
    return shutil.which(os.environ.get("CXX", "g++")) if sys.platform == "linux" else None


def build() -> Path:
    """Compile the device, in some 8 seconds of CPU, unless this machine has done so."""
    key = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    library = Path(tempfile.gettempdir()) / f"burnt-second-device-{os.getuid()}-{key}.so"
    if not library.exists():
        home = Path(torch.__file__).parent
        written = library.with_suffix(f".{os.getpid()}")
        subprocess.run(
            [
                compiler() or "g++", "-O0", "-std=c++20", "-fPIC", "-shared", "-w", f"-I{home}/include",
                f"-I{home}/include/torch/csrc/api/include", str(SOURCE), "-o", str(written),
                f"-L{home}/lib", "-ltorch", "-ltorch_cpu", "-lc10",
            ],
            check=True,
        )  # fmt: skip
        written.replace(library)
    return library


def register(*, has_random_states: bool = False) -> None:
    """Give this process the device ``twin``."""
    torch.ops.load_library(str(build()))
    torch.utils.rename_privateuse1_backend(NAME)
    module = types.ModuleType(f"torch.{NAME}")
    module.is_available = module.is_initialized = lambda: True
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module.device = contextlib.nullcontext
    module._initialized = True
    module._is_in_bad_fork = lambda: False
    module.manual_seed_all = lambda seed: None
    module.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]
    if has_random_states:  # its kernels are the CPU's, which draw from the CPU's generator
        module.get_rng_state = lambda device=0: torch.get_rng_state()
        module.set_rng_state = lambda state, device=0: torch.set_rng_state(state)
    torch._register_device_module(NAME, module)
