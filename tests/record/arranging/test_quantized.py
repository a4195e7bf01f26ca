"""Quantized models in files and memory: every way to copy, save and load one keeps its bits."""

import copy
import json
import os
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn

import burnt
from burnt import nn as bnn
from burnt import optim
from burnt.data import Loader, TensorDataset
from burnt.errors import RecordError
from burnt.nn.quantized import Quantized
from burnt.record import convert_weights, record_of
from burnt.train import ClassificationOutput, KeepLast, Learner, SupervisedTraining

SCHEMES = ["int8", "int8-dynamic", "int4-block32-asymmetric", "fp8", "fp4-block32", "int8-block32"]


def build(seed=0):
    torch.manual_seed(seed)
    layers = (
        nn.Conv1d(3, 5, 3),
        nn.BatchNorm1d(5),
        nn.Flatten(),
        nn.Linear(30, 40),
        nn.ReLU(),
        nn.Linear(40, 7),
    )
    return nn.Sequential(*layers).eval()


def quantized(scheme="int4-block32", **settings):
    model = build()
    burnt.quantize(model, scheme, **settings)
    return model


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 64)
        self.head = nn.Linear(64, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.embed(ids))


class Small(burnt.Module):
    layers: list[bnn.Linear]

    def forward(self, x):
        return self.layers[1](self.layers[0](x))


class SmallConfig(burnt.Config):
    width: int = 32

    def init(self) -> Small:
        return Small([bnn.Linear(8, self.width), bnn.Linear(self.width, 4)])


def bits(model):
    return {path: (t.dtype, t.contiguous().view(-1).view(torch.uint8).tolist())
            for path, t in model.state_dict().items()}  # fmt: skip


def stored_bits(model):
    """The bits of what quantization has made; biases and norms are left out."""
    names = ("values", "scale", "zero_point")
    return {path: value for path, value in bits(model).items() if path.split(".")[-1] in names}


def is_tied(model):
    head, embed = model.head, model.embed
    return head.values is embed.values and head.scale is embed.scale


def refused(match, *arguments, **options):
    with pytest.raises(RecordError, match=match) as caught:
        burnt.load_weights(*arguments, **options)
    return str(caught.value)


@pytest.mark.sample(2)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_file_comes_back_to_the_bit_in_a_fresh_model(scheme, tmp_path):
    model, x = quantized(scheme), torch.randn(2, 3, 8)
    record_of(model).save(tmp_path / "m.safetensors")
    fresh = build(seed=1)
    report = burnt.load_weights(fresh, tmp_path / "m.safetensors")
    assert bits(fresh) == bits(model)
    assert torch.equal(fresh(x), model(x))
    assert (report.cast, report.meta, report.missing) == ({}, (), ())
    assert [type(layer) for layer in fresh] == [type(layer) for layer in model]
    burnt.load_weights(fresh, tmp_path / "m.safetensors")  # into the quantized model, too
    assert bits(fresh) == bits(model)


@pytest.mark.parametrize(
    "kind", ["folder", "shards", "m.bpk", "converted.safetensors", "shorter.safetensors"]
)
def test_every_kind_of_file_holds_a_quantized_model(kind, tmp_path):
    model, path = quantized("int4-block32-asymmetric"), tmp_path / kind
    if kind in ("folder", "shards"):
        record_of(model).save_folder(path, shard_bytes=10**9 if kind == "folder" else 300)
        assert len(list(path.glob("*.safetensors"))) == (1 if kind == "folder" else 5)
    elif kind == "m.bpk":
        record_of(model).save(path)
    else:
        record_of(nn.ModuleDict({"net": model})).save(tmp_path / "m.safetensors")
        convert_weights(tmp_path / "m.safetensors", path, rename=[(r"^net\.", "")], dtype=torch.bfloat16)
        model.bfloat16()
        model[1].float()  # statistics stay in float32
    fresh = build(seed=1)
    if kind == "shorter.safetensors":
        holder = nn.ModuleDict({"body": fresh})
        burnt.load_weights(holder, path, rename=[(r"^", "body.")], dtype="stored")
    else:
        burnt.load_weights(fresh, path, dtype="stored")
    assert bits(fresh) == bits(model)
    assert fresh[3].weight.dtype == model[3].weight.dtype


def test_a_module_with_a_config_is_built_from_its_file(tmp_path):
    model = SmallConfig(width=16).init()
    burnt.quantize(model, "int8")
    model.save(tmp_path / "m.safetensors")
    loaded = Small.load(tmp_path / "m.safetensors")
    assert bits(loaded) == bits(model)
    assert isinstance(loaded.layers[0], Quantized)


