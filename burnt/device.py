"""What a device is and can do."""

from __future__ import annotations

import dataclasses
import functools
import os
import platform

import torch

__all__ = ["DeviceInfo", "best_device", "cpu_is_intel", "device_info"]


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


@functools.cache
def cpu_is_intel() -> bool:
    """Whether the processor is one of Intel's, which torch's own CPU kernels and MKL were tuned for."""
    return "Intel" in device_info("cpu").name


def best_device() -> torch.device:
    """The fastest device at hand: CUDA or ROCm, then MPS, then the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        # Not Linux: the platform's own word will do.
        pass
    return platform.processor() or platform.machine()
