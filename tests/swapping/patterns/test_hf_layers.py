"""Hugging Face's architectures with random weights, narrow and of two layers, swapped and as they are."""

import copy
import functools
import pickle
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn import CrossEntropyLoss
from torch.nn import functional as F

import burnt
from burnt import kernels
from burnt.swapping.kind import KINDS, is_swapped
from burnt.swapping.patterns import hf_attention

transformers = pytest.importorskip("transformers")

TOKENS = torch.arange(34).view(2, 17) * 7 % 61
IMAGES = torch.linspace(-1, 1, 2 * 3 * 32 * 32).view(2, 3, 32, 32).sin()
TEXT = {"input_ids": TOKENS, "labels": TOKENS}
PICTURES = {"pixel_values": IMAGES, "labels": torch.tensor([0, 1])}
# Without dropout, whose numbers are others when swapped.
SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def llama(**settings):
    config = transformers.LlamaConfig(vocab_size=64, num_key_value_heads=2, **SMALL, **settings)
    return transformers.LlamaForCausalLM(config)


def bert():
    return transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=64, **SMALL, **STILL))


def gpt2():
    config = transformers.GPT2Config(vocab_size=64, bos_token_id=0, eos_token_id=0, **GPT2)
    return transformers.GPT2LMHeadModel(config)


def gemma2():
    """Scores are capped, and every other layer sees a window; attention is the model's own function."""
    settings = {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 7, "attn_logit_softcapping": 2.0}
    return transformers.Gemma2ForCausalLM(transformers.Gemma2Config(vocab_size=64, **SMALL, **settings))


def mistral():
    settings = {"num_key_value_heads": 2, "sliding_window": 7, "vocab_size": 64}
    return transformers.MistralForCausalLM(transformers.MistralConfig(**SMALL, **settings))


def t5(**settings):
    """Attention is told what is added to the scores; the feed-forward part looks at its weights' dtype."""
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}
    config = transformers.T5Config(vocab_size=64, decoder_start_token_id=0, **sizes, **settings)
    return transformers.T5ForConditionalGeneration(config)


def vit():
    config = transformers.ViTConfig(image_size=32, patch_size=8, **SMALL, **STILL)
    return transformers.ViTForImageClassification(config)


def convnext():
    config = transformers.ConvNextConfig(hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1], image_size=32)
    return transformers.ConvNextForImageClassification(config)


BERT = {"made_loss": 1, "attention": 2, "linear": 11, "layer_norm": 6, "feed_forward": 3, "embedding": 3}
# What must be recognised of each, with the number of sites.
MODELS = {
    "llama": (llama, TEXT, {"loss": 1, "attention": 2, "gated_unit": 2, "rms_norm_by_hand": 5, "linear": 15}),
    "gemma2": (gemma2, TEXT, {"attention": 2, "gated_unit": 2, "rms_norm_by_hand": 9, "linear": 15}),
    "mistral": (mistral, TEXT, {"loss": 1, "attention": 2, "gated_unit": 2, "rms_norm_by_hand": 5}),
    "bert": (bert, TEXT, BERT),
    "gpt2": (
        gpt2,
        TEXT,
        {"loss": 1, "attention": 2, "conv1d": 6, "layer_norm": 5, "feed_forward": 2, "linear": 1},
    ),
    "t5": (t5, TEXT, {"made_loss": 1, "attention": 6, "rms_norm_by_hand": 12, "linear": 33}),
    "vit": (
        vit,
        PICTURES,
        {"loss": 1, "attention": 2, "conv": 1, "linear": 11, "layer_norm": 5, "feed_forward": 2},
    ),
    "convnext": (convnext, PICTURES, {"loss": 1, "conv": 9, "linear": 11, "layer_norm": 1, "activation": 5}),
}


@pytest.fixture(params=MODELS)
def case(request):
    build, batch, kinds = MODELS[request.param]
    torch.manual_seed(0)
    return build(), batch, kinds


