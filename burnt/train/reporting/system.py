"""`SystemSampler`: a thread that samples CPU, memory, disk and GPU use while a training runs.

Nothing here imports torch. GPUs are sampled only once the training has imported torch and initialized CUDA:
sampling earlier would initialize it, which breaks workers that are forked later.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Self

import psutil


class SystemSampler:
    """Calls a function with a sample of the machine's state every few seconds, from a daemon thread.

    A sample maps names to numbers; each name ends with its unit:

    ============================================================  =====================================
    ``cpu.percent``                                               of all cores
    ``process.cpu_percent``                                       of one core, so 400 is four cores
    ``process.rss_bytes``                                         resident memory of this process
    ``memory.used_bytes``, ``memory.total_bytes``                 of the machine
    ``disk.free_bytes``                                           of the disk that holds `folder`
    ``gpu0.memory_used_bytes``, ``gpu0.memory_total_bytes``       see below
    ``gpu0.percent``, ``gpu0.celsius``, ``gpu0.watts``            with the extra ``burnt[nvml]``
    ============================================================  =====================================

    GPUs are numbered as in torch. With NVML, memory is the use by all processes on the GPU; without it, the
    memory that torch's allocator reserved in this process.

    Args:
        callback: called with each sample, for example `RunWriter.system`.
        interval: seconds between samples.
        folder: any folder on the disk whose free space is measured.

    >>> samples = []
    >>> with SystemSampler(samples.append, interval=60):
    ...     pass
    >>> samples[0]["memory.used_bytes"] < samples[0]["memory.total_bytes"]
    True
    """

    def __init__(
        self,
        callback: Callable[[Mapping[str, float]], None],
        interval: float = 2.0,
        *,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        self._callback = callback
        self._interval = interval
        self._folder = folder
        self._process = psutil.Process()
        self._gpus: list[dict[str, Callable[[], float]]] | None = None
        self._warnings: list[str] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="burnt-system-sampler", daemon=True)
        # psutil measures CPU use between two calls; these are the first.
        psutil.cpu_percent()
        self._process.cpu_percent()

    def start(self) -> None:
        """Start the thread; it takes a sample at once and then at every interval."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread after its current sample."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def warnings(self) -> list[str]:
        """What could not be measured; each message once."""
        return list(self._warnings)

    def sample(self) -> dict[str, float]:
        """Measure now. What cannot be measured is left out and reported once in `warnings`."""
        values: dict[str, float] = {}
        for measure in (self._host, self._disk, self._cuda):
            try:
                values.update(measure())
            except (OSError, psutil.Error) as error:  # a disk that went away, a /proc that is hidden
                self._warn(f"{measure.__name__.strip('_')} is not sampled: {error}")
        return values

    def _run(self) -> None:
        while True:
            try:
                self._callback(self.sample())
            except Exception as error:  # report it: a dead thread would leave an unexplained gap
                self._warn(f"a system sample was lost: {type(error).__name__}: {error}")
            if self._stopping.wait(self._interval):
                return

    def _warn(self, message: str) -> None:
        if message not in self._warnings:
            self._warnings.append(message)

    def _host(self) -> dict[str, float]:
        memory = psutil.virtual_memory()
        with self._process.oneshot():
            return {
                "cpu.percent": psutil.cpu_percent(),
                "process.cpu_percent": self._process.cpu_percent(),
                "process.rss_bytes": self._process.memory_info().rss,
                "memory.used_bytes": memory.total - memory.available,
                "memory.total_bytes": memory.total,
            }

    def _disk(self) -> dict[str, float]:
        return {} if self._folder is None else {"disk.free_bytes": shutil.disk_usage(self._folder).free}

    def _cuda(self) -> dict[str, float]:
        torch = sys.modules.get("torch")
        # `cuda` is missing while another thread is still importing torch.
        cuda = getattr(torch, "cuda", None)
        if cuda is None or not cuda.is_initialized():
            return {}
        if self._gpus is None:
            self._gpus = list(_find_gpus(cuda, self._warn))
        values: dict[str, float] = {}
        for number, measures in enumerate(self._gpus):
            for name, measure in measures.items():
                try:
                    values[f"gpu{number}.{name}"] = float(measure())
                except Exception as error:  # an NVMLError: not every GPU supports every measurement
                    self._warn(f"gpu{number}.{name} is not sampled: {error}")
        return values


def _find_gpus(cuda: Any, warn: Callable[[str], None]) -> Iterator[dict[str, Callable[[], float]]]:
    """Iterate over what can be measured of the GPUs visible to torch, by NVML where possible."""
    nvml: Any = None
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except ImportError:
        warn("use, temperature and power of GPUs are not sampled: pip install 'burnt[nvml]'")
    except nvml.NVMLError as error:
        warn(f"use, temperature and power of GPUs are not sampled: {error}")
        nvml = None
    for number in range(cuda.device_count()):
        device = cuda.get_device_properties(number)
        # Asking the driver for free memory would create a context on every GPU, about 500 MB each.
        measures: dict[str, Callable[[], float]] = {
            "memory_used_bytes": partial(cuda.memory_reserved, number),
            "memory_total_bytes": partial(int, device.total_memory),
        }
        if nvml is not None and device.uuid is not None:
            try:
                measures |= _nvml_measures(nvml, device.uuid)
            except nvml.NVMLError as error:  # a MIG slice has no UUID known to NVML
                warn(f"gpu{number} is sampled only by torch: {error}")
        yield measures


def _nvml_measures(nvml: Any, uuid: object) -> dict[str, Callable[[], float]]:
    """Return measures of all processes; by UUID, as torch numbers only GPUs in CUDA_VISIBLE_DEVICES."""
    handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    return {
        "memory_used_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used,
        "memory_total_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total,
        "percent": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
        "celsius": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        "watts": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
    }
