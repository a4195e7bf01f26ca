from typing import Literal

import pytest
import torch

from burnt import kernels, nn
from burnt.errors import DataError, InputError, InputIndexError, InputValueError
from tests.nn.case import record_calls


@pytest.mark.parametrize(
    ("ids", "found", "hint"),
    [([3, 10], "ids from 3 to 10", "num_embeddings=11"), ([-1, 3], "ids from -1 to 3", "padding_idx")],
)
def test_an_id_without_a_vector(ids: list[int], found: str, hint: str) -> None:
    with pytest.raises(InputIndexError) as caught:
        nn.Embedding(10, 4)(torch.tensor(ids))
    assert isinstance(caught.value, DataError)
    assert caught.value.where == "Embedding(10, 4)"
    assert caught.value.expected == "ids from 0 to 9"
    assert caught.value.found == found
    assert hint in str(caught.value)


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_padding_is_an_id(kind: type[nn.Embedding | nn.EmbeddingBag]) -> None:
    for padding_idx in (13, -14):
        with pytest.raises(InputValueError) as caught:
            kind(13, 4, padding_idx=padding_idx)
        assert caught.value.where == kind.__name__
        assert caught.value.expected == "-13 to 12, for 13 vectors"
        assert caught.value.hint == (
            None if padding_idx < 0 else "num_embeddings=14 gives padding an id of its own"
        )


def test_max_norm_shortens_in_place_and_sparse_gives_sparse_gradients() -> None:
    layer = nn.Embedding(5, 3, max_norm=0.5, sparse=True)
    layer(torch.tensor([1, 2])).sum().backward()
    norms = layer.weight.detach().norm(dim=1)
    assert norms[1:3].max() <= 0.5 + 1e-6
    assert layer.weight.grad is not None
    assert layer.weight.grad.is_sparse


def test_it_calls_the_op_but_for_what_torch_alone_has(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = record_calls(monkeypatch, kernels.embedding)
    ids = torch.tensor([[0, 4, 4], [1, 0, 0]])
    layer = nn.Embedding(5, 3, padding_idx=-1)
    assert torch.equal(layer(ids), layer.weight[ids])
    assert [args[1:] for args in calls] == [(layer.weight, 4)]
    layer(ids).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.tolist() == [[3.0] * 3, [1.0] * 3, [0.0] * 3, [0.0] * 3, [0.0] * 3]
    for other in ({"max_norm": 1.0}, {"scale_grad_by_freq": True}, {"sparse": True}):
        nn.Embedding(5, 3, **other)(ids)  # type: ignore[arg-type]
    torch.compile(nn.Embedding(5, 3), backend="eager", fullgraph=True)(ids)
    assert len(calls) == 2


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_a_bag_is_the_reduction_of_an_embedding(mode: Literal["sum", "mean", "max"]) -> None:
    bag, ids = nn.EmbeddingBag(10, 4, mode=mode), torch.randint(10, (3, 5))
    vectors = bag.weight[ids]
    expected = vectors.amax(1) if mode == "max" else getattr(vectors, mode)(1)
    torch.testing.assert_close(bag(ids), expected)
    torch.testing.assert_close(bag(ids.flatten(), torch.tensor([0, 5, 10])), expected)
    assert torch.equal(bag(ids[0], torch.tensor([0, 5]))[1], torch.zeros(4))  # an empty bag


def test_a_bag_weighs_its_ids() -> None:
    bag, ids, weights = nn.EmbeddingBag(10, 4, mode="sum"), torch.randint(10, (3, 5)), torch.rand(3, 5)
    expected = (bag.weight[ids] * weights[..., None]).sum(1)
    torch.testing.assert_close(bag(ids, per_sample_weights=weights), expected)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_an_id_of_a_bag_without_a_vector(mode: Literal["sum", "mean", "max"]) -> None:
    with pytest.raises(InputIndexError) as caught:
        nn.EmbeddingBag(10, 4, mode=mode)(torch.tensor([[3, 10]]))
    assert caught.value.where == "EmbeddingBag(10, 4)"
    assert caught.value.found == "ids from 3 to 10"
    with pytest.raises(RuntimeError, match="scalar types: Long, Int"):
        nn.EmbeddingBag(10, 4, mode=mode)(torch.zeros(1, 2))


def test_ids_of_another_dtype_get_a_hint_for_ids() -> None:
    with pytest.raises(InputError, match="the indices of an embedding have the wrong dtype") as caught:
        nn.Embedding(4, 3)(torch.randn(2, 3))
    assert caught.value.hint == "indices.long()"
    with pytest.raises(InputError, match="hint      pass indices first, then the table"):
        kernels.embedding(torch.randn(4, 3), torch.zeros(2, dtype=torch.int64))


def test_a_table_on_the_meta_device_is_not_initialized(monkeypatch):
    """`normal_` of meta tensors imports torch._dynamo, which takes a second."""
    drawn = []
    monkeypatch.setattr(torch.nn.init, "normal_", drawn.append)
    nn.Embedding(3, 2, device="meta")
    assert not drawn
    nn.Embedding(3, 2)
    assert len(drawn) == 1
