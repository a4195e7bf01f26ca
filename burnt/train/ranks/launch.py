"""How a process learns that it is one of several: from the variables of torchrun, Slurm and the like."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from burnt import _torch
from burnt.errors import RankError, UnsupportedError, did_you_mean

if TYPE_CHECKING:
    from burnt.train.ranks.ranks import Ranks

_STRATEGIES = ("auto", "single", "ddp")
_LAUNCHERS = {
    "WORLD_SIZE": ("RANK", "LOCAL_RANK"),  # torchrun, accelerate, deepspeed
    # SLURM_NTASKS is also set where only one process was started.
    "SLURM_STEP_NUM_TASKS": ("SLURM_PROCID", "SLURM_LOCALID"),
    "OMPI_COMM_WORLD_SIZE": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "PMI_SIZE": ("PMI_RANK", "MPI_LOCALRANKID"),
}
"""The variables in which launchers tell a process the number of processes, its own, and that on its node."""
_COMMAND = "burnt train --nproc 2 file.py:main, or torchrun --nproc-per-node 2 file.py"


@dataclasses.dataclass(frozen=True)
class Launched:
    """One of several processes that a launcher has started."""

    rank: int
    size: int
    local_rank: int

    @classmethod
    def find(cls, environment: Mapping[str, str] = os.environ) -> Launched | None:
        """Return this process if a launcher or the program has made it one of several.

        >>> Launched.find({"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1"})
        Launched(rank=3, size=4, local_rank=1)
        """
        for size, (rank, local) in _LAUNCHERS.items():
            text = environment.get(size, "").strip()
            if text.isdecimal() and int(text) > 1:
                if not environment.get(rank, "").strip().isdecimal():
                    raise RankError(
                        "the launcher does not say which of several processes this is",
                        where=f"the environment variable {rank}",
                        expected=f"a number from 0 to {int(text) - 1}, as {size}={text}",
                        found=environment.get(rank, "not set"),
                        hint=f"start them with: {_COMMAND}",
                    )
                own = int(environment[rank])
                return cls(own, int(text), int(environment.get(local, own)))
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            return cls(dist.get_rank(), dist.get_world_size(), dist.get_node_local_rank(dist.get_rank()))
        return None

    def device(self, asked: torch.device) -> torch.device:
        """Return the device of this process: of several GPUs, the one with its number on the node."""
        if asked.type != "cuda":
            return asked
        if self.local_rank >= torch.cuda.device_count():
            raise RankError(
                "there are more processes on this machine than GPUs",
                where=f"rank {self.rank} of {self.size}",
                expected=f"at most {torch.cuda.device_count()} on each machine",
                found=f"process {self.local_rank + 1} of this machine",
                hint="start fewer, or train on the CPU: device='cpu'",
            )
        device = torch.device("cuda", self.local_rank)
        torch.cuda.set_device(device)
        return device

    def backend(self, device: torch.device) -> str:
        """Return torch.distributed's backends: messages between the hosts are always by gloo."""
        return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"

    @functools.cache  # noqa: B019  one for the process, as the launcher's port is
    def store(self, timeout: float) -> Any:
        """Return the key-value store by which the processes meet: torchrun's, or one of rank 0."""
        if dist.is_initialized():
            return _torch.default_store()
        from torch.distributed.rendezvous import rendezvous

        for name, value in _meeting_point(os.environ).items():
            os.environ.setdefault(name, value)
        os.environ.setdefault("RANK", str(self.rank))
        os.environ.setdefault("WORLD_SIZE", str(self.size))
        try:
            store, *_ = next(
                iter(rendezvous("env://", self.rank, self.size, timeout=datetime.timedelta(seconds=timeout)))
            )
        except (ValueError, RuntimeError, OSError) as error:
            raise RankError(
                "the processes cannot meet",
                where=f"rank {self.rank} of {self.size}",
                expected="MASTER_ADDR and MASTER_PORT: the host of rank 0, and a port there that is free",
                found=f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}: {error}",
                hint=f"start them with: {_COMMAND}",
            ) from error
        return store


def _meeting_point(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the address of rank 0 that Slurm tells: the first node of the step."""
    nodes = environment.get("SLURM_STEP_NODELIST", "")
    if not nodes:
        return {}
    first = re.match(r"([^\[,]+)(?:\[([0-9]+))?", nodes)
    job = int(environment.get("SLURM_JOB_ID", "0"))
    name = "" if first is None else first[1] + (first[2] or "")
    return {"MASTER_ADDR": name, "MASTER_PORT": str(15_000 + job % 20_000)}


def check_strategy(given: Any) -> str | Ranks:
    """Return the name of a strategy, or an object of one's own."""
    if not isinstance(given, str) and callable(getattr(given, "join", None)):
        ranks: Ranks = given
        return ranks
    if given not in _STRATEGIES:
        raise UnsupportedError(
            f"strategy={given!r} does not exist",
            expected="auto, single or ddp; or an object, a subclass of burnt.train.Ranks",
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
            expected='strategy="auto" or "ddp", to train one model in them together',
            found='strategy="single"',
        )
    if launched is None:
        if strategy in ("auto", "single"):
            return None
        raise RankError(
            "this strategy is for several processes",
            where=str(folder),
            expected="a process for each device",
            found=f"strategy={strategy if isinstance(strategy, str) else strategy.name!r}, and one process",
            hint=f"start them with: {_COMMAND}",
        )
    from burnt.train.ranks.ranks import Ranks

    joined = Ranks() if isinstance(strategy, str) else strategy
    joined.join(launched, device)
    return joined
