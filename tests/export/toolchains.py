"""C programs compiled and run: on this machine, on ARM Linux, and on a Cortex-M, both in QEMU."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from burnt.export.wasm import INSTALL

needs_clang = pytest.mark.skipif(
    shutil.which("clang") is None or shutil.which("wasm-ld") is None, reason=f"no clang: {INSTALL}"
)
_BOARD = Path(__file__).with_name("cortex_m")


class Toolchain:
    """A compiler and how its programs run."""

    def __init__(
        self, compiler: str, flags: Sequence[str], run: Sequence[str] = (), sources: Sequence[Path] = ()
    ) -> None:
        self.tools = (compiler, *run[:1])
        self.command = (compiler, "-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", *flags)
        self.run = run
        self.sources = sources

    def __call__(self, folder: Path, *files: str) -> subprocess.CompletedProcess[str]:
        """Compile files of a folder, and run the program; a compiler that is missing skips the test."""
        require(*self.tools)
        sources = (*map(str, self.sources), *files)
        done = self._do([*self.command, *sources, "-o", "program", "-lm"], folder)
        assert done.returncode == 0, done.stderr[:3000]
        return self._do([*self.run, "./program"], folder)

    def _do(self, command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def require(*tools: str) -> None:
    """Skip the test if a program is missing."""
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"no {', no '.join(missing)}: scripts/install-tools")


HOST = Toolchain("gcc", ["-O2"])
SANITIZED = Toolchain("gcc", ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"])
AARCH64 = Toolchain("aarch64-linux-gnu-gcc", ["-O2", "-static"], ["qemu-aarch64"])
_CORTEX_FLAGS = ["-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16", "-Os"]
_BOARD_FLAGS = ["-nostartfiles", "--specs=rdimon.specs", "-T", str(_BOARD / "mps2.ld")]
_QEMU = "qemu-system-arm -M mps2-an386 -nographic -semihosting-config enable=on,target=native -kernel"
CORTEX_M4 = Toolchain(
    "arm-none-eabi-gcc", [*_CORTEX_FLAGS, *_BOARD_FLAGS], _QEMU.split(), [_BOARD / "start.c"]
)
