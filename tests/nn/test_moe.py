import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import burnt
from burnt import nn
from burnt.errors import ConfigError, InputValueError, ShapeError, UnsupportedError
from burnt.nn.moe import Routing, TopKRouter


def by_hand(layer: Any, input: Tensor) -> tuple[Tensor, list[list[int]]]:
    """Each vector by itself, expert by expert; also returns the experts of each vector."""
    x_TD = input.reshape(-1, layer.d_model)
    count, top_k = layer.num_experts, layer.router.top_k
    probabilities = (x_TD @ layer.router.weight.t()).exp()
    probabilities = probabilities / probabilities.sum(1, keepdim=True)
    chosen = [sorted(range(count), key=lambda e: -float(p[e].detach()))[:top_k] for p in probabilities]
    taken, limit = [0] * count, len(x_TD) * top_k
    if layer.capacity_factor is not None:
        limit = max(math.floor(layer.capacity_factor * len(x_TD) * top_k / count), 1)
    outputs = [torch.zeros(layer.d_model, dtype=x_TD.dtype) for _ in x_TD]
    for choice in range(top_k):
        for t, x in enumerate(x_TD):
            e = chosen[t][choice]
            taken[e] += 1
            if taken[e] > limit:
                continue
            weight = probabilities[t, e]
            if layer.router.normalize:
                weight = weight / sum(probabilities[t, other] for other in chosen[t])
            hidden = F.silu(layer.gate_proj[e] @ x) * (layer.up_proj[e] @ x)
            outputs[t] = outputs[t] + weight * (layer.down_proj[e] @ hidden)
    output = torch.stack(outputs) if outputs else x_TD * 0
    if layer.shared is not None:
        gate, up = x_TD @ layer.shared.gate_proj.weight.t(), x_TD @ layer.shared.up_proj.weight.t()
        output = output + (F.silu(gate) * up) @ layer.shared.down_proj.weight.t()
    return output.reshape(input.shape), chosen


@pytest.mark.parametrize(
    ("arguments", "shape"),
    [
        ({"num_experts": 4}, (3, 5, 6)),
        ({"num_experts": 4, "normalize": False}, (7, 6)),
        ({"num_experts": 5, "top_k": 3, "shared_d_ff": 4}, (2, 3, 6)),
        ({"num_experts": 1, "top_k": 1}, (4, 6)),
        ({"num_experts": 40, "top_k": 2}, (3, 6)),  # most experts have nothing to do
        ({"num_experts": 4, "capacity_factor": 0.6}, (4, 5, 6)),
        ({"num_experts": 4, "top_k": 1, "capacity_factor": 0.01}, (9, 6)),
        ({"num_experts": 4, "top_k": 4}, (6,)),
    ],
)
def test_values_and_gradients_in_float64(arguments: dict[str, Any], shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    layer = nn.MoeFeedForward(6, 8, **arguments, dtype=torch.float64)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    output, (expected, chosen) = layer(x), by_hand(layer, x)
    torch.testing.assert_close(output, expected)
    with nn.record_routing(layer) as routings:
        layer(x)
    assert routings[0].experts.tolist() == chosen
    wanted, grad = [x, *layer.parameters()], torch.randn(shape, dtype=torch.float64)
    found = torch.autograd.grad(output, wanted, grad)
    by = torch.autograd.grad(expected, wanted, grad, allow_unused=True, materialize_grads=True)
    torch.testing.assert_close(found, by)


def test_no_vectors() -> None:
    layer = nn.MoeFeedForward(6, 8, 4, shared_d_ff=3)
    x = torch.zeros(0, 5, 6, requires_grad=True)
    output = layer(x)
    assert output.shape == (0, 5, 6)
    output.sum().backward()
    assert not layer.gate_proj.grad.any()


def test_initial_weights_are_those_of_linears() -> None:
    torch.manual_seed(0)
    layer = nn.MoeFeedForward(100, 40, 3)
    for weight, size in ((layer.gate_proj, 100), (layer.down_proj, 40), (layer.router.weight, 100)):
        assert 0.98 * size**-0.5 < weight.abs().max() <= size**-0.5


def test_the_losses_are_their_formulas() -> None:
    torch.manual_seed(0)
    logits = torch.randn(20, 5, dtype=torch.float64)
    experts = logits.topk(2).indices
    routing = Routing(logits, logits, experts)
    for mask in (None, torch.arange(20).reshape(4, 5) % 3 > 0):
        kept = range(20) if mask is None else mask.flatten().nonzero().flatten().tolist()
        probabilities = logits.softmax(1)
        load, z = 0.0, 0.0
        for e in range(5):
            fraction = sum(e in experts[t].tolist() for t in kept) / len(kept)
            load += 5 * fraction * float(sum(probabilities[t, e] for t in kept)) / len(kept)
        z = sum(math.log(float(logits[t].exp().sum())) ** 2 for t in kept) / len(kept)
        assert float(routing.load_balancing_loss(mask)) == pytest.approx(load, rel=1e-5)
        assert float(routing.z_loss(mask)) == pytest.approx(z, rel=1e-5)
    balanced = Routing(torch.zeros(4, 4), torch.ones(4, 1), torch.arange(4)[:, None])
    assert balanced.load_balancing_loss() == 1
    one = Routing(torch.tensor([[9.0, 0, 0, 0]] * 4), torch.ones(4, 1), torch.zeros(4, 1, dtype=torch.int64))
    assert one.load_balancing_loss() > 3.9


def test_a_mask_of_other_vectors_is_refused() -> None:
    routing = TopKRouter(6, 4)(torch.randn(6, 6))
    for loss in (routing.load_balancing_loss, routing.z_loss):
        with pytest.raises(ShapeError, match="does not fit the vectors of a routing") as caught:
            loss(torch.ones(2, 4, dtype=torch.bool))
        assert (caught.value.expected, caught.value.found) == ("6 booleans", (2, 4))


def test_the_load_balancing_loss_balances_the_load() -> None:
    torch.manual_seed(0)
    layer = nn.MoeFeedForward(8, 4, 4, top_k=1)
    with torch.no_grad():
        layer.router.weight[0] += 0.5
    x = torch.randn(200, 8) + 0.5

    def largest_share() -> float:
        with nn.record_routing(layer) as routings:
            layer(x)
        return float(routings[0].experts.flatten().bincount().max()) / 200

    before = largest_share()
    for _ in range(30):
        with nn.record_routing(layer) as routings:
            layer(x)
        loss = sum((r.load_balancing_loss() for r in routings), torch.zeros(()))
        grads = burnt.Gradients.of(loss, layer)
        with torch.no_grad():
            layer.router.weight -= grads["router.weight"]
    assert before > 0.6
    assert largest_share() < 0.4


def test_routing_is_recorded_for_every_call_in_the_block_alone() -> None:
    model = torch.nn.Sequential(nn.MoeFeedForward(6, 8, 4), nn.MoeFeedForward(6, 8, 3, top_k=1))
    x = torch.randn(5, 6)
    with nn.record_routing(model) as routings:
        model(x)
        model(x)
    model(x)
    assert [r.experts.shape for r in routings] == [(5, 2), (5, 1)] * 2
    assert all(r.logits.requires_grad for r in routings)
    with (
        pytest.raises(ConfigError, match="Linear has no mixture of experts"),
        nn.record_routing(nn.Linear(2, 2)),
    ):
        pass


def test_summary_counts_the_experts_that_are_used() -> None:
    layer = nn.MoeFeedForward(6, 8, 4, top_k=2, shared_d_ff=5)
    summary = burnt.summary(layer, torch.zeros(7, 6))
    assert summary.flops == 7 * 2 * (6 * 4 + 2 * 3 * 6 * 8 + 3 * 6 * 5)


@pytest.mark.full
def test_compiles_as_one_graph_with_its_losses() -> None:
    layer, x = nn.MoeFeedForward(6, 8, 4), torch.randn(7, 6)

    def loss(x: Tensor) -> Tensor:
        routing = layer.router(x)
        return layer(x).sum() + routing.load_balancing_loss() + routing.z_loss()

    torch._dynamo.reset()
    compiled = torch.compile(loss, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), loss(x))


