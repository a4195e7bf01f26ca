"""Quantized models as folders of the compressed-tensors format, which vLLM and transformers load.

Weights of integers without quantized inputs are packed into int32 (``pack-quantized``); with quantized inputs
they stay int8 (``int-quantized``); float8 e4m3 is ``float-quantized``, or ``naive-quantized`` without
quantized inputs. The package compressed-tensors is not needed.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt._files import replacing
from burnt.errors import QuantError, quantity
from burnt.kernels.ops.quantized.quantize import unpack
from burnt.nn.quantized import Quantized, QuantizedLinear
from burnt.record import record_of
from burnt.record.formats.folder import SHARD_BYTES, write_folder
from burnt.record.stored import MemoryTensor
from burnt.scheme import QuantScheme


def save_compressed_tensors(
    model: torch.nn.Module, folder: str | os.PathLike[str], *, shard_bytes: int = SHARD_BYTES
) -> None:
    """Write a quantized model as a folder that vLLM and transformers load.

    It holds ``model.safetensors`` (or shards) with compressed-tensors' names, and ``config.json``: that of a
    transformers model, with ``quantization_config``. The values are the model's; scales are stored in
    the weights' dtype where this changes none of them.

    Args:
        model: a model with quantized Linear layers: int8, int4 or int2 per tensor, channel or block; int8
            with dynamic or static inputs; fp8. Its paths should be the same as in the model that loads it.
        folder: the folder to write, as in `Record.save_folder`.
        shard_bytes: the size of a file.

    Raises:
        QuantError: the format has no such layer or scheme; the message lists them. Nothing is written.
        RecordError, OSError: as in `Record.save_folder`.
    """
    layers = {path: layer for path, layer in model.named_modules() if isinstance(layer, Quantized)}
    _check(model, layers)
    record = record_of(model)
    tensors = dict(record.tensors)
    tensors |= {
        alias: tensors[path] for alias, path in record.aliases.items() if alias.rpartition(".")[0] in layers
    }
    for path, layer in layers.items():
        for name in layer._buffers:
            tensors.pop(f"{path}.{name}", None)
        tensors |= {f"{path}.{name}": tensor for name, tensor in _tensors(layer).items()}
    config = _config(model, layers)
    stored = {path: MemoryTensor.of(tensor) for path, tensor in tensors.items()}
    target = Path(folder)
    write_folder(target, stored, None, shard_bytes=shard_bytes)
    with replacing(target / "config.json") as temporary:
        temporary.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def _check(model: torch.nn.Module, layers: dict[str, Quantized]) -> None:
    if not layers:
        raise QuantError(
            "the model has no quantized layers",
            where=type(model).__name__,
            expected="a model after burnt.quantize",
            hint="transformers models are saved with save_pretrained, others by record_of(model).save_folder",
        )
    problems = {path: problem for path, layer in layers.items() if (problem := _problem(layer))}
    if problems:
        shown = [f"{path}: {problem}" for path, problem in list(problems.items())[:10]]
        more = len(problems) - len(shown)
        skip = repr("|".join(problems)) if len(problems) <= 3 else "[those layers]"
        raise QuantError(
            f"compressed-tensors cannot hold {quantity(len(problems), 'layer')} of the model",
            where=type(model).__name__,
            expected="Linear layers in int8, int4, int2 or fp8",
            found="\n".join([*shown, *([f"and {more} more"] if more else [])]),
            hint=f"burnt.quantize(..., skip={skip}), or another scheme for them",
        )


def _problem(layer: Quantized) -> str | None:
    """Return why the format has no such layer, or None."""
    scheme = layer.scheme
    if not isinstance(layer, QuantizedLinear) or layer.is_transposed:
        return f"a {layer.origin.rpartition('.')[2]}"
    if scheme.value in ("float8_e5m2", "float4_e2m1"):
        return f"values of {scheme.value}"
    if scheme.block is not None and layer.columns % scheme.block:
        return f"{layer.columns} columns in blocks of {scheme.block}"
    if scheme.type.is_float and scheme.block is not None:
        return f"{scheme.value} in blocks"
    if scheme.activations and (scheme.type.bits < 8 or scheme.block is not None):
        return f"{scheme.name}: quantized inputs next to weights that are not int8 per channel"
    if scheme.level == "tensor" and not scheme.symmetric and not scheme.activations:
        return f"{scheme.name}: packed values with one zero point"
    return None


def _format(scheme: QuantScheme) -> str:
    if scheme.type.is_float:
        return "float-quantized" if scheme.activations else "naive-quantized"
    return "int-quantized" if scheme.activations else "pack-quantized"


def _tensors(layer: Quantized) -> dict[str, Tensor]:
    """Return a layer's weight under the names of the format."""
    scheme = layer.scheme
    shape = (1,) if scheme.level == "tensor" else layer.scale.shape
    found = {"weight_scale": _as_weights(layer.scale, layer.weight_dtype).reshape(shape)}
    if scheme.type.is_float:
        found["weight"] = layer.values.view(torch.float8_e4m3fn)
    elif scheme.activations:
        found["weight"] = layer.values
    else:
        codes = unpack(layer.values, scheme.value)[:, : layer.columns]
        found["weight_packed"] = _pack(codes, scheme.type.bits)
        found["weight_shape"] = torch.tensor(layer.weight_shape)
    if layer.zero_point is not None:
        packed = _pack(layer.zero_point.t(), scheme.type.bits).t().contiguous()
        found["weight_zero_point"] = layer.zero_point.reshape(shape) if scheme.activations else packed
    if layer.input_scale is not None:
        found["input_scale"] = layer.input_scale.reshape(1)
    if layer.input_zero_point is not None:
        found["input_zero_point"] = layer.input_zero_point.reshape(1)
    return found


