"""Mixture of experts: a feed-forward block that uses few of its weights for each vector.

Axes: T vectors (tokens), D their size, F size between the Linears of an expert, N experts, K experts used for
each vector.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn import functional as F

from burnt import kernels
from burnt.errors import ConfigError, ShapeError
from burnt.module import Module
from burnt.nn.checks import require
from burnt.nn.feed_forward import GateActivation, GatedFeedForward, check_gate, gated


class Routing(NamedTuple):
    """Which experts vectors go to.

    Args:
        logits: ``[T, N]``, scores of all experts.
        weights: ``[T, K]``, weights of the outputs of the experts, in the dtype of the vectors.
        experts: ``[T, K]``, indices of the experts, int64, the best first.
    """

    logits: Tensor
    weights: Tensor
    experts: Tensor

    def load_balancing_loss(self, mask: Tensor | None = None) -> Tensor:
        r"""Return the auxiliary loss that is smallest if all experts get as many vectors.

        .. math:: N \sum_e f_e P_e

        where :math:`f_e` is the number of times that expert :math:`e` was chosen per vector, and :math:`P_e`
        the mean of its probability.

        Args:
            mask: ``[*]``, as many as vectors: False for those that do not count, such as padding.

        Returns:
            ``[]``; K for a balanced load. Mixtral adds 0.001 to 0.02 times this to the loss.

        Raises:
            ShapeError: a mask for another number of vectors.

        Fedus, Zoph and Shazeer, 2021; for K > 1 as in Hugging Face's Mixtral.
        """
        num_experts = self.logits.shape[1]
        probabilities = _widened(self.logits).softmax(-1)
        chosen = F.one_hot(self.experts, num_experts).sum(1).to(probabilities.dtype)
        return num_experts * (_mean(chosen, mask) * _mean(probabilities, mask)).sum()

    def z_loss(self, mask: Tensor | None = None) -> Tensor:
        r"""Return the mean of :math:`(\log \sum_e \exp \ell_e)^2`, which keeps the logits small.

        Args:
            mask: the tokens that count, as for `load_balancing_loss`.

        Returns:
            ``[]``. Zoph et al., 2022, add 0.001 times this to the loss.
        """
        return _mean(_widened(self.logits).logsumexp(-1).square(), mask)


def _mean(values: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mean over the first axis, of those that the mask keeps."""
    if mask is None:
        return values.mean(0)
    if mask.numel() != values.shape[0]:
        raise ShapeError(
            "the mask does not fit the vectors of a routing",
            where="Routing",
            expected=f"{values.shape[0]} booleans",
            found=tuple(mask.shape),
        )
    kept = mask.reshape(-1).to(values.dtype)
    total: Tensor = torch.tensordot(kept, values, 1)
    return total / kept.sum()


def _widened(x: Tensor) -> Tensor:
    """Return logits in float32, or float64 if they have it."""
    return x.float() if x.element_size() < 4 else x