def test_half_a_file_leaves_scales_alone(tmp_path):
    model = quantized("int8")
    for saved, loaded, wanted in (
        (torch.float16, "stored", torch.float16), (None, torch.bfloat16, torch.bfloat16)
    ):  # fmt: skip
        record_of(model).save(tmp_path / "m.safetensors", dtype=saved)
        fresh = build(seed=1)
        burnt.load_weights(fresh, tmp_path / "m.safetensors", dtype=loaded)
        assert stored_bits(fresh) == stored_bits(model)
        dtypes = (fresh[3].scale.dtype, fresh[3].bias.dtype, fresh[3].weight.dtype)
        assert dtypes == (torch.float32, wanted, wanted)


def test_a_model_on_meta_gets_its_memory_from_the_file(tmp_path):
    model = quantized("int8-block32")
    record_of(model).save(tmp_path / "m.safetensors")
    with torch.device("meta"):
        empty = build()
    report = burnt.load_weights(empty, tmp_path / "m.safetensors")
    assert report.meta == ()
    assert bits(empty) == bits(model)
    empty.to("cpu")  # nothing is left on meta


@pytest.mark.sample
@pytest.mark.parametrize(
    "copied",
    [
        copy.deepcopy,
        lambda model: pickle.loads(pickle.dumps(model)),
        lambda model: copy.deepcopy(model).half().float(),
        lambda model: copy.deepcopy(model).bfloat16().double().float(),
        lambda model: copy.deepcopy(model).to(torch.float16),
        lambda model: burnt.Module.fork(model),
    ],
    ids=["deepcopy", "pickle", "half", "double", "to", "fork"],
)
@pytest.mark.parametrize("scheme", ["int8", "fp8", "int4-block32-asymmetric"])
def test_copies_and_casts_never_quantize_again(copied, scheme):
    model = Tied()
    burnt.quantize(model, scheme)
    assert is_tied(model)
    other = copied(model)
    assert stored_bits(other) == stored_bits(model)
    assert is_tied(other)
    assert other.head.values is not model.head.values


def test_moving_tied_layers_keeps_them_tied(tmp_path):
    model = Tied()
    burnt.quantize(model, "int4-block32")
    record_of(model).save(tmp_path / "m.safetensors")
    moved = copy.deepcopy(model).to("meta")
    assert is_tied(moved)
    empty = moved.to_empty(device="cpu")
    assert is_tied(empty)
    assert not empty.head.values.is_meta
    burnt.load_weights(empty, tmp_path / "m.safetensors")
    assert bits(empty) == bits(model)
    assert is_tied(empty)


def test_tied_layers_are_stored_once_and_loaded_tied(tmp_path):
    model = Tied()
    burnt.quantize(model, "int4-block32")
    record_of(model).save(tmp_path / "a.safetensors")
    fresh = Tied()
    burnt.load_weights(fresh, tmp_path / "a.safetensors")
    assert is_tied(fresh)
    record_of(fresh).save(tmp_path / "b.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    assert set(burnt.record.read_weights(tmp_path / "a.safetensors").tensors) == {
        "embed.values",
        "embed.scale",
    }
    ids = torch.tensor([[1, 2, 49]])
    assert torch.equal(fresh(ids), model(ids))
    burnt.dequantize(fresh)
    assert fresh.head.weight is fresh.embed.weight


def test_a_state_dict_loads_into_a_model_that_is_quantized_already(tmp_path):
    model, other = quantized("int8-asymmetric"), build(seed=1)
    burnt.quantize(other, "int8-asymmetric")
    torch.save(model.state_dict(), tmp_path / "m.pt")
    other.load_state_dict(torch.load(tmp_path / "m.pt", weights_only=True))
    assert bits(other) == bits(model)
    burnt.load_weights(other, tmp_path / "m.pt")
    assert bits(other) == bits(model)