@pytest.mark.full
@pytest.mark.parametrize("capacity_factor", [None, 0.5])
def test_exports_with_an_open_batch(capacity_factor: float | None) -> None:
    layer = nn.MoeFeedForward(6, 8, 4, capacity_factor=capacity_factor)
    program = torch.export.export(
        layer, (torch.randn(3, 5, 6),), dynamic_shapes=({0: torch.export.Dim("batch")},)
    )
    x = torch.randn(7, 5, 6)
    torch.testing.assert_close(program.module()(x), layer(x))


@pytest.mark.parametrize("top_k", [0, 5])
def test_bad_arguments_are_refused(top_k: int) -> None:
    with pytest.raises(InputValueError, match="top_k is not valid") as caught:
        TopKRouter(6, 4, top_k)
    assert caught.value.found == top_k
    with pytest.raises(InputValueError, match="capacity_factor is not valid"):
        nn.MoeFeedForward(6, 8, 4, capacity_factor=0.0)
    with pytest.raises(UnsupportedError, match="a gate has no such activation"):
        nn.MoeFeedForward(6, 8, 4, activation="tanh")  # type: ignore[arg-type]


@pytest.mark.full
def test_is_mixtrals_block() -> None:
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock, load_balancing_loss_func

    config = MixtralConfig(hidden_size=8, intermediate_size=12, num_local_experts=4, num_experts_per_tok=2)
    theirs, layer = MixtralSparseMoeBlock(config), nn.MoeFeedForward(8, 12, 4)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.3)
        layer.router.weight.copy_(theirs.gate.weight)
        gate, up = theirs.experts.gate_up_proj.chunk(2, 1)
        layer.gate_proj.copy_(gate)
        layer.up_proj.copy_(up)
        layer.down_proj.copy_(theirs.experts.down_proj)
    x = torch.randn(2, 5, 8)
    expected = theirs(x)
    expected = expected[0] if isinstance(expected, tuple) else expected
    with nn.record_routing(layer) as routings:
        torch.testing.assert_close(layer(x), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(
        routings[0].load_balancing_loss(), load_balancing_loss_func((routings[0].logits,), 4, 2)
    )
