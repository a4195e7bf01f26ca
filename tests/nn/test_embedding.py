import pytest
import torch

from burnt import nn
from burnt.errors import DataError, InputIndexError


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


def test_max_norm_shortens_in_place_and_sparse_gives_sparse_gradients() -> None:
    layer = nn.Embedding(5, 3, max_norm=0.5, sparse=True)
    layer(torch.tensor([1, 2])).sum().backward()
    norms = layer.weight.detach().norm(dim=1)
    assert norms[1:3].max() <= 0.5 + 1e-6
    assert layer.weight.grad is not None
    assert layer.weight.grad.is_sparse


def test_it_calls_the_op_but_for_what_torch_alone_has(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    op = nn.embedding.kernels.embedding
    monkeypatch.setattr(nn.embedding.kernels, "embedding", lambda *args: calls.append(args[1:]) or op(*args))
    ids = torch.tensor([[0, 4, 4], [1, 0, 0]])
    layer = nn.Embedding(5, 3, padding_idx=-1)
    assert torch.equal(layer(ids), layer.weight[ids])
    assert calls == [(layer.weight, 4)]
    layer(ids).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.tolist() == [[3.0] * 3, [1.0] * 3, [0.0] * 3, [0.0] * 3, [0.0] * 3]
    for other in ({"max_norm": 1.0}, {"scale_grad_by_freq": True}, {"sparse": True}):
        nn.Embedding(5, 3, **other)(ids)  # type: ignore[arg-type]
    torch.compile(nn.Embedding(5, 3), backend="eager", fullgraph=True)(ids)
    assert len(calls) == 2
