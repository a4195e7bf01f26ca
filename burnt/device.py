"""What a device is and can do, and what the rules that choose a kernel ask of the CPU."""

from __future__ import annotations

import dataclasses
import functools
import os
import platform

import torch

from burnt import _torch

__all__ = ["DeviceInfo", "Processor", "best_device", "device_info", "processor"]

_VENDORS = {"GenuineIntel": "Intel", "AuthenticAMD": "AMD"}  # as the instruction cpuid has them


@dataclasses.dataclass(frozen=True)
class DeviceInfo:
    """What is known of one device.

    Args:
        device: as torch names it, ``"cuda:0"``.
        kind: ``"cpu"``, ``"cuda"``, ``"rocm"`` or ``"mps"``.
        name: as its maker calls it.
        memory: bytes of memory, or None where the device does not tell.
        architecture: compute capability or instruction set, ``"sm_90"``, ``"gfx942"``, ``"AVX512"``.
        bfloat16: whether it computes in bfloat16 (the CPU always does, if slowly).
    """

    device: str
    kind: str
    name: str
    memory: int | None
    architecture: str
    bfloat16: bool


def device_info(device: torch.device | str | None = None) -> DeviceInfo:
    """What a device is and can do; of the best one by default.

    >>> device_info("cpu").kind
    'cpu'
    """
    chosen = best_device() if device is None else torch.device(device)
    if chosen.type == "cuda":
        index = chosen.index or 0
        properties = torch.cuda.get_device_properties(index)
        rocm = torch.version.hip is not None
        return DeviceInfo(
            f"cuda:{index}",
            "rocm" if rocm else "cuda",
            properties.name,
            properties.total_memory,
            getattr(properties, "gcnArchName", "") if rocm else f"sm_{properties.major}{properties.minor}",
            torch.cuda.is_bf16_supported(),
        )
    if chosen.type == "mps":
        return DeviceInfo("mps", "mps", platform.processor() or "Apple GPU", None, platform.machine(), True)
    if chosen.type == "cpu":
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return DeviceInfo("cpu", "cpu", _cpu_name(), memory, torch.backends.cpu.get_cpu_capability(), True)
    return DeviceInfo(str(chosen), chosen.type, chosen.type, None, "", False)


@dataclasses.dataclass(frozen=True)
class Processor:
    """What the rules that choose a kernel ask of the CPU, and of the libraries that torch has for it.

    Rules ask `processor`, and nothing else: a test that gives another value sees what is chosen on another
    machine. What is executed never depends on it: the C compiler and torch's libraries ask the CPU itself.

    Args:
        name: as its maker calls it.
        vendor: ``"Intel"``, ``"AMD"``, ``"ARM"``, or ``""`` for any other.
        capability: the instruction set of torch's own kernels, ``"AVX512"``, ``"AVX2"``, ``"DEFAULT"``.
        onednn: dtypes that torch's oneDNN multiplies; none where torch is built without it.
        has_mkl: whether torch multiplies by Intel's MKL.
    """

    name: str
    vendor: str
    capability: str
    onednn: frozenset[torch.dtype]
    has_mkl: bool

    @property
    def has_wide_vectors(self) -> bool:
        """Whether torch's kernels use vectors of 512 bits."""
        return self.capability.startswith("AVX512")

    @property
    def mkl_is_slow(self) -> bool:
        """Whether torch multiplies by MKL on a processor that MKL uses half of: not Intel's, with AVX-512.

        MKL stops at AVX2 there. Where a processor does, too, it reaches nine tenths of the peak (Zen 3: 180
        GFLOPS of 2 cores) and oneDNN no more than three quarters.
        """
        return self.has_mkl and self.vendor != "Intel" and self.has_wide_vectors


def processor() -> Processor:
    """This machine's, asked once; in tests the one that they give.

    >>> torch.float64 in processor().onednn
    False
    """
    return _given or _this_processor()


_given: Processor | None = None


@functools.cache
def _this_processor() -> Processor:
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    return Processor(
        _cpu_name(),
        _cpu_vendor(),
        torch.backends.cpu.get_cpu_capability(),
        frozenset(dtype for dtype in dtypes if _torch.onednn_takes(dtype)),
        _torch.has_mkl(),
    )


def best_device() -> torch.device:
    """The fastest device at hand: CUDA or ROCm, then MPS, then the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def _cpu_name() -> str:
    return _cpu_field("model name") or platform.processor() or platform.machine()


def _cpu_vendor() -> str:
    if platform.machine().lower() in ("aarch64", "arm64"):
        return "ARM"
    vendor_id = _cpu_field("vendor_id")
    if vendor_id is not None:
        return _VENDORS.get(vendor_id, "")
    name = _cpu_name()
    return next((vendor for sign, vendor in _VENDORS.items() if sign in name or vendor in name), "")


def _cpu_field(field: str) -> str | None:
    """What Linux says of the first core; None elsewhere."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith(field):
                    return line.partition(":")[2].strip()
    except OSError:  # not Linux
        pass
    return None