def test_failing_loads_leave_the_model_as_it_was(tmp_path):
    float_file, int8_file = tmp_path / "float.safetensors", tmp_path / "int8.safetensors"
    record_of(build()).save(float_file)
    record_of(quantized("int8")).save(int8_file)

    model = quantized("int4-block32")
    before = bits(model)
    message = refused("does not fit", model, float_file)
    assert "the model is quantized and the weights are not" in message
    message = refused("quantized by another scheme", model, int8_file)
    assert "int8.safetensors: 0" in message
    assert "expected  int8" in message
    assert "found     int4-block32" in message
    assert bits(model) == before

    plain = build(seed=1)
    before, layers = bits(plain), list(plain)
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(int8_file.read_bytes()[:-9])
    refused("truncated", plain, cut)
    without = nn.Sequential(*build(seed=1)[:5])
    message = refused("lacks a layer that the file has quantized", without, int8_file)
    assert "int8.safetensors: 5" in message
    assert "partial=True loads the layers that it has" in message
    assert not any(isinstance(layer, Quantized) for layer in without)
    wider = build(seed=1)
    wider[5] = nn.Linear(40, 9)
    message = refused("another size in the model than in the file", wider, int8_file)
    assert "values (7, 40) of int8" in message
    assert not any(isinstance(layer, Quantized) for layer in wider)
    state = record_of(quantized("int8")).tensors
    assert "do not say how" in refused("does not fit", plain, state)
    assert bits(plain) == before
    assert list(plain) == layers
    single = nn.Linear(40, 7)
    record = record_of(quantized("int8")[5])
    refused("a single layer cannot be replaced", single, record)


@pytest.mark.parametrize(
    "change",
    [
        {"scheme": {"value": "int9"}},
        {"scheme": {"value": "int8", "level": "block", "block": 2**50, "scale": "float16"}},
        {"scheme": []},
        {"scheme": {"surprise": 1}},
        {"bias": None, "scheme": None},
    ],
)
def test_damaged_metadata_of_a_layer_is_refused(change, tmp_path):
    record = record_of(quantized("int8"))
    record.quantized["3"] |= change
    model = build()
    refused("damaged|another size", model, record)
    assert not any(isinstance(layer, Quantized) for layer in model)
    record.quantized["3"] = {}
    refused("damaged", model, record)
    record = record_of(quantized("int8"))
    record.quantized["3"]["dtype"] = "load"
    burnt.load_weights(model, record, dtype="stored")
    assert model[3].weight.dtype == torch.float32


def test_a_compiled_part_and_a_selection_are_loaded(tmp_path):
    model = quantized("int8", only="3|5")
    record_of(model).save(tmp_path / "m.safetensors")
    fresh = build(seed=1)
    fresh.compile(backend="eager")
    holder = nn.ModuleDict({"net": torch.compile(fresh, backend="eager")})
    burnt.load_weights(holder, tmp_path / "m.safetensors", rename=[(r"^", "net.")])
    assert bits(fresh) == bits(model)
    fresh = build(seed=1)
    burnt.load_weights(fresh, tmp_path / "m.safetensors", only="5")
    assert [isinstance(layer, Quantized) for layer in fresh] == [False] * 5 + [True]


@pytest.mark.full
@pytest.mark.parametrize("scheme", ["int8", "int8-dynamic", "int4-block32"])
def test_compiled_and_exported_models_give_equal_results(scheme):
    model, x = quantized(scheme), torch.randn(2, 3, 8)
    expected = model(x)
    with torch.no_grad():
        assert torch.equal(torch.compile(model, backend="aot_eager", fullgraph=True)(x), model(x))
        exported = torch.export.export(model, (x,))
        assert torch.equal(exported.module()(x), model(x))
    assert torch.equal(expected, model(x))
    torch._dynamo.reset()


