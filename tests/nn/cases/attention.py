import torch
from torch import Tensor

from tests.nn.case import Case, vectors


def vectors_and_context(batch: int) -> tuple[Tensor, ...]:
    return torch.randn(batch, 5, 12), torch.randn(batch, 7, 6)


CASES = [
    Case(
        "MultiHeadAttention",
        {"embed_dim": 12, "num_heads": 4, "num_kv_heads": 2},
        None,
        vectors,
        misfit=((torch.zeros(2, 3, 7),), "(2, L, 12)"),
    ),
    Case(
        "MultiHeadAttention",
        {"embed_dim": 12, "num_heads": 3, "head_dim": 5, "quiet_softmax": True, "out_bias": False},
        None,
        vectors,
        "-quiet",
    ),
    Case(
        "CrossAttention",
        {"embed_dim": 12, "num_heads": 4, "context_dim": 6, "num_kv_heads": 2},
        None,
        vectors_and_context,
        misfit=((torch.zeros(2, 3, 12), torch.zeros(2, 5, 7)), "context_dim=7?"),
    ),
]
