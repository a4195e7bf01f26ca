"""Embedding: a learned vector for each id."""

from __future__ import annotations

import torch
from torch import Tensor

from burnt import kernels
from burnt.errors import InputIndexError
from burnt.module import Module

__all__ = ["Embedding"]


class Embedding(Module, torch.nn.Embedding):  # type: ignore[misc]  # torch annotates a `freeze` it lacks
    """A table of vectors, indexed by id.

    Args:
        num_embeddings: number of ids.
        embedding_dim: size of a vector.
        padding_idx: id whose vector starts at zero and is not trained; negative counts from the end.
        max_norm: vectors that are looked up are first shortened, in place, to this norm.
        norm_type: the p of that norm.
        scale_grad_by_freq: divide a vector's gradient by how often its id occurs in the batch.
        sparse: gradients are sparse tensors.
        device: where the table lives.
        dtype: dtype of the table.

    Shapes:
        input integers ``[*]`` below `num_embeddings`, output ``[*, embedding_dim]``; ``weight`` is
        ``[num_embeddings, embedding_dim]``, from a standard normal distribution (as in Burn, which knows
        neither padding nor norms).

    Raises:
        InputIndexError: an id outside the table, on the CPU; a GPU reports it later, as a failed assertion.

    >>> import torch
    >>> Embedding(10, 4)(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 4])
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            num_embeddings,
            embedding_dim,
            padding_idx,
            max_norm,
            norm_type,
            scale_grad_by_freq,
            sparse,
            device=device,
            dtype=dtype,
        )

    def forward(self, input: Tensor) -> Tensor:
        """Return the vectors of the ids `input` ``[*]``: ``[*, embedding_dim]``."""
        as_torch = self.max_norm is not None or self.scale_grad_by_freq or self.sparse
        try:
            if torch.compiler.is_compiling() or as_torch:
                return super().forward(input)
            return kernels.embedding(input, self.weight, self.padding_idx)
        except IndexError:
            smallest, largest = int(input.min()), int(input.max())
            if smallest >= 0 and largest < self.num_embeddings:
                raise
            raise InputIndexError(
                "an id has no embedding",
                where=f"Embedding({self.num_embeddings}, {self.embedding_dim})",
                expected=f"ids from 0 to {self.num_embeddings - 1}",
                found=f"ids from {smallest} to {largest}",
                hint=f"num_embeddings={largest + 1}, or is the tokenizer another one?"
                if smallest >= 0
                else "negative ids are often padding: give padding an id of its own and set padding_idx",
            ) from None
