"""A site that is wrapped, or whose class is changed, before its first call: it stays the original."""

import copy
import functools

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

import burnt
from burnt.swapping.kind import is_swapped

REPLACED = "user code replaced its forward"
GIVEN = "user code changed its class"


@pytest.fixture
def alone(process_group):
    """The mesh of a group of one process."""
    return init_device_mesh("cpu", (1,))


def weight_norm(layer):
    parametrizations.weight_norm(layer)


def checkpointed(layer):
    layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False)


def accelerated(layer):
    hooks = pytest.importorskip("accelerate.hooks")
    hooks.add_hook_to_module(layer, hooks.ModelHook())


def given_another(layer):
    layer.__class__ = type("Mine", (type(layer),), {})


def wrapped_with(change, *, first):
    """The state of a site that is changed before its first call or after; values are the original's."""
    model, x = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)), torch.randn(4, 8)
    original = copy.deepcopy(model)
    report = burnt.swap(model)
    if not first:
        model(x)
    for each in (model, original):
        change(each[0])
    for _ in range(2):
        torch.testing.assert_close(model(x), original(x))
    model(x).sum().backward()
    original(x).sum().backward()
    gradients = [[p.grad for p in each.parameters()] for each in (model, original)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)
    return report.rows[0]


CHANGES = {weight_norm: GIVEN, checkpointed: REPLACED, accelerated: REPLACED, given_another: GIVEN}


@pytest.mark.parametrize("change", CHANGES)
def test_wrapped_before_its_first_call(always, change):
    row = wrapped_with(change, first=True)
    assert (row.state, row.why) == ("left", CHANGES[change])


@pytest.mark.parametrize("change", CHANGES)
def test_wrapped_after_its_first_call(always, change):
    assert wrapped_with(change, first=False).state == "swapped"


def test_sharded_before_its_first_call(always, alone):
    row = wrapped_with(lambda layer: fully_shard(layer, mesh=alone), first=True)
    assert (row.state, row.why) == ("left", GIVEN)


def test_a_kept_forward_is_what_the_place_has_become(always):
    layer, x = nn.Linear(8, 8), torch.randn(4, 8)
    before, report = layer(x), burnt.swap(layer)
    kept = layer.forward
    for _ in range(2):  # a caller that holds it makes the site decide, and calls the result
        torch.testing.assert_close(kept(x), before)
    assert report.rows[0].state == "swapped"
    assert is_swapped(layer)
    burnt.unswap(layer)
    assert torch.equal(kept(x), before)


def test_a_kept_forward_of_a_waiting_place_outlives_unswap(always):
    model, x = nn.Sequential(nn.Linear(8, 8)), torch.randn(4, 8)
    before = model(x)
    burnt.swap(model)
    checkpointed(model[0])
    burnt.unswap(model)
    assert torch.equal(model(x), before)


def test_a_sharded_language_model(always, alone):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2
    )
    model, tokens = transformers.LlamaForCausalLM(config), torch.arange(12).view(2, 6)
    original = copy.deepcopy(model)
    report = burnt.swap(model)
    for layer in model.model.layers:
        fully_shard(layer, mesh=alone)
    fully_shard(model, mesh=alone)
    for _ in range(2):
        losses = [each(tokens, labels=tokens).loss for each in (model, original)]
        torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-5)
        for loss in losses:
            loss.backward()
    pairs = zip(model.parameters(), original.parameters(), strict=True)
    for found, expected in pairs:
        torch.testing.assert_close(found.grad.full_tensor(), expected.grad, rtol=1e-3, atol=1e-4)
    assert report.swapped
