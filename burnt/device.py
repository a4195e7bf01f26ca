"""Properties of devices, and of the CPU as far as the rules that select kernels depend on it."""

from __future__ import annotations

import dataclasses
import functools
import platform
import re
import warnings
from types import ModuleType

import psutil
import torch

from burnt import _torch
from burnt.errors import DeviceError, did_you_mean

_VENDORS = {"GenuineIntel": "Intel", "AuthenticAMD": "AMD"}  # by the vendor id of the cpuid instruction


@dataclasses.dataclass(frozen=True)
class DeviceInfo:
    """Properties of one device.

    Args:
        device: its torch name, such as ``"cuda:0"``.
        kind: ``"cpu"``, ``"cuda"``, ``"rocm"`` or ``"mps"``.
        name: the product name.
        memory: bytes of memory, or None if unknown.
        architecture: compute capability or instruction set, ``"sm_90"``, ``"gfx942"``, ``"AVX512"``.
        bfloat16: whether it can compute in bfloat16 (a CPU always can, but maybe slowly).
    """

    device: str
    kind: str
    name: str
    memory: int | None
    architecture: str
    bfloat16: bool


def device_info(device: torch.device | str | None = None) -> DeviceInfo:
    """Return the properties of a device; by default of the best one.

    Raises:
        DeviceError: there is no such device.

    >>> device_info("cpu").kind
    'cpu'
    """
    selected = as_device(device)
    if selected.type == "cuda":
        index = selected.index or 0
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
    if selected.type == "mps":
        return DeviceInfo("mps", "mps", platform.processor() or "Apple GPU", None, platform.machine(), True)
    if selected.type == "cpu":
        memory = psutil.virtual_memory().total
        return DeviceInfo("cpu", "cpu", _cpu_name(), memory, torch.backends.cpu.get_cpu_capability(), True)
    return DeviceInfo(str(selected), selected.type, selected.type, None, "", False)


@dataclasses.dataclass(frozen=True)
class Processor:
    """The properties of the CPU and of torch's CPU libraries that the rules for selecting kernels use.

    Rules read only `processor`, so that a test can replace it and see what another machine would select. Code
    that runs never depends on it: the C compiler and torch's libraries query the CPU itself.
    """

    name: str
    vendor: str  # "Intel", "AMD", "ARM", or "" for others
    capability: str  # the instruction set of torch's own kernels: "AVX512", "AVX2", "DEFAULT"
    onednn: frozenset[torch.dtype]  # dtypes for which torch's oneDNN has matmuls; empty without oneDNN
    has_mkl: bool  # whether torch's matmuls use Intel's MKL

    @property
    def has_wide_vectors(self) -> bool:
        """Whether torch's kernels use vectors of 512 bits."""
        return self.capability.startswith("AVX512")

    @property
    def mkl_is_slow(self) -> bool:
        """Whether torch uses MKL on a CPU with AVX-512 that is not Intel's; it uses half the vector width.

        MKL uses only AVX2 there. On a CPU that has only AVX2, it reaches nine tenths of the peak (Zen 3: 180
        GFLOPS of 2 cores) and oneDNN at most three quarters.
        """
        return self.has_mkl and self.vendor != "Intel" and self.has_wide_vectors


def processor() -> Processor:
    """Return this machine's processor (cached), or the override that a test has set.

    >>> torch.float64 in processor().onednn
    False
    """
    return _override or _detect_processor()


_override: Processor | None = None


@functools.cache
def _detect_processor() -> Processor:
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    return Processor(
        _cpu_name(),
        _cpu_vendor(),
        torch.backends.cpu.get_cpu_capability(),
        frozenset(dtype for dtype in dtypes if _torch.onednn_supports(dtype)),
        _torch.has_mkl(),
    )


def best_device() -> torch.device:
    """Return the fastest available device: CUDA or ROCm, then MPS, then the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def accelerators() -> list[str]:
    """Return the torch names of the accelerators that torch can use here, such as ``["cuda:0"]``."""
    names = [f"cuda:{i}" for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    return [*names, "mps"] if torch.backends.mps.is_available() else names


@functools.cache
def random_states_of(kind: str) -> ModuleType | None:
    """Return torch's module of a device type if it can save random states; else None, with one warning."""
    module: ModuleType = torch.get_device_module(kind)
    if hasattr(module, "get_rng_state") and hasattr(module, "set_rng_state"):
        return module
    warnings.warn(
        f"the random states of {kind} devices are neither saved nor restored, because torch.{kind} has no "
        "get_rng_state and set_rng_state: what draws random numbers there, such as dropout, differs after a "
        "resume",
        stacklevel=2,
    )
    return None


def as_device(device: torch.device | str | int | None) -> torch.device:
    """Return a device that torch can use on this machine; for None the best one.

    Raises:
        DeviceError: there is no such device; the message lists those that there are.

    >>> as_device("cpu:1x")
    Traceback (most recent call last):
    burnt.errors.DeviceError: torch cannot use the device 'cpu:1x'
    ...
    """
    if device is None:
        return best_device()
    try:
        found = torch.device(device)
        if found.type not in ("cpu", "meta"):
            torch.empty(0, device=found)  # the drivers know what can be used, for every kind of device
    except (RuntimeError, AssertionError, ImportError, TypeError) as error:
        # torch's message for a kind that it is built without goes on for a page.
        raise _no_device(str(device), re.split(r"\n|\. ", str(error))[0]) from None
    return found


def _no_device(name: str, reason: str) -> DeviceError:
    available = ["cpu", *accelerators()]
    is_cpu_build = torch.version.cuda is None and torch.version.hip is None
    if name.partition(":")[0] == "cuda" and is_cpu_build:
        hint: str | None = "this torch is built without CUDA: install a build with it, or use the CPU"
    elif name.partition(":")[0] in ("gpu", "nvidia"):
        hint = "torch names GPUs of NVIDIA and AMD 'cuda', and those of Apple 'mps'"
    else:
        hint = did_you_mean(name, available, "burnt info shows what this machine has")
    return DeviceError(
        f"torch cannot use the device {name!r}", expected=" or ".join(available), found=reason, hint=hint
    )


def _cpu_name() -> str:
    return _cpu_field("model name") or platform.processor() or platform.machine()


def _cpu_vendor() -> str:
    if platform.machine().lower() in ("aarch64", "arm64"):
        return "ARM"
    vendor_id = _cpu_field("vendor_id")
    if vendor_id is not None:
        return _VENDORS.get(vendor_id, "")
    name = _cpu_name()
    return next((vendor for vendor_id, vendor in _VENDORS.items() if vendor_id in name or vendor in name), "")


def _cpu_field(field: str) -> str | None:
    """Return a field of the first core in /proc/cpuinfo; None on other systems than Linux."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith(field):
                    return line.partition(":")[2].strip()
    except OSError:  # not Linux
        pass
    return None