def test_ddp_trains_what_is_not_quantized(tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = quantized("int8-dynamic")
        before = stored_bits(model)
        wrapped = nn.parallel.DistributedDataParallel(model)
        x = torch.randn(4, 3, 8)
        plain = copy.deepcopy(model)
        plain(x).square().sum().backward()
        wrapped(x).square().sum().backward()
        assert torch.equal(model[3].bias.grad, plain[3].bias.grad)
        assert float(model[3].bias.grad.abs().sum()) > 0
        torch.optim.SGD(wrapped.parameters(), 0.1).step()
        assert stored_bits(model) == before
        record_of(wrapped).save(tmp_path / "m.safetensors")
    finally:
        torch.distributed.destroy_process_group()
    fresh = build(seed=1)
    burnt.load_weights(fresh, tmp_path / "m.safetensors")
    assert bits(fresh) == bits(model)


def step(model, batch):
    logits = model(batch.x)
    return ClassificationOutput(nn.functional.cross_entropy(logits, batch.y), logits, batch.y)


def train(folder, model, duration, resume=False):
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(20, 3, 8, generator=generator)
    data = TensorDataset(x=x, y=(x.sum((1, 2)) > 0).long())
    training = SupervisedTraining(
        folder,
        train=Loader(data, 5, shuffle=True, seed=3),
        duration=duration,
        checkpoints=[KeepLast(2)],
        monitor="off",
        resume=resume,
    )
    return training.run(Learner(model, optim.AdamW(), optim.Constant(1e-2), step=step))


def test_a_training_of_a_quantized_model_resumes_equally(tmp_path):
    whole = quantized("int8")
    before = stored_bits(whole)
    train(tmp_path / "whole", whole, "4 epochs")
    assert stored_bits(whole) == before
    assert not torch.equal(whole[5].bias, build()[5].bias)
    train(tmp_path / "two", quantized("int8"), "2 epochs")
    resumed = build(seed=5)  # not quantized: the checkpoint says which layers are
    train(tmp_path / "two", resumed, "4 epochs", resume=True)
    assert bits(resumed) == bits(whole)


GENERATE = """
import sys, torch, burnt
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

def model(kind):
    if kind == "gpt2":
        config = GPT2Config(vocab_size=96, n_embd=64, n_layer=2, n_head=4, n_positions=64,
                            bos_token_id=1, eos_token_id=2)
    else:
        config = LlamaConfig(vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                             num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True)
    return AutoModelForCausalLM.from_config(config).eval()

def generate(model):
    ids = torch.tensor([[5, 17, 33]])
    return model.generate(ids, max_new_tokens=12, do_sample=True, top_k=20, pad_token_id=0).tolist()

if __name__ == "__main__":
    for kind, path in (("gpt2", sys.argv[1]), ("llama", sys.argv[2])):
        loaded = model(kind)
        burnt.load_weights(loaded, path)
        torch.manual_seed(3)
        print(generate(loaded))
"""


@pytest.mark.full
def test_a_hugging_face_model_is_loaded_in_a_new_process_and_generates(tmp_path):
    (tmp_path / "generate.py").write_text(GENERATE)
    space = {"__name__": "generate"}
    exec(GENERATE, space)
    expected = []
    for kind in ("gpt2", "llama"):
        torch.manual_seed(0)
        model = space["model"](kind)
        floats = sum(p.nbytes for p in model.parameters())  # tied weights count once
        report = burnt.quantize(model, "int4-block32")
        assert not any(layer.layer in ("Linear", "Conv1D", "Embedding") for layer in report.skipped)
        record_of(model).save(tmp_path / kind)
        assert (
            0.14 < (tmp_path / kind).stat().st_size / floats < 0.30
        )  # the JSON is large next to these tensors
        torch.manual_seed(3)
        expected.append(space["generate"](model))
    found = subprocess.run(
        [sys.executable, tmp_path / "generate.py", tmp_path / "gpt2", tmp_path / "llama"],
        capture_output=True, text=True, check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert [json.loads(line) for line in found.stdout.splitlines()] == expected


def test_show_names_the_schemes_of_a_file(tmp_path, capsys):
    from burnt.cli import main

    model = quantized("int8", overrides={"5": "int4-block32"})
    record_of(model).save(tmp_path / "m.safetensors")
    assert main(["show", str(tmp_path / "m.safetensors")]) == 0
    assert "quantized  2 layers in int8, 1 layer in int4-block32" in " ".join(
        capsys.readouterr().out.split("\n")
    )
    main(["show", str(tmp_path / "m.safetensors"), "--json"])
    assert json.loads(capsys.readouterr().out)["quantized"]["5"] == "int4-block32"


def test_the_report_says_how_many_layers_are_quantized_and_how(tmp_path):
    record_of(quantized("int8", overrides={"5": "int4-block32"})).save(tmp_path / "m.safetensors")
    report = burnt.load_weights(build(seed=1), tmp_path / "m.safetensors")
    assert report.notes == ("3 layers quantized: 2 int8, 1 int4-block32",)
    assert str(report).endswith("note  3 layers quantized: 2 int8, 1 int4-block32")
    part = burnt.load_weights(build(), tmp_path / "m.safetensors", only="5")
    assert part.notes == ("1 layer quantized: 1 int4-block32",)
    assert burnt.load_weights(build(), record_of(build())).notes == ()


def test_layers_that_the_model_lacks_are_unexpected_in_a_partial_load(tmp_path):
    model = quantized("int8")
    record_of(model).save(tmp_path / "m.safetensors")
    without = nn.Sequential(*build(seed=1)[:5])
    report = burnt.load_weights(without, tmp_path / "m.safetensors", partial=True)
    assert set(report.unexpected) == {"5.values", "5.scale", "5.bias"}
    assert torch.equal(without[3].values, model[3].values)