def close(a, b, tolerance=2e-5):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def loss_and_gradients(model, batch):
    model.zero_grad()
    loss = model(**batch).loss
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def train(model, batch, steps=10):
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(steps):
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.sample(3)
def test_swapped_it_computes_the_same_and_unswapped_it_is_the_same(always, case):
    model, batch, kinds = case
    logits = model(**batch).logits.detach()
    loss, wanted = loss_and_gradients(model, batch)
    keys, classes = list(model.state_dict()), [type(m) for m in model.modules()]
    report = burnt.swap(model, verify=batch)
    counted = {kind: sum(r.kind == kind and r.state == "swapped" for r in report.rows) for kind in kinds}
    assert counted == kinds, report
    assert report.left == {}
    assert {r.why for r in report.rows if r.state == "waiting"} <= {
        "it was not called with the batch of verify="
    }
    why = {r.path: r.why for r in report.rows}
    for row in report.rows:
        assert row.kind != "gated_unit" or why[f"{row.path}.act_fn"] == f"of {row.path}"
    assert list(model.state_dict()) == keys
    close(model(**batch).logits, logits)
    close(loss_and_gradients(model, batch), (loss, wanted))
    burnt.unswap(model)
    assert [type(m) for m in model.modules()] == classes
    assert torch.equal(model(**batch).logits, logits)
    torch.testing.assert_close(loss_and_gradients(model, batch), (loss, wanted), rtol=0, atol=0)


@pytest.mark.sample(1)
def test_trained_swapped_the_losses_are_the_same(always, case):
    model, batch, _ = case
    twin = copy.deepcopy(model)
    losses = train(model, batch)
    burnt.swap(twin)
    swapped = train(twin, batch)
    torch.testing.assert_close(swapped, losses, rtol=2e-3, atol=2e-4)
    assert losses[-1] < losses[0]


def test_gradients_of_a_batch_padded_to_the_left(always):
    """Rows of padding see nothing, which eager attention hides by finfo.min; the first batch had none."""
    torch.manual_seed(0)
    model = llama(attn_implementation="eager", pad_token_id=0, initializer_range=0.2)
    seen = torch.ones_like(TOKENS)
    seen[0, :5] = 0
    batch = {"input_ids": TOKENS, "attention_mask": seen, "labels": TOKENS.masked_fill(seen == 0, -100)}
    wanted = loss_and_gradients(model, batch)
    report = burnt.swap(model, verify=TEXT)
    assert {r.state for r in report.rows if r.kind == "attention"} == {"swapped"}
    close(loss_and_gradients(model, batch), wanted)


def test_generating_with_a_cache(always):
    torch.manual_seed(0)
    model = llama().eval()
    settings = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    wanted = model.generate(TOKENS[:, :5], **settings)
    report = burnt.swap(model, mode="infer")
    assert torch.equal(model.generate(TOKENS[:, :5], **settings), wanted)
    assert {r.kind for r in report.rows if r.state == "swapped"} >= {
        "attention",
        "linear",
        "rms_norm_by_hand",
    }
    assert torch.equal(model.generate(TOKENS[:, :5], **settings), wanted)


def test_recorded_outputs_of_attention(always):
    model = llama(attn_implementation="eager")
    settings = {"output_attentions": True, "output_hidden_states": True}
    wanted = model(TOKENS, **settings)
    burnt.swap(model, verify=TOKENS)
    found = model(TOKENS, **settings)
    assert len(found.attentions) == 2
    close((found.attentions, found.hidden_states), (wanted.attentions, wanted.hidden_states))


def test_weights_of_attention_are_made_for_who_asks(always):
    """Asked for by settings or hooks, or not at all: then a model's own function need not make them."""
    model = llama(attn_implementation="eager").eval()
    layer = model.model.layers[0].self_attn
    x, turned = torch.randn(2, 5, 32), (torch.randn(1, 5, 8), torch.randn(1, 5, 8))
    out, weights = layer(x, turned)
    burnt.swap(model, only="attention", verify=TOKENS)
    found = layer(x, turned)
    close(found[0], out)
    assert found[1] is None
    model.config.output_attentions = True
    close(layer(x, turned)[1], weights)
    model.config.output_attentions = False
    assert layer(x, turned)[1] is None
    layer.register_forward_hook(lambda module, args, result: close(result[1], weights))
    close(layer(x, turned)[1], weights)


