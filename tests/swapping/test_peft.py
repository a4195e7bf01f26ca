"""peft's LoRA on a swapped Llama, and a Llama with LoRA, swapped: as without, up to saving and merging."""

import copy

import pytest
import torch

import burnt
from burnt.swapping.kind import is_swapped

peft = pytest.importorskip("peft", reason="peft comes with the dev extra")
transformers = pytest.importorskip("transformers")

# peft asks transformers by a name that is going.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

TOKENS = torch.arange(34).view(2, 17) * 7 % 61
TEXT = {"input_ids": TOKENS, "labels": TOKENS}
TARGETS = ["q_proj", "v_proj", "gate_proj", "down_proj"]


def llama():
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return transformers.LlamaForCausalLM(config)


def adapted(model):
    """With an adapter that changes what the model computes."""
    result = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=TARGETS, task_type="CAUSAL_LM"))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in result.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 4)
    return result


def close(a, b):
    torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5)


def loss_and_gradients(model):
    model.zero_grad()
    loss = model(**TEXT).loss
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def agree(model, twin):
    found, wanted = loss_and_gradients(model), loss_and_gradients(twin)
    close(found[0], wanted[0])
    assert found[1].keys() == wanted[1].keys()
    assert all("lora_" in name for name in found[1])
    for name, gradient in wanted[1].items():
        close(found[1][name], gradient)


@pytest.fixture(params=["swapped, then adapted", "adapted, then swapped"])
def pair(request, always):
    """A model with an adapter, swapped, and one like it that is not."""
    torch.manual_seed(0)
    model = llama()
    twin = adapted(copy.deepcopy(model))
    if request.param == "swapped, then adapted":
        burnt.swap(model, verify=TEXT)
        model = adapted(model)
    else:
        model = adapted(model)
        burnt.swap(model, verify=TEXT)
    return model, twin


def swapped_layers(model):
    return [name for name, module in model.named_modules() if is_swapped(module)]


def test_losses_and_gradients(pair):
    model, twin = pair
    assert any(name.endswith("q_proj.base_layer") for name in swapped_layers(model))
    assert any(name.endswith("mlp") for name in swapped_layers(model))
    agree(model, twin)
    with model.disable_adapter(), twin.disable_adapter():
        close(model(TOKENS).logits, twin(TOKENS).logits)


@pytest.mark.sample(1)
def test_a_training(pair):
    losses = []
    for model in pair:
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-2)
        for _ in range(5):
            loss = model(**TEXT).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    torch.testing.assert_close(losses[:5], losses[5:], rtol=2e-3, atol=2e-4)
    assert losses[4] < losses[0]


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_merging(always, mode):
    torch.manual_seed(0)
    model = adapted(llama()).eval()
    burnt.swap(model, mode=mode, verify=TOKENS)
    with torch.no_grad():
        wanted = model(TOKENS).logits
        plain = model.get_base_model()
        model.merge_adapter()
        close(model(TOKENS).logits, wanted)
        with model.disable_adapter():  # takes it out of the weights again
            assert not torch.allclose(model(TOKENS).logits, wanted, atol=1e-2)
        close(model(TOKENS).logits, wanted)
        assert model.merge_and_unload() is plain
        close(plain(TOKENS).logits, wanted)
        assert swapped_layers(plain)
        burnt.unswap(plain)
        close(plain(TOKENS).logits, wanted)


@pytest.mark.sample(1)
def test_an_adapter_saved_and_loaded(pair, tmp_path):
    model, twin = pair
    model.save_pretrained(tmp_path / "swapped")
    twin.save_pretrained(tmp_path / "plain")
    read = [peft.utils.load_peft_weights(tmp_path / name, "cpu") for name in ("swapped", "plain")]
    assert read[0].keys() == read[1].keys()
    assert all(torch.equal(t, read[1][name]) for name, t in read[0].items())
    torch.manual_seed(0)
    base = llama()
    burnt.swap(base, verify=TEXT)
    again = peft.PeftModel.from_pretrained(base, tmp_path / "swapped")
    close(again(TOKENS).logits, twin(TOKENS).logits)


def test_unswapped_it_is_as_it_was(pair):
    model, twin = pair
    burnt.unswap(model)
    assert swapped_layers(model) == []
    assert [type(m) for m in model.modules()] == [type(m) for m in twin.modules()]
    assert torch.equal(model(TOKENS).logits, twin(TOKENS).logits)
