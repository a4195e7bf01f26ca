import pytest
import torch

from burnt import nn
from burnt.errors import DataError


@pytest.mark.parametrize(
    ("ids", "found", "hint"),
    [([3, 10], "ids from 3 to 10", "num_embeddings=11"), ([-1, 3], "ids from -1 to 3", "padding_idx")],
)
def test_an_id_without_a_vector(ids: list[int], found: str, hint: str) -> None:
    with pytest.raises(DataError) as caught:
        nn.Embedding(10, 4)(torch.tensor(ids))
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
