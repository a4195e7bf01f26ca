"""Folders of the compressed-tensors format, read by the library and by transformers."""

import json

import pytest
import safetensors.torch
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationConfig
from torch import nn

import burnt
from burnt.errors import QuantError
from burnt.quant import save_compressed_tensors

SCHEMES = {
    "int8": "pack-quantized",
    "int8-tensor": "pack-quantized",
    "int8-asymmetric": "pack-quantized",
    "int8-block32-asymmetric": "pack-quantized",
    "int8-dynamic": "int-quantized",
    "int8-tensor-dynamic": "int-quantized",
    "int8-asymmetric-dynamic": "int-quantized",
    "int8-asymmetric-dynamic_tensor": "int-quantized",
    "int4-block32": "pack-quantized",
    "int4-block32-asymmetric": "pack-quantized",
    "int4-channel": "pack-quantized",
    "int2-block32": "pack-quantized",
    "fp8": "naive-quantized",
    "fp8-tensor": "naive-quantized",
    "fp8-dynamic": "float-quantized",
}


def build(columns=64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(columns, 37), nn.ReLU(), nn.Linear(37, 5))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_library_decompresses_exactly_our_weights(scheme, tmp_path):
    model = build()
    burnt.quantize(model, scheme, skip="2" if "block" in scheme else None)
    save_compressed_tensors(model, tmp_path / "m")
    config = json.loads((tmp_path / "m/config.json").read_text())["quantization_config"]
    read = QuantizationConfig.model_validate(config)  # the library refuses what it does not know
    (group,) = read.config_groups.values()
    assert read.format == group.format == SCHEMES[scheme]
    assert read.ignore == (["2"] if "block" in scheme else [])
    tensors = safetensors.torch.load_file(tmp_path / "m/model.safetensors")
    compressor = BaseCompressor.get_value_from_registry(group.format)
    for path in {"0", "2"} - set(read.ignore):
        own = {name.removeprefix(f"{path}."): t for name, t in tensors.items() if name.startswith(f"{path}.")}
        assert set(own) - {"bias"} == set(compressor.compression_param_names(group))
        found = compressor.decompress(own, group)["weight"]
        assert torch.equal(found, model[int(path)].weight)
        assert found.dtype == torch.float32


def test_several_schemes_are_several_groups(tmp_path):
    model = build()
    burnt.quantize(model, "int4-block32", overrides={"2": "int8-dynamic"})
    save_compressed_tensors(model, tmp_path / "m", shard_bytes=600)
    config = json.loads((tmp_path / "m/config.json").read_text())["quantization_config"]
    assert config["format"] == "mixed-precision"
    assert [group["targets"] for group in config["config_groups"].values()] == [["0"], ["2"]]
    assert (tmp_path / "m/model.safetensors.index.json").exists()


def test_layers_that_the_format_lacks_are_listed_and_nothing_is_written(tmp_path):
    model = nn.Sequential(nn.Embedding(9, 64), nn.Linear(64, 37), nn.Linear(37, 8), nn.Linear(8, 8))
    burnt.quantize(model, "int4-block32", overrides={"3": "fp4-block32", "1": "e5m2"})
    with pytest.raises(QuantError, match="cannot hold 4 layers") as caught:
        save_compressed_tensors(model, tmp_path / "m")
    message = str(caught.value)
    for line in (
        "0: a Embedding",
        "1: values of float8_e5m2",
        "2: 37 columns in blocks of 32",
        "3: values of",
    ):
        assert line in message
    assert not (tmp_path / "m").exists()
    with pytest.raises(QuantError, match="no quantized layers"):
        save_compressed_tensors(build(), tmp_path / "m")


@pytest.mark.filterwarnings("ignore:You passed")
@pytest.mark.sample(1)
@pytest.mark.parametrize("scheme", ["int8", "int4-block32-asymmetric", "int8-dynamic", "fp8-dynamic"])
def test_transformers_loads_a_llama_with_equal_logits(scheme, tmp_path):
    from transformers import AutoModelForCausalLM, CompressedTensorsConfig, LlamaConfig

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config).eval()
    burnt.quantize(model, scheme, skip="model.embed_tokens")
    save_compressed_tensors(model, tmp_path / "m")
    # Without `dequantize`, transformers 5.23 builds zero points that are not packed, and refuses packed ones.
    how = {"quantization_config": CompressedTensorsConfig(dequantize=True)} if "asymmetric" in scheme else {}
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "m", **how).eval()
    ids = torch.tensor([[5, 17, 33, 2]])
    with torch.no_grad():
        expected, found = model(ids).logits, loaded(ids).logits
    tolerance = 2e-2 if "dynamic" in scheme else 1e-5  # their scales of inputs are those of another range
    assert float((found - expected).norm() / expected.norm()) < tolerance


@pytest.mark.parametrize(
    ("count", "hint"),
    [(2, "burnt.quantize(..., skip='0|1'), or"), (4, "burnt.quantize(..., skip=[those layers]), or")],
)
def test_the_hint_skips_all_layers_that_do_not_fit_or_none_by_name(count, hint, tmp_path):
    model = nn.Sequential(*(nn.Conv1d(3, 3, 1) for _ in range(count)))
    burnt.quantize(model)
    with pytest.raises(QuantError, match=f"cannot hold {count} layers") as caught:
        burnt.quant.save_compressed_tensors(model, tmp_path / "folder")
    assert (caught.value.hint or "").startswith(hint)
