"""What a device is and can do, as far as it can be seen on a CPU, and with a CUDA device that is made up."""

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from burnt import device, kernels, nn
from burnt.device import best_device, device_info
from burnt.errors import DeviceError
from burnt.train import SupervisedTraining
from tests import processors

ROOT = Path(__file__).parents[1]
# What tells of the machine; rules that choose a kernel, and tests, ask `burnt.device.processor` alone.
OF_THE_MACHINE = re.compile(
    r"get_cpu_capability|/proc/cpuinfo|_is_mkldnn|onednn_supports\b|\bhas_mkl\(|device_info\(.cpu"
    r"|platform\.(machine|processor)|_cpu_(name|vendor|field)\("
)


def test_the_cpu() -> None:
    info = device_info("cpu")
    assert (info.device, info.kind, info.bfloat16) == ("cpu", "cpu", True)
    assert info.memory is not None
    assert info.memory > 100 * 2**20
    assert info.name
    assert info.architecture == torch.backends.cpu.get_cpu_capability()


def test_the_best_device_is_one_that_computes() -> None:
    assert float(torch.ones(3, device=best_device()).sum()) == 3


@pytest.mark.parametrize("hip", [None, "6.4"])
def test_a_gpu(monkeypatch: pytest.MonkeyPatch, hip: str | None) -> None:
    properties = SimpleNamespace(name="Card", total_memory=2**30, major=9, minor=0, gcnArchName="gfx942")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    monkeypatch.setattr(torch.version, "hip", hip)
    assert best_device() == torch.device("cuda", 1)
    info = device_info()
    assert (info.device, info.name, info.memory) == ("cuda:1", "Card", 2**30)
    assert (info.kind, info.architecture) == (("rocm", "gfx942") if hip else ("cuda", "sm_90"))


CPU_BUILD = torch.version.cuda is None and torch.version.hip is None


@pytest.mark.parametrize(
    "use",
    [
        lambda name: device_info(name),
        lambda name: nn.Linear(2, 2).to(name),
        lambda name: nn.Linear(2, 2).to(device=name),
        lambda name: nn.Linear(2, 2).fork(name),
        lambda name: nn.Linear.Config(in_features=2, out_features=2).init(device=name),
        lambda name: SupervisedTraining("run", train=[1], duration="1 epoch", device=name),
    ],
    ids=["device_info", "to", "to(device=)", "fork", "Config.init", "SupervisedTraining"],
)
@pytest.mark.parametrize("name", ["cuda:99", "xpu:99", "toaster", "cpu:x"])
def test_a_device_that_there_is_not(use: Callable[[str], object], name: str) -> None:
    with pytest.raises(DeviceError, match=f"torch cannot use the device '{name}'") as caught:
        use(name)
    assert caught.value.expected == " or ".join(["cpu", *device.accelerators()])
    assert caught.value.found


@pytest.mark.skipif(not CPU_BUILD, reason="torch is built for a GPU")
def test_a_build_without_cuda_is_named() -> None:
    with pytest.raises(DeviceError) as caught:
        device.as_device("cuda")
    assert str(caught.value) == (
        "torch cannot use the device 'cuda'\n"
        "  expected  cpu\n"
        "  found     Torch not compiled with CUDA enabled\n"
        "  hint      this torch is built without CUDA: install a build with it, or use the CPU"
    )


def test_devices_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device.as_device("cpu") == device.as_device(torch.device("cpu")) == torch.device("cpu")
    assert device.as_device("meta") == torch.device("meta")
    assert device.as_device(None) == best_device()
    assert nn.Linear(2, 2).to("meta", torch.float64).weight.dtype is torch.float64
    assert nn.Linear(2, 2).to(torch.zeros(1, dtype=torch.float64)).weight.dtype is torch.float64
    monkeypatch.setattr(device, "accelerators", lambda: ["cuda:0", "cuda:1"])
    with pytest.raises(DeviceError) as caught:
        device.as_device("cud:1")
    assert caught.value.expected == "cpu or cuda:0 or cuda:1"
    assert caught.value.hint == "did you mean 'cuda:1'?"
    with pytest.raises(DeviceError, match="torch cannot use the device 'gpu'") as caught:
        device.as_device("gpu")
    assert caught.value.hint is not None
    assert "'cuda'" in caught.value.hint