@pytest.mark.sample(2)
@pytest.mark.parametrize("build", [llama, mistral, gemma2, bert])
@pytest.mark.parametrize("before", [False, True], ids=["padded after", "padded before"])
def test_padded_batches(always, build, before):
    model = build().eval()
    padding = torch.ones_like(TOKENS)
    padding[1, : 6 if before else 17] = 0 if before else 1
    padding[1, 17 if before else 11 :] = 0
    wanted = model(TOKENS, attention_mask=padding).logits
    burnt.swap(model, mode="infer", verify=TOKENS)
    found = model(TOKENS, attention_mask=padding).logits
    close(found[padding == 1], wanted[padding == 1])


def test_dropout_of_attention_is_compared_where_there_is_none(always):
    config = transformers.BertConfig(vocab_size=64, **SMALL, attention_probs_dropout_prob=0.9)
    model = transformers.BertForMaskedLM(config)
    report = burnt.swap(model, only="attention", verify=TEXT)
    assert len(report.swapped) == 2, report
    layer = model.bert.encoder.layer[0].attention.self
    x = torch.randn(4, 9, 32)
    layer.train()
    first, second = layer(x)[0], layer(x)[0]
    assert not torch.equal(first, second)
    layer.eval()
    assert torch.equal(layer(x)[0], layer(x)[0])


def test_a_cache_of_fixed_size(always):
    model = llama().eval()
    settings = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "cache_implementation": "static",
                "disable_compile": True}  # fmt: skip
    wanted = model.generate(TOKENS[:, :5], **settings)
    burnt.swap(model, mode="infer", verify=TOKENS)
    assert torch.equal(model.generate(TOKENS[:, :5], **settings), wanted)


def test_what_only_looks_like_attention():
    def eager_attention_forward(module, query, key, value, attention_mask, scaling=None, **kwargs):
        weights = torch.softmax(query @ key.mT * scaling, -1)  # the mask is left out
        return (weights @ value).transpose(1, 2), weights

    assert hf_attention._probe_softcap(eager_attention_forward) is None
    assert hf_attention._burnt_interface(eager_attention_forward) is eager_attention_forward


def test_saved_and_loaded(always, tmp_path):
    model = llama()
    burnt.swap(model, verify=TEXT)
    model.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(again) is transformers.LlamaForCausalLM
    close(again(TOKENS).logits, model(TOKENS).logits)


@pytest.mark.full
def test_a_compiler_sees_the_original(always):
    model = llama()
    twin = copy.deepcopy(model)
    burnt.swap(model, verify=TEXT)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.equal(compiled(**TEXT).loss, twin(**TEXT).loss)


def test_gradient_checkpointing(always):
    model = llama().train()
    wanted = loss_and_gradients(model, TEXT)
    model.activation_checkpointing_enable()
    burnt.swap(model)
    close(loss_and_gradients(model, TEXT), wanted)


def test_losses_that_are_made_at_each_call():
    model = bert()
    wanted = model(**TEXT).loss
    report = burnt.swap(model, only="made_loss")
    (row,) = report.rows
    assert (row.path, row.state, row.by, row.speed) == ("", "swapped", "kernels.cross_entropy", None)
    model(TOKENS)
    with mock.patch.object(kernels, "cross_entropy", wraps=kernels.cross_entropy) as called:
        close(model(**TEXT).loss, wanted)
    called.assert_called_once()
    close(copy.deepcopy(model)(**TEXT).loss, wanted)
    close(pickle.loads(pickle.dumps(model))(**TEXT).loss, wanted)
    burnt.unswap(model)
    assert not [name for name in vars(model) if "burnt" in name]
    burnt.swap(model, skip="made_loss")
    assert not is_swapped(model)


def doubling(fn):
    @functools.wraps(fn)
    def wrapper(self, *args):
        return 2 * fn(self, *args)

    return wrapper


SCALE, calls = 1.0, 0


class Losses(nn.Module):
    """A module whose forward looks at its own file's names, behind a decorator."""

    def __init__(self):
        super().__init__()
        self.loss = nn.CrossEntropyLoss()

    @doubling
    def forward(self, x, target, smoothing=0.0):
        assert isinstance(self.loss, CrossEntropyLoss)
        weighted = CrossEntropyLoss(weight=torch.tensor([0.5, 1.0, 2.0]))(x, target)
        smoothed = CrossEntropyLoss(reduction="sum", label_smoothing=smoothing)(x, target)
        return SCALE * (weighted + smoothed + self.loss(x, target))


