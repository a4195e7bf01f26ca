"""The optimizers, against torch's own on the same model, and their state."""

import copy
import inspect
import math
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import burnt
from burnt import Gradients, optim
from burnt.errors import ConfigError, OptimError, RecordError
from burnt.inspect import map_params
from burnt.optim import OptimizerRecord
from tests.messages import raises

CASES = [
    (optim.Sgd, torch.optim.SGD, {}),
    (optim.Sgd, torch.optim.SGD, {"momentum": 0.9}),
    (optim.Sgd, torch.optim.SGD, {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
    (optim.Sgd, torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    (optim.Adam, torch.optim.Adam, {}),
    (optim.Adam, torch.optim.Adam, {"betas": (0.8, 0.9), "eps": 1e-4, "weight_decay": 0.1}),
    (optim.Adam, torch.optim.Adam, {"amsgrad": True}),
    (optim.AdamW, torch.optim.AdamW, {}),
    (optim.AdamW, torch.optim.AdamW, {"weight_decay": 0.3, "amsgrad": True}),
    (optim.RmsProp, torch.optim.RMSprop, {"momentum": 0.9, "centered": True, "weight_decay": 0.1}),
    (optim.Adagrad, torch.optim.Adagrad, {"lr_decay": 0.1, "initial_accumulator_value": 0.1}),
    (optim.Adadelta, torch.optim.Adadelta, {"weight_decay": 0.1}),
    (optim.Adamax, torch.optim.Adamax, {"betas": (0.8, 0.9)}),
    (optim.NAdam, torch.optim.NAdam, {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    (optim.RAdam, torch.optim.RAdam, {"betas": (0.9, 0.95)}),
    (optim.Adafactor, torch.optim.Adafactor, {"weight_decay": 0.1}),
]
OWN = [  # torch has none
    (optim.Adan, {"weight_decay": 0.1}),
    (optim.Adan, {"no_prox": True}),
    (optim.Lion, {"weight_decay": 0.1}),
    (optim.Lamb, {"weight_decay": 0.1}),
    (optim.ScheduleFreeAdamW, {"warmup_steps": 3, "weight_decay": 0.1}),
]
EVERY = [(ours, options) for ours, _, options in CASES] + OWN
STATEFUL = [case for case in CASES if case[0] is not optim.Sgd or case[2]]
EVERY_IDS = [f"{ours.__name__}-{'-'.join(options) or 'plain'}" for ours, options in EVERY]
IDS = [f"{case[0].__name__}-{'-'.join(case[2]) or 'plain'}" for case in CASES]


def net(seed=0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


def batch(step: int):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(11, 5, generator=generator), torch.randn(11, 3, generator=generator)


def loss_of(model, step):
    x, y = batch(step)
    return F.mse_loss(model(x), y)


def rate(step: int) -> float:
    return 0.05 / (1 + step)


def advance(optimizer, model, start, end):
    for step in range(start, end):
        optimizer.step(rate(step), model, Gradients.of(loss_of(model, step), model))


def torch_advance(optimizer, model, start, end):
    for step in range(start, end):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        optimizer.step()


def same(one, other) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize(("ours", "theirs", "options"), CASES, ids=IDS)
@pytest.mark.parametrize("clip_norm", [None, 0.3])
def test_as_torch(ours, theirs, options, clip_norm):
    """By its fused and its plain steps; where gradients are clipped, some parameters have none at first."""
    model, start = net(), net()
    kinds = [{"foreach": False}]
    if clip_norm is None and "fused" in inspect.signature(theirs).parameters:
        kinds.append({"fused": True})  # for SGD it takes no momentum that only some parameters have
    twins = [net() for _ in kinds]
    references = [
        theirs(twin.parameters(), lr=0.1, **options, **kind) for twin, kind in zip(twins, kinds, strict=True)
    ]
    optimizer = ours(**options)
    for step in range(6):
        grads = Gradients.of(loss_of(model, step), model)
        if clip_norm and step < 2:
            grads = Gradients({path: grads[path] for path in grads if path.startswith("2.")})
        result = optimizer.step(rate(step), model, grads, clip_norm=clip_norm)
        assert not result.skipped
        for twin, reference in zip(twins, references, strict=True):
            gradients = Gradients.of(loss_of(twin, step), twin)
            for path, parameter in twin.named_parameters():
                parameter.grad = gradients[path] if path in grads else None
            if clip_norm:
                norm = torch.nn.utils.clip_grad_norm_(twin.parameters(), clip_norm)
                torch.testing.assert_close(result.norm, norm)
            reference.param_groups[0]["lr"] = rate(step)
            reference.step()
    for mine, *others, before in zip(*(m.parameters() for m in (model, *twins, start)), strict=True):
        for other in others:
            torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)
        assert not torch.equal(mine, before)


def test_defaults_are_those_of_torch():
    twins = {ours: theirs for ours, theirs, _ in CASES}
    for ours, theirs in (twins | {optim.Lbfgs: torch.optim.LBFGS}).items():
        defaults = theirs(net().parameters(), lr=0.1).defaults
        for name, value in (ours().into_record().options | {"max_eval": 25}).items():
            assert name == "max_eval" or defaults[name] == value, (ours, name)


@pytest.mark.sample(16)
@pytest.mark.parametrize(("ours", "theirs", "options"), CASES, ids=IDS)
@pytest.mark.parametrize("dtype", [torch.complex64, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_complex_parameters_and_half_precision_work(ours, theirs, options, dtype):
    if ours is optim.Adafactor and dtype.is_complex:
        with pytest.raises(OptimError, match="does not support complex parameters"):
            ours().step(
                0.1, {"w": nn.Parameter(torch.ones(2, dtype=dtype))}, {"w": torch.ones(2, dtype=dtype)}
            )
        return
    mine, other = (nn.Parameter(torch.tensor([1.0, -2.0, 3.0], dtype=dtype)) for _ in range(2))
    optimizer, reference = ours(**options), theirs([other], lr=0.1, **options)
    for step in range(3):
        other.grad = torch.tensor([0.5, 1.0 + step, -0.25], dtype=dtype)
        reference.step()
        optimizer.step(0.1, {"w": mine}, {"w": other.grad})
    # torch rounds every intermediate to 16 bits, and NAdam's scalars to float32.
    tolerance = max(8 * torch.finfo(dtype).eps, 1e-8)
    torch.testing.assert_close(mine, other, rtol=tolerance, atol=tolerance)


# what a step leaves behind and what it refuses


def test_gradients_are_not_left_on_parameters_and_not_changed():
    model = net()
    grads = Gradients.of(loss_of(model, 0), model)
    before = grads.map(torch.clone)
    optim.Sgd(momentum=0.9, weight_decay=0.1).step(0.1, model, grads)
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(grads[path], before[path]) for path in grads)


def test_frozen_parameters_stay_and_may_thaw_later():
    model = net()
    burnt.freeze(model, "0.*")
    frozen = model[0].weight.detach().clone()
    optimizer = optim.AdamW()
    advance(optimizer, model, 0, 2)
    assert torch.equal(model[0].weight, frozen)
    assert not any(name.startswith("0.") for name in optimizer.into_record().tensors)
    burnt.unfreeze(model, "0.*")
    advance(optimizer, model, 2, 3)
    assert not torch.equal(model[0].weight, frozen)


@pytest.mark.parametrize(("ours", "options"), EVERY, ids=EVERY_IDS)
def test_a_step_without_gradients_changes_nothing(ours, options):
    model, before = net(), net()
    result = ours(**options).step(0.1, model, {}, clip_norm=1.0, ema=copy.deepcopy(model))
    assert same(model, before)
    assert result.norm == 0
    assert not result.skipped


def test_a_gradient_of_no_parameter_is_refused_and_nothing_has_moved():
    model, before = net(), net()
    grads = dict(Gradients.of(loss_of(model, 0), model))
    grads["2.wieght"] = grads.pop("2.weight")
    with pytest.raises(OptimError) as caught:
        optim.Sgd().step(0.1, model, grads)
    assert str(caught.value) == (
        "a gradient belongs to no parameter of the model\n"
        "  in        2.wieght\n"
        "  hint      did you mean '2.weight'?"
    )
    assert same(model, before)
    assert all(p.grad is None for p in model.parameters())
    with pytest.raises(OptimError, match="computed with another model"):
        optim.Sgd().step(0.1, model, {"encoder.scale": torch.ones(1)})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: optim.Adam(betas=(1.0, 0.9)), ["Adam", "beta", "1.0"]),
        (lambda: optim.Lion(betas="ab"), ["Lion", "betas", "2 numbers", "'ab'"]),
        (lambda: optim.Adafactor(eps=1e-3), ["Adafactor", "eps", "2 numbers, such as (None, 0.001)"]),
        (lambda: optim.Muon(ns_coefficients=(1.0, 2.0)), ["Muon", "ns_coefficients", "3 numbers"]),
        (lambda: optim.Lamb(eps="small"), ["Lamb", "eps", "a number of at least 0", "small"]),
        (lambda: optim.Adam(eps="small"), ["Adam", "str"]),
        (lambda: optim.AdamW(eps=-1.0), ["AdamW", "eps", "-1.0"]),
        (lambda: optim.AdamW(weight_decay=-0.1), ["AdamW", "weight_decay", "-0.1"]),
        (lambda: optim.Sgd(momentum=-0.5), ["Sgd", "momentum", "-0.5"]),
        (lambda: optim.Sgd(nesterov=True), ["Sgd", "Nesterov", "momentum"]),
        (lambda: optim.Adan(betas=(0.9, 0.99)), ["Adan", "betas", "3 numbers", "(0.9, 0.99)"]),
        (lambda: optim.AdamW(betas=(0.9, 0.99, 0.9)), ["AdamW", "betas", "2 numbers", "(0.9, 0.99, 0.9)"]),
        (lambda: optim.Lion(betas=(0.9, 1.0)), ["Lion", "betas", "below 1", "(0.9, 1.0)"]),
        (lambda: optim.Adan(weight_decay=-0.1), ["Adan", "weight_decay", "at least 0", "-0.1"]),
        (lambda: optim.Lamb(eps=math.nan), ["Lamb", "eps", "nan"]),
        (lambda: optim.ScheduleFreeAdamW(warmup_steps=-1), ["ScheduleFreeAdamW", "warmup_steps", "-1"]),
        (
            lambda: optim.Lbfgs(line_search_fn="wolfe"),
            ["Lbfgs", "line_search_fn", "'strong_wolfe'", "'wolfe'"],
        ),
        (lambda: optim.Adadelta(rho=2.0), ["Adadelta", "rho", "2.0"]),
        (lambda: optim.Adafactor(d=0.5), ["Adafactor", "0.5"]),
    ],
)
def test_options_that_cannot_be_are_refused_when_the_optimizer_is_made(make, words):
    with raises(OptimError, "cannot be built", *words):
        make()


@pytest.mark.parametrize(
    "kind", [kind for kind in dict(EVERY) if "betas" in inspect.signature(kind).parameters]
)
def test_betas_are_as_many_as_the_default(kind):
    betas = inspect.signature(kind).parameters["betas"].default
    assert kind(betas=list(betas))._options["betas"] == betas
    for wrong in (0.9, betas[:-1], (*betas, 0.9), (*betas[:-1], None)):
        with pytest.raises(OptimError) as caught:
            kind(betas=wrong)
        assert caught.value.where == "betas"
        assert caught.value.expected == f"{len(betas)} numbers, such as {betas!r}"


@pytest.mark.parametrize("make", [optim.Sgd, optim.AdamW])
@pytest.mark.parametrize("rate", [-0.1, float("nan")])
def test_a_rate_that_cannot_be_is_refused_and_nothing_has_moved(make, rate):
    model = torch.nn.Linear(2, 2)
    before = model.weight.clone()
    grads = {name: torch.ones_like(p) for name, p in model.named_parameters()}
    with pytest.raises(OptimError, match="cannot step with this learning rate"):
        make().step(rate, model, grads)
    assert torch.equal(model.weight, before)


# what is done in the same passes


@pytest.mark.parametrize(("ours", "options"), EVERY, ids=EVERY_IDS)
def test_a_scaled_loss(ours, options):
    """Twice the same, but for one step whose gradients overflow, which changes nothing."""
    model, twin = net(), net()
    scaled, plain = ours(**options), ours(**options)
    for step in range(4):
        grads = Gradients.of(loss_of(model, step) * 1024, model)
        if step == 2:
            before = [p.detach().clone() for p in model.parameters()]
            state = {name: t.clone() for name, t in scaled.into_record().tensors.items()}
            broken = grads.map(lambda g: torch.where(g == g.amax(), torch.inf, g))
            assert scaled.step(0.1, model, broken, clip_norm=1.0, grad_scale=1024.0).skipped
            assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
            assert all(torch.equal(t, state[name]) for name, t in scaled.into_record().tensors.items())
        scaled.step(0.1, model, grads, clip_norm=1.0, grad_scale=torch.tensor(1024.0))
        plain.step(0.1, twin, Gradients.of(loss_of(twin, step), twin), clip_norm=1.0)
    for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-7)


def test_averages_move_towards_all_parameters_also_those_without_a_gradient():
    model = net()
    average = copy.deepcopy(model)
    by_hand = {path: p.detach().clone() for path, p in model.named_parameters()}
    with torch.no_grad():
        model[0].weight.add_(1.0)
    burnt.freeze(model, "0.*")
    optimizer = optim.AdamW()
    for step in range(3):
        grads = Gradients.of(loss_of(model, step), model)
        optimizer.step(0.1, model, grads, ema=average, ema_decay=0.75)
        for path, parameter in model.named_parameters():
            by_hand[path].lerp_(parameter.detach(), 0.25)
    for path, parameter in average.named_parameters():
        torch.testing.assert_close(parameter.detach(), by_hand[path])
    with pytest.raises(OptimError) as caught:
        optimizer.step(0.1, model, {}, ema=dict(list(average.named_parameters())[1:]))
    assert "a parameter has no average" in str(caught.value)
    assert "0.weight" in str(caught.value)


@pytest.mark.parametrize(("ours", "options"), EVERY, ids=EVERY_IDS)
def test_averages_are_updated_after_the_step(ours, options):
    model, optimizer = net(), ours(**options)
    average = copy.deepcopy(model)
    for step in range(2):
        before = copy.deepcopy(average)
        grads = Gradients.of(loss_of(model, step), model)
        optimizer.step(0.1, model, grads, clip_norm=1.0, ema=average, ema_decay=0.75)
        for new, old, p in zip(average.parameters(), before.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(new, old.lerp(p, 0.25))


@pytest.mark.parametrize("kind", ["sparse", "complex"])
def test_what_torch_steps_is_clipped_scaled_and_averaged_too(kind):
    if kind == "sparse":
        parameter = nn.Parameter(torch.ones(4, 2))
        gradient = torch.tensor([[3.0, 0.0], [0, 0], [0, 4], [0, 0]]).to_sparse(1)
        right = torch.tensor([[0.4, 1.0], [1, 1], [1, 0.2], [1, 1]])
    else:
        parameter = nn.Parameter(torch.ones(2, dtype=torch.complex64))
        gradient, right = torch.tensor([3.0, 4.0j]), torch.tensor([0.4 + 0j, 1 - 0.8j])
    average = {"w": torch.zeros_like(parameter)}
    optimizer = optim.Sgd()
    result = optimizer.step(
        1.0, {"w": parameter}, {"w": gradient * 8}, clip_norm=1.0, grad_scale=8.0, ema=average, ema_decay=0.5
    )
    torch.testing.assert_close(result.norm, torch.tensor(5.0))
    assert result.by == "torch.optim: sparse or complex"
    torch.testing.assert_close(parameter.detach(), right)
    torch.testing.assert_close(average["w"], right / 2)
    result = optimizer.step(
        1.0, {"w": parameter}, {"w": gradient * torch.inf}, grad_scale=8.0, ema=average, ema_decay=0.5
    )
    assert result.skipped
    torch.testing.assert_close(parameter.detach(), right)
    torch.testing.assert_close(average["w"], right / 2)


# the state


@pytest.mark.parametrize(("ours", "options"), EVERY, ids=EVERY_IDS)
def test_going_on_from_a_file_is_never_having_stopped(tmp_path, ours, options):
    whole, model = net(), net()
    advance(ours(**options), whole, 0, 10)
    first = ours(**options)
    advance(first, model, 0, 5)
    first.into_record().save(tmp_path / "optimizer.safetensors")
    model.load_state_dict(copy.deepcopy(model.state_dict()))
    second = ours(**options)
    second.load_record(OptimizerRecord.load(tmp_path / "optimizer.safetensors"))
    advance(second, model, 5, 10)
    assert same(model, whole)


@pytest.mark.parametrize(("ours", "theirs", "options"), STATEFUL)
def test_the_state_is_that_of_torch_which_continues_here(ours, theirs, options):
    model, twin = net(), net()
    reference = theirs(twin.parameters(), lr=0.1, **options)
    torch_advance(reference, twin, 0, 3)
    model.load_state_dict(twin.state_dict())
    tensors = {
        f"{path}/{name}": torch.as_tensor(value).clone()
        for path, parameter in twin.named_parameters()
        for name, value in reference.state[parameter].items()
        if value is not None
    }
    optimizer = ours(**options)
    optimizer.load_record(OptimizerRecord(ours.__name__, options, tensors))
    advance(optimizer, model, 3, 5)
    torch_advance(reference, twin, 3, 5)
    assert optimizer.into_record().tensors.keys() == tensors.keys()
    for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("ours", "theirs", "options"), STATEFUL)
def test_state_follows_paths_to_a_fork_and_a_loaded_model(tmp_path, ours, theirs, options):
    class Model(burnt.Module):
        inner: nn.Sequential

        def forward(self, x):
            return self.inner(x)

    whole, model = Model(net()), Model(net())
    advance(ours(**options), whole, 0, 9)
    optimizer = ours(**options)
    advance(optimizer, model, 0, 3)
    fork = model.fork()
    advance(optimizer, fork, 3, 6)
    other = Model(net(seed=1))
    other.load_record(fork.into_record())
    advance(optimizer, other, 6, 9)
    assert same(other, whole)


@pytest.mark.parametrize(("ours", "theirs", "options"), STATEFUL)
def test_state_follows_a_module_whose_parameters_change_between_steps(ours, theirs, options):
    """Moved in place by `.double()` and replaced by `map_params`, against an optimizer of torch made anew."""
    model, twin = net(), net()
    optimizer, reference = ours(**options), theirs(twin.parameters(), lr=0.0, **options)
    advance(optimizer, model, 0, 3)
    torch_advance(reference, twin, 0, 3)
    model.double()
    map_params(model, lambda path, parameter: parameter.clone())
    twin.double()
    state = reference.state_dict()
    reference = theirs(twin.parameters(), lr=0.0, **options)
    reference.load_state_dict(state)
    for step in range(3, 6):
        x, y = (value.double() for value in batch(step))
        optimizer.step(rate(step), model, Gradients.of(F.mse_loss(model(x), y), model))
        reference.zero_grad()
        F.mse_loss(twin(x), y).backward()
        for group in reference.param_groups:
            group["lr"] = rate(step)
        reference.step()
    for ours_, theirs_ in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours_, theirs_, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_takes_the_sparse_gradients_of_an_embedding(momentum):
    torch.manual_seed(0)
    model = burnt.nn.Embedding(7, 3, sparse=True)
    twin = nn.Embedding(7, 3, _weight=model.weight.detach().clone())
    optimizer, reference = optim.Sgd(momentum=momentum), torch.optim.SGD(twin.parameters(), 0.1, momentum)
    for ids in ([1, 2, 2], [0, 2, 5], [2, 2, 2]):
        grads = Gradients.of(model(torch.tensor(ids)).square().sum(), model)
        assert grads["weight"].is_sparse
        twin.zero_grad()
        twin(torch.tensor(ids)).square().sum().backward()
        torch.testing.assert_close(grads.norm(), twin.weight.grad.norm())
        torch.testing.assert_close(grads.clip_norm(0.01)["weight"].to_dense().norm(), torch.tensor(0.01))
        assert grads.finite()
        assert not grads.scale(float("nan")).finite()
        optimizer.step(0.1, model, grads)
        reference.step()
    torch.testing.assert_close(model.weight, twin.weight)


def test_a_waiting_record_is_not_lost_and_loading_replaces_what_was():
    model, other = net(), net()
    first = optim.AdamW()
    advance(first, model, 0, 3)
    second = optim.AdamW()
    advance(second, other, 0, 1)
    second.load_record(first.into_record())
    waiting = second.into_record()
    assert waiting.tensors.keys() == first.into_record().tensors.keys()
    assert float(waiting.tensors["0.weight/step"]) == 3


def test_the_state_of_another_optimizer_is_refused():
    optimizer = optim.Adam()
    advance(optimizer, net(), 0, 1)
    with pytest.raises(OptimError) as caught:
        optim.Sgd(momentum=0.9).load_record(optimizer.into_record())
    assert str(caught.value) == (
        "the state of one optimizer does not fit another\n"
        "  expected  Sgd\n"
        "  found     Adam\n"
        "  hint      resume with optim.Adam, or start afresh"
    )


def test_a_state_without_what_an_option_needs_is_refused():
    optimizer, model = optim.AdamW(), net()
    advance(optimizer, model, 0, 1)
    other = optim.AdamW(amsgrad=True)
    with pytest.raises(OptimError) as caught:
        other.load_record(optimizer.into_record())
    assert str(caught.value) == (
        "the saved state lacks what this optimizer's options need\n"
        "  expected  exp_avg, exp_avg_sq, max_exp_avg_sq, step\n"
        "  found     exp_avg, exp_avg_sq, step\n"
        "  hint      resume with AdamW(amsgrad=False), or start afresh"
    )


@pytest.mark.parametrize(
    ("full", "plain"),
    [
        (optim.RmsProp(momentum=0.9, centered=True), optim.RmsProp()),
        (optim.AdamW(amsgrad=True), optim.AdamW()),
    ],
)
def test_state_of_options_that_are_off_is_dropped(full, plain):
    params = {name: nn.Parameter(torch.ones(3)) for name in ("a", "b")}
    full.step(0.1, params, {"a": torch.ones(3)})
    plain.load_record(full.into_record())
    plain.step(0.1, params, {"a": torch.ones(3), "b": torch.ones(3)})
    names = [{key[2:] for key in plain.into_record().tensors if key[0] == path} for path in "ab"]
    assert names[0] == names[1] < {key[2:] for key in full.into_record().tensors}


def test_a_state_that_does_not_fit_the_model_is_refused():
    optimizer, model = optim.AdamW(), net()
    advance(optimizer, model, 0, 1)
    for changed, where, words in (
        (nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 4)), "2.weight/", ["(4, 7)", "(3, 7)"]),
        (nn.Sequential(nn.Linear(5, 7), nn.Tanh()), "2.weight", ["has changed since"]),
    ):
        other = optim.AdamW()
        other.load_record(optimizer.into_record())
        with pytest.raises(OptimError) as caught:
            other.step(0.1, changed, {})
        for word in (where, *words):
            assert word in str(caught.value)


