"""Language models that train without their logits."""

import copy
import functools
import gc
import pickle
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import burnt
from burnt import errors, kernels
from burnt.swapping.patterns.lazy_logits import Logits
from tests.messages import raises
from tests.swapping.patterns.test_hf_layers import (
    TEXT,
    TOKENS,
    bert,
    close,
    gemma2,
    gpt2,
    llama,
    loss_and_gradients,
)


@pytest.fixture(params=[llama, gpt2, gemma2], ids=lambda build: build.__name__)
def model(request):
    return request.param()


def test_the_loss_and_its_gradients_are_the_same(always, model):
    wanted = loss_and_gradients(model.train(), TEXT)
    report = burnt.swap(model, defer_logits=True)
    close(loss_and_gradients(model, TEXT), wanted)
    rows = {row.kind: row for row in report.rows}
    assert (rows["head"].state, rows["loss"].state) == ("swapped", "swapped")
    assert rows["head"].by == "kernels.linear_cross_entropy"
    assert "head" in str(report) or "lm_head" in str(report)
    burnt.unswap(model)
    assert torch.equal(loss_and_gradients(model, TEXT)[0], wanted[0])


@pytest.fixture
def deferred(always):
    """A Llama in training, swapped so that it defers its logits."""
    model = llama().train()
    burnt.swap(model, defer_logits=True)
    return model


def test_the_logits_are_computed_when_they_are_read(always, monkeypatch):
    model = llama().train()
    wanted = model(**TEXT).logits.detach()
    burnt.swap(model, defer_logits=True)
    result = model(**TEXT)
    logits = result.logits
    result.loss.backward()
    assert isinstance(logits, Logits)
    assert logits._tensor is None
    assert (logits.shape, logits.dtype, logits.device) == (wanted.shape, wanted.dtype, wanted.device)
    assert "not computed yet" in repr(logits)
    close(logits.detach(), wanted)
    close(torch.softmax(logits, -1), torch.softmax(wanted, -1))
    close((2 * logits - 1)[0, :3], 2 * wanted[0, :3] - 1)
    assert torch.equal(logits.argmax(-1), wanted.argmax(-1))
    assert torch.equal(torch.stack([logits, logits])[1] == logits, torch.ones_like(wanted).bool())


def test_without_labels_or_gradients_they_are_what_they_were(always):
    model = llama()
    wanted = model(TOKENS).logits.detach()
    burnt.swap(model, defer_logits=True)
    model.train()
    close(model(TOKENS).logits + 0, wanted)
    with torch.no_grad():
        assert type(model(TOKENS).logits) is torch.Tensor
    model.eval()
    assert type(model(**TEXT).logits) is torch.Tensor
    close(model(**TEXT).logits, wanted)


def test_a_loss_of_ones_own_is_given_logits(always):
    model = llama().train()
    library = model.loss_function

    def own(logits, labels, vocab_size, **_):
        return F.cross_entropy(logits.view(-1, vocab_size)[:5], labels.view(-1)[:5])

    model.loss_function = own
    loss, wanted = loss_and_gradients(model, TEXT)
    model.loss_function = library
    burnt.swap(model, defer_logits=True)
    model.loss_function = own
    close(loss_and_gradients(model, TEXT), (loss, wanted))


@pytest.mark.parametrize("labels", ["counted", "some ignored"])
def test_options_of_the_loss(always, labels):
    model = llama().train()
    batch = {**TEXT}
    if labels == "counted":
        batch["num_items_in_batch"] = torch.tensor(7)
    else:
        batch["labels"] = torch.where(TOKENS % 3 == 0, -100, TOKENS)
    wanted = loss_and_gradients(model, batch)
    burnt.swap(model, defer_logits=True)
    close(loss_and_gradients(model, batch), wanted)


def test_under_autocast_the_loss_is_float32(always):
    model = llama().train()
    twin = copy.deepcopy(model)
    burnt.swap(model, only=["lm_head", ""], skip="linear", defer_logits=True)
    with torch.autocast("cpu", torch.bfloat16):
        result, wanted = model(**TEXT), twin(**TEXT)
        assert result.logits.dtype == wanted.logits.dtype == torch.bfloat16
    assert result.loss.dtype == wanted.loss.dtype == torch.float32
    close(result.loss, wanted.loss, 1e-3)
    result.loss.backward()
    wanted.loss.backward()
    close(model.lm_head.weight.grad, twin.lm_head.weight.grad, 2e-3)
    close(result.logits.float() + 0, wanted.logits.float(), 2e-2)


