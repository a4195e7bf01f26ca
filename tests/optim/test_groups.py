"""Groups of parameters, against torch's parameter groups and against the optimizers alone."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import burnt
from burnt import Gradients, optim
from burnt.errors import OptimError
from burnt.optim import OptimizerRecord
from tests.messages import raises


def net(dtype=torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Tanh(), nn.Linear(7, 3)).to(dtype)


def grads_of(model, step) -> Gradients:
    generator = torch.Generator().manual_seed(step)
    x, y = torch.randn(11, 5, generator=generator), torch.randn(11, 3, generator=generator)
    dtype = model[0].weight.dtype
    return Gradients.of(F.mse_loss(model(x.to(dtype)), y.to(dtype)), model)


def rate(step: int) -> float:
    return 0.05 / (1 + step)


def own_rate(step: int) -> float:
    return 0.1 / (2 + step)


def advance(optimizer, model, start, end, **limits):
    for step in range(start, end):
        optimizer.step(rate(step), model, grads_of(model, step), **limits)


def assert_close(model, other, **tolerance):
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, **tolerance)


def two_groups() -> optim.Groups:
    return optim.Groups(
        [("*.bias|1", optim.AdamW(weight_decay=0), own_rate), ("*", optim.AdamW(weight_decay=0.3))]
    )


@pytest.mark.parametrize("clip", [None, 0.3])
def test_as_the_parameter_groups_of_torch(clip):
    model, twin = net(), net()
    named = dict(twin.named_parameters())
    light = [p for path, p in named.items() if path.endswith("bias") or path.startswith("1.")]
    others = [named["0.weight"], named["3.weight"]]
    reference = torch.optim.AdamW(
        [{"params": light, "weight_decay": 0}, {"params": others}], 0.1, weight_decay=0.3
    )
    optimizer = two_groups()
    for step in range(5):
        result = optimizer.step(rate(step), model, grads_of(model, step), clip_norm=clip)
        for path, gradient in grads_of(twin, step).items():
            named[path].grad = gradient
        norm = torch.nn.utils.clip_grad_norm_(twin.parameters(), clip or torch.inf)
        reference.param_groups[0]["lr"], reference.param_groups[1]["lr"] = own_rate(step), rate(step)
        reference.step()
        if clip is None:
            assert result.norm is None
        else:
            torch.testing.assert_close(result.norm, norm)
        assert optimizer.rates == {"*.bias|1": own_rate(step)}
    assert_close(model, twin, rtol=1e-5, atol=1e-6)


def test_each_group_is_its_optimizer_alone():
    """Muon for matrices and AdamW for the rest, bit for bit as two optimizers on their own parameters."""
    model, twin = net(), net()
    optimizer = optim.Groups([(optim.matrices, optim.Muon(), 0.02), ("*", optim.AdamW())])
    muon, adam = optim.Muon(), optim.AdamW()
    named = dict(twin.named_parameters())
    matrices = {path: named.pop(path) for path in ("0.weight", "3.weight")}
    for step in range(4):
        result = optimizer.step(rate(step), model, grads_of(model, step))
        grads = dict(grads_of(twin, step))
        muon.step(0.02, matrices, {path: grads.pop(path) for path in matrices})
        adam.step(rate(step), named, grads)
    assert_close(model, twin, rtol=0, atol=0)
    assert not result.skipped


def test_a_group_clips_its_own_gradients_after_the_norm_of_all_was_limited():
    model, twin = net(), net()
    groups = [optim.Group("0", optim.Sgd(), clip_norm=0.01), ("*", optim.Sgd())]
    result = optim.Groups(groups).step(1.0, model, grads_of(model, 0), clip_norm=0.2)
    grads = grads_of(twin, 0)
    torch.testing.assert_close(result.norm, grads.norm())
    assert result.norm > 0.2
    grads = grads.clip_norm(0.2)
    own = Gradients({path: g for path, g in grads.items() if path.startswith("0.")}).clip_norm(0.01)
    for path, parameter in twin.named_parameters():
        parameter.data -= own.get(path, grads[path])
    assert_close(model, twin)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_with_a_scaled_loss_one_bad_gradient_skips_all_groups(dtype):
    model, twin = net(dtype), net(dtype)
    optimizer, plain = two_groups(), two_groups()
    for step in range(3):
        grads = grads_of(model, step)
        scaled = grads.scale(1024)
        before = {name: t.clone() for name, t in optimizer.into_record().tensors.items()}
        broken = Gradients({**scaled, "3.bias": torch.full_like(scaled["3.bias"], torch.inf)})
        assert optimizer.step(rate(step), model, broken, grad_scale=1024.0, clip_norm=1.0).skipped
        assert all(torch.equal(t, before[name]) for name, t in optimizer.into_record().tensors.items())
        result = optimizer.step(rate(step), model, scaled, grad_scale=torch.tensor(1024.0), clip_norm=1.0)
        assert not result.skipped
        torch.testing.assert_close(result.norm.to(dtype), grads.norm(), rtol=1e-2, atol=1e-3)
        plain.step(rate(step), twin, grads_of(twin, step), clip_norm=1.0)
    assert_close(model, twin)


def test_without_a_scale_bad_gradients_spread_as_in_an_optimizer_alone():
    model, twin = net(), net()
    grads = dict(grads_of(model, 0))
    grads["0.bias"] = torch.full_like(grads["0.bias"], torch.nan)
    result = optim.Groups([("3", optim.Sgd()), ("*", optim.Sgd())]).step(0.1, model, grads, clip_norm=1.0)
    alone = optim.Sgd().step(0.1, twin, grads, clip_norm=1.0)
    assert result.norm.isnan()
    assert alone.norm.isnan()
    assert all(p.isnan().all() for p in [*model.parameters(), *twin.parameters()])


def test_sparse_and_complex_gradients_have_a_part_in_the_norm():
    table = nn.Parameter(torch.ones(4, 2))
    phase = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    grads = {
        "table": torch.tensor([[3.0, 0], [0, 0], [0, 0], [0, 0]]).to_sparse(1),
        "phase": torch.tensor([4j, 0]),
    }
    optimizer = optim.Groups([("table", optim.Sgd()), ("*", optim.Adam())])
    result = optimizer.step(1.0, {"table": table, "phase": phase}, grads, clip_norm=1.0)
    torch.testing.assert_close(result.norm, torch.tensor(5.0))
    torch.testing.assert_close(table[0, 0].detach(), torch.tensor(1 - 3 / 5))
    assert result.by == "torch.optim: sparse or complex"


@pytest.mark.parametrize("averaged", [False, True])
def test_a_group_counts_the_steps_in_which_it_had_a_gradient(averaged):
    model, seen = net(), []
    limits = {"ema": copy.deepcopy(model)} if averaged else {}
    optimizer = optim.Groups([("3", optim.Sgd(), lambda step: seen.append(step) or 0.1), ("*", optim.Sgd())])
    burnt.freeze(model, "3")
    advance(optimizer, model, 0, 2, **limits)
    burnt.unfreeze(model, "3")
    advance(optimizer, model, 2, 4, **limits)
    assert seen == [0, 0, 0, 1]


def test_averages_of_a_step_are_of_all_groups():
    model = net()
    average, by_hand = (
        copy.deepcopy(model),
        {path: p.detach().clone() for path, p in model.named_parameters()},
    )
    burnt.freeze(model, "0")
    optimizer = optim.Groups([("0", optim.Sgd()), ("1|3|0", optim.Sgd()), ("*", optim.Sgd())])
    for step in range(3):
        optimizer.step(0.1, model, grads_of(model, step), ema=average, ema_decay=0.75)
        for path, parameter in model.named_parameters():
            by_hand[path].lerp_(parameter.detach(), 0.25)
    for path, parameter in average.named_parameters():
        torch.testing.assert_close(parameter.detach(), by_hand[path])


def test_the_factor_of_a_command_scales_schedules_of_groups_within_groups():
    model = net()
    inner = optim.Groups([("*.bias", optim.Sgd(), 0.2), ("*", optim.Sgd())])
    optimizer = optim.Groups([("0", optim.Sgd(), own_rate), ("*", inner)])
    before = [p.detach().clone() for p in model.parameters()]
    grads = grads_of(model, 0)
    optimizer.rate_factor = 0.5
    optimizer.step(0.3, model, grads)
    assert optimizer.rates == {"0": own_rate(0) / 2, "*/*.bias": 0.1}
    assert {name: schedule(0) for name, schedule in optimizer.schedules.items()} == {
        "0": own_rate(0), "*/*.bias": 0.2,
    }  # fmt: skip
    assert inner.rates == {"*.bias": 0.1}
    rates = [own_rate(0) / 2] * 2 + [0.3, 0.1, 0.3, 0.1]
    for parameter, old, gradient, lr in zip(model.parameters(), before, grads.values(), rates, strict=True):
        torch.testing.assert_close(parameter.detach(), old - lr * gradient)


# what is refused


def message(make) -> str:
    with pytest.raises(OptimError) as caught:
        make()
    return str(caught.value)


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ([], ["the last group", "no groups"]),
        ([("*.bias", optim.Sgd())], ["the last group", '("*", optimizer)', "'*.bias'"]),
        ([(optim.matrices, optim.Sgd())], ["the last group", "matrices"]),
        ([("*", torch.optim.Adam)], ["optimizer", "an optimizer of burnt.optim", "torch.optim"]),
        ([(3, optim.Sgd())], ["pattern", "(path, parameter) -> bool"]),
        ([("*", optim.Muon)], ["optimizer", "the class burnt.optim.sgd.Muon", "did you mean Muon()?"]),
        ([("*", "muon")], ["optimizer", "'muon'", "did you mean Muon()?"]),
        ([("*", optim.Sgd(), optim.Cosine)], ["schedule", "1e-3", "burnt.optim.Cosine(lr, steps, end)"]),
        ([("*", optim.Sgd(), "cosine")], ["schedule", "'cosine'", "burnt.optim.Cosine(lr, steps, end)"]),
        ({"head": optim.Sgd()}, ["a list of groups", 'Groups([("*.bias|*norm*", ', "dict"]),
        ([{"params": [], "lr": 0.1}], ["built without parameters", 'Groups([("*.bias|*norm*", ']),
        ([("*", optim.Sgd(), 0.1, 0.0)], ["clip_norm", "above 0"]),
    ],
)
def test_groups_that_cannot_be_are_refused_when_they_are_made(groups, words):
    with raises(OptimError, *words):
        optim.Groups(groups)


def test_two_groups_do_not_share_an_optimizer():
    shared = optim.Sgd()
    assert "share one optimizer" in message(lambda: optim.Groups([("0", shared), ("*", shared)]))


class NeedsClosure(optim.Sgd):
    needs_closure = True


def test_an_optimizer_that_evaluates_the_loss_is_refused():
    text = message(lambda: optim.Groups([("*", NeedsClosure())]))
    assert text.startswith("NeedsClosure cannot step a group of parameters")


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [
        ("0.wieght", "\n  hint      did you mean '0.weight'?"),
        ("encoder", "\n  hint      the first path is '0.weight'"),
        (lambda path, parameter: False, ""),
    ],
)
def test_a_pattern_that_matches_nothing_is_refused_and_nothing_has_moved(pattern, hint):
    model, before = net(), net()
    optimizer = optim.Groups([("0", optim.Sgd()), (pattern, optim.Sgd()), ("*", optim.Sgd())])
    text = message(lambda: advance(optimizer, model, 0, 1))
    assert text.startswith("the pattern of a group matches no parameter: ")
    assert text.endswith("the path of a module, or a function" + hint)
    assert_close(model, before, rtol=0, atol=0)


def test_an_alternative_that_matches_nothing_is_warned_of():
    optimizer = optim.Groups([("0|*.wieght", optim.Sgd()), ("*", optim.Sgd())])
    with pytest.warns(UserWarning, match=r"'\*.wieght' in the pattern .* did you mean '\*.weight'\?"):
        optimizer.check(0.1, net())


def test_a_group_after_one_that_takes_all_its_parameters_is_refused():
    optimizer = optim.Groups([("*.weight", optim.Sgd()), ("3.weight", optim.Muon()), ("*", optim.Sgd())])
    assert message(lambda: advance(optimizer, net(), 0, 1)) == (
        "a group gets no parameter: 3.weight\n"
        "  found     all that it matches, such as 3.weight, belong to groups before it\n"
        "  hint      put it before the group '*.weight': the first pattern that matches wins"
    )


def test_the_last_group_may_be_left_with_nothing():
    model = net()
    advance(optim.Groups([("*", optim.Sgd())]), model, 0, 1)
    advance(optim.Groups([("0|1|3", optim.Sgd()), ("*", optim.Muon())]), model, 0, 1)


def test_unknown_gradients_and_rates_that_cannot_be_are_refused_and_nothing_has_moved():
    model, before = net(), net()
    optimizer = two_groups()
    assert "did you mean '3.bias'?" in message(lambda: optimizer.step(0.1, model, {"3.bais": torch.ones(3)}))
    assert "learning rate" in message(lambda: optimizer.step(-1.0, model, grads_of(model, 0)))
    optimizer = optim.Groups([("0", optim.Sgd()), ("3", optim.Sgd(), lambda step: -1.0), ("*", optim.Sgd())])
    assert "the schedule of the group '3'" in message(lambda: advance(optimizer, model, 0, 1))
    assert_close(model, before, rtol=0, atol=0)


# the state


def make_groups() -> optim.Groups:
    inner = optim.Groups([("*.bias", optim.Adam()), ("*", optim.AdamW(amsgrad=True), own_rate)])
    return optim.Groups([(optim.matrices, optim.Muon(), own_rate), ("1", optim.Sgd(0.9)), ("*", inner)])


def test_going_on_from_a_file_is_never_having_stopped(tmp_path):
    whole, model = net(), net()
    advance(make_groups(), whole, 0, 8)
    first, second = make_groups(), make_groups()
    advance(first, model, 0, 5)
    first.into_record().save(tmp_path / "optimizer.safetensors")
    second.load_record(OptimizerRecord.load(tmp_path / "optimizer.safetensors"))
    assert second.into_record().tensors.keys() == first.into_record().tensors.keys()
    advance(second, model, 5, 8)
    assert_close(model, whole, rtol=0, atol=0)


def test_state_follows_a_module_whose_parameters_change():
    model, twin = net(), net()
    optimizer = two_groups()
    advance(optimizer, model, 0, 3)
    model = copy.deepcopy(model)
    advance(optimizer, model, 3, 6)
    advance(two_groups(), twin, 0, 6)
    assert_close(model, twin, rtol=0, atol=0)


def test_the_state_of_other_groups_is_refused():
    first = two_groups()
    advance(first, net(), 0, 1)
    record = first.into_record()
    other = optim.Groups([("*.bias", optim.AdamW()), ("*", optim.AdamW())])
    assert message(lambda: other.load_record(record)) == (
        "the state of some groups does not fit others\n"
        "  expected  *.bias: AdamW; *: AdamW\n"
        "  found     *.bias|1: AdamW; *: AdamW\n"
        "  hint      resume with the groups of the saved state, or start afresh"
    )
    other = optim.Groups([("*.bias|1", optim.Adam()), ("*", optim.AdamW())])
    assert "expected  *.bias|1: Adam; *: AdamW" in message(lambda: other.load_record(record))
    assert "does not fit another" in message(lambda: other.load_record(optim.AdamW().into_record()))


def test_the_state_of_a_parameter_that_is_now_in_another_group_is_refused():
    def groups(wanted: str) -> optim.Groups:
        def chosen(path, parameter):
            return path.startswith(wanted)

        return optim.Groups([(chosen, optim.AdamW()), ("*", optim.AdamW())])

    first, second = groups("0"), groups("3")
    advance(first, net(), 0, 1)
    second.load_record(first.into_record())
    text = message(lambda: advance(second, net(), 1, 2))
    assert text.startswith("the state of a parameter belongs to another group\n  in        0.weight\n")
    assert "chosen', which stepped it before" in text
    assert "found     the group '*'" in text


def test_functions_of_one_name_are_groups_of_two():
    def ends_with(end):
        return lambda path, parameter: path.endswith(end)

    optimizer = optim.Groups(
        [(ends_with("bias"), optim.Sgd(), 0.1), (ends_with("weight"), optim.Sgd(), 0.2), ("*", optim.Sgd())]
    )
    advance(optimizer, net(), 0, 1)
    name = "test_functions_of_one_name_are_groups_of_two.<locals>.ends_with.<locals>.<lambda>"
    assert optimizer.names == (f"{name} 1", f"{name} 2", "*")
    assert optimizer.rates == {f"{name} 1": 0.1, f"{name} 2": 0.2}


def test_the_description_has_every_parameter_in_its_group():
    inner = optim.Groups([("*.bias", optim.Adam(), own_rate), ("*", optim.AdamW())])
    optimizer = optim.Groups([("3.weight", optim.Muon(), 0.02), ("0|3", inner), ("*", optim.Sgd())])
    model = net()
    sizes = [sum(p.numel() for p in model[i].parameters()) for i in (0, 1, 3)]
    weight, biases = model[3].weight.numel(), model[0].bias.numel() + model[3].bias.numel()
    text = optimizer.describe(model).splitlines()
    assert text == [
        f"3.weight: Muon, Constant(lr=0.02), {weight} parameters in 1 tensor",
        "  3.weight",
        f"0|3: Groups, {sizes[0] + sizes[2] - weight} parameters in 3 tensors",
        f"  *.bias: Adam, own_rate, {biases} parameters in 2 tensors",
        "    0.bias, 3.bias",
        f"  *: AdamW, {model[0].weight.numel()} parameters in 1 tensor",
        "    0.weight",
        f"*: Sgd, {sizes[1]} parameters in 2 tensors",
        "  1.weight, 1.bias",
    ]


def test_printed_as_it_is_built():
    assert repr(
        optim.Groups([("a|b", optim.Sgd()), (optim.matrices, optim.Sgd(), 0.1), ("*", optim.Sgd())])
    ) == ("Groups([('a|b', {0}), (matrices, {0}, Constant(lr=0.1)), ('*', {0})])".format(optim.Sgd()))
    assert repr(copy.deepcopy(two_groups())) == repr(two_groups())
