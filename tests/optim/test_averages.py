"""Averages of weights, against torch's AveragedModel."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import burnt
from burnt import Gradients, optim
from burnt.errors import OptimError
from burnt.kernels import StepResult
from burnt.optim import OptimizerRecord
from tests.messages import raises


def net(dtype=torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).to(dtype)


def grads_of(model, step) -> Gradients:
    generator = torch.Generator().manual_seed(step)
    x, y = torch.randn(11, 5, generator=generator), torch.randn(11, 3, generator=generator)
    dtype = model[0].weight.dtype
    return Gradients.of(F.mse_loss(model(x.to(dtype)), y.to(dtype)), model)


def advance(optimizer, model, start, end):
    for step in range(start, end):
        optimizer.step(0.1 / (1 + step), model, grads_of(model, step))


def parameters(model) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def assert_equal(ones, others):
    for one, other in zip(ones, others, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_ema_is_that_of_torch():
    model, twin = net(), net()
    optimizer, plain = optim.Ema(optim.AdamW(), decay=0.8, warmup=False), optim.AdamW()
    reference = AveragedModel(twin, multi_avg_fn=get_ema_multi_avg_fn(0.8))
    for step in range(6):
        advance(optimizer, model, step, step + 1)
        advance(plain, twin, step, step + 1)
        reference.update_parameters(twin)
    assert_equal(parameters(model), parameters(twin))
    optimizer.eval(model)
    assert_equal(parameters(model), parameters(reference.module))
    optimizer.train(model)
    assert_equal(parameters(model), parameters(twin))


def test_the_decay_of_ema_warms_up():
    model = net()
    optimizer, expected = optim.Ema(optim.Sgd(), decay=0.3), []
    for step, decay in enumerate(
        [0.0, 3 / 12, 0.3, 0.3]
    ):  # at most 3/12 in the second step, 4/13 in the third
        advance(optimizer, model, step, step + 1)
        old = expected or parameters(model)
        expected = [decay * a + (1 - decay) * p for a, p in zip(old, parameters(model), strict=True)]
    optimizer.eval(model)
    for average, right in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(average.detach(), right)


def test_swa_is_that_of_torch():
    model, twin = net(), net()
    optimizer, plain = optim.Swa(optim.Sgd(momentum=0.9), start=3, every=2), optim.Sgd(momentum=0.9)
    reference = AveragedModel(twin)
    for step in range(10):
        advance(optimizer, model, step, step + 1)
        advance(plain, twin, step, step + 1)
        if step + 1 in (5, 7, 9):
            reference.update_parameters(twin)
        optimizer.eval(model)
        right = parameters(twin) if step < 4 else parameters(reference.module)
        for value, other in zip(parameters(model), right, strict=True):
            torch.testing.assert_close(value, other, rtol=1e-6, atol=1e-7)
        optimizer.train(model)
    assert_equal(parameters(model), parameters(twin))


def make_groups() -> optim.Groups:
    return optim.Groups([("*.bias", optim.Sgd(0.9), 0.01), ("*", optim.AdamW())])


MAKERS = {
    "ema": lambda: optim.Ema(optim.AdamW(), decay=0.9),
    "swa": lambda: optim.Swa(optim.Sgd(momentum=0.9), start=2),
    "swa of later": lambda: optim.Swa(optim.Adam(), start=90),
    "ema of swa": lambda: optim.Ema(optim.Swa(optim.Sgd(0.9), start=1)),
    "ema of groups": lambda: optim.Ema(make_groups()),
    "groups of averages": lambda: optim.Groups(
        [("0", optim.Ema(optim.Adam())), ("2.bias", optim.Swa(optim.Sgd(), start=1)), ("*", optim.Sgd())]
    ),
}


@pytest.mark.parametrize("when", ["train", "eval"])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_going_on_from_a_file_is_never_having_stopped(tmp_path, make, when):
    whole, model = net(), net()
    optimizer = make()
    advance(optimizer, whole, 0, 8)
    first, second = make(), make()
    advance(first, model, 0, 5)
    if when == "eval":
        first.eval(model)
    first.into_record().save(tmp_path / "optimizer.safetensors")
    model = copy.deepcopy(model)
    second.load_record(OptimizerRecord.load(tmp_path / "optimizer.safetensors"))
    kept = second.into_record().tensors
    assert kept.keys() == first.into_record().tensors.keys()
    second.train(model)
    second.train(model)
    advance(second, model, 5, 8)
    assert_equal(parameters(model), parameters(whole))
    for one, other in ((second, model), (optimizer, whole)):
        one.eval(other)
        one.eval(other)  # which changes nothing more
    assert_equal(parameters(model), parameters(whole))
    theirs = optimizer.into_record().tensors
    for name, tensor in second.into_record().tensors.items():
        assert torch.equal(tensor, theirs[name]), name


def test_ema_of_groups_has_their_rates_and_passes_the_factor_on():
    optimizer = optim.Ema(make_groups())
    optimizer.rate_factor = 2.0
    advance(optimizer, net(), 0, 1)
    assert optimizer.rates == {"*.bias": 0.02}
    assert {name: schedule(0) for name, schedule in optimizer.schedules.items()} == {"*.bias": 0.01}


def test_a_step_may_update_other_averages_too():
    model = net()
    average, by_hand = copy.deepcopy(model), parameters(model)
    optimizer = optim.Ema(optim.AdamW())
    for step in range(3):
        optimizer.step(0.1, model, grads_of(model, step), ema=average, ema_decay=0.75)
        by_hand = [a.lerp(p, 0.25) for a, p in zip(by_hand, parameters(model), strict=True)]
    for value, right in zip(parameters(average), by_hand, strict=True):
        torch.testing.assert_close(value, right)


def test_averages_of_16_bit_parameters_are_float32_and_the_parameters_return_as_they_were():
    model = net(torch.bfloat16)
    optimizer = optim.Ema(optim.Sgd(), decay=0.9999, warmup=False)
    averages = None
    for step in range(4):
        advance(optimizer, model, step, step + 1)
        values = [p.float() for p in parameters(model)]
        averages = averages or values
        averages = [a.lerp(v, 1 - 0.9999) for a, v in zip(averages, values, strict=True)]
    before = parameters(model)
    optimizer.eval(model)
    assert_equal(parameters(model), [a.bfloat16() for a in averages])
    saved = optimizer.into_record().tensors
    assert_equal([saved[f"/{path}/average"] for path, _ in model.named_parameters()], averages)
    optimizer.train(model)
    assert_equal(parameters(model), before)


def test_frozen_parameters_have_no_averages_until_they_thaw():
    model = net()
    burnt.freeze(model, "0")
    optimizer = optim.Ema(optim.Sgd())
    advance(optimizer, model, 0, 2)
    averages = {name for name in optimizer.into_record().tensors if name.endswith("average")}
    assert averages == {"/2.weight/average", "/2.bias/average"}
    frozen = model[0].weight.detach().clone()
    optimizer.eval(model)
    assert torch.equal(model[0].weight, frozen)
    optimizer.train(model)
    burnt.unfreeze(model, "0")
    advance(optimizer, model, 2, 4)
    optimizer.eval(model)
    assert not torch.equal(model[0].weight, frozen)


def test_a_skipped_step_is_no_step_of_the_average():
    model = net()
    optimizer = optim.Ema(optim.Sgd(), decay=0.5)
    advance(optimizer, model, 0, 2)
    before = {name: t.clone() for name, t in optimizer.into_record().tensors.items()}
    broken = grads_of(model, 0).scale(torch.inf)
    assert optimizer.step(0.1, model, broken, grad_scale=8.0).skipped
    after = optimizer.into_record().tensors
    assert all(torch.equal(after[name], t) for name, t in before.items())


def test_averages_follow_a_model_to_another_dtype_and_layout():
    model, whole = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3)
    whole.load_state_dict(model.state_dict())
    grads = {"weight": torch.ones(4, 3, 3, 3), "bias": torch.ones(4)}
    optimizer, other = optim.Ema(optim.Sgd()), optim.Ema(optim.Sgd())
    optimizer.step(0.1, model, grads)
    other.step(0.1, whole, grads)
    optimizer.load_record(optimizer.into_record())
    model = model.double().to(memory_format=torch.channels_last)
    optimizer.step(0.1, model, {path: g.double() for path, g in grads.items()})
    other.step(0.1, whole, grads)
    average = optimizer.into_record().tensors["/weight/average"]
    assert average.dtype == torch.float64
    assert average.stride() == model.weight.stride()
    for one, each in ((optimizer, model), (other, whole)):
        one.eval(each)
    torch.testing.assert_close(model.weight.float(), whole.weight)


class Halving(optim.Sgd):
    """Halves the rate until the loss is below that of the start: evaluates it several times in a step."""

    needs_closure = True

    def step_with(self, lr, model, closure, *, clip_norm=None) -> StepResult:
        loss, grads = closure()
        before = {path: p.detach().clone() for path, p in model.items()}
        while True:
            result = self.step(lr, model, grads, clip_norm=clip_norm)
            if closure()[0] < loss or lr < 1e-6:
                return result
            for path, p in model.items():
                p.data.copy_(before[path])
            lr /= 2


def test_an_optimizer_that_evaluates_the_loss_is_averaged():
    model = dict(net().named_parameters())
    reference, losses = {path: p.detach().clone() for path, p in model.items()}, []

    def closure():
        loss = sum(p.square().sum() for p in model.values())
        losses.append(loss.item())
        return loss.detach(), Gradients.of(loss, model)

    optimizer = optim.Ema(Halving(), decay=0.5, warmup=False)
    assert optimizer.needs_closure
    optimizer.step_with(0.75, model, closure)
    optimizer.step_with(0.75, model, closure)
    optimizer.eval(model)
    for path, p in model.items():
        torch.testing.assert_close(p.detach(), reference[path] * (0.5 * -0.5 + 0.5 * 0.25))
    assert len(losses) == 4


# what is refused


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: optim.Ema(torch.optim.Adam), ["Ema needs an optimizer", "Ema(optim.AdamW(), ...)"]),
        (lambda: optim.Ema(optim.Sgd(), decay=1.0), ["Ema", "decay", "below 1", "1.0"]),
        (lambda: optim.Swa(optim.Sgd(), start=0.75), ["Swa", "start", "start=int(0.75 * steps)"]),
        (lambda: optim.Swa(optim.Sgd(), start="x"), ["Swa", "start", "a number of steps", "'x'"]),
        (lambda: optim.Ema(optim.Sgd(), decay="x"), ["Ema", "decay", "below 1"]),
        (lambda: optim.Swa(optim.Sgd(), start=-1), ["Swa", "start", "at least 0", "-1"]),
        (lambda: optim.Swa(optim.Sgd(), start=1, every=0), ["Swa", "every", "at least 1"]),
        (lambda: optim.Ema(net()), ["Ema is built without parameters", "Ema(optim.AdamW())"]),
    ],
)
def test_averages_that_cannot_be_are_refused_when_they_are_made(make, words):
    with raises(OptimError, *words):
        make()


def test_a_step_at_the_averages_is_refused():
    model = net()
    optimizer = optim.Ema(optim.Sgd())
    advance(optimizer, model, 0, 1)
    optimizer.eval(model)
    with pytest.raises(OptimError) as caught:
        advance(optimizer, model, 1, 2)
    assert str(caught.value) == (
        "the model has its averages in place of the parameters\n"
        "  hint      call optimizer.train(model) before the gradients are computed"
    )