def test_the_loss_is_asked_for_with_the_rows_joined(always, monkeypatch):
    seen = []
    op = kernels.linear_cross_entropy

    @functools.wraps(op)
    def noted(*args, **kwargs):
        seen.append(args[0].shape)
        return op(*args, **kwargs)

    monkeypatch.setattr(kernels, "linear_cross_entropy", noted)
    model = llama().train()
    burnt.swap(model, defer_logits=True)
    model(**TEXT).loss.backward()
    assert set(seen) == {torch.Size([34, 32])}


def test_what_has_no_such_loss_is_refused():
    for model in (bert(), nn.Linear(2, 3)):
        with raises(
            errors.SwapError,
            "kernels.linear_cross_entropy",
            match="found no loss that can be computed without logits",
        ):
            burnt.swap(model, defer_logits=True)
        burnt.swap(model)  # nothing was done
    with pytest.raises(errors.SwapError, match="works only in training"):
        burnt.swap(llama(), mode="infer", defer_logits=True)


def test_who_looks_first_does_not_decide_about_gradients(deferred):
    for context in (torch.no_grad, torch.inference_mode):
        result = deferred(**TEXT)
        with context():
            result.logits.argmax(-1)
        assert result.logits.logsumexp(-1).requires_grad
        result.logits.square().mean().backward()
        assert deferred.lm_head.weight.grad.abs().max() > 0


def test_logits_of_weights_that_were_changed_are_refused(deferred):
    result, seen = deferred(**TEXT), deferred(**TEXT).logits
    before = seen.detach()
    result.loss.backward()
    torch.optim.SGD(deferred.parameters(), lr=0.1).step()
    assert torch.equal(seen.detach(), before)  # looked at in time
    with raises(errors.SwapError, "without defer_logits=True", match="deferred logits cannot be computed"):
        result.logits.argmax(-1)


def test_logits_with_parameters_given_for_a_call(deferred):
    zeros = {"lm_head.weight": torch.zeros_like(deferred.lm_head.weight)}
    result = torch.func.functional_call(deferred, zeros, (), TEXT)
    assert float(result.logits.detach().abs().max()) == 0


def test_views_of_logits_are_of_the_same_memory(deferred):
    logits = deferred(**TEXT).logits
    flat, rows = logits.view(-1, 64), logits.float().view(-1, 64)
    with torch.no_grad():
        logits.mul_(0)
    assert float(flat.detach().abs().max()) == 0
    assert float(rows.detach().abs().max()) == 0  # float of float32 is no copy


def test_what_tensors_can(always):
    model = llama().train()
    wanted = model(**TEXT).logits.detach()
    burnt.swap(model, defer_logits=True)
    logits = model(**TEXT).logits
    assert (logits.size(dim=1), logits.size(-1), logits.dim()) == (17, 64, 3)
    assert logits.contiguous(memory_format=torch.contiguous_format).shape == wanted.shape
    assert logits.view(torch.int32).dtype == torch.int32
    close(abs(logits) // 1 + logits % 1, wanted.abs() // 1 + wanted % 1)
    with pytest.raises(RuntimeError, match="ambiguous"):
        bool(logits)
    again = pickle.loads(pickle.dumps(model(**TEXT).logits.detach()))
    close(again, wanted)
    assert type(copy.deepcopy(model(**TEXT).logits.detach())) is torch.Tensor


def test_they_are_not_deferred_where_tensors_are_wanted(deferred):
    hook = deferred.lm_head.register_forward_hook(lambda *_: None)
    assert type(deferred(**TEXT).logits) is torch.Tensor
    hook.remove()
    assert type(deferred(**TEXT).logits) is Logits


def test_nothing_is_kept_by_logits_that_are_gone(deferred):
    """Activations go with the output, not when the garbage is collected."""
    result = deferred(**TEXT)
    hidden = weakref.ref(result.logits._operands[0])
    gc.disable()
    try:
        del result
        assert hidden() is None
    finally:
        gc.enable()
