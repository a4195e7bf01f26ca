"""Triton on a CUDA driver that launches nothing: the rest of the launch path is real.

Specialization, compilation with ptxas, the launcher, packing of arguments and the driver's limits all work
as on a GPU of compute capability 9.0, on a machine that has none. Tensors stay on the CPU and hold whatever
they held before, so nothing that a kernel would have written may be compared.

`install()` replaces Triton's driver and routes burnt's CPU tensors to the kernels of a GPU, for the whole
process. Two uses: a test of every launch, and a cache of compiled kernels for the day a GPU is available (set
`TRITON_CACHE_DIR`; neither the interpreter's path nor that of the checkout is part of a key).
"""

from __future__ import annotations

import atexit
import ctypes
import dataclasses
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

__all__ = [
    "compiled",
    "install",
    "is_installed",
    "last_launch",
    "launches",
    "loaded",
    "record_compiled",
    "why_not",
]

SOURCE = Path(__file__).with_name("libcuda.c")


class Launch(ctypes.Structure):
    """A launch, which one it was (from 1 on), and the function's handle."""

    _fields_ = (
        ("launches", ctypes.c_int64),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("function", ctypes.c_void_p),
    )


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A kernel that was asked for: seconds of compilation (0 for a hit), bytes of shared memory, a cubin."""

    name: str
    hit: bool
    seconds: float
    shared: int | None
    cubin: Path | None  # the file; None where Triton makes none


_compiled: list[Compiled] = []
_loaded: dict[int, tuple[str, bytes]] = {}


def compiled() -> Sequence[Compiled]:
    """The kernels that were compiled or found in the cache since `install` or `record_compiled`."""
    return _compiled


def record_compiled() -> None:
    """Make `compiled` list the kernels of this process from now on, with any driver."""
    import triton

    def listen(*, src: Any, metadata: Any, metadata_group: Any, times: Any, cache_hit: bool) -> None:
        name = src.name if hasattr(src, "name") else src.fn.__name__
        shared = (
            metadata.get("shared") if isinstance(metadata, Mapping) else getattr(metadata, "shared", None)
        )
        cubin = next((Path(file) for key, file in metadata_group.items() if key.endswith(".cubin")), None)
        _compiled.append(Compiled(name, cache_hit, 0.0 if cache_hit else times.total / 1e6, shared, cubin))

    triton.knobs.compilation.listener = listen


def why_not() -> str | None:
    """Why the null driver cannot be installed in this process, or None."""
    try:
        import triton
        from triton.backends.nvidia import driver
    except ImportError as error:
        return f"no Triton with an NVIDIA backend: {error}"
    if os.environ.get("TRITON_INTERPRET") == "1":
        return "this process runs Triton's interpreter"
    missing = [name for name in ("CudaUtils", "CudaLauncher", "CudaDriver") if not hasattr(driver, name)]
    if missing:
        return f"Triton {triton.__version__} has no {', '.join(missing)} in its NVIDIA driver"
    from burnt.codegen.runtime.c_compiler import find_compiler, why_no_compiler

    return f"no C compiler: {why_no_compiler()}" if find_compiler() is None else None


def is_installed() -> bool:
    """Whether tensors on the CPU go to the null driver in this process."""
    return _library.cache_info().currsize > 0


def last_launch() -> Launch:
    """What the driver was given last."""
    read = _library().null_last_launch
    read.restype = Launch
    launch: Launch = read()
    return launch


def launches(since: int = 0) -> list[Launch]:
    """The launches after so many; the driver remembers 4,096."""
    read = _library().null_launch
    read.restype, read.argtypes = Launch, [ctypes.c_int64]
    return [read(number) for number in range(since, last_launch().launches)]


def loaded(launch: Launch) -> tuple[str, bytes]:
    """The name and the machine code (cubin) of the function that was launched."""
    return _loaded[launch.function]


@functools.cache
def _library() -> ctypes.CDLL:
    """The stub, loaded such that whoever asks for libcuda.so.1 gets it."""
    from triton.backends import nvidia

    include = Path(nvidia.__file__).parent / "include"
    folder = Path(tempfile.mkdtemp(prefix="burnt-null-driver-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    library = folder / "libcuda.so.1"
    flags = ["-shared", "-fPIC", "-O1", "-Wl,-soname,libcuda.so.1", f"-I{include}"]
    subprocess.run([os.environ.get("CC", "gcc"), *flags, str(SOURCE), "-o", str(library)], check=True)
    os.environ["TRITON_LIBCUDA_PATH"] = str(folder)
    return ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


def install() -> None:
    """Make Triton use the null driver, and burnt send tensors on the CPU to Triton's kernels.

    Raises:
        RuntimeError: it cannot be done here; `why_not` says why.
    """
    why = why_not()
    if why is not None:
        raise RuntimeError(f"the null driver cannot be installed: {why}")
    if is_installed():
        return
    _library()
    _install_driver()
    _send_to_triton()


def _install_driver() -> None:
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia import driver as nvidia
    from triton.runtime import driver

    class NullDriver(nvidia.CudaDriver):  # type: ignore[misc]
        def __init__(self) -> None:
            self.utils = nvidia.CudaUtils()
            self.launcher_cls = nvidia.CudaLauncher
            self.get_device_capability = lambda device=0: (9, 0)
            self.get_current_stream = lambda device=None: 0
            self.get_current_device = lambda: 0
            self.set_current_device = lambda device: None
            self.get_active_torch_device = lambda: torch.device("cpu")

        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", 90, 32)

    null = NullDriver()
    load = null.utils.load_binary

    def load_binary(name: str, binary: bytes, shared: int, device: int) -> tuple[Any, ...]:
        found: tuple[Any, ...] = load(name, binary, shared, device)
        _loaded[found[1]] = name, binary
        return found

    null.utils.load_binary = load_binary
    driver.set_active(null)
    record_compiled()
    # What burnt asks of the current device: tensors on the CPU have the index None.
    torch.cuda.current_device = lambda: None  # type: ignore[assignment,return-value]
    torch.cuda.is_current_stream_capturing = lambda: False


def _send_to_triton() -> None:
    """Tensors on the CPU are sent to the kernels that a GPU would run."""
    from burnt.codegen.render.triton.matmul_config import HOPPER
    from burnt.codegen.render.triton.source import parse_config, select_config
    from burnt.codegen.runtime import targets, triton_backend, triton_compile_pool, triton_launch
    from burnt.codegen.runtime.target import BuiltKernels
    from burnt.kernels.dispatch import generated
    from burnt.kernels.ops.rnn import layer, loop_triton
    from burnt.kernels.optim import foreach, foreach_triton

    def build(
        kernels: Any, buffers: Any, numbers: Any, blocks: Mapping[str, str] | None = None
    ) -> BuiltKernels:
        given = {name: parse_config(text) for name, text in (blocks or {}).items()}
        return triton_launch.build(
            kernels, buffers, numbers, choose=lambda form: select_config(form, HOPPER), blocks=given
        )

    triton_backend._build_triton = build
    null = dataclasses.replace(targets.TRITON, build=build)
    targets.BY_DEVICE["cpu"] = generated.TRITON = null
    triton_compile_pool.limits_of = lambda device: HOPPER
    layer._loop_module = lambda x: loop_triton
    foreach.HostPasses = foreach_triton.DevicePasses  # type: ignore[misc]