def _as_weights(scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Return scales in the dtype of the weights, in which the library multiplies, if none of them changes."""
    converted = scale.to(dtype)
    return converted if torch.equal(converted.float(), scale.float()) else scale


def _pack(codes: Tensor, bits: int) -> Tensor:
    """Pack codes ``[rows, columns]`` into int32, the first in the lowest bits, plus half of the range."""
    per_word = 32 // bits
    unsigned = codes.to(torch.int64) + (1 << (bits - 1))
    padded = F.pad(unsigned, (0, -codes.shape[1] % per_word))
    words = padded.view(len(codes), padded.shape[1] // per_word, per_word)
    shifts = torch.arange(0, 32, bits, device=codes.device)
    return (words << shifts).sum(-1).to(torch.uint32).view(torch.int32)


def _config(model: torch.nn.Module, layers: dict[str, Quantized]) -> dict[str, Any]:
    own = getattr(model, "config", None)
    to_dict = getattr(own, "to_dict", None)
    config: dict[str, Any] = dict(to_dict()) if callable(to_dict) else {}
    output = getattr(model, "get_output_embeddings", None)
    if callable(output) and isinstance(output(), Quantized):
        config["tie_word_embeddings"] = False  # it has values of its own now
    # Embeddings of a scheme differ by nothing else than its layers' paths.
    groups: dict[QuantScheme, list[str]] = {}
    for path, layer in layers.items():
        scheme = dataclasses.replace(layer.scheme, narrow=False, scale="float32", uneven="pad")
        groups.setdefault(scheme, []).append(path)
    formats = {_format(scheme) for scheme in groups}
    plain = [path for path, layer in model.named_modules() if isinstance(layer, torch.nn.Linear)]
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": formats.pop() if len(formats) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "global_compression_ratio": None,
        "kv_cache_scheme": None,
        "ignore": plain,
        "config_groups": {
            f"group_{number}": {
                "targets": ["Linear"] if len(groups) == 1 else paths,
                "format": _format(scheme),
                "weights": _arguments(scheme),
                "input_activations": _input_arguments(scheme),
                "output_activations": None,
            }
            for number, (scheme, paths) in enumerate(groups.items())
        },
    }
    return config


def _arguments(scheme: QuantScheme) -> dict[str, Any]:
    return {
        "num_bits": scheme.type.bits,
        "type": "float" if scheme.type.is_float else "int",
        "symmetric": scheme.symmetric,
        "strategy": {"block": "group"}.get(scheme.level, scheme.level),
        "group_size": scheme.block,
        "dynamic": False,
    }


def _input_arguments(scheme: QuantScheme) -> dict[str, Any] | None:
    if scheme.activations is None:
        return None
    is_by_row = scheme.activations == "dynamic"
    return {
        "num_bits": 8,
        "type": "float" if scheme.type.is_float else "int",
        "symmetric": is_by_row or scheme.type.is_float,
        "strategy": "token" if is_by_row else "tensor",
        "group_size": None,
        "dynamic": scheme.activations != "static",
    }
