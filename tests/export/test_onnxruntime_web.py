import io
import tarfile

import pytest

from burnt.errors import UnsupportedError
from burnt.export.wasm import OnnxRuntimeWeb

PACKAGE = {
    "package.json": b'{"version": "9.9.9"}',
    "dist/ort.wasm.bundle.min.mjs": b"script",
    "dist/ort-wasm-simd-threaded.wasm": b"wasm",
}


def save_package(target, files):
    if target.suffix != ".tgz":
        for name, data in files.items():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes(data)
        return
    with tarfile.open(target, "w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


class TestOnnxRuntimeWeb:
    @pytest.mark.parametrize("name", ["folder", "package.tgz"])
    def test_reads_the_package(self, tmp_path, name):
        save_package(tmp_path / name, PACKAGE)
        assert OnnxRuntimeWeb.read(tmp_path / name) == OnnxRuntimeWeb("9.9.9", b"script", b"wasm")

    @pytest.mark.parametrize("name", ["folder", "package.tgz"])
    def test_names_what_is_missing(self, tmp_path, name):
        save_package(tmp_path / name, {"package.json": b"{}"})
        with pytest.raises(UnsupportedError, match="not a package onnxruntime-web") as caught:
            OnnxRuntimeWeb.read(tmp_path / name)
        assert "ort.wasm.bundle.min.mjs" in str(caught.value.found)
        assert "npm pack onnxruntime-web@" in str(caught.value)

    def test_other_files_are_no_package(self, tmp_path):
        (tmp_path / "text").write_text("text")
        for path in ("text", "nothing"):
            with pytest.raises(UnsupportedError, match="not a package onnxruntime-web"):
                OnnxRuntimeWeb.read(tmp_path / path)

    def test_says_what_to_do_without_npm(self, monkeypatch):
        monkeypatch.setenv("PATH", "")
        with pytest.raises(UnsupportedError, match="needs onnxruntime-web") as caught:
            OnnxRuntimeWeb.from_npm()
        assert "--onnxruntime-web FILE" in str(caught.value)

    def test_says_why_npm_failed(self, tmp_path, monkeypatch):
        (tmp_path / "npm").write_text("#!/bin/sh\necho no network >&2\nexit 1\n")
        (tmp_path / "npm").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
        with pytest.raises(UnsupportedError, match="npm cannot fetch") as caught:
            OnnxRuntimeWeb.from_npm()
        assert "no network" in str(caught.value)
