"""A swapped model is the model: values, gradients, state, copies, wrappers; so is what `unswap` leaves."""

import copy
import inspect
import io
import json
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

import burnt
from burnt.errors import SwapError
from burnt.swapping import measure
from burnt.swapping.kind import is_swapped
from tests import forked

ROOT = Path(__file__).parents[2]


class Block(nn.Module):
    """Layers of several kinds, one of them used twice, with a weight that is shared."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.up = nn.Linear(6, 10)
        self.act = nn.GELU()
        self.down = nn.Linear(10, 6, bias=False)
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        for _ in range(2):
            x = self.norm(x + 0.5 * self.down(self.act(self.up(x))))
        return self.head(x)


TOKENS = torch.tensor([[1, 2, 3, 10], [0, 5, 5, 7]])


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def gradients(model, *inputs):
    model.zero_grad()
    model(*inputs).square().mean().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.fixture
def swapped(always):
    model = Block()
    burnt.swap(model, verify=TOKENS)
    return model


# --- values and state


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_values_and_gradients_are_the_originals(always, mode):
    model = Block()
    before, wanted = model(TOKENS), gradients(model, TOKENS)
    report = burnt.swap(model, mode=mode, verify=TOKENS)
    kinds = ["embedding", "linear", "gelu", "linear", "layer_norm", "linear"]
    assert [row.kind for row in report.rows] == kinds
    assert report.swapped == ["embed", "up", "act", "down", "norm", "head"]
    assert is_swapped(model.up)
    close(model(TOKENS), before)
    close(gradients(model, TOKENS), wanted)
    with torch.no_grad():
        close(model(TOKENS), before)


def test_modules_and_parameters_stay_what_they_are(always):
    model = Block()
    objects = [*model.modules(), *model.parameters()]
    keys, text, classes = list(model.state_dict()), repr(model), [type(m) for m in model.modules()]
    attributes = [dict(module.__dict__) for module in model.modules()]
    burnt.swap(model, verify=TOKENS)
    assert all(a is b for a, b in zip(objects, [*model.modules(), *model.parameters()], strict=True))
    assert all(isinstance(m, cls) for m, cls in zip(model.modules(), classes, strict=True))
    assert (list(model.state_dict()), repr(model)) == (keys, text)
    assert model.head.weight is model.embed.weight
    assert inspect.signature(model.up.forward) == inspect.signature(nn.Linear(1, 1).forward)
    burnt.unswap(model)
    assert [type(m) for m in model.modules()] == classes
    assert [dict(module.__dict__) for module in model.modules()] == attributes


def test_unswapping_restores_to_the_bit():
    model = Block()
    before = model(TOKENS)
    burnt.swap(model, verify=TOKENS)
    burnt.unswap(model)
    assert torch.equal(model(TOKENS), before)
    burnt.swap(model)
    burnt.unswap(model)
    assert torch.equal(model(TOKENS), before)


def test_state_is_loaded_into_a_swapped_model(swapped):
    other = Block()
    swapped.load_state_dict(other.state_dict())
    for mode in (torch.no_grad, torch.enable_grad):
        with mode():
            close(swapped(TOKENS), other(TOKENS))


def test_changed_parameters_are_noticed_where_weights_are_packed(always):
    model = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512))
    x = torch.randn(64, 512)
    burnt.swap(model, mode="infer", verify=x)
    with torch.no_grad():
        model(x)
        model[0].weight.mul_(2)
        model[1].weight.data = torch.randn(512, 512)
        found = model(x)
        burnt.unswap(model)
        torch.testing.assert_close(found, model(x), rtol=1e-4, atol=1e-3)


def test_a_training_goes_as_without(always):
    losses = []
    for swapping in (False, True):
        torch.manual_seed(1)
        model = Block()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        if swapping:
            burnt.swap(model)
        for _ in range(20):
            loss = nn.functional.cross_entropy(model(TOKENS).flatten(0, 1), TOKENS.flatten().roll(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    torch.testing.assert_close(losses[:20], losses[20:], rtol=1e-3, atol=1e-4)
    assert losses[19] < losses[0] / 2


# --- copies, wrappers, compilers


def test_copies_and_pickles_are_swapped(swapped):
    expected = swapped(TOKENS)
    file = io.BytesIO()
    torch.save(swapped, file)
    file.seek(0)
    saved = torch.load(file, weights_only=False)
    for model in (copy.deepcopy(swapped), pickle.loads(pickle.dumps(swapped)), saved):
        assert is_swapped(model.up)
        assert type(model.up) is type(swapped.up)
        assert torch.equal(model(TOKENS), expected)
        assert model.up.weight is not swapped.up.weight
        burnt.unswap(model)
        assert type(model.up) is nn.Linear
    assert is_swapped(swapped.up)


def test_what_waits_is_copied_and_waits(always):
    model = Block()
    report = burnt.swap(model)
    other = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    close(other(TOKENS), model(TOKENS))
    assert report.waiting == []
    assert is_swapped(other.up)
    burnt.unswap(other)


def test_another_process_reads_a_pickle(swapped, tmp_path):
    model = nn.Sequential(nn.Linear(3, 2))
    burnt.swap(model, verify=torch.ones(5, 3))
    (tmp_path / "model.pickle").write_bytes(pickle.dumps(model))
    program = (
        "import pickle, torch\n"
        "model = pickle.load(open('model.pickle', 'rb'))\n"
        "print(type(model[0]).__mro__[1], tuple(model(torch.ones(1, 3)).shape))"
    )
    done = forked.run(program, cwd=tmp_path, timeout=120)
    assert done.stdout == "<class 'torch.nn.modules.linear.Linear'> (1, 2)\n", done.stderr


def test_hooks_run_once_a_call(always):
    model = Block()
    calls = []
    model.up.register_forward_hook(lambda module, args, result: calls.append("forward"))
    model.up.register_full_backward_hook(lambda module, a, b: calls.append("backward"))
    model.up.weight.register_hook(lambda gradient: calls.append("weight"))
    burnt.swap(model)
    model(TOKENS).sum().backward()
    assert sorted(calls) == ["backward"] * 2 + ["forward"] * 2 + ["weight"]


def test_a_wrapper_of_layers_computes_with_the_swapped_one(always):
    class Adapted(nn.Module):
        """As adapters of low rank wrap a layer."""

        def __init__(self, base_layer):
            super().__init__()
            self.base_layer = base_layer
            self.a, self.b = nn.Linear(6, 2, bias=False), nn.Linear(2, 10, bias=False)

        def forward(self, x):
            return self.base_layer(x) + self.b(self.a(x))

    model = Block()
    model.up = Adapted(model.up)
    before = model(TOKENS)
    report = burnt.swap(model, only="up.base_layer", verify=TOKENS)
    assert report.swapped == ["up.base_layer"]
    close(model(TOKENS), before)
    late = Block()
    burnt.swap(late, verify=TOKENS)
    before = late(TOKENS)
    wrapper = Adapted(late.up)
    nn.init.zeros_(wrapper.b.weight)
    late.up = wrapper
    close(late(TOKENS), before)
    burnt.unswap(late)
    assert type(late.up.base_layer) is nn.Linear


def test_a_compiler_sees_the_original(swapped):
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph.code)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(swapped, backend=backend, fullgraph=True)
    expected = Block()
    expected.load_state_dict(swapped.state_dict())
    assert torch.equal(compiled(TOKENS), expected(TOKENS))
    assert "burnt" not in graphs[0]
    assert "torch._C._nn.linear" in graphs[0]


def test_what_waits_is_compiled_and_goes_on_waiting(always):
    model = Block()
    report = burnt.swap(model)
    torch._dynamo.reset()
    torch.compile(model, backend="eager", fullgraph=True)(TOKENS)
    assert len(report.waiting) == 6


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_traces_and_exports_have_the_original(swapped):
    assert "burnt::" not in str(torch.jit.trace(swapped, (TOKENS,), strict=False).inlined_graph)
    assert "burnt" not in str(torch.export.export(swapped, (TOKENS,)).graph)


def test_transforms_go_through(swapped):
    parameters = {name: p.detach() for name, p in swapped.named_parameters()}

    def loss(parameters, tokens):
        return torch.func.functional_call(swapped, parameters, (tokens,)).square().mean()

    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, TOKENS)
    assert each["up.weight"].shape == (2, 10, 6)
    wanted = gradients(swapped, TOKENS)
    close(each["up.weight"].mean(0), wanted["up.weight"])


def test_distributed_data_parallel_wraps_it(always, process_group):
    model = Block()
    wanted = gradients(model, TOKENS)
    report = burnt.swap(model)
    wrapped = nn.parallel.DistributedDataParallel(model)
    found = gradients(wrapped, TOKENS)
    assert len(report.swapped) == 6
    close(found, {f"module.{name}": gradient for name, gradient in wanted.items()})
    burnt.unswap(wrapped)
    assert type(model.up) is nn.Linear


def test_checkpointing_recomputes_with_the_same_kernels(always):
    model = Block()
    wanted = gradients(model, TOKENS)
    burnt.swap(model)
    model.zero_grad()
    result = torch.utils.checkpoint.checkpoint(model, TOKENS, use_reentrant=False)
    result.square().mean().backward()
    for name, p in model.named_parameters():
        close(p.grad, wanted[name])


def test_data_parallel_threads_share_the_first_call(always):
    from concurrent.futures import ThreadPoolExecutor

    model = Block()
    expected = model(TOKENS).detach()
    report = burnt.swap(model, mode="infer")
    with ThreadPoolExecutor(4) as pool:
        for result in pool.map(lambda _: model(TOKENS).detach(), range(8)):
            close(result, expected)
    assert report.waiting == []


# --- what measuring leaves behind, and what it decides


def test_what_is_slower_is_left_alone(monkeypatch):
    monkeypatch.setattr(measure, "_GAIN", 1e9)
    model = Block()
    report = burnt.swap(model, verify=TOKENS)
    assert report.swapped == []
    assert "times as fast" in report.left["up"]
    assert type(model.up) is nn.Linear
    burnt.unswap(model)


def test_what_differs_is_left_alone(always, monkeypatch):
    monkeypatch.setattr(
        "burnt.kernels.linear.in_layer", lambda x, w, b: nn.functional.linear(x, w, b) * 1.001
    )
    model = Block()
    report = burnt.swap(model, verify=TOKENS)
    assert report.left["up"].startswith("off by ")
    assert "up" not in report.swapped


def test_gradients_that_differ_are_seen(always, monkeypatch):
    def wrong(x, approximate):
        return nn.functional.gelu(x.detach()) + 0 * x

    monkeypatch.setattr("burnt.kernels.gelu.in_layer", wrong)
    model = Block()
    assert burnt.swap(model, verify=TOKENS).left["act"].startswith("off by ")
    burnt.unswap(model)
    assert "act" in burnt.swap(model, mode="infer", verify=TOKENS).swapped


def test_what_fails_swapped_is_left_alone(always, monkeypatch):
    def fail(*args):
        raise RuntimeError("no such luck\nat all")

    monkeypatch.setattr("burnt.kernels.layer_norm.in_layer", fail)
    report = burnt.swap(Block(), verify=TOKENS)
    assert report.left == {"norm": "swapped, it fails: RuntimeError: no such luck"}


def test_what_an_op_refuses_the_original_computes(swapped):
    x = torch.randn(3, 6, dtype=torch.bfloat16)
    assert swapped.norm(x).dtype == nn.LayerNorm(6)(x).dtype  # mixed dtypes
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        swapped.up(torch.randn(2, 5))


def test_dropout_waits_for_training(always):
    model = nn.Sequential(nn.Dropout(0.25)).eval()
    report = burnt.swap(model)
    x = torch.ones(64, 64)
    assert torch.equal(model(x), x)
    assert report.waiting == ["0"]
    model.train()
    kept = model(x)
    assert report.swapped == ["0"]
    assert 0.6 < float((kept > 0).float().mean()) < 0.9
    assert torch.equal(model.eval()(x), x)


def test_evaluation_and_training_switch(always):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    twin = copy.deepcopy(model)
    burnt.swap(model)
    for training in (True, False, True, False):
        x = torch.randn(5, 3)
        close(model.train(training)(x), twin.train(training)(x))


# --- what is chosen


@pytest.mark.parametrize(
    ("only", "skip", "expected"),
    [
        (None, "linear", ["embed", "act", "norm"]),
        ("linear", None, ["up", "down", "head"]),
        (["up", "gelu"], None, ["up", "act"]),
        ("*d*", ["head", "embed"], ["down"]),
        (None, ["*"], []),
        ([], None, []),
    ],
)
def test_only_and_skip(only, skip, expected):
    assert burnt.swap(Block(), only=only, skip=skip).waiting == expected


def test_paths_cover_what_is_below():
    model = nn.Sequential(Block(), Block())
    report = burnt.swap(model, only="1", skip="1.up")
    assert report.waiting == [f"1.{name}" for name in ("embed", "act", "down", "norm", "head")]


NEVER_CALLED = "is never called: torch.nn.MultiheadAttention reads its parameters"


def test_what_has_settings_of_its_own_is_left_alone():
    class Mine(nn.Linear):
        def forward(self, input):
            return super().forward(input) * 2

    replaced = nn.Linear(2, 2)
    replaced.forward = lambda x: x
    model = nn.ModuleList(
        [
            Mine(2, 2),
            replaced,
            nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)),
            nn.LazyLinear(3),
            nn.BatchNorm1d(2, momentum=None),
            nn.Embedding(3, 2, max_norm=1.0),
            nn.Embedding(3, 2, sparse=True),
            nn.SiLU(inplace=True),
            nn.LayerNorm((2, 2), elementwise_affine=False),
            nn.AdaptiveAvgPool2d((None, 1)),
            nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular"),
            nn.Conv2d(1, 1, (3, 2), padding="same"),
            nn.Tanh(),
            nn.AdaptiveMaxPool2d(1, return_indices=True),
            nn.LSTM(2, 4, proj_size=2),
            nn.MultiheadAttention(2, 1, add_bias_kv=True),
            nn.MultiheadAttention(2, 1, add_zero_attn=True),
        ]
    )
    report = burnt.swap(model)
    assert report.waiting == []
    assert report.left == {
        "1": "user code replaced its forward",
        "2": "is parametrized",
        "3": "is lazy: call the model once before",
        "4": "momentum=None averages all batches",
        "5": "max_norm= changes the table while it is read",
        "6": "scale_grad_by_freq= or sparse=",
        "7": "works in place",
        "8": "normalises several axes without a weight",
        "9": "output_size= of None",
        "10": "padding_mode='circular'",
        "11": "padding='same' is asymmetric for this kernel size",
        "13": "return_indices=True needs the positions of the maxima",
        "14": "proj_size= projects its states",
        "15": "add_bias_kv= adds a key and a value",
        "15.out_proj": NEVER_CALLED,
        "16": "add_zero_attn= adds a key of zeros",
        "16.out_proj": NEVER_CALLED,
    }
    assert report.others["Mine"] == report.others["Tanh"] == 1


# --- reports


def test_the_report_is_a_table_and_json(always):
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(20)), nn.LayerNorm(4))
    report = burnt.swap(model[:21], skip="20")
    before = str(report)
    assert before.startswith("20 sites, mode='train': 20 waiting\n")
    assert "* (20)  Linear  kernels.linear  -       -      waits for its first call" in before
    model[:21](torch.randn(3, 4))
    lines = str(report).splitlines()
    assert lines[0] == "20 sites, mode='train': 20 swapped"
    assert lines[2:4] == ["swapped:", "                  with            inputs  error  speed"]
    # The first layer's input needs no gradient, so it is measured apart.
    assert lines[4].startswith("  * (20)  Linear  kernels.linear  3x4     ")
    assert "x (" in lines[4]
    assert lines[4].endswith(" ms")
    found = json.loads(report.to_json())
    assert found["mode"] == "train"
    assert [row["path"] for row in found["rows"]] == [str(i) for i in range(20)]
    assert [row["like"] for row in found["rows"]] == [None, None, *["1"] * 18]
    first = found["rows"][0]
    assert (first["state"], first["reference"], first["shape"]) == ("swapped", "float64", "3x4")
    assert 0 <= first["error"] < 1e-6
    assert set(first["milliseconds"]) == {"forward", "whole"}


def test_what_burnt_has_nothing_for_is_named():
    report = burnt.swap(nn.Sequential(nn.Sigmoid(), nn.Sigmoid(), nn.Linear(2, 2), nn.Tanh()))
    assert str(report).endswith("burnt has no kernels for: Sigmoid (2), Tanh (1)")
    assert str(burnt.swap(nn.Sequential())).startswith("0 sites, mode='train': no layers")


# --- errors


def test_swapping_twice():
    model = nn.Sequential(Block(), nn.Linear(3, 3))
    burnt.swap(model)
    with pytest.raises(SwapError, match=r"(?s)the model is already swapped.*burnt.unswap\(model\) first"):
        burnt.swap(model)
    with pytest.raises(SwapError, match=r"(?s)a part of the model is already swapped.*in +0.embed\b"):
        burnt.swap(nn.ModuleList([model[0]]))
    burnt.unswap(model)
    burnt.swap(model)


def test_unswapping_what_is_not_swapped():
    with pytest.raises(SwapError, match=r"(?s)the model is not swapped.*found +Block"):
        burnt.unswap(Block())
    model = Block()
    burnt.swap(model)
    burnt.unswap(model)
    with pytest.raises(SwapError, match="the model is not swapped"):
        burnt.unswap(model)


def test_unswapping_under_another_class(always):
    model = Block()
    burnt.swap(model, verify=TOKENS)
    nn.utils.parametrizations.weight_norm(model.up)
    with pytest.raises(SwapError, match=r"(?s)class was changed.*ParametrizedLinear.*undo that change first"):
        burnt.unswap(model)
    nn.utils.parametrize.remove_parametrizations(model.up, "weight")
    burnt.unswap(model)
    assert type(model.up) is nn.Linear


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"only": "hed"},
            "'hed' in only= is not a path or class in Block, and no kind.*did you mean 'head'?",
        ),
        ({"only": "LayerNom"}, r"'LayerNom' in only= is not a path or class.*'LayerNorm'\?"),
        ({"skip": ["linaer"]}, "'linaer' in skip=.*did you mean 'linear'?"),
        ({"only": 3}, "only= of swap has the wrong type.*found +3"),
        ({"skip": [nn.Linear]}, "skip= of swap has the wrong type"),
        ({"mode": "eval"}, "mode= of swap is unknown.*found +'eval'"),
        ({"verify": torch.ones(2, 2)}, r"fails with the batch of verify=.*found +\(2, 2\); \w+Error: "),
        ({"verify": {"x": TOKENS}}, r"fails with the batch of verify=.*x=\(2, 4\); TypeError: "),
    ],
)
def test_bad_input(settings, message):
    model = Block()
    with pytest.raises(SwapError, match=f"(?s){message}"):
        burnt.swap(model, **settings)
    assert not any(is_swapped(module) for module in model.modules())
    burnt.swap(model)  # it was left unswapped


def test_no_model():
    with pytest.raises(SwapError, match=r"(?s)swap needs a model.*found +type"):
        burnt.swap(Block)
