import torch

from tests.nn.case import Case, vectors

CASES = [
    Case(
        "MultiHeadAttention",
        {"embed_dim": 12, "num_heads": 4, "num_kv_heads": 2},
        None,
        vectors,
        misfit=((torch.zeros(2, 3, 7),), "(2, L, 12)"),
    ),
]
