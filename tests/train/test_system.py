"""The system sampler, compared with psutil for the host and with fake GPUs."""

from __future__ import annotations

import sys
import threading
import time
from types import ModuleType, SimpleNamespace

import psutil
import pytest

from burnt.store import RunReader, RunWriter
from burnt.train.reporting.system import SystemSampler


class NVMLError(Exception):
    pass


def fake_nvml(monkeypatch, **changes):
    """A machine with two GPUs, of which the second has no power meter."""
    nvml = ModuleType("pynvml")

    def by_uuid(uuid):
        if uuid not in ("GPU-aa", "GPU-bb"):
            raise NVMLError("Not Found")
        return uuid

    def watts(handle):
        if handle == "GPU-bb":
            raise NVMLError("Not Supported")
        return 123_456

    nvml.NVMLError = NVMLError
    nvml.NVML_TEMPERATURE_GPU = 0
    nvml.nvmlInit = lambda: None
    nvml.nvmlDeviceGetHandleByUUID = by_uuid
    nvml.nvmlDeviceGetUtilizationRates = lambda h: SimpleNamespace(gpu=87 if h == "GPU-aa" else 5, memory=3)
    nvml.nvmlDeviceGetMemoryInfo = lambda h: SimpleNamespace(used=5 * 2**30, total=80 * 2**30)
    nvml.nvmlDeviceGetTemperature = lambda h, sensor: 61
    nvml.nvmlDeviceGetPowerUsage = watts
    for name, value in changes.items():
        setattr(nvml, name, value)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return nvml


def fake_torch(monkeypatch, uuids=("bb", "aa"), initialized=True):
    """A torch that sees the GPUs in another order than NVML."""
    cuda = SimpleNamespace(
        is_initialized=lambda: initialized,
        device_count=lambda: len(uuids),
        memory_reserved=lambda number: (number + 1) * 1000,
        get_device_properties=lambda number: SimpleNamespace(total_memory=70 * 2**30, uuid=uuids[number]),
    )
    torch = ModuleType("torch")
    torch.cuda = cuda
    monkeypatch.setitem(sys.modules, "torch", torch)
    return cuda


def gpus(sample):
    return {name: value for name, value in sample.items() if name.startswith("gpu")}


def test_the_host(tmp_path):
    sampler = SystemSampler(print, folder=tmp_path)
    sum(range(2_000_000))  # something to measure
    sample = sampler.sample()
    memory = psutil.virtual_memory()
    assert sample["memory.total_bytes"] == memory.total
    assert abs(sample["memory.used_bytes"] - (memory.total - memory.available)) < 2**30
    assert abs(sample["process.rss_bytes"] - psutil.Process().memory_info().rss) < 2**27
    assert 0 <= sample["cpu.percent"] <= 100
    assert 0 < sample["process.cpu_percent"] <= 100 * psutil.cpu_count() + 50
    assert abs(sample["disk.free_bytes"] - psutil.disk_usage(str(tmp_path)).free) < 2**30
    assert all(isinstance(value, int | float) for value in sample.values())
    assert sampler.warnings == []


def test_gpus_are_numbered_as_torch_does(monkeypatch):
    fake_nvml(monkeypatch)
    fake_torch(monkeypatch)
    sampler = SystemSampler(print)
    for _ in range(3):
        sample = gpus(sampler.sample())
    assert sample == {
        "gpu0.memory_used_bytes": 5 * 2**30,
        "gpu0.memory_total_bytes": 80 * 2**30,
        "gpu0.percent": 5,
        "gpu0.celsius": 61,
        "gpu1.memory_used_bytes": 5 * 2**30,
        "gpu1.memory_total_bytes": 80 * 2**30,
        "gpu1.percent": 87,
        "gpu1.celsius": 61,
        "gpu1.watts": 123.456,
    }
    assert sampler.warnings == ["gpu0.watts is not sampled: Not Supported"]


def test_without_nvml_torch_knows_the_memory(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    fake_torch(monkeypatch, ("aa",))
    sampler = SystemSampler(print)
    sampler.sample()
    known = {"gpu0.memory_used_bytes": 1000, "gpu0.memory_total_bytes": 70 * 2**30}
    assert gpus(sampler.sample()) == known
    unsampled = "use, temperature and power of GPUs are not sampled: "
    assert sampler.warnings == [f"{unsampled}pip install 'burnt[nvml]'"]

    def refuse():
        raise NVMLError("Driver Not Loaded")

    fake_nvml(monkeypatch, nvmlInit=refuse)
    sampler = SystemSampler(print)
    assert gpus(sampler.sample()) == known
    assert sampler.warnings == [f"{unsampled}Driver Not Loaded"]


def test_a_gpu_that_nvml_does_not_know(monkeypatch):
    fake_nvml(monkeypatch)
    fake_torch(monkeypatch, ("slice", "aa"))
    sampler = SystemSampler(print)
    sample = gpus(sampler.sample())
    assert sample["gpu0.memory_used_bytes"] == 1000
    assert "gpu0.percent" not in sample
    assert sample["gpu1.percent"] == 87
    assert sampler.warnings == ["gpu0 is sampled only by torch: Not Found"]


def test_cuda_is_not_started(monkeypatch):
    fake_nvml(monkeypatch)
    cuda = fake_torch(monkeypatch, initialized=False)
    sampler = SystemSampler(print)
    assert gpus(sampler.sample()) == {}
    cuda.is_initialized = lambda: True  # the training starts it later
    assert gpus(sampler.sample()) != {}


def test_torch_while_it_is_imported(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    assert gpus(SystemSampler(print).sample()) == {}


def test_a_disk_that_goes_away_is_reported_once(tmp_path):
    sampler = SystemSampler(print, folder=tmp_path / "gone")
    for _ in range(2):
        assert "cpu.percent" in sampler.sample()
    (warning,) = sampler.warnings
    assert warning.startswith("disk is not sampled: ")
    assert "gone" in warning


def test_stopping_does_not_wait_for_the_interval():
    begin = time.monotonic()
    with SystemSampler(lambda sample: None, interval=60):
        pass
    assert time.monotonic() - begin < 10
    SystemSampler(print).stop()  # never started


@pytest.mark.parametrize("error", [None, ValueError("no"), OSError("gone")])
def test_the_thread_samples_until_it_is_stopped_also_if_the_callback_raises(error):
    samples, third = [], threading.Event()

    def take(sample):
        samples.append(sample)
        if len(samples) == 3:
            third.set()
        if error is not None:
            raise error

    with SystemSampler(take, interval=0.01) as sampler:
        assert third.wait(20)
    assert not sampler._thread.is_alive()
    expected = [f"a system sample was lost: {type(error).__name__}: {error}"] if error else []
    assert sampler.warnings == expected


def test_samples_reach_the_run(tmp_path):
    with RunWriter.create(tmp_path / "run") as run, SystemSampler(run.system, interval=60, folder=tmp_path):
        pass
    (sample,) = RunReader(tmp_path / "run").system_samples()
    assert sample.values["memory.total_bytes"] == psutil.virtual_memory().total
