import torch

from tests.nn.case import Case, ids

CASES = [
    Case(
        "Embedding",
        {"num_embeddings": 11, "embedding_dim": 3},
        "Embedding",
        ids,
        misfit=((torch.zeros(2, 3),), "int64 or int32"),
    ),
    Case(
        "Embedding",
        {"num_embeddings": 11, "embedding_dim": 3, "padding_idx": -2, "scale_grad_by_freq": True},
        "Embedding",
        ids,
        "-padded",
    ),
    Case(
        "EmbeddingBag",
        {"num_embeddings": 11, "embedding_dim": 3},
        "EmbeddingBag",
        ids,
        misfit=((torch.zeros(2, 3),), "int64 or int32"),
    ),
    Case(
        "EmbeddingBag",
        {"num_embeddings": 11, "embedding_dim": 3, "mode": "max", "padding_idx": 2},
        "EmbeddingBag",
        ids,
        "-max",
    ),
]
