"""Layers that are fitted to the training data: FillMissing and Standardize.

What they have learnt is in buffers, and so part of the model's record. The buffers are NaN before `fit`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from burnt import _torch
from burnt.errors import InputRuntimeError, InputValueError, ShapeError
from burnt.module import Module
from burnt.nn.checks import check_sizes, require


class _Fitted(Module):
    """What the layers share: an input ``[..., num_features]``, and reading the data."""

    num_features: int

    def __init__(self, num_features: int) -> None:
        super().__init__()
        check_sizes(type(self).__name__, num_features=num_features)
        self.num_features = num_features
        self._is_ready = False

    def _new(self, given: Any, placed: dict[str, Any]) -> Tensor:
        """Return a buffer of given values, a number or one for each feature; NaN for None."""
        values = torch.as_tensor(np.nan if given is None else given, **placed)
        if values.dim() and tuple(values.shape) != (self.num_features,):
            raise ShapeError(
                "a layer needs a value for each feature",
                where=f"{type(self).__name__}({self.num_features})",
                expected=(self.num_features,),
                found=tuple(values.shape),
            )
        return values.expand(self.num_features).clone()

    def _prepared(self, input: Tensor, values: Tensor) -> Tensor:
        """Check an input; return it in floating point."""
        where = f"{type(self).__name__}({self.num_features})"
        if input.shape[-1:] != (self.num_features,):
            raise ShapeError(
                "the input has another number of features",
                where=where,
                expected=f"(..., {self.num_features})",
                found=tuple(input.shape),
            )
        # Once, since it waits for a GPU; the values of a recorded call are not known.
        if not self._is_ready and _torch.is_plain_call() and not values.is_meta:
            if values.isnan().any():
                raise InputRuntimeError(
                    f"{type(self).__name__} is not fitted",
                    where=where,
                    expected="fit(data), before the model is trained or used",
                    hint="layer.fit(train, 'x') reads a column or columns of the training data",
                )
            self._is_ready = True
        return input if input.is_floating_point() else input.to(values.dtype)

    def _read(self, data: Any, entry: str | None) -> NDArray[np.float64]:
        """Return the values of the data, ``[n, num_features]``."""
        if isinstance(data, Tensor | np.ndarray):
            found = torch.as_tensor(data)
        elif entry is None or not (hasattr(data, "epoch") or hasattr(data, "column")):
            raise InputValueError(
                f"{type(self).__name__}.fit cannot read this data",
                expected="fit(tensor); or fit(data, 'x'), of a table, a TensorDataset or a loader",
                found=f"a {type(data).__name__}, entry {entry!r}",
                hint="a loader reads any dataset: fit(burnt.data.Loader(dataset, 256), 'x')",
            )
        elif hasattr(data, "epoch"):
            parts = (b[entry] if isinstance(b, Mapping) else getattr(b, entry) for b in data.epoch(0))
            found = torch.cat([part.cpu() for part in parts])
        else:
            found = torch.as_tensor(data.column(entry))
        if self.num_features == 1 and found.dim() == 1:
            found = found[:, None]
        if found.dim() < 2 or found.shape[-1] != self.num_features or not found.numel():
            raise ShapeError(
                "the data has another number of features",
                where=f"{type(self).__name__}({self.num_features}).fit",
                expected=f"(n, {self.num_features})",
                found=tuple(found.shape),
            )
        values = found.detach().cpu().reshape(-1, self.num_features).double().numpy()
        for wrong, what in (
            (np.isnan(values).all(0), "no values"),
            (np.isinf(values).any(0), "infinite values"),
        ):
            if wrong.any():
                raise InputValueError(
                    f"a feature has {what}",
                    where=f"{type(self).__name__}.fit, feature {int(wrong.argmax())}",
                    hint="leave the column out, or mend it",
                )
        return values


class FillMissing(_Fitted):
    r"""Replaces NaN by the mean or median that each feature has in the training data, or by a number.

    Args:
        num_features: size of the input's last axis.
        by: ``"mean"``, ``"median"``; or a number, or one for each feature, which need no `fit`.

    Shapes:
        input ``[..., num_features]``, output the same, integers as floating point; ``fill_values`` is
        ``[num_features]``.

    Raises:
        InputRuntimeError: the layer is used before `fit`.
        ShapeError: the input's last axis has another size.

    The values are part of the model's record. Tables give NaN by ``missing="nan"``. (scikit-learn's
    SimpleImputer.)

    >>> layer = FillMissing(2).fit(torch.tensor([[1.0, 5.0], [3.0, torch.nan]]))
    >>> layer(torch.tensor([[torch.nan, torch.nan]]))
    tensor([[2., 5.]])
    """

    by: Literal["mean", "median"] | float | list[float]

    def __init__(
        self,
        num_features: int,
        by: Literal["mean", "median"] | float | list[float] = "mean",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_features)
        is_known = not isinstance(by, str) or by in ("mean", "median")
        require(is_known, "FillMissing", "by", "'mean', 'median' or a number", repr(by))
        self.by = by
        placed = {"device": device, "dtype": dtype or torch.get_default_dtype()}
        self.register_buffer("fill_values", self._new(None if isinstance(by, str) else by, placed))

    def fit(self, data: Any, entry: str | None = None) -> Self:
        """Find the values of the features, computed in float64 without NaN; return the layer.

        Args:
            data: a tensor or array ``[..., num_features]``, also ``[n]`` of a single feature; a dataset with
                `column`; or a loader, one epoch of which is read.
            entry: the column of the dataset, or the entry of the loader's batches.

        Raises:
            InputValueError: a feature has no values or infinite ones; or `by` is a number.
            ShapeError: the data has another number of features.
        """
        require(isinstance(self.by, str), "FillMissing.fit", "by", "'mean' or 'median'", repr(self.by))
        values = self._read(data, entry)
        found = np.nanmean(values, 0) if self.by == "mean" else np.nanmedian(values, 0)
        self.get_buffer("fill_values").copy_(torch.from_numpy(found))
        return self

    def forward(self, input: Tensor) -> Tensor:
        """Replace NaN in ``[..., num_features]``."""
        values = self.get_buffer("fill_values")
        input = self._prepared(input, values)
        return torch.where(input.isnan(), values.to(input.dtype), input)


class Standardize(_Fitted):
    r"""Gives each feature mean 0 and standard deviation 1 in the training data.

    .. math:: y = (x - \mu) / \sigma

    Args:
        num_features: size of the input's last axis.
        mean: known values, one for each feature or one for all; None leaves them to `fit`.
        std: the same of the standard deviation; of a constant feature 1.

    Shapes:
        input ``[..., num_features]``, output the same, integers as floating point; ``feature_mean`` and
        ``feature_std`` are ``[num_features]``.

    Raises:
        InputRuntimeError: the layer is used before `fit`.
        InputValueError: only one of `mean` and `std` is given.
        ShapeError: the input's last axis has another size.

    The values are part of the model's record. NaN stays NaN: `FillMissing` goes before it. (scikit-learn's
    StandardScaler, of the population as there.)

    >>> layer = Standardize(2).fit(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
    >>> layer(torch.tensor([[1.0, 6.0]]))
    tensor([[-1.,  1.]])
    """

    mean: float | list[float] | None
    std: float | list[float] | None

    def __init__(
        self,
        num_features: int,
        mean: float | list[float] | None = None,
        std: float | list[float] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_features)
        require((mean is None) == (std is None), "Standardize", "mean, std", "both or none", (mean, std))
        self.mean, self.std = mean, std
        placed = {"device": device, "dtype": dtype or torch.get_default_dtype()}
        self.register_buffer("feature_mean", self._new(mean, placed))
        self.register_buffer("feature_std", self._new(std, placed))

    def fit(self, data: Any, entry: str | None = None) -> Self:
        """Find mean and standard deviation of the features, without NaN; return the layer.

        Arguments, and what is raised, are as in `FillMissing.fit`.
        """
        values = self._read(data, entry)
        # Rounding gives a constant such as 0.1 a deviation that is not 0.
        is_constant = np.nanmin(values, 0) == np.nanmax(values, 0)
        std = np.where(is_constant, 1.0, np.nanstd(values, 0))
        self.get_buffer("feature_mean").copy_(torch.from_numpy(np.nanmean(values, 0)))
        self.get_buffer("feature_std").copy_(torch.from_numpy(std))
        return self

    def forward(self, input: Tensor) -> Tensor:
        """Standardize ``[..., num_features]``."""
        mean, std = self.get_buffer("feature_mean"), self.get_buffer("feature_std")
        input = self._prepared(input, mean)
        return (input - mean.to(input.dtype)) / std.to(input.dtype)
