"""Weights of transformers' models: saved by transformers, loaded by burnt, and the other way round."""

import pytest
import torch

from burnt.errors import RecordError
from burnt.record import load_weights, read_weights, record_of
from tests.messages import raises

transformers = pytest.importorskip("transformers")

SIZES = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 40,
    "max_position_embeddings": 20,
}
ARCHITECTURES = {
    "BertForMaskedLM": ("BertConfig", SIZES),
    "RobertaForMaskedLM": ("RobertaConfig", SIZES),
    "DistilBertForMaskedLM": (
        "DistilBertConfig",
        {"dim": 16, "hidden_dim": 32, "n_layers": 2, "n_heads": 2, "vocab_size": 40},
    ),
    "ElectraForMaskedLM": ("ElectraConfig", {**SIZES, "embedding_size": 8}),
    "GPT2LMHeadModel": ("GPT2Config", {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 40}),
    "LlamaForCausalLM": ("LlamaConfig", SIZES),
    "Qwen2ForCausalLM": ("Qwen2Config", {**SIZES, "num_key_value_heads": 1, "tie_word_embeddings": True}),
    "MistralForCausalLM": ("MistralConfig", {**SIZES, "num_key_value_heads": 1}),
    "GPTNeoXForCausalLM": ("GPTNeoXConfig", SIZES),
    "T5ForConditionalGeneration": (
        "T5Config",
        {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "vocab_size": 40},
    ),
    "ViTForImageClassification": ("ViTConfig", {**SIZES, "image_size": 8, "patch_size": 4}),
    "ResNetForImageClassification": (
        "ResNetConfig",
        {"embedding_size": 8, "hidden_sizes": [8, 8], "depths": [1, 1], "layer_type": "basic"},
    ),
}

# Where the names in a published file are not those of the module, transformers renames when it loads.
RENAMES = {
    "GPTNeoXForCausalLM": [(r"^embed_out", "lm_head")],
    "ViTForImageClassification": [
        (r"encoder\.layer\.", "layers."),
        (r"attention\.attention\.(query|key|value)", lambda match: f"attention.{match[1][0]}_proj"),
        (r"attention\.output\.dense", "attention.o_proj"),
        (r"intermediate\.dense", "mlp.fc1"),
        (r"output\.dense", "mlp.fc2"),
    ],
}


def build(name, seed):
    torch.manual_seed(seed)
    config, sizes = ARCHITECTURES[name]
    return getattr(transformers, name)(getattr(transformers, config)(**sizes)).eval()


def assert_equal_bits(one, other):
    assert one.keys() == other.keys()
    for path, value in one.items():
        assert value.dtype == other[path].dtype, path
        assert torch.equal(value, other[path]), path


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_from_transformers_and_back(tmp_path, name):
    model = build(name, 0)
    wanted = model.state_dict()
    for folder, size in (("one", "5GB"), ("shards", "8KB")):
        model.save_pretrained(tmp_path / folder, max_shard_size=size)
        other = build(name, 1)
        load_weights(other, tmp_path / folder, rename=RENAMES.get(name, []))
        assert_equal_bits(other.state_dict(), wanted)
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1

    torch.save(wanted, tmp_path / "pytorch_model.bin")
    with torch.device("meta"):
        empty = build(name, 1)
    report = load_weights(empty, tmp_path / "pytorch_model.bin")
    assert_equal_bits(empty.state_dict(), wanted)
    assert set(report.meta) == {path for path, value in empty.named_buffers() if value.is_meta}

    for shard_bytes in (10**9, 8000):
        folder = tmp_path / f"burnt{shard_bytes}"
        record_of(model).save_folder(folder, shard_bytes=shard_bytes)
        record = read_weights(folder)
        assert_equal_bits(
            {**record.tensors, **{a: record.tensors[p] for a, p in record.aliases.items()}}, wanted
        )
        (folder / "config.json").write_text(model.config.to_json_string())
        again = type(model).from_pretrained(folder)
        assert_equal_bits(again.state_dict(), wanted)


def test_a_body_into_a_model_with_a_new_head(tmp_path):
    model = build("BertForMaskedLM", 0)
    model.save_pretrained(tmp_path)
    body = transformers.BertModel(model.config, add_pooling_layer=False)
    with raises(RecordError, r"""rename=[(r"^bert\.", "")] takes away the prefix 'bert.'"""):
        load_weights(body, tmp_path)
    load_weights(body, tmp_path, rename=[(r"^bert\.", "")], skip="cls")
    assert_equal_bits(body.state_dict(), model.bert.state_dict())