def test_another_device_is_named_and_no_more() -> None:
    info = device_info("meta")
    assert (info.device, info.kind, info.memory, info.bfloat16) == ("meta", "meta", None, False)


# --- the processor that kernels are chosen for ------------------------------------------------------------


def test_this_machines_processor() -> None:
    """As torch's public interfaces have it."""
    found = device._detect_processor()
    assert found.capability == torch.backends.cpu.get_cpu_capability()
    assert found.has_mkl == torch.backends.mkl.is_available()
    assert (torch.float32 in found.onednn) == torch.backends.mkldnn.is_available()
    assert found.onednn <= {torch.float32, torch.bfloat16, torch.float16}
    assert found.name == device_info("cpu").name


@pytest.mark.parametrize(
    ("machine", "lines", "given", "vendor"),
    [
        ("x86_64", {"vendor_id": "GenuineIntel", "model name": "Common processor"}, "", "Intel"),
        ("x86_64", {"vendor_id": "AuthenticAMD", "model name": "EPYC 9654"}, "", "AMD"),
        ("x86_64", {"vendor_id": "HygonGenuine", "model name": "like AMD's"}, "", ""),
        ("AMD64", {}, "Intel64 Family 6 Model 207 Stepping 2, GenuineIntel", "Intel"),
        ("AMD64", {}, "AMD64 Family 25 Model 33 Stepping 0, AuthenticAMD", "AMD"),
        ("aarch64", {}, "", "ARM"),
        ("arm64", {}, "arm", "ARM"),
        ("riscv64", {}, "", ""),
    ],
)
def test_who_made_a_processor(
    machine: str, lines: dict[str, str], given: str, vendor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device.platform, "machine", lambda: machine)
    monkeypatch.setattr(device.platform, "processor", lambda: given)
    monkeypatch.setattr(device, "_cpu_field", lines.get)
    assert device._cpu_vendor() == vendor


def test_what_is_chosen_for_another_processor_is_forgotten_after() -> None:
    """In the calls themselves, which know what ran before from their third on."""
    ran = []

    @kernels.relu2.candidate("of AMD's", best=lambda x: device.processor().vendor == "AMD")
    def of_amd(x: torch.Tensor) -> torch.Tensor:
        ran.append(device.processor().name)
        return x.relu().square()

    x = torch.randn(4)
    here = processors.within_reach(processors.named("ARM NEON"))
    try:
        with processors.as_if(here):
            for name in processors.NAMES * 2:
                for _ in range(4):
                    kernels.relu2(x)
                with processors.as_if(processors.named(name)):
                    for _ in range(4):
                        kernels.relu2(x)
                assert device.processor() is here
    finally:
        kernels.relu2.discard("of AMD's")
    assert ran == (["AMD AVX2"] * 4 + ["AMD AVX-512"] * 4) * 2


def test_what_was_measured_on_this_machine_is_not_for_another(processor: str) -> None:
    assert f"|cpu {processor} " in kernels.relu2.chosen(torch.randn(4)).key


@pytest.mark.parametrize("folder", ["burnt", "tests"])
def test_the_machine_is_asked_in_one_place(folder: str) -> None:
    """Files that ask it themselves, and why they may."""
    facts = {
        "burnt/device.py": "the one place",
        "burnt/_torch.py": "what it asks",
        "burnt/codegen/runtime/c_compiler.py": "flags, and the key of the cache of what was compiled",
        "burnt/cli/info.py": "it prints what the machine is",
        "tests/test_device.py": "tests of these",
        "tests/test_torch_private.py": "tests of these",
        "tests/cli/test_info.py": "it prints what the machine is",
        "tests/kernels/ops/quantized/test_cpu.py": "an instruction set that only x86 has",
        "tests/codegen/render/c/test_loads_under_tests.py": "flags that only a compiler for x86 has",
    }
    asking = {
        str(path.relative_to(ROOT))
        for path in (ROOT / folder).rglob("*.py")
        if OF_THE_MACHINE.search(path.read_text(encoding="utf-8"))
    }
    assert asking == {name for name in facts if name.startswith(folder + "/")}
