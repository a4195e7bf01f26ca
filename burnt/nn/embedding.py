"""Embedding, a learned vector for each id, and EmbeddingBag, which reduces the vectors of several."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from burnt import kernels
from burnt.errors import InputIndexError, InputValueError
from burnt.module import Module


class Embedding(Module, torch.nn.Embedding):  # type: ignore[misc]  # torch annotates a `freeze` it lacks
    """A table of vectors, indexed by id.

    Args:
        num_embeddings: number of ids.
        embedding_dim: size of a vector.
        padding_idx: id whose vector starts at zero and is not trained; negative counts from the end.
        max_norm: vectors that are looked up are first shortened, in place, to this norm.
        norm_type: the p of that norm.
        scale_grad_by_freq: divide a vector's gradient by how often its id occurs in the batch.
        sparse: whether gradients are sparse tensors.

    Shapes:
        input integers ``[*]`` below `num_embeddings`, output ``[*, embedding_dim]``; ``weight`` is
        ``[num_embeddings, embedding_dim]``, from a standard normal distribution (as in Burn, which knows
        neither padding nor norms).

    Raises:
        InputIndexError: an id outside the table, on the CPU; a GPU reports it later, as a failed assertion.

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
        _check_padding(self, padding_idx, num_embeddings)
        options = padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse
        super().__init__(num_embeddings, embedding_dim, *options, device=device, dtype=dtype)

    def reset_parameters(self) -> None:
        """Draw the weights anew; those on the meta device have no values, and `normal_` of them is slow."""
        if not self.weight.is_meta:
            super().reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        """Return the vectors of the ids `input` ``[*]``: ``[*, embedding_dim]``."""
        try:
            if self.max_norm is not None or self.scale_grad_by_freq or self.sparse:
                return super().forward(input)
            return kernels.embedding.in_layer(input, self.weight, self.padding_idx)
        except IndexError:
            _check_ids(self, input)
            raise


def _check_ids(layer: Embedding | EmbeddingBag, ids: Tensor) -> None:
    smallest, largest = int(ids.min()), int(ids.max())
    if smallest >= 0 and largest < layer.num_embeddings:
        return
    raise InputIndexError(
        "an id has no embedding",
        where=f"{type(layer).__name__}({layer.num_embeddings}, {layer.embedding_dim})",
        expected=f"ids from 0 to {layer.num_embeddings - 1}",
        found=f"ids from {smallest} to {largest}",
        hint=f"num_embeddings={largest + 1}, or is the tokenizer another one?"
        if smallest >= 0
        else "negative ids are often padding: give padding an id of its own and set padding_idx",
    ) from None


class EmbeddingBag(Module, torch.nn.EmbeddingBag):
    """The sum, mean or maximum of the vectors of several ids, without a tensor of all vectors.

    Args:
        num_embeddings: number of ids.
        embedding_dim: size of a vector.
        mode: how the vectors of a bag are reduced; ``"max"`` takes neither `scale_grad_by_freq` nor `sparse`.
        include_last_offset: whether the offsets end with the number of ids.
        padding_idx: id whose vector starts at zero, is not trained, and does not count in a bag; negative
            counts from the end.

    Other arguments are as in `Embedding`.

    Shapes:
        input integers ``[bags, ids]``, or ``[ids]`` with the offsets ``[bags]`` at which bags start (with
        `include_last_offset` ``[bags + 1]``); output ``[bags, embedding_dim]``, zeros for an empty bag;
        ``weight`` is ``[num_embeddings, embedding_dim]``, from a standard normal distribution.

    Raises:
        InputIndexError: an id outside the table, on the CPU; a GPU reports it later, as a failed assertion.

    >>> EmbeddingBag(10, 4)(torch.tensor([1, 2, 4, 5, 4]), torch.tensor([0, 3])).shape
    torch.Size([2, 4])
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: Literal["mean", "sum", "max"] = "mean",
        sparse: bool = False,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        _check_padding(self, padding_idx, num_embeddings)
        options = (
            max_norm,
            norm_type,
            scale_grad_by_freq,
            mode,
            sparse,
            None,
            include_last_offset,
            padding_idx,
        )
        super().__init__(num_embeddings, embedding_dim, *options, device=device, dtype=dtype)

    def forward(
        self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        """Reduce the vectors of bags of ids.

        Args:
            input: ids, ``[bags, ids]`` or ``[ids]``, int64 or int32.
            offsets: index of the first id of each bag, for `input` ``[ids]``.
            per_sample_weights: a factor for each id, in the shape of `input`; only for ``"sum"``.
        """
        try:
            return super().forward(input, offsets, per_sample_weights)
        except RuntimeError:
            if input.numel() and not (input.is_meta or input.is_floating_point()):
                _check_ids(self, input)
            raise


def _check_padding(layer: torch.nn.Module, padding_idx: int | None, num_embeddings: int) -> None:
    if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
        raise InputValueError(
            "padding_idx is not an id",
            where=type(layer).__name__,
            expected=f"{-num_embeddings} to {num_embeddings - 1}, for {num_embeddings} vectors",
            found=padding_idx,
            hint=f"num_embeddings={padding_idx + 1} gives padding an id of its own"
            if padding_idx == num_embeddings
            else None,
        )
