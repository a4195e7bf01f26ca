import threading

import pytest
import torch
from torch import Tensor

from burnt import Gradients, Module, nn, optim
from burnt.errors import BurntError, UnsupportedError
from burnt.train import Learner, StepOutput


class Mlp(Module):
    first: nn.Linear
    second: nn.Linear

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


def mlp() -> Mlp:
    torch.manual_seed(0)
    return Mlp(nn.Linear(4, 6), nn.Linear(6, 1))


def loss_of(model: torch.nn.Module, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return model(torch.randn(8, 4, generator=generator)).square().mean()


def backward(model: torch.nn.Module, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {path: p.grad.clone() for path, p in model.named_parameters() if p.grad is not None}


def same(ours: Gradients, theirs: dict[str, Tensor]) -> None:
    assert list(ours) == list(theirs)
    for path, value in theirs.items():
        torch.testing.assert_close(ours[path], value)


def test_are_those_of_backward_and_leave_the_parameters_alone() -> None:
    model = mlp()
    grads = Gradients.of(loss_of(model), model)
    assert all(p.grad is None for p in model.parameters())
    same(grads, backward(model, loss_of(model)))
    assert repr(grads).startswith("Gradients(first.weight: (6, 4), first.bias: (6,)")
    assert len(grads) == 4


def test_of_named_parameters_of_a_functional_call() -> None:
    model = mlp()
    state = {path: p.detach().clone().requires_grad_() for path, p in model.named_parameters()}
    loss = torch.func.functional_call(model, state, torch.ones(2, 4)).sum()
    same(Gradients.of(loss, state), backward(model, model(torch.ones(2, 4)).sum()))


def test_frozen_and_unused_parameters_are_left_out() -> None:
    model = mlp()
    model.first.weight.requires_grad_(False)
    assert list(Gradients.of(loss_of(model), model)) == ["first.bias", "second.weight", "second.bias"]
    assert list(Gradients.of(model.first(torch.ones(1, 4)).sum(), model)) == ["first.bias"]


def test_a_tied_parameter_comes_once_with_the_whole_gradient() -> None:
    model = Mlp(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model.second.weight = model.first.weight
    same(Gradients.of(loss_of(model), model), backward(model, loss_of(model)))
    assert list(Gradients.of(loss_of(model), model)) == ["first.weight"]


def test_accumulate_is_the_sum_as_backward_twice() -> None:
    model = mlp()
    total = Gradients.of(loss_of(model, 0), model).accumulate(Gradients.of(loss_of(model, 1), model))
    same(total, backward(model, loss_of(model, 0) + loss_of(model, 1)))


def test_accumulate_takes_what_one_side_lacks_and_changes_neither() -> None:
    ones, twos = torch.ones(2), torch.full((2,), 2.0)
    left, right = Gradients({"a": ones, "b": ones}), Gradients({"b": twos, "c": twos})
    total = left.accumulate(right)
    assert {path: value.tolist() for path, value in total.items()} == {
        "a": [1.0, 1.0],
        "b": [3.0, 3.0],
        "c": [2.0, 2.0],
    }
    assert left["b"].tolist() == [1.0, 1.0]
    assert right["b"].tolist() == [2.0, 2.0]


def test_scale_by_a_number_or_a_tensor() -> None:
    grads = Gradients({"a": torch.tensor([1.0, -2.0])})
    assert grads.scale(0.5)["a"].tolist() == [0.5, -1.0]
    assert grads.scale(torch.tensor(2.0))["a"].tolist() == [2.0, -4.0]
    assert grads["a"].tolist() == [1.0, -2.0]


@pytest.mark.parametrize("limit", [1e-3, 0.1, 1e6, 0.0])
def test_clip_norm_is_clip_grad_norm(limit: float) -> None:
    model = mlp()
    grads = Gradients.of(loss_of(model), model)
    backward(model, loss_of(model))
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
    torch.testing.assert_close(grads.norm(), norm)
    same(grads.clip_norm(limit), {path: p.grad for path, p in model.named_parameters() if p.grad is not None})


def test_clip_value_is_clip_grad_value() -> None:
    model = mlp()
    grads = Gradients.of(loss_of(model), model).clip_value(0.01)
    backward(model, loss_of(model))
    torch.nn.utils.clip_grad_value_(model.parameters(), 0.01)
    same(grads, {path: p.grad for path, p in model.named_parameters() if p.grad is not None})


def test_the_norm_of_nothing_is_zero() -> None:
    nothing = Gradients({})
    assert float(nothing.norm()) == 0.0
    assert nothing.finite()
    assert list(nothing.clip_norm(1.0)) == []
    assert float(Gradients({"a": torch.zeros(0)}).norm()) == 0.0


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_finite(bad: float) -> None:
    good = torch.ones(3)
    assert Gradients({"a": good}).finite()
    assert not Gradients({"a": good, "b": torch.tensor([0.0, bad])}).finite()
    assert not Gradients({"a": torch.tensor([bad])}).clip_norm(1.0).finite()


def test_finite_although_the_norm_overflows() -> None:
    grads = Gradients({"a": torch.full((2,), 3e38)})
    assert torch.isinf(grads.norm())
    assert grads.finite()


def test_to_casts_and_moves() -> None:
    grads = Gradients({"a": torch.ones(2)})
    assert grads.to("meta")["a"].is_meta
    assert grads.to("cpu", dtype=torch.float64)["a"].dtype == torch.float64


def test_second_derivatives_are_those_of_autograd_functional() -> None:
    weight = torch.tensor([0.5, -1.0, 2.0], requires_grad=True)

    def f(w: Tensor) -> Tensor:
        return (w**3).sum() + w[0] * w[1] * w[2]

    first = Gradients.of(f(weight), {"w": weight}, create_graph=True)
    rows = [Gradients.of(element, {"w": weight}, retain_graph=True)["w"] for element in first["w"].unbind()]
    torch.testing.assert_close(torch.stack(rows), torch.autograd.functional.hessian(f, weight.detach()))


def test_a_gradient_penalty_trains() -> None:
    model = mlp()
    penalty = Gradients.of(loss_of(model), model, create_graph=True).norm()
    inner = torch.autograd.grad(loss_of(model), list(model.parameters()), create_graph=True)
    same(Gradients.of(penalty, model), backward(model, torch.cat([g.flatten() for g in inner]).norm()))


def test_the_graph_is_kept_on_request_only() -> None:
    model = mlp()
    loss = loss_of(model)
    kept = Gradients.of(loss, model, retain_graph=True)
    same(Gradients.of(loss, model), dict(kept))
    with pytest.raises(RuntimeError, match="second time"):
        Gradients.of(loss, model)


def test_eight_threads_at_once_give_the_values_of_one() -> None:
    model = mlp()
    expected = [Gradients.of(loss_of(model, seed), model) for seed in range(8)]
    found: list[Gradients | None] = [None] * 8
    start = threading.Barrier(8)

    def work(seed: int) -> None:
        start.wait()
        for _ in range(20):
            found[seed] = Gradients.of(loss_of(model, seed), model)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, other in zip(expected, found, strict=True):
        assert other is not None
        for path in one:
            assert torch.equal(one[path], other[path])
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("shape", [(3,), (1, 1), (0,)])
def test_a_loss_that_is_no_scalar(shape: tuple[int, ...]) -> None:
    model = mlp()
    loss = loss_of(model) * torch.ones(shape)
    if loss.numel() == 1:
        assert len(Gradients.of(loss, model)) == 4
        return
    with pytest.raises(BurntError, match="scalar loss") as caught:
        Gradients.of(loss, model)
    assert caught.value.found == f"shape {shape}"
    assert "mean()" in str(caught.value)


@pytest.mark.parametrize("why", ["frozen", "no_grad", "detached"])
def test_a_loss_that_depends_on_nothing(why: str) -> None:
    model = mlp()
    if why == "frozen":
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        loss = loss_of(model) + torch.zeros((), requires_grad=True)
    elif why == "no_grad":
        with torch.no_grad():
            loss = loss_of(model)
    else:
        loss = loss_of(model).detach()
    with pytest.raises(BurntError, match="depends on no trainable parameter") as caught:
        Gradients.of(loss, model)
    assert f"{0 if why == 'frozen' else 4} trainable of 4" in str(caught.value)


def test_a_loss_of_another_model() -> None:
    with pytest.raises(BurntError, match="depends on no trainable parameter"):
        Gradients.of(loss_of(mlp()), mlp())


def test_a_later_entry_of_the_mapping_does_not_appear() -> None:
    values = {"a": torch.ones(1)}
    grads = Gradients(values)
    values["b"] = torch.ones(1)
    assert list(grads) == ["a"]


def fully_sharded(model: torch.nn.Module) -> torch.nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    return fully_shard(model, mesh=init_device_mesh("cpu", (1,)))


def fsdp1(model: torch.nn.Module) -> torch.nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(model, device_id=torch.device("cpu"))


def replicated(model: torch.nn.Module) -> torch.nn.Module:
    from torch.distributed._composable.replicate import replicate

    return replicate(model)  # type: ignore[no-any-return]


PARALLEL = {
    "replicate": (replicated, "DDP"),
    "ddp": (torch.nn.parallel.DistributedDataParallel, "DistributedDataParallel"),
    "data parallel": (torch.nn.DataParallel, "DataParallel"),
    "fully_shard": (fully_sharded, "fully_shard"),
    "fsdp1": (fsdp1, "FullyShardedDataParallel"),
    "compiled ddp": (
        lambda model: torch.compile(torch.nn.parallel.DistributedDataParallel(model)),
        "_orig_mod",
    ),
    "nested ddp": (
        lambda model: torch.nn.Sequential(torch.nn.parallel.DistributedDataParallel(model)),
        "in        Sequential.0",
    ),
}


@pytest.mark.filterwarnings("ignore:FSDP")
@pytest.mark.parametrize(
    # One process group for all; torch.compile imports torch._dynamo, which takes seconds.
    "compiled",
    [False, pytest.param(True, marks=pytest.mark.full)],
)
def test_a_model_whose_gradients_only_backward_synchronizes_is_refused(
    compiled: bool, process_group: None
) -> None:
    for wrap, found in (PARALLEL[kind] for kind in PARALLEL if ("compiled" in kind) == compiled):
        wrapped = wrap(mlp())
        with pytest.raises(UnsupportedError) as of_gradients:
            Gradients.of(torch.zeros((), requires_grad=True), wrapped)
        with pytest.raises(UnsupportedError) as of_learner:
            Learner(wrapped, optim.AdamW(), 1e-3, step=lambda model, batch: StepOutput(loss_of(model)))
        for error in (of_gradients, of_learner):
            for words in (found, "loss.backward()", "DDP", "torch.optim"):
                assert words in str(error.value)