class Counting(nn.Module):
    def forward(self, x, target):
        global calls
        calls += 1
        return CrossEntropyLoss()(x, target)


def test_losses_behind_a_decorator(always, monkeypatch):
    x, target = torch.randn(4, 3), torch.tensor([0, 2, 1, 1])
    model, counting = Losses(), Counting()
    wanted = [model(x, target, smoothing) for smoothing in (0.0, 0.3)]
    burnt.swap(model, verify=(x, target))
    burnt.swap(counting, verify=(x, target))
    assert is_swapped(model)
    assert not is_swapped(counting)  # a copy of what assigns globals would assign others
    close([model(x, target, smoothing) for smoothing in (0.0, 0.3)], wanted)
    monkeypatch.setitem(globals(), "SCALE", 100.0)
    close(model(x, target), 100 * wanted[0])
    with pytest.raises(RuntimeError):  # as torch raises it
        model(x, target.int())


def test_attention_behind_a_decorator(always):
    from transformers.models.llama.modeling_llama import LlamaAttention

    model = llama()
    wanted = model(**TEXT).logits
    cls = type("LlamaAttention", (LlamaAttention,), {"forward": passing(LlamaAttention.forward)})
    for layer in model.model.layers:
        layer.self_attn.__class__ = cls
    report = burnt.swap(model, verify=TEXT)
    assert sum(row.kind == "attention" and row.state == "swapped" for row in report.rows) == 2
    close(model(**TEXT).logits, wanted)


def passing(fn):
    @functools.wraps(fn)
    def wrapper(self, *args, **kwargs):
        return fn(self, *args, **kwargs)

    return wrapper


def test_decorators_that_call_each_other():
    def one(self, x):
        return other(self, x)

    def other(self, x):
        return x if x.sum() else one(self, x)

    model = type("Turns", (nn.Module,), {"forward": one})()
    assert burnt.swap(nn.Sequential(nn.Softmax(-1), model)).waiting == ["0"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_on_around_the_first_call_does_not_matter(dtype):
    from transformers.models.llama.modeling_llama import eager_attention_forward

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.float32):
            assert hf_attention._probe_softcap(eager_attention_forward) is False
    finally:
        torch.set_default_dtype(before)


def test_the_count_of_tokens_divides_the_loss(always):
    model = llama()
    wanted = model(**TEXT, num_items_in_batch=torch.tensor(7)).loss
    burnt.swap(model, verify=TEXT)
    close(model(**TEXT, num_items_in_batch=torch.tensor(7)).loss, wanted)
    close(model(**TEXT, num_items_in_batch=7).loss, wanted)


def test_a_loss_of_ones_own_is_kept(always):
    model = llama()
    burnt.swap(model, verify=TEXT)
    model.loss_function = lambda **given: given["logits"].sum() * 0 + 42
    assert float(model(**TEXT).loss.detach()) == 42


# --- told by what they compute


def of_its_own(cls, *args, **kwargs):
    """An instance of a class that was not looked at before: what a class computes is tried once."""
    return type(cls.__name__, (cls,), {})(*args, **kwargs)


class Norm(nn.Module):
    def __init__(self, plus, scale=1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6))
        self.eps, self.plus, self.scale = 1e-5, plus, scale

    def forward(self, x):
        x = x.float()
        normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return normed * (self.weight + self.plus) * self.scale


@pytest.mark.parametrize("plus", [0, 1])
def test_norms_by_hand(always, plus):
    model, x = of_its_own(Norm, plus), torch.randn(5, 6)
    wanted = model(x)
    report = burnt.swap(model, verify=x)
    assert [(r.kind, r.state) for r in report.rows] == [("rms_norm_by_hand", "swapped")]
    close(model(x), wanted)


def test_what_only_looks_like_a_norm():
    assert burnt.swap(of_its_own(Norm, 0, scale=1.1)).rows == []
    assert burnt.swap(of_its_own(Norm, torch.ones(6) / 2)).rows == []