def test_files_that_hold_no_optimizer(tmp_path):
    burnt.nn.Linear(2, 3).save(tmp_path / "model.safetensors")
    with pytest.raises(OptimError, match="holds no optimizer"):
        OptimizerRecord.load(tmp_path / "model.safetensors")
    optimizer, model = optim.AdamW(), net()
    advance(optimizer, model, 0, 1)
    path = tmp_path / "optimizer.safetensors"
    optimizer.into_record().save(path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(RecordError, match="truncated"):
        OptimizerRecord.load(path)


# configurations


def test_every_optimizer_has_a_config_that_builds_it_and_goes_through_json():
    class Experiment(burnt.Config):
        optimizer: optim.Sgd.Config | optim.Adam.Config | optim.AdamW.Config = optim.AdamW.Config()

    for config, expected in (
        (optim.Sgd.Config(momentum=0.9, nesterov=True), optim.Sgd(momentum=0.9, nesterov=True)),
        (optim.Adam.Config(betas=(0.8, 0.9)), optim.Adam(betas=(0.8, 0.9))),
        (optim.AdamW.Config(weight_decay=0.2), optim.AdamW(weight_decay=0.2)),
    ):
        experiment = Experiment.from_json(Experiment(optimizer=config).to_json())
        built = experiment.optimizer.init()
        assert type(built) is type(expected)
        assert repr(built) == repr(expected)
    with pytest.raises(ConfigError, match="momentun"):
        optim.Sgd.Config.from_json('{"momentun": 0.9}')
    for ours, options in [*EVERY, (optim.Lbfgs, {"line_search_fn": "strong_wolfe"})]:
        config = ours.Config.from_json(ours.Config(**options).to_json())
        assert repr(config.init()) == repr(ours(**options))


def test_printing_a_record_shows_no_values() -> None:
    optimizer = optim.Sgd(momentum=0.9)
    optimizer.step(0.1, {"w": torch.zeros(2, 3)}, {"w": torch.ones(2, 3)})
    assert repr(optimizer.into_record()) == (
        "OptimizerRecord(Sgd(momentum=0.9, dampening=0.0, weight_decay=0.0, nesterov=False), "
        "1 tensor, 6 values)"
    )


def test_optimizers_can_be_copied_and_pickled():
    optimizer = optim.AdamW((0.8, 0.99), weight_decay=0.1)
    assert repr(copy.deepcopy(optimizer)) == repr(pickle.loads(pickle.dumps(optimizer))) == repr(optimizer)
    params, grads = {"w": torch.nn.Parameter(torch.ones(3))}, {"w": torch.ones(3)}
    for _ in range(3):
        optimizer.step(0.1, params, grads)
    copies = copy.deepcopy((optimizer, params)), pickle.loads(pickle.dumps((optimizer, params)))
    for copied, its_params in ((optimizer, params), *copies):
        copied.step(0.1, its_params, grads)
        assert copied.into_record().tensors["w/step"] == 4
        torch.testing.assert_close(its_params["w"], params["w"], rtol=0, atol=0)


def test_lbfgs_resumed_at_any_step_rounds_as_if_it_had_not_been(tmp_path):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(48, 6, generator=generator)
    y = (x.sum(1) > 0).long()

    def weights(resume_at=None):
        torch.manual_seed(0)
        model, found = torch.nn.Linear(6, 2), []
        optimizer = optim.Lbfgs(max_iter=4, history_size=5, line_search_fn="strong_wolfe")
        for step in range(14):
            if step == resume_at:
                optimizer.into_record().save(tmp_path / "state.safetensors")
                optimizer = optim.Lbfgs(max_iter=4, history_size=5, line_search_fn="strong_wolfe")
                optimizer.load_record(OptimizerRecord.load(tmp_path / "state.safetensors"))
            part = slice(step * 12 % 48, step * 12 % 48 + 12)

            def closure(part=part):
                loss = torch.nn.functional.cross_entropy(model(x[part]), y[part])
                return loss, Gradients.of(loss, model)

            optimizer.step_with(0.5, model, closure)
            found.append(model.weight.detach().clone())
            if step == resume_at:
                (state,) = optimizer._inner.state.values()
                rows = [row for name in ("old_dirs", "old_stps", "ro") for row in state[name]]
                assert all(row.data_ptr() % 64 == 0 for row in (*rows, state["d"], state["prev_flat_grad"]))
        return found

    whole = weights()
    for step in (1, 2, 5, 9):
        assert all(map(torch.equal, whole, weights(step))), step


def test_what_a_subclass_of_an_optimizer_annotates_is_no_option_of_it():
    class Noting(optim.Sgd):
        noted: list[float]
        every: int = 2

    optimizer = Noting(momentum=0.5)
    assert (optimizer.every, optimizer.into_record().options["momentum"]) == (2, 0.5)
    assert "every" not in repr(optimizer)


@pytest.mark.parametrize(
    ("ours", "options"),
    [(optim.Sgd, {"momentum": 0.9}), (optim.AdamW, {}), (optim.Lamb, {}), (optim.ScheduleFreeAdamW, {})],
)
def test_the_state_of_a_channels_last_parameter_is_channels_last_again(ours, options):
    def trained(resume):
        torch.manual_seed(0)
        model = torch.nn.Conv2d(5, 7, 3).to(memory_format=torch.channels_last)
        optimizer = ours(**options)
        for step in range(4):
            if step == 2 and resume:
                record = optimizer.into_record()
                saved = {name: tensor.contiguous() for name, tensor in record.tensors.items()}
                optimizer = ours(**options)
                optimizer.load_record(OptimizerRecord(record.optimizer, record.options, saved))
            generator = torch.Generator().manual_seed(step)
            loss = model(torch.randn(2, 5, 8, 8, generator=generator)).square().sum()
            optimizer.step(1e-3, model, Gradients.of(loss, model))
        return model, optimizer

    (whole, expected), (resumed, found) = trained(resume=False), trained(resume=True)
    assert torch.equal(whole.weight, resumed.weight)
    states = found.into_record().tensors
    for name, tensor in expected.into_record().tensors.items():
        assert states[name].stride() == tensor.stride(), name
        assert torch.equal(states[name], tensor), name
