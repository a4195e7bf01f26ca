"""Fourier transforms, windows, mel filters."""

from __future__ import annotations

from typing import Any

from burnt.onnx.importer.build import Build
from burnt.onnx.importer.dtypes import torch_dtype
from burnt.onnx.importer.node import Node, handler


def _dft(build: Build, node: Node, axis: Any) -> Any:
    length = build.tensor_or_number(node, 1)
    inverse, onesided = bool(node.attr("inverse", 0)), bool(node.attr("onesided", 0))
    return build.call("ops.dft", build.tensor(node, 0), length, axis, inverse, onesided, hint="spectrum")


@handler("DFT", since=17)
def _dft_17(build: Build, node: Node) -> Any:
    return _dft(build, node, node.attr("axis", 1))


@handler("DFT", since=20)
def _dft_20(build: Build, node: Node) -> Any:
    return _dft(build, node, build.tensor_or_number(node, 2) if node.has(2) else -2)


@handler("STFT")
def _stft(build: Build, node: Node) -> Any:
    step, length = build.tensor_or_number(node, 1), build.tensor_or_number(node, 3)
    onesided = bool(node.attr("onesided", 1))
    window = build.tensor(node, 2)
    return build.call("ops.stft", build.tensor(node, 0), step, window, length, onesided, hint="spectrum")


@handler("MelWeightMatrix")
def _mel(build: Build, node: Node) -> Any:
    dtype = torch_dtype(int(node.attr("output_datatype", 1)))
    assert dtype is not None
    numbers = [build.tensor_or_number(node, i) for i in range(5)]
    return build.call("ops.mel_weights", *numbers, dtype, device=build.device(*numbers), hint="mel")
