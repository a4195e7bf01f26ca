import torch
from torch import nn as tnn

from tests.nn.case import Case, ids

CASES = [
    Case(
        "Embedding",
        {"num_embeddings": 11, "embedding_dim": 3},
        lambda: tnn.Embedding(11, 3),
        ids,
        misfit=((torch.zeros(2, 3),), "int64 or int32"),
    ),
    Case(
        "Embedding",
        {"num_embeddings": 11, "embedding_dim": 3, "padding_idx": -2, "scale_grad_by_freq": True},
        lambda: tnn.Embedding(11, 3, -2, scale_grad_by_freq=True),
        ids,
        "-padded",
    ),
    Case(
        "EmbeddingBag",
        {"num_embeddings": 11, "embedding_dim": 3},
        lambda: tnn.EmbeddingBag(11, 3),
        ids,
        misfit=((torch.zeros(2, 3),), "int64 or int32"),
    ),
    Case(
        "EmbeddingBag",
        {"num_embeddings": 11, "embedding_dim": 3, "mode": "max", "padding_idx": 2},
        lambda: tnn.EmbeddingBag(11, 3, mode="max", padding_idx=2),
        ids,
        "-max",
    ),
]