class TopKRouter(Module):
    r"""Scores experts for vectors, and takes the best: :math:`\mathrm{softmax}(W x)`, then the K largest.

    Args:
        d_model: size D of the vectors.
        num_experts: number N of experts.
        top_k: number K of experts for a vector.
        normalize: whether the weights of the K experts are divided by their sum.

    Shapes:
        input ``[T, D]``, output a `Routing`; ``weight`` is ``[N, D]``. For 16 bits the softmax is computed
        in float32.

    >>> TopKRouter(8, num_experts=4, top_k=2)(torch.zeros(3, 8)).weights.shape
    torch.Size([3, 2])
    """

    d_model: int
    num_experts: int
    top_k: int
    normalize: bool
    weight: Parameter

    def __init__(
        self,
        d_model: int,
        num_experts: int,
        top_k: int = 2,
        *,
        normalize: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        where = f"TopKRouter({d_model}, {num_experts} experts)"
        require(1 <= top_k <= num_experts, where, "top_k", f"1 to {num_experts}, the experts", top_k)
        self.d_model = d_model
        self.num_experts = num_experts
        self.top_k = top_k
        self.normalize = normalize
        self.weight = Parameter(torch.empty(num_experts, d_model, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the initial weight, as a Linear does."""
        _reset(self.weight)

    def forward(self, input: Tensor) -> Routing:
        """Choose experts for `input` ``[T, D]``."""
        logits = F.linear(input, self.weight)
        weights, experts = _widened(logits).softmax(-1).topk(self.top_k)
        if self.normalize:
            weights = weights / weights.sum(-1, keepdim=True)
        return Routing(logits, weights.to(input.dtype), experts)


class MoeFeedForward(Module):
    r"""Many gated feed-forward blocks, of which a router uses a few for each vector.

    .. math:: y = \sum_{e \in \mathrm{top}_K} w_e\, W_{d,e}\,(f(W_{g,e} x) \odot W_{u,e} x)

    Args:
        d_model: size D of input and output.
        d_ff: size F between the Linears of an expert.
        num_experts: number N of experts.
        top_k: number K of experts for a vector.
        activation: activation :math:`f` of the experts, as in `GatedFeedForward`.
        normalize: whether the weights :math:`w_e` of the K experts are divided by their sum (as in Mixtral).
        shared_d_ff: size between the Linears of one more expert that every vector uses, with weight 1; None
            for no such expert.
        capacity_factor: an expert takes at most this times ``T K / N`` vectors, or one; what comes later is
            not added to the output. All first choices come before all second ones. None is no limit.

    Shapes:
        input ``[..., D]``, output the same; ``gate_proj`` and ``up_proj`` are ``[N, F, D]``, ``down_proj`` is
        ``[N, D, F]``; ``router`` is a `TopKRouter`, ``shared`` a `GatedFeedForward`.

    Raises:
        ShapeError: vectors of another size.
        InputValueError: `top_k` or `capacity_factor` is not possible.

    The vectors are sorted by expert, and each product of all experts is one `burnt.kernels.grouped_matmul`.
    For auxiliary losses see `record_routing`. Shazeer et al., 2017; Jiang et al., 2024 (Mixtral); Dai et al.,
    2024 (shared experts).

    >>> MoeFeedForward(8, 16, num_experts=4, top_k=2)(torch.zeros(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    d_model: int
    d_ff: int
    num_experts: int
    activation: str
    capacity_factor: float | None
    router: TopKRouter
    gate_proj: Parameter
    up_proj: Parameter
    down_proj: Parameter
    shared: GatedFeedForward | None

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        num_experts: int,
        top_k: int = 2,
        *,
        activation: GateActivation = "silu",
        normalize: bool = True,
        shared_d_ff: int | None = None,
        capacity_factor: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        where = f"MoeFeedForward({d_model}, {d_ff}, {num_experts} experts)"
        check_gate(activation, where)
        is_valid = capacity_factor is None or capacity_factor > 0
        require(is_valid, where, "capacity_factor", "above 0, or None", capacity_factor)
        self.d_model = d_model
        self.d_ff = d_ff
        self.num_experts = num_experts
        self.activation = activation
        self.capacity_factor = capacity_factor
        self.router = TopKRouter(d_model, num_experts, top_k, normalize=normalize, device=device, dtype=dtype)

        def experts(rows: int, columns: int) -> Parameter:
            return Parameter(torch.empty(num_experts, rows, columns, device=device, dtype=dtype))

        self.gate_proj = experts(d_ff, d_model)
        self.up_proj = experts(d_ff, d_model)
        self.down_proj = experts(d_model, d_ff)
        self.reset_parameters()
        self.shared = (
            None
            if shared_d_ff is None
            else GatedFeedForward(d_model, shared_d_ff, activation=activation, device=device, dtype=dtype)
        )

    def reset_parameters(self) -> None:
        """Draw the initial weights of the experts, as a Linear does."""
        for weight in (self.gate_proj, self.up_proj, self.down_proj):
            _reset(weight)

    def forward(self, input: Tensor) -> Tensor:
        """Map ``[..., D]`` to the same shape."""
        if input.shape[-1:] != (self.d_model,):
            raise ShapeError(
                "the vectors do not fit the experts",
                where=f"MoeFeedForward({self.d_model}, {self.d_ff}, {self.num_experts} experts)",
                expected=f"(..., {self.d_model})",
                found=tuple(input.shape),
            )
        x_TD = input.reshape(-1, self.d_model)
        routing: Routing = self.router(x_TD)
        # All first choices, then all second ones: the sort is stable, so that they fill the experts first.
        choices = routing.experts.t().flatten()
        ordered, order = choices.sort(stable=True)
        ends = torch.searchsorted(ordered, torch.arange(self.num_experts, device=x_TD.device), right=True)
        weights = routing.weights.t().flatten()[order]
        if self.capacity_factor is not None:
            weights = weights * self._is_within_capacity(ordered, ends)
        rows = x_TD[torch.arange(x_TD.shape[0], device=x_TD.device).repeat(self.router.top_k)[order]]
        hidden = gated(
            kernels.grouped_matmul(rows, self.gate_proj.mT, ends),
            kernels.grouped_matmul(rows, self.up_proj.mT, ends),
            self.activation,
        )
        output = kernels.grouped_matmul(hidden, self.down_proj.mT, ends) * weights[:, None]
        # Back to the order of the vectors by a gather, which is deterministic, unlike a sum by index.
        output = output[order.argsort()].view(self.router.top_k, *x_TD.shape).sum(0)
        if self.shared is not None:
            output = output + self.shared(x_TD)
        return output.reshape(input.shape)

    def _is_within_capacity(self, ordered: Tensor, ends: Tensor) -> Tensor:
        """Whether each row, of those sorted by expert, is among the first ones of its expert."""
        assert self.capacity_factor is not None
        # `int` and `max` would fix an open size of an export.
        limit = math.floor(self.capacity_factor * ordered.shape[0] / self.num_experts)
        starts = F.pad(ends[:-1], (1, 0))
        position = torch.arange(ordered.shape[0], device=ordered.device) - starts[ordered]
        return (position < limit) | (position == 0)


@contextmanager
def record_routing(model: torch.nn.Module) -> Iterator[list[Routing]]:
    """Collect the `Routing` of each call of a router within a block, for auxiliary losses.

    Args:
        model: any module with `MoeFeedForward` layers.

    Returns:
        A list, to which each call of a router adds its own. It is empty before the model is called.

    Raises:
        ConfigError: the model has no router.

    >>> layer = MoeFeedForward(8, 16, num_experts=4)
    >>> with record_routing(layer) as routings:
    ...     output = layer(torch.randn(5, 8))
    >>> loss = output.square().mean() + 0.01 * sum(r.load_balancing_loss() for r in routings)
    """
    routers = [module for module in model.modules() if isinstance(module, TopKRouter)]
    if not routers:
        raise ConfigError(f"{type(model).__name__} has no mixture of experts", expected="a MoeFeedForward")
    routings: list[Routing] = []

    def record(router: torch.nn.Module, args: Any, routing: Routing) -> None:
        routings.append(routing)

    handles = [router.register_forward_hook(record) for router in routers]
    try:
        yield routings
    finally:
        for handle in handles:
            handle.remove()


def _reset(weight: Tensor) -> None:
    """Draw the weights of Linears ``[..., out, in]`` as torch's Linear does."""
    bound = weight.shape[-1] ** -0.5 if weight.shape[-1] else 0.0
    torch.nn.init.uniform_(weight, -bound, bound)
