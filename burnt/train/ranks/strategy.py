"""The setting ``strategy=``: whether and how several processes train one model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from burnt.errors import RankError, UnsupportedError, did_you_mean
from burnt.train.ranks.launch import COMMAND, Launched

if TYPE_CHECKING:
    from burnt.train.ranks.ranks import Ranks

_STRATEGIES = ("auto", "single", "ddp", "fsdp")


def check_strategy(given: Any) -> str | Ranks:
    """Return the name of a strategy, or an object of one's own."""
    if not isinstance(given, str) and callable(getattr(given, "join", None)):
        ranks: Ranks = given
        return ranks
    if given not in _STRATEGIES:
        raise UnsupportedError(
            f"strategy={given!r} does not exist",
            expected="auto, single, ddp or fsdp; or an object, a subclass of burnt.train.Ranks",
            hint=did_you_mean(str(given), _STRATEGIES),
        )
    return str(given)


def ranks_of(strategy: str | Ranks, folder: Path, device: torch.device) -> Ranks | None:
    """Meet the other processes that a launcher has started; None if this is the only one.

    Raises:
        RankError: the strategy is for several processes, and there is one; or the other way round.
    """
    launched = Launched.find()
    if strategy == "single" and launched is not None:
        raise RankError(
            "several processes would train in one folder",
            where=f"{folder}, rank {launched.rank} of {launched.size}",
            expected="one process",
            found=f'strategy="single", and {launched.size} processes',
            hint='strategy="auto" or "ddp" trains one model in them together',
        )
    if launched is None:
        if strategy in ("auto", "single"):
            return None
        if isinstance(strategy, str) or strategy.needs_launcher:
            raise RankError(
                "this strategy is for several processes",
                where=str(folder),
                expected="a process for each device",
                found=f"strategy={strategy if isinstance(strategy, str) else strategy.name!r}, one process",
                hint=f"start them with: {COMMAND}",
            )
        launched = Launched(0, 1, 0)
    from burnt.train.ranks.ranks import Ranks

    if strategy == "fsdp":
        from burnt.train.ranks.sharded import ShardedRanks

        strategy = ShardedRanks()
    joined = Ranks() if isinstance(strategy, str) else strategy
    joined.join(launched, device)
    return joined
