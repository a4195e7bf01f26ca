"""OnnxRuntimeWeb: the npm package onnxruntime-web, for pages of models that cannot be printed as C."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from burnt.errors import UnsupportedError

VERSION = "1.30.0"

_SCRIPT = "dist/ort.wasm.bundle.min.mjs"
_WASM = "dist/ort-wasm-simd-threaded.wasm"


@dataclass(frozen=True)
class OnnxRuntimeWeb:
    """The files of the package that run a model on the CPU."""

    version: str
    script: bytes
    wasm: bytes

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Read the package from its folder, or from the archive that ``npm pack`` makes."""
        names = ("package.json", _SCRIPT, _WASM)
        try:
            if Path(path).is_dir():
                contents = [Path(path, name).read_bytes() for name in names]
            else:
                with tarfile.open(path) as archive:
                    members = (archive.extractfile(f"package/{name}") for name in names)
                    contents = [member.read() for member in members if member is not None]
            description, script, wasm = contents
            return cls(json.loads(description)["version"], script, wasm)
        except (OSError, tarfile.TarError, KeyError, ValueError) as error:
            raise UnsupportedError(
                "this is no package onnxruntime-web",
                where=os.fspath(path),
                expected=f"a folder with {', '.join(names)}, or the archive of it",
                found=str(error),
                hint=f"npm pack onnxruntime-web@{VERSION}",
            ) from error

    @classmethod
    def from_npm(cls) -> Self:
        """Fetch the package by npm, which keeps it in its cache."""
        command = ["npm", "pack", "--silent", f"onnxruntime-web@{VERSION}"]
        hint = f"on a machine with npm: `{' '.join(command)}`, then --onnxruntime-web FILE"
        if shutil.which("npm") is None:
            raise UnsupportedError("the page needs onnxruntime-web", found="no npm to fetch it", hint=hint)
        with tempfile.TemporaryDirectory(prefix="burnt-npm-") as folder:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
            if done.returncode:
                raise UnsupportedError("npm cannot fetch onnxruntime-web", found=done.stderr[:500], hint=hint)
            return cls.read(Path(folder, f"onnxruntime-web-{VERSION}.tgz"))