class Unit(nn.Module):
    def __init__(self, act, together, wrong=False):
        super().__init__()
        self.gate_up_proj = nn.Linear(4, 12) if together else None
        if not together:
            self.gate_proj, self.up_proj = nn.Linear(4, 6), nn.Linear(4, 6)
            del self.gate_up_proj
        self.down_proj = nn.Linear(6, 4)
        self.act_fn, self.together, self.wrong = act, together, wrong

    def forward(self, x):
        gate, up = (
            self.gate_up_proj(x).chunk(2, -1) if self.together else (self.gate_proj(x), self.up_proj(x))
        )
        if self.wrong:
            gate, up = up, gate
        return self.down_proj(self.act_fn(gate) * up)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("act", [F.silu, nn.SiLU(), nn.GELU(), nn.GELU("tanh"), F.gelu])
def test_gated_units(always, act, together):
    model, x = of_its_own(Unit, act, together), torch.randn(5, 4)
    wanted = model(x)
    report = burnt.swap(model, only="gated_unit", verify=x)
    assert report.swapped == [""]
    close(model(x), wanted)


@pytest.mark.parametrize("settings", [(F.silu, False, True), (F.silu, True, True), (F.relu, False)])
def test_what_only_looks_like_a_gated_unit(settings):
    unit = of_its_own(Unit, *settings)
    assert "gated_unit" not in {row.kind for row in burnt.swap(unit).rows}


def test_wrapped_projections_are_called(always):
    model, x = of_its_own(Unit, F.silu, False), torch.randn(5, 4)
    model.gate_proj = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 6))
    seen = []
    model.up_proj.register_forward_hook(lambda *args: seen.append("up"))
    wanted = model(x)
    report = burnt.swap(model)
    for calls in (2, 3):  # measuring at the first one is not seen
        close(model(x), wanted)
        assert seen == ["up"] * calls
    assert report.swapped[0] == ""


def test_an_activation_with_hooks_is_called(always):
    model, x, calls = of_its_own(Unit, nn.SiLU(), False), torch.randn(5, 4), []
    wanted = model(x)
    burnt.swap(model, verify=x)
    model.act_fn.register_forward_hook(lambda *args: calls.append("act"))
    close(model(x), wanted)
    assert calls == ["act"]
    burnt.unswap(model)
    assert burnt.swap(model).left[""].startswith("its activation has hooks")


@pytest.mark.parametrize(
    "name", ["SiLU", "ReLUSquared", "GELU", "NewGELU", "FastGELU", "AccurateGELU", "QuickGELU", "Mish"]
)
def test_activations(always, name):
    module = getattr(transformers.activations, name + "Activation")()
    x = torch.randn(5, 40, requires_grad=True)
    wanted = module(x)
    [gradient] = torch.autograd.grad(wanted.sum(), x)
    report = burnt.swap(module, verify=x)
    assert [(r.kind, r.state) for r in report.rows] == [("activation", "swapped")], report
    result = module(x)
    close(result, wanted)
    close(torch.autograd.grad(result.sum(), x)[0], gradient)


def test_the_models_module_is_not_changed(always):
    from transformers.models.llama import modeling_llama

    before = dict(vars(modeling_llama))
    model = llama()
    burnt.swap(model, verify=TEXT)
    assert is_swapped(model.model.layers[0].self_attn)
    assert dict(vars(modeling_llama)) == before


def test_kinds_have_names_of_their_own():
    assert len(KINDS) == len({kind.name for kind in KINDS.values()}) > 15


@pytest.mark.sample(1)
@pytest.mark.parametrize("projections", ["relu", "gated-gelu"])
def test_t5_with_padding_and_a_cache(always, projections):
    torch.manual_seed(0)
    model = t5(feed_forward_proj=projections).eval()
    padding = torch.ones_like(TOKENS)
    padding[1, 11:] = 0
    batch = {"input_ids": TOKENS, "attention_mask": padding, "decoder_input_ids": TOKENS[:, :5]}
    settings = {"max_new_tokens": 6, "do_sample": False}
    wanted, tokens = model(**batch).logits, model.generate(TOKENS, attention_mask=padding, **settings)
    report = burnt.swap(model, mode="infer", verify=batch)
    assert sum(row.kind == "attention" and row.state == "swapped" for row in report.rows) == 6, report
    close(model(**batch).logits, wanted)
    assert torch.equal(model.generate(TOKENS, attention_mask=padding, **settings), tokens)
